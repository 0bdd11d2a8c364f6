"""What the engine tells about itself: one record per step, and running figures in bounded memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from oxygen.core.errors import DeviceFault
from oxygen.core.tasks import ActionResult, TextResult


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step. seconds by stage: plan, prefill, act, deliver, prefill_text, decode, commit, deliver_text.

    management_s: all but the runner's own time. wanted_rounds: what the budget allowed. live_texts: in the batch.
    counts: as in EngineStats, of this step. is_paused: text waited for a frame; is_cut: its rounds ended early for one.
    pieces: (session, kind, frame id, piece) of every text that grew. results: texts that ended with a result.
    """

    step: int
    started_at: float
    seconds: Mapping[str, float]
    management_s: float
    wanted_rounds: int
    rounds: int
    num_tokens: int
    live_texts: int
    waiting_texts: int
    context_rows: int
    tail_rows: int
    counts: Mapping[str, int]
    actions: tuple[ActionResult, ...]
    pieces: tuple[tuple[str, str, int, str], ...]
    results: tuple[TextResult, ...]
    is_paused: bool
    is_cut: bool

    @property
    def total_s(self) -> float:
        return sum(self.seconds.values())


@dataclass(frozen=True, slots=True)
class EngineStats:
    """The engine so far.

    current_step_s: age of the step at work. counts, since the start: `frames`, `chunks`, `tokens`, `rounds`, texts by
    finish reason, `refused` and `fault`; `faults` of requests, `replaced` frames, `evicted` contexts, `unshared` and
    `joined` tasks, `paused` and `cut` steps, `missed` frames (slower than `rate:F` asks). recent: (median, p99) of
    `step_s`, `action_ready_s`, `ttft_s`, `batch`, `answer_age_s`, `answer_age_frames`, `management_share`, each stage.
    """

    status: str
    fault: DeviceFault | None
    budget: str
    steps: int
    current_step_s: float
    live_texts: int
    waiting_texts: int
    context_rows: int
    tail_rows: int
    counts: Mapping[str, int]
    recent: Mapping[str, tuple[float, float]]


class Window:
    """Recent figures by name."""

    def __init__(self) -> None:
        self._figures: dict[str, deque[float]] = {}

    def learn(self, record: StepRecord) -> None:
        figures = [("step_s", record.total_s), *record.seconds.items()]
        figures += [("management_share", record.management_s / record.total_s)] if record.total_s else []
        figures += [("batch", record.num_tokens / record.rounds)] if record.rounds else []
        figures += [("action_ready_s", action.ready_s) for action in record.actions]
        for text in record.results:
            figures += [("answer_age_s", text.age_s), ("answer_age_frames", text.age_frames)]
            figures += [("ttft_s", text.ttft_s)] if text.ttft_s is not None else []
        for name, figure in figures:
            self._figures.setdefault(name, deque(maxlen=512)).append(figure)

    def summary(self) -> dict[str, tuple[float, float]]:
        ordered = {name: sorted(tuple(figures)) for name, figures in tuple(self._figures.items())}
        return {name: (f[len(f) // 2], f[int(0.99 * (len(f) - 1))]) for name, f in ordered.items()}


class Laps:
    """Seconds by stage."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.started_at = self._last = clock()
        self.seconds: dict[str, float] = {}

    def lap(self, stage: str) -> float:
        """End a stage (one that comes again goes on counting); returns the time now."""
        now = self._clock()
        self.seconds[stage], self._last = self.seconds.get(stage, 0.0) + now - self._last, now
        return now

    @property
    def total_s(self) -> float:
        return sum(self.seconds.values())
