"""π0.5 computed in two ways: both must agree to float32 rounding (1e-5 of the value's scale)."""

from __future__ import annotations

import pytest
import torch
from models.pi05_cases import (
    CASES,
    Context,
    case_image_embeddings,
    case_prompt,
    decode,
    flow,
    golden_case,
    golden_model,
    half_split_keys,
    prefill,
    prefix,
)
from torch import Tensor

from oxygen.layers.torch.attention import masked_attention
from oxygen.layers.torch.norm import modulated_rms_norm
from oxygen.models.pi05.torch import Pi05


@pytest.fixture(scope="module")
def model():
    with torch.inference_mode():
        yield golden_model()


@pytest.fixture(scope="module")
def plain():
    return golden_model(prepared=False).requires_grad_(False)


def same(ours: Tensor, other: Tensor) -> None:
    assert ours.shape == other.shape
    scale = other.abs().max().item()
    assert (ours - other).abs().max().item() <= 1e-5 * scale


def test_dropped_equals_masked(model):
    """Case b lacks a camera and five prompt tokens. Masked: all 800 slots, noise in the invalid ones."""
    case = golden_case(CASES[1])
    dropped, hidden = prefill(model, prefix(model, case, 0))
    ids = case["prompt"][0]
    generator = torch.Generator().manual_seed(0)
    junk = torch.randn(256, model.spec.trunk.width, generator=generator)
    x = torch.cat((case_image_embeddings(model, case, 0).flatten(0, 1), junk, model.embed_tokens(ids)))
    valid = torch.cat((torch.ones(512), torch.zeros(256), case["prompt_mask"][0])).bool()
    positions = valid.cumsum(0) - 1
    masked = Context()
    mask = (valid[None, :] & valid[:, None]) | ~valid[:, None]
    masked_hidden = model.trunk(x, model.rope(positions), masked.append(mask))
    same(hidden, masked_hidden[valid])
    for a, b in zip(dropped.k + dropped.v, masked.k + masked.v, strict=True):
        same(a, b[valid])


def joint_velocity(model: Pi05, x: Tensor, x_t: Tensor) -> Tensor:
    """Prefix and action tokens side by side through every layer, one attention over both; no cache anywhere."""
    num_prefix, horizon = len(x), model.spec.horizon
    suffix = model.action_in(x_t[0])
    modulation = model.conditions(1).of_step(0)
    rope = model.rope(torch.arange(num_prefix + horizon))
    ropes = rope.take(torch.arange(num_prefix)), rope.take(torch.arange(num_prefix, num_prefix + horizon))
    mask = torch.ones(num_prefix + horizon, num_prefix + horizon, dtype=torch.bool)
    mask[:num_prefix, num_prefix:] = False
    for i, (trunk, expert) in enumerate(zip(model.trunk.layers, model.expert.layers, strict=True)):
        normed = modulated_rms_norm(suffix, modulation.gain[2 * i], modulation.shift[2 * i], expert.floor)
        parts = trunk.projection(trunk.attention_norm(x), ropes[0]), expert.projection(normed, ropes[1])
        attended = masked_attention(*(torch.cat(pair) for pair in zip(*parts, strict=True)), mask).flatten(1)
        x = x + trunk.out(attended[:num_prefix])
        x = x + trunk.mlp(trunk.mlp_norm(x))
        suffix = suffix + expert.out(attended[num_prefix:]) * modulation.gate[2 * i]
        normed = modulated_rms_norm(suffix, modulation.gain[2 * i + 1], modulation.shift[2 * i + 1], expert.floor)
        suffix = suffix + expert.mlp(normed) * modulation.gate[2 * i + 1]
    hidden = modulated_rms_norm(suffix, modulation.gain[-1], modulation.shift[-1], model.expert.floor)
    return model.action_out(hidden)[None]


@pytest.mark.parametrize("name", CASES)
def test_cached_equals_joint(plain, name):
    case = golden_case(name)
    for b in range(len(case["noise"])):
        x, noise = prefix(plain, case, b), case["noise"][b : b + 1]
        context, _ = prefill(plain, x)
        rope = plain.rope(len(context) + torch.arange(plain.spec.horizon))
        same(plain.velocity(noise, plain.conditions(1), 0, rope, context.read), joint_velocity(plain, x, noise))


@pytest.mark.parametrize("name", CASES)
def test_incremental_equals_full_decode(model, name):
    """Token by token on the cache, against one pass with a bidirectional prefix and causal tokens."""
    case = golden_case(name)
    x = prefix(model, case, 0)
    context, hidden = prefill(model, x)
    tokens, logits = decode(model, context, hidden[-1], 12)
    num_prefix, total = len(x), len(x) + 12
    mask = torch.ones(total, total, dtype=torch.bool).tril()
    mask[:num_prefix, :num_prefix] = True
    whole, hidden_all = prefill(model, torch.cat((x, model.embed_tokens(torch.tensor(tokens)))), mask=mask)
    same(logits, model.logits(hidden_all[num_prefix - 1 : total - 1]))
    for a, b in zip(context.k + context.v, whole.k + whole.v, strict=True):
        same(a, b)


@pytest.mark.parametrize("prepared", [True, False])
def test_kept_tokens_equal_the_full_pass(model, plain, prepared):
    model = model if prepared else plain
    x = prefix(model, golden_case(CASES[0]), 0)[::5]
    keep = torch.tensor([len(x) - 1, 3])
    full_context, context = Context(), Context()
    rope = model.rope(torch.arange(len(x)))
    full = model.trunk(x, rope, full_context.append())
    asked = []

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        asked.append(len(q))
        return context.append()(layer, q, k, v)

    same(model.trunk(x, rope, attend, keep), full[keep])
    assert asked == [len(x)] * (model.spec.trunk.depth - 1) + [2]
    for a, b in zip(context.k + context.v, full_context.k + full_context.v, strict=True):
        same(a, b)


def test_two_sequences_in_one_call_equal_two_calls(model):
    """Case d: the tokens of both samples flattened, each seeing its own."""
    case = golden_case(CASES[2])
    xs = [prefix(model, case, b) for b in range(2)]
    lengths = [len(x) for x in xs]
    assert lengths[0] != lengths[1]
    owner = torch.repeat_interleave(torch.arange(2), torch.tensor(lengths))
    positions = torch.cat([torch.arange(n) for n in lengths])
    both = Context()
    hidden = model.trunk(torch.cat(xs), model.rope(positions), both.append(owner[:, None] == owner[None, :]))
    for b, part in enumerate(hidden.split(lengths)):
        same(part, prefill(model, xs[b])[1])


def test_prepared_equals_plain(model, plain):
    case = golden_case(CASES[0])
    images = case_image_embeddings(plain, case, 0)
    same(case_image_embeddings(model, case, 0), images)
    x = torch.cat((images.flatten(0, 1), plain.embed_tokens(case_prompt(case, 0))))
    (prepared_context, prepared_hidden), (context, hidden) = prefill(model, x), prefill(plain, x)
    same(prepared_hidden, hidden)
    same(model.logits(hidden[-1:]), plain.logits(hidden[-1:]))
    for a, b in zip(half_split_keys(model, prepared_context), half_split_keys(plain, context), strict=True):
        same(a, b)
    same(flow(model, prepared_context, case["noise"], 4)[-1], flow(plain, context, case["noise"], 4)[-1])


def test_bfloat16_is_as_far_from_float32_as_the_reference_is():
    """Rounding makes bfloat16 runs differ; ours may be no further from float32 than openpi's with float32 phases."""
    ours, theirs, between = [], [], []
    with torch.inference_mode():
        model = golden_model(torch.bfloat16)
        for name in CASES:
            case = golden_case(name)
            for b in range(len(case["noise"])):
                context, _ = prefill(model, prefix(model, case, b))
                actions = flow(model, context, case["noise"][b : b + 1], 10)[-1][0]
                ours.append(actions - case["actions_10"][b])
                theirs.append(case["bf16.actions_10"][b] - case["actions_10"][b])
                between.append(actions - case["bf16.actions_10"][b])
    rms = [torch.stack(d).square().mean().sqrt().item() for d in (ours, theirs, between)]
    assert torch.stack(ours).abs().max() < 0.066  # openpi's own: 0.033
    assert rms[0] < 1.3 * rms[1]
    assert rms[2] < 2.0 * rms[1]
