"""DROID (openpi's pi05_droid): one exterior and one wrist camera, seven joints and a gripper."""

from __future__ import annotations

from oxygen.core.errors import InvalidInput
from oxygen.processing.robots.robot import SLOTS, ActionPart, Camera, Robot, StatePart
from oxygen.processing.transforms import Pipeline, SliceActions, bool_mask


def droid(action_space: str = "joint_velocity") -> Robot:
    """action_space: `joint_velocity` (pi05_droid), or `joint_position` for fine-tunes that predict joint offsets."""
    if action_space not in ("joint_velocity", "joint_position"):
        raise InvalidInput("action_space", "joint_velocity or joint_position", f"{action_space!r:.80}")
    is_position = action_space == "joint_position"
    return Robot(
        name="droid",
        cameras=(
            Camera("exterior_image_1_left", SLOTS[0], (("observation/exterior_image_1_left",),)),
            Camera("wrist_image_left", SLOTS[1], (("observation/wrist_image_left",),)),
        ),
        state=(
            StatePart((("observation/joint_position",),), 7),
            StatePart((("observation/gripper_position",),), 1),
        ),
        actions=(
            ActionPart("joints", 7, "absolute", "rad") if is_position else ActionPart("joints", 7, "velocity", "rad/s"),
            ActionPart("gripper", 1, "absolute", "0 open, 1 closed", "gripper"),
        ),
        pipeline=Pipeline(outputs=(SliceActions(8),)),
        delta_mask=bool_mask(7, -1) if is_position else (),
        control_hz=15.0,
        replan_steps=8,
    )
