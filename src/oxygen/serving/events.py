"""Text events for programs: a stream per session, as server-sent events or over a websocket (JSON text frames).

`GET /v1/events?session=NAME` and `WS /v1/events?session=NAME`; without a name, the events of all sessions.
`kinds=a,b` keeps some text kinds only. A reader that is too slow loses the oldest events and gets a `gap` event
that says how many.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.websockets import WebSocket

from oxygen.serving import strictjson
from oxygen.serving.feed import ANY, Event
from oxygen.serving.gateway import Gateway
from oxygen.serving.link import Link, LinkClosed

_BEAT_S = 10.0


async def stream(request: Request) -> StreamingResponse:
    """Server-sent events; a comment every few seconds keeps the way open and finds out who left."""
    gateway: Gateway = request.app.state.gateway
    wanted = _Filter(request.query_params)

    async def lines() -> AsyncIterator[str]:
        with gateway.feed.subscribe(wanted.session, wanted.types) as events:
            yield ": open\n\n"
            while not events.is_closed:
                batch = await events.wait(_BEAT_S)
                if not batch:
                    yield ": beat\n\n"
                for event in batch:
                    if wanted(event):
                        yield f"event: {event['type']}\ndata: {strictjson.dumps(event)}\n\n"

    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(lines(), media_type="text/event-stream", headers=headers)


async def socket(websocket: WebSocket) -> None:
    """The same events, one JSON text frame each. What the client sends is ignored."""
    gateway: Gateway = websocket.app.state.gateway
    wanted = _Filter(websocket.query_params)
    link = Link(websocket, gateway.settings, is_one_way=True)

    async def serve() -> None:
        with gateway.feed.subscribe(wanted.session, wanted.types) as events:
            try:
                while not events.is_closed:
                    for event in await events.wait():
                        if wanted(event):
                            await link.send(strictjson.dumps(event))
            except LinkClosed:
                return

    await link.run(serve)


class _Filter:
    def __init__(self, query: Any) -> None:
        self.session = query.get("session") or ANY
        self._kinds = frozenset(filter(None, query.get("kinds", "").split(",")))
        self.types = frozenset(filter(None, query.get("types", "text,warning,goodbye").split(",")))

    def __call__(self, event: Event) -> bool:
        return not self._kinds or event["type"] != "text" or event.get("kind") in self._kinds
