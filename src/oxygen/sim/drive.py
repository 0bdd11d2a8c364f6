"""The arm as a robot client: it looks, hands the frame in at a door, executes what comes back, and looks again.

A door is anything with the engine's `submit`: the engine itself, the plain driver that serves task after task, or a
connection to a server. The robot knows nothing else of what serves it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from oxygen.core.tasks import ActionResult, ActionTask, Observation, TextResult, TextTask
from oxygen.sim.facts import SceneFacts
from oxygen.sim.tasks import ArmTask

EXECUTED = 5
"""Actions of a chunk that are executed before the robot looks again."""


class Body(Protocol):
    """An arm, simulated or recorded; see Arm."""

    task: ArmTask
    num_steps: int
    succeeded: bool
    max_steps: int
    large: dict[str, np.ndarray]

    @property
    def state(self) -> np.ndarray: ...

    def reset(self, seed: int) -> None: ...

    def look(self) -> dict[str, np.ndarray]: ...

    def facts(self) -> SceneFacts: ...

    def step(self, action: np.ndarray) -> None: ...

    def close(self) -> None: ...


class Text(Protocol):
    """One text while it grows."""

    kind: str

    @property
    def is_done(self) -> bool: ...

    def result(self, timeout: float | None = None) -> TextResult: ...


class Answer(Protocol):
    """What a frame brings back."""

    @property
    def texts(self) -> Sequence[Text]: ...

    def actions(self, timeout: float | None = None) -> ActionResult: ...


class Door(Protocol):
    def submit(self, observation: Observation, actions: ActionTask | None, texts: Sequence[TextTask]) -> Answer: ...


@dataclass(frozen=True, slots=True, eq=False)
class Look:
    """One frame of an episode: what the robot saw, what was true, what it asked and got. chunk: [H, 4] float64."""

    observation: Observation
    facts: SceneFacts
    texts: tuple[TextTask, ...]
    answer: Answer
    chunk: np.ndarray
    action_wait_s: float


@dataclass(slots=True, eq=False)
class Episode:
    """One run of the arm. frames: looks taken; seconds: wall time from the first look to the end."""

    task: str
    seed: int
    instruction: str
    succeeded: bool = False
    num_steps: int = 0
    seconds: float = 0.0
    looks: list[Look] = field(default_factory=list)


Wanted = Callable[[int], Sequence[TextTask]]
"""Texts wanted of the n-th frame of an episode."""


def no_texts(_: int) -> Sequence[TextTask]:
    return ()


def noise_for(seed: int, num_steps: int, horizon: int, action_dim: int) -> np.ndarray:
    """Start of the flow for one frame of one layout, [horizon, action_dim]: the same whoever serves the frame."""
    return np.random.default_rng([seed, num_steps]).standard_normal((horizon, action_dim), dtype=np.float32)


def run_episode(
    arm: Body,
    seed: int,
    door: Door,
    *,
    wanted: Wanted = no_texts,
    instruction: str | None = None,
    noise_shape: tuple[int, int],
    session: str = "arm",
    on_look: Callable[[Look], None] | None = None,
    keep_looks: bool = True,
    timeout_s: float = 60.0,
) -> Episode:
    """Drive the arm until the task is done or its steps are spent.

    Where texts are wanted and the task succeeded, the robot looks once more, so that the end is seen and told.
    instruction: other words than the task's own. noise_shape: (horizon, action_dim) of the model. on_look is called
    after each frame's actions came, before they are executed. Raises what the door raises.
    """
    arm.reset(seed)
    episode = Episode(arm.task.name, seed, instruction or arm.task.instruction)
    started = time.perf_counter()
    is_over, number = False, 0
    while not is_over:
        is_over = arm.succeeded  # this look is the last one
        if arm.num_steps >= arm.max_steps or (is_over and wanted is no_texts):
            break
        look = take_look(arm, episode, number, door, wanted, noise_shape, session, timeout_s)
        number += 1
        if keep_looks:
            episode.looks.append(look)
        if on_look is not None:
            on_look(look)
        for action in look.chunk[:EXECUTED]:
            if not arm.succeeded:
                arm.step(action)
    episode.succeeded, episode.num_steps = arm.succeeded, arm.num_steps
    episode.seconds = time.perf_counter() - started
    return episode


def take_look(
    arm: Body,
    episode: Episode,
    number: int,
    door: Door,
    wanted: Wanted,
    noise_shape: tuple[int, int],
    session: str,
    timeout_s: float,
) -> Look:
    """The `number`-th frame: pictures and state in, a chunk back. Texts go on by themselves."""
    observation = Observation(arm.look(), arm.state.astype(np.float64), episode.instruction, session, frame_id=number)
    texts = tuple(wanted(number))
    action = ActionTask(noise=noise_for(episode.seed, arm.num_steps, *noise_shape))
    handed_in = time.perf_counter()
    answer = door.submit(observation, action, texts)
    chunk = answer.actions(timeout_s).actions
    return Look(observation, arm.facts(), texts, answer, chunk, time.perf_counter() - handed_in)
