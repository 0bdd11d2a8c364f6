"""Tensors of a checkpoint folder as torch tensors: read one at a time straight into place, written one at a time.

Bytes go from the file into the tensor that keeps them, so loading peaks at the model's own size plus, where the type
changes, one tensor. No memory map is left behind and nothing is unpickled.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import torch
from torch import Tensor

from oxygen.checkpoint.headers import TensorInfo
from oxygen.checkpoint.index import INDEX_FILE, SINGLE_FILE, TensorIndex
from oxygen.checkpoint.jsonfile import write_json
from oxygen.core.errors import CheckpointError

TORCH_TYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_NAMES = {dtype: name for name, dtype in TORCH_TYPES.items()}


class TensorReader:
    """Reads tensors of an index by name. Use as a context manager: it keeps the files open between reads."""

    def __init__(self, index: TensorIndex) -> None:
        self.index = index
        self._files: dict[Path, BinaryIO] = {}

    def __enter__(self) -> TensorReader:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()

    def read(self, name: str) -> Tensor:
        """One tensor in its stored type and shape, on the CPU."""
        info = self.index[name]
        out = torch.empty(info.shape, dtype=TORCH_TYPES[info.dtype])
        self._fill(info, out)
        return out

    def read_into(self, name: str, out: Tensor) -> None:
        """Fill `out` (same shape, any float type, any device), converting where the types differ."""
        info = self.index[name]
        if tuple(out.shape) != info.shape:
            raise CheckpointError(f"{info.file}: {name} is {list(info.shape)}, expected {list(out.shape)}")
        if out.device.type == "cpu" and out.dtype == TORCH_TYPES[info.dtype] and out.is_contiguous():
            self._fill(info, out)
        else:
            out.copy_(self.read(name))

    def _fill(self, info: TensorInfo, out: Tensor) -> None:
        if info.num_bytes == 0:
            return
        if info.file not in self._files:
            self._files[info.file] = info.file.open("rb")
        file = self._files[info.file]
        file.seek(info.start)
        target = _bytes_of(out)
        done = 0
        while done < info.num_bytes:
            count = file.readinto(target[done:])  # type: ignore[attr-defined]
            if not count:
                raise CheckpointError(f"{info.file}: ended inside {info.name} (the file changed while it was read)")
            done += count


def _bytes_of(tensor: Tensor) -> memoryview:
    """The memory of a contiguous CPU tensor."""
    array: Any = tensor.view(-1).view(torch.uint8).numpy()
    return memoryview(array)


def is_finite(tensor: Tensor) -> bool:
    """True if no element is NaN or infinite. Looks at the extremes, so no mask of the tensor's size is made."""
    if tensor.numel() == 0:
        return True
    low, high = torch.aminmax(tensor)
    return bool(torch.isfinite(low) & torch.isfinite(high))


def save_tensors(
    folder: Path,
    tensors: Mapping[str, Tensor],
    max_shard_bytes: int = 5_000_000_000,
    overwrite: bool = False,
    dtype: torch.dtype | None = None,
) -> list[Path]:
    """Write tensors as one safetensors file, or as shards with an index where one file would exceed `max_shard_bytes`.

    dtype: stored type (None: each tensor's own); tensors are converted one at a time. Each file appears whole or not at
    all. Weights already in the folder are an error unless `overwrite`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    old = {path for path in folder.glob("model*.safetensors")} | {
        path for path in [folder / INDEX_FILE] if path.is_file()
    }
    if old and not overwrite:
        raise CheckpointError(f"{folder}: already holds weights ({min(old).name}); overwriting was not asked for")
    types = {name: dtype or tensor.dtype for name, tensor in tensors.items()}
    sizes = {name: tensor.numel() * types[name].itemsize for name, tensor in tensors.items()}
    shards = _shards(sizes, max_shard_bytes)
    if len(shards) == 1:
        files = [folder / SINGLE_FILE]
    else:
        files = [folder / f"model-{i + 1:05}-of-{len(shards):05}.safetensors" for i in range(len(shards))]
    for file, names in zip(files, shards, strict=True):
        _write(file, {name: tensors[name] for name in names}, types)
    if len(shards) > 1:
        weight_map = {name: file.name for file, names in zip(files, shards, strict=True) for name in names}
        content = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": dict(sorted(weight_map.items()))}
        write_json(folder / INDEX_FILE, content)
        files.append(folder / INDEX_FILE)
    for path in old - set(files):
        path.unlink()
    return files


def _shards(sizes: Mapping[str, int], max_bytes: int) -> list[list[str]]:
    """Names of each file: in sorted order, a new file whenever the next tensor would not fit."""
    shards: list[list[str]] = [[]]
    room = max_bytes
    for name in sorted(sizes):
        if shards[-1] and sizes[name] > room:
            shards.append([])
            room = max_bytes
        shards[-1].append(name)
        room -= sizes[name]
    return shards


def _write(path: Path, tensors: Mapping[str, Tensor], types: Mapping[str, torch.dtype]) -> None:
    """One file; widest types first, so that every tensor is aligned to its own element size."""
    order = sorted(tensors, key=lambda name: (-types[name].itemsize, name))
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    position = 0
    for name in order:
        end = position + tensors[name].numel() * types[name].itemsize
        shape = list(tensors[name].shape)
        header[name] = {"dtype": _NAMES[types[name]], "shape": shape, "data_offsets": [position, end]}
        position = end
    raw = json.dumps(header, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)
    partial = path.with_name(path.name + ".partial")
    try:
        with partial.open("wb") as file:
            file.write(len(raw).to_bytes(8, "little") + raw)
            for name in order:
                flat = tensors[name].detach().to("cpu", types[name]).contiguous().view(-1)
                if not is_finite(flat):
                    raise CheckpointError(f"{path}: {name} is NaN or infinite as {_NAMES[types[name]]}; not saved")
                if flat.numel():
                    file.write(_bytes_of(flat))
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
