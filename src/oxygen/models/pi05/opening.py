"""A π0.5 folder with everything settled but the weights: sizes, robot, processor settings, statistics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from oxygen.checkpoint.folder import Checkpoint, open_folder
from oxygen.core.errors import CheckpointError
from oxygen.models.pi05.configs import Chosen, choose_robot
from oxygen.models.pi05.sizes import Sizes, derive_sizes
from oxygen.models.pi05.spec import Pi05Spec
from oxygen.processing.config import ProcessorConfig
from oxygen.processing.open import build_processor, processor_config
from oxygen.processing.processor import Processor
from oxygen.processing.robots import Robot
from oxygen.processing.statistics import Statistics


@dataclass(frozen=True)
class Pi05Folder:
    """See read_pi05. `asset_id` is what was asked for; `statistics` what was chosen."""

    checkpoint: Checkpoint
    sizes: Sizes
    chosen: Chosen
    asset_id: str | None = None

    @property
    def spec(self) -> Pi05Spec:
        return self.sizes.spec

    @property
    def where(self) -> str:
        return str(self.checkpoint.folder)

    @cached_property
    def processor_config(self) -> ProcessorConfig:
        """Settings of the processor. Raises CheckpointError where the folder does not settle the robot."""
        c = self.checkpoint
        config = processor_config(
            c.declared.get("processor"), c.pipeline, c.config, self._robot(), self._sizes(), self.where
        )
        named = self.chosen.config
        if named and named.default_prompt and config.default_prompt is None:
            config = config.with_(default_prompt=named.default_prompt)
        return config

    @cached_property
    def statistics(self) -> Statistics:
        """The set in use: asked for, declared, the robot's own, or the only one; otherwise CheckpointError."""
        present = [found.asset_id for found in self.checkpoint.statistics]
        return self.checkpoint.statistics_for(self.named_asset or self.chosen.asset_id(present))

    @property
    def named_asset(self) -> str | None:
        """The statistics that were asked for or that the folder declares, there or not."""
        declared = self.checkpoint.declared
        return self.asset_id or (declared.get("processor") or {}).get("asset_id") or declared.get("asset_id")

    def processor(self, tokenizer: str | Path | None = None) -> Processor:
        """The processor, complete. tokenizer: a file that takes the place of the folder's own."""
        path = Path(tokenizer) if tokenizer is not None else self.checkpoint.tokenizer
        statistics = self.checkpoint.statistics and (self.statistics,)
        built = build_processor(
            tokenizer=path, statistics=statistics, declared=self.processor_config.to_dict(), where=self.where
        )
        self.check_cameras(built.robot)
        return built

    def check_cameras(self, robot: Robot) -> None:
        """Raises CheckpointError for a robot with more cameras than the prefix has room for."""
        if len(robot.cameras) > self.spec.num_cameras:
            slots = f"{[camera.slot for camera in robot.cameras]!s:.200}"
            raise CheckpointError(f"{self.where}: num_cameras is {self.spec.num_cameras}, the robot's fill {slots}")

    def _robot(self) -> str | None:
        if (
            self.chosen.robot is None
            and self.checkpoint.declared.get("processor") is None
            and not self.checkpoint.pipeline
        ):
            raise CheckpointError(f"{self.where}: does not say which robot it is for ({self.chosen.source})")
        return self.chosen.robot

    def _sizes(self) -> dict[str, Any]:
        """What the model's sizes fix for the processor."""
        s = self.spec
        return {
            "image_size": s.vision.image_size,
            "tokens_per_image": s.tokens_per_image,
            "action_dim": s.action_dim,
            "horizon": s.horizon,
            "max_token_len": s.max_token_len,
            "vocab_size": s.vocab_size,
        }


def read_pi05(
    folder: Checkpoint | str | Path,
    *,
    robot: str | None = None,
    asset_id: str | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Pi05Folder:
    """Open a π0.5 folder without its weights.

    robot: a robot or one of openpi's configurations, for folders that do not name theirs. asset_id: which statistics.
    overrides: sizes that no tensor shows, nested as in Pi05Spec. Raises CheckpointError.
    """
    checkpoint = folder if isinstance(folder, Checkpoint) else open_folder(folder)
    if checkpoint.family != "pi05":
        raise CheckpointError(f"{checkpoint.folder}: wrong family: {checkpoint.family}, expected pi05")
    declared = checkpoint.declared.get("robot")
    assets = [found.asset_id for found in checkpoint.statistics]
    is_foreign = checkpoint.declared.get("processor") is None and checkpoint.pipeline is None
    chosen = choose_robot(robot, declared, assets if is_foreign else (), str(checkpoint.folder))
    sizes = derive_sizes(checkpoint, overrides, None if chosen.config is None else chosen.config.horizon)
    return Pi05Folder(checkpoint, sizes, chosen, asset_id)
