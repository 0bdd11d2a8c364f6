"""`oxygen bench roofline`: every stage beside its two floors, from ceilings measured on this machine at the model's
widths."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any

from oxygen.bench.command import Run, add_common, begin, integers, positive
from oxygen.bench.measure import put
from oxygen.bench.report import progress
from oxygen.bench.stages import StageMeter, StageTimes
from oxygen.layers.costs import Ceilings, Cost

COLUMNS = (
    *("stage", "measured_ms", "measured_ms_spread", "compute_floor_ms", "bandwidth_floor_ms", "achieved_share"),
    *("tflops_per_s", "gbytes_per_s", "ratio_to_one"),
)
CALL_ROUNDS = 5
"""Rounds in one decode call: what a call costs is spread over them, as in a frame."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_common(parser, model="pi05-medium", frames=15)
    parser.add_argument("--batches", type=integers, default=[1, 8, 30], help="texts that decode together, with commas")
    parser.add_argument("--new-tokens", type=positive, default=30, help="tokens of a text: how long tails get")
    parser.add_argument(
        "--experts", default="", help="action experts of a qwen3vl preset, of pi,gr00t,oft (default: pi)"
    )


def run(args: argparse.Namespace) -> int:
    run = begin("roofline", args, new_tokens=args.new_tokens, batches=args.batches)
    biggest = max(args.batches)
    runner = run.setup.open(max_contexts=biggest, max_texts=biggest, tail_len=args.new_tokens + CALL_ROUNDS)
    meter = StageMeter(runner, run.setup.frames(), context_row=biggest - 1, first_tail=0, new_tokens=args.new_tokens)
    meter.fill(biggest - 1, 0)
    wanted = [(batch, CALL_ROUNDS) for batch in args.batches]
    from oxygen.bench.torch.ceilings import CeilingMeter

    shape, length = run.setup.shape(), run.setup.frames().context_len
    ceilings = CeilingMeter(run.setup.spec(), length, run.setup.dtype, run.setup.device)
    for _ in range(2):  # the first time is not typical; the second says how long the rest will take
        began = time.perf_counter()
        ceilings.sample()
        meter.measure([args.num_steps], wanted)
    run.expect(args.frames * (time.perf_counter() - began))
    meter.times, ceilings.found = StageTimes(), []
    with progress("roofline", args.frames) as advance:
        for _ in range(args.frames):
            ceilings.sample()
            meter.measure([args.num_steps], wanted)
            advance(1)
    report, typical = run.report, ceilings.typical()
    report.rows = rows(run, meter.times, ceilings.found, args.batches, args.new_tokens)
    report.extra["ceilings"] = {"flops_per_s": typical.flops_per_s, "bytes_per_s": typical.bytes_per_s}
    low, high = min(c.bytes_per_s for c in ceilings.found) / 1e9, max(c.bytes_per_s for c in ceilings.found) / 1e9
    report.note(
        f"ceilings, {args.dtype}, measured beside every turn: {typical.flops_per_s / 1e9:.0f} Gflop/s in products of"
        f" {length} rows, {typical.bytes_per_s / 1e9:.1f} GB/s ({low:.1f} to {high:.1f}) in a large matrix-vector"
        " product; the achieved share is the median over turns, each against its own ceilings"
    )
    report.figure("floors", lambda figure: draw(figure, report.rows))
    report.finish(COLUMNS, f"roofline: {args.model} {args.dtype}, {shape.num_cameras} cameras, {length} tokens")
    return 0


def rows(
    run: Run, times: StageTimes, ceilings: Sequence[Ceilings], batches: Sequence[int], new_tokens: int
) -> list[dict[str, Any]]:
    """One row per stage."""
    costs, cameras, length = run.setup.costs(), run.setup.shape().num_cameras, run.setup.frames().context_len
    stages = [("prefill", times.prefill_ms, costs.prefill(cameras, length))]
    if times.vision_ms:
        stages.append(("vision", times.vision_ms, costs.vision(cameras)))
    for expert, measured_ms in times.expert_ms.items():
        name = "act" if len(times.expert_ms) == 1 else f"act_{expert}"
        stages.append((name, measured_ms, costs.act(expert, length, run.setup.num_steps)))
    for batch in batches:
        cost = costs.decode(batch, length, new_tokens / 2)
        stages.append((f"decode_{batch}", times.round_ms[batch, CALL_ROUNDS], cost))
    made = [_row(*stage, ceilings) for stage in stages]
    one = next((r["measured_ms"] for r in made if r["stage"] == "decode_1"), None)
    for row in made:
        if one and row["stage"].startswith("decode_"):
            row["ratio_to_one"] = round(row["measured_ms"] / one, 3)
    return made


def _row(stage: str, measured_ms: Sequence[float], cost: Cost, ceilings: Sequence[Ceilings]) -> dict[str, Any]:
    """Turn i of measured_ms was measured beside ceilings[i]."""
    row: dict[str, Any] = {"stage": stage}
    put(row, "measured_ms", measured_ms)
    put(row, "compute_floor_ms", [cost.compute_floor_ms(c) for c in ceilings])
    put(row, "bandwidth_floor_ms", [cost.bandwidth_floor_ms(c) for c in ceilings])
    shares = [cost.floor_ms(c) / ms for c, ms in zip(ceilings, measured_ms, strict=True)]
    put(row, "achieved_share", shares, digits=4)
    seconds = row["measured_ms"] / 1e3
    row["tflops_per_s"] = round(cost.flops / seconds / 1e12, 4)
    row["gbytes_per_s"] = round(cost.bytes / seconds / 1e9, 3)
    return row


def draw(figure: Any, rows: Sequence[dict[str, Any]]) -> None:
    """Measured time of each stage, both floors as marks."""
    from oxygen.bench.plot import legend

    axes = figure.subplots()
    names = [r["stage"] for r in rows]
    axes.barh(names, [r["measured_ms"] for r in rows], color="#c0392b", label="measured")
    axes.plot([r["compute_floor_ms"] for r in rows], names, "k|", markersize=14, label="compute floor")
    axes.plot([r["bandwidth_floor_ms"] for r in rows], names, "b|", markersize=14, label="bandwidth floor")
    axes.set_xscale("log")
    axes.set_xlabel("ms (logarithmic)")
    axes.invert_yaxis()
    legend(figure, axes)
