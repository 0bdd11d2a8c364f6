"""The demo's course: both modes over the same layouts, the souvenirs, the table; or the robot at work without end."""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import time
import webbrowser
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from rich.console import Console
from rich.table import Table

from oxygen.bench.machine import Machine, commit
from oxygen.checkpoint.shipped import ASSETS
from oxygen.core.config import EngineConfig
from oxygen.demo.film import Filmstrip
from oxygen.demo.measure import Run, run_all, same_actions, same_texts
from oxygen.demo.plot import plot
from oxygen.demo.view import View
from oxygen.demo.workload import wanted_texts
from oxygen.eval.doors import OpenDoor, open_door
from oxygen.sim.arm import Arm
from oxygen.sim.drive import Body, Door, Look, run_episode
from oxygen.sim.recorded import RecordedArm, load_films
from oxygen.sim.remote import RemoteDoor
from oxygen.sim.tasks import DEMO_SEEDS

FILMS = ASSETS / "oxygen-demo" / "episodes.npz"
SERVED_FRAMES_PER_S = 8.0

Arms = list[tuple[Callable[[], Body], int]]


def arms_for(tasks: Sequence[str], seeds: Sequence[int], is_live: bool) -> Arms:
    """What makes each episode's arm, with its layout. Recorded: the films of these tasks, else all of them."""
    if not is_live:
        films = load_films(FILMS)
        chosen = [film for film in films if film.task in tasks] or films
        return [(partial(RecordedArm, film), number) for number, film in enumerate(chosen)]
    return [(partial(Arm, task), seed) for task in tasks for seed in seeds]


def compare(args: argparse.Namespace, console: Console, is_live: bool, seeds: Sequence[int]) -> dict[str, Any]:
    """Run both modes and return the JSON line."""
    arms = arms_for(args.tasks, seeds, is_live)
    machine = Machine.begin(args.device, "float32")
    runs = []
    film = Filmstrip()
    for mode in ("oxygen", "isolated"):
        config = EngineConfig(budget=args.budget)
        with (
            open_door(args.model, mode, config=config, device=args.device) as opened,
            View(console, mode, len(arms)) as view,
        ):
            if opened.engine is not None:
                opened.engine.subscribe(view.record)

            def on_look(run: Run, body: Body, look: Look, view: View = view) -> None:
                view.look(run, body, look)
                if run.mode == "oxygen":
                    film.add(run, body.large, look)

            runs.append(run_all(opened, arms, on_look, view.end, is_live))
    args.out.mkdir(parents=True, exist_ok=True)
    film.write(args.out / "demo.gif", runs[0])
    has_plot = plot(args.out / "demo.png", runs)
    shared, alone = (run.summary() for run in runs)
    is_same = {"same_actions": same_actions(*runs), "same_texts": same_texts(*runs)}
    _tell(console, shared, alone, is_same)
    console.print(f"{args.out / 'demo.gif'}: what the cameras saw and what was said", markup=False, soft_wrap=True)
    plotted = f"{args.out / 'demo.png'}: actions and text ages" if has_plot else "no plot: matplotlib is not installed"
    console.print(plotted, markup=False, soft_wrap=True)
    return {
        "bench": "demo",
        "commit": commit(),
        "machine": machine.end(),
        "config": {"model": str(args.model), "budget": args.budget, "seeds": list(seeds), "closed_loop": is_live},
        **{key: value for key, value in shared.items() if key != "mode"},
        "isolated": {key: value for key, value in alone.items() if key != "mode"},
        **is_same,
        "rows": [shared, alone],
    }


ROWS = (
    ("camera frames served", "frames_per_s", "per second"),
    ("from one frame to the next", "frame_ms", "ms"),
    ("from a frame to its actions, median", "action_ready_ms_p50", "ms"),
    ("from a frame to its actions, p99", "action_ready_ms_p99", "ms"),
    ("text written", "tokens_per_s", "tokens/s"),
    ("age of a text, median", "answer_age_ms_p50", "ms"),
    ("age of a text, median", "answer_age_frames_p50", "frames"),
)


def comparison(shared: dict[str, Any], alone: dict[str, Any]) -> Table:
    table = Table()
    for header in ("the same episodes twice", "oxygen", "isolated", "unit"):
        table.add_column(header, justify="right" if header in ("oxygen", "isolated") else "left")
    if shared["success"] is not None:
        done = [f"{row['success']} of {row['episodes']}" for row in (shared, alone)]
        table.add_row("tasks done", *done, "episodes")
    for label, key, unit in ROWS:
        table.add_row(label, *("–" if row[key] is None else f"{row[key]:.1f}" for row in (shared, alone)), unit)
    return table


def _tell(console: Console, shared: dict[str, Any], alone: dict[str, Any], is_same: dict[str, bool]) -> None:
    """The table, and what a reader of it must know."""
    console.print(comparison(shared, alone))
    console.print(
        "The age of a text counts from the camera frame that it describes to its last word: the time passed, and how "
        "many newer frames the robot had sent by then.",
        style="dim",
    )
    words = {True: "the same", False: "[red]not the same[/]"}
    console.print(
        f"Between the two runs the actions are {words[is_same['same_actions']]} (bit for bit), "
        f"the texts are {words[is_same['same_texts']]} (token for token)."
    )


def serve(args: argparse.Namespace, console: Console, is_live: bool) -> int:
    """Keep the robot working, episode after episode, beside the server and its page; ends with Ctrl-C."""
    from oxygen.serving.server import BackgroundServer
    from oxygen.serving.settings import ServeSettings

    arms = arms_for(args.tasks, DEMO_SEEDS, is_live)
    with open_door(args.model, "oxygen", config=EngineConfig(budget=args.budget), device=args.device) as opened:
        assert opened.engine is not None
        settings = ServeSettings(port=args.port)
        with BackgroundServer(opened.engine, settings) as server:
            address = f"http://{server.address}/"
            console.print(f"the robot is working; its page: {address} (Ctrl-C ends)")
            if console.is_terminal:
                webbrowser.open(address)
            try:
                with _robot_door(opened, server.address, console) as door:
                    for make_arm, seed in itertools.cycle(arms):
                        _work(make_arm(), seed, door, opened.noise_shape)
            except KeyboardInterrupt:
                console.print("stopping")
    return 0


@contextmanager
def _robot_door(opened: OpenDoor, address: str, console: Console) -> Iterator[Door]:
    """The websocket, where the light client is installed, so that the page sees a robot; else the engine itself."""
    if importlib.util.find_spec("oxygen_client") is None:
        console.print(
            "[yellow]The page shows the engine but not the robot: its light client is not installed[/] "
            "(pip install ./packages/oxygen-client)"
        )
        yield opened.door
        return
    from oxygen_client import RobotClient

    with RobotClient(f"ws://{address}", "arm") as client:
        yield RemoteDoor(client)


def _work(arm: Body, seed: int, door: Door, noise_shape: tuple[int, int]) -> None:
    """One episode at a rate that a person can follow."""

    def pace(_: Look) -> None:
        time.sleep(1.0 / SERVED_FRAMES_PER_S)

    try:
        run_episode(
            arm,
            seed,
            door,
            wanted=wanted_texts(arm.task.name),
            noise_shape=noise_shape,
            on_look=pace,
            keep_looks=False,
        )
    finally:
        arm.close()
