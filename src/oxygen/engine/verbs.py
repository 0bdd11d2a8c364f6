"""Carries a plan's items out on the runner. A request that faults leaves the batch; the others get their results."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from oxygen.core.errors import RequestFault
from oxygen.core.plan import ActItem, DecodeItem, PrefillItem, Runner
from oxygen.scheduler.state import Outcome

Item = PrefillItem | ActItem | DecodeItem


class Verbs:
    """The three verbs with fault isolation. What a runner raises besides RequestFault passes through: the device failed.

    A runner that raises RequestFault has left the other items as they were before the call or, when decoding, as they
    were after the last round that it reported: those go on in the next step.
    """

    def __init__(self, runner: Runner, clock: Callable[[], float]) -> None:
        self._runner = runner
        self._clock = clock

    def prefill(self, items: Sequence[PrefillItem], outcome: Outcome) -> None:
        while batch := [i for i in items if i.request_id not in outcome.faults]:
            try:
                self._runner.prefill(batch)
            except RequestFault as fault:
                _note(fault, batch, outcome)
            else:
                outcome.to_write.difference_update(i.context_row for i in batch)
                return

    def act(self, items: Sequence[ActItem], outcome: Outcome) -> list[tuple[ActItem, np.ndarray]]:
        while batch := [i for i in items if i.request_id not in outcome.faults]:
            try:
                return list(zip(batch, self._runner.act(batch), strict=True))
            except RequestFault as fault:
                _note(fault, batch, outcome)
        return []

    def decode(
        self,
        items: Sequence[DecodeItem],
        rounds: int,
        outcome: Outcome,
        take: Callable[[int, int], str],
        is_time_up: Callable[[], bool],
    ) -> None:
        """Up to `rounds` rounds. take(task id, token) says why a text is over, if it is; is_time_up ends the rounds."""
        batch = [i for i in items if i.request_id not in outcome.faults and i.context_row not in outcome.to_write]
        going = batch

        def after_round(tokens: Sequence[int]) -> list[bool]:
            nonlocal going
            entered = self._clock()
            outcome.rounds += 1
            for item, token in zip(going, tokens, strict=True):
                outcome.tokens.setdefault(item.task_id, []).append(int(token))
                if reason := take(item.task_id, int(token)):
                    outcome.finished[item.task_id] = reason
            is_last = outcome.rounds >= rounds or is_time_up()
            stays = [not is_last and item.task_id not in outcome.finished for item in going]
            going = [item for item, stay in zip(going, stays, strict=True) if stay]
            outcome.host_s += self._clock() - entered
            return stays

        if batch and rounds:
            try:
                self._runner.decode(batch, rounds, after_round)
            except RequestFault as fault:
                _note(fault, batch, outcome)


def _note(fault: RequestFault, batch: Sequence[Item], outcome: Outcome) -> None:
    if all(item.request_id != fault.request_id for item in batch):
        raise RuntimeError(f"the runner blames request {fault.request_id}, which is not in the batch") from fault
    outcome.faults[fault.request_id] = fault
