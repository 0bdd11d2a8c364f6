"""The promises E1, E2 and E5 through the engine, on the small trained model, with freed rows poisoned by NaN."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oxygen.checkpoint.shipped import resolve
from oxygen.core.config import EngineConfig
from oxygen.core.errors import InvalidInput, RequestFault
from oxygen.core.tasks import ActionTask, Observation, Sampling, TextTask
from oxygen.engine.engine import Engine
from oxygen.models.pi05.opening import read_pi05
from oxygen.runtime.torch.open import open_runner

KINDS = ("subtask", "narration", "memory", "answer")


@cache
def parts(role="company", dtype="float32"):
    """A runner of its own for each role: rows belong to one engine at a time."""
    folder = resolve("oxygen-tiny")
    processor = read_pi05(folder).processor()
    runner = open_runner(
        folder,
        dtype=dtype,
        max_contexts=5,
        max_texts=5,
        tail_len=64,
        eos_ids=processor.tokenizer.eos_ids,
        forbidden_ids=processor.forbidden_ids,
        poison_freed=True,
    )
    runner.close = lambda: None  # engines come and go on it
    return runner, processor


def engine_of(role="company", dtype="float32", **options):
    runner, processor = parts(role, dtype)
    return Engine(runner, processor, EngineConfig(**({"debug": True, "max_batch": 1, "keep_context_s": 0.0} | options)))


def observation(number, session):
    random = np.random.default_rng(number)
    cameras = parts()[1].describe()["cameras"]
    images = {name: random.integers(0, 256, (64, 64, 3), dtype=np.uint8) for name in cameras}
    return Observation(images, random.uniform(-0.5, 0.5, 4), "open the drawer", session)


def task_of(kind, seed, length):
    question = "is the drawer open?" if kind == "answer" else None
    sampling = Sampling(temperature=0.8, top_k=20, seed=seed) if seed else Sampling()
    return TextTask(kind, question=question, max_new_tokens=length, sampling=sampling, ignore_eos=seed == 2)


@cache
def alone(number, task=None, dtype="float32"):
    """The chunk of a frame without any text; or one text of it, decoded in one go and alone."""
    engine = engine_of("alone", dtype, budget="idle", text_slice_s=1e9)
    ticket = engine.submit(observation(number, "alone"), ActionTask(seed=number), () if task is None else task)
    engine.step()
    result = ticket.actions(0).actions if task is None else ticket.text().result(0).token_ids
    engine.close()
    return result


tasks = st.builds(task_of, st.sampled_from(KINDS), st.integers(0, 2), st.integers(1, 24))
frames = st.tuples(st.integers(0, 3), st.sampled_from(["left", "right"]), st.lists(tasks, max_size=3), st.booleans())


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(frames, min_size=2, max_size=8), st.sampled_from(["fixed:1", "fixed:3", "idle"]))
def test_actions_and_texts_do_not_depend_on_the_company_they_keep(schedule, budget):
    engine = engine_of(budget=budget)
    given_out = []
    for number, session, wanted, is_cancelled in schedule:
        ticket = engine.submit(observation(number, session), ActionTask(seed=number), wanted)
        engine.step()
        assert np.array_equal(ticket.actions(0).actions, alone(number)), "text has changed the actions"
        if is_cancelled and wanted:
            ticket.text(0).cancel()
        given_out += [(number, handle) for handle in ticket.texts]
    for _ in range(200):
        if all(handle.is_done for _, handle in given_out):
            break
        engine.step()
    for number, handle in given_out:
        result = handle.result(0)
        wanted = alone(number, handle.task)
        if result.finish_reason in ("stop", "length"):
            assert result.token_ids == wanted
        else:  # cancelled, or dropped for a newer frame: as far as it came
            assert result.finish_reason in ("cancelled", "dropped")
            assert result.token_ids == wanted[: len(result.token_ids)]
    engine.step()
    assert (engine.stats().context_rows, engine.stats().tail_rows) == (0, 0)
    engine.close()


@pytest.mark.parametrize("budget", ["fixed:1", "fixed:3"])
def test_in_bfloat16_text_changes_no_actions_and_frames_change_no_text(budget):
    """One text at a time, so that each product has the rows that it has alone: E3 is promised in float32 only."""
    engine = engine_of("company", "bfloat16", budget=budget)
    for seed, kind in enumerate(KINDS):
        task = task_of(kind, seed % 3, 20)
        ticket = engine.submit(observation(0, "left"), ActionTask(seed=0), task)
        engine.step()
        for number in (0, 1, 2, 3) * 8:
            if not ticket.is_done:
                frame = engine.submit(observation(number, "right"), ActionTask(seed=number))
                engine.step()
                assert np.array_equal(frame.actions(0).actions, alone(number, None, "bfloat16"))
        assert np.array_equal(ticket.actions(0).actions, alone(0, None, "bfloat16"))
        assert ticket.text().result(0).token_ids == alone(0, task, "bfloat16")
    with pytest.raises(InvalidInput, match="state"):
        engine.submit(replace(observation(0, "left"), state=np.full(4, np.nan)))
    ticket = engine.submit(observation(0, "left"), ActionTask(noise=np.full((10, 4), 3.4e38, np.float32)))
    engine.step()
    with pytest.raises(RequestFault, match="not finite"):
        ticket.actions(0)
    engine.step()
    assert (engine.status, engine.stats().context_rows, engine.stats().tail_rows) == ("ready", 0, 0)
    engine.close()


def test_a_late_question_gets_the_answer_that_the_frame_would_have_given():
    task = task_of("answer", 0, 12)
    engine = engine_of(keep_context_s=100.0)
    engine.submit(observation(2, "left"), texts=task_of("narration", 2, 24))
    engine.step()
    ticket = engine.ask("left", task)
    while not ticket.is_done:
        engine.step()
    assert ticket.text().result(0).token_ids == alone(2, task)
    assert engine.stats().counts["joined"] == 1
    engine.close()


def test_a_fault_of_one_request_is_its_own():
    engine = engine_of(max_batch=3)
    bad, good = (engine.submit(observation(n, f"robot{n}"), ActionTask(seed=n)) for n in (0, 1))
    act = engine.runner.act

    def broken(items):
        chunks = act(items)
        chunks[0][0, 0] = np.nan
        return chunks

    engine.runner.act = broken
    try:
        engine.step()
    finally:
        del engine.runner.act
    with pytest.raises(Exception, match="not finite"):
        bad.actions(0)
    np.testing.assert_allclose(good.actions(0).actions, alone(1), rtol=1e-5, atol=1e-6)
    engine.close()
