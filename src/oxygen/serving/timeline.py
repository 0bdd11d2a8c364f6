"""The last steps of the engine, for the dashboard: written by the device's thread, read by the event loop."""

from __future__ import annotations

import itertools
from collections import deque
from typing import Any

from oxygen.serving.metrics import ServerMetrics
from oxygen.tickets.record import StepRecord


class Timeline:
    """A bounded list of steps that did something. `listen` costs a few microseconds and never blocks."""

    def __init__(self, metrics: ServerMetrics, length: int = 240) -> None:
        self._metrics = metrics
        self._steps: deque[dict[str, Any]] = deque(maxlen=length)

    def listen(self, record: StepRecord) -> None:
        for stage, seconds in record.seconds.items():
            if seconds > 0:
                self._metrics.stage.observe(1000 * seconds, stage)
        if record.rounds or record.actions:
            self._steps.append(_step(record))

    def after(self, step: int) -> list[dict[str, Any]]:
        """Steps with a number above `step`, oldest first."""
        while True:
            try:
                return [entry for entry in itertools.islice(self._steps, None) if entry["step"] > step]
            except RuntimeError:  # the device's thread wrote meanwhile
                continue


def _step(record: StepRecord) -> dict[str, Any]:
    return {
        "step": record.step,
        "at": record.started_at,
        "ms": {stage: 1000 * seconds for stage, seconds in record.seconds.items()},
        "frames": [[action.session, action.frame_id] for action in record.actions],
        "rounds": record.rounds,
        "wanted_rounds": record.wanted_rounds,
        "tokens": record.num_tokens,
        "live_texts": record.live_texts,
        "waiting_texts": record.waiting_texts,
        "context_rows": record.context_rows,
        "tail_rows": record.tail_rows,
        "is_paused": record.is_paused,
        "is_cut": record.is_cut,
    }
