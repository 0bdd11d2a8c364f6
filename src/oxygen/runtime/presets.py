"""Sizes of every family by name. No framework is imported here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from oxygen.models.pi05.spec import PRESETS as PI05
from oxygen.models.qwen3_vl.spec import PRESETS as QWEN3_VL

PRESETS: dict[str, Any] = {**PI05, **QWEN3_VL}


def is_preset(name: str | Path) -> bool:
    """Whether this name stands for random weights: a folder of the same name goes before."""
    return str(name) in PRESETS and not Path(name).exists()
