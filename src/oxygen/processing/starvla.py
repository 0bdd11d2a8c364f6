"""StarVLA's numbers: `dataset_statistics.json` with a set of ranges per data set, and the way between its units and a
robot's.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from oxygen.core.errors import CheckpointError
from oxygen.core.tasks import Observation
from oxygen.processing.statistics import NAMES, FieldStatistics, Statistics

FILE = "dataset_statistics.json"
UNNORM_KEY = "unnorm_key"
NORMALIZATIONS = {"identity": (), "minmax": ("min", "max"), "quantile": ("q01", "q99"), "mean_std": ("mean", "std")}
"""What each mode reads. minmax and quantile: to [-1, 1] and back, nothing added."""


@dataclass(frozen=True, slots=True)
class KeyedObservation(Observation):
    """An observation that names the data set whose statistics are meant; None: the checkpoint's own choice."""

    unnorm_key: str | None = None


def read_dataset_statistics(folder: Path) -> tuple[tuple[Statistics, ...], dict[str, tuple[bool, ...]]]:
    """The sets by data set's name (`unnorm_key`), and each one's mask of normalised actions; nothing without the
    file.
    """
    path = folder / FILE
    if not path.is_file():
        return (), {}
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
        groups = {
            name: {
                ours: {key: value for key, value in told[theirs].items() if key in NAMES}
                for ours, theirs in (("actions", "action"), ("state", "state"))
                if theirs in told
            }
            for name, told in content.items()
        }
        masks = {
            name: tuple(bool(flag) for flag in told["action"]["mask"])
            for name, told in content.items()
            if "mask" in told.get("action", {})
        }
    except (OSError, ValueError, AttributeError, TypeError, KeyError, RecursionError) as error:
        raise CheckpointError(f"{path}: not StarVLA's statistics: {error!r}") from error
    return tuple(Statistics.from_groups(name, found, f"{path}: {name}") for name, found in groups.items()), masks


def to_units(normal: np.ndarray, modes: Sequence[str], statistics: FieldStatistics | None) -> np.ndarray:
    """normal [..., D] float64, a mode for each dimension -> robot units."""
    units = normal.copy()
    for i, mode in enumerate(modes):
        if mode == "identity":
            continue
        a, b = (getattr(statistics, name)[i] for name in NORMALIZATIONS[mode])
        units[..., i] = normal[..., i] * b + a if mode == "mean_std" else 0.5 * (normal[..., i] + 1.0) * (b - a) + a
    return units


def from_units(values: np.ndarray, modes: Sequence[str], statistics: FieldStatistics | None) -> np.ndarray:
    """The way back. As in StarVLA's training, quantiles end in [-1, 1], and a dimension without width stays as it is,
    or becomes 0 (minmax).
    """
    normal = values.copy()
    for i, mode in enumerate(modes):
        if mode == "identity":
            continue
        a, b = (getattr(statistics, name)[i] for name in NORMALIZATIONS[mode])
        width = b if mode == "mean_std" else b - a
        if not width:
            normal[..., i] = 0.0 if mode == "minmax" else values[..., i]
        elif mode == "mean_std":
            normal[..., i] = (values[..., i] - a) / width
        else:
            normal[..., i] = 2.0 * (values[..., i] - a) / width - 1.0
        if mode == "quantile":
            normal[..., i] = np.clip(normal[..., i], -1.0, 1.0)
    return normal


def modes_of(told: str | tuple[str, ...] | None, dim: int, where: str) -> tuple[str, ...]:
    """A mode for each of `dim` dimensions. Raises CheckpointError."""
    if told is None:
        raise CheckpointError(f"{where}: does not say it, and the numbers are needed")
    modes = (told,) * dim if isinstance(told, str) else told
    if len(modes) != dim:
        raise CheckpointError(f"{where}: {len(modes)} modes for {dim} dimensions")
    return modes


def choose(
    sets: Sequence[Statistics], asset_id: str | None, read: Sequence[tuple[str, Sequence[str]]]
) -> tuple[dict[str, Statistics], Statistics | None]:
    """The sets that do for what is read, by name, and the one that is meant where nobody names one: `asset_id`, or the
    only one that there is. read: `actions` or `state`, with a mode for each dimension. Raises CheckpointError.
    """
    found: dict[str, Statistics] = {}
    reasons: dict[str | None, str] = {}
    for offered in sets or (None,):
        name = offered.asset_id if offered else None
        reason = next((r for field, modes in read if (r := _misfit(field, modes, offered)) is not None), None)
        if reason is not None:
            reasons[name] = reason
        elif offered is not None:
            found[offered.asset_id] = offered
    if asset_id is not None and sets and asset_id not in found:
        absent = f"no statistics for asset {asset_id!r}; there are: {', '.join(s.asset_id for s in sets)}"
        raise CheckpointError(f"processor: {reasons.get(asset_id, absent)}")
    if reasons and not found:
        raise CheckpointError(f"processor: {next(iter(reasons.values()))}")
    if asset_id is None:
        return found, sets[0] if len(sets) == 1 else None
    return found, found.get(asset_id)


def _misfit(name: str, modes: Sequence[str], statistics: Statistics | None) -> str | None:
    wanted = {key for mode in modes for key in NORMALIZATIONS[mode]}
    if not wanted:
        return None
    found: FieldStatistics | None = getattr(statistics, name) if statistics else None
    missing = sorted(key for key in wanted if found is None or getattr(found, key) is None)
    if found is None or missing:
        lack = f"statistics {statistics.asset_id!r} lack {', '.join(missing)}" if statistics else "no statistics"
        return f"normalisation of {name} by {', '.join(sorted(set(modes)))}: {lack}"
    if found.dim < len(modes):
        return f"statistics know {found.dim} dimensions of {name}, the robot has {len(modes)}"
    return None
