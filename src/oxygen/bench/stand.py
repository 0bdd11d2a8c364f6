"""One operating point: which modes take part, who has which rows of the runner, whose turn is how often, and the
rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from oxygen.bench.command import Run
from oxygen.bench.estimate import Prices
from oxygen.bench.measure import (
    Lane,
    expected_batch,
    fold_ideal,
    frame_row,
    is_due,
    put,
    speedups,
    spread,
    steady_lane,
)
from oxygen.bench.modes import Isolated, Oxygen, Shared, UpperBound
from oxygen.bench.parallel import Pair, Parallel, variants
from oxygen.bench.probe import Probe, Rooms
from oxygen.bench.stages import StageMeter, StageTimes

ALL = ("isolated", "parallel", "shared", "upper_bound", "oxygen")
ALONE = "actions alone"


@dataclass(frozen=True, slots=True)
class Point:
    """One text of new_tokens (N) with every frame, for each k of rounds.

    modes: those that take part. is_metered: stages are measured between frames. with_alone: also an engine without
    texts.
    """

    new_tokens: int
    rounds: tuple[int, ...]
    num_steps: int = 10
    modes: tuple[str, ...] = ALL
    is_metered: bool = False
    with_alone: bool = False

    def batch(self, k: int) -> int:
        return expected_batch(self.new_tokens, k)

    def rows_needed(self) -> tuple[int, int]:
        """Context rows and tail rows that a Stand of this point takes."""
        live = sum(self.batch(k) + 1 for k in self.rounds)
        return live + 4, live + 2 + max(self.batch(k) for k in self.rounds)


def room_for(points: Sequence[Point]) -> dict[str, int]:
    """Sizes of a runner on which each of these points finds room, one after another."""
    needs = [point.rows_needed() for point in points]
    return {
        "max_contexts": max(contexts for contexts, _ in needs),
        "max_texts": max(texts for _, texts in needs),
        "tail_len": max(point.new_tokens for point in points),
    }


class Stand:
    """The lanes of a point. `measure` runs them, `rows` tells what came of it."""

    def __init__(self, run: Run, rooms: Rooms, point: Point, pair: Pair | None = None) -> None:
        rooms.clear()
        self.run, self.rooms, self.point, self.pair = run, rooms, point, pair
        self.num_few = getattr(run.args, "baseline_frames", None) or max(3, run.args.frames // 4)
        self.lanes: list[Lane] = []
        self.probes: dict[int, Probe] = {}
        self.engines: list[Oxygen] = []
        self._frames = run.setup.frames()
        self._add_baselines()
        for k in sorted(point.rounds):
            self._add_rounds(k)
        if point.with_alone:
            alone = Oxygen(rooms.take(2, 1), self._frames, point.num_steps, min(point.rounds), rooms.clock)
            self.engines.append(alone)
            self.lanes.append(Lane(alone, [()], run.args.frames, label=ALONE))
        self.meter = self._meter() if point.is_metered else None

    def _add_baselines(self) -> None:
        point, rooms = self.point, self.rooms
        self._one = rooms.take(1, 1)
        for kind in (Isolated, Shared):
            if kind.name in point.modes:
                mode = kind(self._one, self._frames, point.num_steps, rooms.clock)
                self.lanes.append(steady_lane(mode, point.new_tokens, self.num_few))
        if self.pair is not None and "parallel" in point.modes:
            options = variants(self.pair.cores) if self.pair.is_cpu else (0,)
            for threads in options:
                # Two processes that both use all cores mostly wait for each other: a few frames show it well enough.
                count = self.num_few if threads == options[0] else 3
                label = f"threads of each process: {threads}" if threads else ""
                pair_mode = Parallel(self.pair, point.num_steps, threads)
                lane = steady_lane(pair_mode, point.new_tokens, count, label=label)
                lane.warm_up = 1
                self.lanes.append(lane)

    def _add_rounds(self, k: int) -> None:
        point, rooms = self.point, self.rooms
        if "upper_bound" in point.modes:
            bound = UpperBound(self._one, self._frames, point.num_steps, k, rooms.clock)
            self.lanes.append(steady_lane(bound, point.new_tokens, self.num_few))
        if "oxygen" in point.modes:
            self.probes[k] = rooms.take(point.batch(k) + 1, point.batch(k) + 1)
            engine = Oxygen(self.probes[k], self._frames, point.num_steps, k, rooms.clock)
            self.engines.append(engine)
            self.lanes.append(steady_lane(engine, point.new_tokens, self.run.args.frames))

    def _meter(self) -> StageMeter:
        rows = self.rooms.take(1, max(self.point.batch(k) for k in self.point.rounds))
        return StageMeter(
            self.rooms.runner,
            self._frames,
            context_row=rows.first_context,
            first_tail=rows.first_text,
            new_tokens=self.point.new_tokens,
            clock=self.rooms.clock,
        )

    def expected_s(self, prices: Prices) -> float:
        """Seconds that `measure` will take."""
        stages = prices.stages_s(self._calls(), self.point.num_steps) if self.meter is not None else 0.0
        return prices.lanes_s(self.lanes, self.point.num_steps) + (self.num_few + 1) * stages

    def _calls(self) -> list[tuple[int, int]]:
        """(batch, rounds) of the decode calls that are timed by themselves."""
        point = self.point
        return sorted({*((point.batch(k), min(k, point.new_tokens)) for k in point.rounds), (1, self._alone_rounds)})

    def measure(self, title: str, beside: Callable[[], object] = lambda: None) -> None:
        """Run all lanes; between them, as often as a baseline's turn comes, the stages by themselves (and `beside`)."""
        point, meter, clock_turns = self.point, self.meter, max(lane.num_frames for lane in self.lanes)
        wanted = self._calls()

        def between(turn: int) -> None:
            if meter is None:
                return
            meter.borrow(self.probes[min(point.rounds)].contexts_live)
            if turn == 0:
                meter.measure([point.num_steps], wanted)
                meter.times = StageTimes()
            if is_due(turn, self.num_few, clock_turns):
                beside()
                meter.measure([point.num_steps], wanted)

        self.run.alternate(title, self.lanes, between)
        for engine in self.engines:
            engine.close()

    @property
    def _alone_rounds(self) -> int:
        """Rounds in one call where a text decodes alone and its round is to be timed."""
        return min(5, self.point.new_tokens)

    def rows(self) -> list[dict[str, Any]]:
        """The rows of all modes. Of the parallel variants the quicker counts, and the other is named in it."""
        point, horizon = self.point, self.rooms.runner.limits.horizon
        rows = [
            frame_row(lane, new_tokens=point.new_tokens, num_steps=point.num_steps, horizon=horizon)
            for lane in self.lanes
            if lane.label != ALONE
        ]
        parallel = sorted((r for r in rows if r["mode"] == "parallel"), key=lambda r: r["frame_ms"])
        if self.pair is not None and parallel:
            parallel[0]["peak_bytes"] = self.pair.peak_bytes()
            parallel[0]["variants"] = {r.get("label", ""): r["frame_ms"] for r in parallel}
        rows = [r for r in rows if r["mode"] != "parallel" or r is parallel[0]]
        for row in rows:
            if row["mode"] == "oxygen":
                self._check_steady(row)
        if self.meter is not None:
            for row in rows:
                self._add_stages(row, self.meter.times)
        if rows and rows[0]["mode"] == "isolated":
            speedups(rows, rows[0])
        return rows

    def _check_steady(self, row: dict[str, Any]) -> None:
        """Write the batch that a steady state has, N/k, and warn where another one was measured."""
        row["steady_batch"] = round(row["new_tokens"] / min(row["k"], row["new_tokens"]), 3)
        if abs(row["mean_batch"] / row["steady_batch"] - 1) > 0.02:
            self.run.report.note(
                f"caution: N = {row['new_tokens']}, k = {row['k']}: {row['mean_batch']} texts decoded together, a"
                f" steady state has {row['steady_batch']}"
            )

    def _add_stages(self, row: dict[str, Any], times: StageTimes) -> None:
        """Write the stage times into a row, and the ideal frame they make."""
        k, n, steps = row["k"], self.point.new_tokens, self.point.num_steps
        rounds = min(k, n) if k else n
        is_oxygen = row["mode"] == "oxygen"
        round_ms = times.round_ms[(self.point.batch(k), rounds) if is_oxygen else (1, self._alone_rounds)]
        put(row, "prefill_ms", times.prefill_ms)
        put(row, "vision_ms", times.vision_ms)
        put(row, "act_ms", times.act_ms[steps])
        put(row, "round_ms", round_ms)
        fold_ideal(row, row["prefill_ms"], row["act_ms"], row["round_ms"], rounds)
        parts = zip(times.prefill_ms, times.act_ms[steps], round_ms, strict=True)
        row["ideal_frame_ms_spread"] = round(spread([p + a + rounds * r for p, a, r in parts]) or 0.0, 3)
