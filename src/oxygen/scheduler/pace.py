"""How many rounds a step may decode: the budget, and the running estimates that `rate:F` needs."""

from __future__ import annotations

from collections import deque
from statistics import median

from oxygen.core.config import Budget
from oxygen.scheduler.state import Outcome

WARM_UP, WINDOW = 3, 32


class Estimate:
    """A running cost in seconds: the median of a window, so that a spike moves nothing; the first few do not count."""

    def __init__(self) -> None:
        self._num_seen = 0
        self._samples: deque[float] = deque(maxlen=WINDOW)

    def add(self, seconds: float) -> None:
        self._num_seen += 1
        if self._num_seen > WARM_UP:
            self._samples.append(seconds)

    @property
    def value(self) -> float | None:
        return median(self._samples) if self._samples else None


class Pace:
    """Turns the budget into rounds, and counts how long text has been paused."""

    def __init__(self, budget: Budget, max_paused_steps: int) -> None:
        self.budget = budget
        self.num_paused = 0
        self._max_paused_steps = max_paused_steps
        self._frame, self._round = Estimate(), Estimate()  # a step with actions but for its rounds; one round

    @property
    def is_text_due(self) -> bool:
        """Text has been paused so long that one round must run, whoever waits."""
        return 0 < self._max_paused_steps <= self.num_paused

    def rounds(self, longest: int, has_actions: bool) -> int:
        """Rounds for a step whose longest text may still gain `longest` tokens."""
        return min(longest, max(self._wish(longest), int(self.is_text_due or not has_actions)))

    def _wish(self, longest: int) -> int:
        if self.budget.kind != "rate":
            return longest if self.budget.kind == "idle" else int(self.budget.value)
        frame_s, round_s = self._frame.value, self._round.value
        if frame_s is None or not round_s:
            return 1  # careful until both costs are known
        return max(0, int(min(longest, (1 / self.budget.value - frame_s) / round_s)))

    def observe(self, had_actions: bool, outcome: Outcome, wanted_text: bool) -> None:
        """Learn from a step that is over."""
        if had_actions:
            self._frame.add(outcome.base_s)
        if outcome.rounds:
            self._round.add(outcome.decode_s / outcome.rounds)
        if wanted_text:
            self.num_paused = 0 if outcome.rounds else self.num_paused + 1
