"""What a caller holds: a ticket for a frame, a handle for each of its texts. Blocking and asyncio, from any thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import TypeVar

from oxygen.core.errors import InvalidInput
from oxygen.core.tasks import ActionResult, TextResult, TextTask

T = TypeVar("T")


def pending() -> Future[T]:
    """Return a future that only the engine can end: a waiter that gives up must not take the result from others."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()
    return future


class TextHandle:
    """One text while it grows. Iterate (`for` or `async for`) for its pieces: valid text, joined they are the result's.

    Any number of readers may iterate, each from the start. A text that was cancelled, superseded, expired or dropped
    ends quietly and says so in the result's finish_reason; Refused and faults are raised, by the iteration too.
    """

    def __init__(self, task: TextTask, session: str, frame_id: int | None, cancel: Callable[[], None]) -> None:
        self.task, self.kind, self.session = task, task.kind, session
        self.frame_id = frame_id  # None for a question that waits for a frame
        self.cancel = cancel
        self._pieces: list[str] = []
        self._change: Future[None] = pending()  # ends, and is replaced, whenever there is something new
        self._outcome: Future[TextResult] = pending()

    @property
    def is_done(self) -> bool:
        return self._outcome.done()

    def result(self, timeout: float | None = None) -> TextResult:
        """Wait for the end; raises TimeoutError, Refused, InvalidInput, RequestFault or DeviceFault."""
        return self._outcome.result(timeout)

    async def result_async(self) -> TextResult:
        return await asyncio.wrap_future(self._outcome)

    def __iter__(self) -> Iterator[str]:
        sent = 0
        while True:
            change, is_done = self._change, self._outcome.done()  # before looking, so that nothing slips between
            for piece in self._pieces[sent:]:
                yield piece
                sent += 1
            if is_done:
                self._outcome.result()
                return
            change.result()

    async def __aiter__(self) -> AsyncIterator[str]:
        sent = 0
        while True:
            change, is_done = self._change, self._outcome.done()
            for piece in self._pieces[sent:]:
                yield piece
                sent += 1
            if is_done:
                self._outcome.result()
                return
            await asyncio.wrap_future(change)

    def push(self, piece: str) -> None:
        """Engine only: deliver one piece."""
        self._pieces.append(piece)
        change, self._change = self._change, pending()
        change.set_result(None)

    def end(self, outcome: TextResult | BaseException) -> None:
        """Engine only: deliver the result or the error, once."""
        if isinstance(outcome, TextResult):
            self._outcome.set_result(outcome)
        else:
            self._outcome.set_exception(outcome)
        self._change.set_result(None)


class Ticket:
    """The caller's handle on one frame (or one late question): its action chunks, its texts, and the way to cancel."""

    def __init__(
        self,
        session: str,
        captured_at: float | None,
        chunks: Mapping[str, Future[ActionResult]],
        texts: Sequence[TextHandle],
        frame_id: int | None,
        cancel: Callable[[], None],
    ) -> None:
        self.session, self.captured_at, self.texts, self.cancel = session, captured_at, tuple(texts), cancel
        self._frame_id = frame_id
        self._chunks = chunks

    @property
    def frame_id(self) -> int | None:
        """The frame; None for a question that still waits for one."""
        return self._frame_id if self._frame_id is not None or not self.texts else self.texts[0].frame_id

    @property
    def is_done(self) -> bool:
        return all(c.done() for c in self._chunks.values()) and all(t.is_done for t in self.texts)

    def actions(self, timeout: float | None = None, expert: str | None = None) -> ActionResult:
        """Wait for the chunk (of the named expert); raises TimeoutError, Ended, RequestFault or DeviceFault."""
        return self._chunk(expert).result(timeout)

    async def actions_async(self, expert: str | None = None) -> ActionResult:
        return await asyncio.wrap_future(self._chunk(expert))

    def text(self, which: str | int = 0) -> TextHandle:
        """Return the text of a kind, or by its place among the frame's texts."""
        for place, handle in enumerate(self.texts):
            if which in (place, handle.kind):
                return handle
        raise InvalidInput("text", f"one of {[t.kind for t in self.texts]}", repr(which))

    def _chunk(self, expert: str | None) -> Future[ActionResult]:
        name = next(iter(self._chunks)) if expert is None and len(self._chunks) == 1 else expert or ""
        if name not in self._chunks:
            raise InvalidInput("expert", f"one of {sorted(self._chunks)}", repr(expert))
        return self._chunks[name]
