"""`oxygen bench memory`: peak memory of each mode in a process of its own, and energy per frame where there is a
meter."""

from __future__ import annotations

import argparse
import multiprocessing
import time
from multiprocessing.connection import Connection
from typing import Any

from oxygen.bench.command import add_common, begin, integers, positive
from oxygen.bench.machine import resident_bytes
from oxygen.bench.measure import expected_batch, put, steady_lane
from oxygen.bench.meter import Energy
from oxygen.bench.modes import Isolated, Mode, Oxygen, Shared, UpperBound
from oxygen.bench.parallel import Parallel, open_pair, variants
from oxygen.bench.probe import Rooms
from oxygen.bench.report import progress
from oxygen.bench.setup import Setup
from oxygen.core.errors import OxygenError, Refused
from oxygen.layers.costs import DTYPE_BYTES

MIB = 2**20
COLUMNS = (
    *("mode", "k", "context_rows", "peak_mib", "loaded_mib", "weights_mib", "contexts_mib", "over_isolated_mib"),
    *("frame_ms", "power_w", "joules_per_frame"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_common(parser, frames=10)
    parser.add_argument("--new-tokens", type=positive, default=30, help="tokens of a text (N)")
    parser.add_argument("--rounds", type=integers, default=[1, 5, 10], help="decode rounds a frame (k)")
    parser.add_argument("--no-parallel", action="store_true", help="leave the two-process baseline out")


def run(args: argparse.Namespace) -> int:
    meter = Energy(args.device).name
    run = begin("memory", args, new_tokens=args.new_tokens, rounds=args.rounds, energy_meter=meter or "none")
    report, setup = run.report, run.setup
    wanted: list[tuple[str, int | None]] = [("isolated", None), ("shared", None)]
    for k in args.rounds:
        wanted += [("upper_bound", k), ("oxygen", k)]
    with progress("memory", len(wanted) + 1) as advance:
        began = time.perf_counter()
        for i, (mode, k) in enumerate(wanted):
            if i == 1:  # opening the model takes most of the time, and every mode opens it
                run.expect(len(wanted) * (time.perf_counter() - began), f"{len(wanted)} more processes")
            report.rows.append(measure_apart(setup, mode, k, args.new_tokens, args.frames))
            advance(1)
        if not args.no_parallel and (row := measure_pair(setup, args, report.note)):
            report.rows.insert(1, row)
        advance(1)
    weights = setup.spec().num_parameters() * DTYPE_BYTES[args.dtype]
    for row in report.rows:
        row["weights_mib"] = round((2 if row["mode"] == "parallel" else 1) * weights / MIB, 1)
        row["over_isolated_mib"] = round((row["peak_bytes"] - report.rows[0]["peak_bytes"]) / MIB, 1)
    if meter is None:
        report.note("this machine has no energy meter that this user may read (RAPL, NVML): power is not reported")
    report.figure("peaks", lambda figure: draw(figure, report.rows))
    report.finish(COLUMNS, f"memory: {args.model} {args.dtype}, N = {args.new_tokens}")
    return 0


def measure_apart(setup: Setup, mode: str, k: int | None, new_tokens: int, num_frames: int) -> dict[str, Any]:
    """One mode in a fresh process."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=_measure, args=(theirs, setup, mode, k, new_tokens, num_frames), daemon=True)
    child.start()
    theirs.close()
    try:
        answer = ours.recv()
    except EOFError:
        raise Refused("memory", f"the process that measured {mode} ended early") from None
    finally:
        child.join(timeout=30)
    if isinstance(answer, str):
        raise Refused("memory", f"{mode}: {answer}")
    return dict(answer)


def _measure(link: Connection, setup: Setup, name: str, k: int | None, new_tokens: int, num_frames: int) -> None:
    from oxygen.bench.torch.device import peak_bytes, reset_peak

    rows = expected_batch(new_tokens, k) + 1 if name == "oxygen" and k else 1
    try:
        runner = setup.open(max_contexts=rows, max_texts=rows, tail_len=new_tokens)
    except OxygenError as error:
        link.send(str(error))
        return
    rooms = Rooms(runner)
    probe, frames, steps = rooms.take(rows, rows), setup.frames(), setup.steps()
    modes: dict[str, Any] = {"isolated": Isolated, "shared": Shared, "upper_bound": UpperBound, "oxygen": Oxygen}
    mode: Mode = modes[name](probe, frames, steps) if k is None else modes[name](probe, frames, steps, k)
    loaded = resident_bytes()
    lane = steady_lane(mode, new_tokens, num_frames)
    reset_peak(setup.device)
    for _ in range(lane.warm_up):
        lane.step()
    energy = Energy(setup.device)
    samples = [lane.step() for _ in range(num_frames)]
    row = _row(name, k, [1e3 * s.frame_s for s in samples], energy, num_frames)
    row |= {"context_rows": rows, "contexts_mib": round(rows * runner.limits.bytes_per_context / MIB, 1)}
    row |= {"peak_bytes": peak_bytes(setup.device), "loaded_mib": round(loaded / MIB, 1)}
    row["peak_mib"] = round(row["peak_bytes"] / MIB, 1)
    mode.close()
    link.send(row)


def measure_pair(setup: Setup, args: argparse.Namespace, tell: Any) -> dict[str, Any] | None:
    """The two processes of the parallel baseline, both peaks together."""
    pair = open_pair(setup, args.new_tokens, tell)
    if pair is None:
        return None
    try:
        mode = Parallel(pair, setup.steps(), variants(pair.cores)[0])
        mode.frame((args.new_tokens,))
        energy = Energy(setup.device)
        samples = [mode.frame((args.new_tokens,)) for _ in range(args.frames)]
        row = _row("parallel", None, [1e3 * s.frame_s for s in samples], energy, args.frames)
        row |= {"context_rows": 2, "peak_bytes": pair.peak_bytes()}
        row["peak_mib"] = round(row["peak_bytes"] / MIB, 1)
        return row
    finally:
        pair.close()


def _row(mode: str, k: int | None, frames_ms: list[float], energy: Energy, num_frames: int) -> dict[str, Any]:
    joules, seconds = energy.joules(), energy.seconds()
    row: dict[str, Any] = {"mode": mode, "k": k}
    put(row, "frame_ms", frames_ms)
    row["joules_per_frame"] = None if joules is None else round(joules / num_frames, 4)
    row["power_w"] = None if joules is None else round(joules / seconds, 2)
    return row


def draw(figure: Any, rows: list[dict[str, Any]]) -> None:
    from oxygen.bench import plot

    axes = figure.subplots()
    names = plot.bars(axes, rows, "peak_mib", "peak memory of a process of its own, MiB")
    axes.plot([r["weights_mib"] for r in rows], names, "k|", markersize=14, label="weights")
    plot.legend(figure, axes)
