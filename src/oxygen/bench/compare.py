"""`oxygen bench compare`: other people's code on the same weights, frame and noise, through its public interface, where
it is installed beside this package.

LeRobot 0.6.1 needs Python 3.12 or later and brings its own torch (2.11): make an environment of its own,
`pip install 'lerobot[pi]==0.6.1' '.[bench]'`, and run `python -m oxygen.bench compare` there. Its policy makes actions
only, so OxyGen makes actions only here, too. pi05-tiny cannot be compared: LeRobot's code has no convolution stem.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from oxygen.bench.command import Run, add_common, begin
from oxygen.bench.measure import Lane, frame_row, speedups
from oxygen.bench.modes import FrameSample, Oxygen
from oxygen.bench.probe import Rooms
from oxygen.bench.setup import Setup
from oxygen.checkpoint.shipped import resolve
from oxygen.core.errors import InvalidInput
from oxygen.core.inputs import ContextInputs
from oxygen.core.plan import ActItem, PrefillItem

ADAPTERS = {"lerobot": "oxygen.bench.torch.lerobot"}
"""Each module is an Adapter."""
COLUMNS = (
    *("code", "version", "action_ready_ms_p50", "action_ready_ms_p50_spread", "action_ready_ms_p99", "speedup"),
    "action_difference",
)
TOLERANCE = {"float32": 1e-3, "bfloat16": 0.1}
"""Largest difference of two actions (normalised units, about 1 in size) that passes for the same: a little more than
the references differ by among each other."""
ROW = 0


class Adapter(Protocol):
    """What stands for somebody else's code."""

    def missing(self, setup: Setup) -> str:
        """Why it cannot run, or an empty string."""

    def open_chunks(
        self, setup: Setup, folder: Path | None, inputs: ContextInputs, noise: np.ndarray
    ) -> tuple[str, Callable[[], np.ndarray]]:
        """Return the version of the code, and what makes one action chunk of this frame, device waited for."""


class Foreign:
    """Somebody else's policy as a mode: actions only."""

    k = None

    def __init__(self, name: str, chunk: Callable[[], object], clock: Callable[[], float]) -> None:
        self.name = name
        self._chunk, self._clock = chunk, clock

    def frame(self, lengths: Any) -> FrameSample:
        started = self._clock()
        self._chunk()
        seconds = self._clock() - started
        return FrameSample(seconds, seconds)

    def close(self) -> None:
        """Nothing to give back."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_common(parser, model="pi05-medium", dtype="bfloat16", frames=20)
    parser.add_argument("--with", dest="others", default="lerobot", help=f"with commas, some of {', '.join(ADAPTERS)}")
    parser.add_argument(
        "--own-weights",
        action="store_true",
        help="each code makes random weights of its own: no file is written, and actions cannot be compared",
    )


def run(args: argparse.Namespace) -> int:
    """Exit status 1 when the actions are not the same: then the work was not the same, either."""
    run = begin("compare", args, others=args.others, same_weights=not args.own_weights)
    report, setup = run.report, run.setup
    adapters: dict[str, Adapter] = {}
    for name in args.others.split(","):
        if name not in ADAPTERS:
            raise InvalidInput("with", f"some of {', '.join(ADAPTERS)}", repr(name))
        adapter: Any = import_module(ADAPTERS[name])
        if why := adapter.missing(setup):
            report.note(f"{name}: not compared, {why}")
        else:
            adapters[name] = adapter
    is_same = True
    if adapters:
        with ExitStack() as stack:
            folder = None if args.own_weights else weights_of(setup, stack)
            is_same = measure(run, adapters, folder)
        report.figure("latency", lambda figure: draw(figure, report.rows))
    report.finish(COLUMNS, f"compare: {args.model} {args.dtype}, {args.robot}, actions alone")
    return int(not is_same)


def weights_of(setup: Setup, stack: ExitStack) -> Path:
    """A folder that all codes read: the checkpoint itself, or the preset's random weights, written for the while."""
    if not setup.is_preset:
        return resolve(setup.model)
    from oxygen.bench.torch.weights import write_weights

    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="oxygen-compare-")))
    write_weights(setup, folder / "weights")
    return folder / "weights"


def measure(run: Run, adapters: dict[str, Adapter], folder: Path | None) -> bool:
    """Let all codes take turns; returns whether their actions agree."""
    setup, report = run.setup, run.report
    inputs = setup.frames().make()
    spec = setup.spec()
    noise = np.random.default_rng(0).standard_normal((spec.horizon, spec.action_dim), dtype=np.float32)
    # The others come first: while they are built they need the most memory.
    chunks = {name: adapter.open_chunks(setup, folder, inputs, noise) for name, adapter in adapters.items()}
    ours = setup if folder is None else replace(setup, model=str(folder))
    rooms = Rooms(ours.open(max_contexts=2, max_texts=1, tail_len=1))
    rooms.runner.prefill([PrefillItem(0, ROW, inputs, frame_key=-1)])
    mine = rooms.runner.act([ActItem(0, 0, ROW, inputs.num_tokens, "action", setup.num_steps, noise)])[0]
    rooms.runner.forget([ROW], [])
    lanes, versions = [], {"oxygen": ""}
    differences: dict[str, float | None] = {"oxygen": None}
    began = time.perf_counter()
    for name, (found, chunk) in chunks.items():
        versions[name] = found
        difference = float(np.abs(chunk() - mine).max())
        differences[name] = None if folder is None else round(difference, 6)
        lanes.append(Lane(Foreign(name, chunk, rooms.clock), [()], run.args.frames))
    lanes.append(Lane(Oxygen(rooms.take(2, 1), setup.frames(), setup.num_steps, 1), [()], run.args.frames))
    run.expect(1.5 * (run.args.frames + 2) * (time.perf_counter() - began))
    run.alternate("compare", lanes)
    rows = [frame_row(x, new_tokens=0, num_steps=setup.num_steps, horizon=spec.horizon) for x in lanes]
    for row in rows:
        row["code"], row["version"] = row["mode"], versions[row["mode"]]
        row["action_difference"] = differences[row["mode"]]
    speedups(rows, rows[0])
    report.rows = rows
    limit = TOLERANCE[setup.dtype]
    wrong = [name for name, difference in differences.items() if difference is not None and difference > limit]
    for name in wrong:
        report.note(f"caution: the actions of {name} differ from ours by {differences[name]}: not the same work")
    if folder is not None and not wrong:
        report.note(f"all codes make the same actions, to {limit:g} (largest {max(np.abs(mine).max(), 0):.2f})")
    return not wrong


def draw(figure: Any, rows: list[dict[str, Any]]) -> None:
    axes = figure.subplots()
    names = [f"{r['code']} {r['version']}".strip() for r in rows]
    values = [r["action_ready_ms_p50"] for r in rows]
    bars = axes.barh(names, values, color=["#8c8c8c" if r["code"] != "oxygen" else "#c0392b" for r in rows])
    axes.bar_label(bars, [f"{v:.0f}" for v in values], padding=3)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_xlabel("from a frame to its actions, ms")
