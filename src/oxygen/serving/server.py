"""The running server: one socket, one event loop, an orderly start and an orderly end.

SIGTERM drains: no new work, open frames are answered, every client is told, then the port closes. A second signal
ends at once. The listening socket gives up on dead peers (TCP_USER_TIMEOUT), so a half-open link never holds a slot
for long.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
from collections.abc import AsyncIterator, Callable
from types import FrameType

import uvicorn

from oxygen.core.errors import InvalidInput, OxygenError
from oxygen.engine.engine import Engine
from oxygen.serving.app import build_app, opened
from oxygen.serving.gateway import Gateway
from oxygen.serving.guard import Guard
from oxygen.serving.protocol import ImpatientProtocol, PoliteProtocol
from oxygen.serving.settings import ServeSettings

log = logging.getLogger("oxygen.serving")

_FAULT_POLL_S = 0.1
_FAULT_GRACE_S = 0.5


def listen(settings: ServeSettings) -> list[socket.socket]:
    """Open the port, and StarVLA's where there is to be one (0: any free one). Raises InvalidInput when one cannot be
    had.
    """
    listeners = [_listen(settings, settings.port, "port")]
    if settings.starvla_port is not None:
        try:
            listeners.append(_listen(settings, settings.starvla_port, "starvla_port"))
        except InvalidInput:
            listeners[0].close()
            raise
    return listeners


def _listen(settings: ServeSettings, port: int, name: str) -> socket.socket:
    try:
        family, *_, address = socket.getaddrinfo(settings.host, port, type=socket.SOCK_STREAM)[0]
    except (socket.gaierror, UnicodeError) as error:
        got = f"{settings.host!r:.80} ({error!s:.80})"
        raise InvalidInput("host", "a name or an address of this machine", got) from None
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        patience = 1000 * (settings.ping_interval_s + settings.ping_timeout_s)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(patience))
    try:
        listener.bind(address)
    except OSError as error:
        listener.close()
        got = f"{settings.host}:{port} ({error.strerror})"
        raise InvalidInput(name, "a free port that may be used", got) from None
    listener.listen(512)
    return listener


class Server(uvicorn.Server):
    """uvicorn, with an end that tells everybody first."""

    def __init__(self, app: Guard, settings: ServeSettings, on_open: Callable[[], None] = lambda: None) -> None:
        """on_open: called once all that the doors need is there."""
        super().__init__(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                lifespan="off",  # `serve` opens and closes what the doors need, and says what cannot be had
                http=ImpatientProtocol,
                ws=PoliteProtocol,
                ws_max_size=settings.max_frame_bytes,
                ws_per_message_deflate=False,
                ws_ping_interval=settings.ping_interval_s,
                ws_ping_timeout=settings.ping_timeout_s,
                timeout_graceful_shutdown=max(1, round(settings.drain_s)),
                server_header=False,
                limit_concurrency=None,
            )
        )
        self._settings = settings
        self._app, self._on_open = app, on_open
        self._gateway: Gateway = app.gateway
        self._draining: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until the end, on sockets as `listen` opened them. Raises InvalidInput for a recording or a port that
        cannot be had.
        """
        if sockets is not None and len(sockets) > 1:
            self._app.state.starvla_port = sockets[1].getsockname()[1]
        self._loop = asyncio.get_running_loop()
        watching = asyncio.ensure_future(self._leave_on_fault()) if self._settings.exit_on_fault else None
        try:
            async with opened(self._app):
                self._on_open()
                await super().serve(sockets)
        finally:
            if watching is not None:
                watching.cancel()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal: drain; a second one: leave."""
        if self._draining is not None or self._loop is None:
            self.should_exit = self.force_exit = True
            return
        self._loop.call_soon_threadsafe(self.stop)

    def stop(self) -> None:
        """Begin the orderly end. Event loop only."""
        if self._draining is None:
            self._draining = asyncio.ensure_future(self._drain())

    async def _leave_on_fault(self) -> None:
        """A device that has failed fails for ever: tell everybody and go, so that a supervisor starts anew."""
        while self._gateway.engine.status != "failed":
            await asyncio.sleep(_FAULT_POLL_S)
        log.error("the device failed: %s", self._gateway.engine.fault)
        await asyncio.sleep(_FAULT_GRACE_S)  # the answers that name the fault go out first
        self.stop()

    async def _drain(self) -> None:
        gateway = self._gateway
        log.info("stopping: no new work, %d frames are open", gateway.in_flight)
        gateway.is_draining = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.drain_s):
                while gateway.in_flight or any(session.live_texts for session in gateway.sessions):
                    await asyncio.sleep(0.02)
        await gateway.say_goodbye("the server is stopping")
        self.should_exit = True


@contextlib.asynccontextmanager
async def running(engine: Engine, settings: ServeSettings) -> AsyncIterator[int]:
    """Serve inside a running event loop (tests, notebooks); yields the port."""
    listeners = listen(settings)
    server = Server(build_app(engine, settings), settings)
    serving = asyncio.ensure_future(server.serve(listeners))
    while not server.started and not serving.done():
        await asyncio.sleep(0.005)
    try:
        if not serving.done():
            yield listeners[0].getsockname()[1]
    finally:
        server.stop()
        await serving


class BackgroundServer:
    """The server in a thread of its own, for programs that are not asynchronous. `with BackgroundServer(engine) as
    s: s.port`
    """

    def __init__(self, engine: Engine, settings: ServeSettings | None = None) -> None:
        self.settings = settings or ServeSettings(port=0)
        self.app = build_app(engine, self.settings)
        self._listeners = listen(self.settings)
        self.port: int = self._listeners[0].getsockname()[1]
        self._server = Server(self.app, self.settings)
        self._loop = asyncio.new_event_loop()
        self._failure: OxygenError | None = None
        self._thread = threading.Thread(target=self._run, name="oxygen-server", daemon=True)

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    @property
    def gateway(self) -> Gateway:
        return self.app.gateway

    @property
    def lerobot_port(self) -> int | None:
        """Where LeRobot's clients connect, once started; None without that door."""
        port: int | None = self.app.state.lerobot_port
        return port

    @property
    def starvla_port(self) -> int | None:
        """Where StarVLA's clients connect; None without that door."""
        return self._listeners[1].getsockname()[1] if len(self._listeners) > 1 else None

    @property
    def address(self) -> str:
        return f"{self.settings.host}:{self.port}"

    def __enter__(self) -> BackgroundServer:
        self._thread.start()
        while not self._server.started and self._thread.is_alive():
            threading.Event().wait(0.005)
        if self._failure is not None:
            raise self._failure
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def stop(self) -> None:
        """The orderly end; returns when the port is free. Does nothing when that is so already."""
        if self._thread.is_alive():
            with contextlib.suppress(RuntimeError):  # the loop ended by itself meanwhile
                self._loop.call_soon_threadsafe(self._server.stop)
            self._thread.join(timeout=self.settings.drain_s + 10)

    def call_soon(self, call: Callable[..., object], *args: object) -> None:
        """Call something on the server's event loop."""
        self._loop.call_soon_threadsafe(call, *args)

    def kill(self) -> None:
        """Leave without a word, as a crash would: connections are cut, nobody is told."""

        def cut() -> None:
            for server in self._server.servers:
                server.close()
            for connection in list(self._server.server_state.connections):
                if connection.transport is not None:
                    connection.transport.abort()
            self._server.force_exit = self._server.should_exit = True

        self._loop.call_soon_threadsafe(cut)
        self._thread.join(timeout=10)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._server.serve(self._listeners))
        except OxygenError as error:
            self._failure = error
            for listener in self._listeners:
                listener.close()
        finally:
            left = asyncio.all_tasks(self._loop)
            for task in left:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()
