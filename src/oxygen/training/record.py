"""Demonstrations: the scripted expert, disturbed, and at every state what it would do undisturbed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from rich.progress import Progress

from oxygen.sim.arm import Arm
from oxygen.sim.tasks import TASK_NAMES, TRAIN_SEEDS
from oxygen.training.frames import Recording

HORIZON = 10
EVERY = 2
"""Control steps from one recorded frame to the next."""
MAX_DEMO_STEPS = 180
STEPS_AFTER_SUCCESS = 14
NOISE_LEVELS = (0.0, 0.25, 0.5)
PUSH_CHANCE, PUSH_STEPS = 0.02, 6


def record_demonstrations(folder: Path, num_demos: int, progress: Progress) -> list[Path]:
    """Record `num_demos` episodes of each task into one file per task; files that exist are kept."""
    paths = []
    bar = progress.add_task("record", total=num_demos * len(TASK_NAMES))
    for number, name in enumerate(TASK_NAMES):
        path = folder / f"demos-{name}-{num_demos}.npz"
        paths.append(path)
        if path.exists():
            progress.advance(bar, num_demos)
            continue
        rng = np.random.default_rng([17, number])
        recording = Recording(HORIZON)
        num_succeeded = 0
        with Arm(name) as arm:
            for seed in TRAIN_SEEDS[:num_demos]:
                _demonstrate(arm, seed, recording, rng)
                num_succeeded += arm.succeeded
                progress.advance(bar)
        frames = recording.frames()
        frames.save(path)
        progress.console.print(f"{name}: {num_succeeded}/{num_demos} demonstrations succeed, {len(frames)} frames")
    return paths


def _demonstrate(arm: Arm, seed: int, recording: Recording, rng: np.random.Generator) -> None:
    arm.reset(seed)
    level = rng.choice(NOISE_LEVELS)
    drift = np.zeros(4)
    push, push_left = np.zeros(3), 0
    left = STEPS_AFTER_SUCCESS
    for step in range(MAX_DEMO_STEPS):
        if step % EVERY == 0:
            recording.add(arm, seed)
        action = arm.expert_action().astype(np.float64)
        # Noise that remembers itself moves the arm off its path; white noise would average out within a chunk.
        drift = 0.8 * drift + 0.6 * level * rng.normal(size=4)
        drift[3] = 0.0
        if level > 0 and rng.random() < PUSH_CHANCE:
            push, push_left = rng.uniform(-1.0, 1.0, 3), PUSH_STEPS
        if push_left > 0:
            action[:3] = 0.3 * action[:3] + push
            push_left -= 1
        arm.step(action + drift)
        left -= arm.succeeded
        if left == 0:
            return
