"""Edits of a config.json by hand: each is refused with the setting that is wrong, by inspection and by the runner."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from checkpoint.folders import LEROBOT

from oxygen.checkpoint.shipped import resolve
from oxygen.cli.main import main
from oxygen.core.errors import OxygenError
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
