"""What is checked before any door opens: the key, where the request comes from, how many are in already, how much
it brings.

Pure ASGI, so that it holds for HTTP, streams and websockets alike.
"""

from __future__ import annotations

import hmac
import json
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs, urlsplit

from starlette.applications import Starlette
from starlette.types import Message, Receive, Scope, Send

from oxygen.serving.gateway import Gateway
from oxygen.serving.problems import TooLarge
from oxygen.serving.settings import LOOPBACK

OPEN_PATHS = frozenset({"/healthz", "/livez", "/readyz"})
COOKIE = "oxygen_key"


class Guard:
    """Refuses with 401, 403, 413 or 503 and a JSON reason; otherwise passes on, counting open connections."""

    def __init__(self, app: Starlette, gateway: Gateway) -> None:
        self._app = app
        self.state = app.state
        self.gateway = gateway
        self._settings = gateway.settings
        self.num_open = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        refusal = self._refusal(scope)
        if refusal is not None:
            await _refuse(scope, receive, send, *refusal)
            return
        self.num_open += 1
        try:
            limited = self._limited(scope, receive) if scope["type"] == "http" else receive
            await self._app(scope, limited, send)
        finally:
            self.num_open -= 1

    def _refusal(self, scope: Scope) -> tuple[int, str, str] | None:
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        if (reason := self._foreign(headers)) is not None:
            return self._count(403, "foreign_origin", reason)
        if scope["path"] in OPEN_PATHS:
            return None
        if not self._has_key(scope, headers):
            return self._count(401, "unauthorized", "this server wants an API key")
        if scope["type"] == "websocket" and self.gateway.is_draining:
            return self._count(503, "stopping", "the server is stopping")
        if self.num_open >= self._settings.max_connections:
            return self._count(503, "too_many_connections", f"{self.num_open} connections are open, the limit")
        length = headers.get(b"content-length", "0")
        if length.isdecimal() and int(length) > self._settings.max_body_bytes:
            return self._count(413, "too_large", f"a request holds at most {self._settings.max_body_bytes} bytes")
        return None

    def _count(self, status: int, code: str, message: str) -> tuple[int, str, str]:
        self.gateway.metrics.refusals.add(code)
        return status, code, message

    def _foreign(self, headers: dict[bytes, str]) -> str | None:
        """A browser says which page is asking; only our own pages may. On loopback, the host must be loopback too."""
        host = headers.get(b"host", "")
        origin = headers.get(b"origin")
        if origin is not None and urlsplit(origin).netloc != host:
            return "pages of other sites may not use this server"
        if self._settings.is_loopback and host and (urlsplit(f"//{host}").hostname or "") not in LOOPBACK:
            return "this server answers to local names only"
        return None

    def _has_key(self, scope: Scope, headers: dict[bytes, str]) -> bool:
        if self._settings.api_key is None:
            return True
        given = [headers.get(b"authorization", "").partition(" ")[2].strip(), headers.get(b"x-api-key", "")]
        given.append(_cookie(headers.get(b"cookie", "")))
        if scope["path"] == "/":
            given += parse_qs(scope.get("query_string", b"").decode("latin-1")).get("key", [])
        wanted = self._settings.api_key.encode()
        return any(hmac.compare_digest(key.encode(), wanted) for key in given)

    def _limited(self, scope: Scope, receive: Receive) -> Receive:
        """Bodies that do not tell their length are cut off at the limit."""
        num_bytes = 0

        async def limited() -> Message:
            nonlocal num_bytes
            message = await receive()
            num_bytes += len(message.get("body", b""))
            if num_bytes > self._settings.max_body_bytes:
                raise TooLarge(self._settings.max_body_bytes)
            return message

        return limited


def _cookie(header: str) -> str:
    try:
        morsel = SimpleCookie(header).get(COOKIE)
    except CookieError:
        return ""
    return morsel.value if morsel else ""


async def _refuse(scope: Scope, receive: Receive, send: Send, status: int, code: str, message: str) -> None:
    """Answer a plain request, or a websocket's handshake, with a reason that people and programs can read."""
    body = json.dumps({"error": {"type": code, "code": code, "message": message}}).encode()
    headers: list[Any] = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 503:
        headers.append((b"retry-after", b"1"))
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    prefix = "http" if scope["type"] == "http" else "websocket.http"
    if scope["type"] == "websocket":
        await receive()
    await send({"type": f"{prefix}.response.start", "status": status, "headers": headers})
    await send({"type": f"{prefix}.response.body", "body": body})
    if scope["type"] == "websocket":
        # uvicorn calls a refused handshake incomplete until the connection is gone, and logs an error before that.
        await receive()
        await receive()
