"""Heads against the plain form: every step's velocity, both topologies, batches, what has no effect."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from models.heads import plain

from oxygen.core.errors import CheckpointError
from oxygen.layers.experts import Tap, check_reads
from oxygen.layers.torch.context import Features, Reading
from oxygen.models.heads.spec import Gr00tSpec, OftSpec, PiSpec, head_from_dict, head_to_dict
from oxygen.models.heads.torch import build_head

WIDTH, DEPTH, QUERY = 24, 4, 77
SIZES = {"feature_width": WIDTH, "horizon": 5, "action_dim": 7}
PI = PiSpec(name="pi", depth=DEPTH, width=32, num_heads=4, projects=True, **SIZES)
GR00T = Gr00tSpec(name="gr00t", trunk_depth=DEPTH, depth=4, width=32, num_heads=4, inner_width=40, state_dim=7, **SIZES)
OFT = OftSpec(name="oft", trunk_depth=DEPTH, width=48, token_id=QUERY, **SIZES)
FLOW = {
    "pi_v3": PI,
    "pi_v3-interleaved": replace(PI, topology="interleaved"),
    "pi_v3-state": replace(PI, topology="interleaved", state_dim=7),
    "pi_v3-idle-state": replace(PI, state_dim=7),
    "pi": replace(PI, width=WIDTH, num_heads=3, projects=False),
    "gr00t": GR00T,
    "gr00t-stateless": replace(GR00T, state_dim=0),
}


def make(spec):
    """A head with lively random weights, its weights by StarVLA's names, then prepared."""
    head = build_head(spec, torch.float32, "cpu")
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in head.parameters():
            scale = 0.3 if parameter.dim() == 1 else parameter[0].numel() ** -0.5
            parameter.normal_(0.0, scale, generator=generator)
    weights = plain.starvla_weights(head, spec)
    head.requires_grad_(False)
    head.prepare_for_inference()
    return head, weights


def features_of(lengths, seed=0):
    rng = torch.Generator().manual_seed(seed)
    found = []
    for n in lengths:
        ids = [1] * n
        ids[-8:-1] = [QUERY] * 7  # more than are read
        found.append(Features(tuple(ids), {Tap(i): torch.randn(n, WIDTH, generator=rng) for i in range(DEPTH)}))
    return found


def states_of(count):
    return [np.linspace(-1, 1, 7, dtype=np.float32) * (i + 1) for i in range(count)]


def noises(count, seed=3):
    return torch.randn(count, 5, 7, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", FLOW)
@torch.inference_mode()
def test_velocity_of_every_step(name):
    spec = FLOW[name]
    head, weights = make(spec)
    found, states, x = features_of((19, 12, 30)), states_of(3), noises(3)
    prepared = head.prepare(Reading(3, features=found, states=states), 4)
    for step in range(4):
        ours = head.velocity(prepared, x, step)
        for i in range(3):
            taps = [found[i].hidden[Tap(layer)] for layer in range(DEPTH)]
            state = torch.from_numpy(states[i]) if spec.state_dim else None
            if isinstance(spec, PiSpec):
                expected = plain.pi_velocity(weights, spec, taps, state, x[i], 250 * step)
            else:
                expected = plain.gr00t_velocity(weights, spec, taps[-1], state, x[i], 250 * step)
            assert (ours[i] - expected).abs().max() <= 1e-5 * expected.abs().max()


@torch.inference_mode()
def test_one_shot():
    head, weights = make(OFT)
    found = features_of((19, 12))
    ours = head.predict(head.prepare(Reading(2, features=found, states=(None, None)), 1))
    for i in range(2):
        expected = plain.oft_actions(weights, OFT, found[i].hidden[Tap(DEPTH - 1)], found[i].token_ids)
        assert (ours[i] - expected).abs().max() <= 1e-5 * expected.abs().max()


@torch.inference_mode()
def test_the_topology_is_read():
    """The same weights under both: the actions differ, and only the interleaved form lets tokens meet."""
    crossed, weights = make(PI)
    mixed, others = make(replace(PI, topology="interleaved"))
    assert all(torch.equal(weights[name], others[name]) for name in weights)
    found, x = features_of((19,)), noises(1)
    touched = x.clone()
    touched[0, 2] += 1.0
    moved = {}
    for name, head in (("crossed", crossed), ("mixed", mixed)):
        prepared = head.prepare(Reading(1, features=found, states=(None,)), 4)
        a, b = head.velocity(prepared, x, 1), head.velocity(prepared, touched, 1)
        moved[name] = (a[0] != b[0]).any(dim=1).tolist(), a
    assert moved["crossed"][0] == [False, False, True, False, False]
    assert moved["mixed"][0] == [True] * 5
    assert (moved["crossed"][1] - moved["mixed"][1]).abs().max() > 0.01


def test_preparing_is_done_once_per_frame():
    """The context's keys are made in `prepare`: the features may be gone afterwards."""
    head, _ = make(PI)
    with torch.inference_mode():
        found = features_of((9,))
        prepared = head.prepare(Reading(1, features=found, states=(None,)), 4)
        before = head.velocity(prepared, noises(1), 2)
        for tensor in found[0].hidden.values():
            tensor.fill_(float("nan"))
        assert torch.equal(before, head.velocity(prepared, noises(1), 2))


@pytest.mark.parametrize("spec", [PI, GR00T, OFT], ids=lambda s: s.name)
def test_declarations(spec):
    assert head_from_dict(head_to_dict(spec)) == spec
    shape = spec.shape()
    check_reads(shape, DEPTH, WIDTH, 100)
    for sizes, message in (((DEPTH - 1, WIDTH, 100), "reads layer"), ((DEPTH, WIDTH + 1, 100), "width")):
        with pytest.raises(CheckpointError, match=message):
            check_reads(shape, *sizes)
    assert sum(p.numel() for p in build_head(spec, torch.float32, "cpu").parameters()) == spec.num_parameters()


def test_bad_heads_are_refused():
    with pytest.raises(CheckpointError, match="topology"):
        replace(PI, topology="crossed")
    with pytest.raises(CheckpointError, match="without projection"):
        replace(PI, projects=False)
    with pytest.raises(CheckpointError, match="kind"):
        head_from_dict({"kind": "other"})
    with pytest.raises(CheckpointError, match="missing horizon"):
        head_from_dict({k: v for k, v in head_to_dict(OFT).items() if k != "horizon"})
    with pytest.raises(CheckpointError, match="token 100"):
        check_reads(replace(OFT, token_id=100).shape(), DEPTH, WIDTH, 100)


def test_released_sizes():
    """Counts measured on the original classes (its unused output maps and state encoder are not ours)."""
    pi = PiSpec(
        name="pi", feature_width=2560, depth=36, width=1024, num_heads=16, horizon=16, action_dim=7, projects=True
    )
    assert pi.num_parameters() == 538_678_305 + 94_593_024 - 1_057_792 - (1024 * 2048 + 2048 + 1024 * 26 + 26)
    gr00t = Gr00tSpec(
        name="g",
        feature_width=2560,
        trunk_depth=36,
        depth=16,
        width=768,
        num_heads=12,
        inner_width=1024,
        horizon=16,
        action_dim=7,
        state_dim=7,
    )
    assert gr00t.num_parameters() == 161_472_775
    oft = OftSpec(name="o", feature_width=2560, trunk_depth=36, width=5120, token_id=1, horizon=8, action_dim=7)
    assert oft.num_parameters() == 65_623_047
