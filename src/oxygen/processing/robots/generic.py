"""A robot described by its checkpoint: named cameras, so many state numbers, so many action numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oxygen.core.errors import InvalidInput
from oxygen.processing.robots.robot import ActionPart, Camera, Robot, StatePart
from oxygen.processing.transforms import Pipeline, SliceActions

_STATE_KEYS = (("state",), ("observation/state",), ("observation.state",))
_PROMPT_KEYS = (("prompt",), ("task",))


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
    if not isinstance(cameras, Mapping) or not cameras or state_dim < 0 or action_dim < 1:
        raise InvalidInput(
            "robot", "cameras, a state_dim of at least 0, an action_dim of at least 1", f"{state_dim=} {action_dim=}"
        )
    parts = tuple(ActionPart(**part) for part in actions) or (
        ActionPart("actions", action_dim, "absolute", "robot units"),
    )
    if sum(part.dim for part in parts) != action_dim:
        raise InvalidInput("robot.actions", f"parts of {action_dim} dimensions together", f"{[p.dim for p in parts]}")
    slots = {name: {"slot": told} if isinstance(told, str) else dict(told) for name, told in cameras.items()}
    if without := [name for name, told in slots.items() if not isinstance(told.get("slot"), str)]:
        raise InvalidInput("robot.cameras", "a slot for each camera", f"none for {without[0]}")
    if len({told["slot"] for told in slots.values()}) != len(slots):
        raise InvalidInput("robot.cameras", "one slot for each camera", f"{ {n: t['slot'] for n, t in slots.items()} }")
    return Robot(
        name=label,
        cameras=tuple(Camera(name=name, keys=_camera_keys(name), **told) for name, told in slots.items()),
        state=(StatePart(_STATE_KEYS, state_dim),) if state_dim else (),
        actions=parts,
        prompt_keys=_PROMPT_KEYS,
        pipeline=Pipeline(outputs=(SliceActions(action_dim),)),
        delta_mask=tuple(delta_mask),
        control_hz=control_hz,
        replan_steps=replan_steps,
        metadata=dict(metadata or {}),
    )


def _camera_keys(name: str) -> tuple[tuple[str, ...], ...]:
    return (
        ("images", name),
        (f"images.{name}",),
        (f"observation/{name}",),
        (f"observation.images.{name}",),
        (f"observation/images/{name}",),
    )
