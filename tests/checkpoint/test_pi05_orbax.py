"""openpi's JAX tree: the mapping on plain arrays, LoRA against explicit sums, whole folders where Orbax is there."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from checkpoint.folders import OPENPI, edit_json, tensors_of
from checkpoint.golden import golden_spec, golden_state
from checkpoint.jax_tree import G, X, flat, jax_tree, nested
from models.pi05_cases import flow, golden_case, prefill, prefix

from oxygen.checkpoint import open_folder
from oxygen.checkpoint.orbax import tree_paths
from oxygen.cli.main import main
from oxygen.core.errors import CheckpointError
from oxygen.models.pi05.opening import read_pi05
from oxygen.models.pi05.orbax import convert
from oxygen.models.pi05.torch.weights import load_pi05

SPEC = golden_spec()
LLM = "PaliGemma/llm/layers/"
needs_orbax = pytest.mark.skipif(
    importlib.util.find_spec("orbax") is None, reason="the optional extra `orbax` is not installed"
)


def converted(leaves: dict[str, np.ndarray], lora_scale: float | None = None) -> dict[str, np.ndarray]:
    found = convert(leaves, SPEC, lambda paths: {path: leaves[path] for path in paths}, lora_scale)
    return {place.source: array for place, array in found}


@pytest.fixture
def leaves() -> dict[str, np.ndarray]:
    return flat(jax_tree(tensors_of()))


def test_every_leaf_lands_where_pytorch_has_it(leaves: dict) -> None:
    ours, theirs = converted(leaves), tensors_of()
    assert theirs.keys() - ours.keys() == {"paligemma_with_expert.gemma_expert.lm_head.weight"}
    assert all(np.array_equal(array, theirs[name]) for name, array in ours.items())


def test_narrow_leaves_widen(leaves: dict) -> None:
    narrow = {path: array.astype(np.float16) for path, array in leaves.items()}
    assert all(
        array.dtype == np.float32 and np.array_equal(array, tensors_of()[name].astype(np.float16))
        for name, array in converted(narrow).items()
    )


def test_missing_and_unknown_leaves_are_named(leaves: dict) -> None:
    del leaves[LLM + "mlp_1/linear"], leaves["time_mlp_in/bias"]
    leaves["state_proj/kernel"] = np.ones((32, 2))
    with pytest.raises(CheckpointError) as caught:
        converted(leaves)
    assert str(caught.value) == (
        f"tree: missing leaves: {LLM}mlp_1/linear, time_mlp_in/bias; unknown leaves: state_proj/kernel"
    )


def test_a_leaf_of_a_wrong_shape(leaves: dict) -> None:
    leaves["action_in_proj/kernel"] = leaves["action_in_proj/kernel"].T
    with pytest.raises(
        CheckpointError, match=r"action_in_proj/kernel \[32, 12\] gives action_in_proj\.weight the shape"
    ):
        converted(leaves)


def lora(rng: np.random.Generator, weight: np.ndarray, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """A and B as openpi shapes them: the weight's shape with its last, or second-last, axis replaced by the rank."""
    *outer, rows, columns = weight.shape
    return rng.normal(size=(*outer, rows, rank)), rng.normal(size=(*outer, rank, columns))


def with_lora(leaves: dict, path: str, rank: int) -> tuple[np.ndarray, np.ndarray]:
    a, b = lora(np.random.default_rng(7), leaves[path], rank)
    stem = path.removesuffix("w") + "lora_" if path.endswith("/w") else path + "_lora_"
    leaves |= {stem + "a": a.astype(np.float32), stem + "b": b.astype(np.float32)}
    return leaves[stem + "a"].astype(np.float64), leaves[stem + "b"].astype(np.float64)


@pytest.mark.parametrize(("suffix", "rank", "prefix_"), [("", 16, G), ("_1", 32, X)])
def test_lora_of_the_projections(leaves: dict, suffix: str, rank: int, prefix_: str) -> None:
    """Explicit sums on random activations: what openpi's einsums compute is what the merged matrices compute."""
    plain = converted(dict(leaves))
    q_path, kv_path = f"{LLM}attn/q_einsum{suffix}/w", f"{LLM}attn/kv_einsum{suffix}/w"
    gate_path, down_path = f"{LLM}mlp{suffix}/gating_einsum", f"{LLM}mlp{suffix}/linear"
    pairs = {path: with_lora(leaves, path, rank) for path in (q_path, kv_path, gate_path, down_path)}
    merged = converted(leaves)
    rng = np.random.default_rng(1)
    for i in range(4):
        layer = f"{prefix_}layers.{i}."
        width = leaves[q_path].shape[2]
        x = rng.normal(size=(3, width))
        q = np.einsum("td,hdk->thk", x, leaves[q_path][i])
        q += np.einsum("thr,hrk->thk", np.einsum("td,hdr->thr", x, pairs[q_path][0][i]), pairs[q_path][1][i])
        assert np.allclose(x @ merged[layer + "self_attn.q_proj.weight"].T, q.reshape(3, -1), atol=1e-3)
        for c, letter in enumerate("kv"):
            (a, b), w = pairs[kv_path], leaves[kv_path]
            y = x @ w[i, c, 0] + (x @ a[i, c, 0]) @ b[i, c, 0]
            assert np.allclose(x @ merged[f"{layer}self_attn.{letter}_proj.weight"].T, y, atol=1e-3)
        for c, name in enumerate(("gate", "up")):
            (a, b), w = pairs[gate_path], leaves[gate_path]
            y = x @ w[i, c] + (x @ a[i, c]) @ b[i, c]
            assert np.allclose(x @ merged[f"{layer}mlp.{name}_proj.weight"].T, y, atol=1e-3)
        (a, b), w = pairs[down_path], leaves[down_path]
        z = rng.normal(size=(3, w.shape[1]))
        assert np.allclose(z @ merged[layer + "mlp.down_proj.weight"].T, z @ w[i] + (z @ a[i]) @ b[i], atol=1e-3)
    changed = {name for name in plain if not np.array_equal(plain[name], merged[name])}
    expected = {
        "self_attn.q_proj",
        "self_attn.k_proj",
        "self_attn.v_proj",
        "mlp.gate_proj",
        "mlp.up_proj",
        "mlp.down_proj",
    }
    assert changed == {f"{prefix_}layers.{i}.{name}.weight" for i in range(4) for name in expected}


def test_lora_of_the_attention_output_sums_over_heads(leaves: dict) -> None:
    """The quirk: both einsums sum over the heads, so A goes head by head and B as the sum of all heads."""
    path = f"{LLM}attn/attn_vec_einsum/w"
    a, b = with_lora(leaves, path, 16)
    merged = converted(leaves)
    heads = np.random.default_rng(2).normal(size=(3, 8, 16))
    for i in range(4):
        down = np.einsum("tnh,nhr->tr", heads, a[i])
        y = np.einsum("tnh,nhd->td", heads, leaves[path][i]) + np.einsum("tr,nrd->td", down, b[i])
        ours = heads.reshape(3, -1) @ merged[f"{G}layers.{i}.self_attn.o_proj.weight"].T
        assert np.allclose(ours, y, atol=1e-3)
        matched = np.einsum("tnh,nhr,nrd->td", heads, a[i], b[i])
        assert not np.allclose(ours, np.einsum("tnh,nhd->td", heads, leaves[path][i]) + matched, atol=1e-1)


def test_lora_of_unknown_scale_or_half_a_pair_is_refused(leaves: dict) -> None:
    path = f"{LLM}attn/q_einsum_1/w"
    a, b = with_lora(leaves, path, 16)  # the published rank of the trunk, not of the expert
    with pytest.raises(CheckpointError, match=rf"LoRA leaves of rank 16 beside {path}: .* its alpha is unknown"):
        converted(leaves)
    merged = converted(leaves, lora_scale=0.5)[f"{X}layers.2.self_attn.q_proj.weight"]
    expected = tensors_of()[f"{X}layers.2.self_attn.q_proj.weight"] + 0.5 * np.concatenate(
        [(a[2, h] @ b[2, h]).T for h in range(8)]
    )
    assert np.allclose(merged, expected, atol=1e-4)
    del leaves[path.removesuffix("w") + "lora_b"]
    with pytest.raises(CheckpointError, match=r"unknown leaves: .*q_einsum_1/lora_a$"):
        converted(leaves, lora_scale=0.5)


# Folders


def metadata_only(folder: Path, paths: list[str], *end: str) -> Path:
    """What Orbax writes beside the data, enough to name the leaves."""
    keys = [("params", *path.split("/"), *end) for path in paths]
    entries = {str(key): {"key_metadata": [{"key": part, "key_type": 2} for part in key]} for key in keys}
    (folder / "params").mkdir(parents=True)
    (folder / "params" / "_METADATA").write_text(json.dumps({"tree_metadata": entries}))
    return folder


@pytest.mark.parametrize("end", [(), ("value",)])
def test_a_folder_is_recognised_without_orbax(tmp_path: Path, leaves: dict, end: tuple[str, ...]) -> None:
    folder = metadata_only(tmp_path / "pi0", list(leaves), *end)
    shutil.copytree(OPENPI / "assets", folder / "assets")
    for path in (folder, folder / "params"):
        checkpoint = open_folder(path)
        assert (checkpoint.format, checkpoint.family) == ("openpi-jax", "pi05")
        assert set(checkpoint.tree or ()) == set(leaves)
        assert checkpoint.statistics_for().asset_id == "droid"


def test_value_is_stripped_only_from_all(tmp_path: Path) -> None:
    folder = metadata_only(tmp_path / "x", ["a/b/value", "a/c"])
    assert set(tree_paths(folder / "params")) == {"a/b/value", "a/c"}


def test_pi0_tree_is_the_wrong_family(tmp_path: Path, leaves: dict) -> None:
    paths = [path.replace("_norm_1/Dense_0/kernel", "_norm_1/scale") for path in leaves if "Dense_0/bias" not in path]
    with pytest.raises(CheckpointError, match="wrong family: a π0 checkpoint"):
        open_folder(metadata_only(tmp_path / "pi05_base", paths))


def test_without_the_extra_the_remedy_is_named(tmp_path: Path, leaves: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("orbax", "orbax.checkpoint"):
        monkeypatch.setitem(sys.modules, name, None)  # importing it fails, installed or not
    with pytest.raises(CheckpointError, match=r"needs the optional extra: pip install 'oxygen-vla\[orbax\]'"):
        read_pi05(metadata_only(tmp_path / "x", list(leaves)))


def write(folder: Path, leaves: dict[str, np.ndarray], *end: str) -> Path:
    import orbax.checkpoint as ocp

    folder.mkdir()
    with ocp.PyTreeCheckpointer() as checkpointer:
        checkpointer.save(folder / "params", {"params": nested(leaves, *end)})
    return folder


TOLD = {"horizon": 10, "max_token_len": 32}


@needs_orbax
@pytest.mark.parametrize("end", [(), ("value",)])
def test_a_written_folder_loads_bit_for_bit(tmp_path: Path, leaves: dict, end: tuple[str, ...]) -> None:
    folder = write(tmp_path / "x", leaves, *end)
    model = load_pi05(folder, overrides=TOLD)
    assert model.spec == SPEC
    golden = golden_state()
    assert all(torch.equal(tensor, golden[name]) for name, tensor in model.state_dict().items())
    case = golden_case("a_b1_all")
    with torch.inference_mode():
        context, _ = prefill(model, prefix(model, case, 0))
        actions = flow(model, context, case["noise"][:1], 10)[-1]
    assert (actions - case["jax.actions_10"][:1]).abs().max() <= 3e-4


@needs_orbax
def test_lora_in_a_written_folder(tmp_path: Path, leaves: dict) -> None:
    path = f"{LLM}attn/attn_vec_einsum_1/w"
    with_lora(leaves, path, 8)
    folder = write(tmp_path / "x", leaves)
    with pytest.raises(CheckpointError, match="rank 8 beside"):
        load_pi05(folder, overrides=TOLD)
    edit_json(folder / "oxygen.json", lora_scale=2, spec=TOLD)
    ours = load_pi05(folder).expert.layers[1].out.weight
    expected = converted(leaves, 2.0)[f"{X}layers.1.self_attn.o_proj.weight"]
    assert torch.equal(ours, torch.from_numpy(expected))


@needs_orbax
def test_a_damaged_folder_is_refused(tmp_path: Path, leaves: dict) -> None:
    folder = write(tmp_path / "x", leaves)
    for file in (folder / "params" / "d").iterdir():
        file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(CheckpointError, match="Orbax cannot read it"):
        load_pi05(folder, overrides=TOLD)


@needs_orbax
def test_inspect_reads_every_leaf(tmp_path: Path, leaves: dict, capsys: pytest.CaptureFixture) -> None:
    folder = write(tmp_path / "x", leaves)
    words = ["inspect", str(folder), "--robot", "pi05_droid", "--without-statistics"]
    assert main(words) == 0
    assert "tensors: leaves: 51" in capsys.readouterr().out
    leaves[LLM + "mlp/linear"] = leaves[LLM + "mlp/linear"].copy()
    leaves[LLM + "mlp/linear"][2, 0, 0] = np.nan
    assert main(["inspect", str(write(tmp_path / "y", leaves)), *words[2:]]) == 1
    assert f"weights that are NaN or infinite: {G}layers.2.mlp.down_proj.weight" in capsys.readouterr().err
