"""`oxygen bench ablation`: what sharing brings and what batching brings, over N (figure 6 of the paper)."""

from __future__ import annotations

import argparse
from typing import Any

from oxygen.bench import plot
from oxygen.bench.command import add_common, begin, integers, positive
from oxygen.bench.stand import ALL, Point
from oxygen.bench.sweep import sweep
from oxygen.bench.words import FRAME

COLUMNS = ("new_tokens", *FRAME)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_common(parser, frames=24)
    parser.add_argument("--new-tokens", type=integers, default=[5, 10, 20, 30], help="tokens of a text (N)")
    parser.add_argument("--k", type=positive, default=5, help="decode rounds a frame")
    parser.add_argument(
        "--baseline-frames",
        type=positive,
        default=None,
        help="frames of each baseline (default: a quarter, at least 3)",
    )
    parser.add_argument("--no-parallel", action="store_true", help="leave the two-process baseline out")


def run(args: argparse.Namespace) -> int:
    run = begin("ablation", args, new_tokens=args.new_tokens, k=args.k)
    points = [Point(n, (min(n, args.k),), args.num_steps, ALL, is_metered=True) for n in args.new_tokens]
    run.report.rows = sweep(run, points)
    run.report.figure("bars", lambda figure: draw(figure, run.report.rows))
    run.report.finish(COLUMNS, f"ablation: {args.model} {args.dtype}, k = {args.k}")
    return 0


def draw(figure: Any, rows: list[dict[str, Any]]) -> None:
    """Action frequency of each mode, grouped by N."""
    axes = figure.subplots()
    lengths = sorted({r["new_tokens"] for r in rows})
    modes = [m for m in plot.NAMES if any(r["mode"] == m for r in rows)]
    width = 0.8 / len(modes)
    for i, mode in enumerate(modes):
        found = {r["new_tokens"]: r["action_hz"] for r in rows if r["mode"] == mode}
        places = [j + (i - (len(modes) - 1) / 2) * width for j in range(len(lengths))]
        axes.bar(places, [found.get(n, 0) for n in lengths], width, color=plot.COLOURS[mode], label=plot.NAMES[mode])
    axes.set_xticks(range(len(lengths)), [str(n) for n in lengths])
    axes.set_xlabel("tokens of a text, N")
    axes.set_ylabel("actions per second, H/T")
    plot.legend(figure, axes)
