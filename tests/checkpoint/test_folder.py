"""A folder says what it is, or why it is nothing that can be used."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from checkpoint.folders import ACTION_IN, LEROBOT, LM_HEAD, OPENPI, copy_of, edit_json, sharded

from oxygen.checkpoint import open_folder
from oxygen.core.errors import CheckpointError

INDEX = "model.safetensors.index.json"


def refused(folder: Path, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        open_folder(folder)


@pytest.mark.parametrize(("folder", "format", "count"), [(OPENPI, "openpi-pytorch", 132), (LEROBOT, "lerobot", 133)])
def test_golden_folders(folder: Path, format: str, count: int) -> None:
    checkpoint = open_folder(folder)
    assert (checkpoint.format, checkpoint.family) == (format, "pi05")
    assert checkpoint.tensors is not None and len(checkpoint.tensors) == count
    assert checkpoint.tensors.dtypes == {"F32": count}
    assert checkpoint.statistics_for().state is not None


def test_the_name_of_the_folder_means_nothing(tmp_path: Path) -> None:
    assert open_folder(copy_of(OPENPI, tmp_path / "pi0_base")).family == "pi05"


def test_shards_are_one_folder(tmp_path: Path) -> None:
    checkpoint = open_folder(sharded(OPENPI, tmp_path / "x"))
    assert checkpoint.tensors is not None
    assert len(checkpoint.tensors) == 132 and len(checkpoint.tensors.files) == 3


def test_a_shard_that_is_absent(tmp_path: Path) -> None:
    folder = sharded(OPENPI, tmp_path / "x")
    (folder / "model-00002-of-00003.safetensors").unlink()
    refused(folder, r"not in the folder: model-00002-of-00003\.safetensors$")


def test_a_shard_that_is_short(tmp_path: Path) -> None:
    shard = sharded(OPENPI, tmp_path / "x") / "model-00003-of-00003.safetensors"
    shard.write_bytes(shard.read_bytes()[:-100])
    refused(tmp_path / "x", r"model-00003-of-00003\.safetensors: truncated")


def test_a_shard_with_trailing_bytes(tmp_path: Path) -> None:
    shard = sharded(OPENPI, tmp_path / "x") / "model-00001-of-00003.safetensors"
    shard.write_bytes(shard.read_bytes() + b"x")
    refused(tmp_path / "x", r"model-00001-of-00003\.safetensors: 1 trailing bytes")


def test_an_index_that_promises_or_hides_a_tensor(tmp_path: Path) -> None:
    folder = sharded(OPENPI, tmp_path / "x")
    content = json.loads((folder / INDEX).read_text())
    shard = content["weight_map"].pop(ACTION_IN)
    (folder / INDEX).write_text(json.dumps(content))
    refused(folder, rf"{shard}: holds tensors that the index does not list: {ACTION_IN}$")
    content["weight_map"] |= {ACTION_IN: shard, "ghost": shard}
    (folder / INDEX).write_text(json.dumps(content))
    refused(folder, rf"{shard}: lacks tensors that the index puts there: ghost$")


@pytest.mark.parametrize("weight_map", [None, [1], {"a": 1}, {"a": "../model.safetensors"}])
def test_an_index_that_is_none(tmp_path: Path, weight_map: object) -> None:
    folder = sharded(OPENPI, tmp_path / "x")
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    refused(folder, r"index\.json: (has no weight_map|shards must be plain file names)")


def test_single_file_and_index_together(tmp_path: Path) -> None:
    folder = sharded(OPENPI, tmp_path / "x")
    (folder / "model.safetensors").write_bytes((OPENPI / "model.safetensors").read_bytes())
    refused(folder, "holds both")


@pytest.mark.parametrize("text", ["{", "[]", '{"a": 1, "a": 2}', '{"a":' + "[" * 100_000])
def test_config_that_is_no_json_object(tmp_path: Path, text: str) -> None:
    folder = copy_of(OPENPI, tmp_path / "x")
    (folder / "config.json").write_text(text)
    refused(folder, r"config\.json: (not valid JSON|expected a JSON object)")


def test_no_folder_and_no_weights(tmp_path: Path) -> None:
    refused(tmp_path / "nowhere", "nowhere: does not exist")
    refused(OPENPI / "model.safetensors", "is a file; give the folder")
    refused(tmp_path, "no weights: neither model.safetensors")
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04")
    refused(tmp_path, r"only pickled weights \(pytorch_model\.bin\), which are never loaded")
    (tmp_path / "adapter_model.safetensors").write_bytes(b"")
    refused(tmp_path, "has only an adapter")


def test_families_that_are_not_served_are_named(tmp_path: Path) -> None:
    def as_pi0(tensors: dict) -> None:
        for name in [n for n in tensors if "gemma_expert" in n and ".dense." in n]:
            value = tensors.pop(name)
            if name.endswith("weight"):
                tensors[name.replace(".dense.weight", ".weight")] = value[:, 0]

    def as_paligemma(tensors: dict) -> None:
        for name in [n for n in tensors if "gemma_expert" in n or not n.startswith("paligemma")]:
            del tensors[name]
        for name in list(tensors):
            tensors[name.replace("paligemma_with_expert.", "")] = tensors.pop(name)

    def as_something(tensors: dict) -> None:
        tensors.clear()
        tensors["transformer.wte.weight"] = np.ones(3, np.float32)

    refused(copy_of(OPENPI, tmp_path / "a", as_pi0), "wrong family: a π0 checkpoint .*served: pi05")
    refused(copy_of(OPENPI, tmp_path / "b", as_paligemma), "wrong family: a vision-language model without an action")
    refused(copy_of(OPENPI, tmp_path / "c", as_something), r"wrong family: .*it holds transformer\.wte\.weight")
    folder = copy_of(LEROBOT, tmp_path / "d")
    edit_json(folder / "config.json", type="smolvla")
    refused(folder, "wrong family: declares type 'smolvla', the tensors are pi05")


def test_our_format_is_checked(tmp_path: Path) -> None:
    folder = copy_of(OPENPI, tmp_path / "x")
    edit_json(folder / "config.json", format="oxygen", version=2)
    refused(folder, "version 2 of the oxygen format; this release reads version 1")
    edit_json(folder / "config.json", version=1, family="pi0")
    refused(folder, "wrong family: declares 'pi0', the tensors are pi05")
    edit_json(folder / "config.json", family="pi05")
    assert open_folder(folder).format == "oxygen"
    (folder / "oxygen.json").write_text("{}")
    refused(folder, r"oxygen\.json: a folder of the oxygen format says everything in config\.json")


def test_sidecar(tmp_path: Path) -> None:
    folder = copy_of(OPENPI, tmp_path / "x")
    edit_json(folder / "oxygen.json", robot="droid", sizes={})
    refused(folder, r"oxygen\.json: unknown sizes; known: ")
    edit_json(folder / "oxygen.json", sizes=None)
    assert open_folder(folder).declared == {"robot": "droid"}


def test_tokenizer_files(tmp_path: Path) -> None:
    folder = copy_of(OPENPI, tmp_path / "x")
    assert open_folder(folder).tokenizer is None
    for name in ("tokenizer.json", "tokenizer.model", "mine.model"):
        (folder / name).write_text("{}")
    assert open_folder(folder).tokenizer == folder / "tokenizer.model"
    edit_json(folder / "oxygen.json", tokenizer="mine.model")
    assert open_folder(folder).tokenizer == folder / "mine.model"
    edit_json(folder / "oxygen.json", tokenizer="../mine.model")
    refused(folder, "tokenizer: expected the name of a file of the folder, got '../mine.model'")


def test_statistics_are_never_chosen_by_luck(tmp_path: Path) -> None:
    """One set is the set, several need a name, an unknown name is an error."""
    folder = copy_of(OPENPI, tmp_path / "x")
    other = folder / "assets" / "physical-intelligence" / "libero"
    other.mkdir(parents=True)
    (other / "norm_stats.json").write_bytes((folder / "assets" / "droid" / "norm_stats.json").read_bytes())
    checkpoint = open_folder(folder)
    assert [found.asset_id for found in checkpoint.statistics] == ["droid", "physical-intelligence/libero"]
    assert checkpoint.statistics_for("physical-intelligence/libero").digest == checkpoint.statistics_for("droid").digest
    with pytest.raises(CheckpointError, match=r"several sets of statistics.*droid, physical-intelligence/libero"):
        checkpoint.statistics_for()
    with pytest.raises(CheckpointError, match="no statistics for asset 'trossen'; there are: droid"):
        checkpoint.statistics_for("trossen")
    edit_json(folder / "oxygen.json", asset_id="droid")
    assert open_folder(folder).statistics_for().asset_id == "droid"


def test_missing_and_broken_statistics(tmp_path: Path) -> None:
    folder = copy_of(OPENPI, tmp_path / "x")
    file = folder / "assets" / "droid" / "norm_stats.json"
    content = json.loads(file.read_text())
    content["norm_stats"]["state"]["q01"][2] = float("nan")
    file.write_text(json.dumps(content))
    refused(folder, r"norm_stats\.json: state: q01 has numbers that are not finite")
    file.unlink()
    with pytest.raises(CheckpointError, match="no normalisation statistics"):
        open_folder(folder).statistics_for()


def test_lerobot_state_file_that_is_absent(tmp_path: Path) -> None:
    folder = copy_of(LEROBOT, tmp_path / "x")
    (folder / "policy_preprocessor_step_2_normalizer_processor.safetensors").unlink()
    refused(folder, "names the statistics policy_preprocessor_step_2_normalizer_processor.safetensors, which")


def test_adapter_beside_the_model(tmp_path: Path) -> None:
    folder = copy_of(OPENPI, tmp_path / "x")
    (folder / "adapter_model.safetensors").write_bytes((OPENPI / "model.safetensors").read_bytes())
    refused(folder, r"adapter_config\.json: cannot be read")
    edit_json(folder / "adapter_config.json", lora_alpha=4)
    refused(folder, rf"adapter_model\.safetensors: holds tensors that the model has too: .*{LM_HEAD}")


def test_a_shipped_name_is_a_folder_unless_one_is_called_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oxygen.checkpoint.shipped.ASSETS", tmp_path / "assets")
    (tmp_path / "assets").mkdir()
    copy_of(OPENPI, tmp_path / "assets" / "oxygen-tiny")
    assert open_folder("oxygen-tiny").folder == tmp_path / "assets" / "oxygen-tiny"
    monkeypatch.chdir(tmp_path)
    copy_of(LEROBOT, tmp_path / "oxygen-tiny")
    assert open_folder("oxygen-tiny").format == "lerobot"
