"""The parts of a Processor, built from its configuration and checked against each other."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from oxygen.core.errors import CheckpointError, InvalidInput
from oxygen.processing.config import ProcessorConfig
from oxygen.processing.normalize import Normalizer
from oxygen.processing.robots import Robot, build_robot
from oxygen.processing.statistics import FieldStatistics, Statistics

log = logging.getLogger("oxygen.processing")


def robot_of(config: ProcessorConfig) -> Robot:
    """The robot of a configuration, with the cameras that it requires; refused where the model cannot hold it."""
    try:
        robot = build_robot(config.robot)
    except InvalidInput as error:
        raise CheckpointError(f"processor: {error}") from error
    if config.required_cameras is not None:
        wanted = set(config.required_cameras)
        if unknown := sorted(wanted - {camera.name for camera in robot.cameras}):
            raise CheckpointError(
                f"processor: required_cameras {unknown!s:.200} are no cameras of robot {robot.name:.80}"
            )
        cameras = tuple(replace(camera, required=camera.name in wanted) for camera in robot.cameras)
        robot = replace(robot, cameras=cameras)
    if unknown := [camera.slot for camera in robot.cameras if camera.slot not in config.slots]:
        known = f"{list(config.slots)!s:.200}"
        raise CheckpointError(
            f"processor: robot {robot.name:.80} fills the slots {unknown!s:.200}; the model has {known}"
        )
    if robot.action_dim > config.action_dim:
        raise CheckpointError(
            f"processor: {robot.action_dim} actions do not fit a model of action_dim {config.action_dim}"
        )
    return robot


def normalizers_of(config: ProcessorConfig, robot: Robot, statistics: Statistics | None) -> dict[str, Normalizer]:
    """A normalizer for the state and one for the actions; statistics must know at least the robot's own dimensions."""
    modes = {"state": config.normalization, "actions": config.action_normalization or config.normalization}
    dims = {"state": robot.state_dim, "actions": robot.action_dim}
    built: dict[str, Normalizer] = {}
    for name, mode in modes.items():
        found: FieldStatistics | None = getattr(statistics, name) if statistics else None
        if mode != "identity" and dims[name]:
            if statistics is None or found is None:
                raise CheckpointError(f"normalisation of {name} by {mode}: the checkpoint has no statistics of {name}")
            if not dims[name] <= found.dim <= max(config.action_dim, dims[name]):
                raise CheckpointError(
                    f"statistics {statistics.asset_id!r} know {found.dim} dimensions of {name}; robot {robot.name} has "
                    f"{dims[name]} (and the model {config.action_dim})"
                )
        built[name] = Normalizer(name, mode if dims[name] else "identity", config.dialect, found or FieldStatistics())
        if flat := built[name].statistics.degenerate_dims(built[name].mode):
            log.warning(
                "statistics of %s have no width in dimensions %s: any deviation there explodes", name, list(flat)
            )
    return built


def describe_normalization(
    config: ProcessorConfig, normalizers: Mapping[str, Normalizer], statistics: Statistics | None
) -> dict[str, Any]:
    """What was chosen, and its identity, as plain data."""
    return {
        "dialect": config.dialect,
        "asset_id": statistics.asset_id if statistics else None,
        "digest": statistics.digest if statistics else None,
        **{
            name: {
                "mode": normalizer.mode,
                "dim": normalizer.dim,
                "degenerate_dims": list(normalizer.statistics.degenerate_dims(normalizer.mode)),
            }
            for name, normalizer in normalizers.items()
        },
    }
