"""Texts as events. One task per text reads the engine's handle and publishes what it says; nobody else touches the
handle.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

from oxygen.core.errors import DeviceFault, OxygenError, Refused
from oxygen.core.tasks import TextResult
from oxygen.serving.feed import Event, Feed
from oxygen.serving.metrics import ServerMetrics
from oxygen.serving.problems import describe
from oxygen.serving.sessions import Session
from oxygen.tickets.ticket import TextHandle

_numbers = itertools.count(1)


def new_text_id() -> str:
    """A name for a text, unique in this process."""
    return f"t{next(_numbers)}"


async def follow(
    session: Session,
    text_id: str,
    handle: TextHandle,
    feed: Feed,
    metrics: ServerMetrics,
    on_end: Callable[[Event], None],
) -> None:
    """Publish the pieces of one text and then its end, whatever ends it."""
    started, is_first = time.perf_counter(), True
    try:
        async for piece in handle:
            if not piece:
                continue
            if is_first:
                metrics.ttft.observe(1000 * (time.perf_counter() - started), handle.kind)
                is_first = False
            feed.publish(session.name, _event(session, text_id, handle, delta=piece))
        final = _final(session, text_id, handle, await handle.result_async())
    except OxygenError as error:
        final = refused_event(session, text_id, handle.kind, error, handle.frame_id)
    finally:
        session.live_texts.pop(text_id, None)
    metrics.texts.add(handle.kind, final["finish_reason"])
    metrics.tokens.add(by=final.get("num_tokens", 0))
    if final["finish_reason"] == "expired":
        metrics.missed.add("text")
    if "age_s" in final:
        metrics.text_age.observe(final["age_s"], handle.kind)
    session.recent_texts.append(final)
    feed.publish(session.name, final)
    on_end(final)


def refused_event(session: Session, text_id: str, kind: str, error: OxygenError, frame_id: int | None) -> Event:
    """The end of a text that was turned away or failed."""
    reason = "refused" if isinstance(error, Refused) else "failed"
    problem = describe(error).as_dict() if not isinstance(error, DeviceFault) else {"code": "device_fault"}
    return {
        "type": "text",
        "session": session.name,
        "id": text_id,
        "kind": kind,
        "frame_id": frame_id,
        "delta": "",
        "done": True,
        "text": "",
        "finish_reason": reason,
        "error": problem,
        "at": time.time(),
    }


def _event(session: Session, text_id: str, handle: TextHandle, delta: str) -> Event:
    return {
        "type": "text",
        "session": session.name,
        "id": text_id,
        "kind": handle.kind,
        "frame_id": handle.frame_id,
        "delta": delta,
        "done": False,
        "at": time.time(),
    }


def _final(session: Session, text_id: str, handle: TextHandle, result: TextResult) -> Event:
    return {
        **_event(session, text_id, handle, delta=""),
        "done": True,
        "frame_id": result.frame_id,
        "text": result.text,
        "question": handle.task.question,
        "finish_reason": result.finish_reason,
        "num_tokens": len(result.token_ids),
        "age_frames": result.age_frames,
        "age_s": result.age_s,
        "ttft_s": result.ttft_s,
        "captured_at": result.captured_at,
    }
