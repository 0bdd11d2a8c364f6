"""StarVLA's `dataset_statistics.json`: per data set, ranges of actions and state, and which actions were normalised."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from oxygen.core.errors import CheckpointError
from oxygen.processing.statistics import NAMES, Statistics

FILE = "dataset_statistics.json"


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
    except (OSError, ValueError, AttributeError, TypeError, KeyError) as error:
        raise CheckpointError(f"{path}: not StarVLA's statistics: {error!r}") from error
    return tuple(Statistics.from_groups(name, found, str(path)) for name, found in groups.items()), masks


def to_units(normal: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """[-1, 1] -> [low, high], nothing added."""
    return 0.5 * (normal + 1.0) * (high - low) + low


def from_units(values: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """The way back; a dimension without width becomes 0."""
    width = high - low
    return np.where(width > 0, 2.0 * (values - low) / np.where(width > 0, width, 1.0) - 1.0, 0.0)
