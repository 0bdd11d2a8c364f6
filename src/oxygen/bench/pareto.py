"""`oxygen bench pareto`: action frequency against tokens per second, over k and N (figures 4 and 9 of the paper)."""

from __future__ import annotations

import argparse
from typing import Any

from oxygen.bench import plot
from oxygen.bench.command import add_common, begin, integers, positive
from oxygen.bench.stand import Point
from oxygen.bench.sweep import sweep
from oxygen.bench.words import FRAME

MODES = ("isolated", "parallel", "oxygen")
COLUMNS = ("new_tokens", *FRAME)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_common(parser, frames=24)
    parser.add_argument("--rounds", type=integers, default=[1, 5, 10], help="decode rounds a frame (k)")
    parser.add_argument("--new-tokens", type=integers, default=[5, 10, 20, 30, 50], help="tokens of a text (N)")
    parser.add_argument(
        "--baseline-frames",
        type=positive,
        default=None,
        help="frames of each baseline (default: a quarter, at least 3)",
    )
    parser.add_argument("--no-parallel", action="store_true", help="leave the two-process baseline out")


def run(args: argparse.Namespace) -> int:
    run = begin("pareto", args, new_tokens=args.new_tokens, rounds=args.rounds)
    points = [Point(n, tuple(k for k in args.rounds if k <= n), args.num_steps, MODES) for n in args.new_tokens]
    points = [point for point in points if point.rounds]
    run.report.rows = sweep(run, points)
    run.report.figure("frontier", lambda figure: draw(figure, run.report.rows))
    run.report.finish(COLUMNS, f"pareto: {args.model} {args.dtype}")
    return 0


def draw(figure: Any, rows: list[dict[str, Any]]) -> None:
    """A line per mode and k through all N: further to the upper right is better."""
    axes = figure.subplots()
    for mode in ("isolated", "parallel"):
        plot.lines(axes, [r for r in rows if r["mode"] == mode], "tokens_per_s", "action_hz", mode=mode)
    ks = sorted({r["k"] for r in rows if r["mode"] == "oxygen"})
    for shade, k in zip(plot.shades(len(ks)), ks, strict=True):
        points = sorted((r["tokens_per_s"], r["action_hz"]) for r in rows if r["mode"] == "oxygen" and r["k"] == k)
        axes.plot(*zip(*points, strict=True), marker="o", color=shade, label=f"OxyGen, k = {k}")
    axes.set_xlabel("text, tokens per second (at each point: N, the tokens of a text)")
    axes.set_ylabel("actions per second, H/T")
    for r in rows:
        at = (r["tokens_per_s"], r["action_hz"])
        axes.annotate(str(r["new_tokens"]), at, (4, 4), textcoords="offset points", fontsize="x-small")
    plot.legend(figure, axes)
