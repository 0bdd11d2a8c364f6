"""`oxygen eval --suite libero_...`: what the arguments mean there, the run, the table and the JSON line."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from oxygen.bench.machine import Machine, commit
from oxygen.checkpoint.folder import Checkpoint, open_folder
from oxygen.checkpoint.shipped import SHIPPED
from oxygen.core.config import EngineConfig
from oxygen.core.errors import InvalidInput
from oxygen.eval.closed_loop import Report
from oxygen.eval.doors import OpenDoor, open_door
from oxygen.eval.libero import EPISODES, SEED, TASKS_PER_SUITE, LiberoWishes, evaluate_libero
from oxygen.eval.libero_scene import LiberoScene, require_libero
from oxygen.eval.libero_script import ScriptedDoor
from oxygen.eval.report import rows, tables
from oxygen.runtime.presets import is_preset

SCRIPT = "script"
"""Name of the stand-in that knows the objects' poses, where a checkpoint is named otherwise."""


def run_libero(args: argparse.Namespace, console: Console) -> int:
    """Evaluate and print. Raises NoSimulator where the extra or OpenGL is missing, InvalidInput for wrong tasks."""
    require_libero()
    wishes = _wishes(args)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    machine = Machine.begin(args.device, args.dtype)
    with _door(args) as opened, Progress(*columns, console=console) as progress:

        def open_scene(task: int) -> LiberoScene:
            scene = LiberoScene(wishes.suite, task, is_fast=args.rendering == "fast", seed=wishes.seed)
            if isinstance(opened.door, ScriptedDoor):
                opened.door.watch(scene)
            return scene

        report = evaluate_libero(open_scene, opened.door, opened.noise_shape, wishes, progress)
    text = f"{_heading(args, wishes, opened.mode)}\n\n{tables(report)}"
    print(text)
    if args.write:
        args.write.write_text(text + "\n", encoding="utf-8")
    print(json.dumps(_line(args, wishes, report, opened.mode, machine.end())))
    return 0


def _heading(args: argparse.Namespace, wishes: LiberoWishes, mode: str) -> str:
    """What a table counts, as a line above it."""
    served = "" if mode == SCRIPT else f", served by {mode}"
    return (
        f"{wishes.suite}: {args.model}{served}, episodes of each task: {wishes.episodes}, "
        f"at most {wishes.limit} steps, seed {wishes.seed}, rendering {args.rendering}"
    )


def _wishes(args: argparse.Namespace) -> LiberoWishes:
    if args.model in SHIPPED:
        raise InvalidInput("model", f"a folder trained for LIBERO, a preset's name or {SCRIPT}", repr(args.model))
    tasks = []
    for word in args.tasks or map(str, range(TASKS_PER_SUITE)):
        if not word.isdecimal() or int(word) >= TASKS_PER_SUITE:
            raise InvalidInput("tasks", f"numbers from 0 to {TASKS_PER_SUITE - 1} of {args.suite}", repr(word))
        tasks.append(int(word))
    episodes = EPISODES if args.episodes is None else args.episodes
    for name, value in (("episodes", episodes), ("max-steps", args.max_steps)):
        if value is not None and value < 1:
            raise InvalidInput(name, "an integer of at least 1", repr(value))
    seed = SEED if args.seed is None else args.seed
    return LiberoWishes(args.suite, tuple(tasks), episodes, seed, args.max_steps)


@contextmanager
def _door(args: argparse.Namespace) -> Iterator[OpenDoor]:
    if args.model == SCRIPT:
        yield OpenDoor(ScriptedDoor(), (1, 1), SCRIPT)
        return
    with open_door(
        args.model,
        args.mode,
        config=EngineConfig(budget=args.budget),
        device=args.device,
        dtype=args.dtype,
        threads=None,
        robot=args.robot or _robot(args.model),
    ) as opened:
        yield opened


def _robot(model: str) -> str | None:
    if is_preset(model):
        return "libero"
    return robot_of(open_folder(model))


def robot_of(folder: Checkpoint) -> str | None:
    """What a folder must be told so that it drives LIBERO: nothing (None) if it was written with its robot.

    A LeRobot folder names cameras its own way, one of openpi's often has no robot and no chunk length either.
    """
    if folder.declared.get("robot") is not None or folder.declared.get("processor") is not None:
        return None
    has_length = folder.pipeline is not None or "action_horizon" in folder.config or "chunk_size" in folder.config
    return "libero" if has_length else "pi05_libero"


def _line(
    args: argparse.Namespace, wishes: LiberoWishes, report: Report, mode: str, machine: dict[str, Any]
) -> dict[str, Any]:
    chosen = asdict(wishes) | {"max_steps": wishes.limit, "rendering": args.rendering}
    return {
        "bench": "eval",
        "commit": commit(),
        "machine": machine,
        "config": {"model": str(args.model), "mode": mode, "budget": args.budget, **chosen},
        "seconds": round(report.loop_s, 1),
        "rows": rows(report, mode),
    }
