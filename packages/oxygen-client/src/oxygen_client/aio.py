"""The asynchronous client: one link to the robot door, kept alive.

A single task owns the link. It connects, greets, dispatches what comes in, and after a loss connects again with
growing pauses. Callers only ever see their own answers: every answer is matched by `seq`, and whatever matches
nothing is dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass
from typing import Any, AsyncIterator, Dict, Mapping, Optional, Sequence
from urllib.parse import quote

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from oxygen_client import messages, wire
from oxygen_client.backoff import Backoff, is_local
from oxygen_client.errors import ConnectionLost, NoAnswer, Superseded
from oxygen_client.losses import fatal_cause
from oxygen_client.messages import Chunk, Task, TextEvent
from oxygen_client.text import AsyncText

_DROPPED_EVENTS_LIMIT = 1000


@dataclass
class _Waiting:
    """A request that has not been answered."""

    seq: int
    payload: bytes
    future: "asyncio.Future[Mapping[str, Any]]"
    is_observation: bool


class AsyncRobotClient:
    """One robot's link to an OxyGen server.

    url: `ws://host:port`. session: the robot's name (None: the server gives one). greeting_timeout_s bounds the
    wait for the server's first message, ping_s how soon a half-open link is noticed. proxy: None never uses one;
    "auto" takes the environment's for addresses outside the local network.
    """

    def __init__(
        self,
        url: str,
        session: Optional[str] = None,
        api_key: Optional[str] = None,
        *,
        greeting_timeout_s: float = 10.0,
        ping_s: float = 5.0,
        proxy: Optional[str] = "auto",
        backoff: Optional[Backoff] = None,
    ) -> None:
        self._url = url.rstrip("/") + "/v1/robot" + (f"?session={quote(session, safe='')}" if session else "")
        self._headers = {"Authorization": f"Api-Key {api_key}"} if api_key else None
        self._greeting_timeout_s = greeting_timeout_s
        self._ping_s = ping_s
        self._proxy: Any = (None if is_local(url) else True) if proxy == "auto" else proxy
        self._backoff = backoff or Backoff()
        self._link: Optional[ClientConnection] = None
        self._seq = 0
        self._waiting: Dict[int, _Waiting] = {}
        self._texts: Dict[str, AsyncText] = {}
        self._events: "asyncio.Queue[TextEvent]" = asyncio.Queue(maxsize=_DROPPED_EVENTS_LIMIT)
        self._connected = asyncio.Event()
        self._task: Optional["asyncio.Task[None]"] = None
        self._fatal: Optional[Exception] = None
        self._last_error: Optional[Exception] = None
        self.metadata: Mapping[str, Any] = {}
        self.num_connects = 0
        self.num_late_answers = 0

    # Life

    async def __aenter__(self) -> "AsyncRobotClient":
        await self.connect()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    @property
    def is_connected(self) -> bool:
        return self._link is not None

    async def connect(self, timeout: Optional[float] = 10.0) -> Mapping[str, Any]:
        """Start the link and return the server's metadata. Raises ConnectionLost when none could be had in time."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())
        await self._until_connected(timeout)
        return self.metadata

    async def close(self) -> None:
        """Say goodbye and stop. Everything still waiting ends with ConnectionLost."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._end_everything(ConnectionLost("the client was closed"))

    # What a robot does

    async def infer(
        self,
        observation: Mapping[str, Any],
        tasks: Sequence[Task] = (),
        *,
        step: int = 0,
        timeout: Optional[float] = None,
        **options: Any,
    ) -> Chunk:
        """Send a frame and wait for its actions.

        observation: an openpi-style map. tasks: texts wanted of this frame. step: actions executed when it was taken.
        options: `frame_id`, `captured_at`, `num_steps`, `seed`, `noise`. If the link breaks while waiting, the newest
        observation is sent again on the next link, within the timeout; older ones end with Superseded.
        Raises NoAnswer, ConnectionLost, Superseded, ServerError, TakenOver.
        """
        sent_at = time.monotonic()
        seq = self._next_seq()
        payload = wire.pack(messages.observation_message(seq, observation, tasks, options))
        answer = await self._request(_Waiting(seq, payload, self._future(), True), timeout)
        chunk = messages.parse_chunk(answer, step, sent_at, time.monotonic())
        for text_id in chunk.text_ids:
            self._texts.setdefault(text_id, AsyncText(text_id))
        return chunk

    async def ask(
        self, question: str, *, timeout: Optional[float] = None, max_age_s: Optional[float] = None, **task: Any
    ) -> AsyncText:
        """Ask the robot something about what it sees now, while it goes on working. task: fields of a text task."""
        seq = self._next_seq()
        fields = {"kind": "answer", **task, "question": question}
        payload = wire.pack(messages.ask_message(seq, fields, max_age_s))
        answer = await self._request(_Waiting(seq, payload, self._future(), False), timeout)
        text_id = str(answer.get("id"))
        return self._texts.setdefault(text_id, AsyncText(text_id))

    async def reset(self, timeout: Optional[float] = 10.0) -> None:
        """End the episode: returns once the server holds nothing of it any more."""
        seq = self._next_seq()
        payload = wire.pack({"type": "reset", "seq": seq})
        await self._request(_Waiting(seq, payload, self._future(), False), timeout)

    async def cancel(self, text: AsyncText) -> None:
        """Stop a text. Its last event says `cancelled`."""
        if self._link is not None:
            await self._send(wire.pack({"type": "cancel", "id": text.id}))

    def text(self, text_id: str) -> AsyncText:
        """The text with an id that a chunk announced."""
        return self._texts[text_id]

    async def events(self) -> AsyncIterator[TextEvent]:
        """Every text event of the session, in order. If nobody reads, the oldest are dropped."""
        while True:
            yield await self._events.get()

    # Requests and answers

    def _next_seq(self) -> int:
        self._seq += 1
        return self._seq

    def _future(self) -> "asyncio.Future[Mapping[str, Any]]":
        return asyncio.get_running_loop().create_future()

    async def _until_connected(self, timeout: Optional[float]) -> None:
        try:
            await asyncio.wait_for(self._connected.wait(), timeout)
        except asyncio.TimeoutError:
            raise ConnectionLost(f"no link to {self._url}: {self._last_error or 'no greeting'}") from self._last_error
        if self._fatal is not None:
            raise self._fatal

    async def _request(self, waiting: _Waiting, timeout: Optional[float]) -> Mapping[str, Any]:
        if self._task is None:
            raise ConnectionLost("the client is not connected; call connect() first")
        if self._fatal is not None:
            raise self._fatal
        self._waiting[waiting.seq] = waiting
        try:
            if self._link is not None:
                await self._send(waiting.payload)
            return await asyncio.wait_for(waiting.future, timeout)
        except asyncio.TimeoutError:
            if self._link is None:
                raise ConnectionLost(f"no link to {self._url}: {self._last_error}") from self._last_error
            raise NoAnswer(f"no answer within {timeout} s") from None
        finally:
            self._waiting.pop(waiting.seq, None)

    async def _send(self, payload: bytes) -> None:
        # A link that breaks here is noticed by the task that owns it, which sends again what is still wanted.
        with contextlib.suppress(ConnectionClosed):
            if self._link is not None:
                await self._link.send(payload)

    def _dispatch(self, message: Any) -> None:
        if not isinstance(message, dict):
            return
        kind = message.get("type")
        if kind == "text":
            self._take_text(messages.parse_text(message))
            return
        waiting = self._waiting.get(message.get("seq", -1))
        if waiting is None or waiting.future.done():
            self.num_late_answers += kind == "actions"
        elif kind == "error":
            waiting.future.set_exception(messages.parse_error(message))
        else:
            waiting.future.set_result(message)

    def _take_text(self, event: TextEvent) -> None:
        text = self._texts.setdefault(event.id, AsyncText(event.id))
        text.feed(event)
        if event.done:
            self._forget_old_texts()
        if self._events.full():
            self._events.get_nowait()
        self._events.put_nowait(event)

    def _forget_old_texts(self) -> None:
        finished = [i for i, text in self._texts.items() if text.final is not None]
        for text_id in finished[:-100]:
            del self._texts[text_id]

    # The link

    async def _run(self) -> None:
        while True:
            try:
                await self._live()
            except (OSError, InvalidHandshake, asyncio.TimeoutError, ConnectionClosed, ValueError) as error:
                self._last_error = error
                self._fatal = fatal_cause(error)
            self._link = None
            self._connected.clear()
            self._lose_texts()
            if self._fatal is not None:
                self._end_everything(self._fatal)
                self._connected.set()
                return
            await asyncio.sleep(self._backoff.next_s())

    async def _live(self) -> None:
        async with connect(
            self._url,
            compression=None,
            max_size=None,
            additional_headers=self._headers,
            open_timeout=self._greeting_timeout_s,
            ping_interval=self._ping_s,
            ping_timeout=self._ping_s,
            close_timeout=1.0,
            proxy=self._proxy,
        ) as link:
            greeting = await asyncio.wait_for(link.recv(), self._greeting_timeout_s)
            self.metadata = wire.unpack(greeting) if isinstance(greeting, bytes) else {}
            self._link = link
            self.num_connects += 1
            await self._send_again()
            self._connected.set()
            async for data in link:
                self._backoff.reset()
                if isinstance(data, bytes):
                    self._dispatch(wire.unpack(data))

    async def _send_again(self) -> None:
        """After a loss: the newest observation goes out again, older ones are over; other requests go out as they
        were.
        """
        observations = [w for w in self._waiting.values() if w.is_observation]
        for waiting in observations[:-1]:
            if not waiting.future.done():
                waiting.future.set_exception(Superseded("a newer observation was waiting when the link came back"))
        for waiting in list(self._waiting.values()):
            if not waiting.future.done():
                await self._send(waiting.payload)

    def _lose_texts(self) -> None:
        for text in list(self._texts.values()):
            if text.final is None:
                self._take_text(TextEvent(text.id, "", None, done=True, finish_reason="lost"))

    def _end_everything(self, cause: Exception) -> None:
        self._lose_texts()
        for waiting in list(self._waiting.values()):
            if not waiting.future.done():
                waiting.future.set_exception(cause)
