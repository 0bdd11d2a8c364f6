"""Decides what each step does. Requests come in through the door; `plan` and `commit` alone change their state."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import inf

from oxygen.core.config import Budget, EngineConfig
from oxygen.core.errors import OxygenError, Refused
from oxygen.core.inputs import ContextInputs
from oxygen.core.plan import ActItem, RunnerLimits, StepPlan
from oxygen.scheduler.ledger import Ledger
from oxygen.scheduler.pace import Pace
from oxygen.scheduler.state import Late, Outcome, Request, Session, Text


class Scheduler:
    """Closes gaps between counters and goals: contexts to write, chunks to make, tokens to gain.

    The door (`arrive` to `shut`) may be used from any thread: it only leaves wishes, which the next `plan` carries out
    in order. `plan` and `commit` belong to the thread that owns the device.
    """

    def __init__(self, limits: RunnerLimits, config: EngineConfig) -> None:
        self.config = config
        self.ledger = Ledger(limits.max_contexts, limits.max_texts)
        self.pace = Pace(Budget.parse(config.budget), config.max_paused_steps)
        self.num_frames_waiting = 0  # with actions
        self._max_batch = min(config.max_batch, limits.max_contexts)
        self._door = threading.RLock()
        self._wishes: deque[Callable[[float], None]] = deque()
        self._num_texts_at_door = 0
        self._shut: OxygenError | None = None
        self._frames: dict[str, Request] = {}  # by session, longest waiting first; a newer frame inherits the place
        self._begun: dict[str, Request] = {}  # in this step
        self._last_frame_at = -inf

    # The door

    def arrive(self, request: Request) -> list[Request]:
        """Note a session's newest frame before it is added; returns the questions that may read it. Raises Refused."""
        with self._door:
            self._check_room(request)
            session = self._session(request)
            if session.newest is not None:
                session.newest.observation = None  # pictures as they came are kept for the newest frame only
            if request.frame_id < 0:
                request.frame_id = session.num_submitted
            session.num_submitted, session.newest = request.frame_id + 1, request
            return list(session.asks)

    def newest(self, name: str) -> Request | None:
        """Return the frame that a question asked now would read."""
        with self._door:
            return self.ledger.sessions[name].newest if name in self.ledger.sessions else None

    def add(self, request: Request) -> None:
        """Leave a frame, or a late question, for the next plan; raises Refused."""
        with self._door:
            self._check_room(request)
            session = self._session(request)
            session.num_open += 1
            request.is_acting = bool(request.actions)
            self.num_frames_waiting += request.is_acting
            if request.inputs is None:
                session.asks.append(request)
            else:
                self._num_texts_at_door += len(request.texts)
            self._wishes.append(partial(self._add, request))

    def _check_room(self, request: Request) -> None:
        """Turn away what comes after the end, and text alone when too much waits; frames with actions come in."""
        if self._shut is not None:
            raise self._shut.with_traceback(None)  # one for all: it must not collect the frames of every caller
        ledger = self.ledger
        num_waiting = len(ledger.queue) + self._num_texts_at_door + sum(len(s.asks) for s in ledger.sessions.values())
        room = self.config.max_waiting_texts + ledger.tail_rows.num_free - num_waiting
        if not request.actions and len(request.texts) > room:
            ledger.counts["refused"] += len(request.texts)
            raise Refused("queue_full", f"{num_waiting} texts wait already", retry_after_s=1.0)

    def cancel(self, request_id: int, task_id: int | None = None) -> None:
        self._wishes.append(partial(self._cancel, request_id, task_id))

    def reset(self, name: str, done: Callable[[], None]) -> None:
        """Forget all that a session has; the engine calls `done` once it is so. Raises Refused."""
        with self._door:
            if self._shut is not None:
                raise self._shut.with_traceback(None)
            if (session := self.ledger.sessions.get(name)) is not None:
                session.newest, session.num_submitted = None, 0
            self._wishes.append(partial(self._reset, name, done))

    def shut(self, error: OxygenError) -> None:
        """Refuse all that comes from now on."""
        with self._door:
            self._shut = self._shut or error

    def delay(self, now: float, is_draining: bool) -> float:
        """Seconds until there is something to do: 0 for now, infinite for nothing in sight."""
        with self._door:
            if self._wishes or self._frames:
                return 0.0
            ledger, budget, text_at = self.ledger, self.pace.budget, inf
            if ledger.live or ledger.queue:
                if budget.kind == "idle" or is_draining:
                    return 0.0
                text_at = self._last_frame_at + (1 / budget.value if budget.kind == "rate" else self.config.quiet_s)
            due = [s.held_until for s in ledger.sessions.values() if s.held]
            due += [t.limit for r in ledger.open.values() for t in r.texts if not t.finish_reason]
            return max(0.0, min([text_at, *due]) - now)

    # The two doors of state

    def plan(self, now: float) -> StepPlan:
        """Carry out the wishes, begin waiting frames, admit waiting texts, and say what this step does."""
        with self._door:
            self._carry_out(now)
            self.ledger.expire(now, self.config.session_timeout_s)
            act = self._begin(now)
            self._join_questions()
            self.ledger.admit()
            self.num_frames_waiting = sum(r.is_acting for r in self._frames.values())
            rows = {item.context_row for item in act}
            prefill = [c.prefill() for c in self.ledger.contexts.values() if not c.is_written]
            decode = tuple(text.decode() for text in self.ledger.live.values())
            longest = max((item.max_tokens for item in decode), default=0)
            return StepPlan(
                prefill=tuple(p for p in prefill if p.context_row in rows),
                act=tuple(act),
                prefill_text=tuple(p for p in prefill if p.context_row not in rows),
                decode=decode,
                rounds=self.pace.rounds(longest, has_actions=bool(act)),
            )

    def is_text_paused(self, plan: StepPlan) -> bool:
        """Text waits while a frame with actions does, unless it has waited too long already."""
        has_text = bool(plan.decode or plan.prefill_text)
        is_frame_first = self.num_frames_waiting > 0 and not self.pace.is_text_due
        return bool(plan.decode and not plan.rounds) or (has_text and is_frame_first)

    def is_time_up(self, decoding_s: float) -> bool:
        """Between rounds: a frame with actions has come; under `idle`, anything has, or the slice is over."""
        is_slice_over = bool(self._wishes) or decoding_s >= self.config.text_slice_s
        return self.num_frames_waiting > 0 or (self.pace.budget.kind == "idle" and is_slice_over)

    def commit(self, plan: StepPlan, outcome: Outcome, now: float) -> None:
        """Apply what the step did."""
        ledger = self.ledger
        self._last_frame_at = now if plan.act else self._last_frame_at
        with self._door:
            for item in (*plan.prefill, *plan.prefill_text):
                context = ledger.contexts[item.context_row]
                context.is_written = item.context_row not in outcome.to_write
                if not context.is_written and item.request_id in outcome.faults:
                    ledger.end_context(context, "fault", outcome.faults[item.request_id])
            ledger.counts["faults"] += len(outcome.faults)
            for request_id, fault in outcome.faults.items():
                if request_id in ledger.open:
                    ledger.end_request(ledger.open[request_id], "fault", fault)
            for act in plan.act:
                if act.request_id in ledger.open:
                    ledger.end_actions(ledger.open[act.request_id])
            for task_id, tokens in outcome.tokens.items():
                if task_id in ledger.live:
                    ledger.live[task_id].gain(tokens)
            for task_id, reason in outcome.finished.items():
                if task_id in ledger.live:
                    ledger.end_text(ledger.live[task_id], reason)
            ledger.settle()
            self.pace.observe(bool(plan.act), outcome, wanted_text=bool(plan.decode))

    def end_all(self, reason: str, error: OxygenError | None = None) -> None:
        """End everything, also what still waits at the door, and free every row."""
        with self._door:
            self._carry_out(-inf)
            for request in list(self.ledger.open.values()):
                self.ledger.end_request(request, reason, error)
            self.ledger.settle()
            for session in self.ledger.sessions.values():
                self.ledger.drop_hold(session)
            self._frames.clear()

    # Wishes

    def _session(self, request: Request) -> Session:
        session = self.ledger.sessions.setdefault(request.session, Session(request.submitted_at))
        session.last_seen = request.submitted_at
        return session

    def _carry_out(self, now: float) -> None:
        while self._wishes:
            self._wishes.popleft()(now)
        self._num_texts_at_door = 0

    def _add(self, request: Request, now: float) -> None:
        request.num_open = len(request.texts) + request.is_acting
        self.ledger.open[request.request_id] = request
        if request.inputs is None:
            return  # a question: it joins a frame once those that wait have begun
        older = self._frames.get(request.session)
        self._frames[request.session] = request
        if older is not None and older.num_open:
            self.ledger.counts["replaced"] += 1
            self.ledger.end_request(older, "replaced")

    def _cancel(self, request_id: int, task_id: int | None, now: float) -> None:
        request = self.ledger.open.get(request_id)
        if request is not None and task_id is None:
            self.ledger.end_request(request, "cancelled")
        elif request is not None:
            for text in [t for t in request.texts if t.task_id == task_id]:
                self.ledger.end_text(text, "cancelled")

    def _reset(self, name: str, done: Callable[[], None], now: float) -> None:
        for request in [r for r in self.ledger.open.values() if r.session == name]:
            self.ledger.end_request(request, "cancelled", detail="the session was reset")
        if (session := self.ledger.sessions.get(name)) is not None:
            self.ledger.drop_hold(session)
        self.ledger.done_resets.append(done)

    # Steps of plan

    def _begin(self, now: float) -> list[ActItem]:
        """Begin the frames that have waited longest: action contexts first, they always find a row."""
        ledger, act = self.ledger, []
        self._begun.clear()
        frames = [f for name in list(self._frames)[: self._max_batch] if (f := self._frames.pop(name)).num_open]
        for frame in frames:
            session = ledger.sessions[frame.session]
            ledger.drop_hold(session)
            session.num_frames += 1
            frame.ordinal, session.last_seen = session.num_frames, now
            self._begun[frame.session] = frame
        for frame in frames:
            if frame.is_acting and frame.inputs is not None:
                context = ledger.take(frame.request_id, frame, frame.inputs.contexts[0], for_actions=True)
                assert context is not None, "a frame with actions found no context row"
                context.readers = tuple((item.expert, item.tail_ids) for item in frame.actions)
                act += [replace(item, context_row=context.row) for item in frame.actions]
        for frame in frames:
            self._begin_texts(frame, now)
        return act

    def _begin_texts(self, frame: Request, now: float) -> None:
        ledger = self.ledger
        assert frame.inputs is not None
        ledger.counts.update(frames=1, unshared=frame.inputs.num_unshared)
        for text, encoded in zip(frame.texts, frame.inputs.texts, strict=True):
            self._start(text, frame, frame.inputs.contexts[encoded.context])
        context = ledger.find(frame.inputs.contexts[0])
        if context is not None and self.config.keep_context_s > 0:
            ledger.hold(ledger.sessions[frame.session], frame, context, now + self.config.keep_context_s)

    def _join_questions(self) -> None:
        """Let questions that wait read the frame that their session has just begun, or the one that it holds."""
        for name, session in self.ledger.sessions.items():
            frame, coming = self._begun.get(name) or session.held_frame, self._frames.get(name)
            for ask in [a for a in session.asks if a.request_id in self.ledger.open]:
                wanted = ask.wanted_frame
                if frame is not None and ask.suits(frame):
                    session.asks.remove(ask)
                    self._join(ask.texts[0], frame, ask.late[frame.request_id])
                elif wanted is not None and (coming is None or coming.frame_id != wanted):
                    self.ledger.refuse(ask.texts[0], "frame_gone", f"the context of frame {wanted} is not held")

    def _join(self, text: Text, frame: Request, late: Late) -> None:
        assert frame.inputs is not None
        if isinstance(late, OxygenError):
            self.ledger.end_text(text, "refused", late)
        else:
            text.encoded, own_context = late
            self.ledger.counts["joined"] += own_context is None
            self._start(text, frame, own_context or frame.inputs.contexts[0])

    def _start(self, text: Text, frame: Request, inputs: ContextInputs) -> None:
        """A text's frame is here: give it its context and a place in the queue, or refuse it."""
        ledger, config = self.ledger, self.config
        if text.finish_reason:
            return
        if text.task.kind in config.superseded_kinds:
            for older in [t for t in ledger.unfinished() if t.task.kind == text.task.kind and t.frame is not frame]:
                if older.request.session == text.request.session:
                    ledger.end_text(older, "superseded")
        if len(ledger.queue) >= config.max_waiting_texts + ledger.tail_rows.num_free:
            ledger.refuse(text, "queue_full", f"{len(ledger.queue)} texts wait already")
        elif context := ledger.find(inputs) or ledger.take(text.request.request_id, frame, inputs, for_actions=False):
            ledger.read(text, context, frame)
        else:
            ledger.refuse(text, "no_context", "every context row is in use")
