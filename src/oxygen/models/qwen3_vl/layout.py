"""Where a context's tokens stand: three positions each, and how far the count of positions lags behind that of
tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """positions [n, 3] int64 (time, row, column). shift: position of a token that follows minus its index.

    open_from: the first index from which shift holds, the one behind the last picture. images: [start, stop) of each.
    """

    positions: np.ndarray
    shift: int
    open_from: int
    images: tuple[tuple[int, int], ...]


def lay_out(token_ids: Sequence[int], grids: Sequence[tuple[int, int]], image_id: int) -> Layout:
    """token_ids: the whole prompt, every token of a picture as `image_id`. grids: (rows, columns) of each picture.

    A word has the same position on all axes. A picture that begins at p puts its token of row r and column c at
    (p, p + r, p + c); the next word comes at p + max(rows, columns). Raises ValueError where tokens and pictures
    disagree.
    """
    ids = np.asarray(token_ids, dtype=np.int64)
    positions = np.empty((len(ids), 3), dtype=np.int64)
    is_image = ids == image_id
    images: list[tuple[int, int]] = []
    at, position = 0, 0
    for rows, columns in grids:
        left = np.flatnonzero(is_image[at:])
        if not len(left):
            raise ValueError(f"{len(grids)} pictures, but tokens for {len(images)}")
        start = at + int(left[0])
        stop = start + rows * columns
        if stop > len(ids) or not is_image[start:stop].all():
            raise ValueError(
                f"picture {len(images)} of {rows} x {columns} tokens: fewer than {rows * columns} in a row"
            )
        positions[at:start] = (position + np.arange(start - at))[:, None]
        position += start - at
        row, column = np.divmod(np.arange(rows * columns), columns)
        positions[start:stop] = position + np.stack((np.zeros_like(row), row, column), axis=1)
        position += max(rows, columns)
        images.append((start, stop))
        at = stop
    if is_image[at:].any():
        raise ValueError(
            f"tokens of a picture at {at + int(np.flatnonzero(is_image[at:])[0])}, beyond the last picture"
        )
    positions[at:] = (position + np.arange(len(ids) - at))[:, None]
    return Layout(positions, position - at, max(at, 1), tuple(images))
