"""What the scheduler knows of requests: counters and goals. Only its plan and commit change them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from oxygen.core.errors import InvalidInput, OxygenError, RequestFault
from oxygen.core.inputs import ContextInputs, EncodedTask, ModelInputs
from oxygen.core.plan import ActItem, DecodeItem, PrefillItem
from oxygen.core.tasks import Observation, TextTask

Late = tuple[EncodedTask, ContextInputs | None] | InvalidInput
"""A question encoded on a frame: tail and own context (None: the frame's context 0 will do), or why it cannot be."""


@dataclass(slots=True, eq=False)
class Context:
    """A context row in use. Its goal is to be written once; whoever reads it is counted in the row table."""

    row: int
    request_id: int
    frame_key: int
    inputs: ContextInputs
    is_written: bool = False
    readers: tuple[tuple[str, tuple[int, ...]], ...] = ()  # action experts with their tails

    def prefill(self) -> PrefillItem:
        return PrefillItem(self.request_id, self.row, self.inputs, self.frame_key, self.readers)


@dataclass(slots=True, eq=False)
class Text:
    """One text: known tokens are its prompt tail and what was sampled; computed ones have K and V on the device."""

    task_id: int
    task: TextTask
    request: Request
    encoded: EncodedTask
    deadline: float
    handle: Any  # handle and transcript are the engine's
    transcript: Any
    first_token_at: float | None = None
    frame: Request | None = None  # the frame it describes, once that has begun
    context: Context | None = None
    tail_row: int | None = None
    tokens: list[int] = field(default_factory=list)
    num_computed: int = 0
    finish_reason: str = ""
    detail: str = ""
    error: OxygenError | None = None
    age_frames: int = 0

    @property
    def limit(self) -> float:
        """When to give it up: a question does not wait for a frame for ever."""
        waits_for_frame = self.frame is None and self.request.inputs is None
        return min(self.deadline, self.request.wait_until) if waits_for_frame else self.deadline

    def decode(self) -> DecodeItem:
        assert self.context is not None and self.tail_row is not None
        return DecodeItem(
            request_id=self.request.request_id,
            task_id=self.task_id,
            context_row=self.context.row,
            context_len=self.encoded.context_len or self.context.inputs.num_tokens,
            tail_row=self.tail_row,
            num_computed=self.num_computed,
            pending=(*self.encoded.tail_ids, *self.tokens)[self.num_computed :],
            num_generated=len(self.tokens),
            max_tokens=self.task.max_new_tokens - len(self.tokens),
            sampling=self.task.sampling,
        )

    def gain(self, tokens: list[int]) -> None:
        """Take sampled tokens; all known tokens but the last have been through the model now."""
        self.tokens += tokens
        self.num_computed = len(self.encoded.tail_ids) + len(self.tokens) - 1


@dataclass(slots=True, eq=False)
class Request:
    """A frame with its tasks; or a late question: then inputs is None, and late goes by the frame's request id."""

    request_id: int
    session: str
    submitted_at: float
    frame_id: int = -1
    captured_at: float = 0.0
    observation: Observation | None = None
    inputs: ModelInputs | None = None
    actions: list[ActItem] = field(default_factory=list)  # complete but for the context row
    chunks: dict[int, Any] = field(default_factory=dict)  # the engine's futures, by task id
    texts: list[Text] = field(default_factory=list)
    is_acting: bool = False  # chunks are wanted and not delivered yet
    action_error: OxygenError | None = None
    num_open: int = 0
    ordinal: int = 0  # among the session's frames begun
    late: dict[int, Late] = field(default_factory=dict)
    wanted_frame: int | None = None
    max_age_s: float | None = None
    wait_until: float = 0.0

    def suits(self, frame: Request) -> bool:
        """Whether this question may read a frame: asked for, encoded on it, and it was fresh enough when asked."""
        is_fresh = self.max_age_s is None or self.submitted_at - frame.submitted_at <= self.max_age_s
        return is_fresh and self.wanted_frame in (None, frame.frame_id) and frame.request_id in self.late


@dataclass(slots=True, eq=False)
class Session:
    """One robot: its newest frame as submitted, the latest context held for late questions, questions that wait."""

    last_seen: float
    newest: Request | None = None
    held: Context | None = None
    held_frame: Request | None = None
    held_until: float = 0.0
    asks: list[Request] = field(default_factory=list)
    num_submitted: int = 0
    num_frames: int = 0
    num_open: int = 0


@dataclass(slots=True, eq=False)
class Outcome:
    """What a step did, for commit. tokens and finished go by task id, faults by request id."""

    to_write: set[int] = field(default_factory=set)  # planned context rows not written yet
    faults: dict[int, RequestFault] = field(default_factory=dict)
    tokens: dict[int, list[int]] = field(default_factory=dict)
    finished: dict[int, str] = field(default_factory=dict)
    rounds: int = 0
    base_s: float = 0.0  # the step but for its rounds
    decode_s: float = 0.0
    host_s: float = 0.0  # what bookkeeping took of the rounds
