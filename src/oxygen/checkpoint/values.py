"""The numbers of a safetensors folder, looked at in pieces with NumPy: are they finite, and which weights are they."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

import numpy as np

from oxygen.checkpoint.headers import TensorInfo

PIECE_BYTES = 1 << 24

_EXPONENTS = {"BF16": ("<u2", 0x7F80), "F16": ("<u2", 0x7C00), "F32": ("<u4", 0x7F800000), "F64": ("<u8", 0x7FF << 52)}
"""By type: the integer of its size, and the exponent bits, all of which are set in NaN and infinity alone."""


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


def fingerprint(tensors: Iterable[tuple[str, TensorInfo]]) -> str:
    """SHA-256 over names, types, shapes and bytes, in the order of the names given."""
    digest = hashlib.sha256()
    for name, info in sorted(tensors):
        digest.update(f"{name} {info.dtype} {list(info.shape)}\n".encode())
        for piece in pieces(info):
            digest.update(piece)
    return digest.hexdigest()
