"""Statistics are found, checked, identified and never chosen by luck; both layouts of files are read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processing.cases import DATA, lerobot_folder, statistics

from oxygen.core.errors import CheckpointError
from oxygen.processing.lerobot import read_pipeline, robot_from_config
from oxygen.processing.statistics import (
    FieldStatistics,
    Statistics,
    choose_statistics,
    find_statistics,
    read_statistics,
    write_statistics,
)


def test_golden_file_is_read_and_its_flat_dimensions_reported() -> None:
    found = read_statistics(DATA / "norm_stats.json", "golden")
    assert found.state.dim == found.actions.dim == 8
    assert found.state.degenerate_dims("quantile") == (7,)
    assert found.state.degenerate_dims("zscore") == (6,)
    assert found.state.degenerate_dims("identity") == ()


def test_written_statistics_are_read_back_the_same(tmp_path: Path) -> None:
    found = read_statistics(DATA / "norm_stats.json", "physical-intelligence/libero")
    path = write_statistics(found, tmp_path)
    assert path == tmp_path / "assets/physical-intelligence/libero/norm_stats.json"
    (again,) = find_statistics(tmp_path)
    assert again.asset_id == found.asset_id and again.digest == found.digest
    assert json.loads(path.read_text()) == json.loads((DATA / "norm_stats.json").read_text())


def test_digest_follows_the_numbers_only() -> None:
    one, same, other = statistics("droid"), statistics("droid"), statistics("droid", low=-20, high=20)
    assert one.digest == same.digest != other.digest
    assert Statistics("renamed", one.state, one.actions).digest == one.digest


def test_several_assets_without_a_name_are_refused_naming_them(tmp_path: Path) -> None:
    write_statistics(Statistics("base", statistics("droid").state), tmp_path)
    write_statistics(Statistics("mine", statistics("droid", -20, 20).state), tmp_path)
    sets = find_statistics(tmp_path)
    with pytest.raises(CheckpointError, match="base, mine"):
        choose_statistics(sets, None, "folder")
    assert choose_statistics(sets, "mine", "folder").state.q01[0] == -20
    with pytest.raises(CheckpointError, match=r"'other'.*base, mine"):
        choose_statistics(sets, "other", "folder")


def test_one_asset_under_an_unexpected_name_is_taken_and_named(tmp_path: Path) -> None:
    write_statistics(Statistics("odd/name", statistics("droid").state), tmp_path)
    assert choose_statistics(find_statistics(tmp_path), None, "folder").asset_id == "odd/name"
    with pytest.raises(CheckpointError, match="no normalisation statistics"):
        choose_statistics((), None, "folder")


@pytest.mark.parametrize("asset_id", ["../outside", "/abs", ""])
def test_asset_ids_cannot_leave_the_folder(asset_id: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="asset id"):
        write_statistics(Statistics(asset_id, statistics("droid").state), tmp_path)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"mean": [0.0, 1.0], "std": [1.0]}, "different lengths"),
        ({"mean": [float("nan")], "std": [1.0]}, "not finite"),
        ({"mean": [[0.0]], "std": [[1.0]]}, "one axis"),
        ({"mean": "zero"}, "list of numbers"),
        ({"q01": [1.0, 0.0], "q99": [0.0, 1.0]}, "q01 is above q99 in dimension 0"),
        ({"mean": [0.0], "std": [-1.0]}, "std is negative"),
        ({}, "different lengths"),
        ({"mean": [], "std": []}, "one axis"),
    ],
)
def test_broken_numbers_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        FieldStatistics.read(values, "file: state")


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"norm_stats": []}', '{"norm_stats": {"state": 3}}', '{"norm_stats": {}}']
)
def test_broken_files_are_refused(content: str, tmp_path: Path) -> None:
    path = tmp_path / "norm_stats.json"
    path.write_text(content)
    with pytest.raises(CheckpointError):
        read_statistics(path, "x")


def test_lerobot_processor_files_are_read(tmp_path: Path) -> None:
    found = read_pipeline(lerobot_folder(tmp_path))
    assert (found.state_mode, found.action_mode, found.max_token_len, found.delta_mask) == (
        "quantile",
        "quantile",
        200,
        (),
    )
    assert found.statistics.state.dim == 8 and found.statistics.actions.dim == 7
    assert np.array_equal(found.statistics.actions.q99, np.arange(7) + 3.0)


def test_lerobot_relative_actions_leave_excluded_joints_absolute(tmp_path: Path) -> None:
    names = ["shoulder.pos", "elbow.pos", "Gripper.pos"]
    relative = {"enabled": True, "exclude_joints": ["gripper"], "action_names": names}
    found = read_pipeline(lerobot_folder(tmp_path, relative=relative, absolute=True))
    assert found.delta_mask == (True, True, False)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"norm_map": {"STATE": "QUANTILE10"}}, "QUANTILE10"),
        ({"norm_map": {"VISUAL": "MEAN_STD"}}, "VISUAL"),
        ({"post": {"action.q01": np.zeros(7, np.float32)}}, "differs"),
        ({"pre": {"so100.buffer.action.mean": np.zeros(7, np.float32)}}, "several data sets"),
        ({"relative": {"enabled": True, "action_names": ["a"]}}, "on in one pipeline"),
        ({"relative": {"enabled": True}, "absolute": True}, "action_names"),
    ],
)
def test_lerobot_files_that_contradict_themselves_are_refused(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=message):
        read_pipeline(lerobot_folder(tmp_path, **changes))


@pytest.mark.parametrize("kind", ["missing", "garbled", "outside", "no state file", "no json"])
def test_lerobot_files_without_their_numbers_are_refused(kind: str, tmp_path: Path) -> None:
    path = lerobot_folder(tmp_path) / "policy_preprocessor.json"
    content = json.loads(path.read_text())
    file = tmp_path / content["steps"][2]["state_file"]
    if kind == "missing":
        file.unlink()
    elif kind == "garbled":
        file.write_bytes(b"\xff" * 64)
    elif kind == "no json":
        path.unlink()
    else:
        for name in ("policy_preprocessor.json", "policy_postprocessor.json"):
            content = json.loads((tmp_path / name).read_text())
            for step in content["steps"]:
                if "state_file" in step:
                    step["state_file"] = "../other.safetensors" if kind == "outside" else None
            (tmp_path / name).write_text(json.dumps(content))
    with pytest.raises(CheckpointError):
        read_pipeline(tmp_path)


def test_lerobot_config_names_the_cameras_in_order() -> None:
    visual = {"type": "VISUAL", "shape": [3, 224, 224]}
    config = {
        "input_features": {
            "observation.images.top": visual,
            "observation.images.empty_camera_0": visual,
            "observation.images.wrist": visual,
            "observation.state": {"type": "STATE", "shape": [8]},
        },
        "output_features": {"action": {"type": "ACTION", "shape": [7]}},
    }
    robot = robot_from_config(config)
    assert list(robot["cameras"]) == ["top", "wrist"]
    assert (robot["state_dim"], robot["action_dim"]) == (8, 7)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        robot_from_config({"input_features": {}})
