"""The π0.5 configurations that openpi publishes, by name, and how a foreign folder's robot is found out.

A folder in openpi's format does not say which robot it is for. It is named by the caller (a robot, or one of openpi's
configurations), by the folder's `oxygen.json`, or by the asset id of its statistics where only one robot uses that id.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from oxygen.core.errors import CheckpointError
from oxygen.processing.config import PRESETS


@dataclass(frozen=True, slots=True)
class OpenpiConfig:
    """robot: a preset of the processing room. horizon: actions in a chunk. asset_id: of its statistics."""

    robot: str
    horizon: int
    asset_id: str
    default_prompt: str | None = None


CONFIGS = {
    "pi05_libero": OpenpiConfig("libero", 10, "physical-intelligence/libero"),
    "pi05_droid": OpenpiConfig("droid", 15, "droid"),
    "pi05_aloha": OpenpiConfig("aloha", 50, "trossen"),
    "pi05_aloha_pen_uncap": OpenpiConfig("aloha", 50, "trossen", "uncap the pen"),
    "pi05_droid_finetune": OpenpiConfig("droid", 16, "droid"),
    "pi05_full_droid_finetune": OpenpiConfig("droid-joint-position", 16, "droid"),
    "pi05_droid_jointpos_polaris": OpenpiConfig("droid-joint-position", 15, "droid"),
}
"""specs of openpi's training configurations; there is none for the base model, which is served as pi05_aloha."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """robot: preset name, None where it is open. source: how it was found, for people. config: openpi's, if named."""

    robot: str | None
    source: str
    config: OpenpiConfig | None = None

    def asset_id(self, present: Sequence[str]) -> str | None:
        """The one of the folder's statistics that this robot was trained with, if it is there."""
        wanted = {c.asset_id for c in CONFIGS.values() if c.robot == self.robot}
        if self.config is not None:
            wanted = {self.config.asset_id}
        found = [asset for asset in present if asset in wanted]
        return found[0] if len(found) == 1 else None


def choose_robot(named: str | None, declared: str | None, asset_ids: Sequence[str], where: str) -> Chosen:
    """Who the folder is for. Unknown names are refused with the choices; nothing certain gives `robot` None.

    named: by the caller; declared: by the folder; either is a robot or a configuration of openpi.
    """
    for name, source in ((named, "named by the caller"), (declared, "declared by the folder")):
        if name is None:
            continue
        if isinstance(name, str) and name in CONFIGS:
            return Chosen(CONFIGS[name].robot, f"{source}: openpi's configuration {name}", CONFIGS[name])
        if isinstance(name, str) and name in PRESETS:
            return Chosen(name, source)
        raise CheckpointError(
            f"{where}: robot {name!r:.80} ({source}) is unknown; robots: {', '.join(PRESETS)}; "
            f"openpi's configurations: {', '.join(CONFIGS)}"
        )
    by_asset = {asset: sorted({c.robot for c in CONFIGS.values() if c.asset_id == asset}) for asset in asset_ids}
    robots = sorted({robot for found in by_asset.values() for robot in found})
    if len(robots) == 1:
        asset = next(asset for asset, found in by_asset.items() if found)
        return Chosen(robots[0], f"the only robot whose statistics are called {asset}")
    return Chosen(None, f"open: one of {', '.join(robots or PRESETS)}")
