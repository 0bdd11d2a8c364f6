"""ALOHA (openpi's pi05_aloha): up to three cameras, two arms of six joints and a gripper each.

The checkpoints were trained in another runtime's space ("pi space"): some joints count the other way, and the gripper
is an angle of its motor where ALOHA reports an opening. The constants are those of ALOHA's own gripper linkage.
"""

from __future__ import annotations

import numpy as np

from oxygen.core.errors import InvalidInput
from oxygen.processing.robots.robot import SLOTS, ActionPart, Camera, Path, Robot, StatePart
from oxygen.processing.transforms import MapFields, Pipeline, SliceActions, bool_mask

SIGNS = np.array([1, -1, -1, 1, 1, 1, 1] * 2, dtype=np.float64)
GRIPPERS = (6, 13)
RESET_POSE = (0.0, -1.5, 1.5, 0.0, 0.0, 0.0)

_OPENING = (0.01844, 0.05800)
"""Metres between the fingers, closed and open."""
_HORN, _ARM = 0.022, 0.036
"""Metres: the motor's horn and the link to the finger."""
_ANGLE_IN = (0.5476, 1.6296)
"""Radians of the horn, closed and open, as the checkpoints' data has them."""
_ANGLE_OUT = (-0.6213, 1.4910)
"""Radians that ALOHA's own gripper takes, closed and open."""


def aloha(adapt_to_pi: bool = True, use_delta: bool = True) -> Robot:
    """adapt_to_pi: turn signs and grippers into the checkpoints' space. use_delta: joints are predicted as offsets."""
    for name, flag in (("adapt_to_pi", adapt_to_pi), ("use_delta", use_delta)):
        if not isinstance(flag, bool):
            raise InvalidInput(f"robot.{name}", "true or false", f"{flag!r:.80}")
    pipeline = Pipeline()
    if adapt_to_pi:
        into = MapFields({"state": state_to_pi, "actions": actions_to_pi})
        pipeline = pipeline.push((into,), (MapFields({"actions": actions_from_pi}),))
    pipeline = pipeline.push(outputs=(SliceActions(14),))
    joints = ActionPart("left joints", 6, "absolute", "rad"), ActionPart("right joints", 6, "absolute", "rad")
    grippers = (
        ActionPart(f"{side} gripper", 1, "absolute", "0 closed, 1 open", "gripper") for side in ("left", "right")
    )
    left_gripper, right_gripper = grippers
    return Robot(
        name="aloha",
        cameras=(
            Camera("cam_high", SLOTS[0], _image("cam_high"), layout="CHW"),
            Camera("cam_left_wrist", SLOTS[1], _image("cam_left_wrist"), required=False, layout="CHW"),
            Camera("cam_right_wrist", SLOTS[2], _image("cam_right_wrist"), required=False, layout="CHW"),
        ),
        state=(StatePart((("state",),), 14),),
        actions=(joints[0], left_gripper, joints[1], right_gripper),
        pipeline=pipeline,
        delta_mask=bool_mask(6, -1, 6, -1) if use_delta else (),
        control_hz=50.0,
        replan_steps=25,
        ignored=(("images", "cam_low"),),
        metadata={"reset_pose": list(RESET_POSE)},
    )


def state_to_pi(state: np.ndarray) -> np.ndarray:
    """[..., 14] as ALOHA reports it -> pi space: signs, then the gripper's opening to an angle by its linkage."""
    turned: np.ndarray = SIGNS * state
    opening = turned[..., GRIPPERS] * (_OPENING[1] - _OPENING[0]) + _OPENING[0]
    sine = (_HORN**2 + opening**2 - _ARM**2) / (2 * _HORN * opening)
    angle = np.arcsin(np.clip(sine, -1.0, 1.0))
    turned[..., GRIPPERS] = (angle - _ANGLE_IN[0]) / (_ANGLE_IN[1] - _ANGLE_IN[0])
    return turned


def actions_from_pi(actions: np.ndarray) -> np.ndarray:
    """[..., 14] in pi space -> what ALOHA takes: signs, then the gripper's angle to its own range."""
    turned: np.ndarray = SIGNS * actions
    turned[..., GRIPPERS] = (turned[..., GRIPPERS] + _ANGLE_IN[0] - _ANGLE_OUT[0]) / (_ANGLE_OUT[1] - _ANGLE_OUT[0])
    return turned


def actions_to_pi(actions: np.ndarray) -> np.ndarray:
    """The inverse of `actions_from_pi` (training)."""
    turned: np.ndarray = SIGNS * actions
    turned[..., GRIPPERS] = turned[..., GRIPPERS] * (_ANGLE_OUT[1] - _ANGLE_OUT[0]) + _ANGLE_OUT[0] - _ANGLE_IN[0]
    return turned


def _image(name: str) -> tuple[Path, ...]:
    return (("images", name), (f"images.{name}",))
