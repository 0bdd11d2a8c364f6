"""What each stage costs by itself, through the runner's verbs: the parts of which an ideal frame is made."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from oxygen.bench.shapes import Frames
from oxygen.core.plan import DecodeItem, PrefillItem, Runner
from oxygen.core.tasks import Sampling

_frame_keys = itertools.count(2_000_000)


@dataclass(slots=True)
class StageTimes:
    """Milliseconds, one entry per measurement. round_ms by (batch, rounds in one call). prefill contains vision.
    act_ms: all experts, by flow steps; expert_ms: each of them, by name."""

    prefill_ms: list[float] = field(default_factory=list)
    vision_ms: list[float] = field(default_factory=list)
    act_ms: dict[int, list[float]] = field(default_factory=dict)
    expert_ms: dict[str, list[float]] = field(default_factory=dict)
    round_ms: dict[tuple[int, int], list[float]] = field(default_factory=dict)


class StageMeter:
    """Measures stages on rows of its own: one context row to write, and tail rows from `first_tail` on.

    Decoding reads its own context, and those of `borrow` (row, length): other modes' live ones, which it leaves as they
    are. Where these are fewer than texts decode together, some share one.
    """

    def __init__(
        self,
        runner: Runner,
        frames: Frames,
        *,
        context_row: int,
        first_tail: int,
        new_tokens: int,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._runner, self._frames, self._clock = runner, frames, clock
        self._row, self._tail, self._new_tokens = context_row, first_tail, new_tokens
        self._timings: Any = getattr(runner, "timings", None)
        self.times = StageTimes()
        self.contexts: list[tuple[int, int]] = []

    def borrow(self, contexts: Sequence[tuple[int, int]]) -> None:
        self.contexts = sorted(contexts)

    def fill(self, count: int, first_row: int) -> None:
        """Write contexts of one's own for decoding to read."""
        self.contexts = []
        for row in range(first_row, first_row + count):
            inputs = self._frames.make()
            self._runner.prefill([PrefillItem(0, row, inputs, next(_frame_keys))])
            self.contexts.append((row, inputs.num_tokens))

    def measure(self, num_steps: Sequence[int], rounds: Sequence[tuple[int, int]]) -> None:
        """Measure prefill, act for each number of steps, and decoding for each (batch, rounds), once."""
        if self._timings is not None:
            self._timings.synchronize = True
        try:
            context_len = self._prefill()
            contexts = [*self.contexts, (self._row, context_len)]
            for steps in num_steps:
                self.times.act_ms.setdefault(steps, []).append(self._act(steps))
            for batch, count in rounds:
                self.times.round_ms.setdefault((batch, count), []).append(self._rounds(contexts, batch, count))
        finally:
            if self._timings is not None:
                self._timings.synchronize = False

    def _prefill(self) -> int:
        inputs = self._frames.make()
        self._runner.forget([self._row], [])
        item = PrefillItem(0, self._row, inputs, next(_frame_keys), self._frames.readers)
        self.times.prefill_ms.append(self._timed(lambda: self._runner.prefill([item])))
        if self._timings is not None:
            self.times.vision_ms.append(1e3 * self._timings.stages["vision"].last_s)
        return inputs.num_tokens

    def _act(self, num_steps: int) -> float:
        """Milliseconds of all chunks, one after another; each right after the prefill whose hidden states it may
        read."""
        total = 0.0
        for item in self._frames.chunks(self._runner.limits, self._row, num_steps):
            taken = self._timed(lambda item=item: self._runner.act([item]))  # type: ignore[misc]
            self.times.expert_ms.setdefault(item.expert, []).append(taken)
            total += taken
        return total

    def _rounds(self, contexts: Sequence[tuple[int, int]], batch: int, count: int) -> float:
        """Milliseconds of one round of `batch` texts of all ages, `count` rounds in one call."""
        items = []
        for i in range(batch):
            row, length = contexts[i % len(contexts)]
            computed = min(self._new_tokens - count, i * self._new_tokens // batch)
            items.append(DecodeItem(i, i, row, length, self._tail + i, computed, (7,), computed + 1, count, Sampling()))
        left = count

        def after_round(tokens: Sequence[int]) -> list[bool]:
            nonlocal left
            left -= 1
            return [left > 0] * len(tokens)

        return self._timed(lambda: self._runner.decode(items, count, after_round)) / count

    def _timed(self, work: Callable[[], object]) -> float:
        started = self._clock()
        work()
        return 1e3 * (self._clock() - started)
