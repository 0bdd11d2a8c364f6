"""LeRobot's processor files: the statistics, the normalisation modes and the relative actions that they declare.

A LeRobot folder describes its pipelines in `policy_preprocessor.json` and `policy_postprocessor.json`: a list `steps`,
each with a `registry_name`, a `config` and, where the step has numbers, a `state_file` beside it (safetensors, tensors
named `<feature>.<statistic>`). Only the steps known here are followed, and nothing that a file names is ever imported.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from oxygen.core.errors import CheckpointError
from oxygen.processing.normalize import Mode
from oxygen.processing.statistics import NAMES, Statistics

FILES = ("policy_preprocessor.json", "policy_postprocessor.json")
STATE_FEATURE, ACTION_FEATURE = "observation.state", "action"
IMAGE_PREFIX = "observation.images."
_GROUPS = {STATE_FEATURE: "state", ACTION_FEATURE: "actions"}
_NORMALIZERS = ("normalizer_processor", "unnormalizer_processor")
_MODES: dict[str, Mode] = {
    "QUANTILES": "quantile",
    "MEAN_STD": "zscore",
    "MIN_MAX": "minmax",
    "IDENTITY": "identity",
}


@dataclass(frozen=True)
class LeRobotPipeline:
    """What a LeRobot folder's processor files say.

    delta_mask: action dimensions that the model predicts relative to the current state. max_token_len: tokens of the
    prompt, or None where no tokenizer step says so.
    """

    statistics: Statistics
    state_mode: Mode
    action_mode: Mode
    delta_mask: tuple[bool, ...] = ()
    max_token_len: int | None = None


def read_pipeline(folder: Path) -> LeRobotPipeline:
    """Read both processor files of `folder`; raises CheckpointError for what is missing, unknown or contradictory."""
    steps = [(folder / name, step) for name in FILES for step in _steps(folder / name)]
    groups: dict[str, dict[str, Any]] = {}
    modes: dict[str, Mode] = {}
    for path, step in steps:
        if step.get("registry_name") in _NORMALIZERS:
            _take_modes(modes, step, path)
            _take_statistics(groups, step, path)
    wanted = {
        group for feature, group in (("STATE", "state"), ("ACTION", "actions")) if modes.get(feature) != "identity"
    }
    if missing := sorted(wanted - groups.keys()):
        raise CheckpointError(f"{folder}: the normalizer steps have no statistics for {' and '.join(missing)}")
    statistics = Statistics.from_groups("lerobot", groups, str(folder)) if groups else Statistics("lerobot")
    configs = {str(step.get("registry_name")): step.get("config") or {} for _, step in steps}
    max_token_len = configs.get("tokenizer_processor", {}).get("max_length")
    if max_token_len is not None and (type(max_token_len) is not int or not 1 <= max_token_len <= 65_536):
        expected = "an integer from 1 to 65536"
        raise CheckpointError(
            f"{folder}: tokenizer_processor.max_length: expected {expected}, got {max_token_len!r:.80}"
        )
    return LeRobotPipeline(
        statistics=statistics,
        state_mode=modes.get("STATE", "identity"),
        action_mode=modes.get("ACTION", "identity"),
        delta_mask=_delta_mask(configs, folder),
        max_token_len=max_token_len,
    )


def robot_from_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The generic robot of a LeRobot config.json: its cameras are the model's slots, in the order of its input
    features.

    Cameras called empty_camera_N stand for slots that no robot fills: they are left out.
    """
    inputs, outputs = _features(config, "input_features"), _features(config, "output_features")
    names = [key.removeprefix(IMAGE_PREFIX) for key, feature in inputs.items() if feature["type"] == "VISUAL"]
    cameras = {name: {"slot": name, "required": True} for name in names if not name.startswith("empty_camera_")}
    if not cameras:
        raise CheckpointError(f"config.json: input_features: expected pictures (VISUAL), got {sorted(inputs)!s:.200}")
    state_dim = _dim(inputs, "input_features", STATE_FEATURE) if STATE_FEATURE in inputs else 0
    action_dim = _dim(outputs, "output_features", ACTION_FEATURE)
    return {"name": "generic", "cameras": cameras, "state_dim": state_dim, "action_dim": action_dim}


def _features(config: Mapping[str, Any], key: str) -> dict[str, dict[str, Any]]:
    features = config.get(key)
    if not isinstance(features, dict):
        raise CheckpointError(f"config.json: {key}: expected a map of features, got {features!r:.80}")
    for name, feature in features.items():
        if not isinstance(feature, dict) or not isinstance(feature.get("type"), str):
            raise CheckpointError(
                f"config.json: {key}.{name:.80}: expected a map with type and shape, got {feature!r:.80}"
            )
    return features


def _dim(features: Mapping[str, Mapping[str, Any]], key: str, name: str) -> int:
    shape = features.get(name, {}).get("shape")
    if not isinstance(shape, list) or len(shape) != 1 or type(shape[0]) is not int or not 1 <= shape[0] <= 65_536:
        raise CheckpointError(f"config.json: {key}.{name}.shape: expected one number of dimensions, got {shape!r:.80}")
    return shape[0]


def _steps(path: Path) -> Iterator[dict[str, Any]]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: cannot be read as JSON: {error}") from error
    steps = content.get("steps") if isinstance(content, dict) else None
    if not isinstance(steps, list) or not all(
        isinstance(step, dict) and isinstance(step.get("config") or {}, dict) for step in steps
    ):
        raise CheckpointError(f"{path}: expected a list of steps, each a map whose config is a map")
    return iter(steps)


def _take_modes(modes: dict[str, Mode], step: Mapping[str, Any], path: Path) -> None:
    norm_map = (step.get("config") or {}).get("norm_map") or {}
    if not isinstance(norm_map, dict):
        raise CheckpointError(f"{path}: norm_map: expected a map, got {norm_map!r:.80}")
    for feature, written in norm_map.items():
        if feature not in ("STATE", "ACTION"):
            if written != "IDENTITY":
                raise CheckpointError(
                    f"{path}: norm_map.{feature:.80} is {written!r:.80}; only IDENTITY is known for it"
                )
            continue
        if not isinstance(written, str) or written not in _MODES:
            raise CheckpointError(f"{path}: norm_map.{feature} is {written!r:.80}, expected {', '.join(_MODES)}")
        if modes.setdefault(feature, _MODES[written]) != _MODES[written]:
            raise CheckpointError(f"{path}: {feature} is normalised in two ways, {modes[feature]} and {written}")


def _take_statistics(groups: dict[str, dict[str, Any]], step: Mapping[str, Any], path: Path) -> None:
    name = step.get("state_file")
    if name is None:
        return
    if not isinstance(name, str) or Path(name).name != name or not 0 < len(name) < 256:
        raise CheckpointError(f"{path}: state_file {name!r:.80} is not the name of a file in the folder")
    file = path.with_name(name)
    if not file.is_file():
        raise CheckpointError(f"{path}: state_file names the statistics {name}, which the folder lacks")
    try:
        tensors = load_file(file)
    except (SafetensorError, ValueError) as error:
        raise CheckpointError(f"{file}: not a safetensors file: {error}") from error
    for key, tensor in tensors.items():
        feature, _, statistic = key.rpartition(".")
        if feature.endswith((f".buffer.{STATE_FEATURE}", f".buffer.{ACTION_FEATURE}")):
            raise CheckpointError(
                f"{file}: holds the statistics of several data sets ({key}); keep one, by its plain name"
            )
        group = _GROUPS.get(feature)
        if group is None or statistic not in NAMES:
            continue
        numbers = tensor.astype(np.float64).reshape(-1)
        known = groups.setdefault(group, {}).setdefault(statistic, numbers)
        if not np.array_equal(known, numbers):
            raise CheckpointError(f"{file}: {key} differs from the same statistic of the other pipeline")


def _delta_mask(configs: Mapping[str, Mapping[str, Any]], folder: Path) -> tuple[bool, ...]:
    """Dimensions made relative: all but those whose names contain an excluded joint's name."""
    relative = configs.get("relative_actions_processor", {})
    absolute = configs.get("absolute_actions_processor", {})
    for step in (relative, absolute):
        if not isinstance(step.get("enabled"), bool | None):
            raise CheckpointError(f"{folder}: enabled: expected true or false, got {step['enabled']!r:.80}")
    is_enabled = bool(relative.get("enabled"))
    if is_enabled != bool(absolute.get("enabled")):
        raise CheckpointError(f"{folder}: relative actions are on in one pipeline and off in the other")
    if not is_enabled:
        return ()
    names, joints = relative.get("action_names"), relative.get("exclude_joints") or []
    for key, told in (("action_names", names or []), ("exclude_joints", joints)):
        if not isinstance(told, list) or not all(isinstance(name, str) for name in told):
            raise CheckpointError(f"{folder}: {key}: expected a list of names, got {told!r:.80}")
    if not names:
        raise CheckpointError(f"{folder}: relative actions without action_names: it is open which dimensions they are")
    excluded = [joint.lower() for joint in joints if joint]
    return tuple(not any(joint in name.lower() for joint in excluded) for name in names)
