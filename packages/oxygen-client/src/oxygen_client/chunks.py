"""The buffer between action chunks and the motors.

Two rules keep a robot out of trouble. A new chunk is entered at the number of actions that were *really executed*
since its observation was taken, never at a number guessed from a measured delay; so the first action released is
never further ahead than the robot is. And when the chunk has run out, the buffer says stale: it never replays the
last action.
"""

from __future__ import annotations

import threading
import time
from typing import Callable, Optional

import numpy as np

from oxygen_client.errors import Stale
from oxygen_client.messages import Chunk


class ActionBuffer:
    """Hands out one action per control period.

    period_s: the control period. grace: periods past the end of a chunk for which `next` only waits for news
    (returns None) before it raises Stale. The clock is monotonic and can be replaced in tests. Safe to use from two
    threads.

        buffer = ActionBuffer(period_s=1 / 50)
        chunk = robot.infer(observation, step=buffer.step)   # in any thread
        buffer.add(chunk)
        action = buffer.next()                               # in the control loop, once per period
    """

    def __init__(self, period_s: float, grace: float = 2.0, clock: Callable[[], float] = time.monotonic) -> None:
        if period_s <= 0:
            raise ValueError(f"period_s: expected seconds above 0, got {period_s}")
        self.period_s = period_s
        self.grace = grace
        self._clock = clock
        self._lock = threading.Lock()
        self._step = 0
        self._chunk: Optional[np.ndarray] = None
        self._chunk_step = 0
        self._chunk_at = -np.inf
        self._valid_until = -np.inf
        self._ended_at = -np.inf

    @property
    def step(self) -> int:
        """Actions executed so far. Read it when the observation is taken and give it to `infer`."""
        return self._step

    @property
    def remaining(self) -> int:
        """Actions of the current chunk that are still to come."""
        with self._lock:
            return self._remaining()

    def add(self, chunk: Chunk) -> bool:
        """Take a chunk over. False when it is of no use: older than the current one, from before a reset, or used
        up.
        """
        with self._lock:
            executed = self._step - chunk.step
            is_older = chunk.sent_at < self._chunk_at
            if executed < 0 or is_older or executed >= len(chunk.actions):
                return False
            self._chunk, self._chunk_step, self._chunk_at = chunk.actions, chunk.step, chunk.sent_at
            # By the clock, a chunk is good for as long as its actions last. So a loop that stood still does not resume
            # in the middle of an old motion.
            self._valid_until = self._clock() + (self._remaining() + self.grace) * self.period_s
            return True

    def next(self) -> Optional[np.ndarray]:
        """The action for this period, or None when the robot should hold for a moment.

        Raises Stale once nothing valid is left for more than `grace` periods, and when there never was a chunk.
        """
        with self._lock:
            now = self._clock()
            if self._chunk is not None and self._remaining() > 0 and now <= self._valid_until:
                action = self._chunk[self._step - self._chunk_step]
                self._step += 1
                self._ended_at = now + self.period_s
                return action
            age = now - self._ended_at
            if age <= self.grace * self.period_s:
                return None
            raise Stale("no valid action: the chunk has run out and no newer one came", age_s=float(age))

    def reset(self) -> None:
        """Forget everything, at the end of an episode. Chunks asked for before the reset are not taken any more."""
        with self._lock:
            self._chunk, self._chunk_at, self._ended_at = None, self._clock(), -np.inf

    def _remaining(self) -> int:
        return 0 if self._chunk is None else max(0, self._chunk_step + len(self._chunk) - self._step)
