"""Pictures on their way to the model: checked, turned to HWC uint8, and resized exactly as the training data was.

The filter is Pillow's bilinear one, which averages when it shrinks; a resize without that is tens of grey levels away
on fine texture. A picture is only transposed where its layout is certain: an axis of 3 at both ends is refused.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from PIL import Image

from oxygen.core.errors import InvalidInput

Layout = Literal["auto", "HWC", "CHW"]

_EXPECTED = "a picture [height, width, 3] (or [3, height, width]), uint8 or float in [0, 1]"
_FLOAT_SLACK = 1e-3
"""Rounding that a float picture may carry beyond [0, 1]; small enough that truncation to uint8 cannot wrap."""


def as_picture(value: Any, name: str, layout: Layout = "auto") -> np.ndarray:
    """Return `value` as [height, width, 3] uint8.

    layout settles the one case that the shape cannot ([3, n, 3]); elsewhere the shape decides. Floats are read as [0,
    1] and truncated, as openpi's client does. Raises InvalidInput naming the camera for any other shape, type or
    range.
    """
    try:
        array = np.asarray(value)
    except ValueError:  # ragged lists
        raise InvalidInput(name, _EXPECTED, "lists of different lengths") from None
    if array.dtype != np.uint8 and array.dtype.kind != "f":
        raise InvalidInput(name, _EXPECTED, f"{array.dtype} {list(array.shape)}")
    array = _channels_last(array, name, layout)
    if min(array.shape) == 0:
        raise InvalidInput(name, "a picture with pixels", f"shape {list(array.shape)}")
    return array if array.dtype == np.uint8 else _truncated(array, name)


def resize_with_pad(picture: np.ndarray, height: int, width: int, name: str = "image") -> np.ndarray:
    """Fit `picture` [h, w, 3] uint8 into [height, width, 3], keeping its proportions, black around it.

    A picture of the right size is returned as it is. Geometry as in openpi: both sides divided by the larger of the
    two ratios and truncated; the padding before is half of the rest, rounded down. Raises InvalidInput where nothing
    is left.
    """
    if picture.shape[:2] == (height, width):
        return picture
    new_height, new_width = fitted_size(picture.shape[0], picture.shape[1], height, width)
    if not new_height or not new_width:
        raise InvalidInput(name, f"proportions that fit {height}x{width}", f"{picture.shape[0]}x{picture.shape[1]}")
    fitted = Image.fromarray(np.ascontiguousarray(picture)).resize((new_width, new_height), Image.Resampling.BILINEAR)
    if (new_height, new_width) == (height, width):
        return np.asarray(fitted)
    padded = np.zeros((height, width, 3), dtype=np.uint8)
    top, left = (height - new_height) // 2, (width - new_width) // 2
    padded[top : top + new_height, left : left + new_width] = np.asarray(fitted)
    return padded


def fitted_size(height: int, width: int, to_height: int, to_width: int) -> tuple[int, int]:
    """Height and width of the picture inside its padding."""
    ratio = max(width / to_width, height / to_height)
    return int(height / ratio), int(width / ratio)


def _channels_last(array: np.ndarray, name: str, layout: Layout) -> np.ndarray:
    if array.ndim != 3:
        hint = {2: " (a grey picture?)", 4: " (a batch axis?)"}.get(array.ndim, "")
        raise InvalidInput(name, _EXPECTED, f"shape {list(array.shape)}{hint}")
    first, last = array.shape[0] == 3, array.shape[2] == 3
    if first and last and layout == "auto":
        raise InvalidInput(name, "a shape that tells channels from pixels", f"{list(array.shape)}, HWC and CHW alike")
    if last and not (first and layout == "CHW"):
        return array
    if first:
        return array.transpose(1, 2, 0)
    hint = {1: " (grey?)", 4: " (an alpha channel? drop it)"}.get(array.shape[2], "")
    raise InvalidInput(name, _EXPECTED, f"shape {list(array.shape)}{hint}")


def _truncated(array: np.ndarray, name: str) -> np.ndarray:
    low, high = array.min(), array.max()
    if not (low >= -_FLOAT_SLACK and high <= 1 + _FLOAT_SLACK):  # also true for NaN
        if not np.isfinite(array).all():
            where = [int(i) for i in np.argwhere(~np.isfinite(array))[0]]
            raise InvalidInput(name, "finite numbers", f"{array[tuple(where)]} at {where} (height, width, channel)")
        raise InvalidInput(name, "float values in [0, 1]", f"[{low:g}, {high:g}]")
    # The product is taken in the picture's own precision, as the reference does: the last bit decides the truncation.
    picture: np.ndarray = np.clip(255 * array, 0, 255).astype(np.uint8)
    return picture
