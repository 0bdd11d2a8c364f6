"""Checkpoints that come inside the package, by name."""

from __future__ import annotations

from pathlib import Path

import oxygen

SHIPPED = ("oxygen-tiny",)
ASSETS = Path(oxygen.__file__).parent / "assets"


def resolve(name_or_folder: str | Path) -> Path:
    """The folder of a shipped checkpoint for its name; anything else is taken as the folder that it names."""
    if str(name_or_folder) in SHIPPED and not Path(name_or_folder).exists():
        return ASSETS / str(name_or_folder)
    return Path(name_or_folder)
