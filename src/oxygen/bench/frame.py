"""`oxygen bench frame`: one operating point, all modes side by side, alternating within one run on the same weights."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from oxygen.bench.command import LANES, Run, add_common, begin, integers, positive
from oxygen.bench.costs import DTYPE_BYTES, act, decode, prefill
from oxygen.bench.measure import (
    Lane,
    expected_batch,
    fold_ideal,
    frame_row,
    is_due,
    median,
    put,
    speedups,
    spread,
    steady_lane,
)
from oxygen.bench.modes import Isolated, Oxygen, Shared, UpperBound
from oxygen.bench.parallel import Pair, Parallel, open_pair, variants
from oxygen.bench.probe import Probe, Rooms
from oxygen.bench.stages import StageMeter, StageTimes

ALONE = "actions alone"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_common(parser)
    parser.add_argument("--new-tokens", type=positive, default=30, help="tokens of a text (N)")
    parser.add_argument("--rounds", type=integers, default=[1, 5, 10], help="decode rounds a frame (k), with commas")
    parser.add_argument("--baseline-frames", type=positive, default=None, help="frames of each baseline")
    parser.add_argument("--no-parallel", action="store_true", help="leave the two-process baseline out")


class Stand:
    """All modes of one operating point on one runner: who has which rows, and whose turn is how often."""

    def __init__(self, run: Run, rooms: Rooms, new_tokens: int, rounds: Sequence[int], pair: Pair | None) -> None:
        self.run, self.rooms, self.new_tokens, self.rounds = run, rooms, new_tokens, sorted(rounds)
        args, setup = run.args, run.setup
        frames, steps, clock = setup.frames(), setup.num_steps, rooms.clock
        few = getattr(args, "baseline_frames", None) or max(3, args.frames // 4)
        self.num_measured = few
        one = rooms.take(1, 1)
        self.lanes: list[Lane] = [
            steady_lane(Isolated(one, frames, steps, clock), new_tokens, few),
            steady_lane(Shared(one, frames, steps, clock), new_tokens, few),
        ]
        if pair is not None:
            for threads in variants(pair.cores) if pair.is_cpu else (0,):
                label = f"threads of each process: {threads}" if threads else ""
                self.lanes.append(steady_lane(Parallel(pair, steps, threads), new_tokens, few, label=label))
        self.probes: dict[int, Probe] = {}
        self.engines: list[Oxygen] = []
        for k in self.rounds:
            self.lanes.append(steady_lane(UpperBound(one, frames, steps, k, clock), new_tokens, few))
            self.probes[k] = rooms.take(expected_batch(new_tokens, k) + 1, expected_batch(new_tokens, k) + 1)
            self.engines.append(Oxygen(self.probes[k], frames, steps, k, clock))
            self.lanes.append(steady_lane(self.engines[-1], new_tokens, args.frames))
        # Without texts, next to the busiest: what text costs the actions.
        alone = Oxygen(rooms.take(2, 1), frames, steps, self.rounds[0], clock)
        self.engines.append(alone)
        self.lanes.append(Lane(alone, [()], args.frames, label=ALONE))
        stage = rooms.take(1, max_batch(new_tokens, self.rounds))
        self.meter = StageMeter(
            rooms.runner,
            frames,
            context_row=stage.first_context,
            first_tail=stage.first_text,
            new_tokens=new_tokens,
            clock=clock,
        )

    def measure(self, title: str) -> StageTimes:
        """Run all of it; returns the stage times."""
        batches = [(expected_batch(self.new_tokens, k), min(k, self.new_tokens)) for k in self.rounds]
        wanted = sorted({*batches, (1, min(5, self.new_tokens))})

        def between(turn: int) -> None:
            self.meter.borrow(self.probes[self.rounds[0]].contexts_read)
            if turn == 0:
                self.meter.measure([self.run.setup.num_steps], wanted)
                self.meter.times = StageTimes()
            if is_due(turn, self.num_measured, self.run.args.frames):
                self.meter.measure([self.run.setup.num_steps], wanted)

        self.run.alternate(title, self.lanes, between)
        for engine in self.engines:
            engine.close()
        return self.meter.times

    def rows(self, times: StageTimes, pair: Pair | None) -> list[dict[str, Any]]:
        """The rows of all modes, with ideals, stages and speed-ups. Of the parallel ones the quicker counts."""
        setup, horizon = self.run.setup, self.rooms.runner.limits.horizon
        lanes = [lane for lane in self.lanes if lane.label != ALONE]
        rows = [
            frame_row(lane, new_tokens=self.new_tokens, num_steps=setup.num_steps, horizon=horizon) for lane in lanes
        ]
        parallel = sorted((r for r in rows if r["mode"] == "parallel"), key=lambda r: r["frame_ms"])
        if pair is not None and parallel:
            parallel[0]["peak_bytes"] = pair.peak_bytes()
            parallel[0]["variants"] = {r.get("label", ""): r["frame_ms"] for r in parallel}
        rows = [r for r in rows if r["mode"] != "parallel" or r is parallel[0]]
        for row in rows:
            add_stages(row, times, self.new_tokens, setup.num_steps)
        speedups(rows, rows[0])
        return rows

    def promise(self) -> dict[str, Any]:
        """Action-ready time with the texts of the smallest k live, and with none, from the same run."""
        busy = next(lane for lane in self.lanes if lane.mode.name == "oxygen" and lane.mode.k == self.rounds[0])
        alone = next(lane for lane in self.lanes if lane.label == ALONE)
        found: dict[str, Any] = {"live_texts": median([s.live for s in busy.samples])}
        put(found, "action_ready_ms", [1e3 * s.ready_s for s in busy.samples])
        put(found, "action_ready_ms_alone", [1e3 * s.ready_s for s in alone.samples])
        # Neighbours in time are compared, so that a slow minute of the machine hits both.
        pairs = [a.ready_s / b.ready_s for a, b in zip(busy.samples, alone.samples, strict=True) if b.ready_s]
        found["ratio"] = round(found["action_ready_ms"] / found["action_ready_ms_alone"], 4)
        put(found, "ratio_of_neighbours", pairs, digits=4)
        return found


def max_batch(new_tokens: int, rounds: Sequence[int]) -> int:
    return max(expected_batch(new_tokens, k) for k in rounds)


def rows_needed(new_tokens: int, rounds: Sequence[int]) -> tuple[int, int]:
    """Context and tail rows that a Stand takes."""
    live = sum(expected_batch(new_tokens, k) + 1 for k in rounds)
    return live + 4, live + 2 + max_batch(new_tokens, rounds)


def add_stages(row: dict[str, Any], times: StageTimes, new_tokens: int, num_steps: int) -> None:
    """Write the stage times into a row, and the ideal frame they make."""
    k = row["k"]
    rounds = {"oxygen": k, "upper_bound": min(k or new_tokens, new_tokens)}.get(row["mode"], new_tokens)
    batch = expected_batch(new_tokens, k) if row["mode"] == "oxygen" else 1
    count = min(k, new_tokens) if row["mode"] == "oxygen" else min(5, new_tokens)
    put(row, "prefill_ms", times.prefill_ms)
    put(row, "vision_ms", times.vision_ms)
    put(row, "act_ms", times.act_ms[num_steps])
    put(row, "round_ms", times.round_ms[batch, count])
    fold_ideal(row, row["prefill_ms"], row["act_ms"], row["round_ms"], rounds)
    frames = [
        sum(parts)
        for parts in zip(
            times.prefill_ms,
            times.act_ms[num_steps],
            [rounds * r for r in times.round_ms[batch, count]],
            strict=True,
        )
    ]
    row["ideal_frame_ms_spread"] = round(spread(frames) or 0.0, 3)


def add_floors(rows: Sequence[dict[str, Any]], run: Run) -> dict[str, Any]:
    """Write the floor of each row's frame beside it; returns the ceilings they rest on."""
    from oxygen.bench.torch.ceilings import measure_ceilings

    spec, shape, size = run.setup.spec(), run.setup.shape(), DTYPE_BYTES[run.setup.dtype]
    length = shape.context_len(spec.tokens_per_image)
    ceilings = measure_ceilings(spec, length, run.setup.dtype, run.setup.device)
    for row in rows:
        n, k = row["new_tokens"], row["k"]
        is_oxygen = row["mode"] == "oxygen"
        batch = expected_batch(n, k) if is_oxygen else 1
        rounds = min(k, n) if k else n
        prefills = 2 if row["mode"] in ("isolated", "parallel") else 1
        floor = prefills * prefill(spec, shape.num_cameras, length, size).floor_ms(ceilings)
        floor += act(spec, length, row["num_steps"], size).floor_ms(ceilings)
        floor += rounds * decode(spec, batch, length, n / 2, size).floor_ms(ceilings)
        row["floor_ms"] = round(floor, 3)
    return {"flops_per_s": ceilings.flops_per_s, "bytes_per_s": ceilings.bytes_per_s}


def run(args: argparse.Namespace) -> int:
    rounds = sorted({min(k, args.new_tokens) for k in args.rounds})
    run = begin("frame", args, new_tokens=args.new_tokens, rounds=rounds)
    contexts, texts = rows_needed(args.new_tokens, rounds)
    pair = None if args.no_parallel else open_pair(run.setup, args.new_tokens, run.report.note)
    try:
        runner = run.setup.open(max_contexts=contexts, max_texts=texts, tail_len=args.new_tokens)
        stand = Stand(run, Rooms(runner), args.new_tokens, rounds, pair)
        times = stand.measure("frame")
        run.report.rows = stand.rows(times, pair)
    finally:
        if pair is not None:
            pair.close()
    run.report.extra["actions_first"] = stand.promise()
    run.report.extra["ceilings"] = add_floors(run.report.rows, run)
    promise = run.report.extra["actions_first"]
    run.report.note(
        f"actions ready after {promise['action_ready_ms']:.1f} ms with {promise['live_texts']:.0f} live texts,"
        f" {promise['action_ready_ms_alone']:.1f} ms with none: ratio {promise['ratio']:.3f}"
    )
    run.report.figure("modes", lambda figure: draw(figure, run.report.rows))
    run.report.finish(LANES["frame"], f"frame: {args.model} {args.dtype}, N = {args.new_tokens}")
    return 0


def draw(figure: Any, rows: Sequence[dict[str, Any]]) -> None:
    """Frame time of each mode, with the ideal as a mark on its bar."""
    from oxygen.bench.plot import COLOURS, NAMES

    axes = figure.subplots()
    labels = [NAMES[r["mode"]] + (f", k = {r['k']}" if r["k"] else "") for r in rows]
    axes.barh(labels, [r["frame_ms"] for r in rows], color=[COLOURS[r["mode"]] for r in rows])
    axes.plot([r["ideal_frame_ms"] for r in rows], labels, "k|", markersize=14, label="ideal from stage costs")
    axes.invert_yaxis()
    axes.set_xlabel("frame time, ms")
    axes.legend()
