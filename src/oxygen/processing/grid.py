"""Pictures for models that take any size: sides to multiples of a token's, with a floor and a ceiling of pixels.

The rule of Qwen's processors. Its floor makes small pictures larger: 224 x 224 becomes 256 x 256, 64 tokens of 32 x 32.
"""

from __future__ import annotations

import math

import numpy as np
from PIL import Image

from oxygen.core.errors import InvalidInput

MAX_RATIO = 200


def grid_size(height: int, width: int, side: int, min_pixels: int, max_pixels: int) -> tuple[int, int]:
    """Height and width in pixels, multiples of `side`. Raises InvalidInput for a picture that is far too long."""
    if max(height, width) > MAX_RATIO * min(height, width):
        raise InvalidInput("image", f"proportions of at most {MAX_RATIO} to 1", f"{height} x {width}")
    fitted = max(side, round(height / side) * side), max(side, round(width / side) * side)
    if fitted[0] * fitted[1] > max_pixels:
        scale = math.sqrt(height * width / max_pixels)
        return tuple(max(side, math.floor(n / scale / side) * side) for n in (height, width))  # type: ignore[return-value]
    if fitted[0] * fitted[1] < min_pixels:
        scale = math.sqrt(min_pixels / (height * width))
        return tuple(math.ceil(n * scale / side) * side for n in (height, width))  # type: ignore[return-value]
    return fitted


def fit_to_grid(picture: np.ndarray, first_size: int | None, side: int, min_pixels: int, max_pixels: int) -> np.ndarray:
    """picture [h, w, 3] uint8 -> [H, W, 3] uint8. first_size: of a square that it is pressed into before (StarVLA).

    Both resizes are Pillow's bicubic. The result is a copy: a camera's buffer may hold the next frame soon.
    """
    image = Image.fromarray(np.ascontiguousarray(picture))
    if first_size is not None and image.size != (first_size, first_size):
        image = image.resize((first_size, first_size), Image.Resampling.BICUBIC)
    height, width = grid_size(image.height, image.width, side, min_pixels, max_pixels)
    if image.size != (width, height):
        image = image.resize((width, height), Image.Resampling.BICUBIC)
    return np.array(image)
