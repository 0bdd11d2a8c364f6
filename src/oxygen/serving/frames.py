"""Messages of robots -> frames: our own keys set apart, other servers' key styles brought to the robot's own names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from oxygen.core.errors import InvalidInput
from oxygen.processing.robots import Robot
from oxygen.serving import tasks
from oxygen.serving.flight import Frame

OPTIONS = ("tasks", "frame_id", "captured_at", "num_steps", "seed", "noise", "expert")
NAMES = ("session", "session_id")
_CONTROL = ("endpoint", "output_format")
_DOTTED_IMAGES, _DOTTED_STATE = "observation.images.", "observation.state"


def as_map(message: Any) -> Mapping[str, Any]:
    """The message as a map with text keys. Raises InvalidInput for anything else."""
    if not isinstance(message, Mapping):
        raise InvalidInput("message", "a map", type(message).__name__)
    for key in message:
        if not isinstance(key, str):
            raise InvalidInput("message", "text keys", repr(key)[:80])
    return message


def session_name(message: Mapping[str, Any]) -> str | None:
    """The robot's name as the message gives it, or None. Raises InvalidInput for what is no name."""
    name = next((message[key] for key in NAMES if message.get(key) is not None), None)
    if name is not None and not isinstance(name, str):
        raise InvalidInput("session", "the robot's name as text", type(name).__name__)
    return name


def wants_reset(message: Mapping[str, Any]) -> bool:
    """Whether `endpoint` asks for the end of an episode. Raises InvalidInput for an endpoint that does not exist."""
    endpoint = message.get("endpoint", "infer")
    if not isinstance(endpoint, str) or endpoint not in ("infer", "reset"):
        raise InvalidInput("endpoint", "infer or reset", repr(endpoint)[:80])
    return endpoint == "reset"


def has_options(message: Mapping[str, Any]) -> bool:
    """Whether the client knows us: it sent at least one key that openpi does not have."""
    return any(key in message for key in (*OPTIONS, *NAMES))


def read_frame(observation: Mapping[str, Any], options: Mapping[str, Any], robot: Robot, max_chars: int) -> Frame:
    """observation: openpi-style map, possibly with our own keys inside. options: where to look for those keys."""
    own = {*OPTIONS, *NAMES, *_CONTROL}
    raw = {key: value for key, value in observation.items() if key not in own}
    return Frame(
        raw=robot_keys(raw, robot),
        action=tasks.action_task(options),
        texts=tasks.text_tasks(options.get("tasks"), max_chars),
        frame_id=tasks.frame_number(options.get("frame_id")),
        captured_at=options.get("captured_at"),
    )


def robot_keys(raw: Mapping[str, Any], robot: Robot) -> Mapping[str, Any]:
    """LeRobot's dotted keys (`observation.images.NAME`, `observation.state`, `task`) under the robot's own keys.

    NAME is the robot's camera or the model's slot. What fits nothing stays as it came, so that the refusal can name it.
    """
    if not any(key.startswith(_DOTTED_IMAGES) or key == _DOTTED_STATE for key in raw):
        return raw
    known = {path[0] for camera in robot.cameras for path in camera.keys}
    known |= {path[0] for part in robot.state for path in part.keys}
    renamed: dict[str, Any] = {}
    for key, value in raw.items():
        camera = _camera(key.removeprefix(_DOTTED_IMAGES), robot) if key.startswith(_DOTTED_IMAGES) else None
        if key in known:
            renamed[key] = value
        elif camera is not None:
            _put(renamed, camera, value)
        elif key == _DOTTED_STATE:
            _put_state(renamed, value, robot)
        elif key == "task":
            renamed.setdefault(robot.prompt_keys[0][0], value)
        else:
            renamed[key] = value
    return renamed


def _camera(name: str, robot: Robot) -> tuple[str, ...] | None:
    return next((camera.keys[0] for camera in robot.cameras if name in (camera.name, camera.slot)), None)


def _put_state(renamed: dict[str, Any], value: Any, robot: Robot) -> None:
    """One state vector -> the robot's state parts, in the robot's order."""
    if len(robot.state) < 2:
        for part in robot.state:
            _put(renamed, part.keys[0], value)
        return
    state = np.asarray(value)
    if state.shape != (robot.state_dim,):
        raise InvalidInput(_DOTTED_STATE, f"shape [{robot.state_dim}]", f"shape {list(state.shape)}")
    start = 0
    for part in robot.state:
        _put(renamed, part.keys[0], state[start : start + part.dim])
        start += part.dim


def _put(target: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for part in path[:-1]:
        target = target.setdefault(part, {})
    target[path[-1]] = value
