"""Opens a checkpoint behind one of the ways of serving it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oxygen.core.config import EngineConfig
from oxygen.core.errors import OxygenError
from oxygen.core.plan import Runner
from oxygen.engine.engine import Engine
from oxygen.runtime.presets import is_preset
from oxygen.runtime.torch.open import open_parts, open_untrained
from oxygen.serving.open import ROBOT
from oxygen.sim.drive import Door
from oxygen.sim.isolated import IsolatedDoor
from oxygen.sim.remote import RemoteDoor

MODES = ("oxygen", "isolated", "remote")
"""Through the engine; task after task; through the engine behind a server, over its websocket."""
WARM_UP_S = 120.0


@dataclass(frozen=True, slots=True)
class OpenDoor:
    """A door, the shape of its noise (horizon, action_dim), and the engine behind it, if there is one."""

    door: Door
    noise_shape: tuple[int, int]
    mode: str
    engine: Engine | None = None


@contextmanager
def open_door(
    model: str | Path,
    mode: str,
    *,
    config: EngineConfig | None = None,
    device: str = "cpu",
    dtype: str = "float32",
    threads: int | None = 1,
    robot: str | None = None,
) -> Iterator[OpenDoor]:
    """Serve a checkpoint folder or a shipped name in one of MODES; closed on the way out.

    A preset's name stands for random weights. robot: of a preset, and of a folder that does not say which it is for.
    threads: of the runner on a CPU; one leaves the other cores to the simulator, and a small model gains by no second.
    """
    if mode not in MODES:
        raise ValueError(f"mode {mode!r}: expected one of {', '.join(MODES)}")
    settings: dict[str, Any] = {"device": device, "dtype": dtype, "threads": threads}
    runner: Runner
    if is_preset(model):
        runner, processor = open_untrained(str(model), robot or ROBOT, **settings)
    else:
        runner, processor = open_parts(model, robot=robot, **settings)
    noise_shape = (runner.limits.horizon, runner.limits.action_dim)
    warm_up: Callable[[], object] | None = getattr(runner, "warm_up", None)
    if mode == "isolated":
        if warm_up is not None:
            warm_up()
        alone = IsolatedDoor(runner, processor)
        try:
            yield OpenDoor(alone, noise_shape, mode)
        finally:
            alone.close()
            runner.close()
        return
    engine = Engine(runner, processor, config, warm_up=warm_up)
    engine.start()
    try:
        _await_ready(engine)
        if mode == "oxygen":
            yield OpenDoor(engine, noise_shape, mode, engine)
        else:
            with _linked(engine) as door:
                yield OpenDoor(door, noise_shape, mode, engine)
    finally:
        engine.close()


@contextmanager
def _linked(engine: Engine) -> Iterator[RemoteDoor]:
    """A server on a free port and the light client's link to it."""
    try:
        from oxygen_client import RobotClient

        from oxygen.serving.server import BackgroundServer
        from oxygen.serving.settings import ServeSettings
    except ModuleNotFoundError as error:
        raise OxygenError(
            f"mode remote needs a server and the light client (there is no {error.name}): "
            "pip install '.[serve]' ./packages/oxygen-client"
        ) from None

    # Films are handed in faster than any robot moves, so that many texts are under way at once.
    settings = ServeSettings(port=0, max_session_texts=64)
    with BackgroundServer(engine, settings) as server, RobotClient(f"ws://{server.address}", "arm") as client:
        yield RemoteDoor(client)


def _await_ready(engine: Engine) -> None:
    deadline = time.monotonic() + WARM_UP_S
    while engine.status == "warming":
        if time.monotonic() > deadline:
            raise OxygenError(f"the engine is not ready after {WARM_UP_S:.0f} s")
        time.sleep(0.02)
    if engine.fault is not None:
        raise engine.fault
