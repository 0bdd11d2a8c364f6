"""Recorded frames on disk: one .npz per task and round, raw facts only. Training makes the sentences."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from oxygen.sim.arm import CAMERAS, Arm
from oxygen.sim.facts import SceneFacts
from oxygen.sim.tasks import TASK_NAMES

FORMAT = 1


@dataclass(slots=True, eq=False)
class Frames:
    """Columns of equal length.

    images [n, cameras, S, S, 3] uint8, states [n, 4] float32, chunks [n, H, 4] float32 (the expert's actions from
    there on), tasks [n] index into TASK_NAMES, offsets [n, 3] gripper minus part (m), extents and start_extents [n],
    done [n], seeds [n] layout seed of the episode, steps [n] control step.
    """

    images: np.ndarray
    states: np.ndarray
    chunks: np.ndarray
    tasks: np.ndarray
    offsets: np.ndarray
    extents: np.ndarray
    start_extents: np.ndarray
    done: np.ndarray
    seeds: np.ndarray
    steps: np.ndarray

    def __len__(self) -> int:
        return len(self.states)

    def facts(self, index: int) -> SceneFacts:
        x, y, z = (float(v) for v in self.offsets[index])
        return SceneFacts(
            TASK_NAMES[self.tasks[index]],
            float(self.extents[index]),
            float(self.start_extents[index]),
            (x, y, z),
            bool(self.done[index]),
        )

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial.npz")
        np.savez(partial, format=FORMAT, **{name: getattr(self, name) for name in COLUMNS})
        partial.replace(path)


COLUMNS = ("images", "states", "chunks", "tasks", "offsets", "extents", "start_extents", "done", "seeds", "steps")


def load_frames(paths: Iterable[Path]) -> Frames:
    """All files as one; every episode stays together and in order."""
    parts = []
    for path in paths:
        with np.load(path) as file:
            if int(file["format"]) != FORMAT:
                raise ValueError(f"{path} has format {int(file['format'])}, this version reads {FORMAT}: record again")
            parts.append({name: file[name] for name in COLUMNS})
    if not parts:
        raise FileNotFoundError("no recorded frames: run the record stage first")
    return Frames(**{name: np.concatenate([part[name] for part in parts]) for name in COLUMNS})


@dataclass(slots=True)
class Recording:
    """Collects frames of an Arm as it moves."""

    horizon: int
    rows: dict[str, list[np.ndarray]] = field(default_factory=lambda: {name: [] for name in COLUMNS})

    def add(self, arm: Arm, seed: int) -> None:
        facts = arm.facts()
        pictures = arm.look()
        values: dict[str, Any] = {
            "images": np.stack([pictures[name] for name in CAMERAS]),
            "states": arm.state,
            "chunks": arm.expert_chunk(self.horizon),
            "tasks": np.int16(TASK_NAMES.index(arm.task.name)),
            "offsets": np.array(facts.offset, np.float32),
            "extents": np.float32(facts.extent),
            "start_extents": np.float32(facts.start_extent),
            "done": np.bool_(facts.done),
            "seeds": np.int32(seed),
            "steps": np.int16(arm.num_steps),
        }
        for name, value in values.items():
            self.rows[name].append(value)

    def frames(self) -> Frames:
        return Frames(**{name: np.array(rows) for name, rows in self.rows.items()})
