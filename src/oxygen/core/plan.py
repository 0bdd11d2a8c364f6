"""One step's work as integers, and the runner that carries it out. Scheduler and runtime meet here and nowhere else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from oxygen.core.inputs import ContextInputs
from oxygen.core.tasks import Sampling


@dataclass(frozen=True, slots=True, eq=False)
class PrefillItem:
    """Write one context. Items with the same `frame_key` show the same pictures: their embeddings are computed once."""

    request_id: int
    context_row: int
    inputs: ContextInputs
    frame_key: int
    readers: tuple[tuple[str, tuple[int, ...]], ...] = ()  # this step's action experts, each with its private tokens


@dataclass(frozen=True, slots=True, eq=False)
class ActItem:
    """One action chunk from one context. noise: [horizon, action_dim] float32 (x at t = 1)."""

    request_id: int
    task_id: int
    context_row: int
    context_len: int
    expert: str
    num_steps: int
    noise: np.ndarray
    tail_ids: tuple[int, ...] = ()
    state: np.ndarray | None = None


@dataclass(frozen=True, slots=True)
class DecodeItem:
    """One live text in one step.

    num_computed: tail positions whose K and V exist. pending: known tokens after those (the prompt tail at first, later
    the last sampled token; empty for a text that starts straight from its context's last hidden state).
    num_generated: tokens sampled so far, the position of the next draw. max_tokens: how many it may still gain.
    """

    request_id: int
    task_id: int
    context_row: int
    context_len: int
    tail_row: int
    num_computed: int
    pending: tuple[int, ...]
    num_generated: int
    max_tokens: int
    sampling: Sampling


@dataclass(frozen=True, slots=True)
class StepPlan:
    """All work of one step, in the order in which it runs.

    prefill: contexts that actions read. act: chunks. prefill_text: contexts that only text reads (after the actions
    left). decode: live texts. rounds: tokens that each may gain in this step.
    """

    prefill: tuple[PrefillItem, ...] = ()
    act: tuple[ActItem, ...] = ()
    prefill_text: tuple[PrefillItem, ...] = ()
    decode: tuple[DecodeItem, ...] = ()
    rounds: int = 0


AfterRound = Callable[[Sequence[int]], Sequence[bool]]
"""Called between rounds with one sampled token per text still in the batch (item order); says which of them go on."""


class ExpertLimits(NamedTuple):
    """One action expert's chunk, and its flow steps where a task names none."""

    name: str
    horizon: int
    action_dim: int
    num_steps: int


@dataclass(frozen=True, slots=True)
class RunnerLimits:
    """Sizes fixed when the device storage was allocated. horizon, action_dim, num_steps: of the first action expert."""

    max_contexts: int
    max_texts: int
    context_len: int
    tail_len: int
    horizon: int
    action_dim: int
    num_steps: int
    vocab_size: int
    eos_ids: tuple[int, ...]
    bytes_per_context: int = 0
    experts: tuple[ExpertLimits, ...] = ()  # empty: one, under whatever name it is asked for


class Runner(Protocol):
    """Carries out a plan's items on a device. One thread calls it. Three verbs; everything else is bookkeeping.

    A fault that belongs to one item is raised as RequestFault; anything else raised is a fault of the device.
    """

    @property
    def limits(self) -> RunnerLimits: ...

    def prefill(self, items: Sequence[PrefillItem]) -> None:
        """Write each item's context into its row."""

    def act(self, items: Sequence[ActItem]) -> list[np.ndarray]:
        """Return each item's chunk, [horizon, action_dim] float32, in the model's normalised units."""

    def decode(self, items: Sequence[DecodeItem], rounds: int, after_round: AfterRound) -> None:
        """Give each text up to `rounds` tokens, all texts in one batch; `after_round` decides who stays."""

    def forget(self, context_rows: Sequence[int], tail_rows: Sequence[int]) -> None:
        """These rows are free now. Storage that poisons freed rows (tests) does so here."""

    def close(self) -> None: ...
