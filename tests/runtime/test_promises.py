"""Promises E1 to E3 and E5 of the design on small models of every family, freed rows poisoned."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from runtime.families import FAMILIES
from runtime.harness import KINDS, Text, play, play_out

from oxygen.core.errors import RequestFault
from oxygen.core.tasks import Sampling

DRAWN = Sampling(1.2, top_k=40, top_p=0.95, seed=11)


@pytest.fixture(params=[(family, kind) for family in FAMILIES for kind in KINDS], ids="-".join)
def rig(request):
    family, kind = request.param
    return FAMILIES[family].rig(**KINDS[kind])


@pytest.fixture(scope="module", params=[(f, k) for f in FAMILIES for k in ("eager", "static-lookahead")], ids="-".join)
def shared_rig(request):
    family, kind = request.param
    return FAMILIES[family].rig(**KINDS[kind])


def context_bytes(runner, row: int, length: int) -> bytes:
    contexts = runner.store.contexts
    parts = [t[row, :, :length] for t in (*contexts.keys, *contexts.values)]
    return b"".join(p.contiguous().numpy().tobytes() for p in [*parts, runner.store.last_hidden[row]])


def test_actions_are_bit_equal_with_and_without_text(rig):
    runner = rig.runner
    inputs = {row: rig.frame(row) for row in (0, 1, 2)}
    items = rig.acts_of(inputs)
    rig.fill(inputs)
    alone = runner.act(items)
    # Texts go on in contexts of earlier frames while frame after frame is prefilled and acted upon in the first rows.
    earlier = {row: rig.frame(row) for row in (3, 4, 5)}
    rig.fill(earlier)
    texts = [Text(3 + row % 3, earlier[3 + row % 3].num_tokens, row, 12, sampling=DRAWN) for row in range(6)]
    for _ in range(4):
        play(runner, texts, 3)
        rig.fill(inputs)
        for a, b in zip(alone, runner.act(items), strict=True):
            assert np.array_equal(a, b)


@pytest.mark.parametrize("sampling", [Sampling(), DRAWN], ids=["greedy", "drawn"])
def test_any_number_of_rounds_gives_the_same_text(rig, sampling):
    runner = rig.runner
    inputs = {row: rig.frame(row) for row in (0, 1, 2)}
    results = []
    for rounds in (1, 2, 3, 5, 20):
        rig.fill(inputs)
        texts = [Text(row, inputs[row].num_tokens, row + 1, 7 + row, (8, 3)[: row % 3], sampling) for row in range(3)]
        results.append(play_out(runner, texts, rounds))
        runner.forget([0, 1, 2], [1, 2, 3])
    assert all(r == results[0] for r in results)


def test_a_batch_equals_batches_of_one(rig):
    runner = rig.runner
    inputs = {row: rig.frame(row, 1 + row % 3, 4 + row) for row in range(5)}
    rig.fill(inputs)
    texts = [
        Text(i % 5, inputs[i % 5].num_tokens, i, 4 + i, (5,) * (i % 3), (Sampling(), DRAWN)[i % 2]) for i in range(8)
    ]
    chunks = iter(runner.act(rig.acts_of(inputs)))
    together = play_out(runner, [t.fresh() for t in texts], 4)
    for row in inputs:
        rig.fill({row: inputs[row]})
        for item in rig.acts(row, inputs[row], row):
            (alone,) = runner.act([item])
            assert np.abs(alone - next(chunks)).max() <= 1e-5 * np.abs(alone).max()
    assert [play_out(runner, [t.fresh()], 4)[0] for t in texts] == together


@pytest.mark.parametrize("name", FAMILIES)
@torch.inference_mode()
def test_logits_of_a_batch_equal_those_of_one(monkeypatch, name):
    rig = FAMILIES[name].rig()
    runner = rig.runner
    inputs = {row: rig.frame(row, 1 + row % 3, 4 + row) for row in range(5)}
    rig.fill(inputs)
    seen: list[torch.Tensor] = []
    head = runner._model.logits
    monkeypatch.setattr(runner._model, "logits", lambda hidden: seen.append(head(hidden)) or seen[-1].clone())
    texts = [Text(row, inputs[row].num_tokens, row, 5) for row in range(5)]
    play_out(runner, texts, 5)
    together, seen[:] = torch.stack(seen), []
    for row in range(5):
        play_out(runner, [texts[row].fresh()], 5)
    alone = torch.cat(seen).unflatten(0, (5, 5)).transpose(0, 1)
    assert (together - alone).abs().max() <= 1e-5 * alone.abs().max()


def test_rows_and_their_reuse_do_not_matter(rig):
    runner = rig.runner
    inputs = [rig.frame(seed, 1 + seed % 3, 4 + seed) for seed in range(3)]
    results = []
    for rows, tails in (((0, 1, 2), (0, 1, 2)), ((6, 2, 4), (7, 0, 3)), ((1, 0, 3), (5, 6, 2)), ((4, 5, 0), (0, 4, 1))):
        rig.fill(dict(zip(rows, inputs, strict=True)))
        texts = [
            Text(row, one.num_tokens, tail, 9, (6, 2), DRAWN)
            for row, tail, one in zip(rows, tails, inputs, strict=True)
        ]
        chunks = runner.act([i for row, one in zip(rows, inputs, strict=True) for i in rig.acts(row, one, 1)])
        got = play_out(runner, texts, 2)
        results.append((got, chunks))
        runner.forget(rows, tails)
    for got, chunks in results[1:]:
        assert got == results[0][0]
        for a, b in zip(chunks, results[0][1], strict=True):
            assert np.abs(a - b).max() <= 1e-5 * np.abs(b).max()


def test_readers_leave_a_context_as_it_is(rig):
    runner = rig.runner
    inputs = rig.frame(3)
    rig.fill({2: inputs})
    before = context_bytes(runner, 2, inputs.num_tokens)
    texts = [Text(2, inputs.num_tokens, tail, 6, (4,) * tail) for tail in range(4)]
    runner.act([*rig.acts(2, inputs, 1), *rig.acts(2, inputs, 2)])
    play_out(runner, texts, 2)
    assert context_bytes(runner, 2, inputs.num_tokens) == before


@pytest.mark.parametrize("name", FAMILIES)
def test_swapped_rows_differ(name):
    """The control: the comparisons above would notice a wrong row."""
    rig = FAMILIES[name].rig()
    runner = rig.runner
    inputs = {row: rig.frame(row) for row in (0, 1)}
    rig.fill(inputs)
    chunks = [runner.act(rig.acts(row, inputs[row], 0)) for row in (0, 1)]
    right = play_out(runner, [Text(row, inputs[row].num_tokens, row, 10) for row in (0, 1)], 10)
    swapped = play_out(runner, [Text(1 - row, inputs[row].num_tokens, row, 10) for row in (0, 1)], 10)
    assert right[0] != swapped[0] and right[1] != swapped[1]
    for a, b in zip(*chunks, strict=True):
        assert np.abs(a - b).max() > 1e-3 * np.abs(a).max()


@pytest.mark.parametrize("name", FAMILIES)
def test_poison_shows_a_reader_of_a_freed_row(name):
    """The control of the poison: reading a freed row must be a fault, so the tests above would have seen it."""
    rig = FAMILIES[name].rig()
    runner = rig.runner
    inputs = rig.frame(1)
    rig.fill({1: inputs})
    runner.forget([1], [])
    for item in rig.acts(1, inputs, 0):
        with pytest.raises(RequestFault, match=r"not finite|not prefilled"):
            runner.act([item])
    with pytest.raises(RequestFault, match="not finite"):
        play_out(runner, [Text(1, inputs.num_tokens, 0, 3)], 3)


def test_texts_that_leave_early_do_not_disturb_the_others(rig):
    runner = rig.runner
    inputs = {row: rig.frame(row) for row in range(4)}
    rig.fill(inputs)
    texts = [Text(row, inputs[row].num_tokens, row, 12, sampling=DRAWN) for row in range(4)]
    whole = play_out(runner, [t.fresh() for t in texts], 12)
    cut = [t.fresh() for t in texts]
    play(runner, cut, 12, leave={1: 2, 3: 5})
    assert [t.got for t in cut] == [whole[0], whole[1][:2], whole[2], whole[3][:5]]


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_random_batches_equal_texts_alone(shared_rig, data):
    """Any rows, lengths, prompts, step sizes, with free poisoned rows between."""
    rig, runner = shared_rig, shared_rig.runner
    rows = data.draw(st.lists(st.integers(0, 6), min_size=1, max_size=5, unique=True))
    inputs = {row: rig.frame(row, data.draw(st.integers(0, 2)), data.draw(st.integers(1, 20))) for row in rows}
    tails = data.draw(st.lists(st.integers(0, 7), min_size=1, max_size=8, unique=True))
    rig.fill(inputs)
    texts = []
    for tail in tails:
        row = data.draw(st.sampled_from(rows))
        prompt = tuple(data.draw(st.lists(st.integers(2, 200), max_size=4)))
        sampling = data.draw(st.sampled_from([Sampling(), DRAWN, Sampling(0.9, seed=tail)]))
        texts.append(Text(row, inputs[row].num_tokens, tail, data.draw(st.integers(1, 9)), prompt, sampling))
    together = play_out(runner, [t.fresh() for t in texts], data.draw(st.integers(1, 5)))
    spare = next(row for row in range(8) if row not in tails or row == tails[-1])
    alone = [play_out(runner, [t.fresh(tail_row=spare)], 9)[0] for t in texts]
    runner.forget(rows, [*tails, spare])
    assert together == alone
