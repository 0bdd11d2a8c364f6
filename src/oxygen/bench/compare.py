"""`oxygen bench compare`: other people's code on the same sizes, through its public interface, where installed."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib import import_module
from typing import Any, Protocol

from oxygen.bench.command import add_common, begin
from oxygen.bench.measure import Lane, frame_row, speedups
from oxygen.bench.modes import FrameSample, Oxygen
from oxygen.bench.probe import Rooms
from oxygen.bench.setup import Setup
from oxygen.core.errors import InvalidInput

ADAPTERS = {"lerobot": "oxygen.bench.torch.lerobot"}
"""Each module has `missing(setup)`, why it cannot run (or an empty string), and `open_chunks(setup)`, see Opener."""
COLUMNS = (
    ("code", "code"),
    ("version", "version"),
    ("action_ready_ms_p50", "actions ready p50"),
    ("action_ready_ms_p99", "p99"),
    ("action_ready_ms_p50_spread", "spread"),
    ("speedup", "x"),
)


class Opener(Protocol):
    """What an adapter offers."""

    def missing(self, setup: Setup) -> str: ...

    def open_chunks(self, setup: Setup) -> tuple[str, Callable[[], object]]:
        """Return the version of the code, and what makes one action chunk of a new frame, device waited for."""


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
    add_common(parser, model="pi05", frames=20)
    parser.set_defaults(dtype="bfloat16")
    parser.add_argument("--with", dest="others", default="lerobot", help=f"with commas: {', '.join(ADAPTERS)}")


def run(args: argparse.Namespace) -> int:
    run = begin("compare", args, others=args.others)
    report, setup = run.report, run.setup
    openers: dict[str, Any] = {}
    for name in args.others.split(","):
        if name not in ADAPTERS:
            raise InvalidInput("with", f"some of {', '.join(ADAPTERS)}", repr(name))
        adapter = import_module(ADAPTERS[name])
        if why := adapter.missing(setup):
            report.note(f"{name}: not compared, {why}")
        else:
            openers[name] = adapter
    if openers:
        rooms = Rooms(setup.open(max_contexts=2, max_texts=1, tail_len=1))
        ours = Oxygen(rooms.take(2, 1), setup.frames(), setup.num_steps, 1)
        lanes, versions = [Lane(ours, [()], args.frames)], {"oxygen": ""}
        for name, adapter in openers.items():
            versions[name], chunk = adapter.open_chunks(setup)
            lanes.append(Lane(Foreign(name, chunk, rooms.clock), [()], args.frames))
        run.alternate("compare", lanes)
        horizon = rooms.runner.limits.horizon
        report.rows = [frame_row(x, new_tokens=0, num_steps=setup.num_steps, horizon=horizon) for x in lanes]
        for row in report.rows:
            row["code"], row["version"] = row["mode"], versions[row["mode"]]
        speedups(report.rows, report.rows[-1])
    report.finish(COLUMNS, f"compare: {args.model} {args.dtype}, {args.robot}")
    return 0
