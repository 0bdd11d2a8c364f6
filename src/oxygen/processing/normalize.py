"""Robot units to the model's units and back: by quantiles or by z-score, in openpi's arithmetic or in LeRobot's.

openpi computes in float64 and adds 1e-6 to every width; its statistics are cut to a shorter input, and on the way back
a wider input keeps its further dimensions (quantiles) or sees them with mean 0 and std 1 (z-score). LeRobot computes
in float32, adds nothing to quantile widths but replaces a width of zero by 1e-8, and adds 1e-8 to std one way only.
Nothing is clipped: values outside the range pass, as they did in training.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from oxygen.core.errors import CheckpointError, InvalidInput
from oxygen.processing.statistics import FieldStatistics

Mode = Literal["quantile", "zscore", "minmax", "identity"]
Dialect = Literal["openpi", "lerobot"]

NEEDED = {"quantile": ("q01", "q99"), "zscore": ("mean", "std"), "minmax": ("min", "max"), "identity": ()}
_OPENPI_EPS = 1e-6
_LEROBOT_EPS = 1e-8


@dataclass(frozen=True, eq=False)
class Normalizer:
    """y = (x - offset) / width * factor + shift, per dimension, with what a mode and a dialect put into it."""

    field: str
    mode: Mode
    dialect: Dialect
    statistics: FieldStatistics

    def __post_init__(self) -> None:
        if self.mode not in NEEDED:
            raise CheckpointError(f"normalisation of {self.field}: {self.mode!r}, expected one of {', '.join(NEEDED)}")
        missing = [name for name in NEEDED[self.mode] if getattr(self.statistics, name) is None]
        if missing:
            raise CheckpointError(
                f"normalisation of {self.field} by {self.mode} needs {' and '.join(NEEDED[self.mode])}; "
                f"the statistics lack {' and '.join(missing)}"
            )

    @property
    def dim(self) -> int | None:
        """Number of dimensions that the statistics know; None for identity."""
        return None if self.mode == "identity" else self.statistics.dim

    def normalize(self, x: np.ndarray) -> np.ndarray:
        """x [..., n], n at most `dim` -> the same shape, float64 (openpi) or float32 (LeRobot)."""
        if self.dialect == "lerobot":
            x = np.asarray(x, dtype=np.float32)
        if self.mode == "identity":
            return x
        n = x.shape[-1]
        if n > self.statistics.dim:
            raise InvalidInput(self.field, f"at most {self.statistics.dim} dimensions", f"{n}")
        return self._into(x, *self._pair(n))

    def unnormalize(self, y: np.ndarray) -> np.ndarray:
        """The way back. y [..., n] with n at least `dim`; raises InvalidInput where it is narrower."""
        if self.dialect == "lerobot":
            y = np.asarray(y, dtype=np.float32)
        if self.mode == "identity":
            return y
        dim = self.statistics.dim
        if y.shape[-1] < dim:
            raise InvalidInput(self.field, f"at least {dim} dimensions", f"{y.shape[-1]}")
        known, rest = y[..., :dim], y[..., dim:]
        back = self._back(known)
        if not rest.shape[-1]:
            return back
        if self.mode == "zscore" and self.dialect == "openpi":
            rest = rest.astype(np.float64) * (1.0 + _OPENPI_EPS)
        return np.concatenate([back, rest], axis=-1)

    def _into(self, x: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """low and high: mean and std, or the two ends of the range, [n]."""
        y: np.ndarray
        if self.mode == "zscore":
            y = (x - low) / (high + (np.float32(_LEROBOT_EPS) if self.dialect == "lerobot" else _OPENPI_EPS))
        elif self.dialect == "lerobot":
            y = np.float32(2) * (x - low) / _lerobot_width(low, high) - np.float32(1)
        else:
            y = (x - low) / (high - low + _OPENPI_EPS) * 2.0 - 1.0
        return y

    def _back(self, y: np.ndarray) -> np.ndarray:
        low, high = self._pair(self.statistics.dim)
        x: np.ndarray
        if self.mode == "zscore":
            x = y * (high if self.dialect == "lerobot" else high + _OPENPI_EPS) + low
        elif self.dialect == "lerobot":
            x = (y + np.float32(1)) * _lerobot_width(low, high) / np.float32(2) + low
        else:
            x = (y + 1.0) / 2.0 * (high - low + _OPENPI_EPS) + low
        return x

    def _pair(self, n: int) -> tuple[np.ndarray, np.ndarray]:
        low, high = (getattr(self.statistics, name)[:n] for name in NEEDED[self.mode])
        if self.dialect == "lerobot":
            return low.astype(np.float32), high.astype(np.float32)
        return low, high


def _lerobot_width(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    width = high - low
    return np.where(width == 0, np.float32(_LEROBOT_EPS), width)
