"""The plain modules train: every parameter gets a gradient, and the gradient is right."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from models.pi05_cases import Context, prefill
from torch import Tensor

from oxygen.models.pi05.spec import PRESETS
from oxygen.models.pi05.torch import Pi05, build

TINY = PRESETS["pi05-tiny"]
SPECS = {"conv": TINY, "patch": replace(TINY, vision=replace(TINY.vision, stem="patch", patch_size=32))}


def loss(model: Pi05) -> Tensor:
    """Next words and flow of one small frame, by the methods that inference uses."""
    generator = torch.Generator().manual_seed(3)
    spec = model.spec
    pixels = torch.rand(2, 3, 64, 64, generator=generator) * 2 - 1
    ids = torch.randint(3, spec.vocab_size, (6,), generator=generator)
    x = torch.cat((model.embed_images(pixels).flatten(0, 1), model.embed_tokens(ids)))
    context, hidden = prefill(model, x)
    text = F.cross_entropy(model.logits(hidden[-1:]), torch.tensor([5]))
    noise = torch.randn(2, spec.horizon, spec.action_dim, generator=generator)
    modulation = model.modulation_at(torch.tensor([0.7, 0.2]))
    positions = (len(context) + torch.arange(spec.horizon)).repeat(2)

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        parts = zip(*(t.split(spec.horizon) for t in (q, k, v)), strict=True)
        return torch.cat([Context([context.k[layer]], [context.v[layer]]).read(0, *part) for part in parts])

    velocity = model.velocity_at(noise, modulation, model.rope(positions), attend)
    return text + velocity.square().mean()


@pytest.mark.parametrize("stem", SPECS)
def test_every_parameter_has_a_gradient(stem):
    model = build(SPECS[stem], seed=1)
    loss(model).backward()
    depth = model.spec.trunk.depth
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
        assert parameter.grad.abs().max() > 0, name
    # the gate of the final norm is not used, so its rows stay untouched
    final = model.time.modulation.weight.grad.view(2 * depth + 1, 3, -1)[-1]
    assert final[2].abs().max() == 0
    assert final[:2].abs().max() > 0


def test_gradient_agrees_with_differences():
    """Along the gradient itself, the loss changes by ε‖g‖²."""
    model = build(TINY, seed=1)
    loss(model).backward()
    gradients = {n: p.grad.clone() for n, p in model.named_parameters()}
    square = sum(g.double().square().sum().item() for g in gradients.values())
    step = 3e-3 / square**0.5
    values = []
    for sign in (1.0, -2.0):
        with torch.no_grad():
            for name, p in model.named_parameters():
                p += sign * step * gradients[name]
            values.append(loss(model).item())
    assert (values[0] - values[1]) / (2 * step) == pytest.approx(square, rel=0.02)


def test_each_sample_has_its_own_time():
    """Two samples with times of their own equal two calls with one time each."""
    model = build(TINY, seed=1).requires_grad_(False)
    x_t = torch.randn(2, TINY.horizon, TINY.action_dim, generator=torch.Generator().manual_seed(0))
    rope = model.rope(torch.arange(TINY.horizon).repeat(2))
    context = Context([torch.zeros(0, 1, 32)] * TINY.trunk.depth, [torch.zeros(0, 1, 32)] * TINY.trunk.depth)

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        parts = zip(*(t.split(TINY.horizon) for t in (q, k, v)), strict=True)
        return torch.cat([context.read(layer, *part) for part in parts])

    both = model.velocity_at(x_t, model.modulation_at(torch.tensor([1.0, 0.5])), rope, attend)
    conditions = model.conditions(2)
    assert conditions.times == (1.0, 0.5)
    one = model.rope(torch.arange(TINY.horizon))
    for b in range(2):
        alone = model.velocity(x_t[b : b + 1], conditions, b, one, context.read)
        torch.testing.assert_close(both[b : b + 1], alone, rtol=1e-5, atol=1e-5)


def test_conditions_follow_the_weights_until_prepared():
    model = build(TINY, seed=1).requires_grad_(False)
    before = model.conditions(4)
    model.time.modulation.bias += 1.0
    after = model.conditions(4)
    assert not torch.equal(before.shift, after.shift)
    model.prepare_for_inference()
    assert model.conditions(4) is model.conditions(4)
    assert torch.equal(model.conditions(4).shift, after.shift)


def test_seed_decides_the_weights():
    a, b, c = build(TINY, seed=1), build(TINY, seed=1), build(TINY, seed=2)
    assert torch.equal(a.table, b.table)
    assert not torch.equal(a.table, c.table)


def test_other_types_are_refused():
    with pytest.raises(ValueError, match="float16"):
        build(TINY, dtype=torch.float16)
