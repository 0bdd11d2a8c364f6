"""The policy drives, the expert says what it would have done at every state reached (DAgger, Ross et al. 2011)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from rich.progress import Progress

from oxygen.sim.arm import CAMERAS, MAX_STEPS, Arm
from oxygen.sim.drive import EXECUTED
from oxygen.sim.tasks import DAGGER_SEEDS, TASK_NAMES
from oxygen.training.frames import Recording
from oxygen.training.record import HORIZON

LOOKS_AFTER_SUCCESS = 3

Drive = Callable[[np.ndarray, np.ndarray, str], np.ndarray]
"""(pictures [cameras, S, S, 3] uint8, state [4], instruction) -> chunk [H, A] in robot units."""


def record_rollouts(path: Path, drive: Drive, round_number: int, num_episodes: int, progress: Progress) -> None:
    """Drive `num_episodes` episodes of each task on layouts of this round only; an existing file is kept."""
    if path.exists():
        return
    recording = Recording(HORIZON)
    bar = progress.add_task("rollouts", total=num_episodes * len(TASK_NAMES))
    total = 0
    for name in TASK_NAMES:
        succeeded = 0
        with Arm(name) as arm:
            for seed in DAGGER_SEEDS[100 * round_number : 100 * round_number + num_episodes]:
                _drive(arm, seed, drive, recording)
                succeeded += arm.succeeded
                progress.advance(bar)
        progress.console.print(f"rollouts {round_number} {name}: {succeeded}/{num_episodes}")
        total += succeeded
    progress.remove_task(bar)
    frames = recording.frames()
    frames.save(path)
    progress.console.print(f"rollouts {round_number}: {total}/{num_episodes * len(TASK_NAMES)}, {len(frames)} frames")


def _drive(arm: Arm, seed: int, drive: Drive, recording: Recording) -> None:
    arm.reset(seed)
    looks_left = LOOKS_AFTER_SUCCESS
    while arm.num_steps < MAX_STEPS and looks_left > 0:
        recording.add(arm, seed)
        pictures = recording.rows["images"][-1]
        assert pictures.shape[0] == len(CAMERAS)
        for action in drive(pictures, arm.state, arm.task.instruction)[:EXECUTED]:
            arm.step(action)
        looks_left -= arm.succeeded
