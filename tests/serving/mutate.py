"""Messages that almost make sense: bytes flipped, cut and doubled; values swapped for others of the wrong kind."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

NUMBERS: list[Any] = [-1, 2**63, -(2**63), 1e308, float("nan"), float("inf"), np.float32(np.nan), np.bool_(True)]
WORDS: list[Any] = [None, True, "", "x" * 5000, "\x00", "a/b", b"", b"\xff" * 100, np.array("text")]
SHAPES: list[Any] = [[], {}, [[[[[[]]]]]], {"a": {"b": {}}}, np.zeros((0, 0, 3), np.uint8), np.zeros(8, np.int8)]
ARRAYS: list[Any] = [
    np.zeros((1, 7), np.float32),
    np.full((4, 4), np.nan, np.float32),
    np.zeros((2, 3, 4, 5), np.uint8),
]
STRANGE = [*NUMBERS, *WORDS, *SHAPES, *ARRAYS]


def messages(valid: list[Any], pack: Callable[[Any], bytes], count: int, seed: int) -> Iterator[bytes]:
    """`count` mutations of the valid messages, half of them in structure and half of them in bytes."""
    rng = np.random.default_rng(seed)
    for i in range(count):
        message = copy.deepcopy(valid[int(rng.integers(len(valid)))])
        if i % 2:
            for _ in range(int(rng.integers(1, 4))):
                message = change(message, rng)
        try:
            data = pack(message)
        except (TypeError, ValueError, OverflowError):
            continue
        yield data if i % 2 else garble(data, rng)


def change(value: Any, rng: np.random.Generator) -> Any:
    """One value somewhere in the structure becomes a strange one, disappears, or gets company."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        key = list(value)[int(rng.integers(len(value)))]
        choice = rng.random()
        if choice < 0.15:
            del value[key]
        elif choice < 0.25:
            value["key" + str(int(rng.integers(99)))] = strange(rng)
        else:
            value[key] = change(value[key], rng)
        return value
    if isinstance(value, list) and value and rng.random() < 0.7:
        at = int(rng.integers(len(value)))
        value[at] = change(value[at], rng)
        return value
    return strange(rng)


def strange(rng: np.random.Generator) -> Any:
    return STRANGE[int(rng.integers(len(STRANGE)))]


def garble(data: bytes, rng: np.random.Generator) -> bytes:
    """Flip, cut, insert, double; or bytes out of nothing."""
    out = bytearray(data)
    choice = rng.random()
    if choice < 0.1 or not out:
        return rng.bytes(int(rng.integers(0, 200)))
    if choice < 0.3:
        return bytes(out[: int(rng.integers(len(out)))])
    if choice < 0.4:
        at = int(rng.integers(len(out)))
        return bytes(out[:at] + rng.bytes(int(rng.integers(1, 9))) + out[at:])
    if choice < 0.45:
        return bytes(out + out)
    near = min(len(out), 400) if rng.random() < 0.7 else len(out)  # most of what has meaning is near the beginning
    for at in rng.integers(0, near, int(rng.integers(1, 6))):
        out[at] = int(rng.integers(256))
    return bytes(out)
