"""What comes in and what is wanted of it: observations, action tasks and text tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from numbers import Integral
from typing import Any

import numpy as np

from oxygen.core.errors import InvalidInput, check_number


@dataclass(frozen=True, slots=True)
class Observation:
    """One frame from one robot.

    images: camera name of the robot -> picture, [height, width, 3] uint8 RGB (processors also take what openpi takes).
    state: proprioception in robot units, [state_dim], or None where the checkpoint reads none.
    prompt: the instruction; None takes the checkpoint's default prompt, if it has one.
    session: identity of the robot; the newest frame of a session replaces one that still waits.
    frame_id: the robot's own number for this frame; None lets the engine count.
    captured_at: seconds since the epoch on the robot's clock; None means the moment of submission.
    """

    images: Mapping[str, np.ndarray]
    state: np.ndarray | None = None
    prompt: str | None = None
    session: str = "default"
    frame_id: int | None = None
    captured_at: float | None = None


@dataclass(frozen=True, slots=True)
class ActionTask:
    """An action chunk wanted of a frame.

    expert: which (`action`: the first, `all`: each). num_steps: flow steps S (None: the checkpoint's own number).
    noise: x at t = 1, [horizon, action_dim] float32; None draws it from `seed` (None: a fresh seed per frame).
    """

    expert: str = "action"
    num_steps: int | None = None
    noise: np.ndarray | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.num_steps is not None:
            check_number("num_steps", self.num_steps, "an integer from 1 to 1000", 1, 1000, Integral)
        if self.seed is not None:
            check_number("seed", self.seed, "an integer of at least 0", 0, kind=Integral)


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen. temperature 0 is greedy; top_k 0 and top_p 1 switch the filters off.
    The draw depends on (seed, position in the text) alone, never on who shares the batch.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    allowed: range | None = None  # the only ids that may come, besides those that end a text (None: any)

    def __post_init__(self) -> None:
        check_number("temperature", self.temperature, "a number from 0 to 100", 0, 100)
        check_number("top_k", self.top_k, "an integer from 0 to 2**31 - 1", 0, 2**31 - 1, Integral)
        check_number("top_p", self.top_p, "a number in (0, 1]", 5e-324, 1)
        check_number("seed", self.seed, "an integer from 0 to 2**63 - 1", 0, 2**63 - 1, Integral)


@dataclass(frozen=True, slots=True)
class TextTask:
    """A text wanted of a frame; it may take many frames to finish.

    kind: name of a prompt template of the checkpoint (`subtask`, `narration`, `memory`, `answer`, ...).
    question: operator's words, for kinds whose template has a place for them.
    stop: strings that end the text (they are not part of it). deadline_s: seconds from submission until it is given up.
    priority: higher goes first when rows are scarce. ignore_eos: go on to max_new_tokens (benchmarks).
    """

    kind: str
    question: str | None = None
    max_new_tokens: int = 32
    sampling: Sampling = field(default_factory=Sampling)
    stop: tuple[str, ...] = ()
    adapter: str | None = None
    deadline_s: float | None = None
    priority: int = 0
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        check_number("max_new_tokens", self.max_new_tokens, "an integer of at least 1", 1, kind=Integral)
        check_number("priority", self.priority, "an integer", -inf, kind=Integral)
        if not isinstance(self.stop, tuple | list) or not all(isinstance(s, str) and s for s in self.stop):
            raise InvalidInput("stop", "a tuple of non-empty strings", repr(self.stop)[:80])
        if self.deadline_s is not None:
            check_number("deadline_s", self.deadline_s, "a number of seconds above 0", 5e-324)


@dataclass(frozen=True, slots=True)
class ActionResult:
    """One delivered chunk.

    actions: [horizon, robot action_dim] float64 in robot units. Times are seconds; `ready_s` counts from submission.
    """

    actions: np.ndarray
    session: str
    frame_id: int
    captured_at: float
    expert: str
    ready_s: float


@dataclass(frozen=True, slots=True)
class TextResult:
    """One finished text, with the age of what it describes.

    finish_reason: `stop` (end-of-text or a stop string), `length`, `cancelled`, `superseded`, `expired`, `dropped` or
    `closed`.
    age_frames / age_s: frames of the session begun, and seconds passed, from the frame it describes to its completion.
    """

    text: str
    token_ids: tuple[int, ...]
    kind: str
    session: str
    frame_id: int
    captured_at: float
    finish_reason: str
    age_frames: int
    age_s: float
    ttft_s: float | None
    extras: Mapping[str, Any] = field(default_factory=dict)
