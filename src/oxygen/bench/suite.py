"""`oxygen bench all`: every benchmark in a process of its own, one after another, and one report with all figures."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from oxygen.bench.command import begin
from oxygen.bench.machine import commit
from oxygen.bench.setup import Setup
from oxygen.bench.shapes import SHAPES

COLUMNS = (("bench", "bench"), ("status", "status"), ("seconds", "seconds"), ("rows", "rows"), ("load_during", "load"))
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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="pi05-tiny", help="a preset (random weights) or a checkpoint folder")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--robot", default="libero", choices=tuple(SHAPES), help="shape of a frame")
    parser.add_argument("--threads", type=int, default=None, help="of a CPU (default: torch's choice)")
    parser.add_argument("--out", type=Path, default=Path("out/bench"), help="folder of the report")
    parser.add_argument("--quick", action="store_true", help="few frames and points: a look, not a measurement")
    parser.add_argument("--only", default=None, help=f"with commas, some of {', '.join(ORDER)}")
    parser.set_defaults(frames=0, num_steps=10)


def run(args: argparse.Namespace) -> int:
    """Exit status 1 when one of them failed; the others are run all the same."""
    run = begin("all", args, quick=args.quick)
    report = run.report
    results: dict[str, Any] = {}
    for name in [n for n in ORDER if args.only is None or n in args.only.split(",")]:
        print(f"== oxygen bench {name}", file=sys.stderr)
        started = time.perf_counter()
        record = run_apart(name, arguments(name, args, run.setup))
        row: dict[str, Any] = {"bench": name, "status": "failed" if record is None else "done"}
        row["seconds"] = round(time.perf_counter() - started, 1)
        if record is not None:
            results[name] = record
            row |= {"rows": len(record["rows"]), "load_during": record["machine"]["load_during"]}
        report.rows.append(row)
    report.extra["results"] = results
    report.finish(COLUMNS, f"all: {args.model} {args.dtype}")
    write_report(args.out, results)
    return int(any(row["status"] != "done" for row in report.rows))


def arguments(name: str, args: argparse.Namespace, setup: Setup) -> list[str]:
    """The command line of one benchmark."""
    given = ["--model", OWN_MODEL.get(name, setup.model), "--device", setup.device, "--dtype", setup.dtype]
    given += ["--robot", setup.robot, "--out", str(args.out)]
    given += ["--threads", str(args.threads)] if args.threads else []
    return [*given, *(QUICK[name] if args.quick else ())]


def run_apart(name: str, arguments: Sequence[str]) -> dict[str, Any] | None:
    """Run one in a process of its own (peaks and faults are its own); returns its last line, None if it failed."""
    command = [sys.executable, "-m", "oxygen.bench", name, *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    lines = done.stdout.strip().splitlines()
    sys.stdout.write("".join(line + "\n" for line in lines[:-1]))
    if done.returncode not in (0, 1) or not lines or not lines[-1].startswith("{"):
        return None
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def write_report(out: Path, results: dict[str, Any]) -> None:
    """Put the sections that the benchmarks wrote into one page."""
    sections = [path.read_text() for name in results if (path := out / f"{name}.md").exists()]
    text = f"# OxyGen, measured\n\nCommit {commit()}. Times are medians; modes took turns within one run.\n\n"
    (out / "report.md").write_text(text + "\n".join(sections))
    print(f"report: {out / 'report.md'}", file=sys.stderr)
