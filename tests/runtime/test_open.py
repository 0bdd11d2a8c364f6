"""Opening runners from presets, folders and models, and what is refused."""

from __future__ import annotations

import logging
import shutil
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from runtime.harness import act_item, fill, frame, model_of, noise_of
from runtime.reference import make_inputs

from oxygen import Engine
from oxygen.checkpoint import open_folder
from oxygen.checkpoint.shipped import resolve
from oxygen.cli.main import main
from oxygen.core.errors import CheckpointError, InvalidInput, OxygenError, Refused
from oxygen.models.pi05.spec import PRESETS
from oxygen.models.pi05.torch.weights import save_pi05
from oxygen.runtime.torch.open import open_runner

SMALL = {"max_contexts": 2, "max_texts": 2, "tail_len": 8}


def test_a_preset_has_the_same_random_weights_for_the_same_seed():
    chunks = []
    for seed in (0, 0, 1):
        runner = open_runner("pi05-tiny", seed=seed, **SMALL)
        spec = PRESETS["pi05-tiny"]
        inputs = make_inputs(spec, 1, 2, 9)
        fill(runner, {0: inputs})
        noise = np.ones((spec.horizon, spec.action_dim), dtype=np.float32)
        chunks.append(runner.act([replace(act_item(0, inputs, noise), num_steps=2)])[0])
    assert np.array_equal(chunks[0], chunks[1]) and not np.array_equal(chunks[0], chunks[2])


def test_limits_and_info_of_a_preset():
    runner = open_runner("pi05-tiny", dtype="bfloat16", spec={"horizon": 7}, eos_ids=(1, 4), **SMALL)
    limits = runner.limits
    assert (limits.max_contexts, limits.max_texts, limits.tail_len, limits.context_len) == (2, 2, 8, 112)
    assert (limits.horizon, limits.vocab_size, limits.eos_ids, limits.num_steps) == (7, 1024, (1, 4), 10)
    assert limits.bytes_per_context == 112 * 2 * 4 * 32 * 2 + 128 * 2
    info = runner.info()
    assert info["dtype"] == "bfloat16" and info["device"] == "cpu" and info["graphs"]["mode"] == "off"
    assert info["store_bytes"] == runner.store.shape.total_bytes(torch.bfloat16)


def test_bfloat16_runs_and_stays_near_float32():
    results = []
    for dtype in ("float32", "bfloat16"):
        runner = open_runner("pi05-tiny", dtype=dtype, **SMALL)
        inputs = make_inputs(PRESETS["pi05-tiny"], 1, 2, 9)
        fill(runner, {0: inputs})
        noise = np.random.default_rng(0).standard_normal((10, 32)).astype(np.float32)
        results.append(runner.act([act_item(0, inputs, noise)])[0])
    assert np.abs(results[0] - results[1]).max() < 0.05 * np.abs(results[0]).max()


def test_a_folder_gives_what_the_model_gave(tmp_path):
    save_pi05(model_of(), tmp_path / "folder")
    sizes = {"max_contexts": 2, "max_texts": 2, "tail_len": 8}
    inputs = frame(1)
    chunks = []
    for source in (tmp_path / "folder", deepcopy(model_of())):
        runner = open_runner(source, **sizes)
        fill(runner, {0: inputs})
        chunks.append(runner.act([act_item(0, inputs, noise_of(0))])[0])
    assert np.array_equal(*chunks)


def test_what_cannot_be_opened(tmp_path):
    with pytest.raises(InvalidInput, match="pi05-tiny"):
        open_runner("pi05-enormous")
    with pytest.raises(CheckpointError):
        open_runner(tmp_path)
    with pytest.raises(InvalidInput, match="dtype"):
        open_runner("pi05-tiny", dtype="float64")
    with pytest.raises(InvalidInput, match="max_texts"):
        open_runner("pi05-tiny", max_texts=0)


def test_storage_and_weights_beyond_the_memory_are_refused(monkeypatch):
    with pytest.raises(Refused, match=r"storage need .* GB") as refusal:
        open_runner("pi05-tiny", max_contexts=10**9)
    assert refusal.value.reason == "memory"

    class Little:
        available = 10**9

    monkeypatch.setattr("oxygen.runtime.torch.open.psutil.virtual_memory", Little)
    with pytest.raises(Refused, match="weights of pi05 need"):
        open_runner("pi05", dtype="bfloat16")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("max_contexts", v) for v in (0, 1.5, "4", True)),
        *(("tail_len", v) for v in (0, None)),
        *(("context_len", v) for v in (0, -5, "a")),
        *(("threads", v) for v in (0, -1, "a", 10**9)),
        *(("seed", v) for v in (-1, 2**70, "x", 1.5)),
        *(("lookahead", v) for v in (5, "x")),
        *(("poison_freed", v) for v in (None, "x")),
        *(("eos_ids", v) for v in (5, "x", [-1], [10**9], [None])),
        *(("forbidden_ids", v) for v in (5, "x", np.zeros(3, bool), np.zeros(1024))),
        *(("spec", v) for v in (5, "x", [1], {5: 1}, {"vision": 5}, {"horizon": "x"}, {"nope": 1})),
        *(("device", v) for v in ("nowhere", None, [])),
        *(("dtype", v) for v in ("float16", None, [])),
        ("graphs", "x"),
    ],
    ids=repr,
)
def test_sizes_and_devices_are_refused_by_name(field, value):
    with pytest.raises(InvalidInput) as caught:
        open_runner("pi05-tiny", **{field: value})
    assert caught.value.field == field


NO_FOLDERS = [None, 5, b"oxygen-tiny", "", "x" * 5000, "a\0b", [], {}, 1.5, True, object(), "nowhere", "nowhere/at all"]


def odd_folders(folder):
    """Folders that are none, or cannot be used: a file, below a file, an empty one, one without config, a loop."""
    (folder / "file").write_text("x")
    (folder / "empty").mkdir()
    (folder / "loop").symlink_to(folder / "loop")
    shutil.copytree(resolve("oxygen-tiny"), folder / "bare")
    (folder / "bare" / "config.json").unlink()
    return [folder / name for name in ("file", "file/x", "empty", "loop", "bare")]


def test_what_is_no_folder_is_refused(tmp_path):
    for odd in [*NO_FOLDERS, *odd_folders(tmp_path)]:
        for open_it in (open_runner, Engine.from_pretrained):
            with pytest.raises(OxygenError) as caught:
                open_it(odd)
            assert len(str(caught.value)) < 400
    for sizes in (5, "x", [1], {5: 1}, {"vision": 5}):
        with pytest.raises(OxygenError, match=r"spec|configuration"):
            Engine.from_pretrained("oxygen-tiny", spec=sizes)
    for robot in (5, [], "", {}):
        with pytest.raises(OxygenError, match="robot"):
            Engine.from_pretrained("oxygen-tiny", robot=robot)


@pytest.mark.parametrize("command", ["inspect", "serve", "bench frame --model", "eval --model"])
def test_commands_say_it_in_one_line(tmp_path, capsys, monkeypatch, command):
    monkeypatch.setattr(logging.root, "handlers", [])  # `serve` sets up its own
    for odd in ["", "x" * 5000, "nowhere", *map(str, odd_folders(tmp_path))]:
        assert main([*command.split(), odd]) == 1
        errors = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
        assert len(errors) == 1 and errors[0].startswith(f"oxygen {command.split()[0]}: error: ")


def test_a_folder_that_may_not_be_read(tmp_path, monkeypatch):
    def forbidden(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_file", forbidden)
    with pytest.raises(CheckpointError, match=r"cannot be read: .*Permission denied"):
        open_folder(tmp_path)
    monkeypatch.setattr(Path, "stat", forbidden)
    with pytest.raises(CheckpointError, match=r"cannot be looked up: .*Permission denied"):
        open_folder(tmp_path)
