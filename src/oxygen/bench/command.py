"""What all benchmarks have in common on the command line, and how one begins."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from oxygen.bench.machine import Machine
from oxygen.bench.measure import Lane, alternate, num_steps_of
from oxygen.bench.report import Report, progress
from oxygen.bench.setup import Setup
from oxygen.bench.shapes import SHAPES


def integers(written: str) -> list[int]:
    """`1,5,10` as numbers; argparse turns the error into its own."""
    numbers = [int(part) for part in written.split(",") if part.strip()]
    if not numbers or min(numbers) < 1:
        raise argparse.ArgumentTypeError(f"expected positive numbers with commas between, got {written!r}")
    return numbers


def numbers(written: str) -> list[float]:
    """`0.5,1,2` as numbers above 0."""
    found = [float(part) for part in written.split(",") if part.strip()]
    if not found or min(found) <= 0:
        raise argparse.ArgumentTypeError(f"expected numbers above 0 with commas between, got {written!r}")
    return found


def positive(written: str) -> int:
    number = int(written)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected a number of at least 1, got {written}")
    return number


class Parser(argparse.ArgumentParser):
    """Says the default of every option that has one."""

    def add_argument(self, *names: Any, **options: Any) -> argparse.Action:
        default = options.get("default")
        if default not in (None, "", False, argparse.SUPPRESS) and options.get("help") is not argparse.SUPPRESS:
            shown = ",".join(map(str, default)) if isinstance(default, list | tuple) else default
            options["help"] = f"{options.get('help', '')} (default: {shown})".strip()
        return super().add_argument(*names, **options)


def add_common(
    parser: argparse.ArgumentParser, *, model: str = "pi05-tiny", dtype: str = "float32", frames: int = 40
) -> None:
    """The options that every benchmark takes."""
    add_place(parser, model=model, dtype=dtype)
    parser.add_argument(
        "--num-steps", type=positive, help="flow steps of an action chunk (S; default: the model's own)"
    )
    parser.add_argument("--frames", type=positive, default=frames, help="frames measured per point, after the warm-up")
    parser.add_argument(
        "--out", type=Path, default=None, help="folder for CSV, JSON, Markdown and figures (default: none)"
    )


def add_place(parser: argparse.ArgumentParser, *, model: str, dtype: str) -> None:
    """What is measured, and where."""
    parser.add_argument("--model", default=model, help="a preset (random weights) or a checkpoint folder")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    parser.add_argument("--dtype", default=dtype, choices=("float32", "bfloat16"), help="of weights and K and V")
    parser.add_argument("--robot", default="libero", choices=tuple(SHAPES), help="shape of a frame")
    parser.add_argument("--threads", type=positive, default=None, help="of a CPU (default: torch's choice)")
    parser.add_argument("--estimate", action="store_true", help="say how long it would take, and stop")


@dataclass(slots=True)
class Run:
    """A benchmark that has begun."""

    setup: Setup
    report: Report
    args: argparse.Namespace

    def alternate(self, title: str, lanes: Sequence[Lane], between: Callable[[int], None] = lambda turn: None) -> None:
        """Let lanes take turns, with peaks of memory and a progress bar."""
        from oxygen.bench.torch.device import peak_bytes, reset_peak

        with progress(title, num_steps_of(lanes)) as advance:
            alternate(
                lanes,
                reset_peak=partial(reset_peak, self.setup.device),
                peak_bytes=partial(peak_bytes, self.setup.device),
                advance=advance,
                between=between,
            )

    def expect(self, seconds: float, what: str = "") -> None:
        """Say how long the run will take. Raises Estimated where nothing else was asked for."""
        self.report.expect(seconds, self.args.estimate, what)


def begin(name: str, args: argparse.Namespace, **more: Any) -> Run:
    """Read the common options, look at the machine, open the report. more: further entries of its configuration."""
    setup = Setup(args.model, args.device, args.dtype, args.robot, args.num_steps or 0, args.threads, _experts(args))
    args.num_steps = setup.steps()
    setup = replace(setup, num_steps=args.num_steps)
    if args.threads is not None:
        from oxygen.bench.torch.device import set_threads

        set_threads(args.threads)
    shape = setup.shape()
    config = asdict(setup) | {
        "horizon": shape.horizon,
        "num_cameras": shape.num_cameras,
        "context_len": setup.frames().context_len,
        "num_parameters": setup.spec().num_parameters(),
        "frames": args.frames,
    }
    config.pop("threads")
    machine = Machine.begin(args.device, args.dtype)
    return Run(setup, Report(name, config | more, machine, getattr(args, "command", ""), args.out), args)


def _experts(args: argparse.Namespace) -> tuple[str, ...]:
    """`--experts` where a benchmark has it."""
    return tuple(name for name in getattr(args, "experts", "").split(",") if name)
