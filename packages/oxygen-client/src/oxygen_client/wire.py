"""msgpack with NumPy arrays, in the form that openpi's clients and servers speak.

An array is a map with byte-string keys (`__ndarray__`, `data`, `dtype`, `shape`), a NumPy scalar one with
`__npgeneric__`, `data`, `dtype`. Text keys are understood as well. Object, structured and complex arrays are
refused in both directions; a decoded array is a read-only view of the message.
"""

from __future__ import annotations

import math
from typing import Any

import msgpack
import numpy as np

_REFUSED_KINDS = frozenset("VOcMm")
_MAX_DIMS = 32


def pack(message: Any) -> bytes:
    """Encode a message. Raises TypeError or ValueError for what the format cannot carry."""
    return msgpack.packb(message, default=_encode, use_bin_type=True)


def unpack(data: bytes) -> Any:
    """Decode a message. Raises ValueError when it is not one."""
    try:
        return msgpack.unpackb(data, raw=False, strict_map_key=False, object_hook=_decode)
    except (msgpack.exceptions.UnpackException, UnicodeDecodeError, TypeError, RecursionError) as error:
        raise ValueError(f"not a msgpack message: {error}") from error


def _encode(value: Any) -> Any:
    if isinstance(value, (np.ndarray, np.generic)):
        if value.dtype.kind in _REFUSED_KINDS:
            raise ValueError(f"arrays of dtype {value.dtype} cannot be sent")
        if isinstance(value, np.ndarray):
            return {
                b"__ndarray__": True,
                b"data": value.tobytes(),
                b"dtype": value.dtype.str,
                b"shape": value.shape,
            }
        return {b"__npgeneric__": True, b"data": value.item(), b"dtype": value.dtype.str}
    raise TypeError(f"values of type {type(value).__name__} cannot be sent")


def _decode(fields: dict) -> Any:
    for marker, build in ((b"__ndarray__", _array), (b"__npgeneric__", _scalar)):
        text_marker = marker.decode()
        if marker in fields or text_marker in fields:
            return build({k.decode() if isinstance(k, bytes) else k: v for k, v in fields.items()})
    return fields


def _dtype(fields: dict) -> np.dtype:
    name = fields.get("dtype")
    name = name.decode("ascii", "replace") if isinstance(name, bytes) else name
    if not isinstance(name, str) or len(name) > 16:
        raise ValueError("an array's dtype must be a short string")
    try:
        dtype = np.dtype(name)
    except (TypeError, ValueError, SyntaxError) as error:
        raise ValueError(f"unknown dtype {name!r}") from error
    if dtype.kind in _REFUSED_KINDS or dtype.hasobject:
        raise ValueError(f"arrays of dtype {name!r} are refused")
    return dtype


def _array(fields: dict) -> np.ndarray:
    dtype, shape, data = _dtype(fields), fields.get("shape"), fields.get("data")
    if not isinstance(shape, (list, tuple)) or len(shape) > _MAX_DIMS:
        raise ValueError("an array's shape must be a list")
    if not all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in shape):
        raise ValueError("an array's shape must hold integers of at least 0")
    if not isinstance(data, bytes) or len(data) != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"an array of shape {tuple(shape)} and dtype {dtype} does not match its data")
    return np.frombuffer(data, dtype=dtype).reshape(shape) if dtype.itemsize else np.zeros(shape, dtype)


def _scalar(fields: dict) -> np.generic:
    return _dtype(fields).type(fields.get("data"))
