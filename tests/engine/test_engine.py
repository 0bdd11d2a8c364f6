"""The step: order of work, batching, degradation under load, faults, reset, listeners, figures."""

from __future__ import annotations

import gc
import logging
import weakref
from itertools import pairwise

import numpy as np
import pytest
from fakes import FakeProcessor, FakeRunner, fake_limits, frame

import oxygen
from oxygen.core.config import EngineConfig
from oxygen.core.errors import DeviceFault, Ended, InvalidInput, Refused, RequestFault
from oxygen.core.tasks import ActionTask, TextTask
from oxygen.engine.engine import Engine

LONG = TextTask("narration", max_new_tokens=50, ignore_eos=True)


def verbs_of(engine):
    return [verb for verb, _ in engine.runner.log]


def test_a_step_prefills_acts_delivers_and_then_decodes(make):
    engine = make(budget="fixed:3")
    seen = []
    ticket = engine.submit(frame(), texts=[LONG, TextTask("apart", max_new_tokens=9)])
    engine.runner.on_call = lambda verb, items: seen.append((verb, ticket._chunk(None).done()))
    record = engine.step()
    assert seen == [
        ("prefill", False),
        ("act", False),
        ("prefill", True),  # the context that only text reads
        ("decode", True),
        *[("round", True)] * 3,
    ]
    assert (record.rounds, record.num_tokens, record.live_texts) == (3, 6, 2)


def test_fixed_k_in_lockstep_gives_exactly_k(make):
    engine = make(budget="fixed:4")
    for number in range(10):
        ticket = engine.submit(frame(number=number), texts=TextTask("narration", max_new_tokens=6, ignore_eos=True))
        record = engine.step()
        assert record.rounds == 4
        assert record.num_tokens == (4 if number == 0 else 6)
        assert ticket.actions(0).frame_id == number


def test_one_prefill_serves_actions_and_texts_and_robots_share_a_batch(make):
    engine = make()
    for session in "ab":
        engine.submit(frame(session), texts=[LONG, LONG])
    record = engine.step()
    log = list(engine.runner.log)
    assert [(verb, len(ids)) for verb, ids in log[:4]] == [("prefill", 2), ("act", 2), ("decode", 4), ("round", 4)]
    assert record.counts["frames"] == 2 and record.context_rows == 2


def test_max_batch_bounds_a_step_and_the_longest_waiting_goes_first(make):
    engine = make(max_batch=2)
    tickets = [engine.submit(frame(session)) for session in "abc"]
    newer = engine.submit(frame("a"))  # takes the place of the one it replaces
    engine.step()
    assert [t.is_done for t in (*tickets, newer)] == [True, True, False, True]
    engine.step()
    assert tickets[2].is_done


def test_the_newest_frame_replaces_one_that_waits_visibly(make):
    engine = make()
    old = engine.submit(frame(frame_id=1), texts=LONG)
    new = engine.submit(frame(frame_id=2))
    record = engine.step()
    assert new.actions(0).frame_id == 2
    with pytest.raises(Ended, match="frame 1") as ended:
        old.actions(0)
    assert ended.value.reason == "replaced"
    result = old.text().result(0)
    assert (result.finish_reason, result.extras["reason"], result.text) == ("dropped", "replaced", "")
    assert record.counts["replaced"] == 1
    assert verbs_of(engine).count("prefill") == 1


def test_decode_stops_after_the_round_in_which_a_frame_arrives(make):
    for budget in ("fixed:20", "idle", "rate:0.001"):
        engine = make(budget=budget, costs={"prefill": 0.01, "round": 0.001})
        for _ in range(5):
            engine.submit(frame(), texts=LONG)
            engine.step()  # the estimates of `rate` are known now
        engine.submit(frame(), texts=[LONG])
        rounds = []

        def arrive(verb, items, engine=engine, rounds=rounds):
            rounds.append(verb)
            if rounds.count("round") == 2 and verb == "round":
                engine.submit(frame("other"))

        engine.runner.on_call = arrive
        record = engine.step()
        engine.runner.on_call = lambda verb, items: None
        assert (record.rounds, record.is_cut, record.counts["cut"]) == (2, True, 1)
        assert engine.step().actions[0].session == "other"


def test_text_pauses_while_a_frame_waits_and_is_given_a_round_in_the_end(make):
    engine = make(max_batch=1, max_paused_steps=3)
    engine.submit(frame("a"), texts=LONG)
    engine.submit(frame("b"))
    rounds = []
    for number in range(8):
        record = engine.step()
        rounds.append((record.rounds, record.is_paused))
        engine.submit(frame("ab"[number % 2]))
    assert rounds == [(0, True), (0, True), (0, True), (1, False)] * 2
    assert engine.stats().counts["paused"] == 6


def test_idle_decodes_to_the_end_but_returns_for_every_wish_and_every_slice(make):
    engine = make(budget="idle", costs={"round": 0.01}, text_slice_s=0.1)
    ticket = engine.submit(frame(), texts=LONG)
    assert engine.step().rounds == 10
    engine.runner.on_call = lambda verb, items: ticket.cancel()
    assert engine.step().rounds == 1
    assert engine.step().live_texts == 0


def test_rate_holds_the_frame_rate(make):
    engine = make(budget="rate:10", costs={"prefill": 0.03, "act": 0.02, "round": 0.01})
    engine.submit(frame(), texts=LONG)
    times = []
    for number in range(20):
        times.append(engine.step().total_s)
        engine.submit(frame(number=number), texts=LONG)
    assert max(times[6:]) <= 0.1 + 1e-9
    assert min(times[6:]) > 0.1 - 0.01 - 1e-9
    assert "missed" not in {n for n, c in engine.stats().counts.items() if c}


def test_a_frame_with_actions_finds_a_row_by_eviction_and_then_by_dropping_the_oldest_text(make):
    engine = make(max_contexts=2, max_batch=1, keep_context_s=100.0, max_paused_steps=0)
    engine.submit(frame("a"))
    oldest = engine.submit(frame("b"), texts=LONG)
    engine.step()
    engine.step()
    newer = engine.submit(frame("c"), texts=LONG)
    record = engine.step()  # the idle context of `a` gives way
    assert record.counts["evicted"] == 1 and not oldest.is_done
    assert engine.submit(frame("d")).is_done is False
    record = engine.step()  # nothing is idle: the oldest text goes
    assert record.actions[0].session == "d"
    assert oldest.text().result(0).finish_reason == "dropped"
    assert "newer frame" in oldest.text().result(0).extras["reason"]
    assert not newer.text().is_done


def test_text_never_takes_the_row_of_another_text(make):
    engine = make(max_contexts=1, keep_context_s=0.0)
    first = engine.submit(frame("a"), texts=LONG)
    engine.step()
    second = engine.submit(frame("b"), None, LONG)
    engine.step()
    with pytest.raises(Refused) as refused:
        second.text().result(0)
    assert refused.value.reason == "no_context"
    assert not first.text().is_done


def test_late_questions_leave_the_row_to_the_frame_that_comes_with_them(make):
    engine = make(max_contexts=1)
    engine.submit(frame("a"))
    engine.step()
    question = engine.ask("a", TextTask("apart", max_new_tokens=2))
    ticket = engine.submit(frame("b"))
    engine.step()
    assert ticket.actions(0).session == "b"
    assert not question.is_done  # its context has gone, it waits for the next frame


@pytest.mark.parametrize("verb", ["prefill", "act", "round"])
def test_a_fault_of_one_request_leaves_the_others_alone(make, verb):
    engine = make(budget="fixed:30")
    tickets = [engine.submit(frame(s), texts=TextTask("narration", max_new_tokens=20, ignore_eos=True)) for s in "abc"]
    faults = []

    def fail_once(called, items):
        if called == verb and len(items) > 1 and not faults:
            faults.append(items[1].request_id)
            raise RequestFault(items[1].request_id, "bad luck")

    engine.runner.on_call = fail_once
    record = engine.step()
    engine.step()
    assert record.counts["faults"] == 1
    for ticket in (tickets[0], tickets[2]):
        assert ticket.actions(0).session == ticket.session
        assert len(ticket.text().result(0).token_ids) == 20
    with pytest.raises(RequestFault, match="bad luck"):
        tickets[1].text().result(0)
    if verb == "round":
        tickets[1].actions(0)  # they had left already
    else:
        with pytest.raises(RequestFault, match="bad luck"):
            tickets[1].actions(0)


def test_a_question_on_a_frame_whose_prefill_faults_ends_with_it(make):
    engine = make()
    question = engine.ask("a", TextTask("answer", max_new_tokens=3))
    apart = engine.ask("a", TextTask("apart", max_new_tokens=3))
    engine.submit(frame("a"))
    other = engine.submit(frame("b"), texts=TextTask("narration", max_new_tokens=3, ignore_eos=True))

    def fail_once(verb, items):
        engine.runner.on_call = lambda verb, items: None
        raise RequestFault(items[0].request_id, "bad picture")

    engine.runner.on_call = fail_once
    engine.step()
    with pytest.raises(RequestFault, match="bad picture"):
        question.text().result(0)
    assert apart.text().result(0).finish_reason == "length"  # on a context of its own
    assert len(other.text().result(0).token_ids) == 3
    assert engine.stats().context_rows == 1  # what `b` holds


@pytest.mark.parametrize("where", ["model", "model, in a dimension that the robot has not", "units"])
def test_actions_that_are_not_finite_are_never_delivered(make, where):
    engine = make()
    act, decode = engine.runner.act, engine.processor.decode_actions

    def broken(items):
        chunks = act(items)
        if where != "units":
            chunks[0][2, 1 if where == "model" else 3] = np.nan
        return chunks

    def broken_units(actions, inputs, expert):
        return decode(actions, inputs) * (np.inf if where == "units" and inputs.state[0] else 1.0)

    engine.runner.act, engine.processor.decode_actions = broken, broken_units
    bad, good = engine.submit(frame("a", state=np.ones(3)), texts=LONG), engine.submit(frame("b"))
    engine.step()
    with pytest.raises(RequestFault, match="not finite"):
        bad.actions(0)
    with pytest.raises(RequestFault):
        bad.text().result(0)
    assert good.actions(0).session == "b"


def test_a_dead_device_ends_all_says_why_and_refuses_the_rest(make):
    engine = make()
    done = engine.submit(frame("a"))
    engine.step()
    live, waiting = engine.submit(frame("b"), texts=LONG), engine.ask("c", TextTask("answer"))

    def die(verb, items):
        raise OSError("cable pulled")

    engine.runner.on_call = die
    with pytest.raises(DeviceFault, match="cable pulled"):
        engine.step()
    assert engine.status == "failed" and isinstance(engine.fault.__cause__, OSError)
    assert done.actions(0).session == "a"
    for wait in (lambda: live.actions(0), lambda: live.text().result(0), lambda: waiting.text().result(0)):
        with pytest.raises(DeviceFault, match="cable pulled"):
            wait()
    for late in (lambda: engine.submit(frame()), lambda: engine.ask("a", LONG), lambda: engine.reset("a")):
        with pytest.raises(Refused, match="cable pulled") as refused:
            late()
        assert refused.value.reason == "failed"
    with pytest.raises(DeviceFault):
        engine.step()
    assert engine.stats().fault is engine.fault


def test_a_runner_that_blames_a_stranger_is_a_dead_device(make):
    engine = make()

    def blame(verb, items):
        raise RequestFault(12345, "who?")

    engine.runner.on_call = blame
    ticket = engine.submit(frame())
    with pytest.raises(DeviceFault, match="12345"):
        engine.step()
    with pytest.raises(DeviceFault):
        ticket.actions(0)


def test_cancel_frees_the_rows_within_one_step(make):
    engine = make(budget="fixed:1", keep_context_s=0.0)
    ticket = engine.submit(frame(), texts=[LONG, LONG])
    engine.step()
    ticket.text(0).cancel()
    record = engine.step()
    assert (record.live_texts, record.tail_rows, record.context_rows) == (1, 1, 1)
    result = ticket.text(0).result(0)
    assert (result.finish_reason, len(result.token_ids)) == ("cancelled", 1)
    ticket.cancel()
    record = engine.step()
    assert (record.tail_rows, record.context_rows) == (0, 0)
    ticket.cancel()  # once more is no harm
    engine.step()


def test_cancelled_before_it_began(make):
    engine = make()
    ticket = engine.submit(frame(), texts=LONG)
    ticket.cancel()
    engine.step()
    with pytest.raises(Ended) as ended:
        ticket.actions(0)
    assert ended.value.reason == "cancelled"
    assert verbs_of(engine) == []


def test_after_reset_a_session_is_as_new(make):
    task = ActionTask(seed=1)
    say = TextTask("subtask", max_new_tokens=8)

    def episode(engine, number):
        ticket = engine.submit(frame(number=number), task, say)
        while not ticket.is_done:
            engine.step()
        return ticket.actions(0).actions, ticket.text().result(0).text, ticket.frame_id

    fresh, used = make(), make(budget="fixed:1")
    wanted = episode(fresh, 9)
    old = [used.submit(frame(number=1), texts=LONG)]
    used.step()
    old += [used.submit(frame(number=2)), used.ask("default", LONG)]
    used.reset("default")
    assert all(t.is_done for t in old)
    assert used.stats().context_rows == used.stats().tail_rows == 0
    given = episode(used, 9)
    assert np.array_equal(given[0], wanted[0]) and given[1:] == wanted[1:]


def test_noise_is_the_seeds_and_differs_without_one(make):
    engine = make()

    def chunk(task):
        ticket = engine.submit(frame(), task)
        engine.step()
        return ticket.actions(0).actions

    assert np.array_equal(chunk(ActionTask(seed=3)), chunk(ActionTask(seed=3)))
    assert not np.array_equal(chunk(ActionTask(seed=3)), chunk(ActionTask(seed=4)))
    assert not np.array_equal(chunk(ActionTask()), chunk(ActionTask()))
    noise = np.random.default_rng(3).standard_normal((5, 4), dtype=np.float32)
    assert np.array_equal(chunk(ActionTask(noise=noise)), chunk(ActionTask(seed=3)))
    for bad in (noise[:4], np.full((5, 4), np.nan)):
        with pytest.raises(InvalidInput, match="noise"):
            engine.submit(frame(), ActionTask(noise=bad))


def test_several_experts_of_one_frame(make):
    engine = make()
    ticket = engine.submit(frame(), [ActionTask("arm", seed=1), ActionTask("base", seed=2, num_steps=3)])
    engine.step()
    assert ticket.actions(0, "arm").expert == "arm" and ticket.actions(0, "base").expert == "base"
    with pytest.raises(InvalidInput, match="arm"):
        ticket.actions(0)
    with pytest.raises(InvalidInput, match="one task for each expert"):
        engine.submit(frame(), [ActionTask(), ActionTask()])
    with pytest.raises(InvalidInput, match="neither"):
        engine.submit(frame(), None)


def test_a_prompt_that_does_not_fit_the_context_is_refused(make):
    engine = make(context_len=16)
    engine.submit(frame(prompt="x" * 12))
    with pytest.raises(InvalidInput, match="prompt: expected at most 16"):
        engine.submit(frame(prompt="x" * 13))


def test_frame_ids_are_the_robots_or_counted(make):
    engine = make()
    assert [engine.submit(frame(frame_id=i)).frame_id for i in (None, None, 7, None)] == [0, 1, 7, 8]
    assert engine.submit(frame("other")).frame_id == 0


def test_a_session_is_remembered_while_it_is_idle_and_its_pictures_only_while_they_may_be_asked_about(make):
    engine = make(keep_context_s=1.0, session_timeout_s=10.0)
    first, second = frame(frame_id=None), frame(frame_id=None)
    engine.submit(first)
    engine.step()
    engine.submit(second)
    engine.step()
    sessions = engine._scheduler.ledger.sessions
    assert sessions["default"].newest.observation is second
    gone = weakref.ref(second.images["base"]), weakref.ref(first.images["base"])
    del first, second
    engine.clock.advance(1.0)
    engine.step()
    gc.collect()
    assert sessions["default"].newest is None and [ref() for ref in gone] == [None, None]
    assert engine.submit(frame()).frame_id == 2
    engine.step()
    engine.clock.advance(11.0)
    engine.step()
    assert not sessions


def test_under_a_fixed_budget_text_alone_waits_from_the_end_of_the_last_frame(make):
    engine = make(budget="fixed:1", costs={"prefill": 3.0}, quiet_s=0.25, keep_context_s=0.0)
    engine.submit(frame(), texts=LONG)
    engine.step()
    delay = engine._scheduler.delay
    assert delay(engine.clock(), is_draining=False) == pytest.approx(0.25)
    assert delay(engine.clock(), is_draining=True) == 0
    engine.clock.advance(0.25)
    assert delay(engine.clock(), is_draining=False) == 0


def test_a_listener_that_raises_is_removed_and_harms_nobody(make, caplog):
    engine = make()
    records = []

    def broken(record):
        raise KeyError("listener")

    engine.subscribe(broken)
    stop = engine.subscribe(records.append)
    ticket = engine.submit(frame(), texts=TextTask("narration", max_new_tokens=3, ignore_eos=True))
    with caplog.at_level(logging.ERROR):
        engine.step()
    engine.step()
    assert [r.exc_info[0] for r in caplog.records] == [KeyError]
    stop()
    stop()
    engine.step()
    assert len(records) == 2
    first = records[0]
    assert first.actions == (ticket.actions(0),) and first.results == (ticket.text().result(0),)
    assert "".join(piece for _, _, _, piece in first.pieces) == ticket.text().result(0).text
    assert {"plan", "prefill", "act", "deliver", "decode", "commit", "deliver_text"} <= set(first.seconds)


def test_figures_are_those_of_the_runs_costs(make):
    engine = make(budget="fixed:2", costs={"prefill": 0.4, "act": 0.2, "round": 0.1})
    for number in range(5):
        engine.submit(frame(number=number), texts=LONG)
        record = engine.step()
    stats = engine.stats()
    assert record.total_s == pytest.approx(0.8)
    assert record.management_s == pytest.approx(0.0)
    assert stats.recent["action_ready_s"] == pytest.approx((0.6, 0.6))
    assert stats.recent["decode"] == pytest.approx((0.2, 0.2))
    assert (stats.steps, stats.counts["chunks"], stats.counts["rounds"], stats.counts["tokens"]) == (
        5,
        5,
        10,
        28,
    )  # four rows
    assert (stats.status, stats.budget, stats.current_step_s) == ("ready", "fixed:2", 0.0)


def test_nothing_grows_with_the_number_of_frames(make):
    engine = make(budget="fixed:2", eos_one_in=5, session_timeout_s=10.0, keep_context_s=1.0, max_batch=4)
    sizes = []
    for number in range(600):
        engine.submit(
            frame(f"robot{number % 7 + 10 * (number // 100)}", number), texts=TextTask("narration", deadline_s=5.0)
        )
        engine.clock.advance(0.2)
        engine.step()
        ledger, scheduler = engine._scheduler.ledger, engine._scheduler
        held = (ledger.open, ledger.contexts, ledger.sessions, ledger.queue, ledger.live, scheduler._frames)
        sizes.append(sum(map(len, held)) + len(ledger.ended_texts) + len(scheduler._wishes))
    assert max(sizes[300:]) <= max(sizes[:300])
    assert len(engine._scheduler.ledger.sessions) <= 14


def test_rows_are_reused_only_after_the_device_was_told(make):
    engine = make(max_contexts=1, max_texts=1, keep_context_s=0.0)
    for number in range(5):
        engine.submit(frame(number=number), texts=TextTask("narration", max_new_tokens=2, ignore_eos=True))
        engine.step()  # the fake runner asserts that no row is written over
        assert not engine.runner.contexts and not engine.runner.tails
    forgotten = pairwise([verb for verb, _ in engine.runner.log if verb == "prefill"])
    assert len(list(forgotten)) == 4


def test_the_front_door_exports_the_public_names():
    assert oxygen.Engine is Engine
    assert all(getattr(oxygen, name) is not None for name in oxygen.__all__)
    with pytest.raises(AttributeError, match="engines"):
        _ = oxygen.engines


def test_closing_ends_what_is_left_and_draining_ends_it_well():
    for drain_s, reason in ((0.0, "closed"), (10.0, "length")):
        engine = Engine(FakeRunner(fake_limits()), FakeProcessor(), EngineConfig(budget="fixed:1"))
        ticket = engine.submit(frame(), texts=LONG)
        waiting = engine.ask("nobody", LONG)
        engine.close(drain_s)
        assert ticket.text().result(0).finish_reason == reason
        assert waiting.text().result(0).finish_reason == "closed"
        assert engine.status == "closed" and engine.runner.is_closed
        if drain_s:
            assert ticket.actions(0).frame_id == 0
        else:
            with pytest.raises(Ended) as ended:
                ticket.actions(0)
            assert ended.value.reason == "closed"
        with pytest.raises(Refused, match="closed"):
            engine.submit(frame())
        with pytest.raises(Ended, match="closed"):
            engine.step()
        engine.close()
