"""What no frame, task or setting may do: harm the engine. Bad values are refused by the name of their field."""

from __future__ import annotations

import math
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
from fakes import FakeProcessor, FakeRunner, fake_limits, frame

from oxygen.core.config import EngineConfig
from oxygen.core.errors import DeviceFault, InvalidInput, Refused
from oxygen.core.tasks import ActionTask, Sampling, TextTask
from oxygen.engine.engine import Engine

NOT_WHOLE = [2.5, "3", None, True, math.nan, math.inf, [1]]
NO_NUMBER = ["1", None, math.nan, [1.0], 1j]
SAY = TextTask("narration", max_new_tokens=3)

CONSTRUCTED = [
    *(("num_steps", lambda v: ActionTask(num_steps=v), v) for v in [0, 1001, *NOT_WHOLE] if v is not None),
    *(("seed", lambda v: ActionTask(seed=v), v) for v in [-1, *NOT_WHOLE] if v is not None),
    *(("seed", lambda v: Sampling(seed=v), v) for v in [-1, 2**63, *NOT_WHOLE]),
    *(("top_k", lambda v: Sampling(top_k=v), v) for v in [-1, 2**31, 10**30, *NOT_WHOLE]),
    *(("top_p", lambda v: Sampling(top_p=v), v) for v in [0, 1.5, *NO_NUMBER]),
    *(("temperature", lambda v: Sampling(temperature=v), v) for v in [-1, 101, *NO_NUMBER]),
    *(("max_new_tokens", lambda v: TextTask("narration", max_new_tokens=v), v) for v in [0, 3.0, *NOT_WHOLE]),
    *(("priority", lambda v: TextTask("narration", priority=v), v) for v in NOT_WHOLE),
    *(("deadline_s", lambda v: TextTask("narration", deadline_s=v), v) for v in [0, -1, *NO_NUMBER] if v is not None),
    *(("stop", lambda v: TextTask("narration", stop=v), v) for v in ["ab", None, 5, (1,), (b"a",), ("",)]),
    *(
        (name, lambda v, name=name: EngineConfig(**{name: v}), v)
        for names, odd in (
            (("max_batch", "max_waiting_texts", "max_paused_steps"), [-1, 2**40, *NOT_WHOLE]),
            (
                ("keep_context_s", "max_wait_s", "text_slice_s", "quiet_s", "session_timeout_s"),
                [-1, True, 10**400, math.inf, np.zeros(2), *NO_NUMBER],
            ),
            (("debug",), [None, 1, "yes"]),
            (("superseded_kinds",), ["narration", b"x", None, 5, [1], {"narration": 1}]),
        )
        for name in names
        for v in odd
    ),
    ("max_batch", lambda v: EngineConfig(max_batch=v), 0),
    *(("budget", lambda v: EngineConfig(budget=v), v) for v in ["fixed:" + "9" * 400, None, 5, b"idle", "rate:nan"]),
]


@pytest.mark.parametrize(
    ("field", "construct", "value"), CONSTRUCTED, ids=[f"{c[0]}-{c[2]!r:.12}" for c in CONSTRUCTED]
)
def test_settings_are_refused_by_name(field, construct, value):
    with pytest.raises(InvalidInput) as caught:
        construct(value)
    assert caught.value.field == field
    assert len(str(caught.value)) < 300


SUBMITTED = [
    *(("session", dict(session=v)) for v in (None, 5, [], b"x", math.nan)),
    *(("frame_id", dict(frame_id=v)) for v in ("a", 1.5, -1, 2**64, math.nan, True, [])),
    *(("captured_at", dict(captured_at=v)) for v in ("a", math.nan, math.inf, 10**400, [])),
]


@pytest.mark.parametrize(("field", "changes"), SUBMITTED, ids=repr)
def test_a_frame_is_refused_by_field(make, field, changes):
    engine = make()
    with pytest.raises(InvalidInput) as caught:
        engine.submit(replace(frame(), **changes), texts=SAY)
    assert caught.value.field == field
    assert engine.stats().context_rows == engine.step().context_rows == 0


@pytest.mark.parametrize(
    ("field", "wanted"),
    [
        ("actions", dict(actions=True)),
        ("actions", dict(actions=["x"])),
        ("actions", dict(actions="action")),
        ("actions", dict(actions=SAY)),
        ("texts", dict(texts="narration")),
        ("texts", dict(texts=["narration"])),
        ("texts", dict(texts=ActionTask())),
        ("expert", dict(actions=ActionTask(expert=[]))),
        ("kind", dict(texts=TextTask([]))),
        ("sampling", dict(texts=TextTask("narration", sampling=None))),
        ("adapter", dict(texts=TextTask("narration", adapter="another"))),
        *(("noise", dict(actions=ActionTask(noise=v))) for v in ("x", [[1], [1, 2]], np.zeros((5, 4), complex), 1.0)),
        ("noise", dict(actions=ActionTask(noise=np.full((5, 4), 1e300)))),
    ],
    ids=repr,
)
def test_tasks_are_refused_by_field(make, field, wanted):
    engine = make()
    with pytest.raises(InvalidInput) as caught:
        engine.submit(frame(), **wanted)
    assert caught.value.field == field
    engine.step()
    assert engine.status == "ready"


def test_what_is_no_observation_is_refused(make):
    for wrong in (None, {"images": {}}, 5):
        with pytest.raises(InvalidInput, match="observation"):
            make().submit(wrong)


@pytest.mark.parametrize(
    ("field", "asked"),
    [
        ("session", dict(session=[])),
        ("session", dict(session=None)),
        ("task", dict(task="narration")),
        ("adapter", dict(task=TextTask("narration", adapter="another"))),
        *(("frame_id", dict(frame_id=v)) for v in ("a", 1.5, [])),
        *(("max_age_s", dict(max_age_s=v)) for v in ("a", -1, math.nan, [])),
    ],
    ids=repr,
)
def test_a_question_is_refused_by_field(make, field, asked):
    engine = make()
    engine.submit(frame("robot"))
    engine.step()
    with pytest.raises(InvalidInput) as caught:
        engine.ask(**({"session": "robot", "task": SAY} | asked))
    assert caught.value.field == field
    engine.step()
    assert engine.status == "ready"


@pytest.mark.parametrize("budget", ["rate:1e-300", "rate:5e-324", "rate:1e-11", "rate:1e308", "fixed:1000000000"])
def test_extreme_budgets_harm_nothing(make, budget):
    engine = make(budget=budget, costs={"act": 0.01, "round": 1e-9})
    for _ in range(8):
        ticket = engine.submit(frame(), texts=TextTask("narration", max_new_tokens=9, ignore_eos=True))
        engine.step()
        assert ticket.actions(0)
    assert engine.status == "ready"


@pytest.mark.parametrize(
    "settings", [{"keep_context_s": 1e12}, {"budget": "rate:1e-12"}, {"max_wait_s": 1e12}], ids=repr
)
def test_far_appointments_do_not_end_the_thread(settings):
    engine = Engine(FakeRunner(fake_limits(), eos_one_in=0), FakeProcessor(), EngineConfig(**settings))
    engine.start()
    engine.submit(frame("a"), texts=TextTask("narration", deadline_s=1e300)).actions(20)
    engine.ask("b", TextTask("narration", deadline_s=10**400))
    time.sleep(0.05)
    assert (engine.status, engine.fault) == ("ready", None)
    assert engine.submit(frame("a")).actions(20)
    engine.close()


@pytest.mark.parametrize("config", [5, "idle", {}, Engine], ids=repr)
def test_what_is_no_config_is_refused_before_anything_is_read(config):
    for attempt in (
        lambda: Engine(FakeRunner(), FakeProcessor(), config),
        lambda: Engine.from_pretrained(5, config=config),
    ):
        with pytest.raises(InvalidInput, match="config"):
            attempt()


@pytest.mark.parametrize("drain_s", [-1, None, "1", math.inf, math.nan], ids=repr)
def test_a_drain_has_an_end(make, drain_s):
    with pytest.raises(InvalidInput, match="drain_s"):
        make().close(drain_s)


class Stubborn(FakeRunner):
    """Counts how often it is closed, and cannot be."""

    num_closed = 0

    def close(self):
        self.num_closed += 1
        raise OSError("the driver hangs")


def broken(*_):
    raise OSError("the bus is gone")


@pytest.mark.parametrize("is_threaded", [False, True])
@pytest.mark.parametrize("when", ["idle", "at work", "draining", "warming"])
def test_the_runner_is_closed_once_whatever_breaks(when, is_threaded):
    runner = Stubborn(fake_limits(), eos_one_in=0)
    engine = Engine(runner, FakeProcessor(), warm_up=broken if when == "warming" else None)
    ticket = None if when == "warming" else engine.submit(frame(), texts=SAY)
    if when in ("at work", "draining"):
        runner.on_call = broken
    if is_threaded:
        engine.start()
    elif when == "at work":
        with pytest.raises(DeviceFault, match="the bus"):
            engine.step()
    for drain_s in (5.0 if when == "draining" else 0.0, 0.0):
        engine.close(drain_s)
    assert runner.num_closed == 1 and engine.status == "failed"
    assert ticket is None or ticket.is_done
    if not is_threaded or when in ("draining", "warming"):  # else the close may come before the step
        assert ("the driver" if when == "idle" else "the bus") in str(engine.fault)


def test_refusals_by_a_closed_engine_do_not_pile_up(make):
    engine = make()
    engine.close()
    for _ in range(50):
        with pytest.raises(Refused, match="closed") as caught:
            engine.submit(frame())
    depth, traceback = 0, caught.value.__traceback__
    while traceback is not None:
        depth, traceback = depth + 1, traceback.tb_next
    assert depth < 10


def test_a_listener_that_waits_for_its_own_step_is_refused():
    engine = Engine(FakeRunner(fake_limits(), eos_one_in=0), FakeProcessor(), EngineConfig())
    engine.start()
    caught, called = [], threading.Event()

    def listener(record):
        try:
            engine.reset("robot", timeout=5)
        except Exception as error:
            caught.append(error)
        called.set()

    engine.subscribe(listener)
    engine.submit(frame("robot"))
    assert called.wait(20)
    engine.close()
    assert isinstance(caught[0], RuntimeError)
