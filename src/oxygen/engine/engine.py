"""The engine: takes frames and questions from any thread, runs the device from one, and tells what came of them."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

from oxygen.core.config import EngineConfig
from oxygen.core.errors import DeviceFault, Ended, Refused
from oxygen.core.plan import Runner, StepPlan
from oxygen.core.tasks import ActionTask, Observation, TextTask
from oxygen.engine.delivery import Delivery
from oxygen.engine.intake import Intake
from oxygen.engine.stats import EngineStats, Laps, StepRecord, Window
from oxygen.engine.ticket import Ticket, pending
from oxygen.engine.verbs import Verbs
from oxygen.processing.interface import Processor
from oxygen.scheduler.scheduler import Scheduler
from oxygen.scheduler.state import Outcome

log = logging.getLogger(__name__)
Listener = Callable[[StepRecord], object]
ONE_CHUNK = ActionTask()


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
        self.runner, self.processor, self.config = runner, processor, config or EngineConfig()
        self.status = "warming" if warm_up else "ready"
        self.fault: DeviceFault | None = None
        self._clock, self._warm_up = clock, warm_up
        self._scheduler = Scheduler(runner.limits, self.config)
        self._intake = Intake(processor, runner.limits, self._cancel)
        self._verbs = Verbs(runner, clock)
        self._delivery = Delivery(processor, self._scheduler.ledger)
        self._listeners: list[Listener] = []
        self._window = Window()
        self._told: Counter[str] = Counter()
        self._num_steps = 0
        self._step_started_at: float | None = None
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()
        self._drain_until: float | None = None

    @classmethod
    def from_pretrained(
        cls,
        folder: str | Path,
        *,
        device: str = "cpu",
        dtype: str = "float32",
        robot: str | None = None,
        config: EngineConfig | None = None,
        **overrides: Any,
    ) -> Engine:
        """Open a checkpoint folder (or a preset's name, with random weights) and start an engine on it."""
        from oxygen.processing import open_processor
        from oxygen.runtime.torch.open import open_runner

        processor = open_processor(folder, robot=robot)
        runner = open_runner(folder, device=device, dtype=dtype, **overrides)
        engine = cls(runner, processor, config, warm_up=getattr(runner, "warm_up", None))
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
        wanted = (actions,) if isinstance(actions, ActionTask) else tuple(actions or ())
        asked = (texts,) if isinstance(texts, TextTask) else tuple(texts)
        request = self._intake.frame(observation, wanted, asked, self._clock())
        for ask in self._scheduler.arrive(request):
            self._intake.put_on(request, ask)
        return self._enter(request)

    def ask(
        self, session: str, task: TextTask, *, frame_id: int | None = None, max_age_s: float | None = None
    ) -> Ticket:
        """Ask about the latest frame of a session: joins its context while it is held, else waits for the next frame.

        frame_id: only this frame will do. max_age_s: an older frame will not. Raises InvalidInput or Refused.
        """
        now = self._clock()
        request = self._intake.question(session, task, self._scheduler.newest(session), now)
        request.wanted_frame, request.max_age_s = frame_id, max_age_s
        request.wait_until = now + self.config.max_wait_s
        return self._enter(request)

    def reset(self, session: str, timeout: float | None = None) -> None:
        """End all that a session has and forget its context; returns once that is so. Raises TimeoutError."""
        done: Future[None] = pending()
        self._scheduler.reset(session, partial(done.set_result, None))
        self._wake.set()
        if self._thread is None:
            self.step()  # without a thread the caller owns the device
        done.result(timeout)

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` after each step, in the device's thread (it must not block); returns how to stop."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener) if listener in self._listeners else None

    def stats(self) -> EngineStats:
        ledger, started = self._scheduler.ledger, self._step_started_at
        return EngineStats(
            status=self.status,
            fault=self.fault,
            budget=self.config.budget,
            steps=self._num_steps,
            current_step_s=0.0 if started is None else self._clock() - started,
            live_texts=len(ledger.live),
            waiting_texts=len(ledger.queue),
            context_rows=ledger.context_rows.num_used,
            tail_rows=ledger.tail_rows.num_used,
            counts=dict(ledger.counts),
            recent=self._window.summary(),
        )

    def _enter(self, request: Any) -> Ticket:
        self._scheduler.add(request)
        self._wake.set()
        return self._intake.ticket(request)

    def _cancel(self, request_id: int, task_id: int | None) -> None:
        self._scheduler.cancel(request_id, task_id)
        self._wake.set()

    # Life

    def start(self) -> None:
        """Give the device to a thread of the engine's own."""
        self._thread = threading.Thread(target=self._run, name="oxygen-device", daemon=True)
        self._thread.start()

    def close(self, drain_s: float = 0.0) -> None:
        """Take nothing new, work on for at most `drain_s`, end what is left as `closed`, and let the device go."""
        self._scheduler.shut(Refused("closed", "the engine is closed"))
        self._drain_until = self._clock() + drain_s
        self._wake.set()
        if self._thread is None:
            self._run()
        elif self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        """Step while there is something to do, until closed or broken."""
        try:
            if self.status == "warming" and self._warm_up is not None:
                self._warm_up()
                self.status = "ready"
            while self.status == "ready":
                self._wake.clear()
                now, until = self._clock(), self._drain_until
                delay = self._scheduler.delay(now, is_draining=until is not None)
                if until is not None and (delay > 0 or now >= until):
                    break
                if delay > 0:
                    self._wake.wait(None if delay == inf else delay)
                else:
                    self.step()
        except DeviceFault:
            log.exception("the device thread ends")
        except BaseException as error:
            self._fail(error)
            raise
        if self.status == "ready":
            self.status = "closed"
            self._end_all("closed", None)
            self.runner.close()

    def _fail(self, error: BaseException) -> DeviceFault:
        """Record what broke, once, and end everything with it."""
        if self.fault is None:
            self.fault = DeviceFault(f"{type(error).__name__}: {error}")
            self.fault.__cause__ = error
            self.status = "failed"
            self._scheduler.shut(Refused("failed", f"the engine is dead: {self.fault}"))
            self._end_all("fault", self.fault)
        return self.fault

    def _end_all(self, reason: str, error: DeviceFault | None) -> None:
        self._scheduler.end_all(reason, error)
        self._delivery.give_ends(self._clock())

    # The step: the device's thread

    def step(self) -> StepRecord:
        """Do one step; raises DeviceFault, after all tickets have ended with it."""
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
        chunks = verbs.act(plan.act, outcome)
        delivery.give_actions(chunks, outcome, laps.lap("act"))
        delivery.give_ends(laps.lap("deliver"))
        if not (is_paused := self._is_text_paused(plan)):
            verbs.prefill(plan.prefill_text, outcome)
            started = laps.lap("prefill_text")
            verbs.decode(plan.decode, plan.rounds, outcome, self._take_token, partial(self._is_time_up, started))
            laps.lap("decode")
        outcome.decode_s = laps.seconds.get("decode", 0.0)
        outcome.base_s = sum(laps.seconds.values()) - outcome.decode_s
        scheduler.commit(plan, outcome)
        self._forget_rows()
        delivery.give_pieces(outcome, laps.lap("commit"))
        delivery.give_ends(self._clock())
        laps.lap("deliver_text")
        return self._record(plan, outcome, laps, is_paused)

    def _is_text_paused(self, plan: StepPlan) -> bool:
        """Text waits while a frame with actions does, unless it has waited too long already."""
        if plan.decode and not plan.rounds:
            return True
        is_text = bool(plan.decode or plan.prefill_text)
        return is_text and self._scheduler.num_frames_waiting > 0 and not self._scheduler.pace.is_text_due

    def _is_time_up(self, started: float) -> bool:
        """Between rounds: a frame with actions has come, or under `idle` any wish has, or the slice is over."""
        scheduler = self._scheduler
        if scheduler.num_frames_waiting or scheduler.pace.budget.kind != "idle":
            return scheduler.num_frames_waiting > 0
        return scheduler.has_wishes or self._clock() - started >= self.config.text_slice_s

    def _take_token(self, task_id: int, token: int) -> str:
        reason: str = self._scheduler.ledger.live[task_id].transcript.push(token)
        return reason

    def _forget_rows(self) -> None:
        ledger = self._scheduler.ledger
        contexts, tails = ledger.context_rows.take_freed(), ledger.tail_rows.take_freed()
        if contexts or tails:
            self.runner.forget(contexts, tails)

    def _record(self, plan: StepPlan, outcome: Outcome, laps: Laps, is_paused: bool) -> StepRecord:
        ledger, delivery, budget = self._scheduler.ledger, self._delivery, self._scheduler.pace.budget
        seconds, total_s = laps.seconds, sum(laps.seconds.values())
        runner_s = sum(seconds.get(stage, 0.0) for stage in ("prefill", "act", "prefill_text", "decode"))
        num_tokens = sum(map(len, outcome.tokens.values()))
        is_cut = 0 < outcome.rounds < plan.rounds and self._scheduler.num_frames_waiting > 0
        is_missed = budget.kind == "rate" and bool(plan.act) and total_s > 1 / budget.value
        ledger.counts.update(chunks=len(delivery.actions), tokens=num_tokens, rounds=outcome.rounds)
        ledger.counts.update(paused=is_paused, cut=is_cut, missed=is_missed)
        self._num_steps += 1
        record = StepRecord(
            step=self._num_steps,
            started_at=laps.started_at,
            seconds=seconds,
            management_s=total_s - runner_s + outcome.host_s,
            wanted_rounds=plan.rounds,
            rounds=outcome.rounds,
            num_tokens=num_tokens,
            live_texts=len(plan.decode),
            waiting_texts=len(ledger.queue),
            context_rows=ledger.context_rows.num_used,
            tail_rows=ledger.tail_rows.num_used,
            is_paused=is_paused,
            is_cut=is_cut,
            counts={name: n - self._told[name] for name, n in ledger.counts.items() if n > self._told[name]},
            actions=tuple(delivery.actions),
            pieces=tuple(delivery.pieces),
            results=tuple(delivery.results),
        )
        self._told = Counter(ledger.counts)
        delivery.clear()
        self._window.learn(record)
        for listener in tuple(self._listeners):
            try:
                listener(record)
            except Exception:
                log.exception("a listener failed and is removed")
                self._listeners.remove(listener)
        if self.config.debug:
            ledger.check()
        self._step_started_at = None
        return record
