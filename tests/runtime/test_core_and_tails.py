"""One core, many readers: texts that begin inside a context, experts with private tokens, in any order (promise E7)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from runtime.families import FAMILIES
from runtime.harness import KINDS, Text, play, play_out

from oxygen.core.errors import RequestFault
from oxygen.core.inputs import ContextInputs
from oxygen.core.plan import PrefillItem
from oxygen.core.tasks import Sampling

QWEN = FAMILIES["qwen3_vl"]


@pytest.fixture(params=KINDS)
def rig(request):
    return QWEN.rig(**KINDS[request.param])


def prompts(seed: int, shared: int, rest: tuple[int, ...]) -> tuple[ContextInputs, tuple[int, ...], ContextInputs]:
    """A frame, a tail that replaces its words from the `shared`-th on, and the whole prompt that they make."""
    inputs = QWEN.frame(seed, 2, 9)
    first_word = len(inputs.token_ids) - 9
    ids = (*inputs.token_ids[: first_word + shared], *rest)
    return inputs, rest, ContextInputs(inputs.images, ids, len(ids))


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.2, seed=3)], ids=["greedy", "drawn"])
@torch.inference_mode()
def test_texts_that_begin_inside_a_context_equal_their_whole_prompts(rig, sampling):
    """Different beginnings in one row and in neighbouring rows, together with a text on the whole context."""
    texts, expected = [], []
    for row in (0, 1, 3):
        cases = [prompts(row, shared, rest) for shared, rest in ((0, (7,)), (4, (9, 3, 5)), (8, (6, 2)))]
        rig.fill({row: cases[0][0]})
        for inputs, tail, whole in cases:
            at = whole.num_tokens - len(tail)
            texts.append(Text(row, at, len(texts) % 8, 6, tail, sampling))
            expected.append(QWEN.reference(whole).text(6, (), sampling))
            assert at < inputs.num_tokens
    for batch in (slice(0, 8), slice(8, 9)):
        assert play_out(rig.runner, texts[batch], 2) == expected[batch]


@torch.inference_mode()
def test_a_core_with_tails_equals_whole_prefills(rig):
    """Features of an expert with private tokens are those of its whole prompt prefilled in one go."""
    _, tail, whole = prompts(1, 5, (8, 9, 10, 11))
    core = replace(whole, token_ids=whole.token_ids[:-4], num_tokens=whole.num_tokens - 4)
    runner = rig.runner
    runner.prefill([PrefillItem(0, 0, core, 0, (("pi", tail),)), PrefillItem(1, 1, whole, 1, (("pi", ()),))])
    pairs = [runner._prefill.features[row, "pi"] for row in (0, 1)]
    assert pairs[0].token_ids == pairs[1].token_ids == whole.token_ids
    for tap, hidden in pairs[0].hidden.items():
        other = pairs[1].hidden[tap]
        assert (hidden - other).abs().max() <= 1e-5 * other.abs().max()


def test_four_readers_in_any_order_are_bit_equal_and_change_nothing(rig):
    runner, inputs = rig.runner, rig.frame(2)
    contexts = runner.store.contexts

    def content() -> bytes:
        parts = [t[2, :, : inputs.num_tokens] for t in (*contexts.keys, *contexts.values)]
        return b"".join(part.contiguous().numpy().tobytes() for part in parts)

    seen = []
    for order in ((0, 1, 2, 3), (2, 0, 1, 3), (1, 2, 0, 3)):
        rig.fill({2: inputs})
        before = content()
        items, got = rig.acts(2, inputs, 4), {}
        for reader in order:
            if reader < 3:
                (chunk,) = runner.act([items[reader]])
                got[reader] = chunk.tobytes()
            else:
                got[reader] = tuple(play_out(runner, [Text(2, inputs.num_tokens, 1, 7)], 3)[0])
        assert content() == before
        seen.append(got)
        runner.forget([], [1])
    assert seen[0] == seen[1] == seen[2]


def test_texts_of_different_ages_in_one_batch(rig):
    """Each equals itself alone; the control, with rows swapped, does not."""
    inputs = {row: rig.frame(row, 1 + row) for row in range(3)}
    rig.fill(inputs)
    texts = [Text(row, inputs[row].num_tokens, row, 12, (3, 4)) for row in range(3)]
    alone = [play_out(rig.runner, [t.fresh()], 12)[0] for t in texts]
    for age, text in zip((2, 5, 9), texts, strict=True):
        play(rig.runner, [text], age, leave={0: age})
    assert play_out(rig.runner, texts, 3) == alone
    swapped = [t.fresh(context_row=(t.context_row + 1) % 3) for t in texts]
    for text in swapped:
        text.context_len = inputs[text.context_row].num_tokens
    assert all(a != b for a, b in zip(play_out(rig.runner, swapped, 12), alone, strict=True))


def test_what_cannot_be_shared_is_refused(rig):
    inputs = rig.frame(0)
    rig.fill({0: inputs})
    runner = rig.runner
    item = Text(0, inputs.num_tokens, 0, 4, (5,)).item()
    for context_len, pending in ((5, (5,)), (inputs.num_tokens + 1, (5,)), (inputs.num_tokens - 1, ())):
        with pytest.raises(RequestFault, match="may begin"):  # inside a picture, beyond the end, without a prompt
            runner.decode([replace(item, context_len=context_len, pending=pending)], 1, lambda tokens: [False])
    bidirectional = FAMILIES["pi05"].rig()
    other = bidirectional.frame(0)
    bidirectional.fill({0: other})
    with pytest.raises(RequestFault, match="may begin"):
        bidirectional.runner.decode([replace(item, context_len=other.num_tokens - 1)], 1, lambda tokens: [False])


def test_experts_get_what_they_declared_or_are_refused(rig):
    runner, inputs = rig.runner, rig.frame(0)
    with pytest.raises(RequestFault, match="6 query tokens, its prompt has 0"):
        runner.prefill([PrefillItem(3, 0, inputs, 0, (("oft", ()),))])
    with pytest.raises(RequestFault, match="not 'other'"):
        runner.prefill([PrefillItem(3, 0, inputs, 0, (("other", ()),))])
    runner.prefill([PrefillItem(3, 0, inputs, 0, (("pi", ()),))])
    pi, gr00t, _ = rig.acts(0, inputs, 1)
    with pytest.raises(RequestFault, match="not prefilled for expert gr00t"):
        runner.act([gr00t])
    with pytest.raises(RequestFault, match="state"):
        runner.act([replace(pi, state=None)])
    chunk = runner.act([pi])
    rig.fill({1: inputs})
    with pytest.raises(RequestFault, match="not prefilled"):
        runner.act([pi])  # its features were those of an earlier step
    assert np.isfinite(chunk[0]).all()


def test_contexts_without_pictures_and_with_share_a_pass(rig):
    inputs = {row: rig.frame(row, num) for row, num in ((0, 0), (1, 2), (2, 1))}
    rig.fill(inputs)
    together = rig.runner.act(rig.acts_of(inputs))
    alone = []
    for row in inputs:
        rig.fill({row: inputs[row]})
        alone += rig.runner.act(rig.acts(row, inputs[row], row))
    for a, b in zip(together, alone, strict=True):
        assert np.abs(a - b).max() <= 1e-5 * np.abs(b).max()


def test_warm_up_runs_every_expert(rig):
    rig.runner.warm_up()
    inputs = rig.frame(1)
    rig.fill({0: inputs})
    warm = rig.runner.act(rig.acts(0, inputs, 1))
    cold = QWEN.rig()
    cold.fill({0: inputs})
    for a, b in zip(warm, cold.runner.act(cold.acts(0, inputs, 1)), strict=True):
        assert np.abs(a - b).max() <= 1e-5 * np.abs(b).max()
