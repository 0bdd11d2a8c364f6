"""A chunk as LeRobot's client reads it: a pickled list of TimedAction whose actions are torch tensors on the CPU.

Written opcode by opcode (pickle protocol 4), so that neither LeRobot nor its classes are needed here. All tensors
are views of one storage that is written once.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

import numpy as np

_PROTO, _STOP, _MARK = b"\x80\x04", b".", b"("
_EMPTY_LIST, _APPENDS = b"]", b"e"
_EMPTY_DICT, _SETITEMS = b"}", b"u"
_EMPTY_TUPLE, _TUPLE, _TUPLE1 = b")", b"t", b"\x85"
_STACK_GLOBAL, _REDUCE, _NEWOBJ, _BUILD = b"\x93", b"R", b"\x81", b"b"
_MEMOIZE, _POP, _NEWFALSE = b"\x94", b"0", b"\x89"


def pack(
    actions: np.ndarray,
    timestamp: float,
    timestep: int,
    period_s: float,
    helpers: str,
    storage_bytes: Callable[[np.ndarray], bytes],
) -> bytes:
    """actions [n, dim]; action i is stamped timestamp + i * period_s and timestep + i. helpers: the client's own
    module.
    """
    dim = actions.shape[1]
    out = [_PROTO]
    out += [_name(helpers, "TimedAction"), _MEMOIZE, _POP]  # memo 0: the class
    out += [_name("torch._utils", "_rebuild_tensor_v2"), _MEMOIZE, _POP]  # memo 1: the function
    out += [_name("torch.storage", "_load_from_bytes"), _bytes(storage_bytes(actions)), _TUPLE1, _REDUCE]
    out += [_MEMOIZE, _POP]  # memo 2: the storage
    out += [_EMPTY_LIST, _MARK]
    for i in range(len(actions)):
        out += [_get(0), _EMPTY_TUPLE, _NEWOBJ, _EMPTY_DICT, _MARK]
        out += [_text("timestamp"), _float(timestamp + i * period_s), _text("timestep"), _int(timestep + i)]
        out += [_text("action"), *_tensor(i * dim, dim), _SETITEMS, _BUILD]
    return b"".join([*out, _APPENDS, _STOP])


def _tensor(offset: int, dim: int) -> list[bytes]:
    """_rebuild_tensor_v2(storage, offset, (dim,), (1,), requires_grad=False, backward_hooks=OrderedDict())"""
    hooks = [_name("collections", "OrderedDict"), _EMPTY_TUPLE, _REDUCE]
    size, stride = [_int(dim), _TUPLE1], [_int(1), _TUPLE1]
    return [_get(1), _MARK, _get(2), _int(offset), *size, *stride, _NEWFALSE, *hooks, _TUPLE, _REDUCE]


def _name(module: str, name: str) -> bytes:
    return _text(module) + _text(name) + _STACK_GLOBAL


def _text(text: str) -> bytes:
    data = text.encode()
    return b"\x8c" + bytes([len(data)]) + data


def _bytes(data: bytes) -> bytes:
    return b"B" + struct.pack("<I", len(data)) + data


def _int(value: int) -> bytes:
    if -(2**31) <= value < 2**31:
        return b"J" + struct.pack("<i", value)
    return b"\x8a\x08" + struct.pack("<q", value)


def _float(value: float) -> bytes:
    return b"G" + struct.pack(">d", value)


def _get(index: int) -> bytes:
    return b"h" + bytes([index])
