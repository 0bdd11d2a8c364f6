"""What comes in and what is wanted of it: observations, action tasks and text tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from oxygen.core.errors import InvalidInput


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

    expert: of which expert (`action`: the first, `all`: each). num_steps: flow steps S (None: the checkpoint's own
    number).
    noise: x at t = 1, [horizon, action_dim] float32; None draws it from `seed` (None: a fresh seed per frame).
    """

    expert: str = "action"
    num_steps: int | None = None
    noise: np.ndarray | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.num_steps is not None and not 1 <= self.num_steps <= 1000:
            raise InvalidInput("num_steps", "an integer from 1 to 1000", repr(self.num_steps))


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen. temperature 0 is greedy; top_k 0 and top_p 1 switch the filters off.

    The draw depends on (seed, position in the text) alone, never on who shares the batch.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0.0 <= self.temperature <= 100.0:
            raise InvalidInput("temperature", "a number from 0 to 100", repr(self.temperature))
        if self.top_k < 0:
            raise InvalidInput("top_k", "an integer of at least 0", repr(self.top_k))
        if not 0.0 < self.top_p <= 1.0:
            raise InvalidInput("top_p", "a number in (0, 1]", repr(self.top_p))
        if not 0 <= self.seed < 2**63:
            raise InvalidInput("seed", "an integer from 0 to 2**63 - 1", repr(self.seed))


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
        if self.max_new_tokens < 1:
            raise InvalidInput("max_new_tokens", "an integer of at least 1", repr(self.max_new_tokens))
        if isinstance(self.stop, str) or any(not s for s in self.stop):
            raise InvalidInput("stop", "a tuple of non-empty strings", repr(self.stop))
        if self.deadline_s is not None and not self.deadline_s > 0:
            raise InvalidInput("deadline_s", "a number of seconds above 0", repr(self.deadline_s))


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
