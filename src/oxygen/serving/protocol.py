"""uvicorn's websocket protocol with one manner added: a message above the limit is refused in words that arrive.

Closing at once would reset the connection while the peer still sends, and the reset overtakes the close frame. So
the rest is read and thrown away for a moment, in which the peer learns the reason.
"""

from __future__ import annotations

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

_PATIENCE_S = 3.0


class PoliteProtocol(WebSocketsSansIOProtocol):
    """Discards what comes after a protocol error until the peer closes, or for three seconds."""

    is_discarding = False

    def data_received(self, data: bytes) -> None:
        if not self.is_discarding:
            super().data_received(data)

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
        self.close_timer = self.loop.call_later(_PATIENCE_S, self.transport.close)
