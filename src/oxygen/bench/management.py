"""`oxygen bench management`: what keeping the batch costs at 6 and at 30 live texts, by part (table 7 of the paper)."""

from __future__ import annotations

import argparse
from typing import Any

from oxygen.bench.command import add_common, begin, integers
from oxygen.bench.estimate import Prices
from oxygen.bench.measure import Row, frame_row, put, steady_lane
from oxygen.bench.modes import Oxygen
from oxygen.bench.probe import Rooms

PARTS = ("plan", "deliver", "rounds", "commit", "deliver_text", "rest")
"""plan: also admission and freed rows. rounds: tokens taken between decode rounds. rest: submitting, ticket, record."""
COLUMNS = (
    *("live_texts", "k", "frame_ms", "management_ms", "management_ms_spread", "management_share"),
    *(f"{part}_ms" for part in PARTS),
    "kv_bytes_copied",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_common(parser, frames=100)
    parser.add_argument("--live", type=integers, default=[6, 30], help="live texts, with commas")
    parser.add_argument("--k", type=integers, default=[1, 5], help="decode rounds a frame, with commas")


def run(args: argparse.Namespace) -> int:
    run = begin("management", args, live=args.live, k=args.k)
    points = [(live, k) for live in args.live for k in args.k]
    room = sum(live + 1 for live, _ in points)
    tail_len = max(live * k for live, k in points)
    rooms = Rooms(run.setup.open(max_contexts=room, max_texts=room, tail_len=tail_len))
    prices = Prices.measure(rooms, run.setup.frames())
    engines = [
        Oxygen(rooms.take(live + 1, live + 1), run.setup.frames(), args.num_steps, k, rooms.clock) for live, k in points
    ]
    lanes = [steady_lane(engine, live * k, args.frames) for engine, (live, k) in zip(engines, points, strict=True)]
    run.expect(prices.lanes_s(lanes, args.num_steps), f"{len(points)} points")
    run.alternate("management", lanes)
    for engine, lane, (live, k) in zip(engines, lanes, points, strict=True):
        engine.close()
        row: Row = frame_row(lane, new_tokens=live * k, num_steps=args.num_steps, horizon=rooms.runner.limits.horizon)
        for part in PARTS:
            put(row, f"{part}_ms", [1e3 * s.parts[part] for s in lane.samples], digits=4)
        row["kv_bytes_copied"] = 0  # contexts and tails are read where they lie; no verb moves a row
        run.report.rows.append(row)
    run.report.note("the paper reports 17.5 % (JAX) and 6.6 % (PyTorch) of the frame for the same duty")
    run.report.figure("parts", lambda figure: draw(figure, run.report.rows))
    run.report.finish(COLUMNS, f"management: {args.model} {args.dtype}")
    return 0


def draw(figure: Any, rows: list[Row]) -> None:
    from oxygen.bench.plot import legend

    axes = figure.subplots()
    names = [f"{r['live_texts']:.0f} live, k = {r['k']}" for r in rows]
    left = [0.0] * len(rows)
    for part in PARTS:
        values = [r[f"{part}_ms"] for r in rows]
        axes.barh(names, values, left=left, label=part.replace("_", " "))
        left = [a + b for a, b in zip(left, values, strict=True)]
    axes.invert_yaxis()
    axes.set_xlabel("time of a frame outside the model, ms")
    legend(figure, axes)
