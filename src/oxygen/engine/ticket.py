"""What a caller holds: a ticket for a frame, a handle for each of its texts. Blocking and asyncio, from any thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
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

    Any number of readers may iterate, each from the start. A text that was cancelled, superseded, expired or dropped ends
    its pieces quietly and says so in the result's finish_reason; Refused and faults are raised from both.
    """

    def __init__(self, task: TextTask, session: str, frame_id: int | None, cancel: Callable[[], None]) -> None:
        self.task = task
        self.kind = task.kind
        self.session = session
        self.frame_id = frame_id  # None for a question that waits for the next frame
        self.cancel = cancel
        self._changed = threading.Condition()
        self._pieces: list[str] = []
        self._outcome: Future[TextResult] = pending()
        self._wakers: list[Callable[[], object]] = []

    @property
    def is_done(self) -> bool:
        return self._outcome.done()

    def result(self, timeout: float | None = None) -> TextResult:
        """Wait for the end; raises TimeoutError, Refused, RequestFault or DeviceFault."""
        return self._outcome.result(timeout)

    async def result_async(self) -> TextResult:
        return await asyncio.wrap_future(self._outcome)

    def __iter__(self) -> Iterator[str]:
        sent = 0
        while pieces := self._wait_after(sent):
            sent += len(pieces)
            yield from pieces
        self._outcome.result()

    def _wait_after(self, sent: int) -> list[str]:
        with self._changed:
            self._changed.wait_for(lambda: len(self._pieces) > sent or self._outcome.done())
            return self._pieces[sent:]

    async def __aiter__(self) -> AsyncIterator[str]:
        loop, sent = asyncio.get_running_loop(), 0
        while True:
            woken = asyncio.Event()
            with self._changed:
                pieces, is_done = self._pieces[sent:], self._outcome.done()
                if not pieces and not is_done:
                    self._wakers.append(partial(loop.call_soon_threadsafe, woken.set))
            for piece in pieces:
                yield piece
            sent += len(pieces)
            if is_done and not pieces:
                self._outcome.result()
                return
            if not pieces:
                await woken.wait()

    def push(self, piece: str) -> None:
        """Engine only: deliver one piece."""
        with self._changed:
            self._pieces.append(piece)
            self._wake()

    def end(self, outcome: TextResult | BaseException) -> None:
        """Engine only: deliver the result or the error, once."""
        with self._changed:
            if isinstance(outcome, TextResult):
                self._outcome.set_result(outcome)
            else:
                self._outcome.set_exception(outcome)
            self._wake()

    def _wake(self) -> None:
        self._changed.notify_all()
        for wake in self._wakers:
            with suppress(RuntimeError):  # the reader's event loop is closed: nobody is left to wake
                wake()
        self._wakers.clear()


class Ticket:
    """The caller's handle on one frame (or one late question): its action chunks, its texts, and the way to cancel."""

    def __init__(
        self,
        session: str,
        frame_id: int | None,
        captured_at: float | None,
        chunks: Mapping[str, Future[ActionResult]],
        texts: Sequence[TextHandle],
        cancel: Callable[[], None],
    ) -> None:
        self.session = session
        self.captured_at = captured_at
        self.texts = tuple(texts)
        self.cancel = cancel
        self._frame_id = frame_id
        self._chunks = dict(chunks)

    @property
    def frame_id(self) -> int | None:
        """The frame; None for a question that still waits for one."""
        return self._frame_id if self._frame_id is not None or not self.texts else self.texts[0].frame_id

    @property
    def is_done(self) -> bool:
        return all(c.done() for c in self._chunks.values()) and all(t.is_done for t in self.texts)

    def actions(self, timeout: float | None = None, expert: str | None = None) -> ActionResult:
        """Wait for a chunk (of the only expert, or the named one); raises TimeoutError, Ended, RequestFault, DeviceFault."""
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
        if expert is None and len(self._chunks) == 1:
            return next(iter(self._chunks.values()))
        if expert not in self._chunks:
            raise InvalidInput("expert", f"one of {sorted(self._chunks)}", repr(expert))
        return self._chunks[expert]
