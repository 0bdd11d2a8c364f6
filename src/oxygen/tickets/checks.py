"""Types and ranges of what callers hand in: checked here, so that nothing wrong reaches the thread of the device."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from numbers import Integral
from typing import TypeVar

from oxygen.core.config import EngineConfig
from oxygen.core.errors import InvalidInput, check_number
from oxygen.core.tasks import ActionTask, Observation, Sampling, TextTask

Task = TypeVar("Task", ActionTask, TextTask)
MAX_TIME_S = 1e18


def check_config(config: EngineConfig | None) -> EngineConfig:
    """The settings, or those of an engine that nobody told any. Raises InvalidInput."""
    checked = EngineConfig() if config is None else config
    _check_type("config", checked, EngineConfig)
    return checked


def check_observation(observation: Observation) -> None:
    """Refuse an observation whose identity or time is not what it should be; its pictures are the processor's."""
    _check_type("observation", observation, Observation)
    check_session(observation.session)
    if observation.frame_id is not None:
        check_number("frame_id", observation.frame_id, "an integer from 0 to 2**63 - 1", 0, 2**63 - 1, Integral)
    if observation.captured_at is not None:
        check_number("captured_at", observation.captured_at, "seconds since the epoch", -MAX_TIME_S, MAX_TIME_S)


def action_tasks(given: ActionTask | Sequence[ActionTask] | None) -> tuple[ActionTask, ...]:
    """One task, several or none, as a tuple. Raises InvalidInput."""
    tasks = _tasks("actions", given, ActionTask)
    for task in tasks:
        _check_type("expert", task.expert, str)
    return tasks


def text_tasks(given: TextTask | Sequence[TextTask] | None) -> tuple[TextTask, ...]:
    """One task, several or none, as a tuple. Raises InvalidInput."""
    tasks = _tasks("texts", given, TextTask)
    for task in tasks:
        _check_text(task)
    return tasks


def check_question(session: str, task: TextTask, frame_id: int | None, max_age_s: float | None) -> None:
    check_session(session)
    _check_type("task", task, TextTask)
    _check_text(task)
    if frame_id is not None:
        check_number("frame_id", frame_id, "an integer", -inf, kind=Integral)
    if max_age_s is not None:
        check_number("max_age_s", max_age_s, "a number of seconds of at least 0", 0)


def check_session(session: str) -> None:
    _check_type("session", session, str)


def _check_text(task: TextTask) -> None:
    _check_type("kind", task.kind, str)
    _check_type("sampling", task.sampling, Sampling)
    if (ids := task.sampling.allowed) is not None:
        _check_type("sampling.allowed", ids, range)
        if ids.step != 1 or not 0 <= ids.start < ids.stop:
            raise InvalidInput("sampling.allowed", "a range of ids", repr(ids)[:80])
    if task.adapter is not None:
        raise InvalidInput("adapter", "none: no runner has text adapters", repr(task.adapter)[:80])


def _tasks(field: str, given: Task | Sequence[Task] | None, kind: type[Task]) -> tuple[Task, ...]:
    if isinstance(given, kind):
        return (given,)
    tasks = () if given is None else given
    if not isinstance(tasks, tuple | list) or not all(isinstance(task, kind) for task in tasks):
        raise InvalidInput(field, f"{kind.__name__}, or a list of them", repr(given)[:80])
    return tuple(tasks)


def _check_type(field: str, value: object, kind: type) -> None:
    if not isinstance(value, kind):
        raise InvalidInput(field, f"of type {kind.__name__}", repr(value)[:80])
