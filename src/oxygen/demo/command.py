"""`oxygen demo`: a robot arm at work through the engine, the same once more without sharing, and the comparison."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from rich.console import Console

from oxygen.sim.graphics import NoSimulator, require_simulator
from oxygen.sim.tasks import DEMO_SEEDS, TASK_NAMES
from oxygen.sim.threads import keep_threads_quiet

TASKS_SHOWN = ("drawer-open", "faucet-close", "window-open", "button-press-topdown")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="oxygen-tiny", help="checkpoint folder or a shipped name")
    parser.add_argument("--out", type=Path, default=Path("out/demo"), help="folder for the film and the plot")
    parser.add_argument(
        "--tasks",
        nargs="+",
        choices=TASK_NAMES,
        default=list(TASKS_SHOWN),
        metavar="TASK",
        help=f"what the arm is to do, of {', '.join(TASK_NAMES)} (default: {' '.join(TASKS_SHOWN)})",
    )
    parser.add_argument("--episodes", type=int, default=1, help="episodes of each task")
    parser.add_argument("--seed", type=int, default=0, help="first layout")
    parser.add_argument("--budget", default="idle", help="text budget of the engine (fixed:K, rate:F or idle)")
    parser.add_argument("--recorded", action="store_true", help="replay recorded frames even where a simulator is")
    parser.add_argument("--serve", action="store_true", help="keep the robot working and serve the web page")
    parser.add_argument("--port", type=int, default=8000, help="port of the web page")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1 (default: %(default)s)")


def run(args: argparse.Namespace) -> int:
    """Run the demo; the last line on stdout is JSON. Without a simulator it replays recorded frames and says so."""
    keep_threads_quiet()
    console = Console(file=sys.stderr)
    is_live = not args.recorded
    if is_live:
        try:
            require_simulator()
        except NoSimulator as error:
            is_live = False
            console.print(f"{error}", markup=False)
    if not is_live:
        console.print(
            "[yellow]Replaying recorded frames: the engine's work is real, the arm's success is not measured. A frame "
            "follows as soon as the last one has its actions, so texts wait longer than beside an arm that moves."
        )
    from oxygen.demo import show

    if args.serve:
        return show.serve(args, console, is_live)
    line = show.compare(args, console, is_live, DEMO_SEEDS[args.seed : args.seed + args.episodes])
    print(json.dumps(line))
    return 0
