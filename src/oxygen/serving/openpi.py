"""The openpi door: an existing robot client connects unchanged.

The server speaks first (metadata), then one binary reply per binary observation, in order, one at a time. An error
is a text frame and close code 1011. A client that sends one of our extra keys (`tasks`, `session`, `frame_id`,
`captured_at`, `num_steps`, `seed`, `noise`) gets our extra fields in the reply; one that does not gets openpi's
fields and nothing else.

Any path speaks openpi's own dialect (SGLang's clients included); `/v1/realtime/robot/openpi` speaks vLLM-Omni's:
the reply is the bare array, a reset is answered in text, and an error is a map that leaves the connection open.
"""

from __future__ import annotations

import contextlib
import time
import traceback
from collections.abc import Mapping
from typing import Any

from starlette.websockets import WebSocket

from oxygen.core.errors import InvalidInput
from oxygen.core.tasks import ActionResult
from oxygen.serving import metadata, wire
from oxygen.serving.feed import Subscription
from oxygen.serving.flight import Flight, Frame
from oxygen.serving.frames import as_map, has_options, read_frame, session_name, wants_reset
from oxygen.serving.gateway import Gateway
from oxygen.serving.link import INTERNAL_ERROR, TRY_AGAIN_LATER, Link, LinkClosed
from oxygen.serving.problems import Problem, describe
from oxygen.serving.sessions import Session
from oxygen.serving.wire import WireLimits

VLLM_OMNI_PATH = "/v1/realtime/robot/openpi"
_TEXT = frozenset({"text"})


class OpenpiDoor:
    """One connection of an openpi client."""

    def __init__(self, websocket: WebSocket, gateway: Gateway) -> None:
        self._gateway = gateway
        self._link = Link(websocket, gateway.settings)
        self._is_vllm_omni = websocket.url.path.rstrip("/") == VLLM_OMNI_PATH
        self._name: Any = websocket.query_params.get("session") or websocket.headers.get("x-robot-session")
        self._session: Session | None = None
        self._texts: Subscription | None = None
        self._flight: Flight | None = None
        self._prev_total_ms: float | None = None
        self._has_text_keys = False

    async def serve(self) -> None:
        try:
            await self._link.run(self._serve)
        finally:
            self._leave()

    async def _serve(self) -> None:
        try:
            if not await self._gateway.until_warm():
                await self._link.close(TRY_AGAIN_LATER, "the model is still warming up")
                return
            session = self._enter(self._name)
            await self._link.send(self._pack(metadata.greeting(self._gateway, session.name)))
            while True:
                await self._answer(await self._link.receive())
        except LinkClosed:
            return
        except Exception as error:  # the door is where every error turns into words for the client
            await self._fail(error)

    async def _answer(self, data: bytes | str) -> None:
        started = time.perf_counter()
        try:
            reply = await self._reply_to(data, started)
        except LinkClosed:
            raise
        except Exception as error:
            if not self._is_vllm_omni:
                raise
            reply = self._pack({"type": "error", "error": str(self._problem(error))})
        await self._link.send(reply)
        self._prev_total_ms = 1000 * (time.perf_counter() - started)

    async def _reply_to(self, data: bytes | str, started: float) -> bytes | str:
        if isinstance(data, str):
            raise InvalidInput("message", "a binary msgpack map", "a text frame")
        message = await self._gateway.in_thread(self._unpack, data)
        name = session_name(message)
        self._has_text_keys = wire.uses_text_keys(data[:4096])
        session = self._session
        if session is None or (name is not None and name != session.name):
            session = self._enter(name)
        if wants_reset(message):
            await self._gateway.reset(session)
            return "reset successful" if self._is_vllm_omni else self._pack({"reset": True})
        return self._pack(await self._infer(session, message, started))

    async def _infer(self, session: Session, message: Mapping[str, Any], started: float) -> Any:
        gateway = self._gateway
        robot, max_chars = gateway.processor.robot, gateway.settings.max_prompt_chars

        def read() -> Frame:
            return read_frame(message, message, robot, max_chars)

        self._flight = flight = await gateway.take(session, read, "openpi")
        result = await gateway.actions(flight)
        return result.actions if self._is_vllm_omni else self._reply(message, flight, result, started)

    def _reply(
        self, message: Mapping[str, Any], flight: Flight, result: ActionResult, started: float
    ) -> dict[str, Any]:
        timing = {"infer_ms": 1000 * (time.perf_counter() - started)}
        if self._prev_total_ms is not None:
            timing["prev_total_ms"] = self._prev_total_ms
        reply: dict[str, Any] = {
            "actions": result.actions,
            "policy_timing": {"infer_ms": 1000 * result.ready_s},
            "server_timing": timing,
        }
        if has_options(message):
            reply["session"] = result.session
            reply["frame_id"] = result.frame_id
            reply["texts"] = list(flight.text_ids)
            reply["text"] = self._texts.drain() if self._texts else []
            reply["warnings"] = [{"code": code, "message": text} for code, text in flight.warnings]
        return reply

    def _enter(self, name: Any) -> Session:
        self._leave()
        session = self._gateway.open_session(name, "openpi", self._link)
        self._session, self._texts = session, self._gateway.feed.subscribe(session.name, _TEXT)
        return session

    def _leave(self) -> None:
        """The client is gone or speaks for another robot: what it left unfinished is cancelled."""
        if self._flight is not None and not self._flight.ticket.is_done:
            self._flight.ticket.cancel()
        if self._texts is not None:
            self._texts.close()
            self._gateway.feed.unsubscribe(self._texts)
        if self._session is not None:
            self._gateway.release_session(self._session, self._link)
        self._session = self._texts = self._flight = None

    async def _fail(self, error: Exception) -> None:
        """openpi's clients raise on a text frame and show it to their user."""
        problem = self._problem(error)
        detail = "".join(traceback.format_exception(error)) if self._gateway.settings.debug else str(problem)
        with contextlib.suppress(LinkClosed):
            await self._link.send(detail)
        await self._link.close(INTERNAL_ERROR, f"error: {problem.code}")

    def _problem(self, error: Exception) -> Problem:
        problem = describe(error, debug=self._gateway.settings.debug)
        self._gateway.refuse(self._session, problem.code)
        return problem

    def _pack(self, message: Any) -> bytes:
        """Arrays go out with the markers that this client writes itself."""
        return wire.packb(message, text_keys=self._has_text_keys)

    def _unpack(self, data: bytes) -> Mapping[str, Any]:
        return as_map(wire.unpackb(data, WireLimits(num_bytes=self._gateway.settings.max_frame_bytes)))
