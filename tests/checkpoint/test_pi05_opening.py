"""From folders as they come to a processor and an engine that fit each other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from checkpoint.folders import LEROBOT, OPENPI, copy_of, edit_json
from processing.cases import byte_fallback_file

from oxygen import Engine, Observation
from oxygen.core.errors import CheckpointError, InvalidInput
from oxygen.models.pi05.opening import read_pi05
from oxygen.models.pi05.torch.weights import load_pi05, save_pi05

TELL = {"max_token_len": 200}


def with_words(folder: Path) -> Path:
    """Put a tokenizer of at most 512 tokens into the folder."""
    (folder / "tokenizer.json").write_bytes(byte_fallback_file().read_bytes())
    edit_json(folder / "oxygen.json", spec={"vision": {"num_heads": 4}, **TELL})
    return folder


def droid_frame() -> dict:
    rng = np.random.default_rng(0)
    return {
        "observation/exterior_image_1_left": rng.integers(0, 255, (180, 320, 3), dtype=np.uint8),
        "observation/wrist_image_left": rng.integers(0, 255, (180, 320, 3), dtype=np.uint8),
        "observation/joint_position": np.zeros(7),
        "observation/gripper_position": np.zeros(1),
        "prompt": "pick up the cup",
    }


def test_openpi_folder_acts_once_its_robot_is_named(tmp_path: Path) -> None:
    folder = with_words(copy_of(OPENPI, tmp_path / "x"))
    engine = Engine.from_pretrained(folder, robot="droid", max_contexts=2, max_texts=2)
    try:
        processor = read_pi05(folder, robot="droid").processor()
        result = engine.submit(processor.parse(droid_frame())).actions(timeout=60)
    finally:
        engine.close()
    assert result.actions.shape == (10, 8) and np.isfinite(result.actions).all()


def test_the_named_configuration_reaches_the_runner(tmp_path: Path) -> None:
    """Its chunk length is no tensor's: processor and model must both have it."""
    folder = with_words(copy_of(OPENPI, tmp_path / "x"))
    opened = read_pi05(folder, robot="pi05_droid")
    assert opened.processor().config.horizon == load_pi05(opened).spec.horizon == 15


def test_lerobot_folder_acts_as_it_is(tmp_path: Path) -> None:
    folder = with_words(copy_of(LEROBOT, tmp_path / "x"))
    images = {
        name: np.zeros((224, 224, 3), np.uint8) for name in ("base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb")
    }
    engine = Engine.from_pretrained(folder, max_contexts=2, max_texts=2)
    try:
        ticket = engine.submit(Observation(images=images, state=np.zeros(8), prompt="pick up the cup"))
        assert ticket.actions(timeout=60).actions.shape == (10, 7)
    finally:
        engine.close()


def test_our_folder_acts_as_it_is(tmp_path: Path) -> None:
    source = with_words(copy_of(OPENPI, tmp_path / "x"))
    opened = read_pi05(source, robot="droid")
    folder = save_pi05(
        load_pi05(opened),
        tmp_path / "ours",
        processor=opened.processor_config.to_dict(),
        tokenizer=opened.checkpoint.tokenizer,
        statistics=opened.statistics,
    )
    ours = read_pi05(folder)
    assert ours.processor_config == opened.processor_config
    theirs, mine = opened.processor(), ours.processor()
    encoded = [p.encode(p.parse(droid_frame()), (), ()) for p in (theirs, mine)]
    assert len(encoded) == 2
    chunk = np.linspace(-1, 1, 10 * 12, dtype=np.float32).reshape(10, 12)
    assert np.array_equal(*(p.decode_actions(chunk, e) for p, e in zip((theirs, mine), encoded, strict=True)))


def test_what_running_needs_is_asked_for(tmp_path: Path) -> None:
    folder = copy_of(OPENPI, tmp_path / "x")
    with pytest.raises(CheckpointError, match="no tokenizer"):
        read_pi05(folder, robot="droid").processor()
    with_words(folder)
    with pytest.raises(CheckpointError, match="does not say which robot"):
        read_pi05(folder).processor()
    (folder / "assets" / "droid" / "norm_stats.json").unlink()
    with pytest.raises(CheckpointError, match="no normalisation statistics"):
        read_pi05(folder, robot="droid").processor()
    with pytest.raises((CheckpointError, InvalidInput), match="does not exist"):
        Engine.from_pretrained(tmp_path / "nowhere")
