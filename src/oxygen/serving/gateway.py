"""What every door does with a frame or a question, once: check, submit, watch, count.

The event loop owns sessions and feeds. Reading bytes, checking pictures and encoding run in worker threads; the
model runs in the engine's own thread. So a slow model call blocks nobody's greeting, ping or text.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar, cast

import numpy as np

from oxygen.core.errors import InvalidInput, OxygenError, Refused, RequestFault
from oxygen.core.tasks import ActionResult, Observation, TextTask
from oxygen.engine.engine import Engine
from oxygen.processing.processor import Processor
from oxygen.serving import texts
from oxygen.serving.feed import Event, Feed
from oxygen.serving.flight import Flight, Frame, Tap
from oxygen.serving.freshness import capture_time
from oxygen.serving.metrics import ServerMetrics
from oxygen.serving.sessions import Owner, Session, Sessions
from oxygen.serving.settings import ServeSettings
from oxygen.serving.timeline import Timeline
from oxygen.tickets.ticket import Ticket

log = logging.getLogger("oxygen.serving")

T = TypeVar("T")
WARM_UP_PATIENCE_S = 300.0


class Gateway:
    """The one way from doors to the engine. Event loop only, except `in_thread` callables."""

    def __init__(self, engine: Engine, settings: ServeSettings) -> None:
        self.engine = engine
        self.settings = settings
        self.metrics = ServerMetrics()
        self.sessions = Sessions(settings)
        self.feed = Feed()
        self.timeline = Timeline(self.metrics)
        self.taps: list[Tap] = []
        self.is_draining = False
        self.in_flight = 0
        self._pool = ThreadPoolExecutor(max_workers=4, thread_name_prefix="oxygen-door")
        self._followers: set[asyncio.Task[None]] = set()

    @property
    def processor(self) -> Processor:
        """The processing room's own, which reads robots' messages: the engine asks for less than that."""
        return cast(Processor, self.engine.processor)

    async def in_thread(self, call: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, call, *args)

    async def _kept(self, undo: Callable[[T], None], call: Callable[..., T], *args: Any) -> T:
        """As `in_thread`; where the caller is gone before the answer, `undo` gets it: nothing runs on for nobody."""
        future = self._pool.submit(call, *args)

        def undo_it(done: Future[T]) -> None:
            if not done.cancelled() and done.exception() is None:
                undo(done.result())

        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            future.add_done_callback(undo_it)
            raise

    async def until_warm(self) -> bool:
        """Wait for the model, as clients wait for a port that opens late; False when that takes too long."""
        deadline = time.monotonic() + WARM_UP_PATIENCE_S
        while self.engine.status == "warming":
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(0.05)
        return True

    # Sessions

    def open_session(self, name: str | None, door: str, owner: Owner) -> Session:
        """Claim a session for a link, at once; what an earlier link of that name left is gone before its first
        frame.
        """
        session, was_known = self.sessions.claim(name, door, owner)
        self.metrics.connections.add(door)
        if was_known:
            session.clear()
            if self.engine.status == "ready":
                session.resetting = asyncio.ensure_future(self.reset(session))
        log.info("robot connected", extra={"session": session.name, "door": door})
        event = {"type": "session", "session": session.name, "status": "connected", "door": door}
        self.feed.publish(session.name, event)
        return session

    def release_session(self, session: Session, owner: Owner) -> None:
        self.sessions.release(session, owner)
        if session.owner is None:
            log.info("robot gone", extra={"session": session.name, "frames": session.num_frames})
            self.feed.publish(session.name, {"type": "session", "session": session.name, "status": "gone"})

    async def reset(self, session: Session) -> None:
        """End the episode: nothing of it is left when this returns. Raises Refused when the engine is gone."""
        session.clear()
        if self.engine.status != "warming":
            self._check_engine()
            await self.in_thread(self.engine.reset, session.name, self.settings.answer_timeout_s)

    # Frames

    async def take(self, session: Session, read: Callable[[], Frame], door: str) -> Flight:
        """Submit one frame and follow its texts. `read` runs in a worker thread. Raises OxygenError."""
        await self._settle(session)
        return self._launch(await self._kept(lambda flight: flight.ticket.cancel(), self._submit, session, read, door))

    async def _settle(self, session: Session) -> None:
        """Wait for a reset that a takeover began."""
        if session.resetting is not None:
            resetting = session.resetting
            try:
                await asyncio.shield(resetting)
            finally:
                if session.resetting is resetting and resetting.done():
                    session.resetting = None  # also when it failed: that is told once

    def _submit(self, session: Session, read: Callable[[], Frame], door: str) -> Flight:
        """Read, check and submit one frame. In a worker thread, one frame of a session at a time. Raises
        OxygenError.
        """
        started = time.perf_counter()
        if self.is_draining:
            raise Refused("stopping", "the server is stopping and takes no new work", retry_after_s=5.0)
        self._check_engine()
        frame = read()
        captured_at, cameras = capture_time(frame.captured_at)
        session.freshness.check_order(frame.frame_id)
        warnings = session.freshness.check_age(captured_at, cameras, time.time())
        observation = frame.observation or self._parse(session, frame, captured_at)
        warnings += session.freshness.check_pictures(observation)
        wanted, refused = self._admit(session, frame.texts)
        ticket = self.engine.submit(observation, frame.action, wanted)
        self.metrics.submit.observe(1000 * (time.perf_counter() - started))
        return Flight(session, observation, ticket, door, started, (), warnings, refused)

    def _launch(self, flight: Flight) -> Flight:
        """On the event loop, right after `_submit`: take note of the frame and follow its texts."""
        session, now = flight.session, time.monotonic()
        session.observation, session.frame_id = flight.observation, flight.frame_id
        session.num_frames += 1
        session.last_seen = now
        session.frame_times.append(now)
        self.metrics.frames.add(flight.door)
        repeats = sum(count > 0 for count in session.freshness.repeats.values())
        if repeats:
            self.metrics.repeated.add(by=repeats)
        for code, message in flight.warnings:
            self._warn(session, code, message)
        for tap in self.taps:
            tap.on_observation(session.name, flight.observation, flight.frame_id, time.time())
        flight.text_ids = tuple(self.follow(session, handle) for handle in flight.ticket.texts)
        for task in flight.refused_texts:
            self._refuse_text(session, task, flight.frame_id)
        return flight

    async def actions(self, flight: Flight) -> ActionResult:
        """Wait for the chunk. Raises what the engine raises, TimeoutError after the limit, and never returns a bad
        chunk.
        """
        self.in_flight += 1
        try:
            async with asyncio.timeout(self.settings.answer_timeout_s):
                result = await flight.ticket.actions_async()
        except (TimeoutError, OxygenError):
            self.metrics.missed.add("frame")
            raise
        finally:
            self.in_flight -= 1
        if not result.actions.size or not np.isfinite(result.actions).all():
            raise RequestFault(result.frame_id, "the model's actions are not finite numbers; none are sent")
        self._delivered(flight, result)
        return result

    # Texts

    async def ask(
        self, session: Session, task: TextTask, *, frame_id: int | None = None, max_age_s: float | None = None
    ) -> tuple[str, Ticket]:
        """Put a question to what the robot sees now. Returns the text's id and the ticket. Raises OxygenError."""
        if self.is_draining:
            raise Refused("stopping", "the server is stopping and takes no new work", retry_after_s=5.0)
        self._check_engine()
        await self._settle(session)
        if len(session.live_texts) >= self.settings.max_session_texts:
            raise self.too_many_texts(session)

        def call() -> Ticket:
            return self.engine.ask(session.name, task, frame_id=frame_id, max_age_s=max_age_s)

        ticket = await self._kept(lambda ticket: ticket.cancel(), call)
        return self.follow(session, ticket.texts[0]), ticket

    def follow(self, session: Session, handle: Any) -> str:
        text_id = texts.new_text_id()
        session.live_texts[text_id] = handle
        follower = asyncio.get_running_loop().create_task(
            texts.follow(session, text_id, handle, self.feed, self.metrics, self._text_ended)
        )
        self._followers.add(follower)
        follower.add_done_callback(self._followers.discard)
        return text_id

    # Life

    def refuse(self, session: Session | None, reason: str) -> None:
        """Count a refusal that a door has answered."""
        self.metrics.refusals.add(reason)
        if session is not None:
            session.num_refused += 1

    async def say_goodbye(self, reason: str) -> None:
        """Tell every client that no more will come, and close their links."""
        for session in self.sessions:
            self.feed.publish(session.name, {"type": "goodbye", "session": session.name, "reason": reason})
        await asyncio.sleep(0)
        self.feed.close()
        links = [session.owner for session in self.sessions if session.owner is not None]
        await asyncio.gather(*(link.dismiss(reason) for link in links))

    async def close(self) -> None:
        for follower in list(self._followers):
            follower.cancel()
        await asyncio.gather(*self._followers, return_exceptions=True)
        for tap in self.taps:
            await asyncio.to_thread(tap.close)
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _check_engine(self) -> None:
        status = self.engine.status
        if status == "warming":
            raise Refused("warming", "the model is loading or warming up", retry_after_s=1.0)
        if status != "ready":
            raise Refused("engine_" + status, f"the engine is {status}; the server must be restarted")

    def _parse(self, session: Session, frame: Frame, captured_at: float | None) -> Observation:
        raw = frame.raw or {}
        prompt = raw.get("prompt")
        if isinstance(prompt, str) and len(prompt) > self.settings.max_prompt_chars:
            raise InvalidInput("prompt", f"at most {self.settings.max_prompt_chars} characters", f"{len(prompt)}")
        return self.processor.parse(raw, session=session.name, frame_id=frame.frame_id, captured_at=captured_at)

    def _admit(
        self, session: Session, wanted: tuple[TextTask, ...]
    ) -> tuple[tuple[TextTask, ...], tuple[TextTask, ...]]:
        """Actions are never refused for the sake of text: texts above the limit are turned away one by one."""
        room = max(0, self.settings.max_session_texts - len(session.live_texts))
        return wanted[:room], wanted[room:]

    def _refuse_text(self, session: Session, task: TextTask, frame_id: int | None) -> None:
        event = texts.refused_event(session, texts.new_text_id(), task.kind, self.too_many_texts(session), frame_id)
        self.refuse(session, "too_many_texts")
        self.feed.publish(session.name, event)

    def too_many_texts(self, session: Session) -> Refused:
        """Why a session may not have one more text."""
        limit = self.settings.max_session_texts
        return Refused("too_many_texts", f"{session.name} has {limit} texts in progress already", retry_after_s=0.5)

    def _delivered(self, flight: Flight, result: ActionResult) -> None:
        ready_ms = 1000 * (time.perf_counter() - flight.started)
        session = flight.session
        session.action = result
        session.ready_ms.append(ready_ms)
        self.metrics.actions.add(flight.door)
        self.metrics.action_ready.observe(ready_ms, flight.door)
        event = {
            "type": "actions",
            "session": session.name,
            "frame_id": result.frame_id,
            "horizon": len(result.actions),
            "ready_ms": ready_ms,
            "at": time.time(),
        }
        self.feed.publish(session.name, event)
        for tap in self.taps:
            tap.on_actions(session.name, result, time.time())

    def _text_ended(self, event: Event) -> None:
        for tap in self.taps:
            tap.on_text(event)

    def _warn(self, session: Session, code: str, message: str) -> None:
        self.metrics.warnings.add(code)
        event = {"type": "warning", "session": session.name, "code": code, "message": message, "at": time.time()}
        session.warnings.append(event)
        self.feed.publish(session.name, event)
