"""Tasks as clients write them -> tasks as the engine takes them. Every field is checked and named in the refusal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from oxygen.core.errors import InvalidInput
from oxygen.core.tasks import ActionTask, Sampling, TextTask

_MAX_NEW_TOKENS = 4096
_SAMPLING = ("temperature", "top_k", "top_p", "seed")
_TEXT_FIELDS = frozenset(
    {"kind", "question", "max_new_tokens", "stop", "deadline_s", "priority", "adapter", *_SAMPLING}
)
_MAX_STOPS = 16
_MAX_TASKS = 64


def text_task(given: Any, where: str = "tasks", max_chars: int = 8192) -> TextTask:
    """A kind, or a map with `kind` and any field of a text task and its sampling, flat."""
    if isinstance(given, str):
        given = {"kind": given}
    if not isinstance(given, Mapping):
        raise InvalidInput(where, "a kind or a map with `kind`", type(given).__name__)
    unknown = sorted(str(k) for k in given if k not in _TEXT_FIELDS)
    if unknown:
        raise InvalidInput(where, f"fields among {sorted(_TEXT_FIELDS)}", str(unknown)[:200])
    fields = {k: v for k, v in given.items() if v is not None}
    sampling = Sampling(
        temperature=_number(fields, "temperature", where, 0.0),
        top_k=_integer(fields, "top_k", where, 0),
        top_p=_number(fields, "top_p", where, 1.0),
        seed=_integer(fields, "seed", where, 0),
    )
    question = _string(fields, "question", where, max_chars)
    task = TextTask(kind=_string(fields, "kind", where, 64) or "", question=question, sampling=sampling)
    if not task.kind:
        raise InvalidInput(f"{where}.kind", "the name of a text kind", repr(given.get("kind"))[:80])
    max_new_tokens = _integer(fields, "max_new_tokens", where, task.max_new_tokens)
    if not 1 <= max_new_tokens <= _MAX_NEW_TOKENS:
        raise InvalidInput(f"{where}.max_new_tokens", f"an integer from 1 to {_MAX_NEW_TOKENS}", str(max_new_tokens))
    deadline_s = _number(fields, "deadline_s", where, 0.0) if "deadline_s" in fields else None
    return replace(
        task,
        max_new_tokens=max_new_tokens,
        stop=_stops(fields.get("stop", ()), where),
        deadline_s=deadline_s,
        priority=_integer(fields, "priority", where, 0),
        adapter=_string(fields, "adapter", where, 128),
    )


def text_tasks(given: Any, max_chars: int = 8192) -> tuple[TextTask, ...]:
    """The `tasks` field of an observation: absent, one, or a list."""
    if given is None:
        return ()
    if isinstance(given, str | Mapping):
        given = [given]
    if not isinstance(given, Sequence) or isinstance(given, bytes | np.ndarray):
        raise InvalidInput("tasks", "a list of text tasks", type(given).__name__)
    if len(given) > _MAX_TASKS:
        raise InvalidInput("tasks", f"at most {_MAX_TASKS} tasks", str(len(given)))
    return tuple(text_task(task, f"tasks[{i}]", max_chars) for i, task in enumerate(given))


def action_task(options: Mapping[str, Any]) -> ActionTask:
    """`num_steps`, `seed`, `noise` and `expert` of a request, where given."""
    noise = options.get("noise")
    if noise is not None:
        noise = np.asarray(noise, dtype=np.float32) if isinstance(noise, np.ndarray | list) else None
        if noise is None or noise.ndim != 2 or not np.isfinite(noise).all():
            raise InvalidInput("noise", "finite numbers, [horizon, action_dim]", type(options["noise"]).__name__)
    num_steps = _integer(options, "num_steps", "", 0) if options.get("num_steps") is not None else None
    seed = _integer(options, "seed", "", 0) if options.get("seed") is not None else None
    if seed is not None and not 0 <= seed < 2**63:
        raise InvalidInput("seed", "an integer from 0 to 2**63 - 1", repr(seed))
    expert = _string(options, "expert", "", 64) if options.get("expert") is not None else None
    if expert == "all":
        raise InvalidInput("expert", "the name of one expert: an answer holds one chunk", repr(expert))
    return ActionTask(expert=expert or "action", num_steps=num_steps, noise=noise, seed=seed)


def frame_number(given: Any) -> int | None:
    """`frame_id`: an integer of at least 0, or None."""
    if given is None:
        return None
    if isinstance(given, np.integer):
        given = int(given)
    if isinstance(given, bool) or not isinstance(given, int) or not 0 <= given < 2**63:
        raise InvalidInput("frame_id", "an integer of at least 0", repr(given)[:80])
    return given


def _name(where: str, field: str) -> str:
    return f"{where}.{field}" if where else field


def _number(fields: Mapping[str, Any], field: str, where: str, default: float) -> float:
    value = fields.get(field, default)
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not math.isfinite(value):
        raise InvalidInput(_name(where, field), "a finite number", repr(value)[:80])
    return float(value)


def _integer(fields: Mapping[str, Any], field: str, where: str, default: int) -> int:
    value = fields.get(field, default)
    if isinstance(value, np.integer):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= 2**63:
        raise InvalidInput(_name(where, field), "an integer", repr(value)[:80])
    return value


def _string(fields: Mapping[str, Any], field: str, where: str, max_chars: int) -> str | None:
    value = fields.get(field)
    if value is None:
        return None
    if not isinstance(value, str) or len(value) > max_chars:
        got = f"{len(value)} characters" if isinstance(value, str) else type(value).__name__
        raise InvalidInput(_name(where, field), f"at most {max_chars} characters of text", got)
    return value


def _stops(given: Any, where: str) -> tuple[str, ...]:
    stops = (given,) if isinstance(given, str) else given
    if not isinstance(stops, list | tuple) or len(stops) > _MAX_STOPS:
        raise InvalidInput(f"{where}.stop", f"at most {_MAX_STOPS} strings", repr(given)[:80])
    if not all(isinstance(s, str) and 0 < len(s) <= 256 for s in stops):
        raise InvalidInput(f"{where}.stop", "strings of 1 to 256 characters", repr(given)[:80])
    return tuple(stops)
