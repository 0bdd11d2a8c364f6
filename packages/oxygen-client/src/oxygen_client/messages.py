"""The messages of the robot door (`/v1/robot`), as values. No input or output happens here.

Every request carries a `seq`; its answer carries the same `seq`, so a late answer can never be taken for another
frame's. Text arrives by itself, under the id that the answer to its frame (or question) announced.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, Mapping, Optional, Sequence, Tuple, Union

import numpy as np

from oxygen_client.errors import ServerError

Task = Union[str, Mapping[str, Any]]
"""A text wanted of a frame: its kind, or a map with `kind` and any of `question`, `max_new_tokens`, `temperature`,
`top_k`,
`top_p`, `seed`, `stop`, `deadline_s`, `priority`."""


@dataclass(frozen=True)
class Chunk:
    """One answered observation.

    actions: [horizon, action_dim] float64 in robot units. step: what `infer` was told (the robot's count of
    executed actions when it looked). sent_at / received_at: this machine's monotonic clock. text_ids: texts begun
    for this frame.
    """

    actions: np.ndarray
    frame_id: int
    step: int
    sent_at: float
    received_at: float
    text_ids: Tuple[str, ...] = ()
    timing: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class TextEvent:
    """A piece of text, or its end.

    delta: what is new. done: no more will come; then `finish_reason` says why (`stop`, `length`, `cancelled`,
    `superseded`, `expired`, `dropped`, `closed`, or `lost` when the link broke), and the ages tell how old the
    described frame is.
    """

    id: str
    kind: str
    frame_id: Optional[int]
    delta: str = ""
    done: bool = False
    finish_reason: Optional[str] = None
    age_frames: Optional[int] = None
    age_s: Optional[float] = None


def observation_message(
    seq: int,
    observation: Mapping[str, Any],
    tasks: Sequence[Task] = (),
    options: Optional[Mapping[str, Any]] = None,
) -> Dict[str, Any]:
    """options: any of `frame_id`, `captured_at`, `num_steps`, `seed`, `noise`."""
    message: Dict[str, Any] = {"type": "observation", "seq": seq, "observation": dict(observation)}
    if tasks:
        message["tasks"] = [task if isinstance(task, str) else dict(task) for task in tasks]
    message.update({k: v for k, v in (options or {}).items() if v is not None})
    return message


def ask_message(seq: int, task: Task, max_age_s: Optional[float] = None) -> Dict[str, Any]:
    message: Dict[str, Any] = {"type": "ask", "seq": seq, "task": task if isinstance(task, str) else dict(task)}
    if max_age_s is not None:
        message["max_age_s"] = max_age_s
    return message


def parse_chunk(message: Mapping[str, Any], step: int, sent_at: float, received_at: float) -> Chunk:
    """Read an `actions` message. Raises ServerError when it does not hold a usable chunk: never an empty or non-
    finite one.
    """
    actions = message.get("actions")
    if not isinstance(actions, np.ndarray) or actions.ndim != 2 or 0 in actions.shape:
        raise ServerError("bad_answer", "the answer holds no [horizon, action_dim] array")
    if actions.dtype.kind not in "fiu" or not np.isfinite(actions).all():
        raise ServerError("bad_answer", "the answer holds actions that are not finite numbers")
    return Chunk(
        actions=actions,
        frame_id=int(message.get("frame_id", -1)),
        step=step,
        sent_at=sent_at,
        received_at=received_at,
        text_ids=tuple(str(i) for i in message.get("texts", ())),
        timing=dict(message.get("timing", {})),
    )


def parse_text(message: Mapping[str, Any]) -> TextEvent:
    return TextEvent(
        id=str(message.get("id", "")),
        kind=str(message.get("kind", "")),
        frame_id=message.get("frame_id"),
        delta=str(message.get("delta", "")),
        done=bool(message.get("done", False)),
        finish_reason=message.get("finish_reason"),
        age_frames=message.get("age_frames"),
        age_s=message.get("age_s"),
    )


def parse_error(message: Mapping[str, Any]) -> ServerError:
    return ServerError(
        code=str(message.get("code", "error")),
        message=str(message.get("message", "the server gave no reason")),
        field=message.get("field"),
        retry_after_s=message.get("retry_after_s"),
        reference=message.get("reference"),
    )
