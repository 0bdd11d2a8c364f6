"""Sizes of π0.5: presets, counts, and refusals that name the field."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from oxygen.core.errors import CheckpointError
from oxygen.models.pi05.spec import PRESETS, Pi05Spec, flow_dt, flow_times
from oxygen.models.pi05.torch import build


def test_known_parameter_counts():
    assert PRESETS["pi05"].num_parameters() == 3_353_433_872  # openpi's JAX tree: 3 353.43 M
    medium = PRESETS["pi05-medium"].parameter_counts()
    assert (medium["trunk"], medium["expert"]) == (212_886_528, 71_603_712)  # as counted in the reference
    assert 1.5e6 < PRESETS["pi05-tiny"].num_parameters() < 2.5e6


@pytest.mark.parametrize("name", ["pi05-medium-56px", "pi05-tiny", "pi05"])
def test_counts_are_those_of_the_model(name):
    spec = PRESETS[name]
    model = build(spec, device="meta", seed=None)
    assert sum(p.numel() for p in model.parameters()) == spec.num_parameters()
    counts = spec.parameter_counts()
    assert sum(p.numel() for p in model.vision.parameters()) == counts["vision"]
    assert sum(p.numel() for p in model.trunk.parameters()) + model.table.numel() == counts["trunk"]


@pytest.mark.parametrize("name", PRESETS)
def test_dict_round_trip(name):
    assert Pi05Spec.from_dict(PRESETS[name].to_dict()) == PRESETS[name]


def test_lengths_and_bytes():
    spec = PRESETS["pi05"]
    assert spec.tokens_per_image == 256
    assert spec.max_context_len == 968
    assert spec.kv_bytes_per_token(2) == 2 * 18 * 256 * 2
    assert PRESETS["pi05-medium-56px"].tokens_per_image == 16


def changed(part: str, **fields):
    data = PRESETS["pi05-tiny"].to_dict()
    (data[part] if part else data).update(fields)
    return data


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (changed("", colour=3), ["unknown colour"]),
        (changed("trunk", depth_=3), ["unknown trunk.depth_"]),
        ({k: v for k, v in changed("").items() if k != "horizon"}, ["missing horizon"]),
        (changed("", horizon="ten"), ["horizon", "int", "'ten'"]),
        (changed("", horizon=True), ["horizon", "int", "True"]),
        (changed("", trunk=5), ["trunk", "a map"]),
        (changed("vision", width=0), ["vision.width", "from 1 to", "0"]),
        (changed("expert", head_dim=64), ["expert.head_dim", "trunk.head_dim", "64", "32"]),
        (changed("vision", image_size=65), ["image_size (65)", "patch_size (16)"]),
        (changed("vision", stem="wavelet"), ["stem", "patch, conv", "wavelet"]),
        (changed("vision", patch_size=12, image_size=60), ["patch_size", "power of two", "12"]),
        (changed("vision", num_heads=5), ["vision.width (96)", "num_heads (5)"]),
        (changed("expert", width=97), ["expert.width", "even"]),
    ],
)
def test_refusals_name_the_field(data, words):
    with pytest.raises(CheckpointError) as refused:
        Pi05Spec.from_dict(data)
    for word in words:
        assert word in str(refused.value)


def test_replace_checks_too():
    with pytest.raises(CheckpointError, match="horizon"):
        replace(PRESETS["pi05"], horizon=0)


@pytest.mark.parametrize("num_steps", [1, 2, 3, 7, 10, 30, 100, 999, 1000])
def test_flow_times_count_and_accumulate(num_steps):
    times = flow_times(num_steps)
    assert len(times) == num_steps
    assert times[0] == 1.0
    for i, t in enumerate(times):
        assert t == pytest.approx(1 - i / num_steps, abs=1e-4)
    t = torch.tensor(1.0)
    for value in times:
        assert t.item() == value
        t = t + torch.tensor(flow_dt(num_steps))
