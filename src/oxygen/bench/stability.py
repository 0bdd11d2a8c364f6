"""`oxygen bench stability`: thousands of frames of a fluctuating workload. Does memory grow, does time drift, are rows
lost?"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from oxygen.bench.arrivals import CYCLE, fluctuating, live_texts, max_live
from oxygen.bench.command import add_common, begin, positive
from oxygen.bench.machine import resident_bytes
from oxygen.bench.modes import FrameSample, Oxygen
from oxygen.bench.probe import Rooms
from oxygen.bench.report import progress
from oxygen.bench.torch.device import allocated_bytes

COLUMNS = (
    *("cycle", "frame_ms_mean", "frame_ms_p50", "action_ready_ms_p50", "live_max", "tokens", "resident_bytes"),
    "device_bytes",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_common(parser, frames=3000)
    parser.add_argument("--k", type=positive, default=2, help="decode rounds a frame")
    parser.add_argument("--max-live", type=positive, default=40, help="most texts alive at once")


def run(args: argparse.Namespace) -> int:
    """Exit status 1 when memory grew, time drifted or rows were lost."""
    arrivals = fluctuating(args.frames + CYCLE, args.k, args.max_live)
    live, longest = max_live(arrivals, args.k), max(max(lengths, default=0) for lengths in arrivals)
    run = begin("stability", args, k=args.k, most_live=live, longest_text=longest, cycle=CYCLE)
    runner = run.setup.open(max_contexts=live + 1, max_texts=live, tail_len=longest)
    mode = Oxygen(Rooms(runner).take(live + 1, live), run.setup.frames(), args.num_steps, args.k)
    book, began = Book(args.frames), time.perf_counter()
    with progress("stability", len(arrivals)) as advance:
        for i, lengths in enumerate(arrivals):
            sample = mode.frame(lengths)
            if i == CYCLE:
                run.expect(args.frames * (time.perf_counter() - began) / CYCLE, "after a cycle of warm-up")
            if i >= CYCLE:  # the first cycle is the warm-up
                book.write(i - CYCLE, sample, args.device)
            advance(1)
    used = mode.engine.stats()
    mode.close()  # raises when rows are not free
    expected = live_texts(arrivals, args.k)[CYCLE:]
    report = run.report
    report.rows = book.rows()
    verdict = judge(report.rows)
    verdict["rows_free_at_end"] = True
    verdict["live_as_expected"] = book.live.tolist() == expected
    verdict["live_before_the_end"] = used.live_texts
    verdict["garbage_in_cycles"] = gc.collect()  # objects that only the collector could free
    report.extra["verdict"] = verdict
    is_good = bool(verdict["memory_is_flat"] and verdict["time_is_flat"] and verdict["live_as_expected"])
    growth = verdict["memory_growth_bytes"] / 2**20
    report.note(
        f"{args.frames} frames, {live} texts at most: resident memory {growth:+.1f} MiB from the first quarter to the"
        f" last, cycle-averaged frame time {100 * verdict['time_drift']:+.2f} % (cycles differ by"
        f" {100 * verdict['time_noise']:.2f} %), every row free: {'good' if is_good else 'NOT good'}"
    )
    report.figure("cycles", lambda figure: draw(figure, book, report.rows))
    report.finish(COLUMNS, f"stability: {args.model} {args.dtype}, k = {args.k}, {args.frames} frames")
    return 0 if is_good else 1


class Book:
    """The figures of every frame, in memory taken beforehand: what grows must not be the measurement."""

    def __init__(self, num_frames: int) -> None:
        self.frame_ms, self.ready_ms, self.management_ms = np.zeros((3, num_frames))
        self.live, self.tokens = np.zeros((2, num_frames), dtype=np.int64)
        num_cycles = num_frames // CYCLE
        self.resident, self.allocated = np.zeros((2, num_cycles), dtype=np.int64)
        for array in (self.frame_ms, self.ready_ms, self.management_ms, self.live, self.tokens):
            array.fill(1)  # touch every page

    def write(self, frame: int, sample: FrameSample, device: str) -> None:
        self.frame_ms[frame] = 1e3 * sample.frame_s
        self.ready_ms[frame] = 1e3 * sample.ready_s
        self.management_ms[frame] = 1e3 * sample.management_s
        self.live[frame], self.tokens[frame] = sample.live, sample.verbs.tokens
        cycle, is_end = divmod(frame + 1, CYCLE)
        if not is_end:
            self.resident[cycle - 1] = resident_bytes()
            self.allocated[cycle - 1] = allocated_bytes(device) or 0

    def rows(self) -> list[dict[str, Any]]:
        """One row per whole cycle: within a cycle frames differ, from cycle to cycle their averages must not."""
        rows = []
        for i in range(len(self.resident)):
            part = slice(i * CYCLE, (i + 1) * CYCLE)
            rows.append(
                {
                    "cycle": i,
                    "frame_ms_mean": round(float(self.frame_ms[part].mean()), 4),
                    "frame_ms_p50": round(float(np.median(self.frame_ms[part])), 4),
                    "action_ready_ms_p50": round(float(np.median(self.ready_ms[part])), 4),
                    "management_ms": round(float(np.median(self.management_ms[part])), 4),
                    "live_max": int(self.live[part].max()),
                    "tokens": int(self.tokens[part].sum()),
                    "resident_bytes": int(self.resident[i]),
                    "device_bytes": int(self.allocated[i]) or None,
                }
            )
        return rows


def judge(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Compare the first and the last quarter of the cycles, by medians: one disturbed cycle decides nothing.

    Memory is flat when it grew by less than 8 MiB (allocators breathe) and does not grow all the way; time is flat when
    the drift is below 2 %, or within the noise of a cycle.
    """
    quarter = max(1, len(rows) // 4)

    def change(key: str) -> tuple[float, float]:
        values = [r[key] for r in rows]
        return float(np.median(values[:quarter])), float(np.median(values[-quarter:]))

    first_time, last_time = change("frame_ms_p50")
    first_memory, last_memory = change("resident_bytes")
    times = [r["frame_ms_p50"] for r in rows]
    # Of cycles that are near in time: a drift must not pass as noise.
    noise = max(max(part) - min(part) for part in (times[:quarter], times[-quarter:])) / float(np.median(times))
    drift = last_time / first_time - 1
    growth = last_memory - first_memory
    return {
        "memory_growth_bytes": int(growth),
        "memory_is_flat": growth < 8 * 2**20,
        "time_drift": round(drift, 5),
        "time_noise": round(noise, 5),
        "time_is_flat": drift < max(0.02, noise),
    }


def draw(figure: Any, book: Book, rows: Sequence[dict[str, Any]]) -> None:
    """Live texts and frame times over frames; the averages of cycles over them."""
    above, below = figure.subplots(2, sharex=True)
    above.plot(book.live, linewidth=0.5, color="#5b8db8")
    above.set_ylabel("live texts")
    below.plot(book.frame_ms, linewidth=0.3, color="#bbbbbb")
    middle = [(r["cycle"] + 0.5) * CYCLE for r in rows]
    below.plot(middle, [r["frame_ms_mean"] for r in rows], color="#c0392b", label="average of a cycle")
    below.set_ylim(0, 3 * max(r["frame_ms_mean"] for r in rows))
    below.set_ylabel("frame time, ms")
    below.set_xlabel("frame")
    below.legend(loc="upper right")
