"""Normalisation statistics: what they are, openpi's file for them, and the choice between several sets.

A set is never chosen by luck: several sets without a name are refused, and so is a name that is not there.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from oxygen.core.errors import CheckpointError

NAMES = ("mean", "std", "q01", "q99", "min", "max")
_ORDERED = (("q01", "q99"), ("min", "max"))


@dataclass(frozen=True, eq=False)
class FieldStatistics:
    """Statistics of one field, each [dim] float64 in robot units, or None where unknown."""

    mean: np.ndarray | None = None
    std: np.ndarray | None = None
    q01: np.ndarray | None = None
    q99: np.ndarray | None = None
    min: np.ndarray | None = None
    max: np.ndarray | None = None

    @classmethod
    def read(cls, values: Mapping[str, Any], where: str) -> FieldStatistics:
        """Take the known statistics out of `values`; raises CheckpointError for odd shapes, lengths and numbers."""
        arrays: dict[str, np.ndarray] = {}
        for name in NAMES:
            if values.get(name) is None:
                continue
            try:
                array = np.array(values[name], dtype=np.float64)
            except (TypeError, ValueError, OverflowError):
                raise CheckpointError(f"{where}: {name} is not a list of numbers") from None
            if array.ndim != 1 or not array.size:
                raise CheckpointError(f"{where}: {name} has shape {list(array.shape)}, expected one axis")
            if not np.isfinite(array).all():
                raise CheckpointError(f"{where}: {name} has numbers that are not finite")
            array.setflags(write=False)
            arrays[name] = array
        lengths = {name: len(array) for name, array in arrays.items()}
        if len(set(lengths.values())) != 1:
            raise CheckpointError(f"{where}: statistics of different lengths {lengths or '(none)'}")
        for low, high in _ORDERED:
            if low in arrays and high in arrays and (arrays[low] > arrays[high]).any():
                raise CheckpointError(
                    f"{where}: {low} is above {high} in dimension {_first(arrays[low] > arrays[high])}"
                )
        if "std" in arrays and (arrays["std"] < 0).any():
            raise CheckpointError(f"{where}: std is negative in dimension {_first(arrays['std'] < 0)}")
        return cls(**arrays)

    @property
    def dim(self) -> int:
        return next((len(array) for name in NAMES if (array := getattr(self, name)) is not None), 0)

    def degenerate_dims(self, mode: str) -> tuple[int, ...]:
        """Dimensions of no width under `mode`: normalising them divides by an epsilon, so small deviations explode."""
        if mode == "quantile" and self.q01 is not None and self.q99 is not None:
            return tuple(int(i) for i in np.flatnonzero(self.q01 == self.q99))
        if mode == "zscore" and self.std is not None:
            return tuple(int(i) for i in np.flatnonzero(self.std == 0))
        if mode == "minmax" and self.min is not None and self.max is not None:
            return tuple(int(i) for i in np.flatnonzero(self.min == self.max))
        return ()


@dataclass(frozen=True, eq=False)
class Statistics:
    """One set: of the state and of the actions (either may be absent), under the name of its asset."""

    asset_id: str
    state: FieldStatistics | None = None
    actions: FieldStatistics | None = None

    @classmethod
    def from_groups(
        cls, asset_id: str, groups: Mapping[str, Mapping[str, Any]], where: str = "statistics"
    ) -> Statistics:
        """From plain numbers: `state` and `actions` -> statistic -> list. Other groups are ignored."""
        read = {
            group: FieldStatistics.read(groups[group], f"{where}: {group}")
            for group in ("state", "actions")
            if groups.get(group) is not None
        }
        if not read:
            raise CheckpointError(f"{where}: has statistics for neither state nor actions")
        return cls(asset_id, **read)

    def to_groups(self) -> dict[str, dict[str, list[float]]]:
        """The numbers as plain lists; the inverse of `from_groups`."""
        fields = {"state": self.state, "actions": self.actions}
        return {
            group: {name: array.tolist() for name in NAMES if (array := getattr(field, name)) is not None}
            for group, field in fields.items()
            if field is not None
        }

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of the numbers alone: the same numbers have the same digest, whatever file they came from."""
        return hashlib.sha256(json.dumps(self.to_groups(), sort_keys=True).encode()).hexdigest()


def read_statistics(path: Path, asset_id: str) -> Statistics:
    """Read one openpi norm_stats.json."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: cannot be read as JSON: {error}") from error
    groups = content.get("norm_stats") if isinstance(content, dict) else None
    if not isinstance(groups, dict) or not all(isinstance(values, dict) for values in groups.values()):
        raise CheckpointError(f"{path}: expected a map norm_stats of maps")
    return Statistics.from_groups(asset_id, groups, str(path))


def find_statistics(folder: Path) -> tuple[Statistics, ...]:
    """All sets below `folder`/assets, by asset id (which may contain slashes)."""
    assets = folder / "assets"
    files = sorted(assets.rglob("norm_stats.json"))
    return tuple(read_statistics(path, path.parent.relative_to(assets).as_posix()) for path in files)


def choose_statistics(sets: Sequence[Statistics], asset_id: str | None, where: str) -> Statistics:
    """The set named `asset_id`, or the only one there is. Raises CheckpointError with the choices otherwise."""
    choices = ", ".join(found.asset_id for found in sets)
    if not sets:
        raise CheckpointError(f"{where}: no normalisation statistics (assets/<asset id>/norm_stats.json)")
    if asset_id is None:
        if len(sets) > 1:
            raise CheckpointError(f"{where}: several sets of statistics; name the asset that is meant: {choices}")
        return sets[0]
    for found in sets:
        if found.asset_id == asset_id:
            return found
    raise CheckpointError(f"{where}: no statistics for asset {asset_id!r:.80}; there are: {choices}")


def write_statistics(statistics: Statistics, folder: Path) -> Path:
    """Write a set in openpi's layout below `folder`/assets; returns the file."""
    parts = Path(statistics.asset_id).parts
    if not parts or Path(statistics.asset_id).is_absolute() or ".." in parts:
        raise CheckpointError(f"asset id {statistics.asset_id!r}: expected a name or a relative path")
    path = folder / "assets" / statistics.asset_id / "norm_stats.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"norm_stats": statistics.to_groups()}, indent=2) + "\n", encoding="utf-8")
    return path


def _first(flags: np.ndarray) -> int:
    return int(np.flatnonzero(flags)[0])
