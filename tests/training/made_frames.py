"""Frames of no real scene, for tests that need the columns only."""

from __future__ import annotations

import numpy as np

from oxygen.sim.tasks import TASK_NAMES
from oxygen.training.frames import Frames


def make_frames(count: int = 200, seed: int = 0) -> Frames:
    rng = np.random.default_rng(seed)
    tasks = rng.integers(0, len(TASK_NAMES), count).astype(np.int16)
    return Frames(
        images=rng.integers(0, 256, (count, 2, 64, 64, 3), dtype=np.uint8),
        states=rng.uniform(-0.3, 0.9, (count, 4)).astype(np.float32),
        chunks=rng.uniform(-1, 1, (count, 10, 4)).astype(np.float32),
        tasks=tasks,
        offsets=rng.uniform(-0.1, 0.1, (count, 3)).astype(np.float32),
        extents=rng.uniform(0, 1.1, count).astype(np.float32),
        start_extents=np.zeros(count, np.float32),
        done=rng.random(count) < 0.1,
        seeds=rng.integers(50, 90, count).astype(np.int32),
        steps=np.arange(count, dtype=np.int16),
    )
