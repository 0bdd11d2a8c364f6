"""Random schedules on the fake runner, against what every ticket must come to (promises E1, E2, E8)."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fakes import EOS, ROBOT_DIM, FakeClock, FakeProcessor, FakeRunner, content_of, expected_tokens, fake_limits, frame
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oxygen.core.config import EngineConfig
from oxygen.core.errors import DeviceFault, Ended, InvalidInput, Refused, RequestFault
from oxygen.core.tasks import ActionTask, Observation, Sampling, TextTask
from oxygen.engine.engine import Engine
from oxygen.tickets.ticket import TextHandle, Ticket

SESSIONS = ("left", "right", "third")
PROCESSOR = FakeProcessor()

texts = st.builds(
    TextTask,
    kind=st.sampled_from(["narration", "subtask", "apart"]),
    question=st.sampled_from([None, "why?", "what now?"]),
    max_new_tokens=st.integers(1, 12),
    sampling=st.builds(Sampling, temperature=st.sampled_from([0.0, 1.0]), seed=st.integers(0, 3)),
    stop=st.sampled_from([(), ("é",), ("bb", "a b"), ("c", "cé")]),
    deadline_s=st.sampled_from([None, None, 0.5, 3.0]),
    priority=st.integers(0, 1),
    ignore_eos=st.booleans(),
)
sessions = st.sampled_from(SESSIONS)
submits = st.tuples(st.just("submit"), sessions, st.booleans(), st.lists(texts, max_size=3))
asks = st.tuples(st.just("ask"), sessions, texts, st.sampled_from([None, 0.3]), st.sampled_from([None, 0]))
cancels = st.tuples(st.just("cancel"), st.integers(0, 9), st.sampled_from([None, 0, 1]))
resets = st.tuples(st.just("reset"), sessions)
faults = st.tuples(st.just("fault"), st.sampled_from(["prefill", "act", "round"]), st.integers(0, 3))
steps = st.just(("step",))
waits = st.tuples(st.just("wait"), st.sampled_from([0.1, 1.0, 4.0]))
in_round = st.tuples(st.just("later"), st.one_of(submits, asks))


def mixture(*weighted: tuple[int, Any]) -> Any:
    """One of several strategies, by weight (`one_of` drops duplicates)."""
    return st.sampled_from([n for n, (weight, _) in enumerate(weighted) for _ in range(weight)]).flatmap(
        lambda n: weighted[n][1]
    )


rough = st.lists(
    mixture((8, submits), (10, steps), (3, in_round), (3, asks), (1, cancels), (1, resets), (1, faults), (1, waits)),
    min_size=15,
    max_size=40,
)
calm = st.lists(mixture((5, submits), (8, steps), (2, asks), (2, in_round)), min_size=15, max_size=40)
configs = st.builds(
    EngineConfig,
    budget=st.sampled_from(["fixed:1", "fixed:5", "rate:4", "rate:1000", "idle"]),
    max_batch=st.integers(1, 3),
    max_waiting_texts=st.sampled_from([0, 2, 8, 8]),
    keep_context_s=st.sampled_from([0.0, 1.0, 100.0]),
    max_wait_s=st.just(2.0),
    superseded_kinds=st.sampled_from([frozenset(), frozenset({"narration"})]),
    max_paused_steps=st.sampled_from([0, 2]),
    session_timeout_s=st.sampled_from([2.0, 600.0]),
    debug=st.just(True),
)
limits = st.builds(fake_limits, max_contexts=st.integers(1, 4), max_texts=st.integers(1, 4))
COSTS = {"prefill": 0.05, "act": 0.02, "round": 0.01}


def reference(tokens: Sequence[int], task: TextTask) -> tuple[str, list[int], str]:
    """What a text must be: decoded token by token, ended by the first stop string, end-of-text or the limit."""
    utf8, text, ids = codecs.getincrementaldecoder("utf-8")("replace"), "", []
    for token in [*tokens, None]:
        is_eos = token == EOS and not task.ignore_eos
        if token is None or is_eos:
            text += utf8.decode(b"", final=True)
        else:
            ids.append(token)
            text += utf8.decode(bytes([token]) if token < 256 else b"")
        found = [text.index(s) for s in task.stop if s in text]
        if found:
            reason = "length" if token is None else "stop"
            return text[: min(found)], ids, reason
        if is_eos:
            return text, ids, "stop"
    return text, ids, "length"


class World:
    """An engine driven by hand, all tickets it ever gave out, and what may happen between its rounds."""

    def __init__(self, config: EngineConfig, limits: Any) -> None:
        self.clock = FakeClock()
        self.runner = FakeRunner(limits, self.clock, COSTS)
        self.runner.on_call = self.on_call
        self.engine = Engine(self.runner, PROCESSOR, config, clock=self.clock)
        self.tickets: list[tuple[Ticket, ActionTask | None]] = []
        self.frames: dict[tuple[str, int], Observation] = {}
        self.in_round: list[tuple[Any, ...]] = []
        self.to_raise: list[tuple[str, int | None]] = []  # (verb, item to blame; None: the device)
        self.acted: set[int] = set()
        self.is_frame_new = False

    def do(self, operation: tuple[Any, ...]) -> None:
        getattr(self, operation[0])(*operation[1:])

    def submit(self, session: str, wants_actions: bool, wanted: list[TextTask]) -> None:
        number = len(self.frames)
        observation = frame(session, number, frame_id=number, captured_at=float(number))
        action = ActionTask(seed=number) if wants_actions else None
        self.frames[session, number] = observation
        try:
            self.tickets.append((self.engine.submit(observation, action, wanted), action))
        except InvalidInput:
            assert not wants_actions and not wanted
        except Refused as refused:
            assert self.engine.fault or (refused.reason == "queue_full" and not wants_actions)

    def ask(self, session: str, task: TextTask, max_age_s: float | None, back: int | None) -> None:
        frame_id = None if back is None else len(self.frames) - 1 - back
        try:
            self.tickets.append((self.engine.ask(session, task, frame_id=frame_id, max_age_s=max_age_s), None))
        except Refused as refused:
            assert self.engine.fault or refused.reason == "queue_full"

    def cancel(self, which: int, text: int | None) -> None:
        if self.tickets:
            ticket, _ = self.tickets[-1 - which % len(self.tickets)]
            cancel = ticket.cancel if text is None or text >= len(ticket.texts) else ticket.texts[text].cancel
            cancel()

    def reset(self, session: str) -> None:
        if self.engine.status == "ready":
            self.begin()
            before = [t for t, _ in self.tickets if t.session == session]
            try:
                self.engine.reset(session)
            except DeviceFault as fault:
                if not isinstance(fault.__cause__, MemoryError):
                    raise
            assert all(t.is_done for t in before)

    def step(self) -> None:
        self.begin()
        if self.engine.status != "ready":
            with pytest.raises(DeviceFault):
                self.engine.step()
            return
        try:
            record = self.engine.step()
        except DeviceFault as fault:
            if not isinstance(fault.__cause__, MemoryError):
                raise
            assert all(t.is_done for t, _ in self.tickets)
            return
        assert record.total_s >= record.management_s >= 0

    def begin(self) -> None:
        self.acted.clear()
        self.is_frame_new = False

    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    def later(self, operation: tuple[Any, ...]) -> None:
        self.in_round.append(operation)

    def fault(self, verb: str, blamed: int | None) -> None:
        self.to_raise.append((verb, blamed))

    def on_call(self, verb: str, items: Sequence[Any]) -> None:
        ledger, scheduler = self.engine._scheduler.ledger, self.engine._scheduler
        for planned in [f for f in self.to_raise if f[0] == verb]:
            self.to_raise.remove(planned)
            if planned[1] is None:
                raise MemoryError("injected")
            raise RequestFault(items[planned[1] % len(items)].request_id, "injected")
        if verb == "act":
            self.acted = {item.request_id for item in items}
        if verb in ("decode", "round"):
            requests = [ledger.open[i] for i in self.acted if i in ledger.open]
            assert all(c.done() for r in requests for c in r.chunks.values()), "text before actions"
            assert not self.is_frame_new, "a round began although a frame with actions had come in the last one"
        if verb == "decode" and not self.engine.config.max_paused_steps:
            assert scheduler.num_frames_waiting == 0, "text was not paused"
        if verb == "round":
            operations, self.in_round = self.in_round, []
            for operation in operations:
                self.do(operation)
                self.is_frame_new |= operation[0] == "submit" and operation[2]

    def finish(self, drains: bool) -> None:
        self.to_raise.clear()
        for _ in range(400 if drains else 0):
            if self.engine.status != "ready" or all(t.is_done for t, _ in self.tickets):
                break
            self.clock.advance(0.5)
            self.step()
        assert not drains or all(t.is_done for t, _ in self.tickets), "a ticket never ends"
        self.engine.close()
        ledger = self.engine._scheduler.ledger
        ledger.check()
        assert ledger.context_rows.num_used == ledger.tail_rows.num_used == 0
        assert not ledger.open and not ledger.live and not ledger.queue

    def verify(self, drains: bool) -> None:
        for ticket, action in self.tickets:
            assert ticket.is_done
            if action is not None:
                self.verify_actions(ticket, action)
            for handle in ticket.texts:
                self.verify_text(handle, drains)

    def verify_actions(self, ticket: Ticket, action: ActionTask) -> None:
        try:
            result = ticket.actions(0)
        except (Ended, RequestFault, DeviceFault):
            return
        sizes = self.runner.limits
        noise = np.random.default_rng(action.seed).standard_normal((sizes.horizon, sizes.action_dim), dtype=np.float32)
        content = content_of(PROCESSOR.encode(self.frames[ticket.session, ticket.frame_id], (action,), ()).contexts[0])
        expected = (noise * 0.5 + content % 1000 / 1000 + sizes.num_steps).astype(np.float32)
        assert np.array_equal(result.actions, expected[:, :ROBOT_DIM])
        assert result.frame_id == ticket.frame_id and result.captured_at == float(ticket.frame_id)

    def verify_text(self, handle: TextHandle, drains: bool) -> None:
        try:
            result = handle.result(0)
        except (Refused, RequestFault, DeviceFault) as error:
            with pytest.raises(type(error)):
                list(handle)
            return
        pieces = list(handle)
        assert "".join(pieces) == result.text and all(pieces)
        assert result.finish_reason != "closed" or not drains
        if result.frame_id < 0:
            assert result.text == "" and result.finish_reason in ("expired", "cancelled", "closed")
            return
        inputs = PROCESSOR.encode(self.frames[handle.session, result.frame_id], (), (handle.task,))
        tokens = expected_tokens(inputs.contexts[0], inputs.texts[0].tail_ids, handle.task)
        text, ids, reason = reference(tokens, handle.task)
        if result.finish_reason in ("stop", "length"):
            assert (result.text, list(result.token_ids), result.finish_reason) == (text, ids, reason)
        else:
            assert result.finish_reason in ("cancelled", "superseded", "expired", "dropped", "closed")
            given = list(result.token_ids)
            assert given == ids[: len(given)]
            assert result.text == reference(given, handle.task)[0]


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(configs, limits, rough, st.booleans())
def test_every_ticket_comes_to_its_one_right_end(config, limits, operations, drains):
    world = World(config, limits)
    for operation in operations:
        world.do(operation)
    world.finish(drains)
    world.verify(drains)


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(configs, calm)
def test_where_nothing_is_scarce_every_text_is_finished(config, operations):
    """No refusals, drops or faults: what does not end well was replaced before it began, superseded or out of time."""
    config = replace(config, max_waiting_texts=500, max_wait_s=50.0, session_timeout_s=600.0, max_batch=3)
    world = World(config, fake_limits(max_contexts=300, max_texts=5))
    for operation in operations:
        world.do(operation)
    world.finish(drains=True)
    world.verify(drains=True)
    for handle in [h for t, _ in world.tickets for h in t.texts]:
        if handle._outcome.exception() is None:
            result = handle.result()
            replaced = result.finish_reason == "dropped" and result.extras["reason"] == "replaced"
            hurried = result.finish_reason == "expired" and handle.task.deadline_s is not None
            late = result.finish_reason == "expired" and result.frame_id < 0
            superseded = result.finish_reason == "superseded" and handle.kind in config.superseded_kinds
            assert result.finish_reason in ("stop", "length") or replaced or hurried or late or superseded
        else:
            with pytest.raises(Refused, match="is not held"):
                handle.result()


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(configs, limits, rough, st.sampled_from(["prefill", "act", "decode", "round"]), st.integers(0, 20))
def test_a_dead_device_ends_every_ticket_with_its_cause(config, limits, operations, verb, at):
    world = World(config, limits)
    for operation in [
        *operations[:at],
        ("fault", verb, None),
        *operations[at:],
        ("submit", "left", True, []),
        ("step",),
    ]:
        world.do(operation)
    if world.engine.status == "failed":
        assert all(t.is_done for t, _ in world.tickets)
        assert isinstance(world.engine.fault.__cause__, MemoryError)
        with pytest.raises(Refused, match="MemoryError"):
            world.engine.submit(frame())
    world.finish(drains=False)
    world.verify(drains=False)
