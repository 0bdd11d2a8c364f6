"""Weights of π0.5: every tensor used or known to be unused, every parameter filled, or a refusal that names them."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoint.folders import ACTION_IN, EMBED, LEROBOT, LM_HEAD, NORM2, OPENPI, Q0, P, copy_of, edit_json, sharded
from checkpoint.golden import golden_spec, golden_state
from models.pi05_cases import flow, golden_case, prefill, prefix
from safetensors.numpy import save_file

import oxygen
from oxygen.checkpoint import open_folder
from oxygen.core.errors import CheckpointError
from oxygen.models.pi05.accounting import account_for
from oxygen.models.pi05.names import placements
from oxygen.models.pi05.opening import read_pi05
from oxygen.models.pi05.sizes import derive_sizes
from oxygen.models.pi05.spec import PRESETS
from oxygen.models.pi05.torch import Pi05, build
from oxygen.models.pi05.torch.weights import load_pi05, save_pi05
from oxygen.processing.statistics import find_statistics

UNUSED = "paligemma_with_expert.gemma_expert.lm_head.weight"
TELL = {"vision": {"num_heads": 4}}


@pytest.fixture(scope="module")
def golden() -> dict[str, torch.Tensor]:
    return golden_state()


def same(model: Pi05, state: dict[str, torch.Tensor]) -> bool:
    ours = model.state_dict()
    return ours.keys() == state.keys() and all(torch.equal(ours[name], tensor) for name, tensor in state.items())


def refused(folder: Path, message: str, **options: Any) -> None:
    with pytest.raises(CheckpointError, match=message):
        load_pi05(folder, **options)


@pytest.mark.parametrize(("folder", "prefix_", "tied"), [(OPENPI, "", 0), (LEROBOT, "model.", 1)])
def test_golden_folders_are_accounted_for(folder: Path, prefix_: str, tied: int, golden: dict) -> None:
    checkpoint = open_folder(folder)
    account = account_for(checkpoint, derive_sizes(checkpoint).spec)
    assert account.problems() == [] and list(account.unused) == [prefix_ + UNUSED]
    assert len(account.names) == 131 and len(account.tied) == tied
    assert same(load_pi05(folder), golden)


@pytest.mark.parametrize("folder", [OPENPI, LEROBOT])
def test_loaded_weights_act_as_the_reference(folder: Path) -> None:
    case = golden_case("b_b1_mask_right")
    with torch.inference_mode():
        model = load_pi05(folder).prepare_for_inference()
        context, _ = prefill(model, prefix(model, case, 0))
        actions = flow(model, context, case["noise"][:1], 10)[-1]
    assert (actions - case["actions_10"][:1]).abs().max() <= 5e-5


def test_every_parameter_of_every_preset_has_a_place() -> None:
    for name in ("pi05-tiny", "pi05-medium-56px"):
        model = build(PRESETS[name], "meta", seed=None)
        filled: dict[str, int] = {}
        for place in placements(model.spec):
            assert place.shape[1:] == model.get_parameter(place.parameter).shape[1:]
            filled[place.parameter] = filled.get(place.parameter, 0) + place.shape[0]
        assert filled == {name: len(parameter) for name, parameter in model.named_parameters()}
    assert len(placements(PRESETS["pi05"])) + 1 == 812  # the count of released files, with the unused head


# What happens to a file on its way


@pytest.mark.parametrize("name", [NORM2, Q0, "time_mlp_out.bias"])
def test_a_missing_tensor_is_named(tmp_path: Path, name: str) -> None:
    refused(copy_of(OPENPI, tmp_path / "x", lambda t: t.pop(name)), f"missing tensors: {name}$")


def test_all_faults_are_told_at_once(tmp_path: Path) -> None:
    def damage(tensors: dict) -> None:
        tensors.pop(NORM2)
        tensors["time_mlp_sideways.weight"] = np.ones((2, 2), np.float32)
        tensors[Q0] = tensors[Q0].T
        tensors[ACTION_IN] = tensors[ACTION_IN].astype(np.int32)

    folder = copy_of(OPENPI, tmp_path / "x", damage)
    message = (
        rf"missing tensors: {NORM2}; unknown tensors: time_mlp_sideways\.weight; "
        rf"tensors of a wrong shape: {Q0} \[64, 128\], expected \[128, 64\]; "
        rf"tensors of a type that weights cannot have: {ACTION_IN} I32$"
    )
    refused(folder, message)


def test_a_renamed_prefix_is_missing_and_unknown(tmp_path: Path) -> None:
    def rename(tensors: dict) -> None:
        for name in [n for n in tensors if n.startswith("time_mlp_in.")]:
            tensors["conditioner." + name] = tensors.pop(name)

    refused(
        copy_of(OPENPI, tmp_path / "x", rename),
        r"missing tensors: time_mlp_in\.bias, time_mlp_in\.weight; "
        r"unknown tensors: conditioner\.time_mlp_in\.bias, conditioner\.time_mlp_in\.weight$",
    )


@pytest.mark.parametrize(
    "spell",
    [
        lambda name: "module." + name,
        lambda name: "_orig_mod.model." + name,
        lambda name: name.replace("vision_tower.vision_model.", "vision_tower."),
        lambda name: name.replace("time_mlp_", "action_time_mlp_"),
    ],
)
def test_other_spellings_of_the_same_names(tmp_path: Path, spell: Any, golden: dict) -> None:
    def rename(tensors: dict) -> None:
        for name in list(tensors):
            tensors[spell(name)] = tensors.pop(name)

    assert same(load_pi05(copy_of(OPENPI, tmp_path / "x", rename)), golden)


def test_two_names_for_one_place(tmp_path: Path) -> None:
    folder = copy_of(OPENPI, tmp_path / "x", lambda t: t.update({"model." + NORM2: t[NORM2]}))
    refused(folder, f"two tensors for one place: model.{NORM2}, {NORM2}$")


@pytest.mark.parametrize("keep", [[LM_HEAD], [EMBED], [LM_HEAD, EMBED]])
@pytest.mark.parametrize("source", [OPENPI, LEROBOT])
def test_the_table_under_any_of_its_names(tmp_path: Path, keep: list[str], source: Path, golden: dict) -> None:
    start = "model." if source == LEROBOT else ""

    def tie(tensors: dict) -> None:
        table = tensors.pop(start + LM_HEAD)
        tensors.pop(start + EMBED, None)
        tensors.update({start + name: table.copy() for name in keep})

    assert same(load_pi05(copy_of(source, tmp_path / "x", tie)), golden)


def test_tables_that_have_drifted_apart(tmp_path: Path, golden: dict) -> None:
    folder = copy_of(LEROBOT, tmp_path / "x", lambda t: t["model." + EMBED].__setitem__((7, 3), 9.0))
    refused(folder, f"tied tensors differ: model.{LM_HEAD}, model.{EMBED}; say which one was trained")
    edit_json(folder / "oxygen.json", token_table="lm_head")
    assert same(load_pi05(folder), golden)
    edit_json(folder / "oxygen.json", token_table="embed_tokens")
    table = load_pi05(folder).table
    assert table[7, 3] == 9.0 and (table != golden["table"]).sum() == 1
    edit_json(folder / "oxygen.json", token_table="tail")
    refused(folder, "token_table 'tail' is none of")


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_not_finite(tmp_path: Path, value: float) -> None:
    def poison(tensors: dict) -> None:
        tensors[NORM2][5] = value
        tensors[Q0][1, 2] = -value

    refused(copy_of(OPENPI, tmp_path / "x", poison), f"weights that are NaN or infinite: {NORM2}, {Q0}|{Q0}, {NORM2}")


def test_truncated_and_absent(tmp_path: Path) -> None:
    folder = copy_of(OPENPI, tmp_path / "x")
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])
    refused(folder, "truncated")
    refused(tmp_path / "gone", "does not exist")


# Types


@pytest.mark.parametrize("stored", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_types(tmp_path: Path, stored: str, dtype: torch.dtype) -> None:
    """Narrow files widen exactly; in a bfloat16 model the large maps are rounded and the norms are not."""
    model = build(golden_spec(), seed=3)
    kind = getattr(torch, stored)
    save_pi05(model, tmp_path / "x", dtype=kind)
    loaded = load_pi05(tmp_path / "x", dtype=dtype)
    for name, parameter in model.named_parameters():
        found = loaded.get_parameter(name)
        is_large = not ("norm" in name and not name.startswith("vision")) and name.split(".")[0] in (
            "trunk",
            "expert",
            "table",
        )
        if is_large:
            assert found.dtype == dtype
        if name.startswith(("time.", "action_")) or name in ("trunk.norm.weight", "vision.positions"):
            assert found.dtype == torch.float32
        assert torch.equal(found, parameter.detach().to(kind).to(found.dtype))


# Saving


def test_save_and_load_are_inverse(tmp_path: Path, golden: dict) -> None:
    model = load_pi05(OPENPI)
    statistics = find_statistics(OPENPI)
    (tmp_path / "words.model").write_bytes(b"tokens")
    folder = save_pi05(
        model,
        tmp_path / "x",
        processor={"robot": "droid", "templates": "shared", "max_token_len": 32},
        tokenizer=tmp_path / "words.model",
        statistics=statistics,
        asset_id="droid",
        model_card="# a card\n",
    )
    opened = read_pi05(folder)
    assert opened.checkpoint.format == "oxygen" and opened.spec == model.spec
    assert opened.statistics.digest == statistics[0].digest
    assert opened.checkpoint.tokenizer == folder / "words.model" and (folder / "MODEL_CARD.md").is_file()
    assert opened.processor_config.robot == "droid" and opened.processor_config.horizon == 10
    assert same(load_pi05(opened), golden)
    refused_twice = pytest.raises(CheckpointError, match="already holds weights")
    with refused_twice:
        save_pi05(model, folder)
    assert same(load_pi05(save_pi05(model, folder, overwrite=True)), golden)


def test_ours_can_be_read_as_openpi_wrote_it(tmp_path: Path) -> None:
    """Same names and bytes as openpi's file, apart from the head that nobody uses."""
    from safetensors.numpy import load_file

    folder = save_pi05(load_pi05(OPENPI), tmp_path / "x")
    ours, theirs = load_file(folder / "model.safetensors"), load_file(OPENPI / "model.safetensors")
    assert theirs.keys() - ours.keys() == {UNUSED} and not ours.keys() - theirs.keys()
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours)


def test_shards_are_equal_to_one_file(tmp_path: Path, golden: dict) -> None:
    assert same(load_pi05(sharded(LEROBOT, tmp_path / "theirs", 4)), golden)
    ours = save_pi05(load_pi05(OPENPI), tmp_path / "ours", max_shard_bytes=200_000)
    assert len(list(ours.glob("model-*.safetensors"))) > 3
    assert same(load_pi05(ours), golden)


def test_the_convolutional_stem_travels_too(tmp_path: Path) -> None:
    model = build(PRESETS["pi05-tiny"], seed=1)
    assert same(load_pi05(save_pi05(model, tmp_path / "x", dtype=torch.float32)), model.state_dict())


def test_our_config_against_the_tensors(tmp_path: Path) -> None:
    folder = save_pi05(load_pi05(OPENPI), tmp_path / "x")
    spec = read_pi05(folder).spec.to_dict()
    edit_json(folder / "config.json", spec=spec | {"vocab_size": 500})
    refused(folder, rf"wrong shape: {LM_HEAD} \[512, 64\], expected \[500, 64\]$")
    edit_json(folder / "config.json", spec=spec | {"sharks": 1})
    refused(folder, "unknown sharks")


def test_a_prepared_model_is_not_saved(tmp_path: Path) -> None:
    model = load_pi05(OPENPI).prepare_for_inference()
    with pytest.raises(CheckpointError, match="laid out for inference; save it before prepare_for_inference"):
        save_pi05(model, tmp_path / "x")
    assert not (tmp_path / "x").exists()


# LoRA in PEFT's form

RANK = 3
TARGETS = {
    f"{P}model.language_model.layers.1.self_attn.q_proj": ("trunk.layers.1.projection.qkv.weight", slice(0, 128)),
    f"{P}model.language_model.layers.1.self_attn.v_proj": ("trunk.layers.1.projection.qkv.weight", slice(144, 160)),
    "paligemma_with_expert.gemma_expert.model.layers.3.mlp.up_proj": (
        "expert.layers.3.mlp.gate_up.weight",
        slice(96, 192),
    ),
    "action_in_proj": ("action_in.weight", slice(0, 32)),
}


def leaves(base: Path) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """(adapter tensors as PEFT names them, B A for every target)."""
    from safetensors.numpy import load_file

    rng = np.random.default_rng(5)
    weights = load_file(base / "model.safetensors")
    tensors, updates = {}, {}
    for target in TARGETS:
        rows, columns = weights[target + ".weight"].shape
        a, b = rng.normal(size=(RANK, columns)), rng.normal(size=(rows, RANK))
        tensors[f"base_model.model.model.{target}.lora_A.weight"] = a.astype(np.float32)
        tensors[f"base_model.model.model.{target}.lora_B.weight"] = b.astype(np.float32)
        updates[target] = b.astype(np.float32) @ a.astype(np.float32)
    return tensors, updates


def with_adapter(folder: Path, tensors: dict, **config: Any) -> Path:
    save_file({name: np.ascontiguousarray(t) for name, t in tensors.items()}, folder / "adapter_model.safetensors")
    edit_json(folder / "adapter_config.json", **({"r": RANK, "lora_alpha": 6} | config))
    return folder


@pytest.mark.parametrize(("config", "scale"), [({}, 2.0), ({"use_rslora": True}, 6 / 3**0.5), ({"bias": "none"}, 2.0)])
def test_adapter_beside_the_model_is_merged(tmp_path: Path, config: dict, scale: float, golden: dict) -> None:
    tensors, updates = leaves(OPENPI)
    model = load_pi05(with_adapter(copy_of(OPENPI, tmp_path / "x"), tensors, **config))
    expected = {name: tensor.clone() for name, tensor in golden.items()}
    for target, (parameter, rows) in TARGETS.items():
        expected[parameter][rows] += scale * torch.from_numpy(updates[target])
    for name, tensor in model.state_dict().items():
        assert torch.allclose(tensor, expected[name], rtol=1e-5, atol=1e-5), name
        changed = name in {parameter for parameter, _ in TARGETS.values()}
        assert torch.equal(tensor, golden[name]) != changed


def test_leaves_inside_the_model_file_are_merged(tmp_path: Path, golden: dict) -> None:
    """A whole PEFT model saved at once: base_layer beside its lora_A and lora_B, with the adapter's name in them."""
    tensors, updates = leaves(OPENPI)

    def wrap(weights: dict) -> None:
        for target in TARGETS:
            weights[target + ".base_layer.weight"] = weights.pop(target + ".weight")
        for name, tensor in tensors.items():
            weights[name.removeprefix("base_model.model.model.").replace(".weight", ".default.weight")] = tensor

    folder = copy_of(OPENPI, tmp_path / "x", wrap)
    refused(
        folder, "LoRA leaves that cannot be merged: .*no adapter_config.json with lora_alpha, so the scale is unknown"
    )
    with_adapter(folder, {})
    parameter, rows = TARGETS["action_in_proj"]
    expected = golden[parameter][rows] + 2.0 * torch.from_numpy(updates["action_in_proj"])
    assert torch.allclose(load_pi05(folder).get_parameter(parameter)[rows], expected, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "config", "message"),
    [
        ("drop", {}, r"action_in_proj\.lora_A\.weight \(its other half is missing\)$"),
        ("", {"use_dora": True}, r"adapter_config\.json sets use_dora"),
        ("", {"rank_pattern": {"q_proj": 8}}, r"sets rank_pattern"),
        ("", {"r": 4}, r"rank 3, adapter_config\.json says 4"),
        ("", {"lora_alpha": None}, "scale is unknown"),
        ("alien", {}, r"layers\.99\.self_attn\.q_proj\.lora_A\.weight \(no such tensor in the model\)"),
        ("shape", {}, r"shapes \[32, 3\] x \[3, 11\] do not make \[32, 12\]"),
        ("magnitude", {}, r"cannot be merged: action_in_proj\.lora_magnitude_vector$"),
    ],
)
def test_leaves_that_cannot_be_merged_are_never_dropped(
    tmp_path: Path, change: str, config: dict, message: str
) -> None:
    tensors, _ = leaves(OPENPI)
    a, b = (f"base_model.model.model.action_in_proj.lora_{side}.weight" for side in "AB")
    if change == "drop":
        del tensors[b]
    elif change == "alien":
        for side in "AB":
            tensors[f"{P}model.language_model.layers.99.self_attn.q_proj.lora_{side}.weight"] = np.ones(
                (2, 2), np.float32
            )
    elif change == "shape":
        tensors[a] = tensors[a][:, :11]
    elif change == "magnitude":
        tensors["action_in_proj.lora_magnitude_vector"] = np.ones(32, np.float32)
    refused(with_adapter(copy_of(OPENPI, tmp_path / "x"), tensors, **config), message)


# Memory

LOAD = """
import resource, sys, torch
from oxygen.models.pi05.torch.weights import load_pi05
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
before = peak()
model = load_pi05(sys.argv[1], dtype=torch.bfloat16)
print(peak() - before, sum(p.numel() * p.element_size() for p in model.parameters()))
"""


def test_loading_peaks_at_the_size_of_the_model(tmp_path: Path) -> None:
    """No second copy. A bfloat16 model of 150 MB from a bfloat16 file (all zero, so the files take no room)."""
    tiny = PRESETS["pi05-tiny"]
    spec = replace(tiny, trunk=replace(tiny.trunk, width=1024, mlp_width=4096), vocab_size=24_000)
    header, position = {}, 0
    for place in placements(spec):
        end = position + 2 * int(np.prod(place.shape))
        header[place.source] = {"dtype": "BF16", "shape": list(place.shape), "data_offsets": [position, end]}
        position = end
    raw = json.dumps(header).encode()
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.write(len(raw).to_bytes(8, "little") + raw)
        file.truncate(8 + len(raw) + position)
    edit_json(tmp_path / "config.json", format="oxygen", version=1, family="pi05", spec=spec.to_dict())
    source = Path(oxygen.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", LOAD, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        env={"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    growth, size = map(int, done.stdout.split())
    assert size > 140e6
    assert growth < 1.3 * size
