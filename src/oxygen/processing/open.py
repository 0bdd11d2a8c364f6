"""A Processor out of what a checkpoint folder has: the settings that it declares, or those that its format implies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from oxygen.core.errors import CheckpointError
from oxygen.processing.config import PRESETS, ProcessorConfig, preset
from oxygen.processing.lerobot import LeRobotPipeline, robot_from_config
from oxygen.processing.processor import Processor
from oxygen.processing.statistics import Statistics, choose_statistics
from oxygen.processing.tokenizer import load_tokenizer


def build_processor(
    *,
    tokenizer: Path | None,
    statistics: Sequence[Statistics] = (),
    declared: Mapping[str, Any] | None = None,
    pipeline: LeRobotPipeline | None = None,
    lerobot_config: Mapping[str, Any] | None = None,
    robot: str | Mapping[str, Any] | None = None,
    asset_id: str | None = None,
    sizes: Mapping[str, Any] | None = None,
    where: str = "checkpoint",
) -> Processor:
    """Raises CheckpointError with what is missing, unknown or ambiguous; nothing is guessed.

    declared: settings of a ProcessorConfig as the folder wrote them. pipeline and lerobot_config: of a LeRobot folder.
    robot: takes the place of what the folder says (a foreign folder without processor files needs it). asset_id: which
    set of statistics. sizes: what the model's own spec fixes (image_size, action_dim, ...); it has the last word.
    """
    config = processor_config(declared, pipeline, lerobot_config, robot, sizes or {}, where)
    if tokenizer is None:
        raise CheckpointError(f"{where}: no tokenizer (a .model or .json file); copy it from the original checkpoint")
    needs_statistics = {config.normalization, config.action_normalization or config.normalization} != {"identity"}
    chosen = None
    if needs_statistics:
        chosen = choose_statistics(statistics, asset_id or config.asset_id, where)
    return Processor(config, load_tokenizer(tokenizer), chosen)


def processor_config(
    declared: Mapping[str, Any] | None,
    pipeline: LeRobotPipeline | None,
    lerobot_config: Mapping[str, Any] | None,
    robot: str | Mapping[str, Any] | None,
    sizes: Mapping[str, Any],
    where: str = "checkpoint",
) -> ProcessorConfig:
    """The settings alone; see `build_processor`."""
    if declared is not None:
        return ProcessorConfig.from_dict({**declared, **({"robot": robot} if robot else {}), **sizes})
    if pipeline is not None:
        return _lerobot(pipeline, lerobot_config or {}, robot, sizes)
    if robot is None:
        raise CheckpointError(f"{where}: does not say which robot it is for; name one of {', '.join(PRESETS)}")
    if isinstance(robot, str):
        return preset(robot, **sizes)
    return ProcessorConfig(robot=robot, **sizes)


def _lerobot(
    pipeline: LeRobotPipeline,
    config: Mapping[str, Any],
    robot: str | Mapping[str, Any] | None,
    sizes: Mapping[str, Any],
) -> ProcessorConfig:
    is_relative, said = bool(pipeline.delta_mask), config.get("use_relative_actions")
    if said is not None and said is not is_relative:
        expected = f"{is_relative}, as the processor files have it"
        raise CheckpointError(f"config.json: use_relative_actions: expected {expected}, got {said!r:.80}")
    implied: dict[str, Any] = {
        "normalization": pipeline.state_mode,
        "action_normalization": pipeline.action_mode,
        "dialect": "lerobot",
        "delta_mask": pipeline.delta_mask,
    }
    if pipeline.max_token_len is not None:
        implied["max_token_len"] = pipeline.max_token_len
    if robot is None:
        described = robot_from_config(config)
        implied |= {"robot": described, "slots": tuple(described["cameras"])}
    elif isinstance(robot, str) and robot in PRESETS:
        # The pipeline says how LeRobot prompts; only who the robot is comes from the preset.
        implied["robot"] = PRESETS[robot]["robot"]
    else:
        implied["robot"] = robot
    return ProcessorConfig(**{**implied, **sizes})
