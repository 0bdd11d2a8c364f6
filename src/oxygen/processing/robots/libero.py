"""LIBERO (openpi's pi05_libero): two cameras, end-effector state, relative end-effector actions."""

from __future__ import annotations

from oxygen.processing.robots.robot import SLOTS, ActionPart, Camera, Robot, StatePart
from oxygen.processing.transforms import Pipeline, SliceActions

STATE_DIM = 8
"""End-effector position (3), axis-angle (3), gripper joints (2)."""
_INPUT = "controller input in [-1, 1]"
_ROTATION = f"{_INPUT}, axis-angle"


def libero() -> Robot:
    """Pictures must come turned by 180 degrees, as LIBERO's training data was: the client does it, nobody else."""
    return Robot(
        name="libero",
        cameras=(
            Camera("image", SLOTS[0], (("observation/image",),)),
            Camera("wrist_image", SLOTS[1], (("observation/wrist_image",),)),
        ),
        state=(StatePart((("observation/state",),), STATE_DIM),),
        actions=(
            *(ActionPart(f"end-effector position {axis}", 1, "delta", _INPUT, "base") for axis in "xyz"),
            *(ActionPart(f"end-effector rotation {axis}", 1, "delta", _ROTATION, "base") for axis in "xyz"),
            ActionPart("gripper", 1, "absolute", "-1 open, 1 closed", "gripper"),
        ),
        pipeline=Pipeline(outputs=(SliceActions(7),)),
        control_hz=20.0,
        replan_steps=5,
    )
