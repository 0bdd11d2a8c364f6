"""`oxygen bench frame`: one operating point, all modes side by side, alternating within one run on the same weights."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from oxygen.bench.command import Run, add_common, begin, integers, positive
from oxygen.bench.estimate import Prices
from oxygen.bench.measure import expected_batch, median, put
from oxygen.bench.parallel import open_pair
from oxygen.bench.probe import Rooms
from oxygen.bench.stand import ALL, ALONE, Point, Stand, room_for
from oxygen.bench.words import FRAME
from oxygen.layers.costs import Ceilings
from oxygen.models.qwen3_vl.spec import PRESETS as QWEN3_VL
from oxygen.models.qwen3_vl.untrained import HEADS

COLUMNS = FRAME


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_common(parser)
    parser.add_argument("--new-tokens", type=positive, default=30, help="tokens of a text (N)")
    parser.add_argument("--rounds", type=integers, default=[1, 5, 10], help="decode rounds a frame (k), with commas")
    parser.add_argument(
        "--baseline-frames",
        type=positive,
        default=None,
        help="frames of each baseline (default: a quarter, at least 3)",
    )
    parser.add_argument("--no-parallel", action="store_true", help="leave the two-process baseline out")
    heads = ",".join(HEADS)
    parser.add_argument("--experts", default="", help=f"qwen3vl-*: action experts on one prefill (default: {heads})")
    parser.add_argument("--text-lengths", type=integers, default=[10, 20, 30], help="with --experts: texts' tokens (N)")
    parser.add_argument("--identical-prompt", action="store_true", help="with --experts: one prompt for all of them")


def run(args: argparse.Namespace) -> int:
    if args.experts or args.model in QWEN3_VL:
        from oxygen.bench.experts import run as run_experts

        args.experts = args.experts or ",".join(HEADS)
        return run_experts(args)
    rounds = tuple(sorted({min(k, args.new_tokens) for k in args.rounds}))
    run = begin("frame", args, new_tokens=args.new_tokens, rounds=rounds)
    point = Point(args.new_tokens, rounds, args.num_steps, ALL, is_metered=True, with_alone=True)
    from oxygen.bench.torch.ceilings import CeilingMeter

    report = run.report
    pair = None if args.no_parallel else open_pair(run.setup, args.new_tokens, report.note)
    try:
        rooms = Rooms(run.setup.open(**room_for([point])))
        prices = Prices.measure(rooms, run.setup.frames())
        stand = Stand(run, rooms, point, pair)
        run.expect(stand.expected_s(prices))
        ceilings = CeilingMeter(run.setup.spec(), run.setup.frames().context_len, args.dtype, args.device)
        stand.measure("frame", beside=ceilings.sample)
        report.rows = stand.rows()
    finally:
        if pair is not None:
            pair.close()
    promise = report.extra["actions_first"] = actions_first(stand)
    typical = ceilings.typical()
    add_floors(report.rows, run, typical)
    report.extra["ceilings"] = {"flops_per_s": typical.flops_per_s, "bytes_per_s": typical.bytes_per_s}
    report.note(
        f"actions ready after {promise['action_ready_ms']:.1f} ms with {promise['live_texts']:.0f} live texts,"
        f" {promise['action_ready_ms_alone']:.1f} ms with none: ratio {promise['ratio']:.3f}"
        + (" (no difference beyond the spread)" if promise["is_within_spread"] else "")
    )
    report.figure("modes", lambda figure: draw(figure, report.rows))
    report.finish(COLUMNS, f"frame: {args.model} {args.dtype}, N = {args.new_tokens}")
    return 0


def actions_first(stand: Stand) -> dict[str, Any]:
    """Action-ready time with the texts of the smallest k live, and with none, from the same run."""
    busiest = min(stand.point.rounds)
    busy = next(lane for lane in stand.lanes if lane.mode.name == "oxygen" and lane.mode.k == busiest)
    alone = next(lane for lane in stand.lanes if lane.label == ALONE)
    found: dict[str, Any] = {"live_texts": median([s.live for s in busy.samples])}
    put(found, "action_ready_ms", [1e3 * s.ready_s for s in busy.samples])
    put(found, "action_ready_ms_alone", [1e3 * s.ready_s for s in alone.samples])
    found["ratio"] = round(found["action_ready_ms"] / found["action_ready_ms_alone"], 4)
    apart = abs(found["action_ready_ms"] - found["action_ready_ms_alone"])
    found["is_within_spread"] = apart < max(found["action_ready_ms_spread"], found["action_ready_ms_alone_spread"])
    # Neighbours in time are compared as well: a slow minute of the machine hits both.
    pairs = [a.ready_s / b.ready_s for a, b in zip(busy.samples, alone.samples, strict=True) if b.ready_s]
    put(found, "ratio_of_neighbours", pairs, digits=4)
    return found


def add_floors(rows: Sequence[dict[str, Any]], run: Run, ceilings: Ceilings) -> None:
    """Write the floor of each row's frame into it: the sum of its stages' floors."""
    costs, cameras, frames = run.setup.costs(), run.setup.shape().num_cameras, run.setup.frames()
    length, experts = frames.context_len, [name for name, _ in frames.readers] or ["action"]
    for row in rows:
        n, k = row["new_tokens"], row["k"]
        batch = expected_batch(n, k) if row["mode"] == "oxygen" else 1
        rounds = min(k, n) if k else n
        prefills = 2 if row["mode"] in ("isolated", "parallel") else 1
        floor = prefills * costs.prefill(cameras, length).floor_ms(ceilings)
        floor += sum(costs.act(expert, length, row["num_steps"]).floor_ms(ceilings) for expert in experts)
        floor += rounds * costs.decode(batch, length, n / 2).floor_ms(ceilings)
        row["floor_ms"] = round(floor, 3)


def draw(figure: Any, rows: Sequence[dict[str, Any]]) -> None:
    """Frame time of each mode, with the ideal as a mark on its bar."""
    from oxygen.bench import plot

    axes = figure.subplots()
    names = plot.bars(axes, rows, "frame_ms", f"frame time, ms (N = {rows[0]['new_tokens']}; thin line: spread)")
    axes.plot([r["ideal_frame_ms"] for r in rows], names, "k|", markersize=14, label="ideal from stage costs")
    axes.plot([r["floor_ms"] for r in rows], names, "b|", markersize=14, label="floor of the machine")
    plot.legend(figure, axes)
