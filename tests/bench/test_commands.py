"""The command line: every benchmark is found, its quick options are its own, its output ends in one line of JSON."""

from __future__ import annotations

import argparse
import csv
import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from bench.test_measure import FIELDS

from oxygen.bench import budget, suite
from oxygen.bench.main import BENCHES, main, run_bench
from oxygen.bench.setup import Setup
from oxygen.core.errors import InvalidInput
from oxygen.models.pi05.spec import PRESETS

QUICKLY = ["--threads", "1"]
MACHINE = {"cpu", "cores", "gpu", "torch", "dtype", "load_before", "load_after"}


def last_line(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text.strip().splitlines()[-1])
    assert {"bench", "commit", "machine", "config", "rows"} <= set(found)
    assert set(found["machine"]) >= MACHINE
    return found


@pytest.mark.parametrize("name", [n for n in BENCHES if n != "all"])
def test_every_benchmark_takes_the_common_and_its_quick_options(name: str) -> None:
    module = import_module(f"oxygen.bench.{name}")
    parser = argparse.ArgumentParser()
    module.add_arguments(parser)
    given = ["--model", "pi05-tiny", "--device", "cpu", "--dtype", "bfloat16", "--robot", "droid", "--out", "x"]
    args = parser.parse_args([*given, *suite.QUICK.get(name, ())])
    assert (args.model, args.dtype, args.robot, args.out) == ("pi05-tiny", "bfloat16", "droid", Path("x"))


def test_the_suite_knows_every_benchmark() -> None:
    assert set(suite.ORDER) | {"all"} == set(BENCHES)
    assert set(suite.QUICK) == set(suite.ORDER)


def test_unknown_names_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["nonsense"])
    with pytest.raises(InvalidInput, match="bench"):
        run_bench("nonsense", [])
    assert main(["frame", "--model", "nowhere"]) == 1
    assert "pi05-tiny" in capsys.readouterr().err


@pytest.mark.parametrize("robot", ["libero", "droid", "aloha", "full"])
def test_shapes_fit_their_models(robot: str) -> None:
    for model in PRESETS:
        setup = Setup(model, robot=robot)
        spec, frame = setup.spec(), setup.frames().make()
        assert frame.num_tokens == len(frame.images) * spec.tokens_per_image + len(frame.token_ids)
        assert frame.num_tokens <= spec.max_context_len
        assert max(frame.token_ids) < spec.vocab_size
        assert frame.images[0].shape == (spec.vision.image_size, spec.vision.image_size, 3)
    assert Setup("pi05-medium", robot="libero").frames().context_len == 524


def test_frame_on_the_real_tiny_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    options = ["--new-tokens", "4", "--rounds", "2", "--frames", "4", "--out", str(tmp_path), *QUICKLY]
    assert main(["frame", *options]) == 0
    found = last_line(capsys.readouterr().out)
    assert {r["mode"] for r in found["rows"]} == {"isolated", "parallel", "shared", "upper_bound", "oxygen"}
    for row in found["rows"]:
        assert set(row) >= FIELDS
        assert row["frame_ms"] > 0 and row["floor_ms"] > 0 and row["peak_bytes"] > 0
    assert found["actions_first"]["live_texts"] == 2
    with (tmp_path / "frame.csv").open() as file:
        assert [r["mode"] for r in csv.DictReader(file)] == [r["mode"] for r in found["rows"]]
    assert (tmp_path / "frame_modes.png").stat().st_size > 1000
    assert "| isolated |" in (tmp_path / "frame.md").read_text()


def test_roofline_on_the_real_tiny_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["roofline", "--model", "pi05-tiny", "--frames", "2", "--batches", "1,8,30", *QUICKLY]) == 0
    found = last_line(capsys.readouterr().out)
    rows = {r["stage"]: r for r in found["rows"]}
    assert set(rows) == {"prefill", "vision", "act", "decode_1", "decode_8", "decode_30"}
    for row in rows.values():  # medians of ratios on a machine that others may use: no equality to expect
        assert row["measured_ms"] > 0 and row["compute_floor_ms"] > 0 and row["bandwidth_floor_ms"] > 0
        assert 0 < row["achieved_share"] < 1
    assert rows["decode_1"]["ratio_to_one"] == 1.0


def test_stability_on_the_real_tiny_model(capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["stability", "--frames", "119", "--max-live", "6", "--k", "1", *QUICKLY])
    found = last_line(capsys.readouterr().out)
    assert found["verdict"]["rows_free_at_end"] and found["verdict"]["live_as_expected"]
    assert status in (0, 1) and len(found["rows"]) == 1
    assert found["config"]["most_live"] == 6


def test_budgets_under_a_camera(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--frames", "8", "--camera-hz", "25", "--max-texts", "4", "--new-tokens", "6"]
    assert main(["budget", *options, "--budgets", "fixed:1,idle", *QUICKLY]) == 0
    rows = last_line(capsys.readouterr().out)["rows"]
    assert [r["budget"] for r in rows] == ["fixed:1", "idle"]
    assert all(r["frames_per_s"] > 0 and r["tokens_per_s"] > 0 for r in rows)
    assert {key for key, _ in budget.COLUMNS} <= set(rows[0])


def test_compare_says_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "--model", "pi05-tiny", *QUICKLY]) == 0
    found = last_line(capsys.readouterr().out)
    assert found["rows"] == [] and "lerobot: not compared" in found["notes"][0]
