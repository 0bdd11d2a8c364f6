"""A processor from a folder's parts: declared settings, LeRobot's files, openpi's conventions; nothing is guessed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processing.cases import lerobot_folder, message, picture, processor, sentencepiece_file, statistics

from oxygen.core.errors import CheckpointError
from oxygen.core.tasks import ActionTask
from oxygen.processing.config import preset
from oxygen.processing.lerobot import read_pipeline
from oxygen.processing.open import build_processor
from oxygen.processing.statistics import Statistics

VISUAL = {"type": "VISUAL", "shape": [3, 224, 224]}
LEROBOT_CONFIG = {
    "input_features": {
        "observation.images.top": VISUAL,
        "observation.images.wrist": VISUAL,
        "observation.state": {"type": "STATE", "shape": [8]},
    },
    "output_features": {"action": {"type": "ACTION", "shape": [7]}},
}


def test_declared_settings_make_the_processor_that_wrote_them() -> None:
    declared = preset("droid", templates="shared", asset_id="mine").to_dict()
    other = statistics("droid", -9, 9)
    sets = [statistics("droid"), Statistics("mine", other.state, other.actions)]
    found = build_processor(tokenizer=sentencepiece_file(), statistics=sets, declared=declared, sizes={"horizon": 7})
    assert found.config == preset("droid", templates="shared", asset_id="mine", horizon=7)
    assert found.statistics.asset_id == "mine"


def test_an_openpi_folder_needs_to_be_told_its_robot() -> None:
    parts: dict[str, Any] = {"tokenizer": sentencepiece_file(), "statistics": [statistics("droid")]}
    with pytest.raises(CheckpointError, match="libero, droid"):
        build_processor(**parts)
    found = build_processor(**parts, robot="droid")
    raw = message("droid")
    one, other = (p.encode(p.parse(raw), (ActionTask(),), ()) for p in (found, processor("droid")))
    assert one.contexts[0].token_ids == other.contexts[0].token_ids
    with pytest.raises(CheckpointError, match="ur5"):
        build_processor(**parts, robot="ur5")


@pytest.mark.parametrize("missing", ["tokenizer", "statistics"])
def test_missing_parts_are_named(missing: str) -> None:
    parts: dict[str, Any] = {"tokenizer": sentencepiece_file(), "statistics": [statistics("droid")], "robot": "droid"}
    parts[missing] = None if missing == "tokenizer" else ()
    with pytest.raises(CheckpointError, match=missing):
        build_processor(**parts)


def test_two_assets_refuse_to_start_until_one_is_named() -> None:
    parts: dict[str, Any] = {"tokenizer": sentencepiece_file(), "robot": "libero"}
    parts["statistics"] = [statistics("libero"), statistics("droid")]
    with pytest.raises(CheckpointError, match="libero, droid"):
        build_processor(**parts)
    assert build_processor(**parts, asset_id="libero").statistics.asset_id == "libero"


def test_a_lerobot_folder_says_everything_itself(tmp_path: Path) -> None:
    pipeline = read_pipeline(lerobot_folder(tmp_path))
    found = build_processor(
        tokenizer=sentencepiece_file(),
        statistics=[pipeline.statistics],
        pipeline=pipeline,
        lerobot_config=LEROBOT_CONFIG,
        sizes={"action_dim": 12, "horizon": 10},
    )
    raw = {
        "observation.images.wrist": picture(1).transpose(2, 0, 1).astype(np.float32) / 255,
        "observation.images.top": picture(0),
        "observation.state": np.arange(8.0),
        "task": "go",
    }
    inputs = found.encode(found.parse(raw), (ActionTask(),), ())
    assert found.config.dialect == "lerobot" and found.config.max_token_len == 200
    assert np.array_equal(inputs.contexts[0].images[0], raw["observation.images.top"])
    assert not inputs.state.any(), "the statistics centre this state on zero in every dimension"
    decoded = found.decode_actions(np.zeros((10, 12), np.float32), inputs)
    assert decoded.dtype == np.float64 and np.array_equal(decoded[0], np.arange(7.0))


def test_a_lerobot_folder_of_a_known_robot_may_be_called_so(tmp_path: Path) -> None:
    pipeline = read_pipeline(lerobot_folder(tmp_path))
    found = build_processor(
        tokenizer=sentencepiece_file(), statistics=[pipeline.statistics], pipeline=pipeline, robot="libero"
    )
    ids = found.encode(found.parse(message("libero")), (ActionTask(),), ()).contexts[0].token_ids
    assert "State: " in found.tokenizer.decode(ids), "LeRobot shows the state, whoever the robot is"
