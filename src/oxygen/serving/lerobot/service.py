"""LeRobot's four calls on the gateway: Ready, SendPolicyInstructions, SendObservations, GetActions.

State belongs to the client's connection. An empty answer means "nothing yet", as LeRobot has it; a fault is a
status with a reason, never an empty chunk.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import grpc.aio

from oxygen.core.errors import InvalidInput, Refused
from oxygen.serving.flight import Frame
from oxygen.serving.gateway import Gateway
from oxygen.serving.lerobot import actions, pickles, protobuf
from oxygen.serving.lerobot.peer import Peer, Timed, timed_observation
from oxygen.serving.lerobot.torch import storage_bytes
from oxygen.serving.problems import describe

log = logging.getLogger("oxygen.serving")

SERVICE = "transport.AsyncInference"
_WAIT_S = 2.0
_IDLE_S = 120.0
_DEFAULT_HZ = 30.0
_MAX_MESSAGE = 8 * 1024 * 1024
_STATUS = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    409: grpc.StatusCode.FAILED_PRECONDITION,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}


class Unauthorized(Exception):
    """The call brings no key, or another one."""


class LeRobotService:
    """The service. `start` opens the port and returns its number; `stop` closes it."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._peers: dict[str, Peer] = {}
        self._server: grpc.aio.Server | None = None
        self._sweeper: asyncio.Task[None] | None = None

    async def start(self, host: str, port: int) -> int:
        options = [("grpc.max_receive_message_length", _MAX_MESSAGE), ("grpc.so_reuseport", 0)]
        self._server = grpc.aio.server(options=options, maximum_concurrent_rpcs=self._gateway.settings.max_connections)
        handlers = {
            "Ready": self._unary(self._ready),
            "SendPolicyInstructions": self._unary(self._instructions),
            "SendObservations": grpc.stream_unary_rpc_method_handler(self._told(self._observations), bytes, bytes),
            "GetActions": self._unary(self._actions),
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        try:
            bound: int = self._server.add_insecure_port(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        except RuntimeError:  # gRPC's own, with the reason in its log only
            raise InvalidInput("lerobot_port", "a free port that may be used", f"{host}:{port}") from None
        await self._server.start()
        self._sweeper = asyncio.ensure_future(self._sweep())
        return bound

    async def stop(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._server is not None:
            await self._server.stop(grace=1.0)

    def _unary(self, call: Callable[..., Any]) -> grpc.RpcMethodHandler:
        return grpc.unary_unary_rpc_method_handler(self._told(call), bytes, bytes)

    def _told(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Check the key; turn every error into a status with a reason."""

        async def answer(request: Any, context: grpc.aio.ServicerContext) -> bytes:
            try:
                self._check_key(context)
                result: bytes = await call(request, context)
                return result
            except Unauthorized:
                self._gateway.refuse(None, "unauthorized")
                await context.abort(grpc.StatusCode.UNAUTHENTICATED, "this server wants an API key")
            except Exception as error:  # the door is where every error turns into words for the client
                problem = describe(error, debug=self._gateway.settings.debug)
                peer = self._peers.get(context.peer())
                self._gateway.refuse(peer.session if peer else None, problem.code)
                await context.abort(_STATUS.get(problem.status, grpc.StatusCode.INTERNAL), str(problem))
            raise AssertionError("abort raises")

        return answer

    def _check_key(self, context: grpc.aio.ServicerContext) -> None:
        key = self._gateway.settings.api_key
        given = dict(context.invocation_metadata() or ()).get("authorization", "")
        if key is not None and not hmac.compare_digest(str(given).partition(" ")[2].encode(), key.encode()):
            raise Unauthorized

    async def _ready(self, _: bytes, context: grpc.aio.ServicerContext) -> bytes:
        peer = self._peers.get(context.peer())
        if peer is None or peer.evicted is not None:  # Ready begins anew: what another client has taken is not its own
            peer = self._open(context)
        peer.last_call = time.monotonic()
        peer.restart()
        await self._gateway.reset(peer.session)
        return b""

    async def _instructions(self, message: bytes, context: grpc.aio.ServicerContext) -> bytes:
        peer = self._peer(context)
        data = protobuf.read_data(message)
        peer.configure(await self._gateway.in_thread(pickles.load, data, "RemotePolicyConfig"))
        return b""

    async def _observations(self, parts: AsyncIterator[bytes], context: grpc.aio.ServicerContext) -> bytes:
        peer = self._peer(context)
        data = await self._gathered(parts)
        timed = timed_observation(await self._gateway.in_thread(pickles.load, data, "TimedObservation"))
        skipped = peer.offer(timed)
        if skipped is not None:
            self._gateway.metrics.refusals.add(f"skipped_{skipped}")
            context.set_trailing_metadata((("oxygen-skipped", skipped),))
        return b""

    async def _gathered(self, parts: AsyncIterator[bytes]) -> bytes:
        limit, data = self._gateway.settings.max_frame_bytes, bytearray()
        async for message in parts:
            state, part = protobuf.read_observation(message)
            if state == protobuf.BEGIN:
                data.clear()
            data += part
            if len(data) > limit:
                raise Refused("too_large", f"an observation holds at most {limit} bytes")
            if state == protobuf.END:
                return bytes(data)
        raise InvalidInput("SendObservations", "a last part marked as the end", "a stream that stopped before")

    async def _actions(self, _: bytes, context: grpc.aio.ServicerContext) -> bytes:
        peer, gateway = self._peer(context), self._gateway
        timed = await peer.take(_WAIT_S)
        peer.last_call = time.monotonic()
        if timed is None:
            return b""
        robot, flight = gateway.processor.robot, None

        def read(timed: Timed = timed) -> Frame:
            return peer.frame(timed, robot)

        try:
            flight = await gateway.take(peer.session, read, "lerobot")
            result = await gateway.actions(flight)
        finally:
            if flight is not None and not flight.ticket.is_done:
                flight.ticket.cancel()
        chunk = result.actions[: peer.actions_per_chunk]
        period_s = 1.0 / (gateway.settings.control_hz or _DEFAULT_HZ)
        data = actions.pack(chunk, timed.timestamp, timed.timestep, period_s, timed.helpers, storage_bytes)
        return protobuf.write_data(data)

    def _open(self, context: grpc.aio.ServicerContext) -> Peer:
        owner = _Owner()
        metadata = dict(context.invocation_metadata() or ())
        name = metadata.get("x-robot-session")
        session = self._gateway.open_session(name if name is None else str(name), "lerobot", owner)
        peer = self._peers[context.peer()] = owner.peer = Peer(session)
        session.owner = peer
        return peer

    def _peer(self, context: grpc.aio.ServicerContext) -> Peer:
        peer = self._peers.get(context.peer())
        if peer is None:
            raise Refused("not_ready", "call Ready first: this connection is not known (or was idle for too long)")
        if peer.evicted is not None:
            del self._peers[context.peer()]
            raise Refused("taken_over", peer.evicted)
        peer.last_call = time.monotonic()
        return peer

    async def _sweep(self) -> None:
        """gRPC does not say when a client has gone; one that is silent for two minutes is forgotten."""
        while True:
            await asyncio.sleep(_IDLE_S / 4)
            for address, peer in list(self._peers.items()):
                if peer.last_call < time.monotonic() - _IDLE_S:
                    del self._peers[address]
                    self._gateway.release_session(peer.session, peer)


class _Owner:
    """Stands for a peer until it exists."""

    peer: Peer | None = None

    def evict(self, reason: str) -> None:
        if self.peer is not None:
            self.peer.evict(reason)

    async def dismiss(self, reason: str) -> None:
        self.evict(reason)
