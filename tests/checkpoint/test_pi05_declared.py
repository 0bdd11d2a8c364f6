"""Edits of a config.json by hand: each is refused with the setting that is wrong, by inspection and by the runner."""

from __future__ import annotations

import copy
import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint.folders import LEROBOT
from processing.cases import byte_fallback_file

from oxygen import ActionTask, Observation, TextTask
from oxygen.checkpoint.shipped import resolve
from oxygen.cli.main import main
from oxygen.core.errors import OxygenError
from oxygen.models.pi05.accounting import account_for
from oxygen.models.pi05.opening import read_pi05

EDITS = [
    *(("spec", v) for v in (5, [1], "x")),
    *(("spec.horizon", v) for v in (0, "a", 10**6)),
    *(("spec.num_steps", v) for v in (0, 2.5, 10**9)),
    *(("processor", v) for v in (5, [1], "x")),
    *(("processor.robot", v) for v in (None, 5, [1])),
    *(("processor.robot.cameras", v) for v in (None, "x", 5)),
    *(("processor.templates", v) for v in (None, 5, [1])),
    *(("processor.slots", v) for v in (None, 5, "front_rgb", [5])),
    *(("processor.delta_mask", v) for v in (5, "x", [2])),
    *(("processor.forbidden", v) for v in (5, "x", [5])),
    *(("processor.required_cameras", v) for v in (5, "x")),
    *(("processor.default_prompt", v) for v in (5, [])),
    *(("processor.text_trained", v) for v in ("x", 5)),
    *(("processor.max_prompt_chars", v) for v in (0, "x")),
    *(("processor.asset_id", v) for v in (5, "x", "../..")),
]


def edit(file: Path, path: str, value: Any) -> None:
    content = json.loads(file.read_text())
    *outer, last = path.split(".")
    inner = content
    for key in outer:
        inner = inner[key]
    inner[last] = value
    file.write_text(json.dumps(content))


def refused(folder: Path, message: str, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(OxygenError, match=message):
        read_pi05(folder).processor()
    assert main(["inspect", str(folder), "--skip-values"]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(("path", "value"), EDITS, ids=repr)
def test_an_edit_is_refused_by_name(tmp_path: Path, capsys: pytest.CaptureFixture, path: str, value: Any) -> None:
    folder = shutil.copytree(resolve("oxygen-tiny"), tmp_path / "x")
    edit(folder / "config.json", path, value)
    message = {"cameras": "robot", "asset_id": "asset"}.get(path.split(".")[-1], path.split(".")[-1])
    refused(folder, message, capsys)


@pytest.mark.parametrize(
    ("file", "path", "value", "message"),
    [
        ("config.json", "input_features", 5, "input_features"),
        ("policy_preprocessor.json", "steps", [{"registry_name": "normalizer_processor", "config": 5}], "config"),
        (
            "policy_preprocessor.json",
            "steps",
            [{"registry_name": "normalizer_processor", "config": {"norm_map": 5}}],
            "norm_map",
        ),
    ],
)
def test_lerobot_files_too(
    tmp_path: Path, capsys: pytest.CaptureFixture, file: str, path: str, value: Any, message: str
) -> None:
    folder = shutil.copytree(LEROBOT, tmp_path / "x")
    edit(folder / file, path, value)
    refused(folder, message, capsys)


ODD = [None, True, -1, 0, 1.5, math.nan, 10**9, 10**400, "", "x" * 5000, [], [1], {"x": 1}]
NOT_READ = ("optimizer", "scheduler", "time_sampling", "metadata", "repo", "push", "n_action", "image_resolution")
OTHER_WORDS = {
    "asset_id": "asset",
    "vocab_size": "tokens",
    "state_dim": "state",
    "spec": "configuration",
    "templates": "template",
}
SWEPT = [
    (resolve("oxygen-tiny"), "config.json"),
    (LEROBOT, "config.json"),
    (LEROBOT, "oxygen.json"),
    (LEROBOT, "policy_preprocessor.json"),
    (LEROBOT, "policy_postprocessor.json"),
]


def keys_of(content: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a JSON document, but the insides of what nothing reads and all but the first of a list."""
    if path and str(path[-1]).startswith(NOT_READ):
        return
    inner = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in inner:
        if not (isinstance(key, int) and key and not isinstance(value, dict)):
            yield (*path, key)
            yield from keys_of(value, (*path, key))


def changed(content: Any, path: tuple[Any, ...], value: Any) -> Any:
    content = inner = copy.deepcopy(content)
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return content


def use(folder: Path) -> None:
    """Open a folder as the runner does, but for the weights' numbers, and take a frame there and back."""
    opened = read_pi05(folder)
    account_for(opened.checkpoint, opened.spec).check(opened.where)
    processor = opened.processor()
    images = {camera.name: np.zeros((64, 64, 3), np.uint8) for camera in processor.robot.cameras}
    state = np.zeros(processor.robot.state_dim) if processor.robot.state_dim else None
    fields = {kind: processor.templates.for_text(kind).fields() for kind in processor.kinds}
    texts = [TextTask(kind, "why" if "question" in names else None) for kind, names in fields.items()]
    encoded = processor.encode(Observation(images, state, "go"), [ActionTask()], texts)
    processor.decode_actions(np.zeros((processor.config.horizon, processor.config.action_dim), np.float32), encoded)
    json.dumps(processor.describe(), allow_nan=False)


@pytest.mark.parametrize(("source", "name"), SWEPT, ids=lambda v: v if isinstance(v, str) else v.name)
def test_every_key_is_taken_or_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture, source: Path, name: str
) -> None:
    folder = shutil.copytree(source, tmp_path / "x")
    if source == LEROBOT:
        shutil.copy(byte_fallback_file(), folder / "tokenizer.json")
    content = json.loads((folder / name).read_text())
    num_refused = 0
    for path in keys_of(content):
        for value in ODD:
            (folder / name).write_text(json.dumps(changed(content, path, value)))
            message, case = "", f"{name}: {path} = {value!r:.40}"
            try:
                use(folder)
            except OxygenError as error:
                message = str(error)
            assert main(["inspect", str(folder), "--skip-values"]) == bool(message), case
            printed = capsys.readouterr().err
            assert not message or (message in printed and len(message) < 1000), case
            words = {str(key) for key in path if isinstance(key, str)} | {
                OTHER_WORDS.get(str(path[-1]), "of a wrong shape")
            }
            assert not message or any(word in message for word in words), f"{case}: {message}"
            num_refused += bool(message)
    assert num_refused > 10


@pytest.mark.parametrize(
    ("name", "path", "value"),
    [
        ("tokenizer.json", ("model", "continuing_subword_prefix"), "x" * 5000),  # the library panics
        ("tokenizer.json", ("model", "vocab", "<pad>"), 2**31),
        ("tokenizer.json", ("decoder", "decoders", 0, "type"), []),
        ("assets/metaworld-8/norm_stats.json", ("norm_stats", "state", "q01", 0), 10**400),
    ],
    ids=lambda v: str(v)[:30],
)
def test_files_beside_the_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture, name: str, path: tuple[Any, ...], value: Any
) -> None:
    folder = shutil.copytree(resolve("oxygen-tiny"), tmp_path / "x")
    content = json.loads((folder / name).read_text())
    (folder / name).write_text(json.dumps(changed(content, path, value)))
    refused(folder, Path(name).name, capsys)
