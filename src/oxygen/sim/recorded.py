"""A recorded arm: plays the frames of episodes that were filmed once, for machines without the simulator.

What is executed changes nothing, so it says nothing about success; everything that the engine does is real.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from oxygen.sim.arm import CAMERAS
from oxygen.sim.drive import EXECUTED
from oxygen.sim.facts import SceneFacts
from oxygen.sim.tasks import TASKS


@dataclass(frozen=True, slots=True, eq=False)
class Film:
    """One episode. images [n, cameras, S, S, 3] uint8, states [n, 4] float32; a frame every EXECUTED control steps."""

    task: str
    images: np.ndarray
    states: np.ndarray
    facts: tuple[SceneFacts, ...]


def save_films(path: Path, films: list[Film]) -> None:
    """Write films as one compressed .npz."""
    lens = [len(film.states) for film in films]
    facts = [fact for film in films for fact in film.facts]
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(
        path,
        tasks=np.array([film.task for film in films]),
        lens=np.array(lens),
        images=np.concatenate([film.images for film in films]),
        states=np.concatenate([film.states for film in films]),
        extents=np.array([[f.extent, f.start_extent] for f in facts]),
        offsets=np.array([f.offset for f in facts]),
        done=np.array([f.done for f in facts]),
    )


def load_films(path: Path) -> list[Film]:
    with np.load(path) as file:
        tasks, lens = [str(task) for task in file["tasks"]], file["lens"].tolist()
        images, states, done = file["images"], file["states"], file["done"]
        extents, offsets = file["extents"], file["offsets"]
    films, first = [], 0
    for task, length in zip(tasks, lens, strict=True):
        chosen = range(first, first + length)
        facts = tuple(
            SceneFacts(
                task,
                float(extents[i, 0]),
                float(extents[i, 1]),
                (float(offsets[i, 0]), float(offsets[i, 1]), float(offsets[i, 2])),
                bool(done[i]),
            )
            for i in chosen
        )
        films.append(Film(task, images[first : first + length], states[first : first + length], facts))
        first += length
    return films


class RecordedArm:
    """Stands where an Arm stands; looks at the film instead of the scene."""

    def __init__(self, film: Film) -> None:
        self._film = film
        self.task = TASKS[film.task]
        self.num_steps = 0
        self.succeeded = False  # nothing is achieved by watching
        self.max_steps = EXECUTED * len(film.states)
        self.large: dict[str, np.ndarray] = {}

    @property
    def _frame(self) -> int:
        return min(self.num_steps // EXECUTED, len(self._film.states) - 1)

    @property
    def state(self) -> np.ndarray:
        return self._film.states[self._frame]

    def reset(self, seed: int) -> None:
        self.num_steps = 0

    def look(self) -> dict[str, np.ndarray]:
        pictures = dict(zip(CAMERAS, self._film.images[self._frame], strict=True))
        self.large = {name: picture.repeat(2, axis=0).repeat(2, axis=1) for name, picture in pictures.items()}
        return pictures

    def facts(self) -> SceneFacts:
        return self._film.facts[self._frame]

    def step(self, action: np.ndarray) -> None:
        self.num_steps += 1

    def close(self) -> None:
        """There is nothing to close."""
