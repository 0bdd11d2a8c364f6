"""Turns what callers want into requests and tickets. Runs in the caller's thread; the checks at the door are here."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import inf

import numpy as np

from oxygen.core.errors import InvalidInput
from oxygen.core.inputs import EncodedTask
from oxygen.core.plan import ActItem, ExpertLimits, RunnerLimits
from oxygen.core.tasks import ActionTask, Observation, TextTask
from oxygen.processing.interface import Processor
from oxygen.processing.transcript import Transcript
from oxygen.scheduler.state import Request, Text
from oxygen.tickets.checks import action_tasks, check_observation, text_tasks
from oxygen.tickets.ticket import TextHandle, Ticket, pending

FOREVER_S = 1e9
_ids = itertools.count()  # one for all engines: a runner that changes hands must not mistake a frame for an older one


class Intake:
    """The way in. cancel(request id, task id or None) is what tickets and handles call."""

    def __init__(self, processor: Processor, limits: RunnerLimits, cancel: Callable[[int, int | None], None]) -> None:
        self._processor, self._limits, self._cancel = processor, limits, cancel

    def frame(
        self,
        observation: Observation,
        actions: ActionTask | Sequence[ActionTask] | None,
        texts: TextTask | Sequence[TextTask] | None,
        now: float,
    ) -> Request:
        """Encode a frame; raises InvalidInput."""
        check_observation(observation)
        actions, texts = action_tasks(actions), text_tasks(texts)
        if not actions and not texts:
            raise InvalidInput("actions", "an action task or a text task", "neither")
        actions = [replace(task, expert=e.name) for task in actions for e in experts_meant(self._limits, task)]
        if len({a.expert for a in actions}) < len(actions):
            raise InvalidInput("actions", "one task for each expert", f"{[a.expert for a in actions]}")
        inputs, limits = self._processor.encode(observation, actions, texts), self._limits
        for context in inputs.contexts:
            if context.num_tokens > limits.context_len:
                raise InvalidInput("prompt", f"at most {limits.context_len} tokens in all", f"{context.num_tokens}")
        if (longest := max((len(task.tail_ids) for task in inputs.actions), default=0)) > limits.context_len:
            raise InvalidInput("prompt", f"at most {limits.context_len} tokens behind what is shared", f"{longest}")
        frame_id = -1 if observation.frame_id is None else observation.frame_id
        captured_at = time.time() if observation.captured_at is None else observation.captured_at
        request = Request(next(_ids), observation.session, now, frame_id, captured_at, observation, inputs)
        for task, encoded in zip(actions, inputs.actions, strict=True):
            (expert,) = experts_meant(limits, task)
            item = ActItem(
                request_id=request.request_id,
                task_id=next(_ids),
                context_row=-1,
                context_len=inputs.contexts[0].num_tokens,
                expert=task.expert,
                num_steps=task.num_steps or expert.num_steps,
                noise=self._noise(task, expert),
                tail_ids=encoded.tail_ids,
                state=inputs.state,
            )
            request.actions.append(item)
            request.chunks[item.task_id] = pending()
        for text, encoded in zip(texts, inputs.texts, strict=True):
            self._add_text(request, text, encoded)
        return request

    def question(self, session: str, task: TextTask, frame: Request | None, now: float) -> Request:
        """Encode a late question on a session's newest frame, if there is one; raises InvalidInput."""
        if task.kind not in self._processor.kinds:
            raise InvalidInput("kind", f"one of {list(self._processor.kinds)}", repr(task.kind))
        request = Request(next(_ids), session, now)
        self._add_text(request, task, EncodedTask(0))
        self.put_on(frame, request)
        for late in request.late.values():
            if isinstance(late, InvalidInput):
                raise late
        return request

    def put_on(self, frame: Request | None, ask: Request) -> None:
        """Encode a question on a frame: on its context where that is exact, otherwise on a context of its own."""
        observation = frame.observation if frame else None
        if frame is None or frame.inputs is None or observation is None:
            return  # no frame yet, or no longer the newest: the question waits for the next
        if not (texts := ask.texts):
            return  # it ended meanwhile
        task = texts[0].task
        try:
            encoded, own = self._processor.encode_text(frame.inputs, task), None
            if encoded is None:
                inputs = self._processor.encode(observation, (), (task,))
                encoded, own = inputs.texts[0], inputs.contexts[inputs.texts[0].context]
            ask.late[frame.request_id] = self._fit(task, encoded), own
        except InvalidInput as error:
            ask.late[frame.request_id] = error

    def ticket(self, request: Request) -> Ticket:
        chunks = {item.expert: request.chunks[item.task_id] for item in request.actions}
        handles, cancel = [t.handle for t in request.texts], partial(self._cancel, request.request_id, None)
        if request.inputs is None:
            return Ticket(request.session, None, chunks, handles, None, cancel)
        for handle in handles:
            handle.frame_id = request.frame_id
        return Ticket(request.session, request.captured_at, chunks, handles, request.frame_id, cancel)

    def _add_text(self, request: Request, task: TextTask, encoded: EncodedTask) -> None:
        task_id = next(_ids)
        handle = TextHandle(task, request.session, None, partial(self._cancel, request.request_id, task_id))
        transcript = Transcript(task, self._processor.tokenizer.stream(), self._limits.eos_ids)
        deadline = inf if task.deadline_s is None else request.submitted_at + min(task.deadline_s, FOREVER_S)
        encoded = self._fit(task, encoded)
        request.texts.append(Text(task_id, task, request, encoded, deadline, handle, transcript))

    def _fit(self, task: TextTask, encoded: EncodedTask) -> EncodedTask:
        room = self._limits.tail_len - len(encoded.tail_ids)
        if room < 1:
            raise InvalidInput("question", f"at most {self._limits.tail_len - 1} tokens", f"{len(encoded.tail_ids)}")
        if task.max_new_tokens > room:
            raise InvalidInput("max_new_tokens", f"at most {room} after its prompt", f"{task.max_new_tokens}")
        return encoded

    def _noise(self, task: ActionTask, expert: ExpertLimits) -> np.ndarray:
        shape = (expert.horizon, expert.action_dim)
        if task.noise is None:
            return np.random.default_rng(task.seed).standard_normal(shape, dtype=np.float32)
        try:
            noise = np.asarray(task.noise)
        except ValueError:  # ragged lists
            raise InvalidInput("noise", f"finite numbers of shape {shape}", "lists of different lengths") from None
        if noise.dtype.kind not in "iuf":
            raise InvalidInput("noise", f"finite numbers of shape {shape}", f"{noise.dtype}, shape {noise.shape}")
        with np.errstate(over="ignore"):  # what float32 cannot hold is refused as infinite
            noise = noise.astype(np.float32)
        if noise.shape != shape or not np.isfinite(noise).all():
            raise InvalidInput("noise", f"finite numbers of shape {shape}", _told(noise))
        return noise


def experts_meant(limits: RunnerLimits, task: ActionTask) -> tuple[ExpertLimits, ...]:
    """The experts that a task means: one by its name, the first by `action`, every one by `all`; raises
    InvalidInput.
    """
    alone = ExpertLimits(task.expert, limits.horizon, limits.action_dim, limits.num_steps)
    known = limits.experts or (alone,)
    found = tuple(expert for expert in known if task.expert in (expert.name, "all"))
    if not found and task.expert != "action":
        raise InvalidInput("expert", f"one of {[expert.name for expert in known]}", repr(task.expert))
    return found or known[:1]


def _told(noise: np.ndarray) -> str:
    return f"an array of shape {noise.shape}" + ("" if np.isfinite(noise).all() else ", not finite in float32")
