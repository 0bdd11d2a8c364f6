"""The engine: takes frames and questions from any thread, runs the device from one, and tells what came of them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

from oxygen.core.config import EngineConfig
from oxygen.core.errors import DeviceFault, Ended, OxygenError, Refused, check_number
from oxygen.core.plan import Runner
from oxygen.core.tasks import ActionTask, Observation, TextTask
from oxygen.engine.verbs import Verbs
from oxygen.processing.interface import Processor
from oxygen.scheduler.scheduler import Scheduler
from oxygen.scheduler.state import Outcome, Request
from oxygen.tickets.checks import check_config, check_question, check_session
from oxygen.tickets.delivery import Delivery, by_expert
from oxygen.tickets.intake import Intake
from oxygen.tickets.record import EngineStats, Laps, StepRecord
from oxygen.tickets.tap import Listener, Tap
from oxygen.tickets.ticket import Ticket, pending

log = logging.getLogger(__name__)
ONE_CHUNK = ActionTask()
LONGEST_WAIT_S = 3600.0  # the platform has a limit of its own; waking up in vain is harmless


class Engine:
    """Serves frames: one context per frame, actions first, the text of all frames decoded together.

    runner and processor belong to one checkpoint. warm_up is run by the device's thread before the engine is ready.
    Without `start`, the caller owns the device and drives it: each `step` does what there is to do now.
    status: `warming`, `ready`, `failed` (then `fault` says why) or `closed`.
    """

    def __init__(
        self,
        runner: Runner,
        processor: Processor,
        config: EngineConfig | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        warm_up: Callable[[], object] | None = None,
    ) -> None:
        self.runner, self.processor, self.config = runner, processor, check_config(config)
        self.status = "warming" if warm_up else "ready"
        self.fault: DeviceFault | None = None
        self._clock, self._warm_up = clock, warm_up
        self._scheduler = Scheduler(runner.limits, self.config)
        self._intake = Intake(processor, runner.limits, self._cancel)
        self._verbs = Verbs(runner, clock)
        self._delivery = Delivery(processor, self._scheduler.ledger)
        self._tap = Tap(self._scheduler, self._delivery)
        self._step_started_at: float | None = None
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()
        self._drain_until, self._is_let_go = inf, threading.Lock()  # taken for ever by whoever closes the runner

    @classmethod
    def from_pretrained(
        cls, folder: str | Path, *, robot: str | None = None, config: EngineConfig | None = None, **device: Any
    ) -> Engine:
        """Open a checkpoint folder and start an engine on it. device: `device`, `dtype`, sizes: see `open_runner`."""
        from oxygen.runtime.torch.open import open_parts

        config = check_config(config)  # before anything is read
        runner, processor = open_parts(folder, robot=robot, **device)
        engine = cls(runner, processor, config, warm_up=runner.warm_up)
        engine.start()
        return engine

    # The door: any thread

    def submit(
        self,
        observation: Observation,
        actions: ActionTask | Sequence[ActionTask] | None = ONE_CHUNK,
        texts: TextTask | Sequence[TextTask] = (),
    ) -> Ticket:
        """Hand in a frame and what is wanted of it. Encodes in the caller's thread; raises InvalidInput or Refused."""
        request = self._intake.frame(observation, actions, texts, self._clock())
        for ask in self._scheduler.arrive(request):
            self._intake.put_on(request, ask)
        return self._enter(request)

    def ask(
        self, session: str, task: TextTask, *, frame_id: int | None = None, max_age_s: float | None = None
    ) -> Ticket:
        """Ask about the latest frame of a session: joins its context while it is held, else waits for the next frame.

        frame_id: only this frame will do. max_age_s: an older frame will not. Raises InvalidInput or Refused.
        """
        check_question(session, task, frame_id, max_age_s)
        now = self._clock()
        request = self._intake.question(session, task, self._scheduler.newest(session), now)
        request.wanted_frame, request.max_age_s = frame_id, max_age_s
        request.wait_until = now + self.config.max_wait_s
        return self._enter(request)

    def reset(self, session: str, timeout: float | None = None) -> None:
        """End all that a session has and forget its context; returns once that is so. Raises TimeoutError."""
        check_session(session)
        if self._thread is threading.current_thread():
            raise RuntimeError("a listener cannot wait for the step that it is called from")
        done: Future[None] = pending()
        self._scheduler.reset(session, partial(done.set_result, None))
        self._wake.set()
        if self._thread is None:
            self.step()  # the caller owns the device
        done.result(timeout)

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` after each step, in the device's thread (it must not block); returns how to stop."""
        return self._tap.subscribe(listener)

    def stats(self) -> EngineStats:
        started, ledger, tap = self._step_started_at, self._scheduler.ledger, self._tap
        age = 0.0 if started is None else self._clock() - started
        so_far = (dict(ledger.counts), tap.window.summary())
        return EngineStats(self.status, self.fault, self.config.budget, tap.num_steps, age, *ledger.sizes, *so_far)

    def _enter(self, request: Request) -> Ticket:
        ticket = self._intake.ticket(request)  # first: once added, a request may end at any moment
        self._scheduler.add(request)
        self._wake.set()
        return ticket

    def _cancel(self, request_id: int, task_id: int | None) -> None:
        self._scheduler.cancel(request_id, task_id)
        self._wake.set()

    def start(self) -> None:
        """Give the device to a thread of the engine's own."""
        self._thread = threading.Thread(target=self._run, name="oxygen-device", daemon=True)
        self._thread.start()

    def close(self, drain_s: float = 0.0) -> None:
        """Take nothing new, work on for at most `drain_s`, end what is left as `closed`, and close the runner, once."""
        check_number("drain_s", drain_s, "seconds from 0 to 1e9", 0, 1e9)
        self._scheduler.shut(Refused("closed", "the engine is closed"))
        self._drain_until = self._clock() + drain_s
        self._wake.set()
        if self._thread is threading.current_thread():
            return
        if self._thread is not None:
            self._thread.join()
        while not self._is_let_go.locked():  # there is no thread, or it died of a fault
            self._run()

    def _run(self) -> None:
        """Step while there is something to do, until closed or broken."""
        try:
            if self.status == "warming" and self._warm_up is not None:
                self._warm_up()
                self.status = "ready"
            while self.status == "ready":
                self._wake.clear()
                now, is_draining = self._clock(), self._drain_until < inf
                delay = self._scheduler.delay(now, is_draining)
                if is_draining and (delay > 0 or now >= self._drain_until):
                    self.status = "closed"
                    self._end_all("closed", None)
                elif delay > 0:
                    self._wake.wait(None if delay == inf else min(delay, LONGEST_WAIT_S))
                else:
                    self.step()
            if self._drain_until < inf and self._is_let_go.acquire(blocking=False):
                self.runner.close()
        except BaseException as error:
            self._fail(error)
            if not isinstance(error, Exception):
                raise
            log.error("the engine is dead", exc_info=error)

    def _fail(self, error: BaseException) -> DeviceFault:
        """Record what broke, once, and end everything with it."""
        if self.fault is None:
            self.fault, self.status = DeviceFault(f"{type(error).__name__}: {error}"), "failed"
            self.fault.__cause__ = error
            self._scheduler.shut(Refused("failed", f"the engine is dead: {self.fault}"))
            self._end_all("fault", self.fault)
        return self.fault

    def _end_all(self, reason: str, error: OxygenError | None) -> None:
        self._scheduler.end_all(reason, error)
        self._delivery.give_ends(self._clock())

    # The step: the device's thread

    def step(self) -> StepRecord:
        """Do one step; raises DeviceFault, after all tickets have ended with it."""
        if self._thread not in (None, threading.current_thread()):
            raise RuntimeError("the engine's own thread drives it")
        if self.status not in ("ready", "warming"):
            raise self.fault or Ended("closed", "the engine is closed")
        try:
            return self._step(Laps(self._clock), Outcome())
        except Exception as error:
            raise self._fail(error) from error

    def _step(self, laps: Laps, outcome: Outcome) -> StepRecord:
        scheduler, verbs, delivery = self._scheduler, self._verbs, self._delivery
        self._step_started_at = laps.started_at
        plan = scheduler.plan(laps.started_at)
        outcome.to_write.update(item.context_row for item in (*plan.prefill, *plan.prefill_text))
        self._forget_rows()
        laps.lap("plan")
        verbs.prefill(plan.prefill, outcome)
        laps.lap("prefill")
        for items in by_expert(plan.act):
            delivery.give_actions(verbs.act(items, outcome), outcome, laps.lap("act"))
        delivery.give_ends(laps.lap("deliver"))
        if not (is_paused := scheduler.is_text_paused(plan)):
            verbs.prefill(plan.prefill_text, outcome)
            verbs.decode(plan, outcome, scheduler, laps.lap("prefill_text"))
            laps.lap("decode")
        outcome.decode_s = laps.seconds.get("decode", 0.0)
        outcome.base_s = laps.total_s - outcome.decode_s
        scheduler.commit(plan, outcome, self._clock())
        self._forget_rows()
        delivery.give_pieces(outcome, laps.lap("commit"))
        delivery.give_ends(self._clock())
        laps.lap("deliver_text")
        record = self._tap.tell(plan, outcome, laps, is_paused)
        if self.config.debug:
            scheduler.ledger.check()
        self._step_started_at = None
        return record

    def _forget_rows(self) -> None:
        ledger = self._scheduler.ledger
        contexts, tails = ledger.context_rows.take_freed(), ledger.tail_rows.take_freed()
        if contexts or tails:
            self.runner.forget(contexts, tails)
