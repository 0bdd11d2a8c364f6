"""The header of a safetensors file, read and checked without any array framework.

A file is eight bytes of header length (little endian), a JSON header, then the tensors' bytes with no gaps. Everything
that a broken copy or a broken download does to such a file shows as a disagreement between these three.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oxygen.core.errors import CheckpointError

ITEM_BYTES = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "I16": 2,
    "U16": 2,
    "F16": 2,
    "BF16": 2,
    "I32": 4,
    "U32": 4,
    "F32": 4,
    "I64": 8,
    "U64": 8,
    "F64": 8,
}
"""Bytes of one element, by the name that safetensors gives the type."""

MAX_HEADER_BYTES = 100_000_000
"""The limit of the format itself; a larger length is the mark of a file that is something else."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where one tensor lies: `start` is an absolute position in `file`, `num_bytes` its length there."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    start: int
    num_bytes: int

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Header:
    """All tensors of one file in the order of their bytes, and the file's free-form metadata."""

    tensors: dict[str, TensorInfo]
    metadata: dict[str, str]


def read_header(path: Path) -> Header:
    """Read one file's header. Raises CheckpointError for a file that is truncated, too long, or not of this format."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > min(MAX_HEADER_BYTES, size - 8):
                raise CheckpointError(
                    f"{path}: not a whole safetensors file: {size} bytes, but the header alone would need {8 + length}"
                )
            raw = file.read(length)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}") from error
    entries = _parse(path, raw)
    metadata = entries.pop("__metadata__", {})
    if not isinstance(metadata, dict):
        raise CheckpointError(f"{path}: __metadata__ in the header is not a map")
    tensors = [_tensor(path, name, entry, 8 + length) for name, entry in entries.items()]
    tensors.sort(key=lambda info: (info.start, info.num_bytes))
    _check_extent(path, tensors, 8 + length, size)
    return Header({info.name: info for info in tensors}, {str(k): str(v) for k, v in metadata.items()})


def _parse(path: Path, raw: bytes) -> dict[str, Any]:
    try:
        entries = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: the safetensors header is not JSON ({error})") from error
    if not isinstance(entries, dict):
        raise CheckpointError(f"{path}: the safetensors header is not a map of tensors")
    return entries


def _tensor(path: Path, name: str, entry: Any, data_start: int) -> TensorInfo:
    try:
        dtype, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        numbers = [*shape, begin, end]
        if not isinstance(dtype, str) or not all(type(n) is int and n >= 0 for n in numbers):
            raise TypeError
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: header entry of {name} is malformed: {entry!r}") from error
    if dtype not in ITEM_BYTES:
        raise CheckpointError(f"{path}: {name} has the unknown dtype {dtype}; known: {', '.join(ITEM_BYTES)}")
    needed = math.prod(shape) * ITEM_BYTES[dtype]
    if end - begin != needed:
        raise CheckpointError(
            f"{path}: {name} is {dtype} {list(shape)}, {needed} bytes, but the header gives it {end - begin} bytes"
        )
    return TensorInfo(name, dtype, tuple(shape), path, data_start + begin, needed)


def _check_extent(path: Path, tensors: list[TensorInfo], data_start: int, size: int) -> None:
    position = data_start
    for info in tensors:
        if info.start != position:
            kind = "overlaps the tensor before it" if info.start < position else "leaves a gap before it"
            raise CheckpointError(f"{path}: the bytes of {info.name} start at {info.start}, which {kind} ({position})")
        position += info.num_bytes
    if size < position:
        cut = [info.name for info in tensors if info.start + info.num_bytes > size]
        raise CheckpointError(
            f"{path}: truncated: {size} bytes, the header promises {position}; incomplete or absent: {names(cut)}"
        )
    if size > position:
        raise CheckpointError(f"{path}: {size - position} trailing bytes after the last tensor ({size} for {position})")


def names(items: list[str], limit: int | None = 12) -> str:
    """Sorted names in one line; those after `limit` are counted, None shows all of them."""
    items = sorted(items)
    shown = items if limit is None else items[:limit]
    more = len(items) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")
