"""LeRobot's payloads are pickles. They are read here without running anything that they name.

Three walls: only opcodes that plain data needs may occur; only the few names below are understood; and each name
stands for a holder of ours, never for the real class or function. What comes out is plain data and arrays that were
checked first.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from oxygen.core.errors import InvalidInput

HELPERS = ("lerobot.async_inference.helpers", "lerobot.scripts.server.helpers")
_MAX_OPS = 50_000
_MAX_NODES = 20_000
_MAX_LONG_BYTES = 16
_CONSTANTS = {"NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"}
_STRINGS = {"SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "SHORT_BINBYTES", "BINBYTES", "BINBYTES8"}
_LISTS = {"EMPTY_LIST", "APPEND", "APPENDS", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"}
_MAPS = {"EMPTY_DICT", "SETITEM", "SETITEMS", "MARK"}
_MEMO = {"MEMOIZE", "BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET"}
_OBJECTS = {"STACK_GLOBAL", "GLOBAL", "REDUCE", "NEWOBJ", "BUILD"}
_OPCODES = {"PROTO", "FRAME", "STOP", *_CONSTANTS, *_STRINGS, *_LISTS, *_MAPS, *_MEMO, *_OBJECTS}
_DTYPE = re.compile(r"[<>|=]?(?:b1|[iu][1248]|f[248])")


@dataclass
class Held:
    """An object of the client's, by name and fields."""

    name: str
    module: str
    fields: dict[str, Any] = field(default_factory=dict)

    def __setstate__(self, state: Any) -> None:
        parts = state if isinstance(state, tuple) else (state,)
        for part in parts:
            if part is not None:
                if not isinstance(part, dict) or not all(isinstance(k, str) for k in part):
                    raise pickle.UnpicklingError(f"{self.name} with fields that are none")
                self.fields.update(part)


class _HeldDtype:
    def __init__(self, code: Any, *flags: Any) -> None:
        if not isinstance(code, str) or not _DTYPE.fullmatch(code):
            raise pickle.UnpicklingError(f"arrays of dtype {str(code)[:20]!r} are refused")
        self.dtype = np.dtype(code)

    def __setstate__(self, state: Any) -> None:
        if not isinstance(state, tuple) or len(state) < 5 or state[1] not in ("<", ">", "|", "="):
            raise pickle.UnpicklingError("a dtype in a form that is not plain")
        if any(part is not None for part in state[2:5]):
            raise pickle.UnpicklingError("structured arrays are refused")
        self.dtype = self.dtype.newbyteorder(state[1]) if state[1] in "<>" else self.dtype


class _HeldArray:
    array: np.ndarray | None = None

    def __setstate__(self, state: Any) -> None:
        if not isinstance(state, tuple) or len(state) != 5:
            raise pickle.UnpicklingError("an array in a form that is not plain")
        _, shape, dtype, is_fortran, data = state
        self.array = _build(data, dtype, shape, "F" if is_fortran else "C")


def _build(data: Any, dtype: Any, shape: Any, order: Any) -> np.ndarray:
    if not isinstance(dtype, _HeldDtype) or not isinstance(data, bytes):
        raise pickle.UnpicklingError("an array in a form that is not plain")
    if not isinstance(shape, tuple) or len(shape) > 8:
        raise pickle.UnpicklingError("an array in a form that is not plain")
    if not all(type(n) is int and 0 <= n < 2**31 for n in shape):
        raise pickle.UnpicklingError("an array with a shape that is none")
    if math.prod(shape) * dtype.dtype.itemsize != len(data):
        raise pickle.UnpicklingError("an array whose data does not fit its shape")
    return np.frombuffer(data, dtype.dtype).reshape(shape, order="F" if order == "F" else "C")


def _reconstruct(kind: Any, shape: Any, code: Any) -> _HeldArray:
    return _HeldArray()


def _scalar(dtype: Any, data: Any) -> Any:
    return _build(data, dtype, (), "C")[()].item()


def _from_buffer(data: Any, dtype: Any, shape: Any, order: Any) -> np.ndarray:
    return _build(data, dtype, shape, order)


class _Enum:
    """An enumeration's member: its value is all that matters."""

    def __new__(cls, value: Any) -> Any:
        return value


def _holder(module: str, name: str) -> type[Held]:
    def new(cls: type, *args: Any) -> Held:
        return object.__new__(cls)

    def init_fields(self: Any) -> None:
        Held.__init__(self, name, module)

    def set_state(self: Any, state: Any) -> None:
        init_fields(self)
        Held.__setstate__(self, state)

    return type(name, (Held,), {"__new__": new, "__setstate__": set_state})


def _names() -> dict[tuple[str, str], Any]:
    names: dict[tuple[str, str], Any] = {("numpy", "dtype"): _HeldDtype, ("numpy", "ndarray"): _HeldArray}
    for core in ("numpy.core", "numpy._core"):
        names[f"{core}.multiarray", "_reconstruct"] = _reconstruct
        names[f"{core}.multiarray", "scalar"] = _scalar
        names[f"{core}.numeric", "_frombuffer"] = _from_buffer
    for module in HELPERS:
        for name in ("RemotePolicyConfig", "TimedObservation"):
            names[module, name] = _holder(module, name)
    for module in ("lerobot.configs.types", "lerobot.configs", "lerobot.configs.policies"):
        names[module, "PolicyFeature"] = _holder(module, "PolicyFeature")
        names[module, "FeatureType"] = _Enum
    return names


_NAMES = _names()


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _NAMES[module, name]
        except (KeyError, TypeError):
            raise pickle.UnpicklingError(f"the name {str(module)[:60]}.{str(name)[:60]} is refused") from None

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("references to outside objects are refused")


def load(data: bytes, wanted: str) -> Held:
    """Read one payload, which must be an object of the class called `wanted`. Raises InvalidInput."""
    try:
        _check_opcodes(data)
        value = _Unpickler(io.BytesIO(data)).load()
        value = _plain(value, {}, [0], 0)
    except Exception as error:  # whatever a hostile pickle provokes, the answer is the same
        raise InvalidInput(
            "pickle", f"plain data in a {wanted}", f"{type(error).__name__}: {str(error)[:200]}"
        ) from None
    if not isinstance(value, Held) or value.name != wanted:
        got = value.name if isinstance(value, Held) else type(value).__name__
        raise InvalidInput("pickle", f"a {wanted}", got)
    return value


def _check_opcodes(data: bytes) -> None:
    for count, (opcode, arg, _) in enumerate(pickletools.genops(data)):
        if opcode.name not in _OPCODES:
            raise pickle.UnpicklingError(f"the opcode {opcode.name} is refused")
        if count >= _MAX_OPS:
            raise pickle.UnpicklingError(f"more than {_MAX_OPS} operations")
        if opcode.name == "LONG1" and isinstance(arg, int) and arg.bit_length() > 8 * _MAX_LONG_BYTES:
            raise pickle.UnpicklingError("a number that is too large")
        if opcode.name in ("BINPUT", "LONG_BINPUT") and isinstance(arg, int) and arg > _MAX_OPS:
            raise pickle.UnpicklingError("a memo that is too large")


def _plain(value: Any, done: dict[int, Any], count: list[int], depth: int) -> Any:
    """Holders of arrays become arrays; everything is counted, so that shared structures cannot grow without end."""
    if value is None or isinstance(value, bool | int | float | str | bytes | np.ndarray):
        return value
    count[0] += 1
    if count[0] > _MAX_NODES or depth > 32:
        raise pickle.UnpicklingError("a structure that is too large or too deep")
    if isinstance(value, _HeldArray):
        if value.array is None:
            raise pickle.UnpicklingError("an array without data")
        return value.array
    step: Callable[[Any], Any] = lambda v: _plain(v, done, count, depth + 1)  # noqa: E731
    if isinstance(value, Mapping):
        return {_key(k): step(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(step(v) for v in value)
    if isinstance(value, Held):
        return Held(value.name, value.module, {k: step(v) for k, v in value.fields.items()})
    raise pickle.UnpicklingError(f"a {type(value).__name__} where plain data belongs")


def _key(key: Any) -> Any:
    if not isinstance(key, str | int):
        raise pickle.UnpicklingError("a key that is neither text nor a number")
    return key
