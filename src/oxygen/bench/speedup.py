"""`oxygen bench speedup`: over isolated, as maps over k x S at one N and N x S at one k, and as curves (figures 5, 10,
11)."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from oxygen.bench import plot
from oxygen.bench.command import add_common, begin, integers, positive
from oxygen.bench.stand import Point
from oxygen.bench.sweep import sweep
from oxygen.bench.words import FRAME

COLUMNS = ("new_tokens", "num_steps", *FRAME)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_common(parser, frames=20)
    parser.add_argument("--rounds", type=integers, default=[1, 2, 5, 10, 30], help="decode rounds a frame (k)")
    parser.add_argument("--new-tokens", type=integers, default=[5, 10, 20, 30], help="tokens of a text (N)")
    parser.add_argument("--steps", type=integers, default=[5, 10, 20], help="flow steps (S)")
    parser.add_argument("--at-tokens", type=positive, default=30, help="N of the map over k and S")
    parser.add_argument("--at-rounds", type=positive, default=5, help="k of the map over N and S")
    parser.add_argument(
        "--baseline-frames",
        type=positive,
        default=None,
        help="frames of the isolated baseline (default: a quarter, at least 3)",
    )


def run(args: argparse.Namespace) -> int:
    run = begin("speedup", args, new_tokens=args.new_tokens, rounds=args.rounds, steps=args.steps)
    modes = ("isolated", "oxygen")
    over_k = tuple(k for k in args.rounds if k <= args.at_tokens)
    points = [Point(args.at_tokens, over_k, s, modes) for s in args.steps]
    lengths = [n for n in args.new_tokens if n != args.at_tokens or args.at_rounds not in over_k]
    points += [Point(n, (min(n, args.at_rounds),), s, modes) for n in lengths for s in args.steps]
    report = run.report
    report.rows = sweep(run, points)
    report.figure("maps", lambda figure: draw_maps(figure, report.rows, args))
    report.figure("curves", lambda figure: draw_curves(figure, report.rows, args))
    report.finish(COLUMNS, f"speed-up over isolated: {args.model} {args.dtype}")
    return 0


def speed(rows: Sequence[dict[str, Any]], n: int, k: int, s: int) -> float | None:
    """Speed-up of OxyGen at a point, None where it was not measured."""
    wanted = ("oxygen", n, min(k, n), s)
    return next((r["speedup"] for r in rows if (r["mode"], r["new_tokens"], r["k"], r["num_steps"]) == wanted), None)


def draw_maps(figure: Any, rows: Sequence[dict[str, Any]], args: argparse.Namespace) -> None:
    left, right = figure.subplots(1, 2)
    over_k = [[speed(rows, args.at_tokens, k, s) for s in args.steps] for k in args.rounds]
    plot.heat(left, over_k, args.steps, args.rounds, f"times isolated, N = {args.at_tokens}")
    left.set_ylabel("k")
    lengths = sorted({*args.new_tokens, args.at_tokens})
    over_n = [[speed(rows, n, args.at_rounds, s) for s in args.steps] for n in lengths]
    plot.heat(right, over_n, args.steps, lengths, f"times isolated, k = {args.at_rounds}")
    right.set_ylabel("N")
    for axes in (left, right):
        axes.set_xlabel("flow steps S")


def draw_curves(figure: Any, rows: Sequence[dict[str, Any]], args: argparse.Namespace) -> None:
    left, right = figure.subplots(1, 2, sharey=True)
    steps = args.num_steps if args.num_steps in args.steps else args.steps[0]
    here = [r for r in rows if r["mode"] == "oxygen" and r["num_steps"] == steps]
    plot.lines(left, [r for r in here if r["k"] == min(args.at_rounds, r["new_tokens"])], "new_tokens", "speedup")
    plot.lines(right, [r for r in here if r["new_tokens"] == args.at_tokens], "k", "speedup")
    left.set_xlabel(f"N (k = {args.at_rounds}, S = {steps})")
    right.set_xlabel(f"k (N = {args.at_tokens}, S = {steps})")
    left.set_ylabel("speed-up over isolated")
