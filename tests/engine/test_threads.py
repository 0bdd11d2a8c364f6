"""The engine's own thread: submit, ask, cancel, reset and close from many threads and from event loops."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from fakes import FakeProcessor, FakeRunner, expected_tokens, fake_limits, frame

from oxygen.core.config import EngineConfig
from oxygen.core.errors import DeviceFault, Ended, Refused
from oxygen.core.tasks import TextTask
from oxygen.engine.engine import Engine

WAIT_S = 20.0  # far more than anything here takes
SAY = TextTask("narration", max_new_tokens=24, ignore_eos=True)


class SlowRunner(FakeRunner):
    """Takes a real millisecond per round, so that threads meet in the middle of things."""

    def _enter(self, verb, items):
        if verb == "round":
            time.sleep(0.001)
        super()._enter(verb, items)


@pytest.fixture
def engine():
    engine = Engine(
        SlowRunner(fake_limits(max_contexts=8, max_texts=6), eos_one_in=0),
        FakeProcessor(),
        EngineConfig(budget="idle", debug=True, max_waiting_texts=500, text_slice_s=0.01),
    )
    engine.start()
    yield engine
    engine.close()
    ledger = engine._scheduler.ledger
    ledger.check()
    assert (ledger.context_rows.num_used, ledger.tail_rows.num_used) == (0, 0)
    assert engine.fault is None


def right(engine, session, number, task):
    inputs = engine.processor.encode(frame(session, number), (), (task,))
    return tuple(expected_tokens(inputs.contexts[0], inputs.texts[0].tail_ids, task, 0))


def test_many_robots_at_once_get_their_own_answers(engine):
    def robot(name):
        results = []
        for number in range(8):
            ticket = engine.submit(frame(name, number, frame_id=number), texts=SAY)
            assert ticket.actions(WAIT_S).frame_id == number
            results.append(ticket.text())
            if number % 3 == 0:
                results[-1].cancel()
        for number, handle in enumerate(results):
            result = handle.result(WAIT_S)
            assert "".join(handle) == result.text
            wanted = right(engine, name, number, SAY)
            assert result.finish_reason in ("length", "dropped", *(["cancelled"] if number % 3 == 0 else []))
            assert result.token_ids == wanted[: len(result.token_ids)]
        return name

    names = [f"robot{n}" + "x" * n for n in range(6)]
    with ThreadPoolExecutor(len(names)) as pool:
        assert list(pool.map(robot, names)) == names


def test_pieces_arrive_while_the_text_grows(engine):
    ticket = engine.submit(frame(), texts=TextTask("narration", max_new_tokens=60, ignore_eos=True))
    pieces = iter(ticket.text())
    first = next(pieces)
    rest = list(pieces)
    assert first + "".join(rest) == ticket.text().result(WAIT_S).text
    assert len(rest) > 1  # a slice is shorter than the text
    assert list(ticket.text()) == [first, *rest]  # a late reader has it all


def test_asyncio_tickets(engine):
    async def robot(name):
        ticket = engine.submit(frame(name, 1), texts=[SAY, SAY])
        actions = await asyncio.wait_for(ticket.actions_async(), WAIT_S)
        readers = [asyncio.create_task(collect(handle)) for handle in (*ticket.texts, ticket.texts[0])]
        texts = await asyncio.wait_for(asyncio.gather(*readers), WAIT_S)
        results = [await handle.result_async() for handle in ticket.texts]
        assert texts == [results[0].text, results[1].text, results[0].text]
        return actions.session

    async def collect(handle):
        return "".join([piece async for piece in handle])

    async def main():
        return await asyncio.gather(*[robot(f"r{n}") for n in range(4)])

    assert asyncio.run(main()) == ["r0", "r1", "r2", "r3"]


def test_a_reader_that_gives_up_takes_nothing_from_the_others(engine):
    task = TextTask("narration", max_new_tokens=60, ignore_eos=True)

    async def main():
        ticket = engine.submit(frame(), texts=task)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(ticket.text().result_async(), 0.002)
        reader = asyncio.create_task(anext(aiter(ticket.text())))
        await asyncio.sleep(0)
        reader.cancel()
        return await asyncio.wait_for(ticket.text().result_async(), WAIT_S)

    assert len(asyncio.run(main()).token_ids) == 60


def test_a_reader_whose_loop_is_closed_harms_nobody(engine):
    task = TextTask("narration", max_new_tokens=60, ignore_eos=True)
    ticket = engine.submit(frame(), texts=task)

    async def leave():
        asyncio.get_running_loop().create_task(anext(aiter(ticket.text())))
        await asyncio.sleep(0)

    asyncio.run(leave())
    assert len(ticket.text().result(WAIT_S).token_ids) == 60
    assert engine.submit(frame()).actions(WAIT_S)


def test_waiting_has_a_limit(engine):
    question = engine.ask("nobody", TextTask("answer"))
    with pytest.raises(TimeoutError):
        question.text().result(0.01)


def test_questions_expire_without_any_other_work():
    engine = Engine(FakeRunner(), FakeProcessor(), EngineConfig(max_wait_s=0.05))
    engine.start()
    assert engine.ask("nobody", TextTask("answer")).text().result(WAIT_S).finish_reason == "expired"
    engine.close()


def test_a_question_from_another_thread_joins_what_is_held(engine):
    engine.submit(frame(frame_id=9)).actions(WAIT_S)
    answers = []
    person = threading.Thread(target=lambda: answers.append(engine.ask("default", SAY).text().result(WAIT_S)))
    person.start()
    person.join(WAIT_S)
    assert answers[0].frame_id == 9


def test_reset_returns_once_it_is_so(engine):
    ticket = engine.submit(frame(), texts=[TextTask("narration", max_new_tokens=60, ignore_eos=True)] * 3)
    ticket.actions(WAIT_S)
    engine.reset("default", WAIT_S)
    assert ticket.is_done
    assert engine.submit(frame()).actions(WAIT_S).frame_id == 0


def test_under_a_fixed_budget_text_goes_on_when_no_frame_comes():
    engine = Engine(FakeRunner(eos_one_in=0), FakeProcessor(), EngineConfig(budget="fixed:2", quiet_s=0.02))
    engine.start()
    ticket = engine.submit(frame(), texts=SAY)
    assert len(ticket.text().result(WAIT_S).token_ids) == 24
    assert engine.stats().counts["rounds"] == 24
    engine.close()


def test_ready_only_after_the_warm_up():
    gate = threading.Event()
    engine = Engine(FakeRunner(), FakeProcessor(), warm_up=lambda: gate.wait(WAIT_S))
    engine.start()
    ticket = engine.submit(frame())
    assert engine.status == "warming" and not ticket.is_done
    gate.set()
    ticket.actions(WAIT_S)
    assert engine.status == "ready"
    engine.close()


def test_a_warm_up_that_fails_is_a_dead_device():
    engine = Engine(FakeRunner(), FakeProcessor(), warm_up=lambda: 1 / 0)
    ticket = engine.submit(frame())
    engine.start()
    with pytest.raises(DeviceFault, match="ZeroDivisionError"):
        ticket.actions(WAIT_S)
    assert engine.status == "failed"
    engine.close()


def test_a_device_that_dies_wakes_everybody():
    engine = Engine(SlowRunner(eos_one_in=0), FakeProcessor(), EngineConfig())
    engine.start()
    ticket = engine.submit(frame(), texts=SAY)
    ticket.actions(WAIT_S)

    def die(verb, items):
        raise OSError("gone")

    caught = []

    def reader():
        try:
            for _ in ticket.text():
                engine.runner.on_call = die
        except DeviceFault as fault:
            caught.append(fault)

    threads = [threading.Thread(target=reader) for _ in range(3)]
    for thread in threads:
        thread.start()
    engine.runner.on_call = die
    for thread in threads:
        thread.join(WAIT_S)
    assert len(caught) == 3 and all(fault is engine.fault for fault in caught)
    with pytest.raises(Refused, match="gone"):
        engine.submit(frame())
    engine.close()


def test_close_while_many_submit_leaves_no_ticket_open():
    engine = Engine(SlowRunner(eos_one_in=0), FakeProcessor(), EngineConfig())
    engine.start()
    tickets = []

    def submit(name):
        try:
            while True:
                tickets.append(engine.submit(frame(name), texts=SAY))
        except Refused as refused:
            assert refused.reason == "closed"

    threads = [threading.Thread(target=submit, args=(f"r{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    time.sleep(0.05)
    engine.close(drain_s=0.02)
    for thread in threads:
        thread.join(WAIT_S)
    assert tickets
    for ticket in tickets:
        assert ticket.text().result(WAIT_S).finish_reason in ("length", "dropped", "closed")
        try:
            ticket.actions(WAIT_S)
        except Ended as ended:
            assert ended.reason in ("closed", "replaced")


def test_only_its_own_thread_drives_an_engine(engine):
    with pytest.raises(RuntimeError, match="own thread"):
        engine.step()
