"""The numbers of a safetensors folder, looked at in pieces with NumPy: are they finite, and which weights are they."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

import numpy as np

from oxygen.checkpoint.headers import TensorInfo

PIECE_BYTES = 1 << 24

_EXPONENTS = {"BF16": ("<u2", 0x7F80), "F16": ("<u2", 0x7C00), "F32": ("<u4", 0x7F800000), "F64": ("<u8", 0x7FF << 52)}
"""By type: the integer of its size, and the exponent bits, all of which are set in NaN and infinity alone."""


_FLOATS = {"F16": "<f2", "F32": "<f4", "F64": "<f8"}


def pieces(info: TensorInfo) -> Iterator[bytes]:
    """A tensor's bytes in order, at most PIECE_BYTES at a time."""
    with info.file.open("rb") as file:
        file.seek(info.start)
        left = info.num_bytes
        while left > 0:
            piece = file.read(min(PIECE_BYTES, left))
            if not piece:
                return
            left -= len(piece)
            yield piece


def is_finite(info: TensorInfo) -> bool:
    """True if no element is NaN or infinite; integers always are."""
    if info.dtype not in _EXPONENTS:
        return True
    kind, exponent = _EXPONENTS[info.dtype]
    mask = np.dtype(kind).type(exponent)
    return all(not ((np.frombuffer(piece, kind) & mask) == mask).any() for piece in pieces(info))


def same_values(a: TensorInfo, b: TensorInfo) -> bool:
    """True if two float tensors hold the same numbers, whatever types they are stored in."""
    if a.shape != b.shape:
        return False
    if a.dtype == b.dtype:
        return all(x == y for x, y in zip(pieces(a), pieces(b), strict=True))
    return all((x == y).all() for x, y in zip(_numbers(a), _numbers(b), strict=True))


def _numbers(info: TensorInfo) -> Iterator[np.ndarray]:
    """A float tensor as float64, in pieces of the same number of elements for every type."""
    item = info.num_bytes // max(info.num_elements, 1)
    with info.file.open("rb") as file:
        file.seek(info.start)
        for first in range(0, info.num_elements, PIECE_BYTES):
            raw = file.read(item * min(PIECE_BYTES, info.num_elements - first))
            if info.dtype == "BF16":
                yield (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32).astype(np.float64)
            else:
                yield np.frombuffer(raw, _FLOATS[info.dtype]).astype(np.float64)


def fingerprint(tensors: Iterable[tuple[str, TensorInfo]]) -> str:
    """SHA-256 over names, types, shapes and bytes, in the order of the names given."""
    digest = hashlib.sha256()
    for name, info in sorted(tensors):
        digest.update(f"{name} {info.dtype} {list(info.shape)}\n".encode())
        for piece in pieces(info):
            digest.update(piece)
    return digest.hexdigest()
