"""openpi's wire: msgpack with NumPy arrays and scalars as marked maps, byte for byte; and nothing beyond plain data.

An array is a map `__ndarray__`, `data` (C order), `dtype` (NumPy's type string), `shape`; a scalar a map
`__npgeneric__`, `data`, `dtype`. The markers are written as byte strings, as openpi does; text keys, which some
clients send, are read too, and so is the older `nd` form. Types are checked as text before NumPy sees them, sizes
before memory is taken.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgpack
import numpy as np

from oxygen.core.errors import InvalidInput

_REFUSED_KINDS = "VOc"
_DTYPE = re.compile(r"[<>|=]?(?:b1|[iu][1248]|f[248]|[US][1-9]\d{0,5}|[mM]8(?:\[\d{0,4}[a-zA-Zμ]{1,2}\])?)")
_SCALARS = re.compile(r"[<>|=]?(?:b1|[iu][1248]|f[248]|[US]\d{1,6})")
_ARRAY_KEYS = {"data", "dtype", "shape"}
_PLAIN = (str, bytes, int, float, bool, type(None), np.ndarray, np.generic)


@dataclass(frozen=True, slots=True)
class WireLimits:
    """What a message may hold. num_bytes: whole message. depth: nested maps and lists. num_items: in one map or
    list."""

    num_bytes: int = 64 * 2**20
    depth: int = 16
    num_items: int = 100_000
    num_axes: int = 8


DEFAULT_LIMITS = WireLimits()


def packb(value: Any, *, text_keys: bool = False) -> bytes:
    """Plain data, arrays and NumPy scalars to bytes. text_keys: markers as text, for clients that speak so.

    Raises InvalidInput for complex, object and structured arrays and for anything that is not plain data.
    """

    def encode(item: Any) -> dict[Any, Any]:
        if not isinstance(item, np.ndarray | np.generic):
            raise InvalidInput("message", "plain data and NumPy arrays", type(item).__name__)
        if item.dtype.kind in _REFUSED_KINDS:
            raise InvalidInput("message", "arrays of numbers, truth values or text", f"dtype {item.dtype}")
        if isinstance(item, np.ndarray):
            marked: dict[str, Any] = {"__ndarray__": True, "data": item.tobytes()}
            rest: dict[str, Any] = {"dtype": item.dtype.str, "shape": item.shape}
        else:
            marked, rest = {"__npgeneric__": True, "data": item.item()}, {"dtype": item.dtype.str}
        return {(key if text_keys else key.encode()): part for key, part in (marked | rest).items()}

    try:
        packed: bytes = msgpack.packb(value, default=encode, use_bin_type=True)
    except (TypeError, ValueError, OverflowError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput("message", "plain data and NumPy arrays", str(error)) from error
    return packed


def unpackb(data: bytes | bytearray | memoryview, limits: WireLimits = DEFAULT_LIMITS) -> Any:
    """Bytes to plain data; arrays are read-only views of the message. Raises InvalidInput for anything else."""
    if len(data) > limits.num_bytes:
        raise InvalidInput("message", f"at most {limits.num_bytes} bytes", f"{len(data)}")

    def build(pairs: list[tuple[Any, Any]]) -> Any:
        read = dict(pairs)
        if len(read) != len(pairs):
            raise InvalidInput("message", "every key once in a map", "a key twice")
        return _revived(read, limits)

    try:
        value = msgpack.unpackb(
            bytes(data),
            raw=False,
            object_pairs_hook=build,
            ext_hook=_refuse_extension,
            max_array_len=limits.num_items,
            max_map_len=limits.num_items,
            max_ext_len=0,
        )
    except InvalidInput:
        raise
    except (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException) as error:
        raise InvalidInput("message", "msgpack", f"{type(error).__name__}: {error}") from error
    _check(value, limits.depth)
    return value


def uses_text_keys(data: bytes) -> bool:
    """Whether a message marks its arrays with text keys, so that the reply can do the same."""
    return b"\xab__ndarray__" in data and b"\xc4\x0b__ndarray__" not in data


def _revived(read: dict[Any, Any], limits: WireLimits) -> Any:
    """The array or scalar that a map stands for, or the map itself."""
    names = {key.decode("ascii", "replace") if isinstance(key, bytes) else key: part for key, part in read.items()}
    if names.get("__ndarray__") is True:
        if missing := _ARRAY_KEYS - names.keys():
            raise InvalidInput("array", "data, dtype and shape", f"no {', '.join(sorted(missing))}")
        return _array(names["data"], names["dtype"], names["shape"], limits)
    if names.get("__npgeneric__") is True:
        return _scalar(names.get("data"), names.get("dtype"))
    if names.keys() >= {"nd", "type", "data"} and isinstance(names["nd"], bool):
        if names.get("kind") not in (None, "", b""):
            raise InvalidInput("array", "a plain array", f"kind {names['kind']!r}")
        if names["nd"]:
            return _array(names["data"], names["type"], names.get("shape"), limits)
        return _array(names["data"], names["type"], [], limits)[()]
    return read


def _array(data: Any, dtype: Any, shape: Any, limits: WireLimits) -> np.ndarray:
    kind = _dtype(dtype, _DTYPE)
    if not isinstance(shape, list) or len(shape) > limits.num_axes or not all(type(n) is int and n >= 0 for n in shape):
        raise InvalidInput("array", f"a shape of at most {limits.num_axes} sizes", repr(shape)[:80])
    if not isinstance(data, bytes) or math.prod(shape) * kind.itemsize != len(data) or max(shape, default=0) >= 2**31:
        got = f"{len(data)} bytes" if isinstance(data, bytes) else type(data).__name__
        raise InvalidInput("array", f"the bytes of {kind} {shape}", got)
    return np.ndarray(tuple(shape), dtype=kind, buffer=data)


def _scalar(data: Any, dtype: Any) -> np.generic:
    kind = _dtype(dtype, _SCALARS)
    wanted = {"b": bool, "i": int, "u": int, "f": float, "U": str, "S": bytes}[kind.kind]
    if type(data) is not wanted and not (wanted is float and type(data) is int):
        raise InvalidInput("scalar", f"a {wanted.__name__} for {kind}", type(data).__name__)
    try:
        scalar: np.generic = kind.type(data)
    except (OverflowError, ValueError, TypeError) as error:
        raise InvalidInput("scalar", f"a value of {kind}", str(error)) from error
    return scalar


def _dtype(written: Any, allowed: re.Pattern[str]) -> np.dtype[Any]:
    text = written.decode("utf-8", "replace") if isinstance(written, bytes) else written
    if not isinstance(text, str) or not allowed.fullmatch(text):
        raise InvalidInput("array", "a plain dtype such as <f4 or |u1", repr(written)[:80])
    try:
        return np.dtype(text)
    except TypeError as error:
        raise InvalidInput("array", "a dtype that NumPy knows", repr(written)[:80]) from error


def _refuse_extension(code: int, _data: bytes) -> Any:
    raise InvalidInput("message", "no extension types", f"type {code}")


def _check(value: Any, depth: int) -> None:
    """Refuse messages nested deeper than `depth` and values that are not plain (timestamps)."""
    level: list[Any] = [value]
    for _ in range(depth + 1):
        level = [child for item in level for child in _children(item)]
        if not level:
            return
    raise InvalidInput("message", f"at most {depth} nested levels", "more")


def _children(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        return iter(value.values())
    if isinstance(value, list):
        return iter(value)
    if not isinstance(value, _PLAIN):
        raise InvalidInput("message", "plain data", type(value).__name__)
    return iter(())
