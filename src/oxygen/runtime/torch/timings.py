"""What each stage of the runner costs: a counter and a clock per stage, cheap enough to stay on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

STAGES = ("vision", "prefill", "act", "round")


@dataclass(slots=True)
class StageTimes:
    """Calls of one stage and their seconds. `prefill` does not contain `vision`."""

    count: int = 0
    total_s: float = 0.0
    last_s: float = 0.0


@dataclass(slots=True)
class Timings:
    """Wall time per stage, of the thread that calls the runner.

    On a GPU work is queued, so a stage's time is that of queueing it unless `synchronize` is set: then the device
    is waited for before and after each stage (benchmarks of single stages; it costs the overlap between them).
    """

    device: torch.device
    synchronize: bool = False
    stages: dict[str, StageTimes] = field(default_factory=lambda: {name: StageTimes() for name in STAGES})

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time one call of a stage."""
        self._wait()
        start = time.perf_counter()
        yield
        self._wait()
        times = self.stages[name]
        times.last_s = time.perf_counter() - start
        times.total_s += times.last_s
        times.count += 1

    def reset(self) -> None:
        for name in self.stages:
            self.stages[name] = StageTimes()

    def mean_s(self, name: str) -> float:
        """Mean seconds of a stage since the last reset, 0 if it never ran."""
        times = self.stages[name]
        return times.total_s / times.count if times.count else 0.0

    def _wait(self) -> None:
        if self.synchronize and self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
