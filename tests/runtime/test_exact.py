"""The runner against recomputation of whole sequences without any cache (promise E4, and cached against joint)."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from runtime.families import FAMILIES
from runtime.harness import KINDS, Text, play_out

from oxygen.core.tasks import Sampling

CASES = [(1, 2, 9), (2, 3, 5), (3, 1, 14), (4, 0, 6)]  # seed, images, tokens: one, two, three or no cameras
SETTINGS = [(family, kind, heads) for family in FAMILIES for kind in KINDS for heads in (1, 2)]


@pytest.fixture(params=SETTINGS, ids=lambda p: f"{p[0]}-{p[1]}-{p[2]}kv")
def rig(request):
    family, kind, heads = request.param
    return FAMILIES[family].rig(heads, **KINDS[kind])


@cache
def reference(family, heads, case):
    return FAMILIES[family].reference(FAMILIES[family].frame(*case), heads)


def near(ours, theirs, tolerance: float = 1e-5) -> None:
    ours, theirs = torch.as_tensor(ours), torch.as_tensor(theirs)
    assert ours.shape == theirs.shape
    scale = theirs.abs().max().item()
    assert (ours - theirs).abs().max().item() <= tolerance * scale


def place(rig):
    """Every case in a row of its own; cameras that are missing were dropped, the reference masks them."""
    rows = {row: case for row, case in zip((5, 0, 3, 2), CASES, strict=True)}
    frames = {row: rig.frame(*case) for row, case in rows.items()}
    rig.fill(frames)
    return [(row, frames[row], reference(rig.family.name, rig.num_kv_heads, case)) for row, case in rows.items()]


def gram(k):
    """Products of all keys of a head: a prepared model may order the elements of q and k within a head as it likes."""
    return k @ k.transpose(1, 2)


@torch.inference_mode()
def test_contexts(rig):
    contexts = rig.runner.store.contexts
    for row, inputs, ref in place(rig):
        hidden, layers = ref.context()
        near(rig.runner.store.last_hidden[row], hidden)
        for layer, (k, v) in enumerate(layers):
            near(gram(contexts.keys[layer][row, :, : inputs.num_tokens]), gram(k.transpose(0, 1)))
            near(contexts.values[layer][row, :, : inputs.num_tokens].transpose(0, 1), v)


@torch.inference_mode()
def test_actions_of_several_robots_and_step_counts(rig):
    placed = place(rig)
    items = [item for row, inputs, _ in placed for item in rig.acts(row, inputs, row, 1 + row % 3)]
    refs = {row: ref for row, _, ref in placed}
    for item, chunk in zip(items, rig.runner.act(items), strict=True):
        assert chunk.dtype == np.float32
        near(chunk, refs[item.context_row].chunk(item))


@torch.inference_mode()
def test_two_chunks_of_one_context(rig):
    row, inputs, ref = place(rig)[0]
    items = [*rig.acts(row, inputs, 7), *rig.acts(row, inputs, 8)]
    for item, chunk in zip(items, rig.runner.act(items), strict=True):
        near(chunk, ref.chunk(item))


@torch.inference_mode()
def test_texts(rig):
    """Texts with and without prompt tails, greedy and sampled, several on one context, tail rows out of order."""
    placed = place(rig)
    samplings = [Sampling(), Sampling(1.3, seed=5), Sampling(1.0, top_k=7, seed=6), Sampling(1.5, top_p=0.6, seed=7)]
    texts: list[Text] = []
    expected: list[list[int]] = []
    for i, tail_row in enumerate((6, 1, 7, 0, 3, 2)):
        row, inputs, ref = placed[i % 3]
        prompt = ((), (17, 4, 90), (33,))[i % 3]
        text = Text(row, inputs.num_tokens, tail_row, 6 + i, prompt, samplings[i % 4])
        texts.append(text)
        expected.append(ref.text(text.wanted, prompt, text.sampling))
    assert play_out(rig.runner, texts, rounds=4) == expected
    assert len({tuple(e) for e in expected}) == len(expected)
    assert any(len(set(e)) > 2 for e in expected)
