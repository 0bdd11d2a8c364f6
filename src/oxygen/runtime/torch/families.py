"""The families of models that can be run, and how each is opened. A new family is one entry."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oxygen.checkpoint.folder import Checkpoint, open_folder
from oxygen.core.errors import InvalidInput
from oxygen.models.pi05.opening import Pi05Folder, read_pi05
from oxygen.models.pi05.spec import PRESETS as PI05_PRESETS
from oxygen.models.pi05.torch import build as build_pi05
from oxygen.models.pi05.torch.weights import load_pi05
from oxygen.models.pi05.untrained import untrained_pi05
from oxygen.models.qwen3_vl.opening import Qwen3VLFolder, read_qwen3_vl
from oxygen.models.qwen3_vl.spec import PRESETS as QWEN3_VL_PRESETS
from oxygen.models.qwen3_vl.torch import build as build_qwen3_vl
from oxygen.models.qwen3_vl.torch.weights import load_qwen3_vl
from oxygen.models.qwen3_vl.untrained import untrained_qwen3_vl


@dataclass(frozen=True, slots=True)
class Family:
    """presets: sizes by name. build(spec, device, dtype, seed=...): a model with random weights. read(folder,
    robot=..., asset_id=..., overrides=...): a folder without its weights, of type `opened`.
    load(opened, device, dtype): with them. untrained(spec, robot): what a robot changes of a preset, and a processor.
    """

    presets: Mapping[str, Any]
    build: Callable[..., Any]
    opened: type
    read: Callable[..., Any]
    load: Callable[..., Any]
    untrained: Callable[..., Any]


FAMILIES = {
    "pi05": Family(PI05_PRESETS, build_pi05, Pi05Folder, read_pi05, load_pi05, untrained_pi05),
    "qwen3_vl": Family(
        QWEN3_VL_PRESETS, build_qwen3_vl, Qwen3VLFolder, read_qwen3_vl, load_qwen3_vl, untrained_qwen3_vl
    ),
}


def family_of_preset(name: str) -> Family:
    """The family that a preset's name belongs to."""
    return next(family for family in FAMILIES.values() if name in family.presets)


def read_folder(
    folder: Checkpoint | str | Path,
    *,
    robot: str | None = None,
    asset_id: str | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Any:
    """A checkpoint folder of any family, opened without its weights: `spec`, `where` and `processor()`.

    Raises CheckpointError or InvalidInput.
    """
    if not isinstance(overrides, Mapping | None):
        raise InvalidInput("spec", "a map of sizes", f"{overrides!r:.80}")
    checkpoint = folder if isinstance(folder, Checkpoint) else open_folder(folder)
    read = FAMILIES[checkpoint.family].read
    return read(checkpoint, robot=robot, asset_id=asset_id, overrides=overrides)


def load(opened: Any, device: Any, dtype: Any) -> Any:
    """The model of an opened folder, with its weights."""
    family = next(family for family in FAMILIES.values() if isinstance(opened, family.opened))
    return family.load(opened, device, dtype)
