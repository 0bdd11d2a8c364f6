"""OpenAI-compatible text: a person asks the robot while it goes on working.

`POST /v1/chat/completions` is answered on the newest context of a robot's session: no second prefill where sharing
is exact. The robot is named by the field `session`, by the model name (`NAME@SESSION`), or is the only one
connected. Further own fields: `kind`, `frame` (`latest`, `next` or a number), `max_age_s`, `deadline_s`; the answer
carries `oxygen` with frame and ages.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from oxygen.core.errors import InvalidInput, Refused
from oxygen.core.tasks import Observation, TextResult, TextTask
from oxygen.serving import chat_request, strictjson
from oxygen.serving.chat_request import ChatRequest
from oxygen.serving.gateway import Gateway
from oxygen.serving.problems import Problem, describe
from oxygen.serving.sessions import Session
from oxygen.tickets.ticket import TextHandle, Ticket

_UNFINISHED = frozenset({"cancelled", "superseded", "expired", "dropped", "closed"})


async def models(request: Request) -> Response:
    """The model, and once more for each robot that can be asked."""
    gateway: Gateway = request.app.state.gateway
    name = gateway.settings.model_name
    names = [name, *(f"{name}@{session.name}" for session in gateway.sessions if session.owner is not None)]
    entries = [{"id": n, "object": "model", "created": 0, "owned_by": "oxygen"} for n in names]
    wanted = request.path_params.get("model")
    if wanted is None:
        return JSONResponse({"object": "list", "data": entries})
    found = next((entry for entry in entries if entry["id"] == wanted), None)
    return (
        JSONResponse(found)
        if found
        else error_response(Problem("model_not_found", 404, f"there is no model {wanted[:80]!r}"))
    )


async def completions(request: Request) -> Response:
    gateway: Gateway = request.app.state.gateway
    session: Session | None = None
    try:
        body = strictjson.loads(await request.body())
        wanted = await gateway.in_thread(chat_request.parse, body, gateway.settings.max_prompt_chars)
        name = _session_name(wanted, gateway.settings.model_name)
        if wanted.images:
            ticket = await _ask_pictures(gateway, wanted)
        else:
            session = gateway.sessions.find(name)
            task = await gateway.in_thread(_fitted, gateway, wanted, session.observation)
            _, ticket = await gateway.ask(session, task, frame_id=wanted.frame_id, max_age_s=wanted.max_age_s)
    except Exception as error:  # the door is where every error turns into words for the client
        problem = describe(error, debug=gateway.settings.debug)
        gateway.refuse(session, problem.code)
        return error_response(problem)
    answer = _Answer(request, gateway, wanted, ticket)
    return await answer.stream() if wanted.is_stream else await answer.whole()


def error_response(problem: Problem) -> JSONResponse:
    """A problem in OpenAI's form; `retry-after` where trying again helps."""
    kinds = {
        400: "invalid_request_error",
        401: "authentication_error",
        404: "invalid_request_error",
        429: "rate_limit_error",
    }
    error = {
        "message": str(problem),
        "type": kinds.get(problem.status, "server_error"),
        "param": problem.field,
        "code": problem.code,
    }
    headers = {}
    if problem.retry_after_s is not None:
        headers["Retry-After"] = str(max(1, math.ceil(problem.retry_after_s)))
        headers["retry-after-ms"] = str(round(1000 * problem.retry_after_s))
    return JSONResponse({"error": error}, status_code=problem.status, headers=headers)


class _Answer:
    """One answer on its way out. A client that goes away cancels its text; the row is free within a step."""

    def __init__(self, request: Request, gateway: Gateway, wanted: ChatRequest, ticket: Ticket) -> None:
        self._request = request
        self._gateway = gateway
        self._wanted = wanted
        self._handle: TextHandle = ticket.text()
        self._id = f"chatcmpl-{uuid.uuid4().hex[:24]}"
        self._created = int(time.time())
        self._watch = asyncio.ensure_future(self._cancel_when_gone())

    async def whole(self) -> Response:
        try:
            result = await self._handle.result_async()
        except Exception as error:
            return error_response(self._problem(error))
        finally:
            self._watch.cancel()
        if result.finish_reason in _UNFINISHED and not result.text:
            return error_response(_unfinished(result))
        message = {"role": "assistant", "content": result.text, "refusal": None}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish_reason(result)}
        fields = {"object": "chat.completion", "choices": [choice], "usage": _usage(result), "oxygen": _details(result)}
        return Response(strictjson.dumps(self._envelope(fields)), media_type="application/json")

    async def stream(self) -> Response:
        """Errors before the first piece are HTTP errors; later ones are an error event, since the head is out
        already.
        """
        pieces = aiter(self._handle)
        try:
            first = await anext(pieces, None)
            result = await self._handle.result_async() if first is None else None
        except Exception as error:
            self._watch.cancel()
            return error_response(self._problem(error))
        if result is not None and result.finish_reason in _UNFINISHED and not result.text:
            self._watch.cancel()
            return error_response(_unfinished(result))
        lines = self._lines(first, pieces)
        return StreamingResponse(lines, media_type="text/event-stream", headers={"Cache-Control": "no-store"})

    async def _lines(self, first: str | None, pieces: AsyncIterator[str]) -> AsyncIterator[str]:
        try:
            yield self._line({"role": "assistant", "content": ""})
            if first:
                yield self._line({"content": first})
            async for piece in pieces:
                if piece:
                    yield self._line({"content": piece})
            result = await self._handle.result_async()
            yield self._line({}, finish_reason=_finish_reason(result), oxygen=_details(result))
            if self._wanted.wants_usage:
                fields = {"object": "chat.completion.chunk", "choices": [], "usage": _usage(result)}
                yield f"data: {strictjson.dumps(self._envelope(fields))}\n\n"
        except Exception as error:
            problem = self._problem(error)
            yield f"data: {strictjson.dumps({'error': {'message': str(problem), 'code': problem.code}})}\n\n"
        finally:
            self._watch.cancel()
            if not self._handle.is_done:
                self._handle.cancel()
        yield "data: [DONE]\n\n"

    def _line(self, delta: dict[str, Any], finish_reason: str | None = None, **extra: Any) -> str:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        fields = {"object": "chat.completion.chunk", "choices": [choice], **extra}
        return f"data: {strictjson.dumps(self._envelope(fields))}\n\n"

    def _envelope(self, fields: dict[str, Any]) -> dict[str, Any]:
        model = self._wanted.model or self._gateway.settings.model_name
        return {"id": self._id, "created": self._created, "model": model, **fields}

    def _problem(self, error: Exception) -> Problem:
        problem = describe(error, debug=self._gateway.settings.debug)
        self._gateway.refuse(None, problem.code)
        return problem

    async def _cancel_when_gone(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            while (await self._request.receive())["type"] != "http.disconnect":
                continue
            self._handle.cancel()


async def _ask_pictures(gateway: Gateway, wanted: ChatRequest) -> Ticket:
    """A question about pictures of its own: its own prefill, no robot concerned."""
    robot = gateway.processor.robot
    if len(wanted.images) > len(robot.cameras):
        raise InvalidInput("messages", f"at most {len(robot.cameras)} pictures for this model", f"{len(wanted.images)}")
    if gateway.is_draining or gateway.engine.status != "ready":
        raise Refused(
            "warming" if not gateway.is_draining else "stopping", "the server takes no work now", retry_after_s=1.0
        )
    images = {camera.name: image for camera, image in zip(robot.cameras, wanted.images, strict=False)}
    state = np.zeros(robot.state_dim) if wanted.state is None else np.asarray(wanted.state, dtype=np.float64)
    if state.shape != (robot.state_dim,) or not np.isfinite(state).all():
        raise InvalidInput("state", f"{robot.state_dim} finite numbers", f"shape {list(state.shape)}")
    name = f"chat-{uuid.uuid4().hex[:12]}"
    observation = Observation(images, state if robot.state_dim else None, wanted.prompt, session=name)
    task = await gateway.in_thread(_fitted, gateway, wanted, observation)
    return await gateway.in_thread(gateway.engine.submit, observation, None, (task,))


def _fitted(gateway: Gateway, wanted: ChatRequest, observation: Observation | None) -> TextTask:
    """The task; where the client named no number of tokens, with as many as its row holds after the question."""
    if not wanted.is_open_ended:
        return wanted.task
    room = gateway.engine.runner.limits.tail_len - gateway.processor.tail_len(observation, wanted.task)
    return replace(wanted.task, max_new_tokens=room) if room > 0 else wanted.task


def _session_name(wanted: ChatRequest, model_name: str) -> str | None:
    """Raises InvalidInput for a model that is not served here."""
    name, at, session = wanted.model.partition("@")
    if wanted.model and name != model_name:
        raise InvalidInput("model", f"{model_name} or {model_name}@SESSION", repr(wanted.model)[:80])
    return wanted.session or (session if at else None)


def _finish_reason(result: TextResult) -> str:
    """OpenAI's words; the true reason of a text that was cut short is in `oxygen`."""
    return result.finish_reason if result.finish_reason in ("stop", "length") else "length"


def _unfinished(result: TextResult) -> Problem:
    status = {"expired": 504, "closed": 503}.get(result.finish_reason, 409)
    return Problem(result.finish_reason, status, f"the answer was {result.finish_reason} before its first word")


def _usage(result: TextResult) -> dict[str, int]:
    prompt, completion = int(result.extras.get("prompt_tokens", 0)), len(result.token_ids)
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def _details(result: TextResult) -> dict[str, Any]:
    return {
        "session": result.session,
        "frame_id": result.frame_id,
        "captured_at": result.captured_at,
        "age_frames": result.age_frames,
        "age_s": result.age_s,
        "ttft_s": result.ttft_s,
        "finish_reason": result.finish_reason,
    }
