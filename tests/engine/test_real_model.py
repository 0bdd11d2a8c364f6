"""The promises E1, E2, E5 and E8 through the engine, on a small model of every family, freed rows poisoned by NaN."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oxygen.checkpoint.shipped import resolve
from oxygen.core.config import EngineConfig
from oxygen.core.errors import Ended, InvalidInput, RequestFault
from oxygen.core.tasks import ActionTask, Observation, Sampling, TextTask
from oxygen.engine.engine import Engine
from oxygen.models.pi05.opening import read_pi05
from oxygen.models.qwen3_vl.spec import PRESETS
from oxygen.models.qwen3_vl.torch import build
from oxygen.models.qwen3_vl.untrained import untrained_qwen3_vl
from oxygen.processing.chat_processor import ChatProcessor
from oxygen.runtime.torch.open import open_runner

KINDS = ("subtask", "narration", "memory", "answer")
FAMILIES = ("pi05", "qwen3_vl")


def pi05_parts():
    """The small trained model, and its processor."""
    folder = resolve("oxygen-tiny")
    return folder, read_pi05(folder).processor()


def qwen_parts():
    """Random weights, made lively, with three heads; pictures stay small. Attention heads have a compiled kernel."""
    spec = PRESETS["qwen3vl-tiny"]
    spec = replace(spec, trunk=replace(spec.trunk, head_dim=32, rope_sections=(8, 4, 4)))
    changes, processor = untrained_qwen3_vl(spec, "libero")
    model = build(replace(spec, **changes), seed=0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.startswith("trunk") and name.endswith(("out.weight", "down.weight")):
                parameter.mul_(4.0)
    return model, ChatProcessor(replace(processor.config, min_pixels=1024), processor.tokenizer)


@cache
def parts(family, role="company", dtype="float32"):
    """A runner of its own for each role: rows belong to one engine at a time."""
    source, processor = pi05_parts() if family == "pi05" else qwen_parts()
    runner = open_runner(
        source,
        dtype=dtype,
        max_contexts=5,
        max_texts=5,
        tail_len=96,
        eos_ids=processor.tokenizer.eos_ids,
        forbidden_ids=processor.forbidden_ids,
        poison_freed=True,
    )
    runner.close = lambda: None  # engines come and go on it
    return runner, processor


def engine_of(family, role="company", dtype="float32", **options):
    runner, processor = parts(family, role, dtype)
    return Engine(runner, processor, EngineConfig(**({"debug": True, "max_batch": 1, "keep_context_s": 0.0} | options)))


def observation(family, number, session):
    random = np.random.default_rng(number)
    robot = parts(family)[1].robot
    images = {camera.name: random.integers(0, 256, (64, 64, 3), dtype=np.uint8) for camera in robot.cameras}
    return Observation(images, random.uniform(-0.5, 0.5, robot.state_dim), "open the drawer", session)


def task_of(kind, seed, length):
    question = "is the drawer open?" if kind == "answer" else None
    sampling = Sampling(temperature=0.8, top_k=20, seed=seed) if seed else Sampling()
    return TextTask(kind, question=question, max_new_tokens=length, sampling=sampling, ignore_eos=seed == 2)


def chunks_of(ticket, family):
    """Of every expert of the family, as they were delivered."""
    return [ticket.actions(0, expert.name).actions for expert in parts(family)[0].limits.experts]


def all_actions(seed):
    return ActionTask("all", seed=seed)


@cache
def alone(family, number, task=None, dtype="float32"):
    """The chunks of a frame without any text; or one text of it, decoded in one go and alone."""
    engine = engine_of(family, "alone", dtype, budget="idle", text_slice_s=1e9)
    ticket = engine.submit(observation(family, number, "alone"), all_actions(number), () if task is None else task)
    engine.step()
    result = chunks_of(ticket, family) if task is None else ticket.text().result(0).token_ids
    engine.close()
    return result


tasks = st.builds(task_of, st.sampled_from(KINDS), st.integers(0, 2), st.integers(1, 24))
frames = st.tuples(st.integers(0, 3), st.sampled_from(["left", "right"]), st.lists(tasks, max_size=3), st.booleans())


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(frames, min_size=2, max_size=8), st.sampled_from(["fixed:1", "fixed:3", "idle"]))
def test_actions_and_texts_do_not_depend_on_the_company_they_keep(family, schedule, budget):
    engine = engine_of(family, budget=budget)
    given_out = []
    for number, session, wanted, is_cancelled in schedule:
        ticket = engine.submit(observation(family, number, session), all_actions(number), wanted)
        engine.step()
        for chunk, quiet in zip(chunks_of(ticket, family), alone(family, number), strict=True):
            assert np.array_equal(chunk, quiet), "text has changed the actions"
        if is_cancelled and wanted:
            ticket.text(0).cancel()
        given_out += [(number, handle) for handle in ticket.texts]
    for _ in range(200):
        if all(handle.is_done for _, handle in given_out):
            break
        engine.step()
    for number, handle in given_out:
        result = handle.result(0)
        wanted = alone(family, number, handle.task)
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
    engine = engine_of("pi05", dtype="bfloat16", budget=budget)
    for seed, kind in enumerate(KINDS):
        task = task_of(kind, seed % 3, 20)
        ticket = engine.submit(observation("pi05", 0, "left"), ActionTask(seed=0), task)
        engine.step()
        for number in (0, 1, 2, 3) * 8:
            if not ticket.is_done:
                frame = engine.submit(observation("pi05", number, "right"), ActionTask(seed=number))
                engine.step()
                assert np.array_equal(frame.actions(0).actions, alone("pi05", number, None, "bfloat16")[0])
        assert np.array_equal(ticket.actions(0).actions, alone("pi05", 0, None, "bfloat16")[0])
        assert ticket.text().result(0).token_ids == alone("pi05", 0, task, "bfloat16")
    with pytest.raises(InvalidInput, match="state"):
        engine.submit(replace(observation("pi05", 0, "left"), state=np.full(4, np.nan)))
    ticket = engine.submit(observation("pi05", 0, "left"), ActionTask(noise=np.full((10, 4), 3.4e38, np.float32)))
    engine.step()
    with pytest.raises(RequestFault, match="not finite"):
        ticket.actions(0)
    engine.step()
    assert (engine.status, engine.stats().context_rows, engine.stats().tail_rows) == ("ready", 0, 0)
    engine.close()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_late_question_gets_the_answer_that_the_frame_would_have_given(family):
    task = task_of("answer", 0, 12)
    engine = engine_of(family, keep_context_s=100.0)
    engine.submit(observation(family, 2, "left"), all_actions(2), task_of("narration", 2, 24))
    engine.step()
    ticket = engine.ask("left", task)
    while not ticket.is_done:
        engine.step()
    assert ticket.text().result(0).token_ids == alone(family, 2, task)
    assert engine.stats().counts["joined"] == 1
    engine.close()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_fault_of_one_request_is_its_own(family):
    """A chunk that fails ends its request; those that left before it stay delivered; the neighbour has all its own."""
    engine = engine_of(family, max_batch=3)
    bad, good = (
        engine.submit(observation(family, n, f"robot{n}"), all_actions(n), task_of("narration", 2, 8)) for n in (0, 1)
    )
    act, last = engine.runner.act, engine.runner.limits.experts[-1].name

    def broken(items):
        chunks = act(items)
        if items[0].expert == last:
            chunks[0][0, 0] = np.nan
        return chunks

    engine.runner.act = broken
    try:
        engine.step()
    finally:
        del engine.runner.act
    with pytest.raises(RequestFault, match="not finite"):
        bad.actions(0, last)
    for expert, chunk in zip(engine.runner.limits.experts[:-1], alone(family, 0), strict=False):
        np.testing.assert_allclose(bad.actions(0, expert.name).actions, chunk, rtol=1e-4, atol=1e-5)
    with pytest.raises(RequestFault, match="not finite"):
        bad.text().result(0)
    for chunk, quiet in zip(chunks_of(good, family), alone(family, 1), strict=True):
        np.testing.assert_allclose(chunk, quiet, rtol=1e-4, atol=1e-5)
    for _ in range(20):
        engine.step()
    assert good.text().result(0).token_ids == alone(family, 1, task_of("narration", 2, 8))
    assert (engine.stats().context_rows, engine.stats().tail_rows) == (0, 0)
    engine.close()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_close_in_the_middle_ends_everything(family):
    """Chunks still to come and texts under way end with a reason, and no row is held (E8)."""
    engine = engine_of(family, budget="fixed:1")
    texts = [task_of("narration", 2, 20), task_of("answer", 0, 20)]
    begun = engine.submit(observation(family, 0, "left"), all_actions(0), texts)
    engine.step()
    waiting = engine.submit(observation(family, 1, "right"), all_actions(1), texts)
    engine.close()
    assert chunks_of(begun, family) and begun.is_done and waiting.is_done
    assert [handle.result(0).finish_reason for handle in begun.texts] == ["closed"] * 2
    for expert in engine.runner.limits.experts:
        with pytest.raises(Ended, match="clos"):
            waiting.actions(0, expert.name)
    ledger = engine._scheduler.ledger
    ledger.check()
    assert (ledger.context_rows.num_used, ledger.tail_rows.num_used) == (0, 0)
