"""A stand-in for a policy that knows where the objects are: it proves the evaluation, not a model.

It picks up the first object that a task is about and puts it down at the second, in straight lines and without turning
the gripper. It sits behind the same door as a policy, is asked as often and answers with chunks; only the poses of the
objects reach it past the pictures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from oxygen.core.errors import InvalidInput
from oxygen.core.tasks import ActionResult, ActionTask, Observation, TextTask

HORIZON = 10
REACH = 0.011
"""Metres that the hand moves in one control step at full command (measured)."""
GAIN = 25.0
"""Command per metre of distance."""
NEAR = 0.012
OPEN, CLOSED = -1.0, 1.0


class Poses(Protocol):
    """The privileged view: names of the objects in question and all positions, as `<name>_pos` [3] m."""

    @property
    def things(self) -> tuple[str, ...]: ...

    @property
    def sensors(self) -> Mapping[str, np.ndarray]: ...


@dataclass(frozen=True, slots=True)
class Leg:
    """One stretch: to `offset` from an object, gripper so; over when near enough, or after `patience` chunks."""

    thing: int
    offset: tuple[float, float, float]
    grip: float
    patience: int
    is_timed: bool = False


def legs(grasp: tuple[float, float, float], drop: float) -> tuple[Leg, ...]:
    """grasp: of the hand from the object's origin when it closes; drop: height above the goal's when it opens."""
    x, y, z = grasp
    return (
        Leg(0, (x, y, z + 0.12), OPEN, 16),
        Leg(0, (x, y, z), OPEN, 6),
        Leg(0, (x, y, z), CLOSED, 3, is_timed=True),
        Leg(0, (x, y, z + 0.2), CLOSED, 4, is_timed=True),
        Leg(1, (x, y, drop + 0.15), CLOSED, 12),
        Leg(1, (x, y, drop), CLOSED, 5),
        Leg(1, (x, y, drop), OPEN, 3, is_timed=True),
        Leg(1, (x, y, drop + 0.2), OPEN, 99, is_timed=True),
    )


def plan_for(name: str) -> tuple[Leg, ...]:
    """A bowl is held by its rim, one finger inside; other things across their middle."""
    if "bowl" in name:
        return legs((0.0, 0.05, 0.035), 0.09)
    return legs((0.0, 0.0, 0.0), 0.16)


@dataclass(frozen=True, slots=True, eq=False)
class ScriptedAnswer:
    result: ActionResult
    texts: tuple[()] = ()

    def actions(self, timeout: float | None = None) -> ActionResult:
        return self.result


class ScriptedDoor:
    """Answers frames of the scene that it `watches`."""

    def __init__(self) -> None:
        self._scene: Poses | None = None
        self._plan: tuple[Leg, ...] = ()
        self._leg = self._spent = 0
        self._start = np.zeros(3)

    def watch(self, scene: Poses) -> None:
        self._scene = scene

    def submit(self, observation: Observation, actions: ActionTask | None, texts: Sequence[TextTask]) -> ScriptedAnswer:
        """Raises ValueError before a scene is watched, InvalidInput for a frame without state."""
        if self._scene is None:
            raise ValueError("the script watches no scene")
        if observation.state is None:
            raise InvalidInput("state", "the hand's position first", "nothing")
        if observation.frame_id == 0:
            self._plan = plan_for(self._scene.things[0])
            self._leg = self._spent = 0
        hand = np.array(observation.state[:3], np.float64)
        leg = self._plan[self._leg]
        if self._is_over(leg, hand):
            self._leg, self._spent = min(self._leg + 1, len(self._plan) - 1), 0
            leg = self._plan[self._leg]
        chunk = _straight(hand, self._target(leg), leg.grip)
        self._spent += 1
        return ScriptedAnswer(ActionResult(chunk, observation.session, observation.frame_id or 0, 0.0, "action", 0.0))

    def _is_over(self, leg: Leg, hand: np.ndarray) -> bool:
        if self._spent == 0:
            return False
        is_near = not leg.is_timed and float(np.linalg.norm(self._target(leg) - hand)) < NEAR
        return is_near or self._spent >= leg.patience

    def _target(self, leg: Leg) -> np.ndarray:
        assert self._scene is not None
        if self._spent == 0 or leg.thing == 1:
            # Once held, the object moves with the hand: where it stood when the leg began is what counts.
            things = self._scene.things
            name = things[min(leg.thing, len(things) - 1)]
            self._start = np.array(self._scene.sensors[f"{name}_pos"], np.float64)
        target: np.ndarray = self._start + np.array(leg.offset)
        return target


def _straight(hand: np.ndarray, target: np.ndarray, grip: float) -> np.ndarray:
    """A chunk [10, 7] towards `target`, each action from where the ones before it will have brought the hand."""
    chunk = np.zeros((HORIZON, 7))
    chunk[:, 6] = grip
    for action in chunk:
        action[:3] = np.clip(GAIN * (target - hand), -1.0, 1.0)
        hand = hand + REACH * action[:3]
    return chunk
