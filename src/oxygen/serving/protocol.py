"""uvicorn's protocols with better manners at the beginning and at the end of a connection.

A message above the limit is refused in words that arrive: closing at once would reset the connection while the peer
still sends, and the reset overtakes the close frame. And a peer that does not read cannot keep a closed connection
open.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.protocol import State

_REQUEST_S = 30.0
_SILENCE_S = 0.5
_PATIENCE_S = 10.0
_FLUSH_S = 1.0


class ImpatientProtocol(H11Protocol):
    """Closes a connection whose first request is not complete after half a minute."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.loop.call_later(_REQUEST_S, self._close_if_silent)

    def _close_if_silent(self) -> None:
        if self.cycle is None and self.transport.get_protocol() is self:
            self.transport.close()


class PoliteProtocol(WebSocketsSansIOProtocol):
    """Discards what comes after a protocol error until the peer is silent; never waits for flushing."""

    is_discarding = False

    def data_received(self, data: bytes) -> None:
        if not self.is_discarding:
            super().data_received(data)
        elif self.close_timer is not None and self.loop.time() < self._give_up_at:
            self.close_timer.cancel()
            self.close_timer = self.loop.call_later(_SILENCE_S, self.transport.close)

    def handle_parser_exception(self) -> None:
        close = self.conn.close_sent
        if close is None:  # the handshake itself was wrong
            super().handle_parser_exception()
            return
        self.is_discarding = True
        self.queue.put_nowait({"type": "websocket.disconnect", "code": close.code, "reason": close.reason})
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = True
        if self.read_paused:
            self.read_paused = False
            self.transport.resume_reading()
        self._give_up_at = self.loop.time() + _PATIENCE_S
        self.close_timer = self.loop.call_later(_SILENCE_S, self.transport.close)

    async def run_asgi(self) -> None:
        await super().run_asgi()
        self._abort_soon()

    def keepalive_timeout(self) -> None:
        super().keepalive_timeout()
        self._abort_soon()

    def shutdown(self) -> None:
        if self.handshake_complete and self.conn.state is not State.OPEN:
            self.transport.close()  # the closing handshake has begun: there is nothing left to say
        else:
            super().shutdown()
        self._abort_soon()

    def _abort_soon(self) -> None:
        """What the peer has not taken a second after the end, it will not take."""
        if self.transport.get_write_buffer_size():
            self.loop.call_later(_FLUSH_S, self.transport.abort)
