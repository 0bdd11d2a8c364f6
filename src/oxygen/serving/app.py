"""All doors behind one application: which path, and which port, leads where. Doors know the gateway; the gateway
knows the engine's public API.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from oxygen.engine.engine import Engine
from oxygen.serving import chat, dashboard, events, health
from oxygen.serving.gateway import Gateway
from oxygen.serving.guard import Guard
from oxygen.serving.lerobot.service import LeRobotService
from oxygen.serving.openpi import OpenpiDoor
from oxygen.serving.robot import RobotDoor
from oxygen.serving.settings import ServeSettings
from oxygen.serving.starvla import StarvlaDoor
from oxygen.serving.taps import open_taps


def build_app(engine: Engine, settings: ServeSettings | None = None) -> Guard:
    """An ASGI application for an engine that somebody else starts and closes, to be served inside `opened`.

    Its gateway is `app.gateway`.
    """
    gateway = Gateway(engine, settings or ServeSettings())
    health.register_gauges(gateway)
    routes = [
        Route("/healthz", health.healthz),
        Route("/livez", health.livez),
        Route("/readyz", health.readyz),
        Route("/metrics", health.metrics),
        Route("/v1/chat/completions", chat.completions, methods=["POST"]),
        Route("/v1/models", chat.models),
        Route("/v1/models/{model:path}", chat.models),
        Route("/v1/events", events.stream),
        WebSocketRoute("/v1/events", events.socket),
        WebSocketRoute("/v1/robot", _robot),
        *dashboard.routes(),
        WebSocketRoute("/{path:path}", _robot_client),
    ]
    handlers = {404: _not_found, 500: _broken}
    app = Starlette(routes=routes, exception_handlers=handlers)
    app.state.gateway = gateway
    app.state.lerobot_port = app.state.starvla_port = None
    return Guard(app, gateway)


@contextlib.asynccontextmanager
async def opened(app: Guard) -> AsyncIterator[None]:
    """What the doors need besides the port, open while the application is served.

    Raises InvalidInput for what cannot be had.
    """
    gateway = app.gateway
    settings, lerobot = gateway.settings, LeRobotService(gateway)
    unsubscribe = gateway.engine.subscribe(gateway.timeline.listen)
    sweeping = asyncio.ensure_future(_sweep(gateway))
    try:
        gateway.taps.extend(open_taps(settings))
        if settings.lerobot_port is not None:
            app.state.lerobot_port = await lerobot.start(settings.host, settings.lerobot_port)
        yield
    finally:
        sweeping.cancel()
        unsubscribe()
        await lerobot.stop()
        await gateway.close()


async def _sweep(gateway: Gateway) -> None:
    """Forget sessions that nobody has owned for a while."""
    while True:
        await asyncio.sleep(min(30.0, gateway.settings.session_idle_s))
        for session in gateway.sessions.sweep():
            gateway.feed.publish(session.name, {"type": "session", "session": session.name, "status": "forgotten"})


async def _robot_client(websocket: WebSocket) -> None:
    """openpi's clients and StarVLA's both ask for the root: they are told apart by the port that they came to."""
    state = websocket.app.state
    port = (websocket.scope.get("server") or ("", None))[1]
    door = StarvlaDoor if state.starvla_port is not None and port == state.starvla_port else OpenpiDoor
    await door(websocket, state.gateway).serve()


async def _robot(websocket: WebSocket) -> None:
    await RobotDoor(websocket, websocket.app.state.gateway).serve()


async def _not_found(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": {"code": "not_found", "message": "no such path"}}, status_code=404)


async def _broken(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": {"code": "internal", "message": "an error inside the server"}}, status_code=500)
