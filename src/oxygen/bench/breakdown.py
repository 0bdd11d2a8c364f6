"""`oxygen bench breakdown`: stage times and what prefix reuse is worth over N (table 6); when a text is complete
(D.4)."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from typing import Any

from oxygen.bench.command import add_common, begin, integers, positive
from oxygen.bench.measure import by_mode
from oxygen.bench.stand import Point
from oxygen.bench.sweep import sweep

COLUMNS = (
    *("new_tokens", "vision_ms", "prefill_ms", "act_ms", "alone_round_ms", "round_ms", "mean_batch", "isolated_ms"),
    *("shared_ms", "oxygen_ms", "reuse_share", "batching_share", "completion_s", "expected_completion_s"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_common(parser, frames=24)
    parser.add_argument("--new-tokens", type=integers, default=[1, 5, 10, 20, 30], help="tokens of a text (N)")
    parser.add_argument("--k", type=positive, default=5, help="decode rounds a frame")
    parser.add_argument(
        "--baseline-frames",
        type=positive,
        default=None,
        help="frames of each baseline (default: a quarter, at least 3)",
    )


def run(args: argparse.Namespace) -> int:
    run = begin("breakdown", args, new_tokens=args.new_tokens, k=args.k)
    modes = ("isolated", "shared", "oxygen")
    points = [Point(n, (min(n, args.k),), args.num_steps, modes, is_metered=True) for n in args.new_tokens]
    measured = sweep(run, points)
    report = run.report
    report.rows = [condense([r for r in measured if r["new_tokens"] == n]) for n in args.new_tokens]
    report.extra["modes"] = measured
    report.note(
        "reuse share: (isolated - shared) / isolated frame time, what one prefill instead of two saves; batching share:"
        " (shared - oxygen) / isolated. A text is complete, from its frame's arrival, after ceil(N/k) frames less what"
        " its last frame has left to do"
    )
    report.figure("stages", lambda figure: draw(figure, report.rows))
    report.finish(COLUMNS, f"breakdown: {args.model} {args.dtype}, k = {args.k}")
    return 0


def condense(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The three modes of one N as one row."""
    isolated, shared, oxygen = (by_mode(rows, mode) for mode in ("isolated", "shared", "oxygen"))
    assert isolated and shared and oxygen
    taken = ("new_tokens", "k", "num_steps", "prefill_ms", "vision_ms", "act_ms", "round_ms", "mean_batch", "speedup")
    row = {key: oxygen[key] for key in (*taken, "frame_ms", "frame_ms_spread", "ideal_frame_ms")}
    row["alone_round_ms"] = shared["round_ms"]
    row["isolated_ms"], row["shared_ms"], row["oxygen_ms"] = (r["frame_ms"] for r in (isolated, shared, oxygen))
    row["reuse_share"] = round((isolated["frame_ms"] - shared["frame_ms"]) / isolated["frame_ms"], 4)
    row["batching_share"] = round((shared["frame_ms"] - oxygen["frame_ms"]) / isolated["frame_ms"], 4)
    row["completion_s"] = oxygen["answer_age_s"]
    frames = math.ceil(oxygen["new_tokens"] / oxygen["k"])
    row["expected_completion_s"] = round(frames * oxygen["frame_ms"] / 1e3, 4)
    row["isolated_completion_s"] = isolated["answer_age_s"]
    return row


def draw(figure: Any, rows: Sequence[dict[str, Any]]) -> None:
    """What an OxyGen frame is made of, beside the isolated frame."""
    from oxygen.bench.plot import legend

    axes = figure.subplots()
    labels = [str(r["new_tokens"]) for r in rows]
    bottom = [0.0] * len(rows)
    parts = [
        ("prefill", [r["prefill_ms"] for r in rows], "#5b8db8"),
        ("act", [r["act_ms"] for r in rows], "#c0392b"),
        ("decode", [r["k"] * r["round_ms"] for r in rows], "#3c763d"),
    ]
    for name, values, colour in parts:
        axes.bar(labels, values, bottom=bottom, color=colour, label=name, width=0.5)
        bottom = [b + v for b, v in zip(bottom, values, strict=True)]
    axes.plot(labels, [r["isolated_ms"] for r in rows], "ks", label="isolated frame")
    axes.set_xlabel(f"tokens of a text, N (k = {max(r['k'] for r in rows)})")
    axes.set_ylabel("OxyGen's frame, ms, by stage")
    legend(figure, axes, 4)
