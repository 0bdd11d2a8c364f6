"""`oxygen inspect`: what it says about good folders, and status 1 with one clear message for each broken kind."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from checkpoint.folders import ACTION_IN, EMBED, LEROBOT, LM_HEAD, NORM2, OPENPI, Q0, copy_of, edit_json, sharded
from processing.cases import byte_fallback_file

from oxygen.cli.main import main
from oxygen.models.pi05.spec import PRESETS
from oxygen.models.pi05.torch import build
from oxygen.models.pi05.torch.weights import save_pi05
from oxygen.processing.statistics import find_statistics

UNUSED = "paligemma_with_expert.gemma_expert.lm_head.weight"


def inspect(capsys: pytest.CaptureFixture, *words: str | Path) -> tuple[int, str, str]:
    status = main(["inspect", *map(str, words)])
    out, err = capsys.readouterr()
    return status, out, err


def report_of(capsys: pytest.CaptureFixture, *words: str | Path) -> dict:
    status, out, err = inspect(capsys, *words, "--json")
    assert (status, err) == (0, "")
    return json.loads(out)


def test_openpi_folder(capsys: pytest.CaptureFixture) -> None:
    status, out, err = inspect(capsys, OPENPI, "--robot", "droid")
    assert (status, err) == (0, "")
    for line in (
        "checkpoint: family: pi05",
        "checkpoint: format: openpi-pytorch",
        "sizes: parameters: vision 0.08 M, trunk 0.21 M, expert 0.10 M, heads 0.00 M, total 0.40 M",
        "memory: KV, float32: 512 B a token, 409.6 kB a context of 800 tokens",
        "memory: KV, bfloat16: 256 B a token, 204.8 kB a context of 800 tokens",
        "robot and text: robot: droid (named by the caller)",
        "robot and text: dims: state 8, actions 8",
        "robot and text: text: not declared by the folder (prompts are known for subtask)",
        r'prompts: action: "Task: {prompt}, State: {state};\nAction: "',
        "tensors: stored: 132 (132 F32) in model.safetensors",
        "tensors: missing: none",
        "tensors: unknown: none",
    ):
        assert line in out.splitlines()
    assert f"tensors: known unused: {UNUSED}: text head of the action expert" in out
    assert "statistics: chosen: droid: state 8, actions 8, sha256 " + find_statistics(OPENPI)[0].digest[:16] in out


def test_lerobot_folder(capsys: pytest.CaptureFixture) -> None:
    report = report_of(capsys, LEROBOT)
    assert report["format"] == "lerobot" and report["problems"] == []
    tensors = report["tensors"]
    assert tensors["missing"] == tensors["unknown"] == [] and list(tensors["unused"]) == ["model." + UNUSED]
    assert tensors["used"] == 131 and tensors["tied"] == ["model." + EMBED]
    assert report["statistics"]["chosen"]["actions"] == report["robot"]["action_dim"] == 7
    assert any("gemma_2b" in warning for warning in report["warnings"])


def test_the_same_trunk_has_the_same_fingerprint(capsys: pytest.CaptureFixture, tmp_path: Path) -> None:
    def of(folder: Path) -> str:
        return report_of(capsys, folder)["tensors"]["trunk_fingerprint"]

    def change(name: str, number: float) -> Callable[[dict], None]:
        return lambda tensors: tensors[name].reshape(-1).__setitem__(0, number)

    assert of(OPENPI) == of(LEROBOT)
    assert of(copy_of(OPENPI, tmp_path / "a", change(ACTION_IN, 5.0))) == of(OPENPI)
    assert of(copy_of(OPENPI, tmp_path / "b", change(Q0, 5.0))) != of(OPENPI)


def test_our_folder_declares_its_text(capsys: pytest.CaptureFixture, tmp_path: Path) -> None:
    """Whether a checkpoint can speak is something that it says itself."""
    robot = {"name": "generic", "cameras": {"front": "front_rgb"}, "state_dim": 8, "action_dim": 8}
    folder = save_pi05(
        build(PRESETS["pi05-tiny"], seed=0),
        tmp_path / "x",
        processor={"robot": robot, "templates": "shared", "slots": ["front_rgb"]},
        statistics=find_statistics(OPENPI),
    )
    report = report_of(capsys, folder)
    assert report["text"] == {"declared": True, "kinds": ["subtask", "narration", "memory", "answer"]}
    assert report["parameters"]["total"] == PRESETS["pi05-tiny"].num_parameters()
    assert report["tensors"]["bytes"]["total"] == 4 * report["parameters"]["total"]
    assert report["robot"]["cameras"] == {"front": "front_rgb"}
    _, out, _ = inspect(capsys, folder)
    assert "robot and text: text: declared: subtask, narration, memory, answer" in out


def test_a_robot_that_is_open_is_a_warning(capsys: pytest.CaptureFixture) -> None:
    status, out, _ = inspect(capsys, OPENPI)
    assert status == 0
    assert "does not say which robot it is for (open: one of droid, droid-joint-position); name it with --robot" in out


def test_several_statistics(capsys: pytest.CaptureFixture, tmp_path: Path) -> None:
    folder = copy_of(OPENPI, tmp_path / "x")
    second = folder / "assets" / "mine"
    second.mkdir()
    content = json.loads((folder / "assets" / "droid" / "norm_stats.json").read_text())
    content["norm_stats"]["state"]["q99"][0] *= 10
    (second / "norm_stats.json").write_text(json.dumps(content))
    assert report_of(capsys, folder, "--robot", "droid")["statistics"]["chosen"]["asset_id"] == "droid"
    assert (
        report_of(capsys, folder, "--robot", "droid", "--asset-id", "mine")["statistics"]["chosen"]["asset_id"]
        == "mine"
    )
    (folder / "assets" / "droid").rename(folder / "assets" / "theirs")
    _, out, _ = inspect(capsys, folder, "--robot", "droid")
    assert "several sets of statistics; name the asset that is meant: mine, theirs" in out


def test_lora_is_reported(capsys: pytest.CaptureFixture, tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    folder = copy_of(OPENPI, tmp_path / "x")
    leaves = {"action_in_proj.lora_A.weight": np.ones((2, 12)), "action_in_proj.lora_B.weight": np.ones((32, 2))}
    save_file({name: leaf.astype(np.float32) for name, leaf in leaves.items()}, folder / "adapter_model.safetensors")
    edit_json(folder / "adapter_config.json", r=2, lora_alpha=4)
    assert report_of(capsys, folder, "--robot", "droid")["tensors"]["lora"] == sorted(leaves)


def test_a_tokenizer_is_opened_and_must_fit(capsys: pytest.CaptureFixture, tmp_path: Path) -> None:
    folder = copy_of(OPENPI, tmp_path / "x")
    (folder / "tokenizer.json").write_bytes(byte_fallback_file().read_bytes())
    report = report_of(capsys, folder, "--robot", "droid")
    assert report["tokenizer"]["file"] == "tokenizer.json" and 256 < report["tokenizer"]["vocab_size"] < 512
    assert not report["warnings"]
    (folder / "tokenizer.json").write_text("{}")
    status, _, err = inspect(capsys, folder, "--robot", "droid")
    one_clear_message(status, err, "tokenizer.json: not a tokenizer file")


# Broken folders


def shard_gone(folder: Path) -> None:
    (folder / "model-00002-of-00003.safetensors").unlink()


def shard_short(folder: Path) -> None:
    file = folder / "model-00002-of-00003.safetensors"
    file.write_bytes(file.read_bytes()[:-10])


def shard_trailing(folder: Path) -> None:
    file = folder / "model-00002-of-00003.safetensors"
    file.write_bytes(file.read_bytes() + bytes(3))


def no_statistics(folder: Path) -> None:
    (folder / "assets" / "droid" / "norm_stats.json").unlink()


def short_statistics(folder: Path) -> None:
    file = folder / "assets" / "droid" / "norm_stats.json"
    content = json.loads(file.read_text())
    content["norm_stats"]["state"] = {key: value[:7] for key, value in content["norm_stats"]["state"].items()}
    file.write_text(json.dumps(content))


def no_quantiles(folder: Path) -> None:
    file = folder / "assets" / "droid" / "norm_stats.json"
    content = json.loads(file.read_text())
    for group in content["norm_stats"].values():
        group["q01"] = None
    file.write_text(json.dumps(content))


def truncated(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-10])


def trailing(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes() + b"tail")


def bad_config(folder: Path) -> None:
    (folder / "config.json").write_text("{'a': 1}")


def to_pi0(tensors: dict) -> None:
    for name in [n for n in tensors if "gemma_expert" in n and ".dense." in n]:
        tensors[name.replace(".dense.", ".")] = tensors.pop(name).reshape(-1)


BROKEN_FILES = {
    "truncated": (truncated, "truncated: "),
    "trailing": (trailing, "4 trailing bytes"),
    "bad config": (bad_config, "config.json: not valid JSON"),
    "no statistics": (no_statistics, "no normalisation statistics"),
    "short statistics": (short_statistics, "statistics 'droid' know 7 dimensions of state; robot droid has 8"),
    "no quantiles": (no_quantiles, "the statistics lack q01"),
}
BROKEN_TENSORS = {
    "missing": (lambda t: t.pop(NORM2), f"missing tensors: {NORM2}\n"),
    "missing table": (lambda t: t.pop(LM_HEAD), "missing tensors: the token table, under any of"),
    "unknown": (lambda t: t.update(extra=np.ones(2, np.float32)), "unknown tensors: extra\n"),
    "shape": (lambda t: t.update({NORM2: t[NORM2][:5]}), f"wrong shape: {NORM2} [5], expected [64]\n"),
    "type": (lambda t: t.update({NORM2: t[NORM2].astype(np.int8)}), f"cannot have: {NORM2} I8\n"),
    "NaN": (lambda t: t[NORM2].__setitem__(0, np.nan), f"weights that are NaN or infinite: {NORM2}\n"),
    "family": (to_pi0, "wrong family: a π0 checkpoint"),
    "drifted": (lambda t: t.update({EMBED: t[LM_HEAD] + 1}), f"tied tensors differ: {LM_HEAD}, {EMBED}\n"),
    "LoRA": (lambda t: t.update({"x.lora_A.weight": np.ones((2, 2), np.float32)}), "cannot be merged: x.lora_A.weight"),
}
BROKEN_SHARDS = {
    "gone": (shard_gone, "not in the folder: model-00002-of-00003.safetensors\n"),
    "short": (shard_short, "model-00002-of-00003.safetensors: truncated"),
    "trailing": (shard_trailing, "model-00002-of-00003.safetensors: 3 trailing bytes"),
}


def one_clear_message(status: int, err: str, message: str) -> None:
    assert status == 1
    assert err.startswith("oxygen inspect: error: ") and err.count("\n") == 1
    assert message in err and "Traceback" not in err


@pytest.mark.parametrize("kind", BROKEN_FILES)
def test_broken_files(capsys: pytest.CaptureFixture, tmp_path: Path, kind: str) -> None:
    damage, message = BROKEN_FILES[kind]
    folder = copy_of(OPENPI, tmp_path / "x")
    damage(folder)
    status, _, err = inspect(capsys, folder, "--robot", "droid")
    one_clear_message(status, err, message)


@pytest.mark.parametrize("kind", BROKEN_TENSORS)
def test_broken_tensors(capsys: pytest.CaptureFixture, tmp_path: Path, kind: str) -> None:
    change, message = BROKEN_TENSORS[kind]
    status, _, err = inspect(capsys, copy_of(OPENPI, tmp_path / "x", change), "--robot", "droid")
    one_clear_message(status, err, message)


@pytest.mark.parametrize("kind", BROKEN_SHARDS)
def test_broken_shards(capsys: pytest.CaptureFixture, tmp_path: Path, kind: str) -> None:
    damage, message = BROKEN_SHARDS[kind]
    folder = sharded(OPENPI, tmp_path / "x")
    assert inspect(capsys, folder, "--robot", "droid")[0] == 0
    damage(folder)
    status, _, err = inspect(capsys, folder, "--robot", "droid")
    one_clear_message(status, err, message)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--robot", "drone"], "robot 'drone' (named by the caller) is unknown; robots: libero, droid"),
        (["--robot", "aloha"], "14 actions do not fit a model of action_dim 12"),
        (["--robot", "droid", "--asset-id", "trossen"], "no statistics for asset 'trossen'; there are: droid"),
        (["--robot", "droid", "--set", "trunk.width=3"], "trunk.width is 64 by the tensors, told 3"),
        (["--robot", "droid", "--set", "width"], "--set: expected KEY=N with a whole number N, got 'width'"),
    ],
)
def test_wrong_wishes(capsys: pytest.CaptureFixture, words: list[str], message: str) -> None:
    status, _, err = inspect(capsys, OPENPI, *words)
    one_clear_message(status, err, message)


def test_nothing_there(capsys: pytest.CaptureFixture, tmp_path: Path) -> None:
    one_clear_message(*inspect(capsys, tmp_path / "x")[::2], "does not exist")
    one_clear_message(*inspect(capsys, tmp_path)[::2], "no weights")


def test_what_was_asked_not_to_matter_does_not(capsys: pytest.CaptureFixture, tmp_path: Path) -> None:
    def poison(tensors: dict) -> None:
        tensors[NORM2][0] = np.nan

    folder = copy_of(OPENPI, tmp_path / "x", poison)
    no_statistics(folder)
    status, _, err = inspect(capsys, folder, "--without-statistics", "--skip-values")
    assert (status, err) == (0, "")


def test_a_folder_that_cannot_be_loaded_is_still_described(capsys: pytest.CaptureFixture, tmp_path: Path) -> None:
    folder = copy_of(LEROBOT, tmp_path / "x")
    (folder / "oxygen.json").unlink()
    status, out, err = inspect(capsys, folder)
    one_clear_message(status, err, "no tensor shows its number of heads")
    assert "checkpoint: family: pi05" in out and "statistics: available: lerobot" in out
    assert "tensors: missing: none" in out and "tensors: used: 131" in out
    assert inspect(capsys, folder, "--set", "vision.num_heads=4")[0] == 0


def test_an_unknown_name(capsys: pytest.CaptureFixture) -> None:
    status, _, err = inspect(capsys, "nothing-of-that-name")
    one_clear_message(status, err, "shipped names: oxygen-tiny")
    assert "pi05-tiny" in err and "qwen3vl-tiny" in err


@pytest.mark.parametrize("name", ["pi05-tiny", "qwen3vl-4b"])
def test_a_preset_shows_its_sizes(capsys: pytest.CaptureFixture, name: str) -> None:
    status, out, err = inspect(capsys, name)
    assert status == 0 and not err
    assert f"preset {name}" in out and "random weights" in out and "KV, bfloat16" in out and "parameters" in out


def test_as_a_program_piped_and_cut_off() -> None:
    source = Path(main.__code__.co_filename).parents[2]
    command = f"{sys.executable} -m oxygen.cli.main inspect {OPENPI} | head -n 1"
    done = subprocess.run(
        command,
        shell=True,
        capture_output=True,
        text=True,
        timeout=60,
        env={"PYTHONPATH": str(source), "PATH": "/usr/bin:/bin"},
    )
    assert done.stdout == f"checkpoint: folder: {OPENPI}\n" and "Error" not in done.stderr


def test_on_a_terminal_it_is_laid_out(capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    status, out, _ = inspect(capsys, LEROBOT)
    assert status == 0
    assert "tensors: stored" not in out and "\x1b[" in out
    assert all(text in out for text in ("tensors", "known unused", "131"))


def test_a_size_that_is_a_part_too_is_refused(capsys: pytest.CaptureFixture) -> None:
    status, _, err = inspect(capsys, OPENPI, "--set", "vision=5", "--set", "vision.num_heads=4")
    assert status == 1 and "--set: expected" in err and "vision" in err
