"""`oxygen bench budget`: under a camera's clock, does `rate:F` hold the rate, what text does it buy, and `idle`, and
fixed k?"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from oxygen.bench.command import Run, add_common, begin, positive
from oxygen.bench.measure import put
from oxygen.bench.modes import Oxygen
from oxygen.bench.probe import Probe, Rooms
from oxygen.bench.processor import BenchProcessor
from oxygen.bench.report import progress
from oxygen.core.config import EngineConfig
from oxygen.core.tasks import ActionTask, Observation, TextTask
from oxygen.engine.engine import Engine
from oxygen.tickets.record import StepRecord

COLUMNS = (
    *("budget", "camera_hz", "frames_per_s", "replaced", "action_ready_ms_p50", "action_ready_ms_p99", "late_share"),
    *("tokens_per_s", "texts_done", "texts_refused", "mean_batch", "rounds_per_frame", "ttft_ms"),
    *("answer_age_frames", "answer_age_s"),
)

WARM_UP = 10
"""Frames before those that count."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_common(parser, frames=120)
    parser.add_argument("--camera-hz", type=float, default=None, help="default: what leaves room for six rounds")
    parser.add_argument("--new-tokens", type=positive, default=30, help="tokens of a text (N)")
    parser.add_argument("--text-every", type=positive, default=2, help="a text with every so many frames")
    parser.add_argument("--max-texts", type=positive, default=16, help="texts alive at once")
    parser.add_argument("--budgets", default=None, help="with commas (default: three fixed ones, rate:CAMERA, idle)")


@dataclass(slots=True)
class Log:
    """What the steps of one budget told."""

    records: list[StepRecord] = field(default_factory=list)
    refused: int = 0


def run(args: argparse.Namespace) -> int:
    run = begin("budget", args, new_tokens=args.new_tokens, text_every=args.text_every, max_texts=args.max_texts)
    # Contexts of live texts, of waiting ones, and of the frame at work.
    room = 2 * args.max_texts + 2
    rooms = Rooms(run.setup.open(max_contexts=room, max_texts=args.max_texts, tail_len=args.new_tokens))
    camera_hz = args.camera_hz or choose_rate(run, rooms)
    run.report.config["camera_hz"] = round(camera_hz, 3)
    budgets = (args.budgets or f"fixed:1,fixed:5,fixed:20,rate:{camera_hz:.3f},idle").split(",")
    run.expect(len(budgets) * (WARM_UP + args.frames + 1) / camera_hz, f"{len(budgets)} budgets")
    with progress("budget", len(budgets) * args.frames) as advance:
        for budget in budgets:
            rooms.clear()
            probe = rooms.take(room, args.max_texts)
            log = film(run, probe, budget, camera_hz, advance)
            run.report.rows.append(row_of(budget, camera_hz, log, args))
    run.report.note(
        f"camera at {camera_hz:.2f} Hz, a text of {args.new_tokens} tokens with every {args.text_every} frames; late:"
        " actions ready later than one camera period after capture; a frame that still waits when the next comes is"
        " replaced"
    )
    run.report.figure("budgets", lambda figure: draw(figure, run.report.rows))
    run.report.finish(COLUMNS, f"budget: {args.model} {args.dtype}, camera at {camera_hz:.2f} Hz")
    return 0


def choose_rate(run: Run, rooms: Rooms) -> float:
    """A camera period of one frame's actions and six rounds of a full batch."""
    rooms.clear()
    args = run.args
    most = args.max_texts
    engine = Oxygen(rooms.take(2 * most + 2, most), run.setup.frames(), args.num_steps, 1)
    samples = [engine.frame((args.new_tokens,) if i < most else ()) for i in range(most + 6)]
    engine.close()
    full = samples[most - 2 : most + 6]
    ready = float(np.median([s.ready_s for s in full]))
    round_s = float(np.median([s.verbs.decode_s for s in full]))
    return 1.0 / (1.05 * (ready + 6 * round_s))


def film(run: Run, probe: Probe, budget: str, camera_hz: float, advance: Any) -> Log:
    """An engine with a thread of its own; frames come by the clock, whatever it does."""
    args, log, frames = run.args, Log(), run.setup.frames()
    config = EngineConfig(budget=budget, keep_context_s=0.0, max_waiting_texts=args.max_texts)
    engine = Engine(probe, BenchProcessor(frames), config)
    engine.subscribe(log.records.append)
    engine.start()
    period = 1.0 / camera_hz
    task = ActionTask("all" if frames.readers else "action", num_steps=args.num_steps, seed=0)
    started = time.monotonic()
    for i in range(WARM_UP + args.frames):
        time.sleep(max(0.0, started + i * period - time.monotonic()))
        text = TextTask("narration", max_new_tokens=args.new_tokens, ignore_eos=True)
        engine.submit(Observation(images={}), task, text if i % args.text_every == 0 else ())
        if i == WARM_UP:
            log.records.clear()
        if i >= WARM_UP:
            advance(1)
    time.sleep(period)
    log.refused = engine.stats().counts.get("refused", 0)
    engine.close()
    if engine.fault is not None:
        raise engine.fault
    return log


def row_of(budget: str, camera_hz: float, log: Log, args: argparse.Namespace) -> dict[str, Any]:
    records = log.records
    actions = [a for r in records for a in r.actions if a.frame_id >= WARM_UP]
    texts = [t for r in records for t in r.results if t.finish_reason == "length"]
    seconds = args.frames / camera_hz
    ready_ms = [1e3 * a.ready_s for a in actions]
    rounds, tokens = sum(r.rounds for r in records), sum(r.num_tokens for r in records)
    row: dict[str, Any] = {"budget": budget, "camera_hz": round(camera_hz, 3)}
    row["frames_per_s"] = round(len(actions) / seconds, 3)
    row["replaced"] = sum(r.counts.get("replaced", 0) for r in records)
    put(row, "action_ready_ms_p50", ready_ms)
    row["action_ready_ms_p99"] = round(float(np.percentile(ready_ms, 99)), 3) if ready_ms else None
    row["late_share"] = round(float(np.mean([r > 1e3 / camera_hz for r in ready_ms])), 4) if ready_ms else None
    row["tokens_per_s"] = round(tokens / seconds, 3)
    row["texts_done"], row["texts_refused"] = len(texts), log.refused
    row["mean_batch"] = round(tokens / rounds, 3) if rounds else 0.0
    row["rounds_per_frame"] = round(rounds / max(1, len(actions)), 3)
    put(row, "ttft_ms", [1e3 * t.ttft_s for t in texts if t.ttft_s is not None])
    put(row, "answer_age_frames", [t.age_frames for t in texts])
    put(row, "answer_age_s", [t.age_s for t in texts], digits=4)
    return row


def draw(figure: Any, rows: list[dict[str, Any]]) -> None:
    left, right = figure.subplots(1, 2, sharey=True)
    names = [r["budget"] for r in rows]
    left.bar_label(left.barh(names, [r["frames_per_s"] for r in rows], color="#c0392b"), fmt="%.3g", padding=4)
    left.axvline(rows[0]["camera_hz"], color="black", linewidth=1)
    left.set_xlabel("frames per second (line: camera)")
    right.bar_label(right.barh(names, [r["tokens_per_s"] for r in rows], color="#5b8db8"), fmt="%.4g", padding=4)
    right.set_xlabel("tokens per second")
    left.invert_yaxis()
    for axes in (left, right):
        axes.margins(x=0.2)
