"""Carries a plan's items out on the runner. A request that faults leaves the batch; the others get their results.

What a runner raises besides RequestFault passes through: the device failed. A runner that raises RequestFault has left
the other items as they were before the call or, when decoding, as they were after the last round that it reported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from oxygen.core.errors import RequestFault
from oxygen.core.plan import ActItem, DecodeItem, PrefillItem, Runner, StepPlan
from oxygen.scheduler.scheduler import Scheduler
from oxygen.scheduler.state import Outcome

Item = TypeVar("Item", PrefillItem, ActItem)
Result = TypeVar("Result")


class Verbs:
    def __init__(self, runner: Runner, clock: Callable[[], float]) -> None:
        self._runner, self._clock = runner, clock

    def prefill(self, items: Sequence[PrefillItem], outcome: Outcome) -> None:
        batch, _ = _isolated(self._runner.prefill, items, outcome)
        outcome.to_write.difference_update(item.context_row for item in batch)

    def act(self, items: Sequence[ActItem], outcome: Outcome) -> list[tuple[ActItem, np.ndarray]]:
        batch, chunks = _isolated(self._runner.act, items, outcome)
        return list(zip(batch, chunks or (), strict=True))

    def decode(self, plan: StepPlan, outcome: Outcome, scheduler: Scheduler, started: float) -> None:
        """Run the rounds: a text that is over leaves, and all stop when the scheduler says that time is up."""
        live = scheduler.ledger.live
        going = [i for i in plan.decode if i.request_id not in outcome.faults and i.context_row not in outcome.to_write]

        def after_round(tokens: Sequence[int]) -> list[bool]:
            nonlocal going
            entered = self._clock()
            outcome.rounds += 1
            for item, token in zip(going, tokens, strict=True):
                outcome.tokens.setdefault(item.task_id, []).append(int(token))
                if reason := live[item.task_id].transcript.push(int(token)):
                    outcome.finished[item.task_id] = reason
            is_last = outcome.rounds >= plan.rounds or scheduler.is_time_up(self._clock() - started)
            stays = [not is_last and item.task_id not in outcome.finished for item in going]
            going = [item for item, stay in zip(going, stays, strict=True) if stay]
            outcome.host_s += self._clock() - entered
            return stays

        if going and plan.rounds:
            try:
                self._runner.decode(going, plan.rounds, after_round)
            except RequestFault as fault:
                _blame(fault, plan.decode, outcome)  # the others go on in the next step


def _isolated(
    verb: Callable[[list[Item]], Result], items: Sequence[Item], outcome: Outcome
) -> tuple[list[Item], Result | None]:
    """Run a verb on a batch, and again without a request that faults; returns the batch that went through."""
    while batch := [item for item in items if item.request_id not in outcome.faults]:
        try:
            return batch, verb(batch)
        except RequestFault as fault:
            _blame(fault, batch, outcome)
    return [], None


def _blame(fault: RequestFault, batch: Sequence[PrefillItem | ActItem | DecodeItem], outcome: Outcome) -> None:
    if all(item.request_id != fault.request_id for item in batch):
        raise RuntimeError(f"the runner blames request {fault.request_id}, which is not in the batch") from fault
    outcome.faults[fault.request_id] = fault
