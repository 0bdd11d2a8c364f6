"""Folders of transformers and StarVLA: read strictly both ways, with explicit fields where weights say nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from models.heads import plain
from models.qwen3_vl.cases import golden, golden_folder, golden_model, golden_weights
from safetensors.torch import load_file, save_file

from oxygen.checkpoint import open_folder
from oxygen.core.errors import CheckpointError
from oxygen.core.plan import ActItem, PrefillItem
from oxygen.models.heads.spec import Gr00tSpec, OftSpec, PiSpec
from oxygen.models.heads.torch import build_head
from oxygen.models.qwen3_vl.opening import read_qwen3_vl
from oxygen.models.qwen3_vl.spec import PRESETS, Qwen3VLSpec, with_heads
from oxygen.models.qwen3_vl.torch.weights import load_qwen3_vl
from oxygen.runtime.torch.open import open_runner

SIZES = {"feature_width": 48, "horizon": 5, "action_dim": 7}
HEADS = {
    "pi": PiSpec(name="pi", depth=4, width=128, num_heads=2, projects=True, **SIZES),
    "plain_pi": PiSpec(name="pi", depth=4, width=48, num_heads=1, **SIZES),
    "gr00t": Gr00tSpec(
        name="gr00t", trunk_depth=4, depth=4, width=64, num_heads=1, inner_width=32, state_dim=7, **SIZES
    ),
    "oft": OftSpec(name="oft", trunk_depth=4, width=32, token_id=99, **SIZES),
}
TOLD = {
    "pi": {"topology": "all_cross", "horizon": 5},
    "plain_pi": {"topology": "interleaved", "horizon": 5, "state_dim": 0, "num_heads": 1},
    "gr00t": {"horizon": 5, "state_dim": 7},
    "oft": {"horizon": 5, "token_id": 99},
}
TRUNK_TOLD = {
    "trunk": {"rope_sections": [4, 2, 2]},
    "vision": {"num_heads": 2, "taps": [0, 1, 2]},
    "image_id": 120,
    "vision_start_id": 121,
    "vision_end_id": 122,
    "eos_ids": [126, 127],
}


def starvla_folder(folder: Path, name: str, told: dict | None = None, extra: dict | None = None) -> Path:
    """As StarVLA saves one state dictionary: trunk under its prefix, one head beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    head = build_head(HEADS[name], torch.float32, "cpu")
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.normal_(0.0, 0.2, generator=generator)
    tensors = {f"qwen_vl_interface.model.{n}": t for n, t in golden_weights().items()}
    tensors["qwen_vl_interface.model.lm_head.weight"] = tensors[
        "qwen_vl_interface.model.model.language_model.embed_tokens.weight"
    ].clone()
    tensors |= plain.starvla_weights(head, HEADS[name])
    if name.endswith("pi"):
        width = HEADS[name].width
        tensors |= {
            "action_model.model.proj_out_1.weight": torch.ones(2 * width, width),
            "action_model.model.proj_out_1.bias": torch.ones(2 * width),
            "action_model.state_encoder.layer1.weight": torch.ones(width, 7),
        }
    save_file({n: t.contiguous() for n, t in (tensors | (extra or {})).items()}, folder / "model.safetensors")
    spec = TRUNK_TOLD | {"heads": [TOLD[name] if told is None else told]}
    (folder / "oxygen.json").write_text(json.dumps({"spec": spec}))
    return folder


def test_a_transformers_folder_settles_all_sizes(tmp_path):
    opened = read_qwen3_vl(golden_folder(tmp_path))
    assert opened.checkpoint.format == "transformers" and opened.checkpoint.family == "qwen3_vl"
    opened.balance.check("folder")
    spec = opened.spec
    assert (spec.trunk.depth, spec.trunk.num_heads, spec.trunk.num_kv_heads, spec.trunk.head_dim) == (4, 4, 2, 16)
    assert spec.trunk.rope_sections == (4, 2, 2) and spec.vision.taps == (0, 1, 2) and spec.vision.table_side == 6
    assert spec.eos_ids == (126, 127) and spec.heads == ()
    assert sum(p.numel() for p in golden_model().parameters()) == spec.num_parameters()


@pytest.mark.parametrize("name", HEADS)
def test_starvla_folders(tmp_path, name):
    opened = read_qwen3_vl(starvla_folder(tmp_path, name))
    assert opened.checkpoint.format == "starvla" and opened.spec.heads == (replace(HEADS[name], **_told(name)),)
    model = load_qwen3_vl(opened)
    assert len(opened.balance.unused) == (3 if name.endswith("pi") else 0) and len(opened.balance.tied) == 1
    stored = load_file(tmp_path / "model.safetensors")
    again = plain.starvla_weights(model.heads[opened.spec.heads[0].name], opened.spec.heads[0])
    assert all(torch.equal(stored[n], t) for n, t in again.items())
    assert torch.equal(model.table, golden_model().table)


def _told(name: str) -> dict:
    return {key: value for key, value in TOLD[name].items()}


@pytest.mark.parametrize(
    ("name", "told", "missing"),
    [
        ("pi", {"horizon": 5}, "topology"),
        ("gr00t", {}, "horizon, state_dim"),
        ("plain_pi", {"topology": "interleaved", "horizon": 5}, "state_dim, num_heads"),
        ("oft", {"horizon": 5}, "token_id"),
        ("pi", {}, r"topology, horizon must be said.*horizon: future_action_window_size \+ 1"),
    ],
)
def test_what_no_tensor_shows_must_be_said(tmp_path, name, told, missing):
    with pytest.raises(CheckpointError, match=missing):
        read_qwen3_vl(starvla_folder(tmp_path, name, told))


def test_the_topology_field_changes_the_numbers(tmp_path):
    chunks = []
    for topology in ("all_cross", "interleaved"):
        folder = starvla_folder(tmp_path / topology, "pi", {"topology": topology, "horizon": 5, "state_dim": 0})
        runner = open_runner(folder, max_contexts=1, max_texts=1, tail_len=4, context_len=64)
        inputs = golden("one").inputs
        runner.prefill([PrefillItem(0, 0, inputs, 0, (("pi", ()),))])
        noise = np.ones((5, 7), dtype=np.float32)
        chunks += runner.act([ActItem(0, 0, 0, inputs.num_tokens, "pi", 4, noise)])
    assert np.abs(chunks[0] - chunks[1]).max() > 0.01


def test_strict_both_ways(tmp_path):
    extra = {
        "action_model.action_decoder.layer9.weight": torch.ones(2),
        "qwen_vl_interface.model.model.visual.odd": torch.ones(1),
    }
    with pytest.raises(CheckpointError, match=r"unknown tensors.*layer9.*odd"):
        load_qwen3_vl(starvla_folder(tmp_path / "extra", "gr00t", extra=extra))
    folder = golden_folder(tmp_path / "short")
    tensors = golden_weights()
    save_file({n: t for n, t in tensors.items() if "layers.2.mlp.up" not in n}, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"missing tensors: model.language_model.layers.2.mlp.up_proj.weight"):
        load_qwen3_vl(folder)
    broken = tensors | {"model.visual.merger.norm.bias": torch.full((32,), float("nan"))}
    save_file(broken, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"NaN or infinite: model.visual.merger.norm.bias"):
        load_qwen3_vl(folder)
    untied = tensors | {"lm_head.weight": tensors["model.language_model.embed_tokens.weight"] + 1}
    save_file(untied, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match="tied tensors differ"):
        load_qwen3_vl(folder)


def test_heads_of_another_trunk_are_refused(tmp_path):
    first = starvla_folder(tmp_path / "pi", "pi")
    same = starvla_folder(tmp_path / "gr00t", "gr00t")
    model = load_qwen3_vl(first, heads_from=[same])
    assert list(model.experts) == ["pi", "gr00t"]
    tensors = load_file(same / "model.safetensors")
    tensors["qwen_vl_interface.model.model.language_model.layers.1.self_attn.q_norm.weight"][3] += 0.01
    save_file(tensors, same / "model.safetensors")
    with pytest.raises(CheckpointError, match="another trunk"):
        load_qwen3_vl(first, heads_from=[same])
    assert list(load_qwen3_vl(first, heads_from=[same], is_trunk_trusted=True).experts) == ["pi", "gr00t"]


def test_presets_have_the_released_sizes():
    counts = PRESETS["qwen3vl-4b"].parameter_counts()
    assert (counts["trunk"], counts["table"], counts["vision"]) == (3_633_511_936, 388_956_160, 415_347_712)
    assert PRESETS["qwen3vl-4b"].kv_bytes_per_token(2) == 147_456
    for spec in PRESETS.values():
        whole = with_heads(spec, ("pi", "gr00t", "oft"))
        assert Qwen3VLSpec.from_dict(json.loads(json.dumps(whole.to_dict()))) == whole
    with pytest.raises(CheckpointError, match=r"unknown trunk\.lenght"):
        Qwen3VLSpec.from_dict(whole.to_dict() | {"trunk": {**whole.to_dict()["trunk"], "lenght": 1}})


def test_the_family_is_seen_from_names_alone(tmp_path):
    assert open_folder(starvla_folder(tmp_path, "oft")).family == "qwen3_vl"
