"""Training's one joint pass equals the engine's prefill, act and decode on the same weights."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch

from oxygen.core.inputs import ContextInputs
from oxygen.core.plan import ActItem, DecodeItem, PrefillItem
from oxygen.core.tasks import Sampling
from oxygen.models.pi05.torch import Pi05, build
from oxygen.runtime.torch.open import open_runner
from oxygen.training.batches import Batch
from oxygen.training.recipe import SPEC, Recipe, Stage
from oxygen.training.torch.losses import denoise, encode, losses

NUM_PICTURES = 2


def make_batch(rng: np.random.Generator, prefix_lens: list[int], tails: list[tuple[int, int]]) -> Batch:
    """tails: (owner, length)."""
    size = len(prefix_lens)
    prefix = np.zeros((size, max(prefix_lens)), np.int64)
    for row, length in zip(prefix, prefix_lens, strict=True):
        row[:length] = rng.integers(4, SPEC.vocab_size, length)
    longest = max((length for _, length in tails), default=0)
    ids = np.zeros((len(tails), longest), np.int64)
    for row, (_, length) in zip(ids, tails, strict=True):
        row[:length] = rng.integers(4, SPEC.vocab_size, length)
    pictures = rng.integers(0, 256, (size, NUM_PICTURES, 64, 64, 3), dtype=np.uint8)
    return Batch(
        images=pictures.astype(np.float32) / 127.5 - 1.0,
        prefix_ids=prefix,
        prefix_lens=np.array(prefix_lens, np.int64),
        tail_ids=ids,
        tail_targets=ids,
        tail_owner=np.array([owner for owner, _ in tails], np.int64),
        tail_kind=("subtask",) * len(tails),
        chunks=rng.uniform(-1, 1, (size, SPEC.horizon, SPEC.action_dim)).astype(np.float32),
        aux=np.zeros((size, 4), np.float32),
    )


@pytest.fixture(scope="module")
def model() -> Pi05:
    return build(SPEC, seed=1).requires_grad_(False)


def test_training_and_engine_compute_the_same(model: Pi05) -> None:
    rng = np.random.default_rng(0)
    batch = make_batch(rng, [9, 14, 11], [(0, 3), (1, 6), (0, 5)])
    encoded = encode(model, batch)
    noise = rng.standard_normal(batch.chunks.shape).astype(np.float32)
    chunks = denoise(model, encoded, noise, SPEC.num_steps)
    hidden = encoded.hidden[3:].view(3, 6, -1)

    runner = open_runner(copy.deepcopy(model), max_contexts=3, max_texts=3, context_len=80, tail_len=16)
    try:
        pictures = ((batch.images + 1.0) * 127.5).round().astype(np.uint8)
        items = []
        for row, length in enumerate(batch.prefix_lens.tolist()):
            ids = tuple(batch.prefix_ids[row, :length].tolist())
            inputs = ContextInputs(tuple(pictures[row]), ids, NUM_PICTURES * SPEC.tokens_per_image + length)
            items.append(PrefillItem(row, row, inputs, frame_key=row))
        runner.prefill(items)
        acting = [
            ActItem(row, row, row, item.inputs.num_tokens, "action", SPEC.num_steps, noise[row])
            for row, item in enumerate(items)
        ]
        for ours, theirs in zip(chunks, runner.act(acting), strict=True):
            np.testing.assert_allclose(ours, theirs, atol=2e-4)
        for tail, (owner, length) in enumerate([(0, 3), (1, 6), (0, 5)]):
            ids = tuple(batch.tail_ids[tail, :length].tolist())
            drawn: list[int] = []

            def take(tokens, drawn=drawn) -> list[bool]:
                drawn.extend(int(t) for t in tokens)
                return [False]

            context_len = items[owner].inputs.num_tokens
            runner.decode([DecodeItem(owner, tail, owner, context_len, tail, 0, ids, 0, 1, Sampling())], 1, take)
            assert drawn == [int(model.logits(hidden[tail, length - 1][None]).argmax())]
    finally:
        runner.close()


def test_padding_and_company_change_nothing(model: Pi05) -> None:
    rng = np.random.default_rng(2)
    both = make_batch(rng, [7, 15], [(1, 4), (0, 6)])
    alone = Batch(
        images=both.images[:1],
        prefix_ids=both.prefix_ids[:1, :7],
        prefix_lens=both.prefix_lens[:1],
        tail_ids=both.tail_ids[1:],
        tail_targets=both.tail_targets[1:],
        tail_owner=np.zeros(1, np.int64),
        tail_kind=("subtask",),
        chunks=both.chunks[:1],
        aux=both.aux[:1],
    )
    together, single = encode(model, both), encode(model, alone)
    torch.testing.assert_close(together.hidden[0], single.hidden[0], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(together.hidden[2 + 6 :], single.hidden[1:], atol=1e-5, rtol=1e-4)


def test_every_loss_reaches_its_weights() -> None:
    model = build(SPEC, seed=0)
    head = torch.nn.Linear(SPEC.trunk.width, 4)
    batch = make_batch(np.random.default_rng(0), [9, 9], [(0, 5), (1, 5)])
    found = losses(model, head, batch, torch.Generator().manual_seed(0))
    found.total.backward()
    without = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    assert without == [], "these weights learn nothing"
    assert head.weight.grad is not None


def test_a_run_in_pieces_equals_a_run_in_one_go(tmp_path: Path) -> None:
    from training.made_frames import make_frames

    from oxygen.training.batches import Curriculum, Scales
    from oxygen.training.language import Words, train_tokenizer
    from oxygen.training.pipeline import held_out_batch, progress_bars
    from oxygen.training.torch.trainer import Trainer

    recipe = Recipe(batch_size=4, warmup_steps=2, stages=(Stage("only", 4, decays=True),))
    frames = make_frames(12)
    words = Words(train_tokenizer(tmp_path / "tokenizer.json"))
    scales = Scales.of(frames)
    curriculum, held_out = Curriculum(frames, scales, words), held_out_batch(frames, scales, words)
    with progress_bars() as progress:
        whole = Trainer(tmp_path / "whole", recipe, words)
        whole.fit(curriculum, held_out, 4, progress)
        Trainer(tmp_path / "pieces", recipe, words).fit(curriculum, held_out, 2, progress)
        resumed = Trainer(tmp_path / "pieces", recipe, words)
        assert resumed.step == 2
        resumed.fit(curriculum, held_out, 4, progress)
    for (name, a), b in zip(whole.model.named_parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(a, b), name
    for (name, a), b in zip(whole.average.named_parameters(), resumed.average.parameters(), strict=True):
        assert torch.equal(a, b), name
