"""A preset's random weights as a checkpoint folder, for codes that read folders only."""

from __future__ import annotations

from pathlib import Path

from oxygen.bench.setup import Setup
from oxygen.models.pi05.torch import build
from oxygen.models.pi05.torch.weights import save_pi05
from oxygen.runtime.torch.open import DTYPES


def write_weights(setup: Setup, folder: Path) -> None:
    """The same numbers that `Setup.open` would draw, under openpi's names."""
    save_pi05(build(setup.spec(), "cpu", DTYPES[setup.dtype]), folder)
