"""A runner seen through a window: some of its rows, its verbs timed. Several modes share one set of weights this
way."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from oxygen.core.errors import InvalidInput
from oxygen.core.plan import ActItem, AfterRound, DecodeItem, PrefillItem, Runner, RunnerLimits


@dataclass(slots=True)
class VerbTimes:
    """Seconds inside the verbs of one frame. host_s: of `decode_s`, what the caller's after-round code took."""

    prefill_s: float = 0.0
    act_s: float = 0.0
    decode_s: float = 0.0
    host_s: float = 0.0
    rounds: int = 0
    tokens: int = 0

    @property
    def runner_s(self) -> float:
        return self.prefill_s + self.act_s + self.decode_s - self.host_s


class Probe:
    """The rows [first_context, + max_contexts) and [first_text, + max_texts) of a runner, as a runner of its own.

    `times` collects until `take`. contexts_live: (row of the whole runner, length) that texts of the last decode call
    go on reading. The two or three microseconds that moving an item costs count as the runner's.
    """

    def __init__(
        self,
        runner: Runner,
        *,
        first_context: int,
        max_contexts: int,
        first_text: int,
        max_texts: int,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._runner, self._clock = runner, clock
        self.first_context, self.first_text = first_context, first_text
        self.limits: RunnerLimits = replace(runner.limits, max_contexts=max_contexts, max_texts=max_texts)
        self.times = VerbTimes()
        self.contexts_live: list[tuple[int, int]] = []

    def take(self) -> VerbTimes:
        """Return what was collected since the last call."""
        times, self.times = self.times, VerbTimes()
        return times

    def prefill(self, items: Sequence[PrefillItem]) -> None:
        started = self._clock()
        self._runner.prefill([replace(i, context_row=i.context_row + self.first_context) for i in items])
        self.times.prefill_s += self._clock() - started

    def act(self, items: Sequence[ActItem]) -> list[np.ndarray]:
        started = self._clock()
        chunks = self._runner.act([replace(i, context_row=i.context_row + self.first_context) for i in items])
        self.times.act_s += self._clock() - started
        return chunks

    def decode(self, items: Sequence[DecodeItem], rounds: int, after_round: AfterRound) -> None:
        times, clock = self.times, self._clock

        def counted(tokens: Sequence[int]) -> Sequence[bool]:
            entered = clock()
            times.rounds += 1
            times.tokens += len(tokens)
            stays = after_round(tokens)
            times.host_s += clock() - entered
            return stays

        started = clock()
        moved = [
            replace(i, context_row=i.context_row + self.first_context, tail_row=i.tail_row + self.first_text)
            for i in items
        ]
        self._runner.decode(moved, rounds, counted)
        times.decode_s += clock() - started
        self.contexts_live = [(i.context_row, i.context_len) for i in moved if i.max_tokens > rounds]

    def forget(self, context_rows: Sequence[int], tail_rows: Sequence[int]) -> None:
        self._runner.forget([r + self.first_context for r in context_rows], [r + self.first_text for r in tail_rows])

    def close(self) -> None:
        """Leave the runner open: others look at it, too."""


class Rooms:
    """Hands out the rows of one runner to its probes, one after another."""

    def __init__(self, runner: Runner, clock: Callable[[], float] = time.perf_counter) -> None:
        self.runner, self.clock = runner, clock
        self.clear()

    def clear(self) -> None:
        """Every row is free to be handed out again."""
        self._next_context = self._next_text = 0

    def take(self, max_contexts: int, max_texts: int) -> Probe:
        limits = self.runner.limits
        first_context, first_text = self._next_context, self._next_text
        self._next_context += max_contexts
        self._next_text += max_texts
        if self._next_context > limits.max_contexts or self._next_text > limits.max_texts:
            have = f"{limits.max_contexts} context and {limits.max_texts} tail rows"
            raise InvalidInput("rows", have, f"a need of {self._next_context} and {self._next_text}")
        return Probe(
            self.runner,
            first_context=first_context,
            max_contexts=max_contexts,
            first_text=first_text,
            max_texts=max_texts,
            clock=self.clock,
        )
