"""`oxygen bench all`: every benchmark in a process of its own, one after another, and one report with all figures.

The report is written anew after every benchmark, from all that the folder holds. `--resume` goes on where a run was
stopped; `--only` measures some of them (again). `--estimate` opens the model for each and says how long all would take.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from oxygen.bench.command import add_place, begin
from oxygen.bench.report import minutes
from oxygen.bench.setup import Setup

COLUMNS = ("bench", "status", "seconds", "expected_s", "rows", "load_during")
ORDER = (
    "frame",
    "pareto",
    "speedup",
    "ablation",
    "workloads",
    "breakdown",
    "management",
    "memory",
    "stability",
    "budget",
    "roofline",
    "compare",
    "serve",
)
QUICK: dict[str, Sequence[str]] = {
    "frame": ("--frames", "12"),
    "pareto": ("--frames", "5", "--new-tokens", "5,20", "--rounds", "1,5"),
    "speedup": ("--frames", "5", "--new-tokens", "10,30", "--rounds", "1,5", "--steps", "5,10"),
    "ablation": ("--frames", "5", "--new-tokens", "10,30"),
    "workloads": ("--frames", "10", "--rates", "0.5,2"),
    "breakdown": ("--frames", "5", "--new-tokens", "1,10,30"),
    "management": ("--frames", "12"),
    "memory": ("--frames", "3", "--rounds", "1,5"),
    "stability": ("--frames", "476"),
    "budget": ("--frames", "40"),
    "roofline": ("--frames", "5"),
    "compare": ("--frames", "5"),
    "serve": ("--frames", "60", "--seconds", "1", "--robots", "1,4"),
}
"""What `--quick` adds: enough to see that all work, and the shape of each curve."""
OWN_MODEL = {"stability": "pi05-tiny"}
"""Thousands of frames are run on the smallest model whatever else is measured."""
EXPERTS = "_experts"
"""Behind the name of a benchmark, where what it wrote is about several action experts."""


def names(written: str) -> list[str]:
    """`frame,pareto` as names of benchmarks."""
    found = [part for part in written.split(",") if part]
    if unknown := [name for name in found if name not in ORDER]:
        raise argparse.ArgumentTypeError(f"no benchmarks: {', '.join(unknown)}; there are {', '.join(ORDER)}")
    return found


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_place(parser, model="pi05-tiny", dtype="float32")
    parser.add_argument("--out", type=Path, default=Path("out/bench"), help="folder of the report")
    parser.add_argument("--quick", action="store_true", help="few frames and points: a look, not a measurement")
    parser.add_argument("--only", type=names, default=None, help=f"with commas, some of {', '.join(ORDER)}")
    parser.add_argument("--resume", action="store_true", help="keep what the folder holds of the same command line")
    parser.set_defaults(frames=0, num_steps=None)


def run(args: argparse.Namespace) -> int:
    """Exit status 1 when one of them failed; the others are run all the same."""
    run = begin("all", args, quick=args.quick)
    report = run.report
    results: dict[str, Any] = {}
    for name in args.only or ORDER:
        options = arguments(name, args, run.setup)
        print(f"== {command_of(name, options)}", file=sys.stderr)
        started = time.perf_counter()
        record = kept(args.out, name, options) if args.resume else None
        row: dict[str, Any] = {"bench": name, "status": "kept" if record else "done"}
        if record is None:
            record = run_apart(name, options)
        row["seconds"] = round(time.perf_counter() - started, 1)
        if record is None:
            row["status"] = "failed"
        else:
            results[name] = record
            row["expected_s"] = record.get("expected_s")
            if not args.estimate:
                row |= {"rows": len(record["rows"]), "load_during": record["machine"]["load_during"]}
        report.rows.append(row)
        if not args.estimate:
            write_report(args.out, [row["bench"] for row in report.rows if row["status"] == "failed"])
    report.extra["results"] = results
    if args.estimate:
        args.out = report.out = None
        report.note(f"in all about {minutes(sum(row.get('expected_s') or 0 for row in report.rows))}, opening apart")
    report.finish(COLUMNS, f"all: {args.model} {args.dtype}")
    return int(any(row["status"] == "failed" for row in report.rows))


def arguments(name: str, args: argparse.Namespace, setup: Setup) -> list[str]:
    """The command line of one benchmark."""
    given = ["--model", OWN_MODEL.get(name, setup.model), "--device", setup.device, "--dtype", setup.dtype]
    given += ["--robot", setup.robot, "--out", str(args.out)]
    given += ["--threads", str(args.threads)] if args.threads else []
    given += ["--estimate"] if args.estimate else []
    return [*given, *(QUICK[name] if args.quick else ())]


def command_of(name: str, options: Sequence[str]) -> str:
    return shlex.join(["oxygen", "bench", name, *options])


def kept(out: Path, name: str, options: Sequence[str]) -> dict[str, Any] | None:
    """What an earlier run with the same command line wrote, if there is such a one."""
    for path in files_of(out, name, ".json"):
        found: dict[str, Any] = json.loads(path.read_text())
        if found.get("command") == command_of(name, options):
            return found
    return None


def files_of(out: Path, name: str, ending: str) -> list[Path]:
    """What the folder holds of a benchmark."""
    return [path for path in (out / f"{name}{ending}", out / f"{name}{EXPERTS}{ending}") if path.exists()]


def run_apart(name: str, options: Sequence[str]) -> dict[str, Any] | None:
    """Run one in a process of its own (peaks and faults are its own); returns its last line, None if it failed."""
    command = [sys.executable, "-m", "oxygen.bench", name, *options]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    lines = done.stdout.strip().splitlines()
    sys.stdout.write("".join(line + "\n" for line in lines[:-1]))
    sys.stdout.flush()
    # 1 is a verdict (stability, compare) when there is a last line, and an error when there is none.
    if done.returncode not in (0, 1) or not lines or not lines[-1].startswith("{"):
        return None
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def write_report(out: Path, failed: Sequence[str]) -> None:
    """Put the sections that the benchmarks wrote, now or earlier, into one page."""
    found = [path for name in ORDER for path in files_of(out, name, ".md")]
    contents = [f"* [{path.stem}](#{path.stem}): {title_of(path)}" for path in found]
    contents += [f"* {name}: failed in this run; a section of it is of an earlier one" for name in failed]
    text = (
        "# OxyGen, measured\n\nTimes are medians; modes took turns within one run. Every section names its commit.\n\n"
    )
    text += "\n".join(contents) + "\n\n" + "\n".join(path.read_text() for path in found)
    out.mkdir(parents=True, exist_ok=True)
    (out / "report.md").write_text(text)
    print(f"report: {out / 'report.md'}", file=sys.stderr)


def title_of(section: Path) -> str:
    from oxygen.bench.main import BENCHES

    return BENCHES[section.stem.removesuffix(EXPERTS)]
