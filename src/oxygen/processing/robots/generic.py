"""A robot described by its checkpoint: named cameras, so many state numbers, so many action numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Integral
from typing import Any, get_args

from oxygen.core.errors import InvalidInput, check_number
from oxygen.processing.images import Layout
from oxygen.processing.robots.robot import ActionPart, Camera, Robot, StatePart
from oxygen.processing.transforms import Pipeline, SliceActions

_STATE_KEYS = (("state",), ("observation/state",), ("observation.state",))
_PROMPT_KEYS = (("prompt",), ("task",))
_MAX_DIM = 65_536


def generic(
    cameras: Mapping[str, str | Mapping[str, Any]],
    state_dim: int,
    action_dim: int,
    actions: tuple[Mapping[str, Any], ...] | list[Mapping[str, Any]] = (),
    delta_mask: tuple[bool, ...] | list[bool] = (),
    control_hz: float | None = None,
    replan_steps: int | None = None,
    metadata: Mapping[str, Any] | None = None,
    label: str = "generic",
) -> Robot:
    """cameras: name -> slot, or name -> {slot, required, layout}. state_dim 0: the robot sends no state.

    A camera NAME is read from the map `images`, from the flat key `images.NAME`, `observation/NAME` or
    `observation.images.NAME`; the state from `state`, `observation/state` or `observation.state`; the prompt from
    `prompt` or `task`.
    """
    _check("label", label, isinstance(label, str), "a name")
    for name, dim, least in (("state_dim", state_dim, 0), ("action_dim", action_dim, 1)):
        check_number(f"robot.{name}", dim, f"an integer from {least} to {_MAX_DIM}", least, _MAX_DIM, Integral)
    if control_hz is not None:
        check_number("robot.control_hz", control_hz, "a rate above 0, at most 100,000", 1e-9, 1e5)
    if replan_steps is not None:
        check_number("robot.replan_steps", replan_steps, "an integer from 1 to 1000", 1, 1000, Integral)
    _check("metadata", metadata, isinstance(metadata, Mapping | None) and _is_plain(metadata), "a map of plain values")
    is_mask = isinstance(delta_mask, tuple | list) and all(isinstance(flag, bool) for flag in delta_mask)
    _check("delta_mask", delta_mask, is_mask, "a list of true and false")
    return Robot(
        name=label,
        cameras=_cameras(cameras),
        state=(StatePart(_STATE_KEYS, state_dim),) if state_dim else (),
        actions=_parts(actions, action_dim),
        prompt_keys=_PROMPT_KEYS,
        pipeline=Pipeline(outputs=(SliceActions(action_dim),)),
        delta_mask=tuple(delta_mask),
        control_hz=control_hz,
        replan_steps=replan_steps,
        metadata=dict(metadata or {}),
    )


def _check(name: str, value: object, is_good: bool, expected: str) -> None:
    if not is_good:
        raise InvalidInput(f"robot.{name}", expected, f"{value!r:.80}")


def _cameras(told: object) -> tuple[Camera, ...]:
    _check("cameras", told, isinstance(told, Mapping) and bool(told), "a map of camera to slot")
    assert isinstance(told, Mapping)
    cameras = []
    for name, slot in told.items():
        one = {"slot": slot} if isinstance(slot, str) else slot
        is_map = isinstance(one, Mapping) and {"slot"} <= one.keys() <= {"slot", "required", "layout"}
        _check("cameras", {name: slot}, isinstance(name, str) and is_map, "slots, or maps of slot, required and layout")
        camera = Camera(name=name, keys=_camera_keys(name), **one)
        _check(f"cameras.{name}.slot", camera.slot, isinstance(camera.slot, str), "a name")
        _check(f"cameras.{name}.required", camera.required, isinstance(camera.required, bool), "true or false")
        _check(f"cameras.{name}.layout", camera.layout, camera.layout in get_args(Layout), "auto, HWC or CHW")
        cameras.append(camera)
    slots = [camera.slot for camera in cameras]
    _check("cameras", slots, len(set(slots)) == len(slots), "one slot for each camera")
    return tuple(cameras)


def _parts(told: object, action_dim: int) -> tuple[ActionPart, ...]:
    is_list = isinstance(told, tuple | list) and all(isinstance(part, Mapping) for part in told)
    _check("actions", told, is_list, "a list of maps")
    assert isinstance(told, tuple | list)
    for part in told:
        is_known = {"name", "dim", "kind", "unit"} <= part.keys() <= {"name", "dim", "kind", "unit", "frame"}
        _check("actions", part, is_known, "name, dim, kind, unit and perhaps frame")
        for key, value in part.items():
            if key != "dim":
                _check(f"actions.{key}", value, isinstance(value, str), "text")
        check_number("robot.actions.dim", part["dim"], "an integer of at least 1", 1, _MAX_DIM, Integral)
    parts = tuple(ActionPart(**part) for part in told) or (
        ActionPart("actions", action_dim, "absolute", "robot units"),
    )
    dims = [part.dim for part in parts]
    _check("actions", dims, sum(dims) == action_dim, f"parts whose dim are {action_dim} together")
    return parts


def _is_plain(value: object) -> bool:
    """True for what every door can send: maps by text, lists, text, numbers that are finite and fit 64 bits."""
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _is_plain(inner) for key, inner in value.items())
    if isinstance(value, list | tuple):
        return all(_is_plain(inner) for inner in value)
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, str | bool | None) or (isinstance(value, int) and abs(value) < 2**63)


def _camera_keys(name: str) -> tuple[tuple[str, ...], ...]:
    return (
        ("images", name),
        (f"images.{name}",),
        (f"observation/{name}",),
        (f"observation.images.{name}",),
        (f"observation/images/{name}",),
    )
