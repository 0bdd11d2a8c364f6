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
from oxygen.eval.libero_arguments import METAWORLD, SUITES, add_libero_arguments
from oxygen.sim.graphics import NoSimulator, require_simulator
from oxygen.sim.tasks import TASK_NAMES
from oxygen.sim.threads import keep_threads_quiet

MODES = ("oxygen", "isolated", "remote")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--suite",
        choices=(METAWORLD, *SUITES),
        default=METAWORLD,
        help="the arm that the policy in the box was trained on, or one of LIBERO's suites (default: %(default)s)",
    )
    parser.add_argument(
        "--model",
        "--policy",
        default="oxygen-tiny",
        help="checkpoint folder, a shipped name, or a preset (random weights); LIBERO also: script, a stand-in "
        "that knows where the objects are (default: %(default)s)",
    )
    parser.add_argument("--mode", choices=MODES, default="oxygen", help="how tasks of a frame are served")
    parser.add_argument("--budget", default="fixed:6", help="text budget of the engine (fixed:K, rate:F or idle)")
    parser.add_argument(
        "--tasks",
        nargs="+",
        metavar="TASK",
        help=f"what the arm is to do, of {', '.join(TASK_NAMES)}; LIBERO: numbers from 0 to 9 (default: all)",
    )
    parser.add_argument("--episodes", type=int, help="layouts of each task (default: 20; LIBERO: 50)")
    parser.add_argument("--twin-episodes", type=int, default=10, help="layouts under the opposite words (not LIBERO)")
    parser.add_argument("--questions", type=int, default=40, help="questions of a topic and answer (not LIBERO)")
    parser.add_argument("--seed", type=int, help="first of the evaluation layouts (default: 0; LIBERO: 7)")
    parser.add_argument("--no-text", action="store_true", help="actions only (LIBERO: always)")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1 (default: %(default)s)")
    parser.add_argument(
        "--dtype",
        default="float32",
        choices=("float32", "bfloat16"),
        help="number type of weights and caches (default: %(default)s)",
    )
    parser.add_argument("--write", type=Path, help="file for the tables (Markdown)")
    add_libero_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Evaluate and print; 0 on success, 2 where the simulator cannot run."""
    keep_threads_quiet()
    from oxygen.bench.machine import Machine, commit
    from oxygen.core.errors import InvalidInput
    from oxygen.eval.closed_loop import Wishes, timed
    from oxygen.eval.doors import open_door
    from oxygen.eval.report import rows, tables

    console = Console(file=sys.stderr)
    try:
        if args.suite != METAWORLD:
            from oxygen.eval.libero_command import run_libero

            return run_libero(args, console)
        require_simulator()
    except NoSimulator as error:
        console.print(f"oxygen eval: {error}", markup=False, soft_wrap=True)  # [extra] is no markup
        return 2
    kinds = () if args.no_text else ("subtask", "memory", "narration")
    tasks = tuple(args.tasks or TASK_NAMES)
    if unknown := [name for name in tasks if name not in TASK_NAMES]:
        raise InvalidInput("tasks", f"some of {', '.join(TASK_NAMES)}", repr(unknown[0]))
    episodes = 20 if args.episodes is None else args.episodes
    questions = 0 if args.no_text else args.questions
    wishes = Wishes(tasks, episodes, args.twin_episodes, args.seed or 0, kinds, questions)
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
