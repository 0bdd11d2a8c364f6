"""How long a benchmark will take, said before it starts: stages are timed once, and frames are made of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from oxygen.bench.measure import Lane
from oxygen.bench.probe import Rooms
from oxygen.bench.shapes import Frames
from oxygen.bench.stages import StageMeter

NEW_TOKENS, ROUNDS = 8, 2
"""Of the texts on which a round is timed."""


@dataclass(frozen=True, slots=True)
class Prices:
    """Seconds of each stage. act_s: of one flow step, about. Rounds between a batch of one and of `most` are
    interpolated."""

    prefill_s: float
    act_s: float
    round_one_s: float
    round_most_s: float
    most: int

    @classmethod
    def measure(cls, rooms: Rooms, frames: Frames, num_steps: int = 10) -> Prices:
        """Time every stage on all rows of a runner, the second time that it runs; the rows are free after."""
        limits = rooms.runner.limits
        most = min(limits.max_texts, limits.max_contexts, 40)
        meter = StageMeter(
            rooms.runner, frames, context_row=0, first_tail=0, new_tokens=min(NEW_TOKENS, limits.tail_len)
        )
        rounds = min(ROUNDS, limits.tail_len)
        for _ in range(2):
            meter.measure([num_steps], sorted({(1, rounds), (most, rounds)}))
        times = meter.times
        rooms.runner.forget(range(limits.max_contexts), range(limits.max_texts))
        one, many = (times.round_ms[batch, rounds][-1] / 1e3 for batch in (1, most))
        return cls(times.prefill_ms[-1] / 1e3, times.act_ms[num_steps][-1] / 1e3 / num_steps, one, many, most)

    def round_s(self, batch: float) -> float:
        if self.most == 1:
            return self.round_one_s
        return self.round_one_s + (self.round_most_s - self.round_one_s) * (batch - 1) / (self.most - 1)

    def frame_s(self, mode: str, k: int | None, lengths: Sequence[int], num_steps: int) -> float:
        """One frame of a mode with these texts (lengths in tokens; for `oxygen`, in a steady state)."""
        alone = self.prefill_s + num_steps * self.act_s
        tokens = sum(lengths)
        if mode == "oxygen":
            rounds = min(k or 1, max(lengths, default=0))
            return alone + rounds * self.round_s(max(1.0, tokens / rounds)) if rounds else alone
        if mode == "upper_bound":
            return alone + sum(min(length, k or length) for length in lengths) * self.round_one_s
        again = 0 if mode == "shared" else len(lengths)
        return alone + again * self.prefill_s + tokens * self.round_one_s

    def lanes_s(self, lanes: Iterable[Lane], num_steps: int) -> float:
        """All frames of all lanes, warm-up included."""
        return sum(
            (lane.warm_up + lane.num_frames)
            * sum(self.frame_s(lane.mode.name, lane.mode.k, lengths, num_steps) for lengths in lane.arrivals)
            / len(lane.arrivals)
            for lane in lanes
        )

    def stages_s(self, batches: Sequence[tuple[int, int]], num_steps: int) -> float:
        """All stages once, with (batch, rounds) of each decode call."""
        return self.prefill_s + num_steps * self.act_s + sum(n * self.round_s(batch) for batch, n in batches)
