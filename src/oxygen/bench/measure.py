"""Modes take turns within one run, and what they did becomes rows: medians, and spreads from the 10th to the 90th
percentile."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from oxygen.bench.arrivals import Arrivals, warm_up_frames
from oxygen.bench.modes import FrameSample, Mode

Row = dict[str, Any]


@dataclass(slots=True)
class Lane:
    """A mode, what arrives in each of its frames, and how many frames of it are measured after `warm_up` ones."""

    mode: Mode
    arrivals: Arrivals
    num_frames: int
    warm_up: int = 2
    label: str = ""
    samples: list[FrameSample] = field(default_factory=list)
    peak_bytes: int = 0
    _at: int = 0

    def step(self) -> FrameSample:
        """Do the next frame; the pattern starts again when it is over."""
        lengths = self.arrivals[self._at % len(self.arrivals)]
        self._at += 1
        return self.mode.frame(lengths)


def steady_lane(mode: Mode, new_tokens: int, num_frames: int, texts_per_frame: int = 1, label: str = "") -> Lane:
    """The same number of texts of one length with every frame; a mode with rounds gets into balance first."""
    warm_up = 2 if mode.k is None or mode.name != "oxygen" else warm_up_frames(new_tokens, mode.k) + 2
    return Lane(mode, [(new_tokens,) * texts_per_frame], num_frames, warm_up, label)


def alternate(
    lanes: Sequence[Lane],
    *,
    reset_peak: Callable[[], None] = lambda: None,
    peak_bytes: Callable[[], int] = lambda: 0,
    advance: Callable[[int], None] = lambda done: None,
    between: Callable[[int], None] = lambda turn: None,
) -> None:
    """Warm all lanes up, then let them take turns until each has its frames; short lanes are spread over the whole run.

    between(turn) runs once per turn, for measurements that are no frames. advance(n) counts frames done.
    """
    for lane in lanes:
        for _ in range(lane.warm_up):
            lane.step()
            advance(1)
    turns = max(lane.num_frames for lane in lanes)
    for turn in range(turns):
        for lane in lanes:
            if is_due(turn, lane.num_frames, turns):
                reset_peak()
                lane.samples.append(lane.step())
                lane.peak_bytes = max(lane.peak_bytes, peak_bytes())
                advance(1)
        between(turn)


def is_due(turn: int, wanted: int, turns: int) -> bool:
    """Whether one of `wanted` events, spread evenly over `turns`, falls on this turn."""
    return (turn + 1) * wanted // turns > turn * wanted // turns


def num_steps_of(lanes: Sequence[Lane]) -> int:
    """Frames that `alternate` will do, for the progress bar."""
    return sum(lane.warm_up + lane.num_frames for lane in lanes)


def median(values: Sequence[float]) -> float | None:
    return float(np.median(values)) if len(values) else None


def spread(values: Sequence[float]) -> float | None:
    """p90 - p10."""
    if not len(values):
        return None
    low, high = np.percentile(values, [10, 90])
    return float(high - low)


def put(row: Row, name: str, values: Sequence[float], digits: int = 3) -> None:
    """Write the median of values, and its spread beside it."""
    for key, value in ((name, median(values)), (f"{name}_spread", spread(values))):
        row[key] = None if value is None else round(value, digits)


def frame_row(lane: Lane, *, new_tokens: int, num_steps: int, horizon: int) -> Row:
    """A lane's figures under the names that every frame benchmark uses."""
    samples, mode = lane.samples, lane.mode
    frames_ms = [1e3 * s.frame_s for s in samples]
    ready_ms = [1e3 * s.ready_s for s in samples]
    rounds, tokens = sum(s.verbs.rounds for s in samples), sum(s.verbs.tokens for s in samples)
    row: Row = {"mode": mode.name, "k": mode.k, "new_tokens": new_tokens, "num_steps": num_steps}
    if lane.label:
        row["label"] = lane.label
    put(row, "frame_ms", frames_ms)
    put(row, "action_ready_ms_p50", ready_ms)
    row["action_ready_ms_p99"] = round(float(np.percentile(ready_ms, 99)), 3)
    frame_ms = float(np.median(frames_ms))
    row["action_hz"] = round(1e3 * horizon / frame_ms, 3)
    row["frames_per_s"] = round(1e3 / frame_ms, 3)
    row["tokens_per_s"] = round(1e3 * tokens / len(samples) / frame_ms, 3)
    put(row, "ttft_ms", [1e3 * t for s in samples for t in s.ttft_s])
    row["mean_batch"] = round(tokens / rounds, 3) if rounds else 0.0
    row["live_texts"] = round(float(np.mean([s.live for s in samples])), 3)
    put(row, "answer_age_frames", [a for s in samples for a in s.age_frames])
    put(row, "answer_age_s", [a for s in samples for a in s.age_s], digits=4)
    is_measured = mode.name != "parallel"
    shares = [s.management_s / s.frame_s for s in samples if s.frame_s > 0] if is_measured else []
    put(row, "management_share", shares, digits=6)
    put(row, "management_ms", [1e3 * s.management_s for s in samples] if is_measured else [], digits=4)
    row["peak_bytes"] = lane.peak_bytes or None
    row["num_frames"] = len(samples)
    return row


def fold_ideal(row: Row, prefill_ms: float, act_ms: float, round_ms: float | None, rounds: int) -> None:
    """Write the frame time that the stage costs allow for a mode, and the share of it that was reached."""
    prefills = 2 if row["mode"] in ("isolated", "parallel") and rounds else 1
    ideal = prefills * prefill_ms + act_ms + rounds * (round_ms or 0.0)
    row["ideal_frame_ms"] = round(ideal, 3)
    row["ideal_share"] = round(ideal / row["frame_ms"], 4) if row["frame_ms"] else None


def expected_batch(new_tokens: int, k: int) -> int:
    """Texts that decode together when one of `new_tokens` arrives with every frame."""
    return math.ceil(new_tokens / k)


def speedups(rows: Sequence[Row], over: Row) -> None:
    """Write each row's speed-up over another row's frame time."""
    for row in rows:
        row["speedup"] = round(over["frame_ms"] / row["frame_ms"], 3) if row["frame_ms"] else None


def by_mode(rows: Sequence[Mapping[str, Any]], mode: str, k: int | None = None) -> Mapping[str, Any] | None:
    return next((r for r in rows if r["mode"] == mode and (k is None or r["k"] == k)), None)
