"""The four messages of LeRobot's `transport` package, read and written by hand: a handful of fields need no code
generator.

    Empty {}   PolicySetup { bytes data = 1 }   Actions { bytes data = 1 }
    Observation { TransferState transfer_state = 1 (enum), bytes data = 2 }
"""

from __future__ import annotations

from collections.abc import Iterator

from oxygen.core.errors import InvalidInput

UNKNOWN, BEGIN, MIDDLE, END = range(4)
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def write_data(data: bytes, field: int = 1) -> bytes:
    """A message with one bytes field."""
    return bytes([field << 3 | _BYTES]) + _varint(len(data)) + data if data else b""


def read_data(message: bytes, field: int = 1) -> bytes:
    """The bytes field of a message; empty when it is absent. Raises InvalidInput for what is no message."""
    return next((value for number, value in reversed(list(_fields(message))) if number == field), b"")  # type: ignore


def write_observation(transfer_state: int, data: bytes) -> bytes:
    return (bytes([1 << 3 | _VARINT, transfer_state]) if transfer_state else b"") + write_data(data, 2)


def read_observation(message: bytes) -> tuple[int, bytes]:
    """(transfer state, data) of one part of an observation."""
    state, data = UNKNOWN, b""
    for number, value in _fields(message):
        if number == 1 and isinstance(value, int):
            state = value
        elif number == 2 and isinstance(value, bytes):
            data = value
    return state, data


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(field number, value) in order; fields of fixed size are skipped."""
    at = 0
    while at < len(message):
        key, at = _read_varint(message, at)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, at = _read_varint(message, at)
            yield number, value
            continue
        if kind == _BYTES:
            size, at = _read_varint(message, at)
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
        else:
            raise InvalidInput("message", "a protobuf message", f"wire type {kind}")
        if at + size > len(message):
            raise InvalidInput("message", "a protobuf message", "one that ends within a field")
        if kind == _BYTES:
            yield number, message[at : at + size]
        at += size


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(message):
            raise InvalidInput("message", "a protobuf message", "one that ends within a number")
        byte = message[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise InvalidInput("message", "a protobuf message", "a number of more than ten bytes")
