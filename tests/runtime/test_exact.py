"""The runner against recomputation of whole sequences without any cache (promise E4, and cached against joint)."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from runtime.harness import KINDS, Text, act_item, fill, frame, make_runner, model_of, noise_of, play_out, reference

from oxygen.core.tasks import Sampling

CASES = [(1, 2, 9), (2, 3, 5), (3, 1, 14), (4, 0, 6)]  # seed, images, tokens: one, two, three or no cameras


@pytest.fixture(params=[(kind, heads) for kind in KINDS for heads in (1, 2)], ids=lambda p: f"{p[0]}-{p[1]}kv")
def setting(request):
    kind, heads = request.param
    return make_runner(model_of(heads), **KINDS[kind]), heads


def near(ours, theirs, tolerance: float = 1e-5) -> None:
    ours, theirs = torch.as_tensor(ours), torch.as_tensor(theirs)
    assert ours.shape == theirs.shape
    scale = theirs.abs().max().item()
    assert (ours - theirs).abs().max().item() <= tolerance * scale


def place(runner, heads):
    """Every case in a row of its own; cameras that are missing were dropped, the reference masks them."""
    rows = {row: case for row, case in zip((5, 0, 3, 2), CASES, strict=True)}
    frames = {row: frame(*case, heads) for row, case in rows.items()}
    fill(runner, frames)
    return [(row, frames[row], reference(*case, heads)) for row, case in rows.items()]


def gram(k):
    """Products of all keys of a head: a prepared model may order the elements of q and k within a head as it likes."""
    return k @ k.transpose(1, 2)


@torch.inference_mode()
def test_contexts(setting):
    runner, heads = setting
    for row, inputs, ref in place(runner, heads):
        hidden, layers = ref.run()
        near(runner.store.last_hidden[row], hidden)
        for layer, (k, v) in enumerate(layers):
            near(
                gram(runner.store.contexts.keys[layer][row, :, : inputs.num_tokens]), gram(k[ref.valid].transpose(0, 1))
            )
            near(runner.store.contexts.values[layer][row, :, : inputs.num_tokens].transpose(0, 1), v[ref.valid])


@torch.inference_mode()
def test_actions_of_several_robots_and_step_counts(setting):
    runner, heads = setting
    placed = place(runner, heads)
    items = [act_item(row, inputs, noise_of(row), 1 + row % 3) for row, inputs, _ in placed]
    for item, chunk, (row, _, ref) in zip(items, runner.act(items), placed, strict=True):
        assert chunk.dtype == np.float32
        near(chunk, ref.actions(noise_of(row), item.num_steps))


@torch.inference_mode()
def test_two_chunks_of_one_context(setting):
    runner, heads = setting
    row, inputs, ref = place(runner, heads)[0]
    chunks = runner.act([act_item(row, inputs, noise_of(7)), act_item(row, inputs, noise_of(8))])
    near(chunks[0], ref.actions(noise_of(7), 4))
    near(chunks[1], ref.actions(noise_of(8), 4))


@torch.inference_mode()
def test_texts(setting):
    """Texts with and without prompt tails, greedy and sampled, several on one context, tail rows out of order."""
    runner, heads = setting
    placed = place(runner, heads)
    samplings = [Sampling(), Sampling(1.3, seed=5), Sampling(1.0, top_k=7, seed=6), Sampling(1.5, top_p=0.6, seed=7)]
    texts: list[Text] = []
    expected: list[list[int]] = []
    for i, tail_row in enumerate((6, 1, 7, 0, 3, 2)):
        row, inputs, ref = placed[i % 3]
        prompt = ((), (17, 4, 90), (33,))[i % 3]
        text = Text(row, inputs.num_tokens, tail_row, 6 + i, prompt, samplings[i % 4])
        texts.append(text)
        expected.append(ref.text(text.wanted, prompt, text.sampling))
    assert play_out(runner, texts, rounds=4) == expected
    assert len({tuple(e) for e in expected}) == len(expected)
    assert any(len(set(e)) > 2 for e in expected)
