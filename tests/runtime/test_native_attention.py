"""Attention in compiled kernels against plain attention: same signatures, all head sizes, both storage types."""

from __future__ import annotations

import pytest
import torch
from runtime.families import FAMILIES
from runtime.harness import Text, play_out

from oxygen.layers.native import build
from oxygen.layers.torch import native
from oxygen.runtime.torch.attention import ActAttend, Scratch
from oxygen.runtime.torch.decode_attention import DecodeAttend
from oxygen.runtime.torch.native_attention import MOST_TOKENS, NativeAttend, act_attend, decode_attend
from oxygen.runtime.torch.plain import PlainActAttend, PlainDecodeAttend
from oxygen.runtime.torch.runs import LiveText
from oxygen.runtime.torch.store import Store, StoreShape

CPU = torch.device("cpu")
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2}
pytestmark = pytest.mark.skipif(build.kernels() is None, reason=f"compiled kernels are {build.state()}")


@pytest.fixture(autouse=True)
def inference():
    with torch.inference_mode():
        yield


def make_store(kv_heads, head_dim, dtype):
    torch.manual_seed(kv_heads * head_dim)
    store = Store(StoreShape(2, kv_heads, head_dim, 32, 6, 8, 90, 9), dtype, CPU)
    for rows in (store.contexts, store.tails):
        for tensor in (*rows.keys, *rows.values):
            tensor.normal_()
    return store


def twin(store):
    other = make_store(store.shape.kv_heads, store.shape.head_dim, store.dtype)
    for mine, theirs in ((other.contexts, store.contexts), (other.tails, store.tails)):
        for a, b in zip((*mine.keys, *mine.values), (*theirs.keys, *theirs.values), strict=True):
            a.copy_(b)
    return other


def qkv(num_tokens, heads, store):
    """Slices of fused projections, as the model's are: not contiguous."""
    kv, dim = store.shape.kv_heads, store.shape.head_dim
    q = torch.randn(num_tokens, heads + kv, dim).to(store.dtype)[:, :heads]
    return q, *(torch.randn(num_tokens, kv + spare, dim).to(store.dtype)[:, :kv] for spare in (2, 1))


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("head_dim", native.HEAD_DIMS)
@pytest.mark.parametrize(("heads", "kv_heads"), [(8, 1), (6, 2), (3, 3), (20, 1)])
def test_decode(dtype, head_dim, heads, kv_heads):
    store = make_store(kv_heads, head_dim, dtype)
    texts = [LiveText(0, 1, 7, 0), LiveText(2, 90, 0, 3), LiveText(2, 33, 1, 5), LiveText(5, 64, 4, 2)]
    store.poison([1, 3, 4], [2, 3, 5, 6])
    other = twin(store)
    fast, plain = decode_attend(store, texts), PlainDecodeAttend(other, texts)
    assert isinstance(fast, NativeAttend)
    for _ in range(3):
        for layer in range(2):
            inputs = qkv(len(texts), heads, store)
            wanted = plain(layer, *inputs)
            torch.testing.assert_close(fast(layer, *inputs), wanted, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
        fast.advance()
        plain.advance()
    for mine, theirs in zip(store.tails.keys + store.tails.values, other.tails.keys + other.tails.values, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("heads", "kv_heads"), [(8, 1), (6, 2)])
def test_act(dtype, heads, kv_heads):
    store = make_store(kv_heads, 64, dtype)
    rows, lengths = [4, 0, 4], [7, 90, 12]
    fast = act_attend(store, rows, lengths, 5, Scratch(dtype, CPU))
    assert isinstance(fast, NativeAttend)
    for layer in range(2):
        inputs = qkv(15, heads, store)
        wanted = PlainActAttend(store, rows, lengths)(layer, *inputs)
        torch.testing.assert_close(fast(layer, *inputs), wanted, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_a_text_does_not_depend_on_the_others_and_nan_stays_where_it_is(dtype):
    store = make_store(1, 32, dtype)
    texts = [LiveText(i, 80 - i, i, i) for i in range(6)]
    q, k, v = qkv(6, 8, store)
    alone = [decode_attend(store, [t])(0, q[i : i + 1], k[i : i + 1], v[i : i + 1]) for i, t in enumerate(texts)]
    store.contexts.keys[0][2, 0, 40] = float("nan")
    together = decode_attend(store, texts)(0, q, k, v)
    for i, one in enumerate(alone):
        assert torch.equal(together[i], one[0]) if i != 2 else together[i].isnan().all()


def test_scores_far_from_zero_neither_overflow_nor_vanish():
    store = make_store(1, 32, torch.float32)
    q, k, v = qkv(1, 8, store)
    texts = [LiveText(0, 90, 0, 0)]
    for scale in (1e-6, 1e3, 1e8):
        wanted = PlainDecodeAttend(store, texts)(0, q * scale, k, v)
        torch.testing.assert_close(decode_attend(store, texts)(0, q * scale, k, v), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("what", "value"), [("keys", "nan"), ("values", "nan"), ("values", "inf"), ("values", "-inf")])
def test_what_is_not_finite_shows_wherever_it_stands(dtype, what, value):
    """At the first and the last key, in a whole vector of scores and in what is left over; in its own text only."""
    for length, at in ((1, 0), (16, 0), (17, 16), (47, 30), (90, 89)):
        store = make_store(1, 32, dtype)
        q, k, v = qkv(2, 8, store)
        texts = [LiveText(0, length, 0, 0), LiveText(1, length, 1, 0)]
        clean = decode_attend(store, texts)(0, q, k, v)
        getattr(store.contexts, what)[0][1, 0, at] = float(value)
        faulty = decode_attend(store, texts)(0, q, k, v)
        assert torch.equal(faulty[0], clean[0]) and not faulty[1].isfinite().any()


@pytest.mark.parametrize("name", FAMILIES)
def test_the_small_models_cover_both_ways(name):
    """The other tests of the runtime run on these: with one KV head they attend here, with two in the library."""
    assert [FAMILIES[name].model(n).spec.trunk.head_dim in native.HEAD_DIMS for n in (1, 2)] == [True, False]


@pytest.mark.parametrize("name", FAMILIES)
def test_rounds_of_any_company_give_a_text_its_bits(name, monkeypatch):
    """Through the whole trunk, up to the number of rows that the compiled products take."""
    rig = FAMILIES[name].rig(max_texts=native.MOST_ROWS)
    inputs = {row: rig.frame(row, row % 3, 4 + row) for row in range(7)}
    rig.fill(inputs)
    texts = [Text(i % 7, inputs[i % 7].num_tokens, i, 5, (3 + i % 5,)) for i in range(native.MOST_ROWS)]
    seen: list[torch.Tensor] = []
    logits = rig.runner._model.logits
    monkeypatch.setattr(rig.runner._model, "logits", lambda hidden: seen.append(hidden.clone()) or logits(hidden))

    def hidden(company):
        seen.clear()
        play_out(rig.runner, [t.fresh() for t in company], 5)
        return torch.stack(seen)  # [rounds, texts by context row, width]

    for size in (3, native.MOST_ROWS):
        company = sorted(texts[:size], key=lambda t: (t.context_row, t.tail_row))
        together = hidden(company)
        for i, text in enumerate(company[::7]):
            assert torch.equal(together[:, 7 * i], hidden([text])[:, 0])


def test_what_has_no_kernel_goes_through_the_library():
    store = make_store(1, 48, torch.float32)
    assert isinstance(decode_attend(store, [LiveText(0, 10, 0, 0)]), DecodeAttend)
    assert isinstance(act_attend(store, [0], [10], 5, Scratch(torch.float32, CPU)), ActAttend)
    store = make_store(1, 32, torch.bfloat16)
    assert isinstance(act_attend(store, [0], [10], MOST_TOKENS + 1, Scratch(torch.bfloat16, CPU)), ActAttend)
