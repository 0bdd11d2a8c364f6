"""Sizes come from the tensors; what they do not show is told, and contradictions are said."""

from __future__ import annotations

from pathlib import Path

import pytest
from checkpoint.folders import EMBED, LEROBOT, LM_HEAD, OPENPI, Q0, copy_of, edit_json
from checkpoint.golden import golden_spec

from oxygen.checkpoint import open_folder
from oxygen.core.errors import CheckpointError
from oxygen.models.pi05.configs import CONFIGS, choose_robot
from oxygen.models.pi05.opening import read_pi05
from oxygen.models.pi05.sizes import derive_sizes
from oxygen.models.pi05.spec import PRESETS
from oxygen.processing.assembly import robot_of
from oxygen.processing.config import PRESETS as ROBOTS


def test_golden_folders_have_the_golden_sizes() -> None:
    assert derive_sizes(open_folder(OPENPI)).spec == golden_spec()
    found = derive_sizes(open_folder(LEROBOT))
    assert found.spec == golden_spec()
    assert found.warnings[0] == (
        "config.json says paligemma_variant gemma_2b (width 2048, depth 18); the tensors are width 64, depth 4"
    )


def test_openpi_config_as_openpi_writes_it(tmp_path: Path) -> None:
    """Only widths, horizon, variants and precision: one KV head is the rule, the tower's heads must be told."""
    folder = copy_of(OPENPI, tmp_path / "x")
    (folder / "config.json").write_text(
        '{"action_dim": 12, "action_horizon": 10, "paligemma_variant": "dummy", "action_expert_variant": "dummy",'
        ' "precision": "float32"}'
    )
    with pytest.raises(
        CheckpointError, match=r"image tower of width 48 .* no tensor shows its number of heads; give it"
    ):
        derive_sizes(open_folder(folder))
    spec = derive_sizes(open_folder(folder), {"vision": {"num_heads": 4}}).spec
    assert (spec.trunk.num_heads, spec.trunk.num_kv_heads, spec.trunk.head_dim) == (8, 1, 16)
    assert spec.max_token_len == 200 and spec.horizon == 10
    edit_json(folder / "config.json", action_horizon=None)
    with pytest.raises(CheckpointError, match="length of an action chunk is told nowhere"):
        derive_sizes(open_folder(folder), {"vision": {"num_heads": 4}})
    named = read_pi05(folder, robot="pi05_droid", overrides={"vision": {"num_heads": 4}})
    assert named.spec.horizon == CONFIGS["pi05_droid"].horizon == 15


def test_heads_that_are_told(tmp_path: Path) -> None:
    folder = copy_of(LEROBOT, tmp_path / "x")
    edit_json(folder / "oxygen.json", spec={"vision": {"num_heads": 6}, "trunk": {"num_heads": 4, "num_kv_heads": 1}})
    with pytest.raises(CheckpointError, match=r"sizes do not fit the tensors: .* for q and k maps of 128 and 16 rows"):
        derive_sizes(open_folder(folder))
    edit_json(folder / "oxygen.json", spec={"vision": {"num_heads": 6}, "trunk": {"num_kv_heads": 2}})
    spec = derive_sizes(open_folder(folder)).spec
    assert (spec.vision.num_heads, spec.trunk.num_heads, spec.expert.num_kv_heads, spec.trunk.head_dim) == (6, 16, 2, 8)
    assert derive_sizes(open_folder(folder), {"vision": {"num_heads": 4}}).spec.vision.num_heads == 4


def test_what_is_told_against_the_tensors_is_refused() -> None:
    with pytest.raises(CheckpointError, match=r"do not fit the tensors: trunk.width is 64 by the tensors, told 99"):
        derive_sizes(open_folder(OPENPI), {"trunk": {"width": 99}})
    with pytest.raises(CheckpointError, match=r"unknown vision.wings"):
        derive_sizes(open_folder(OPENPI), {"vision": {"wings": 2}})


def test_horizon_of_a_named_configuration_wins_and_says_so() -> None:
    found = read_pi05(OPENPI, robot="pi05_droid_finetune")
    assert found.spec.horizon == 16
    assert "config.json says chunks of 10; the named configuration has 16" in found.sizes.warnings
    assert read_pi05(OPENPI, robot="droid").spec.horizon == 10


@pytest.mark.parametrize(
    ("gone", "named"), [([LM_HEAD], "the token table, under any of"), (["action_in_proj.weight"], "")]
)
def test_tensors_that_tell_sizes_are_missed_by_name(tmp_path: Path, gone: list[str], named: str) -> None:
    folder = copy_of(OPENPI, tmp_path / "x", lambda tensors: [tensors.pop(name) for name in gone])
    edit_json(folder / "config.json", vocab_size=None)
    with pytest.raises(CheckpointError, match=f"missing tensors: {named or gone[0]}"):
        derive_sizes(open_folder(folder))


def test_a_layer_of_another_shape_does_not_decide(tmp_path: Path) -> None:
    folder = copy_of(OPENPI, tmp_path / "x", lambda tensors: tensors.update({Q0: tensors[Q0][:64]}))
    assert derive_sizes(open_folder(folder)).spec == golden_spec()


def test_the_table_may_go_by_either_name(tmp_path: Path) -> None:
    folder = copy_of(LEROBOT, tmp_path / "x", lambda tensors: tensors.pop("model." + LM_HEAD))
    assert derive_sizes(open_folder(folder)).spec == golden_spec()
    assert "model." + EMBED in (open_folder(folder).tensors or ())


def test_known_configurations_name_known_robots() -> None:
    assert {config.robot for config in CONFIGS.values()} <= ROBOTS.keys()
    for name, config in CONFIGS.items():
        assert choose_robot(name, None, (), "x").robot == config.robot


def test_robot_by_name_declaration_and_asset() -> None:
    assert choose_robot("aloha", "libero", ["droid"], "x").robot == "aloha"
    assert choose_robot(None, "libero", ["droid"], "x").robot == "libero"
    assert choose_robot(None, None, ["physical-intelligence/libero"], "x").robot == "libero"
    assert choose_robot(None, None, ["trossen", "unheard-of"], "x").robot == "aloha"
    assert choose_robot(None, None, ["droid"], "x").robot is None  # velocities or positions: not to be guessed
    assert choose_robot(None, None, ["trossen", "physical-intelligence/libero"], "x").robot is None
    with pytest.raises(CheckpointError, match=r"x: robot 'liberty' \(named by the caller\) is unknown; robots: libero"):
        choose_robot("liberty", None, (), "x")


def test_opened_with_a_robot() -> None:
    """What was chosen, its identity and its dimensions can be told; lengths that do not fit refuse."""
    found = read_pi05(OPENPI, robot="droid")
    assert found.statistics.asset_id == "droid" and found.processor_config.robot == "droid"
    assert (found.processor_config.action_dim, found.processor_config.vocab_size) == (12, 512)
    with pytest.raises(CheckpointError, match=r"does not say which robot it is for .open: one of droid"):
        _ = read_pi05(OPENPI).processor_config
    with pytest.raises(CheckpointError, match="no statistics for asset 'trossen'"):
        _ = read_pi05(OPENPI, robot="droid", asset_id="trossen").statistics
    aloha = read_pi05(OPENPI, robot="aloha")
    with pytest.raises(CheckpointError, match="14 actions do not fit a model of action_dim 12"):
        robot_of(aloha.processor_config)
    named = read_pi05(OPENPI, robot="pi05_aloha_pen_uncap").processor_config
    assert (named.default_prompt, named.horizon) == ("uncap the pen", 50)


def test_lerobot_folder_names_its_own_robot() -> None:
    config = read_pi05(LEROBOT).processor_config
    assert config.dialect == "lerobot" and config.horizon == 10
    assert isinstance(config.robot, dict) and config.robot["action_dim"] == 7


def test_released_sizes_need_nothing_told() -> None:
    """The real model's tower is known by its width, its heads by the variant."""
    from oxygen.models.pi05.sizes import SIGLIP_HEADS, VARIANTS

    real = PRESETS["pi05"]
    assert SIGLIP_HEADS[real.vision.width] == real.vision.num_heads
    assert VARIANTS["gemma_2b"] == real.trunk and VARIANTS["gemma_300m"] == real.expert
