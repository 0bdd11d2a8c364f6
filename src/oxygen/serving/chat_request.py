"""An OpenAI chat request -> a text task, the robot session it is about, and pictures of its own if it brings any."""

from __future__ import annotations

import base64
import binascii
import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from PIL import Image, UnidentifiedImageError

from oxygen.core.errors import InvalidInput
from oxygen.core.tasks import TextTask
from oxygen.serving import tasks

DEFAULT_KIND = "answer"
_MAX_MESSAGES = 256
_MAX_IMAGES = 8
_MAX_PIXELS = 16_000_000


@dataclass(slots=True)
class ChatRequest:
    """frame_id: only this frame will do; max_age_s: an older frame will not (0: the next one). model: as the client
    wrote it. is_open_ended: no number of tokens was named, so the text may fill its row.
    """

    task: TextTask
    model: str
    is_open_ended: bool = False
    session: str | None = None
    frame_id: int | None = None
    max_age_s: float | None = None
    is_stream: bool = False
    wants_usage: bool = False
    prompt: str | None = None
    images: list[np.ndarray] = field(default_factory=list)
    state: Any = None


def parse(body: Any, max_chars: int) -> ChatRequest:
    """Raises InvalidInput. Of the conversation, the last user message is the question; a robot remembers by itself."""
    if not isinstance(body, Mapping):
        raise InvalidInput("body", "a JSON object", type(body).__name__)
    if body.get("n") not in (None, 1):
        raise InvalidInput("n", "1", repr(body["n"])[:80])
    question, images = _question(body.get("messages"))
    frame_id, max_age_s = _frame(body)
    max_tokens = _either(body, "max_completion_tokens", "max_tokens")
    fields = {
        "kind": body.get("kind") or DEFAULT_KIND,
        "question": question,
        "max_new_tokens": max_tokens,
        "stop": body.get("stop"),
        **{name: body.get(name) for name in ("temperature", "top_p", "top_k", "seed", "deadline_s", "priority")},
    }
    return ChatRequest(
        task=tasks.text_task(fields, "request", max_chars),
        model=_text(body, "model") or "",
        is_open_ended=max_tokens is None,
        session=_text(body, "session"),
        frame_id=frame_id,
        max_age_s=max_age_s,
        is_stream=_flag(body, "stream"),
        wants_usage=_flag(body.get("stream_options") or {}, "include_usage"),
        prompt=_text(body, "prompt") or question,
        images=images,
        state=body.get("state"),
    )


def _question(messages: Any) -> tuple[str, list[np.ndarray]]:
    if not isinstance(messages, list) or not 1 <= len(messages) <= _MAX_MESSAGES:
        raise InvalidInput("messages", f"a list of 1 to {_MAX_MESSAGES} messages", type(messages).__name__)
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise InvalidInput(f"messages[{i}]", "an object with a role", type(message).__name__)
    asked = [(i, message) for i, message in enumerate(messages) if message["role"] == "user"]
    if not asked:
        raise InvalidInput("messages", "at least one message of the user", "none")
    place, message = asked[-1]
    return _content(message.get("content"), f"messages[{place}].content")


def _content(content: Any, where: str) -> tuple[str, list[np.ndarray]]:
    if isinstance(content, str):
        return content, []
    if not isinstance(content, list):
        raise InvalidInput(where, "text or a list of parts", type(content).__name__)
    words: list[str] = []
    images: list[np.ndarray] = []
    for i, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind == "text" and isinstance(part.get("text"), str):
            words.append(part["text"])
        elif kind == "image_url" and len(images) < _MAX_IMAGES:
            images.append(_picture(part.get("image_url"), f"{where}[{i}].image_url"))
        else:
            raise InvalidInput(f"{where}[{i}]", f"text, or one of at most {_MAX_IMAGES} pictures", repr(kind)[:80])
    return "\n".join(words), images


def _picture(given: Any, where: str) -> np.ndarray:
    """A data URL -> [height, width, 3] uint8. Nothing is ever fetched from elsewhere."""
    url = given.get("url") if isinstance(given, Mapping) else given
    if not isinstance(url, str) or not url.startswith("data:image/") or ";base64," not in url[:64]:
        raise InvalidInput(where, "a data URL (data:image/...;base64,...)", repr(url)[:60])
    try:
        data = base64.b64decode(url.partition(";base64,")[2], validate=True)
        with Image.open(io.BytesIO(data), formats=("PNG", "JPEG", "WEBP")) as image:
            if image.width * image.height > _MAX_PIXELS:
                raise InvalidInput(where, f"at most {_MAX_PIXELS} pixels", f"{image.width} x {image.height}")
            return np.asarray(image.convert("RGB"), dtype=np.uint8)
    except (
        binascii.Error,
        UnidentifiedImageError,
        Image.DecompressionBombError,
        OSError,
        ValueError,
        SyntaxError,
    ) as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput(where, "a PNG, JPEG or WebP picture", type(error).__name__) from None


def _frame(body: Mapping[str, Any]) -> tuple[int | None, float | None]:
    """`frame`: `latest` (the default), `next`, or a frame's number. `max_age_s`: seconds."""
    frame, max_age_s = body.get("frame", "latest"), body.get("max_age_s")
    if max_age_s is not None and (
        isinstance(max_age_s, bool) or not isinstance(max_age_s, int | float) or max_age_s < 0
    ):
        raise InvalidInput("max_age_s", "a number of seconds", repr(max_age_s)[:80])
    if frame in ("latest", None):
        return None, max_age_s
    if frame == "next":
        return None, 0.0
    return tasks.frame_number(frame), max_age_s


def _either(body: Mapping[str, Any], *names: str) -> Any:
    return next((body[name] for name in names if body.get(name) is not None), None)


def _text(body: Mapping[str, Any], name: str) -> str | None:
    value = body.get(name)
    if value is not None and (not isinstance(value, str) or len(value) > 256):
        raise InvalidInput(name, "a short text", repr(value)[:80])
    return value


def _flag(body: Any, name: str) -> bool:
    value = body.get(name) if isinstance(body, Mapping) else body
    if value not in (None, True, False):
        raise InvalidInput(name, "true or false", repr(value)[:80])
    return bool(value)
