"""Fast attention against plain attention, same signatures, random shapes; and how rounds are cut into runs."""

from __future__ import annotations

import random

import pytest
import torch

from oxygen.runtime.torch.attention import ActAttend, JointAttend, PrefillAttend, Scratch, TailAttend, TailSegment
from oxygen.runtime.torch.decode_attention import DecodeAttend
from oxygen.runtime.torch.plain import PlainActAttend, PlainDecodeAttend, PlainPrefillAttend, PlainTailAttend
from oxygen.runtime.torch.runs import LiveText, Run, plan_runs
from oxygen.runtime.torch.store import Store, StoreShape

CPU = torch.device("cpu")
HEADS, DIM = 6, 8


def make_store(kv_heads: int, seed: int) -> Store:
    torch.manual_seed(seed)
    store = Store(StoreShape(2, kv_heads, DIM, 4, 12, 12, 300, 9), torch.float32, CPU)
    for rows in (store.contexts, store.tails):
        for tensor in (*rows.keys, *rows.values):
            tensor.normal_()
    return store


def twin(store: Store) -> Store:
    other = make_store(store.shape.kv_heads, 0)
    for mine, theirs in ((other.contexts, store.contexts), (other.tails, store.tails)):
        for a, b in zip((*mine.keys, *mine.values), (*theirs.keys, *theirs.values), strict=True):
            a.copy_(b)
    return other


def qkv(num_queries: int, num_tokens: int, kv_heads: int):
    """Slices of one fused projection, as the model's are: not contiguous."""
    q = torch.randn(num_queries, HEADS + 3, DIM)[:, :HEADS]
    return q, *(torch.randn(num_tokens, kv_heads + 1, DIM)[:, :kv_heads] for _ in "kv")


def compare(fast, plain, store, other, num_tokens, kv_heads, num_kept=None):
    for layer in range(2):
        num_queries = num_kept if layer == 1 and num_kept else num_tokens
        inputs = qkv(num_queries, num_tokens, kv_heads)
        torch.testing.assert_close(fast(layer, *inputs), plain(layer, *inputs), rtol=1e-5, atol=1e-5)
    for mine, theirs in ((store.contexts, other.contexts), (store.tails, other.tails)):
        for a, b in zip((*mine.keys, *mine.values), (*theirs.keys, *theirs.values), strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("kv_heads", [1, 2, 6])
def test_prefill(kv_heads):
    store = make_store(kv_heads, 1)
    other = twin(store)
    rows, lengths = [4, 0, 11], [7, 290, 1]
    fast, plain = (
        PrefillAttend(store, rows, lengths, Scratch(torch.float32, CPU)),
        PlainPrefillAttend(other, rows, lengths),
    )
    compare(fast, plain, store, other, sum(lengths), kv_heads, num_kept=3)


@pytest.mark.parametrize("kv_heads", [1, 2, 6])
def test_act(kv_heads):
    store = make_store(kv_heads, 2)
    rows, lengths = [4, 0, 4], [7, 150, 12]
    fast, plain = ActAttend(store, rows, lengths, Scratch(torch.float32, CPU)), PlainActAttend(store, rows, lengths)
    compare(fast, plain, store, store, 15, kv_heads)


@pytest.mark.parametrize("kv_heads", [1, 2, 6])
def test_tails(kv_heads):
    store = make_store(kv_heads, 3)
    other = twin(store)
    segments = [TailSegment(3, 40, 2, 0, 5), TailSegment(3, 40, 7, 4, 2), TailSegment(8, 260, 0, 1, 8)]
    fast, plain = TailAttend(store, segments, Scratch(torch.float32, CPU)), PlainTailAttend(other, segments)
    compare(fast, plain, store, other, 15, kv_heads, num_kept=3)


def random_texts(rng: random.Random) -> list[LiveText]:
    lens = {row: rng.choice((5, 60, 200, 200, 200)) for row in range(12)}
    tails = rng.sample(range(12), rng.randint(1, 12))
    rows = [rng.randrange(12) for _ in tails]
    texts = [LiveText(r, lens[r], t, rng.randint(0, 4)) for r, t in zip(rows, tails, strict=True)]
    return sorted(texts, key=lambda t: t.context_row)


@pytest.mark.parametrize("kv_heads", [1, 2, 6])
def test_decode(kv_heads):
    rng = random.Random(kv_heads)
    for seed in range(25):
        store = make_store(kv_heads, seed)
        texts = random_texts(rng)
        free = set(range(12)) - {t.context_row for t in texts}
        store.poison(sorted(free), sorted(set(range(12)) - {t.tail_row for t in texts}))
        other = twin(store)
        fast, plain = DecodeAttend(store, texts), PlainDecodeAttend(other, texts)
        for _ in range(4):
            for layer in range(2):
                inputs = qkv(len(texts), len(texts), kv_heads)
                torch.testing.assert_close(fast(layer, *inputs), plain(layer, *inputs), rtol=1e-5, atol=1e-5)
            fast.advance()
            plain.advance()


@pytest.mark.parametrize("kv_heads", [1, 2])
@pytest.mark.parametrize("uneven", [0, 1])
def test_decode_where_all_orders_agree(kv_heads, uneven):
    store = make_store(kv_heads, 7)
    texts = [LiveText(2 + i, 200 - uneven * i, 5 + i, 1 + uneven * (i % 3)) for i in range(6)]
    other = twin(store)
    fast, plain = DecodeAttend(store, texts), PlainDecodeAttend(other, texts)
    for _ in range(3):
        compare(fast, plain, store, other, 6, kv_heads)
        fast.advance()
        plain.advance()


@pytest.mark.parametrize("kv_heads", [1, 2, 6])
def test_decode_of_several_texts_of_one_context(kv_heads):
    """One row, tails in the order of the texts, each text reading as much of the row as it likes."""
    store = make_store(kv_heads, 4)
    texts = [LiveText(3, length, i, 2 + i % 2) for i, length in enumerate((40, 17, 40, 33))]
    other = twin(store)
    fast, plain = DecodeAttend(store, texts), PlainDecodeAttend(other, texts)
    for layer in range(2):
        inputs = qkv(len(texts), len(texts), kv_heads)
        torch.testing.assert_close(fast(layer, *inputs), plain(layer, *inputs), rtol=1e-5, atol=1e-5)


def test_joint():
    store = make_store(2, 5)
    other = twin(store)
    texts = [LiveText(1, 30, 3, 0), LiveText(2, 31, 4, 2)]
    segments = [TailSegment(3, 40, 2, 0, 5), TailSegment(1, 30, 7, 0, 2)]
    fast = JointAttend(DecodeAttend(store, texts), 2, TailAttend(store, segments, Scratch(torch.float32, CPU)))
    plain = JointAttend(PlainDecodeAttend(other, texts), 2, PlainTailAttend(other, segments))
    compare(fast, plain, store, other, 9, 2, num_kept=4)


def runs_of(*texts: tuple[int, int]) -> list[Run]:
    return plan_runs([LiveText(row, length, i, 0) for i, (row, length) in enumerate(texts)])


def test_neighbours_share_a_run():
    (run,) = runs_of((3, 550), (4, 550), (5, 540))
    assert (run.start, run.stop, run.cells, run.context_len) == (3, 6, 1, 550)
    assert run.cell_text == run.text_cell == (0, 1, 2) and run.context_lens == (550, 550, 540)


def test_texts_of_one_context_are_cells_of_one_row():
    (run,) = runs_of((3, 550), (3, 550), (4, 550))
    assert (run.cells, run.text_cell, run.cell_text) == (2, (0, 1, 2), (0, 1, 2, 0))


def test_a_small_hole_is_read_over_and_a_wide_one_is_not():
    assert [(r.start, r.stop) for r in runs_of((0, 550), (2, 550))] == [(0, 3)]
    assert [(r.start, r.stop) for r in runs_of((0, 550), (9, 550))] == [(0, 1), (9, 10)]


def test_lengths_far_apart_part():
    runs = runs_of(*[(row, 60) for row in range(8)], *[(row, 900) for row in range(8, 12)])
    assert [(r.start, r.stop) for r in runs] == [(0, 8), (8, 12)]


def test_every_text_is_in_exactly_one_run():
    rng = random.Random(1)
    for _ in range(200):
        texts = random_texts(rng)
        runs = plan_runs(texts)
        assert [r.first for r in runs] == [0, *(r.last for r in runs[:-1])] and runs[-1].last == len(texts)
        for run in runs:
            for text, cell in zip(texts[run.first : run.last], run.text_cell, strict=True):
                assert run.start + cell // run.cells == text.context_row
                assert run.context_lens[cell] == text.context_len <= run.context_len
