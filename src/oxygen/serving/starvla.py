"""The StarVLA door: a client of StarVLA's policy server connects unchanged, on a port of its own (its clients use
10093).

The server speaks first (metadata); then every binary message gets one binary answer, in order. A request is a map with
`type` (`ping`, `infer` or `predict_action`; absent: infer), `request_id`, and under `payload`, or beside them,
`examples` (a list of maps with `image`, `lang` and perhaps `state`), `unnorm_key`, and our own `expert`, `num_steps`,
`seed` and `noise`. Pictures come in the order of the robot's cameras. Whatever else StarVLA's heads take (`do_sample`,
...) changes nothing here. Every example of a list is a robot of its own. An error is an answer too: the link stays.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from starlette.websockets import WebSocket

from oxygen.core.errors import Ended, InvalidInput
from oxygen.processing.chat_processor import ChatProcessor
from oxygen.processing.fast import FAST, FastExpert
from oxygen.processing.robots import Robot
from oxygen.processing.starvla import UNNORM_KEY
from oxygen.serving import metadata, tasks, wire
from oxygen.serving.flight import Flight, Frame
from oxygen.serving.frames import as_map, robot_keys
from oxygen.serving.gateway import Gateway
from oxygen.serving.link import INTERNAL_ERROR, TRY_AGAIN_LATER, Link, LinkClosed
from oxygen.serving.problems import describe
from oxygen.serving.sessions import Session
from oxygen.serving.wire import WireLimits

_INFER = ("infer", "predict_action")
MAX_FAST_TOKENS = 256


class StarvlaDoor:
    """One connection of a StarVLA client."""

    def __init__(self, websocket: WebSocket, gateway: Gateway) -> None:
        self._gateway = gateway
        self._link = Link(websocket, gateway.settings)
        self._name = websocket.query_params.get("session")
        self._limits = WireLimits(num_bytes=gateway.settings.max_frame_bytes)
        self._sessions: list[Session] = []
        self._flights: list[Flight] = []
        self._has_text_keys = False

    async def serve(self) -> None:
        try:
            await self._link.run(self._serve)
        finally:
            self._cancel()
            for session in self._sessions:
                self._gateway.release_session(session, self._link)

    async def _serve(self) -> None:
        try:
            if not await self._gateway.until_warm():
                await self._link.close(TRY_AGAIN_LATER, "the model is still warming up")
                return
            first = self._session(0)
            await self._link.send(wire.packb(greeting(self._gateway, first.name)))
            while True:
                answer = await self._answer(await self._link.receive())
                await self._link.send(wire.packb(answer, text_keys=self._has_text_keys))
        except LinkClosed:
            return
        except Exception as error:  # the door is where every error turns into words for the client
            code = describe(error, debug=self._gateway.settings.debug).code
            self._gateway.refuse(None, code)
            await self._link.close(INTERNAL_ERROR, f"error: {code}")

    async def _answer(self, data: bytes | str) -> dict[str, Any]:
        told: dict[str, Any] = {"type": "unknown", "request_id": "default"}
        try:
            if isinstance(data, str):
                raise InvalidInput("message", "a binary msgpack map", "a text frame")
            message = as_map(await self._gateway.in_thread(wire.unpackb, data, self._limits))
            self._has_text_keys = wire.uses_text_keys(data[:4096])
            told["request_id"] = _request_id(message)
            kind = message.get("type", _INFER[0])
            if not isinstance(kind, str) or kind not in ("ping", *_INFER):
                raise InvalidInput("type", "ping, infer or predict_action", repr(kind)[:80])
            if kind == "ping":
                return {"status": "ok", "ok": True, **told, "type": "ping"}
            told["type"] = "inference_result"
            actions = await self._infer(message)
            return {"status": "ok", "ok": True, **told, "data": {"actions": actions}}
        except LinkClosed:
            raise
        except Exception as error:
            problem = describe(error, debug=self._gateway.settings.debug)
            self._gateway.refuse(self._sessions[0], problem.code)
            return {"status": "error", "ok": False, **told, "error": {**problem.as_dict(), "message": str(problem)}}

    async def _infer(self, message: Mapping[str, Any]) -> np.ndarray:
        """Un-normalised actions, [B, T, D]. All examples are submitted before the first chunk is waited for."""
        payload = message.get("payload", message)
        if not isinstance(payload, Mapping):
            raise InvalidInput("payload", "a map", type(payload).__name__)
        examples, limit = payload.get("examples"), self._gateway.settings.max_in_flight
        if isinstance(examples, Mapping):
            examples = [examples]
        if not isinstance(examples, list) or not 1 <= len(examples) <= limit:
            got = f"{len(examples)}" if isinstance(examples, list) else type(examples).__name__
            raise InvalidInput("examples", f"a list of 1 to {limit} examples", got)
        self._flights = []
        try:
            for i, example in enumerate(examples):
                self._flights.append(await self._take(i, as_map(example), as_map(payload)))
            return np.stack([await self._chunk(flight) for flight in self._flights])
        finally:
            self._cancel()

    async def _take(self, i: int, example: Mapping[str, Any], payload: Mapping[str, Any]) -> Flight:
        gateway, robot, session = self._gateway, self._gateway.processor.robot, self._session(i)

        def read() -> Frame:
            raw = {**_raw(example, f"examples[{i}]", robot, gateway.settings.max_prompt_chars)}
            if (key := self._unnorm_key(payload)) is not None:
                raw[UNNORM_KEY] = key
            action = tasks.action_task(payload)
            if (fast := self._fast(action.expert)) is None:
                return Frame(raw=raw, action=action)
            if len(session.live_texts) >= gateway.settings.max_session_texts:
                raise gateway.too_many_texts(session)  # this text is the chunk: it is not turned away in silence
            room = min(MAX_FAST_TOKENS, gateway.engine.runner.limits.tail_len)
            return Frame(raw=raw, action=None, texts=(fast.task(room, seed=action.seed or 0),))

        return await gateway.take(session, read, "starvla")

    def _fast(self, expert: str) -> FastExpert | None:
        """Who writes chunks as text, where that is asked for by name, or the only way there is."""
        found = self._gateway.engine.processor
        if not isinstance(found, ChatProcessor) or (expert != FAST and found.config.experts):
            return None
        return found.fast

    async def _chunk(self, flight: Flight) -> np.ndarray:
        """[T, D] in robot units."""
        processor = self._gateway.engine.processor
        if not flight.ticket.texts or not isinstance(processor, ChatProcessor) or processor.fast is None:
            return (await self._gateway.actions(flight)).actions
        async with asyncio.timeout(self._gateway.settings.answer_timeout_s):
            said = await flight.ticket.texts[0].result_async()
        if said.finish_reason not in ("stop", "length"):
            raise Ended(said.finish_reason, f"the chunk was not finished: {said.finish_reason}")
        return processor.fast.chunk(said.token_ids, processor.statistics_of(flight.observation))

    def _unnorm_key(self, payload: Mapping[str, Any]) -> Any:
        """As the processor is to judge it; one that has a single set is not asked."""
        key, normalization = payload.get(UNNORM_KEY), self._gateway.processor.describe().get("normalization", {})
        if key is None or "asset_ids" in normalization:
            return key
        only = normalization.get("asset_id")
        if not isinstance(key, str) or key != only:
            raise InvalidInput(UNNORM_KEY, f"{only!r}, or none", repr(key)[:80])
        return None

    def _session(self, i: int) -> Session:
        """Of the i-th example of a list; the first has the link's own name."""
        if i == len(self._sessions):
            name = self._name if i == 0 else f"{self._sessions[0].name}.{i}"
            self._sessions.append(self._gateway.open_session(name, "starvla", self._link))
        return self._sessions[i]

    def _cancel(self) -> None:
        """Whoever leaves, or fails among several, leaves nothing unfinished behind."""
        for flight in self._flights:
            if not flight.ticket.is_done:
                flight.ticket.cancel()


def greeting(gateway: Gateway, session: str) -> dict[str, Any]:
    """Our metadata with StarVLA's names among them."""
    told = metadata.greeting(gateway, session)
    robot, limits = told["robot"], gateway.engine.runner.limits
    normalization = robot.get("normalization", {})
    default, written = normalization.get("asset_id"), None if robot.get("experts") else robot.get("fast")
    return told | {
        "action_chunk_size": written["horizon"] if written else limits.horizon,
        "model_action_dim": written["action_dim"] if written else gateway.processor.robot.action_dim,
        "model_state_dim": gateway.processor.robot.state_dim,
        "available_unnorm_keys": normalization.get("asset_ids", [default] if default else []),
        "default_unnorm_key": default,
    }


def _request_id(message: Mapping[str, Any]) -> str | int:
    given = message.get("request_id", "default")
    if isinstance(given, bool) or not isinstance(given, str | int) or len(str(given)) > 256:
        raise InvalidInput("request_id", "a text of at most 256 characters, or an integer", repr(given)[:80])
    return given


def _raw(example: Mapping[str, Any], where: str, robot: Robot, max_chars: int) -> Mapping[str, Any]:
    """An example under the robot's own keys."""
    pictures, words, state = example.get("image"), example.get("lang"), example.get("state")
    if isinstance(pictures, np.ndarray) and pictures.ndim == 3:
        pictures = [pictures]
    wanted = [camera.name for camera in robot.cameras]
    least = 1 + max((i for i, camera in enumerate(robot.cameras) if camera.required), default=0)
    if not isinstance(pictures, Sequence) or isinstance(pictures, str | bytes):
        raise InvalidInput(f"{where}.image", f"a list of pictures: {', '.join(wanted)}", type(pictures).__name__)
    if not least <= len(pictures) <= len(wanted):
        raise InvalidInput(f"{where}.image", f"pictures of {', '.join(wanted)}, in this order", f"{len(pictures)}")
    if not isinstance(words, str) or len(words) > max_chars:
        got = f"{len(words)} characters" if isinstance(words, str) else type(words).__name__
        raise InvalidInput(f"{where}.lang", f"at most {max_chars} characters of text", got)
    raw: dict[str, Any] = {f"observation.images.{name}": p for name, p in zip(wanted, pictures, strict=False)}
    raw["task"] = words
    if state is not None and robot.state_dim:
        with contextlib.suppress(ValueError):  # ragged lists are refused where states are read
            state = np.asarray(state)
        is_row = isinstance(state, np.ndarray) and state.ndim == 2 and len(state) == 1
        raw["observation.state"] = state[0] if is_row else state
    return robot_keys(raw, robot)
