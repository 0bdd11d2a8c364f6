"""One websocket, read without pause and written with limited patience.

Reading goes on whatever the door is doing, so pings are answered and a leaving peer is noticed during the longest model
call. Writing to a peer that does not read ends the link after a while instead of filling memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable

from starlette.websockets import WebSocket, WebSocketDisconnect

from oxygen.serving.settings import ServeSettings

log = logging.getLogger("oxygen.serving")

GOING_AWAY = 1001
INTERNAL_ERROR = 1011
TRY_AGAIN_LATER = 1013
TAKEN_OVER = 4409
_MAX_REASON_BYTES = 120


class LinkClosed(Exception):
    """The peer is gone, or was sent away."""


class Link:
    """Use `run(handler)`; the handler is cancelled as soon as the peer goes away.

    max_waiting: messages that may wait to be handled. is_one_way: whatever the peer says is thrown away.
    """

    def __init__(
        self, websocket: WebSocket, settings: ServeSettings, max_waiting: int = 16, is_one_way: bool = False
    ) -> None:
        self.websocket = websocket
        self._settings = settings
        self._inbox: deque[bytes | str] = deque()
        self._arrived = asyncio.Event()
        self._max_waiting = max_waiting
        self._is_one_way = is_one_way
        self._closing: asyncio.Task[None] | None = None
        self._given_up = asyncio.Event()
        self.is_closed = False

    @property
    def peer(self) -> str:
        client = self.websocket.client
        return f"{client.host}:{client.port}" if client else "unknown"

    async def run(self, handler: Callable[[], Awaitable[None]]) -> None:
        """Accept, then handle messages until the handler is done or the peer is gone. Never raises for a lost peer."""
        await self.websocket.accept()
        handling = asyncio.ensure_future(handler())
        reading = asyncio.ensure_future(self._read())
        giving_up = asyncio.ensure_future(self._given_up.wait())
        try:
            await asyncio.wait({handling, reading, giving_up}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            giving_up.cancel()
            handling.cancel()
            with contextlib.suppress(asyncio.CancelledError, LinkClosed):
                await handling
            await self.close(1000, "")
            reading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reading

    async def receive(self) -> bytes | str:
        """The next message, in order."""
        while not self._inbox:
            self._arrived.clear()
            await self._arrived.wait()
        return self._inbox.popleft()

    async def send(self, data: bytes | str) -> None:
        """Write one message. Raises LinkClosed when the peer is gone or does not read."""
        if self.is_closed:
            raise LinkClosed
        try:
            async with asyncio.timeout(self._settings.send_timeout_s):
                if isinstance(data, str):
                    await self.websocket.send_text(data)
                else:
                    await self.websocket.send_bytes(data)
        except TimeoutError:
            log.warning("%s does not read; closing", self.peer, extra={"peer": self.peer})
            self._given_up.set()
            await self.close(INTERNAL_ERROR, "the peer does not read")
            raise LinkClosed from None
        except (WebSocketDisconnect, RuntimeError) as error:
            self.is_closed = True
            self._given_up.set()
            raise LinkClosed from error

    async def close(self, code: int, reason: str) -> None:
        """Close once; later calls do nothing."""
        if self.is_closed:
            return
        self.is_closed = True
        short = reason.encode()[:_MAX_REASON_BYTES].decode(errors="ignore")
        with contextlib.suppress(WebSocketDisconnect, RuntimeError, TimeoutError):
            async with asyncio.timeout(1.0):
                await self.websocket.close(code, short)

    def evict(self, reason: str) -> None:
        """Another link took the session over: say so and close, without waiting for it."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self.close(TAKEN_OVER, reason))

    async def dismiss(self, reason: str) -> None:
        """The server stops: say so and close."""
        await self.close(GOING_AWAY, reason)

    async def _read(self) -> None:
        while True:
            message = await self.websocket.receive()
            if message["type"] == "websocket.disconnect":
                self.is_closed = True
                return
            if self._is_one_way:
                continue
            if len(self._inbox) >= self._max_waiting:
                await self.close(INTERNAL_ERROR, f"more than {self._max_waiting} messages wait for an answer")
                return
            data = message.get("bytes")
            self._inbox.append(message.get("text", "") if data is None else data)
            self._arrived.set()
