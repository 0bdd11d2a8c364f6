"""Normalisation statistics of a checkpoint folder: where they lie, which set is meant, and their identity.

Two layouts are read. openpi: `assets/<asset id>/norm_stats.json` (the id may contain slashes). LeRobot: tensors named
`<feature>.<statistic>` in the state files of the normalizer steps of `policy_preprocessor.json` and
`policy_postprocessor.json`. A set is never chosen by luck: several without a name is an error, and so is an unknown name.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from oxygen.checkpoint.headers import TensorInfo, read_header
from oxygen.checkpoint.jsonfile import read_json, write_json
from oxygen.core.errors import CheckpointError

STATISTICS = ("mean", "std", "q01", "q99")
GROUPS = ("state", "actions")
LEROBOT_FEATURES = {"observation.state": "state", "action": "actions"}
LEROBOT_FILES = ("policy_preprocessor.json", "policy_postprocessor.json")
LEROBOT_STEPS = ("normalizer_processor", "unnormalizer_processor")
_NUMPY_TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}


@dataclass(frozen=True)
class StatisticsSet:
    """One set of statistics. groups: `state` and `actions` -> statistic (`mean`, `std`, `q01`, `q99`) -> numbers."""

    asset_id: str
    source: Path
    groups: Mapping[str, Mapping[str, tuple[float, ...]]]

    def length(self, group: str) -> int | None:
        """Number of dimensions of `state` or `actions`; None where the set has no such group."""
        values = self.groups.get(group)
        return len(next(iter(values.values()))) if values else None

    @property
    def has_quantiles(self) -> bool:
        return all({"q01", "q99"} <= values.keys() for values in self.groups.values())

    @property
    def digest(self) -> str:
        """SHA-256 over the numbers alone: equal sets have equal digests, whatever file they lie in."""
        plain = {
            group: {key: list(numbers) for key, numbers in values.items()} for group, values in self.groups.items()
        }
        return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """The content of openpi's norm_stats.json."""
        return {"norm_stats": {group: {k: list(v) for k, v in values.items()} for group, values in self.groups.items()}}


def find_statistics(folder: Path) -> tuple[StatisticsSet, ...]:
    """All sets of a folder, by asset id. Raises CheckpointError for a set that is malformed or not finite."""
    assets = folder / "assets"
    files = sorted(assets.rglob("norm_stats.json"))
    sets = [_read_openpi(path, path.parent.relative_to(assets).as_posix()) for path in files]
    lerobot = [folder / name for name in LEROBOT_FILES if (folder / name).is_file()]
    if lerobot and (found := _read_lerobot(folder, lerobot)):
        sets.append(found)
    return tuple(sets)


def choose_statistics(sets: Sequence[StatisticsSet], asset_id: str | None, folder: Path) -> StatisticsSet:
    """The set named `asset_id`, or the only one. Missing, unknown and ambiguous raise CheckpointError with the choices."""
    choices = ", ".join(found.asset_id for found in sets)
    if not sets:
        raise CheckpointError(
            f"{folder}: no normalisation statistics (looked for assets/<asset id>/norm_stats.json and for the normalizer "
            f"steps of {LEROBOT_FILES[0]}); copy them from the original checkpoint"
        )
    if asset_id is None:
        if len(sets) > 1:
            raise CheckpointError(f"{folder}: several sets of statistics, name one of: {choices}")
        return sets[0]
    for found in sets:
        if found.asset_id == asset_id:
            return found
    raise CheckpointError(f"{folder}: no statistics for asset {asset_id!r}; the folder has: {choices}")


def save_statistics(found: StatisticsSet, folder: Path) -> Path:
    """Write a set in openpi's layout below `folder`; returns the file."""
    path = folder / "assets" / found.asset_id / "norm_stats.json"
    write_json(path, found.to_json())
    return path


def _read_openpi(path: Path, asset_id: str) -> StatisticsSet:
    content = read_json(path).get("norm_stats")
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: has no norm_stats")
    groups: dict[str, dict[str, Any]] = {}
    for group in content.keys() & set(GROUPS):
        values = content[group]
        if not isinstance(values, dict):
            raise CheckpointError(f"{path}: norm_stats.{group} is not a map of statistics")
        groups[group] = {key: values[key] for key in STATISTICS if values.get(key) is not None}
    return _checked(StatisticsSet(asset_id, path, groups))


def _read_lerobot(folder: Path, pipelines: list[Path]) -> StatisticsSet | None:
    groups: dict[str, dict[str, Any]] = {}
    source = pipelines[0]
    for pipeline in pipelines:
        steps = read_json(pipeline).get("steps", [])
        for step in steps:
            if step.get("registry_name") not in LEROBOT_STEPS or not step.get("state_file"):
                continue
            source = folder / str(step["state_file"])
            if not source.is_file():
                raise CheckpointError(
                    f"{pipeline}: names the statistics {step['state_file']}, which is not in the folder"
                )
            _merge(groups, source)
    return _checked(StatisticsSet("lerobot", source, groups)) if groups else None


def _merge(groups: dict[str, dict[str, Any]], source: Path) -> None:
    """Take state and action statistics from one state file; the two pipelines must agree where both have them."""
    for name, info in read_header(source).tensors.items():
        feature, _, statistic = name.rpartition(".")
        group = LEROBOT_FEATURES.get(feature)
        if group is None or statistic not in STATISTICS:
            continue
        numbers = read_numbers(info)
        known = groups.setdefault(group, {}).setdefault(statistic, numbers)
        if known != numbers:
            raise CheckpointError(f"{source}: {name} differs from the other normalizer step's; which is meant?")


def read_numbers(info: TensorInfo) -> tuple[float, ...]:
    """A small float tensor as Python numbers (statistics; not for weights)."""
    if info.dtype not in _NUMPY_TYPES:
        raise CheckpointError(f"{info.file}: {info.name} is {info.dtype}, expected one of {', '.join(_NUMPY_TYPES)}")
    with info.file.open("rb") as file:
        file.seek(info.start)
        values = np.frombuffer(file.read(info.num_bytes), dtype=_NUMPY_TYPES[info.dtype])
    return tuple(values.reshape(-1).astype(np.float64).tolist())


def _checked(found: StatisticsSet) -> StatisticsSet:
    """Refuse sets without numbers, with numbers that are not finite, or whose statistics differ in length."""
    if not found.groups:
        raise CheckpointError(f"{found.source}: has statistics for neither state nor actions")
    groups: dict[str, dict[str, tuple[float, ...]]] = {}
    for group, values in sorted(found.groups.items()):
        lengths = set()
        groups[group] = {}
        for key, numbers in values.items():
            if not isinstance(numbers, list | tuple) or not all(type(n) in (int, float) for n in numbers):
                raise CheckpointError(f"{found.source}: {group}.{key} is not a list of numbers")
            if not all(math.isfinite(n) for n in numbers):
                raise CheckpointError(f"{found.source}: {group}.{key} has numbers that are not finite")
            lengths.add(len(numbers))
            groups[group][key] = tuple(float(n) for n in numbers)
        if len(lengths) != 1 or 0 in lengths:
            raise CheckpointError(f"{found.source}: the statistics of {group} have the lengths {sorted(lengths)}")
    return StatisticsSet(found.asset_id, found.source, groups)
