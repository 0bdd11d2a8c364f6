"""Films the finished policy for the recorded demo of machines without the simulator."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from oxygen.core.config import EngineConfig
from oxygen.eval.doors import open_door
from oxygen.sim.arm import CAMERAS, Arm
from oxygen.sim.drive import run_episode
from oxygen.sim.recorded import Film, save_films
from oxygen.sim.tasks import DEMO_SEEDS

FILMED = ("drawer-open", "faucet-close", "window-open")


def film_into(path: Path, checkpoint: Path) -> None:
    """One episode of each of FILMED, as the robot saw it; an existing file is kept."""
    if path.exists():
        return
    films = []
    with open_door(checkpoint, "oxygen", config=EngineConfig()) as opened:
        for task in FILMED:
            with Arm(task) as arm:
                episode = run_episode(arm, DEMO_SEEDS[-1], opened.door, noise_shape=opened.noise_shape)
            seen = [look.observation for look in episode.looks]
            images = np.array([[observation.images[name] for name in CAMERAS] for observation in seen])
            states = np.array([observation.state for observation in seen], np.float32)
            films.append(Film(task, images, states, tuple(look.facts for look in episode.looks)))
    save_films(path, films)
