"""Decides what each step does. Requests come in through the door; `plan` and `commit` alone change their state."""

from __future__ import annotations

import threading
from collections import Counter, deque
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
from oxygen.scheduler.state import Outcome, Request, Session, Text


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
        self._last_frame_at = self._next_sweep = -inf

    # The door

    def arrive(self, request: Request) -> list[Request]:
        """Note a session's newest frame before it is added; returns the questions that may want to read it."""
        with self._door:
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
            if self._shut is not None:
                raise self._shut
            ledger = self.ledger
            num_asks = sum(len(s.asks) for s in ledger.sessions.values())
            room = self.config.max_waiting_texts + ledger.tail_rows.num_free - len(ledger.queue) - num_asks
            if not request.actions and self._num_texts_at_door + len(request.texts) > room:
                ledger.counts["refused"] += len(request.texts)
                raise Refused("queue_full", f"{len(ledger.queue)} texts wait already", retry_after_s=1.0)
            session = self._session(request)
            session.num_open += 1
            request.is_acting = bool(request.actions)
            self.num_frames_waiting += request.is_acting
            if request.inputs is None:
                session.asks.append(request)
            else:
                self._num_texts_at_door += len(request.texts)
            self._wishes.append(partial(self._ask if request.inputs is None else self._add, request))

    def cancel(self, request_id: int, task_id: int | None = None) -> None:
        self._wishes.append(partial(self._cancel, request_id, task_id))

    def reset(self, name: str, done: Callable[[], None]) -> None:
        """Forget all that a session has; the engine calls `done` once it is so."""
        with self._door:
            if (session := self.ledger.sessions.get(name)) is not None:
                session.newest, session.num_submitted = None, 0
            self._wishes.append(partial(self._reset, name, done))

    def shut(self, error: OxygenError) -> None:
        """Refuse all that comes from now on."""
        with self._door:
            self._shut = self._shut or error

    @property
    def has_wishes(self) -> bool:
        return bool(self._wishes)

    def delay(self, now: float, is_draining: bool) -> float:
        """Seconds until there is something to do: 0 for now, infinite for nothing in sight."""
        with self._door:
            if self._wishes or self._frames:
                return 0.0
            ledger, budget = self.ledger, self.pace.budget
            due = [s.held_until for s in ledger.sessions.values() if s.held]
            due += [t.limit for r in ledger.open.values() for t in r.texts if not t.finish_reason]
            if ledger.live or ledger.queue:
                quiet = {"idle": 0.0, "fixed": self.config.quiet_s}.get(budget.kind, 1 / max(budget.value, 1e-9))
                due.append(-inf if is_draining else self._last_frame_at + quiet)
            return max(0.0, min(due, default=inf) - now)

    # The two doors of state

    def plan(self, now: float) -> StepPlan:
        """Carry out the wishes, begin waiting frames, admit waiting texts, and say what this step does."""
        with self._door:
            self._carry_out(now)
            self._expire(now)
            act = self._begin(now)
            self._admit()
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

    def commit(self, plan: StepPlan, outcome: Outcome) -> None:
        """Apply what the step did."""
        ledger = self.ledger
        with self._door:
            for item in (*plan.prefill, *plan.prefill_text):
                context = ledger.contexts[item.context_row]
                context.is_written = item.context_row not in outcome.to_write
                if not context.is_written and item.request_id in outcome.faults:
                    ledger.end_context(context, "fault", outcome.faults[item.request_id])
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
        self.ledger.register(request)
        older = self._frames.get(request.session)
        self._frames[request.session] = request
        if older is not None and older.num_open:
            self.ledger.counts["replaced"] += 1
            self.ledger.end_request(older, "replaced")

    def _ask(self, request: Request, now: float) -> None:
        self.ledger.register(request)
        frame, wanted = self.ledger.sessions[request.session].held_frame, request.wanted_frame
        if frame is not None and self._suits(request, frame, now):
            self._join(request, frame)
        elif wanted is not None and all(f.frame_id != wanted for f in self._frames.values()):
            self.ledger.refuse(request.texts[0], "frame_gone", f"the context of frame {wanted} is not held")

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
        self._frames.pop(name, None)
        if (session := self.ledger.sessions.get(name)) is not None:
            self.ledger.drop_hold(session)
            session.num_frames = 0
        self.ledger.done_resets.append(done)

    # Steps of plan

    def _expire(self, now: float) -> None:
        ledger, timeout = self.ledger, self.config.session_timeout_s
        for text in [t for r in ledger.open.values() for t in r.texts if t.limit <= now]:
            ledger.end_text(text, "expired", detail="" if text.deadline <= now else "no frame came in time")
        for session in ledger.sessions.values():
            if session.held is not None and session.held_until <= now:
                ledger.drop_hold(session)
                session.newest = None if session.newest is session.held_frame else session.newest
        if now >= self._next_sweep:
            self._next_sweep = now + timeout / 4
            for name, session in list(ledger.sessions.items()):
                if not session.num_open and not session.held and session.last_seen + timeout <= now:
                    del ledger.sessions[name]

    def _begin(self, now: float) -> list[ActItem]:
        """Begin the frames that have waited longest: action contexts first, they always find a row."""
        ledger, act = self.ledger, []
        frames = [f for name in list(self._frames)[: self._max_batch] if (f := self._frames.pop(name)).num_open]
        for frame in frames:
            session = ledger.sessions[frame.session]
            ledger.drop_hold(session)
            session.num_frames += 1
            frame.ordinal, session.last_seen = session.num_frames, now
        for frame in frames:
            if frame.is_acting and frame.inputs is not None:
                self._last_frame_at = now
                context = ledger.take(frame.request_id, frame, frame.inputs.contexts[0], for_actions=True)
                assert context is not None, "a frame with actions found no context row"
                act += [replace(item, context_row=context.row) for item in frame.actions]
        for frame in frames:
            self._begin_texts(frame, now)
        return act

    def _begin_texts(self, frame: Request, now: float) -> None:
        ledger, session = self.ledger, self.ledger.sessions[frame.session]
        assert frame.inputs is not None
        ledger.counts.update(frames=1, unshared=frame.inputs.num_unshared)
        for text, encoded in zip(frame.texts, frame.inputs.texts, strict=True):
            self._start(text, frame, frame.inputs.contexts[encoded.context])
        for request in [r for r in session.asks if self._suits(r, frame, now)]:
            self._join(request, frame)
        context = ledger.find(frame.inputs.contexts[0])
        if context is not None and self.config.keep_context_s > 0:
            ledger.hold(session, frame, context, now + self.config.keep_context_s)

    def _suits(self, ask: Request, frame: Request, now: float) -> bool:
        """Whether a question that waits may read this frame."""
        is_wanted = ask.wanted_frame is None or ask.wanted_frame == frame.frame_id
        is_fresh = ask.max_age_s is None or now - frame.submitted_at <= ask.max_age_s
        return is_wanted and is_fresh and frame.request_id in ask.late and ask.request_id in self.ledger.open

    def _join(self, ask: Request, frame: Request) -> None:
        late, text = ask.late[frame.request_id], ask.texts[0]
        assert frame.inputs is not None
        self.ledger.sessions[ask.session].asks.remove(ask)
        if late.error is not None:
            self.ledger.end_text(text, "refused", late.error)
            return
        self.ledger.counts["joined"] += late.own_context is None
        text.tail_ids = late.tail_ids
        self._start(text, frame, late.own_context or frame.inputs.contexts[0])

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

    def _admit(self) -> None:
        """Give free tail rows to waiting texts: by priority, then to the session with the fewest, then by age."""
        ledger = self.ledger
        num_live = Counter(t.request.session for t in ledger.live.values())

        def rank(text: Text) -> tuple[int, int, int]:
            return -text.task.priority, num_live[text.request.session], text.task_id

        while ledger.queue and ledger.tail_rows.num_free:
            text = min(ledger.queue.values(), key=rank)
            del ledger.queue[text.task_id]
            text.tail_row = ledger.tail_rows.take()
            ledger.live[text.task_id] = text
            num_live[text.request.session] += 1
