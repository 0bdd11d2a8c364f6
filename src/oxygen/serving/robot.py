"""The robot door (`/v1/robot`): actions and text on one link, for clients that know us.

Every message is a msgpack map with a `type`. Requests carry a `seq` that their answer repeats. Several frames may
be unanswered; an error ends one request, not the link; text arrives by itself, under the ids that `actions` and
`asked` told.

    client: observation {seq, observation, tasks?, frame_id?, captured_at?, num_steps?, seed?, noise?}
            ask {seq, task, frame_id?, max_age_s?}   reset {seq}   cancel {id}
    server: (greeting)  actions {seq, actions, frame_id, texts, timing, warnings}  asked {seq, id}  reset {seq}
            text {id, kind, frame_id, delta, done, ...}   warning, gap, error {seq?, code, message, ...}   goodbye
            {reason}
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from typing import Any

from starlette.websockets import WebSocket

from oxygen.core.errors import InvalidInput, Refused
from oxygen.serving import metadata, tasks, wire
from oxygen.serving.feed import Subscription
from oxygen.serving.flight import Flight, Frame
from oxygen.serving.frames import as_map, read_frame
from oxygen.serving.gateway import Gateway
from oxygen.serving.link import INTERNAL_ERROR, Link, LinkClosed
from oxygen.serving.problems import describe
from oxygen.serving.sessions import Session
from oxygen.serving.wire import WireLimits
from oxygen.tickets.ticket import Ticket

_PASSED_ON = frozenset({"text", "warning", "goodbye"})


class RobotDoor:
    """One robot's connection."""

    def __init__(self, websocket: WebSocket, gateway: Gateway) -> None:
        self._gateway = gateway
        self._link = Link(websocket, gateway.settings, max_waiting=4 * gateway.settings.max_in_flight)
        self._name = websocket.query_params.get("session")
        self._limits = WireLimits(num_bytes=gateway.settings.max_frame_bytes)
        self._tickets: dict[int, Ticket] = {}
        self._answers: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        await self._link.run(self._serve)

    async def _serve(self) -> None:
        gateway, session = self._gateway, None
        try:
            session = gateway.open_session(self._name, "robot", self._link)
            await self._send(metadata.greeting(gateway, session.name))
            with gateway.feed.subscribe(session.name, _PASSED_ON) as events:
                writer = asyncio.ensure_future(self._pass_on(events))
                try:
                    while True:
                        await self._take(session, await self._link.receive())
                finally:
                    writer.cancel()
                    await asyncio.gather(writer, return_exceptions=True)
        except LinkClosed:
            return
        except Exception as error:  # the door is where every error turns into words for the client
            await self._tell(session, None, error)
            await self._link.close(INTERNAL_ERROR, "error")
        finally:
            self._cancel_everything()
            if session is not None:
                gateway.release_session(session, self._link)

    async def _pass_on(self, events: Subscription) -> None:
        with contextlib.suppress(LinkClosed):
            while not events.is_closed:
                for event in await events.wait():
                    await self._send(event)

    async def _take(self, session: Session, data: bytes | str) -> None:
        """Handle one message. What is wrong with it is told to the client; the link stays."""
        seq = None
        try:
            if isinstance(data, str):
                raise InvalidInput("message", "a binary msgpack map", "a text frame")
            message = as_map(await self._gateway.in_thread(wire.unpackb, data, self._limits))
            seq = _sequence(message)
            kind = message.get("type")
            if not isinstance(kind, str):
                raise InvalidInput("type", "observation, ask, reset or cancel", type(kind).__name__)
            if kind == "observation":
                await self._observation(session, message, seq)
            elif kind == "ask":
                await self._ask(session, message, seq)
            elif kind == "reset":
                await self._gateway.reset(session)
                await self._send({"type": "reset", "seq": seq})
            elif kind == "cancel":
                self._cancel(session, message.get("id"))
            else:
                raise InvalidInput("type", "observation, ask, reset or cancel", repr(kind)[:80])
        except LinkClosed:
            raise
        except Exception as error:
            await self._tell(session, seq, error)

    async def _observation(self, session: Session, message: Mapping[str, Any], seq: int | None) -> None:
        gateway = self._gateway
        if len(self._answers) >= gateway.settings.max_in_flight:
            limit = gateway.settings.max_in_flight
            raise Refused("too_many_in_flight", f"{limit} frames of this link are unanswered", retry_after_s=0.1)
        robot, max_chars = gateway.processor.robot, gateway.settings.max_prompt_chars

        def read() -> Frame:
            observation = message.get("observation")
            if not isinstance(observation, Mapping):
                raise InvalidInput("observation", "a map", type(observation).__name__)
            return read_frame(as_map(observation), message, robot, max_chars)

        flight = await gateway.take(session, read, "robot")
        self._tickets[id(flight.ticket)] = flight.ticket
        answer = asyncio.ensure_future(self._answer(session, flight, seq))
        self._answers.add(answer)
        answer.add_done_callback(self._answers.discard)

    async def _answer(self, session: Session, flight: Flight, seq: int | None) -> None:
        try:
            result = await self._gateway.actions(flight)
            self._forget_done()
            timing = {"infer_ms": 1000 * (time.perf_counter() - flight.started), "ready_ms": 1000 * result.ready_s}
            await self._send(
                {
                    "type": "actions",
                    "seq": seq,
                    "frame_id": result.frame_id,
                    "actions": result.actions,
                    "texts": list(flight.text_ids),
                    "timing": timing,
                    "warnings": [{"code": code, "message": text} for code, text in flight.warnings],
                }
            )
        except LinkClosed:
            return
        except Exception as error:
            await self._tell(session, seq, error)

    async def _ask(self, session: Session, message: Mapping[str, Any], seq: int | None) -> None:
        gateway = self._gateway
        task = tasks.text_task(message.get("task"), "task", gateway.settings.max_prompt_chars)
        max_age_s = message.get("max_age_s")
        if max_age_s is not None and (isinstance(max_age_s, bool) or not isinstance(max_age_s, int | float)):
            raise InvalidInput("max_age_s", "a number of seconds", repr(max_age_s)[:80])
        frame_id = tasks.frame_number(message.get("frame_id"))
        text_id, ticket = await gateway.ask(session, task, frame_id=frame_id, max_age_s=max_age_s)
        self._forget_done()
        self._tickets[id(ticket)] = ticket
        await self._send({"type": "asked", "seq": seq, "id": text_id})

    def _cancel(self, session: Session, text_id: Any) -> None:
        handle = session.live_texts.get(text_id) if isinstance(text_id, str) else None
        if handle is not None:
            handle.cancel()

    def _forget_done(self) -> None:
        for key, ticket in list(self._tickets.items()):
            if ticket.is_done:
                del self._tickets[key]

    def _cancel_everything(self) -> None:
        for answer in self._answers:
            answer.cancel()
        for ticket in self._tickets.values():
            if not ticket.is_done:
                ticket.cancel()

    async def _tell(self, session: Session | None, seq: int | None, error: Exception) -> None:
        problem = describe(error, debug=self._gateway.settings.debug)
        self._gateway.refuse(session, problem.code)
        with contextlib.suppress(LinkClosed):
            await self._send({"type": "error", "seq": seq, **problem.as_dict()})

    async def _send(self, message: Mapping[str, Any]) -> None:
        await self._link.send(wire.packb(message))


def _sequence(message: Mapping[str, Any]) -> int | None:
    seq = message.get("seq")
    return seq if isinstance(seq, int) and not isinstance(seq, bool) and 0 <= seq < 2**63 else None
