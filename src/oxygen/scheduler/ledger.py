"""Who holds what: open requests, sessions, texts and the rows they read. Every way to end something is here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from oxygen.cache.rows import Rows
from oxygen.core.errors import Ended, OxygenError, Refused
from oxygen.core.inputs import ContextInputs
from oxygen.scheduler.state import Context, Request, Session, Text


class Ledger:
    """The scheduler's books. A context is counted by its texts, by a session that holds it, by the step at work."""

    def __init__(self, max_contexts: int, max_texts: int) -> None:
        self.context_rows = Rows(max_contexts)
        self.tail_rows = Rows(max_texts)
        self.contexts: dict[int, Context] = {}  # by row
        self.fresh: list[Context] = []  # taken in this step, and held until its commit
        self.sessions: dict[str, Session] = {}
        self.open: dict[int, Request] = {}
        self.queue: dict[int, Text] = {}  # texts with a context that wait for a tail row
        self.live: dict[int, Text] = {}
        self.counts: Counter[str] = Counter()
        self.ended_texts: list[Text] = []  # the engine delivers these three
        self.ended_actions: list[Request] = []
        self.done_resets: list[Callable[[], None]] = []

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Live texts, waiting texts, context rows in use, tail rows in use."""
        return len(self.live), len(self.queue), self.context_rows.num_used, self.tail_rows.num_used

    def unfinished(self) -> list[Text]:
        return [*self.live.values(), *self.queue.values()]

    def end_text(self, text: Text, reason: str, error: OxygenError | None = None, detail: str = "") -> None:
        """End a text, once, and free what it holds."""
        if text.finish_reason:
            return
        text.finish_reason, text.error, text.detail = reason, error, detail
        session = self.sessions[text.request.session]
        text.age_frames = session.num_frames - text.frame.ordinal if text.frame else 0
        self.queue.pop(text.task_id, None)
        self.live.pop(text.task_id, None)
        if text.tail_row is not None:
            self.tail_rows.release(text.tail_row)
        if text.context is not None:
            self.release(text.context)
        self.counts[reason] += 1
        self.ended_texts.append(text)
        self._close_one(text.request)

    def end_actions(self, request: Request, error: OxygenError | None = None) -> None:
        if request.is_acting:
            request.is_acting, request.action_error = False, error
            self.ended_actions.append(request)
            self._close_one(request)

    def end_request(self, request: Request, reason: str, error: OxygenError | None = None, detail: str = "") -> None:
        """End all that is left of a request; an error goes to its actions and its texts."""
        detail = detail or reason
        self.end_actions(request, error or Ended(reason, f"frame {request.frame_id} has ended: {detail}"))
        for text in request.texts:
            self.end_text(text, "dropped" if reason == "replaced" else reason, error, detail)

    def refuse(self, text: Text, reason: str, message: str) -> None:
        self.end_text(text, "refused", Refused(reason, message, retry_after_s=1.0))

    def end_context(self, context: Context, reason: str, error: OxygenError | None = None, detail: str = "") -> None:
        """End all texts that read a context, and a session's hold on it."""
        for text in [t for t in self.unfinished() if t.context is context]:
            self.end_text(text, reason, error, detail)
        for session in [s for s in self.sessions.values() if s.held is context]:
            self.drop_hold(session)

    def _close_one(self, request: Request) -> None:
        request.num_open -= 1
        if not request.num_open:
            del self.open[request.request_id]
            request.texts = []  # texts know their request: a cycle would keep a frame until the collector runs
            session = self.sessions[request.session]
            session.num_open -= 1
            if request in session.asks:
                session.asks.remove(request)

    def expire(self, now: float, timeout_s: float) -> None:
        """End what has run out of time: texts, holds, and sessions that have nothing to do."""
        for text in [t for r in self.open.values() for t in r.texts if t.limit <= now]:
            self.end_text(text, "expired", detail="" if text.deadline <= now else "no frame came in time")
        for name, session in list(self.sessions.items()):
            if session.held is not None and session.held_until <= now:
                self.drop_hold(session)
            if not session.num_open and not session.held and session.last_seen + timeout_s <= now:
                del self.sessions[name]

    def find(self, inputs: ContextInputs) -> Context | None:
        return next((c for c in self.contexts.values() if c.inputs is inputs), None)

    def take(self, request_id: int, frame: Request, inputs: ContextInputs, for_actions: bool) -> Context | None:
        """Take a row for a context, held by this step. Idle held contexts give way; for actions, old texts do too."""
        while (row := self.context_rows.take()) is None:
            if not self._evict_idle() and not (for_actions and self._drop_oldest()):
                return None
        context = self.contexts[row] = Context(row, request_id, frame.request_id, inputs)
        self.fresh.append(context)
        return context

    def admit(self) -> None:
        """Give free tail rows to waiting texts: by priority, then to the session with the fewest, then by age."""
        num_live = Counter(t.request.session for t in self.live.values())

        def rank(text: Text) -> tuple[int, int, int]:
            return -text.task.priority, num_live[text.request.session], text.task_id

        while self.queue and self.tail_rows.num_free:
            text = min(self.queue.values(), key=rank)
            text.tail_row = self.tail_rows.take()
            self.live[text.task_id] = self.queue.pop(text.task_id)
            num_live[text.request.session] += 1

    def read(self, text: Text, context: Context, frame: Request) -> None:
        """Let a text read a context, and queue it for a tail row."""
        self.context_rows.share(context.row)
        text.context, text.frame = context, frame
        self.queue[text.task_id] = text

    def release(self, context: Context) -> None:
        if self.context_rows.release(context.row):
            del self.contexts[context.row]

    def hold(self, session: Session, frame: Request, context: Context, until: float) -> None:
        self.context_rows.share(context.row)
        session.held, session.held_frame, session.held_until = context, frame, until

    def drop_hold(self, session: Session) -> None:
        """Hold a session's context no longer; the pictures of its frame are of no use then either."""
        if session.held is not None:
            self.release(session.held)
            session.newest = None if session.newest is session.held_frame else session.newest
            session.held = session.held_frame = None

    def settle(self) -> None:
        """The step is over: it holds its fresh contexts no longer."""
        for context in self.fresh:
            self.release(context)
        self.fresh.clear()

    def _evict_idle(self) -> bool:
        idle = [s for s in self.sessions.values() if s.held and self.context_rows.readers(s.held.row) == 1]
        if idle:
            self.drop_hold(min(idle, key=lambda s: s.held_until))
            self.counts["evicted"] += 1
        return bool(idle)

    def _drop_oldest(self) -> bool:
        oldest = min(self.unfinished(), key=lambda t: t.task_id).context if self.unfinished() else None
        if oldest is not None:
            self.end_context(oldest, "dropped", detail="a newer frame needed its context row")
        return oldest is not None

    def check(self) -> None:
        """Prove that rows, texts, sessions and requests agree."""
        readers = Counter(c.row for c in self.fresh)
        readers.update(t.context.row for t in self.unfinished() if t.context)
        readers.update(s.held.row for s in self.sessions.values() if s.held)
        self.context_rows.check(readers)
        self.tail_rows.check(Counter(t.tail_row for t in self.live.values() if t.tail_row is not None))
        assert set(self.contexts) == set(readers), "a context without readers, or readers without a context"
        assert all(t.context and t.tail_row is not None for t in self.live.values()), "a live text lacks a row"
        assert all(t.context and t.tail_row is None for t in self.queue.values()), "a waiting text has a tail row"
        for request in self.open.values():
            num_open = sum(not t.finish_reason for t in request.texts) + request.is_acting
            assert request.num_open == num_open > 0, f"request {request.request_id} miscounts what is open"
