"""All tensors of a checkpoint folder: one safetensors file, or shards listed by an index."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from oxygen.checkpoint.headers import TensorInfo, names, read_header
from oxygen.checkpoint.jsonfile import read_json
from oxygen.core.errors import CheckpointError

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"


@dataclass(frozen=True)
class TensorIndex:
    """Every tensor of a folder by name, with the files they lie in. Holds no tensor data."""

    tensors: dict[str, TensorInfo]
    files: tuple[Path, ...]
    metadata: dict[str, str] = field(default_factory=dict)

    def __getitem__(self, name: str) -> TensorInfo:
        return self.tensors[name]

    def __contains__(self, name: object) -> bool:
        return name in self.tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    @property
    def num_parameters(self) -> int:
        return sum(info.num_elements for info in self.tensors.values())

    @property
    def num_bytes(self) -> int:
        return sum(info.num_bytes for info in self.tensors.values())

    @property
    def dtypes(self) -> dict[str, int]:
        """Number of tensors per stored type."""
        counts: dict[str, int] = {}
        for info in self.tensors.values():
            counts[info.dtype] = counts.get(info.dtype, 0) + 1
        return counts


def read_index(folder: Path) -> TensorIndex | None:
    """Index a folder's tensors; None when it holds no safetensors weights, CheckpointError when they are broken."""
    single, index = folder / SINGLE_FILE, folder / INDEX_FILE
    if index.is_file():
        return _read_sharded(folder, index)
    if not single.is_file():
        return None
    header = read_header(single)
    return TensorIndex(header.tensors, (single,), header.metadata)


def with_adapter(index: TensorIndex, path: Path) -> TensorIndex:
    """The index with the tensors of an adapter file added under their own names."""
    header = read_header(path)
    if twice := header.tensors.keys() & index.tensors.keys():
        raise CheckpointError(f"{path}: holds tensors that the model has too: {names([*twice], None)}")
    return TensorIndex(index.tensors | header.tensors, (*index.files, path), index.metadata)


def _read_sharded(folder: Path, index: Path) -> TensorIndex:
    weight_map = _weight_map(index)
    listed = sorted(set(weight_map.values()))
    absent = [name for name in listed if not (folder / name).is_file()]
    if absent:
        raise CheckpointError(f"{index}: names shards that are not in the folder: {names(absent, None)}")
    if (folder / SINGLE_FILE).is_file() and SINGLE_FILE not in listed:
        raise CheckpointError(
            f"{folder}: holds both {SINGLE_FILE} and {INDEX_FILE}, which does not list it; remove the one not meant"
        )
    tensors: dict[str, TensorInfo] = {}
    metadata: dict[str, str] = {}
    for shard in listed:
        header = read_header(folder / shard)
        promised = {name for name, file in weight_map.items() if file == shard}
        missing, extra = promised - header.tensors.keys(), header.tensors.keys() - promised
        if missing:
            raise CheckpointError(
                f"{folder / shard}: lacks tensors that the index puts there: {names([*missing], None)}"
            )
        if extra:
            raise CheckpointError(
                f"{folder / shard}: holds tensors that the index does not list: {names([*extra], None)}"
            )
        tensors |= header.tensors
        metadata |= header.metadata
    return TensorIndex(tensors, tuple(folder / name for name in listed), metadata)


def _weight_map(index: Path) -> dict[str, str]:
    content: Any = read_json(index)
    weight_map = content.get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(file, str) for file in weight_map.values()):
        raise CheckpointError(f"{index}: has no weight_map from tensor names to file names")
    outside = [file for file in weight_map.values() if Path(file).name != file]
    if outside:
        raise CheckpointError(f"{index}: shards must be plain file names, got {outside[0]!r}")
    return weight_map
