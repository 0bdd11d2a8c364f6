"""Checkpoints that come inside the package, by name."""

from __future__ import annotations

from pathlib import Path

import oxygen
from oxygen.core.errors import CheckpointError, InvalidInput

SHIPPED = ("oxygen-tiny",)
ASSETS = Path(oxygen.__file__).parent / "assets"


def resolve(name_or_folder: str | Path) -> Path:
    """The folder of a shipped checkpoint for its name; anything else is taken as the folder that it names.

    It need not exist. Raises InvalidInput for what cannot name a folder, CheckpointError for what cannot be looked up.
    """
    if not isinstance(name_or_folder, str | Path) or not str(name_or_folder):
        raise InvalidInput("folder", "a checkpoint folder or the name of one", f"{name_or_folder!r:.80}")
    folder = Path(name_or_folder)
    try:
        folder.stat()
    except FileNotFoundError:
        return ASSETS / folder if str(folder) in SHIPPED else folder
    except (OSError, ValueError) as error:  # ValueError: NUL and other characters that no path can have
        raise CheckpointError(f"{str(folder)!a:.80}: cannot be looked up: {error!s:.80}") from error
    return folder
