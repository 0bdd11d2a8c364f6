"""`oxygen bench workloads`: texts that arrive evenly at several rates, by chance, or short and long mixed (figure
7)."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from oxygen.bench import arrivals
from oxygen.bench.arrivals import Arrivals
from oxygen.bench.command import Run, add_common, begin, numbers, positive
from oxygen.bench.estimate import Prices
from oxygen.bench.measure import Lane, Row, frame_row
from oxygen.bench.modes import Isolated, Oxygen
from oxygen.bench.probe import Rooms

COLUMNS = (
    *("workload", "mode", "k", "texts_per_frame", "frame_ms_mean", "action_ready_ms_p50", "action_ready_ms_p99"),
    *("tokens_per_s", "ttft_ms", "mean_batch", "live_texts", "answer_age_frames", "answer_age_s", "management_share"),
    "speedup",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_common(parser, frames=40)
    parser.add_argument("--k", type=positive, default=5, help="decode rounds a frame")
    parser.add_argument("--new-tokens", type=positive, default=30, help="tokens of a text (N)")
    parser.add_argument("--rates", type=numbers, default=[0.25, 0.5, 1.0, 2.0], help="texts a frame, with commas")
    parser.add_argument("--short", type=positive, default=10, help="tokens of the mixture's short texts")
    parser.add_argument("--long", type=positive, default=50, help="tokens of the mixture's long texts")


def patterns(args: argparse.Namespace) -> dict[str, Arrivals]:
    """Every workload over warm-up and measured frames."""
    n, frames = args.new_tokens, args.frames + arrivals.warm_up_frames(max(args.new_tokens, args.long), args.k)
    made: dict[str, Arrivals] = {}
    for rate in args.rates:
        made[f"uniform {rate:g}"] = arrivals.uniform(frames, n, rate)
    for rate in args.rates:
        made[f"poisson {rate:g}"] = arrivals.poisson(frames, n, rate, seed=1)
    for share in (0.2, 0.5):
        name = f"{round(100 * share)} % long ({args.short}/{args.long})"
        made[name] = arrivals.mixture(frames, args.short, args.long, share, seed=2)
    return made


def run(args: argparse.Namespace) -> int:
    run = begin("workloads", args, k=args.k, new_tokens=args.new_tokens, rates=args.rates)
    made = patterns(args)
    most = max(arrivals.max_live(pattern, args.k) for pattern in made.values())
    longest = max(args.new_tokens, args.long)
    rooms = Rooms(run.setup.open(max_contexts=most + 2, max_texts=most + 1, tail_len=longest))
    prices = Prices.measure(rooms, run.setup.frames())
    prepared = {name: prepare(run, rooms, pattern, args.k, longest) for name, pattern in made.items()}
    total = sum(prices.lanes_s(lanes, args.num_steps) for lanes in prepared.values())
    run.expect(total, f"{len(made)} workloads")
    for name, lanes in prepared.items():
        run.report.rows += measure(run, name, lanes)
    run.report.figure("rates", lambda figure: draw(figure, run.report.rows))
    run.report.finish(COLUMNS, f"workloads: {args.model} {args.dtype}, k = {args.k}, N = {args.new_tokens}")
    return 0


def prepare(run: Run, rooms: Rooms, pattern: Arrivals, k: int, longest: int) -> list[Lane]:
    """Isolated and OxyGen on the same arrivals; the frames before the balance count for neither."""
    rooms.clear()
    frames, steps = run.setup.frames(), run.setup.num_steps
    live, skipped = arrivals.max_live(pattern, k), arrivals.warm_up_frames(longest, k)
    engine = Oxygen(rooms.take(live + 1, max(1, live)), frames, steps, k, rooms.clock)
    isolated = Isolated(rooms.take(1, 1), frames, steps, rooms.clock)
    return [
        Lane(isolated, pattern[skipped:], run.args.frames, warm_up=0),
        Lane(engine, pattern, run.args.frames, warm_up=skipped),
    ]


def measure(run: Run, name: str, lanes: Sequence[Lane]) -> list[Row]:
    run.alternate(f"workloads: {name}", lanes)
    lanes[1].mode.close()
    steps, horizon = run.setup.num_steps, run.setup.shape().horizon
    rows = [frame_row(lane, new_tokens=run.args.new_tokens, num_steps=steps, horizon=horizon) for lane in lanes]
    for lane, row in zip(lanes, rows, strict=True):
        seconds = [s.frame_s for s in lane.samples]
        row["workload"] = name
        row["texts_per_frame"] = round(float(np.mean([len(lengths) for lengths in lanes[0].arrivals])), 3)
        row["frame_ms_mean"] = round(1e3 * float(np.mean(seconds)), 3)
        # Frames differ here: what matters is the sum, not the frame in the middle.
        row["tokens_per_s"] = round(sum(s.verbs.tokens for s in lane.samples) / math.fsum(seconds), 3)
    for row in rows:
        row["speedup"] = round(rows[0]["frame_ms_mean"] / row["frame_ms_mean"], 3)
    return rows


def draw(figure: Any, rows: Sequence[Row]) -> None:
    """Mean frame time of both modes, by workload."""
    from oxygen.bench.plot import COLOURS, NAMES, legend

    axes = figure.subplots()
    names = list(dict.fromkeys(r["workload"] for r in rows))
    for offset, mode in ((-0.2, "isolated"), (0.2, "oxygen")):
        values = [r["frame_ms_mean"] for r in rows if r["mode"] == mode]
        axes.barh([i + offset for i in range(len(names))], values, 0.4, color=COLOURS[mode], label=NAMES[mode])
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlabel("mean frame time, ms (uniform, poisson: texts a frame)")
    legend(figure, axes)
