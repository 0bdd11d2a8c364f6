"""Building blocks against their formulas, and their quick forms against their plain ones."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from oxygen.layers.torch.attention import batched_attention, full_attention, masked_attention
from oxygen.layers.torch.linear import Linear, PackedLinear, can_pack
from oxygen.layers.torch.mlp import GatedMlp, Mlp
from oxygen.layers.torch.norm import RMSNorm, modulated_rms_norm, norm_floor
from oxygen.layers.torch.projections import QkvProjection
from oxygen.layers.torch.rope import apply_rope, apply_rope_to_neighbours, neighbour_order, rope_phases

DTYPES = {torch.float32: 2e-6, torch.bfloat16: 2e-2}


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def close(ours: torch.Tensor, other: torch.Tensor, tolerance: float) -> None:
    assert ours.shape == other.shape
    assert (ours.double() - other.double()).abs().max() <= tolerance * max(1.0, other.double().abs().max().item())


def set_weights(module: torch.nn.Module) -> None:
    for i, parameter in enumerate(module.parameters()):
        scale = parameter.shape[-1] ** -0.5 if parameter.dim() > 1 else 1.0
        parameter.data.copy_(randn(*parameter.shape, seed=i) * scale)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 2, 8, 30, 100])
def test_packed_linear_equals_plain(dtype, rows):
    linear = Linear(96, 160, bias=True, dtype=dtype).requires_grad_(False)
    set_weights(linear)
    x, residual = randn(rows, 96, seed=7, dtype=dtype), randn(rows, 160, seed=8, dtype=dtype)
    plain = linear(x), linear.gelu(x), linear.add(x, residual)
    packable = can_pack(linear.weight)
    linear.pack()
    assert (linear.weight is None) == packable
    for ours, other in zip((linear(x), linear.gelu(x), linear.add(x, residual)), plain, strict=True):
        close(ours, other, DTYPES[dtype])
    assert linear.packed is None or "weight" not in linear.state_dict()


def test_packed_linear_takes_strided_rows():
    weight = randn(32, 48)
    x = randn(5, 96, seed=1)[:, ::2]
    close(PackedLinear(weight)(x), x @ weight.T, 2e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_feed_forward(dtype):
    x = randn(9, 64, seed=5, dtype=dtype)
    gated = GatedMlp(64, 128, dtype=dtype).requires_grad_(False)
    set_weights(gated)
    gate, up = gated.gate_up.weight.double().chunk(2)
    expected = (F.gelu(x.double() @ gate.T, approximate="tanh") * (x.double() @ up.T)) @ gated.down.weight.double().T
    close(gated(x), expected, DTYPES[dtype])
    gated.pack()
    close(gated(x), expected, DTYPES[dtype])
    close(gated.add(x, x), expected + x.double(), DTYPES[dtype])
    mlp = Mlp(64, 128, dtype=dtype).requires_grad_(False)
    set_weights(mlp)
    hidden = F.gelu(x.double() @ mlp.up.weight.double().T + mlp.up.bias.double(), approximate="tanh")
    close(mlp(x), hidden @ mlp.down.weight.double().T + mlp.down.bias.double(), DTYPES[dtype])


@pytest.mark.parametrize("scale", [1.0, 1e-3, 0.0])
def test_rms_norm_is_its_formula(scale):
    """Small inputs show whether eps (1e-6) is where it belongs."""
    norm = RMSNorm(64, 1e-6).requires_grad_(False)
    set_weights(norm)
    x = randn(5, 64, seed=2) * scale
    unit = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-6).sqrt()
    close(norm(x), unit * (1 + norm.weight.double()), 1e-6)
    norm.prepare()
    close(norm(x), unit * (1 + norm.weight.double()), 1e-6)
    gain, shift = randn(64, seed=3), randn(64, seed=4)
    modulated = modulated_rms_norm(x, gain * 8, shift, norm_floor(64, 1e-6))
    close(modulated, unit * gain.double() + shift.double(), 1e-6)


def test_norm_keeps_the_type_and_float32_statistics():
    """300² · 64 overflows nothing in float32, and a bfloat16 sum of squares would be off by percents."""
    norm = RMSNorm(4096, 1e-6)
    norm.weight.data.zero_()
    x = torch.full((1, 4096), 300.0, dtype=torch.bfloat16)
    assert norm(x).dtype == torch.bfloat16
    assert torch.equal(norm(x), torch.ones_like(x))


@pytest.mark.parametrize("head_dim", [16, 256])
def test_rope_is_its_formula(head_dim):
    positions = torch.tensor([0, 1, 17, 500, 967])
    x = randn(5, 3, head_dim)
    half = head_dim // 2
    angles = positions.numpy()[:, None] / 10_000.0 ** (2 * np.arange(half) / head_dim)
    cos, sin = (torch.from_numpy(f(angles))[:, None] for f in (np.cos, np.sin))
    a, b = x.double().split(half, dim=-1)
    expected = torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
    rope = rope_phases(positions, head_dim, 10_000.0)
    close(apply_rope(x, rope), expected, 5e-5)  # float32 phases of 967 radians
    order = neighbour_order(head_dim)
    close(apply_rope_to_neighbours(x[..., order], rope), expected[..., order], 5e-5)
    assert apply_rope(x.bfloat16(), rope).dtype == torch.bfloat16
    taken = apply_rope(x[[4, 1]], rope.take(torch.tensor([4, 1])))
    assert torch.equal(taken, apply_rope(x, rope)[[4, 1]])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("split", [False, True])
def test_projection(dtype, split):
    projection = QkvProjection(48, 4, 2, 16, dtype=dtype).requires_grad_(False)
    set_weights(projection)
    x, keep = randn(7, 48, seed=3, dtype=dtype), torch.tensor([6, 2])
    rope = rope_phases(torch.arange(7) + 100, 16, 10_000.0)
    q, k, v = projection(x, rope)
    assert (q.shape, k.shape, v.shape) == ((7, 4, 16), (7, 2, 16), (7, 2, 16))
    kept_q, all_k, all_v = projection.of_kept(x, rope, keep)
    for ours, other in ((kept_q, q[keep]), (all_k, k), (all_v, v)):
        close(ours, other, DTYPES[dtype])
    projection.prepare(split=split)
    projection.prepare(split=split)  # once more changes nothing
    order = neighbour_order(16)
    expected = q[..., order], k[..., order], v
    for ours, other in zip(projection(x, rope), expected, strict=True):
        close(ours, other, DTYPES[dtype])
    if split:
        for ours, other in zip(projection.of_kept(x, rope, keep), (expected[0][keep], *expected[1:]), strict=True):
            close(ours, other, DTYPES[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "kv_heads"), [(8, 1), (4, 2), (3, 3)])
@pytest.mark.parametrize(("queries", "keys"), [(1, 9), (10, 40), (700, 900)])
def test_attention_forms_agree(dtype, heads, kv_heads, queries, keys):
    """The written-out form, the quick form on views into storage, and the library's own in float64."""
    q = randn(queries, heads + 2, 32, dtype=dtype)[:, 1:-1]
    store = randn(2, 2, keys + 5, kv_heads, 32, seed=1, dtype=dtype)
    k, v = store[0, 1, :keys], store[1, 0, :keys]
    shaped = (t.double().transpose(0, 1)[None] for t in (q, k, v))
    expected = F.scaled_dot_product_attention(*shaped, enable_gqa=True)[0].transpose(0, 1)
    close(masked_attention(q, k, v), expected, DTYPES[dtype])
    close(full_attention(q, k, v), expected, DTYPES[dtype])


def test_masked_attention_hides_and_batches():
    q, k, v = randn(2, 3, 4, 8), randn(2, 6, 2, 8, seed=1), randn(2, 6, 2, 8, seed=2)
    mask = torch.ones(2, 3, 6, dtype=torch.bool).tril(1)
    mask[1] = mask[1].flip(-1)
    out = masked_attention(q, k, v, mask)
    for b in range(2):
        for i in range(3):
            seen = mask[b, i]
            alone = masked_attention(q[b, i : i + 1], k[b, seen], v[b, seen])
            close(out[b, i : i + 1], alone, 1e-6)
    weights = torch.softmax(torch.einsum("hd,md->hm", q[0, 2, :2], k[0, mask[0, 2], 0]) / math.sqrt(8), -1)
    close(out[0, 2, :2], weights @ v[0, mask[0, 2], 0], 1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_batched_attention(dtype):
    q, k, v = (randn(2, 16, 3, 24, seed=i, dtype=dtype).transpose(1, 2) for i in range(3))
    expected = F.scaled_dot_product_attention(q.double(), k.double(), v.double())
    close(batched_attention(q, k, v), expected, DTYPES[dtype])
