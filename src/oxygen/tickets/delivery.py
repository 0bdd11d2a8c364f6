"""Hands out what a step brought: chunks in robot units, pieces of text, results, errors; lists it for the record."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from oxygen.core.errors import RequestFault
from oxygen.core.plan import ActItem
from oxygen.core.tasks import ActionResult, TextResult
from oxygen.processing.interface import Processor
from oxygen.scheduler.ledger import Ledger
from oxygen.scheduler.state import Outcome, Text


class Delivery:
    """One step's deliveries. Every future and every handle is ended from here, once."""

    def __init__(self, processor: Processor, ledger: Ledger) -> None:
        self._processor, self._ledger = processor, ledger
        self.clear()

    def clear(self) -> None:
        self.actions: list[ActionResult] = []
        self.pieces: list[tuple[str, str, int, str]] = []
        self.results: list[TextResult] = []

    def give_actions(self, chunks: Sequence[tuple[ActItem, np.ndarray]], outcome: Outcome, now: float) -> None:
        """Deliver chunks in robot units. One that is not finite, or cannot be converted, faults its request."""
        for item, actions in chunks:
            request = self._ledger.open[item.request_id]
            assert request.inputs is not None
            try:
                in_units = self._processor.decode_actions(actions, request.inputs, item.expert)
                if not (np.isfinite(actions).all() and np.isfinite(in_units).all()):
                    raise ValueError("the chunk holds values that are not finite")
            except Exception as error:  # whatever a robot's conversion raises concerns this request alone
                outcome.faults.setdefault(item.request_id, RequestFault(item.request_id, f"actions: {error}"))
                continue
            ready_s = now - request.submitted_at
            self.actions.append(
                ActionResult(in_units, request.session, request.frame_id, request.captured_at, item.expert, ready_s)
            )
            request.chunks[item.task_id].set_result(self.actions[-1])

    def give_pieces(self, outcome: Outcome, now: float) -> None:
        """Deliver what live texts gained."""
        for task_id in outcome.tokens:
            if (text := self._ledger.live.get(task_id)) is not None:
                self._give(text, text.transcript.take(), now)

    def give_ends(self, now: float) -> None:
        """Deliver every end since the last call."""
        ledger = self._ledger
        for request in ledger.ended_actions:
            for chunk in request.chunks.values():
                if request.action_error is not None and not chunk.done():
                    chunk.set_exception(request.action_error)
        for text in ledger.ended_texts:
            if text.error is not None:
                text.handle.end(text.error)
            else:
                self._give(text, text.transcript.finish(), now)
                self.results.append(result_of(text, now))
                text.handle.end(self.results[-1])
        for done in ledger.done_resets:
            done()
        for ended in (ledger.ended_actions, ledger.ended_texts, ledger.done_resets):
            ended.clear()

    def _give(self, text: Text, piece: str, now: float) -> None:
        frame_id = (text.frame or text.request).frame_id
        if text.frame is not None:
            text.handle.frame_id = frame_id
        if text.tokens and text.first_token_at is None:
            text.first_token_at = now
        if piece:
            text.handle.push(piece)
            self.pieces.append((text.request.session, text.task.kind, frame_id, piece))


def by_expert(items: Sequence[ActItem]) -> list[list[ActItem]]:
    """One batch per expert, in the order in which frames name them, so that each can be delivered when it is ready."""
    batches: dict[str, list[ActItem]] = {}
    for item in items:
        batches.setdefault(item.expert, []).append(item)
    return list(batches.values())


def result_of(text: Text, now: float) -> TextResult:
    """A text that ended, with the age of what it describes (a question that never met a frame has frame id -1)."""
    frame = text.frame or text.request
    num_read = text.encoded.context_len or (text.context.inputs.num_tokens if text.context is not None else 0)
    num_prompt = len(text.encoded.tail_ids) + num_read
    return TextResult(
        text=text.transcript.text,
        token_ids=tuple(text.transcript.token_ids),
        kind=text.task.kind,
        session=text.request.session,
        frame_id=frame.frame_id,
        captured_at=frame.captured_at,
        finish_reason=text.finish_reason,
        age_frames=text.age_frames,
        age_s=now - frame.submitted_at,
        ttft_s=None if text.first_token_at is None else text.first_token_at - text.request.submitted_at,
        extras={"prompt_tokens": num_prompt} | ({"reason": text.detail} if text.detail else {}),
    )
