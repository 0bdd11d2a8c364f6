"""The metrics tap: makes the record of a step, keeps running figures, tells the listeners."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable

from oxygen.core.plan import StepPlan
from oxygen.scheduler.scheduler import Scheduler
from oxygen.scheduler.state import Outcome
from oxygen.tickets.delivery import Delivery
from oxygen.tickets.record import Laps, StepRecord, Window

log = logging.getLogger(__name__)
Listener = Callable[[StepRecord], object]


class Tap:
    def __init__(self, scheduler: Scheduler, delivery: Delivery) -> None:
        self._scheduler, self._delivery = scheduler, delivery
        self._listeners: list[Listener] = []
        self._told: Counter[str] = Counter()
        self.window = Window()
        self.num_steps = 0

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener) if listener in self._listeners else None

    def tell(self, plan: StepPlan, outcome: Outcome, laps: Laps, is_paused: bool) -> StepRecord:
        """Record a step that is over, and tell everyone. A listener that raises is logged and told no more."""
        record = self._record(plan, outcome, laps, is_paused)
        self._delivery.clear()
        self.window.learn(record)
        for listener in tuple(self._listeners):
            try:
                listener(record)
            except Exception:
                log.exception("a listener failed and is removed")
                self._listeners.remove(listener)
        return record

    def _record(self, plan: StepPlan, outcome: Outcome, laps: Laps, is_paused: bool) -> StepRecord:
        ledger, delivery, budget = self._scheduler.ledger, self._delivery, self._scheduler.pace.budget
        runner_s = sum(laps.seconds.get(stage, 0.0) for stage in ("prefill", "act", "prefill_text", "decode"))
        num_tokens = sum(map(len, outcome.tokens.values()))
        is_cut = 0 < outcome.rounds < plan.rounds and self._scheduler.num_frames_waiting > 0
        is_missed = budget.kind == "rate" and bool(plan.act) and laps.total_s > 1 / budget.value
        ledger.counts.update(chunks=len(delivery.actions), tokens=num_tokens, rounds=outcome.rounds)
        ledger.counts.update(paused=is_paused, cut=is_cut, missed=is_missed)
        before, self._told = self._told, Counter(ledger.counts)
        self.num_steps += 1
        _, waiting_texts, context_rows, tail_rows = ledger.sizes
        return StepRecord(
            step=self.num_steps,
            started_at=laps.started_at,
            seconds=laps.seconds,
            management_s=laps.total_s - runner_s + outcome.host_s,
            wanted_rounds=plan.rounds,
            rounds=outcome.rounds,
            num_tokens=num_tokens,
            live_texts=len(plan.decode),
            waiting_texts=waiting_texts,
            context_rows=context_rows,
            tail_rows=tail_rows,
            counts=dict(self._told - before),
            actions=tuple(delivery.actions),
            pieces=tuple(delivery.pieces),
            results=tuple(delivery.results),
            is_paused=is_paused,
            is_cut=is_cut,
        )
