"""The client for ordinary, blocking programs: the asynchronous one, run in a thread of its own.

So the link is kept alive and text goes on arriving whatever the calling thread does.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import queue
import threading
from typing import Any, Coroutine, Iterator, Mapping, Optional, Sequence, TypeVar

from oxygen_client.aio import AsyncRobotClient
from oxygen_client.errors import NoAnswer
from oxygen_client.messages import Chunk, Task, TextEvent
from oxygen_client.text import AsyncText

T = TypeVar("T")
_MARGIN_S = 5.0


class Text:
    """One text in progress. Iterate it for the pieces, or call `result()` for the whole."""

    def __init__(self, client: "RobotClient", text: AsyncText) -> None:
        self._client, self._text = client, text

    @property
    def id(self) -> str:
        return self._text.id

    @property
    def final(self) -> Optional[TextEvent]:
        """The last event, once the text has ended."""
        return self._text.final

    def __iter__(self) -> Iterator[str]:
        pieces: "queue.Queue[Optional[str]]" = queue.Queue()

        async def pump() -> None:
            try:
                async for piece in self._text:
                    pieces.put(piece)
            finally:
                pieces.put(None)

        pumping = self._client._start(pump())
        try:
            while True:
                piece = pieces.get()
                if piece is None:
                    return
                yield piece
        finally:
            pumping.cancel()

    def result(self, timeout: Optional[float] = None) -> str:
        """The whole text. Raises NoAnswer when it is not complete in time."""
        try:
            return self._client._call(self._text.result(timeout))
        except asyncio.TimeoutError:
            raise NoAnswer(f"the text is not complete after {timeout} s") from None

    def cancel(self) -> None:
        self._client._call(self._client._async.cancel(self._text))


class RobotClient:
    """One robot's link to an OxyGen server; the arguments are those of AsyncRobotClient.

    with RobotClient("ws://127.0.0.1:8000", session="arm-1") as robot:
        chunk = robot.infer({"observation/image": image, "prompt": "pick up the cup", ...}, timeout=1.0)
        print(robot.ask("what are you doing?").result(timeout=10))
    """

    def __init__(self, url: str, session: Optional[str] = None, api_key: Optional[str] = None, **options: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="oxygen-client", daemon=True)
        self._thread.start()
        self._async: AsyncRobotClient = self._call(_build(url, session, api_key, options))

    def __enter__(self) -> "RobotClient":
        self.connect()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The server's greeting: robot, horizon, rate, model."""
        return self._async.metadata

    @property
    def is_connected(self) -> bool:
        return self._async.is_connected

    @property
    def num_connects(self) -> int:
        return self._async.num_connects

    @property
    def num_late_answers(self) -> int:
        return self._async.num_late_answers

    def connect(self, timeout: Optional[float] = 10.0) -> Mapping[str, Any]:
        """See AsyncRobotClient.connect."""
        return self._call(self._async.connect(timeout))

    def infer(
        self,
        observation: Mapping[str, Any],
        tasks: Sequence[Task] = (),
        *,
        step: int = 0,
        timeout: Optional[float] = None,
        **options: Any,
    ) -> Chunk:
        """See AsyncRobotClient.infer."""
        return self._call(self._async.infer(observation, tasks, step=step, timeout=timeout, **options))

    def ask(self, question: str, **options: Any) -> Text:
        """See AsyncRobotClient.ask."""
        return Text(self, self._call(self._async.ask(question, **options)))

    def text(self, text_id: str) -> Text:
        """The text with an id that a chunk announced."""
        return Text(self, self._async.text(text_id))

    def reset(self, timeout: Optional[float] = 10.0) -> None:
        """See AsyncRobotClient.reset."""
        self._call(self._async.reset(timeout))

    def events(self, timeout: Optional[float] = None) -> Iterator[TextEvent]:
        """Text events of the session as they come; ends when none came for `timeout` seconds."""
        while True:
            try:
                yield self._call(asyncio.wait_for(self._async._events.get(), timeout))
            except asyncio.TimeoutError:
                return

    def close(self) -> None:
        """Say goodbye and stop the thread."""
        if self._thread.is_alive():
            self._call(self._async.close())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(timeout=_MARGIN_S)
            self._loop.close()

    def _start(self, coroutine: "Coroutine[Any, Any, T]") -> "concurrent.futures.Future[T]":
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def _call(self, coroutine: "Coroutine[Any, Any, T]") -> T:
        future = self._start(coroutine)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            raise


async def _build(
    url: str, session: Optional[str], api_key: Optional[str], options: Mapping[str, Any]
) -> AsyncRobotClient:
    # Built inside the loop: before Python 3.10, asyncio's queues and events belong to the loop that made them.
    return AsyncRobotClient(url, session, api_key, **options)
