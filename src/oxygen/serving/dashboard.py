"""The dashboard at `/`: static files and the few plain requests they make. Everything is drawn in the browser.

`GET /v1/dashboard?after=STEP` is one JSON map: engine, totals, steps after STEP, and each session with its last
chunk and texts. `GET /v1/sessions/NAME/cameras/CAMERA` is the newest picture of a camera as JPEG.
"""

from __future__ import annotations

import io
import time
from importlib.resources import files
from typing import Any

import numpy as np
from PIL import Image
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from oxygen.core.errors import InvalidInput
from oxygen.serving import chat, metadata, strictjson
from oxygen.serving.gateway import Gateway
from oxygen.serving.guard import COOKIE
from oxygen.serving.health import condition, stats_dict
from oxygen.serving.problems import describe
from oxygen.serving.sessions import Session

_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
_POLICY = "default-src 'self'; img-src 'self' blob: data:; style-src 'self'; frame-ancestors 'none'; base-uri 'none'"
_MAX_SIDE = 640


def routes() -> list[Route]:
    return [
        Route("/", index),
        Route("/static/{name}", static),
        Route("/v1/dashboard", state),
        Route("/v1/sessions/{session}/cameras/{camera:path}", camera),
        Route("/v1/sessions/{session}/reset", reset, methods=["POST"]),
    ]


async def index(request: Request) -> Response:
    """The page. With a key in the address, the key goes into a cookie and out of the address."""
    key = request.query_params.get("key")
    if key is not None:
        response = RedirectResponse("/", status_code=303)
        response.set_cookie(COOKIE, key, httponly=True, samesite="strict")
        return response
    return _file("index.html")


async def static(request: Request) -> Response:
    return _file(request.path_params["name"])


async def state(request: Request) -> Response:
    gateway: Gateway = request.app.state.gateway
    after = request.query_params.get("after", "-1")
    word, sentence = condition(gateway)
    body = {
        "at": time.time(),
        "condition": {"status": word, "message": sentence},
        "server": metadata.greeting(gateway),
        "engine": stats_dict(gateway.engine.stats()),
        "runner": getattr(gateway.engine.runner, "info", dict)(),  # where it runs, and on what kernels
        "limits": _limits(gateway),
        "totals": dict(gateway.metrics.as_dict()),
        "refusals": {labels[0]: value for labels, value in gateway.metrics.refusals.items()},
        "steps": gateway.timeline.after(int(after) if after.lstrip("-").isdecimal() else -1),
        "sessions": [_session(session) for session in gateway.sessions],
    }
    return Response(strictjson.dumps(body), media_type="application/json", headers={"Cache-Control": "no-store"})


async def camera(request: Request) -> Response:
    """The newest picture of a camera, no larger than 640 pixels a side."""
    gateway: Gateway = request.app.state.gateway
    try:
        session = gateway.sessions.get(request.path_params["session"])
        images = session.observation.images if session.observation else {}
        name = request.path_params["camera"]
        if name not in images:
            raise InvalidInput("camera", f"one of {sorted(images)}", repr(name)[:80])
    except InvalidInput as error:
        return JSONResponse({"error": describe(error).as_dict()}, status_code=404)
    data = await gateway.in_thread(_jpeg, images[name])
    headers = {"Cache-Control": "no-store", "X-Frame-Id": str(session.frame_id)}
    return Response(data, media_type="image/jpeg", headers=headers)


async def reset(request: Request) -> Response:
    """End a session's episode, as its robot could."""
    gateway: Gateway = request.app.state.gateway
    try:
        session = gateway.sessions.get(request.path_params["session"])
        await gateway.reset(session)
    except Exception as error:  # the door is where every error turns into words for the client
        return chat.error_response(describe(error, debug=gateway.settings.debug))
    return JSONResponse({"reset": True, "session": session.name})


def _file(name: str) -> Response:
    suffix = name[name.rfind(".") :]
    path = files("oxygen.serving") / "static" / name
    if "/" in name or name.startswith(".") or suffix not in _TYPES or not path.is_file():
        return JSONResponse({"error": {"code": "not_found", "message": "no such file"}}, status_code=404)
    headers = {"Content-Security-Policy": _POLICY, "X-Content-Type-Options": "nosniff", "Cache-Control": "no-cache"}
    return Response(path.read_bytes(), media_type=_TYPES[suffix], headers=headers)


def _limits(gateway: Gateway) -> dict[str, int]:
    limits = gateway.engine.runner.limits
    return {"context_rows": limits.max_contexts, "tail_rows": limits.max_texts, "horizon": limits.horizon}


def _session(session: Session) -> dict[str, Any]:
    ready = sorted(session.ready_ms)
    action = session.action
    return {
        "name": session.name,
        "door": session.door,
        "is_connected": session.owner is not None,
        "opened_at": session.opened_at,
        "frame_id": session.frame_id,
        "num_frames": session.num_frames,
        "num_refused": session.num_refused,
        "frame_rate_hz": session.frame_rate_hz,
        "prompt": session.observation.prompt if session.observation else None,
        "cameras": sorted(session.observation.images) if session.observation else [],
        "ready_ms_p50": ready[len(ready) // 2] if ready else None,
        "ready_ms_p99": ready[int(0.99 * (len(ready) - 1))] if ready else None,
        "actions": np.round(action.actions, 5).tolist() if action is not None else None,
        "actions_frame_id": action.frame_id if action is not None else None,
        "live_texts": len(session.live_texts),
        "texts": list(session.recent_texts)[-20:],
        "warnings": list(session.warnings),
    }


def _jpeg(picture: np.ndarray) -> bytes:
    image = Image.fromarray(np.ascontiguousarray(picture))
    image.thumbnail((_MAX_SIDE, _MAX_SIDE))
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=80)
    return buffer.getvalue()
