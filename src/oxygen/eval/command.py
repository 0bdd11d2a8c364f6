"""`oxygen eval`: arguments, progress, tables, and one JSON line at the end."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from oxygen.core.config import EngineConfig
from oxygen.sim.graphics import NoSimulator, require_simulator
from oxygen.sim.tasks import TASK_NAMES
from oxygen.sim.threads import keep_threads_quiet

MODES = ("oxygen", "isolated", "remote")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="oxygen-tiny", help="checkpoint folder or a shipped name")
    parser.add_argument("--mode", choices=MODES, default="oxygen", help="how tasks of a frame are served")
    parser.add_argument("--budget", default="fixed:6", help="text budget of the engine (fixed:K, rate:F or idle)")
    parser.add_argument("--tasks", nargs="+", choices=TASK_NAMES, default=list(TASK_NAMES), metavar="TASK")
    parser.add_argument("--episodes", type=int, default=20, help="fresh layouts of each task")
    parser.add_argument("--twin-episodes", type=int, default=10, help="layouts under the opposite instruction")
    parser.add_argument("--questions", type=int, default=40, help="questions of each topic and answer (0: none)")
    parser.add_argument("--seed", type=int, default=0, help="first of the layouts set apart for evaluation")
    parser.add_argument("--no-text", action="store_true", help="actions only")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--write", type=Path, help="file for the tables (Markdown)")


def run(args: argparse.Namespace) -> int:
    """Evaluate and print; 0 on success, 2 where the simulator cannot run."""
    keep_threads_quiet()
    from oxygen.bench.machine import Machine, commit
    from oxygen.eval.closed_loop import Wishes, timed
    from oxygen.eval.doors import open_door
    from oxygen.eval.report import rows, tables

    console = Console(file=sys.stderr)
    try:
        require_simulator()
    except NoSimulator as error:
        console.print(f"oxygen eval: {error}")
        return 2
    kinds = () if args.no_text else ("subtask", "memory", "narration")
    wishes = Wishes(
        tuple(args.tasks), args.episodes, args.twin_episodes, args.seed, kinds, 0 if args.no_text else args.questions
    )
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    config = EngineConfig(budget=args.budget)
    machine = Machine.begin(args.device, args.dtype)
    with (
        open_door(args.model, args.mode, config=config, device=args.device, dtype=args.dtype) as opened,
        Progress(*columns, console=console) as progress,
    ):
        report, seconds = timed(opened, wishes, progress)
    text = tables(report)
    print(text)
    if args.write:
        args.write.write_text(text + "\n", encoding="utf-8")
    line = {
        "bench": "eval",
        "commit": commit(),
        "machine": machine.end(),
        "config": {"model": str(args.model), "mode": args.mode, "budget": args.budget, **asdict(wishes)},
        "seconds": round(seconds, 1),
        "rows": rows(report, args.mode),
    }
    print(json.dumps(line))
    return 0
