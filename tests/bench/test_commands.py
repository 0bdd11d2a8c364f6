"""The command line: every benchmark is found, its quick options are its own, its output ends in one line of JSON."""

from __future__ import annotations

import argparse
import csv
import json
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from bench.test_measure import FIELDS

from oxygen.bench import budget, suite
from oxygen.bench.main import BENCHES, main, run_bench
from oxygen.bench.setup import Setup
from oxygen.bench.words import WORDS, filled, heading
from oxygen.core.errors import InvalidInput
from oxygen.models.pi05.spec import PRESETS

QUICKLY = ["--threads", "1"]
PLACE = ("float32", "libero", "cpu")
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


FEW = ("--new-tokens", "4", "--frames", "2")
SHORT: dict[str, tuple[str, ...]] = {
    "frame": (*FEW, "--rounds", "2", "--no-parallel"),
    "pareto": (*FEW, "--rounds", "2", "--no-parallel"),
    "speedup": (*FEW, "--rounds", "2", "--steps", "2", "--at-tokens", "4", "--at-rounds", "2"),
    "ablation": (*FEW, "--k", "2", "--no-parallel"),
    "workloads": (*FEW, "--k", "2", "--rates", "1", "--short", "2", "--long", "6"),
    "breakdown": (*FEW, "--k", "2"),
    "management": ("--frames", "2", "--live", "2", "--k", "2"),
    "memory": (*FEW, "--rounds", "2", "--no-parallel"),
    "stability": ("--frames", "119", "--max-live", "6", "--k", "1"),
    "budget": (*FEW, "--camera-hz", "25", "--max-texts", "2", "--budgets", "fixed:1"),
    "roofline": ("--frames", "2", "--batches", "1,2"),
    "compare": (),
    "serve": ("--frames", "6", "--seconds", "0.2", "--robots", "1", "--new-tokens", "4"),
}
"""The least that shows each benchmark whole."""


@pytest.mark.parametrize("name", suite.ORDER)
def test_every_benchmark_ends_in_one_line_that_says_all(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--model", "pi05-tiny", "--dtype", "float32", *SHORT[name], *QUICKLY, "--out", str(tmp_path)]
    assert main([name, *options]) in (0, 1)
    out = capsys.readouterr().out
    found = last_line(out)
    assert found["bench"] == name and re.fullmatch(r"unknown|[0-9a-f]{12}\+?", found["commit"])
    assert found["command"].split()[:4] == ["oxygen", "bench", name, "--model"]
    config = found["config"]
    assert (config["model"], config["dtype"], config["robot"], config["device"]) == ("pi05-tiny", *PLACE)
    assert found["machine"]["threads"] == 1
    written = json.loads((tmp_path / f"{name}.json").read_text())
    assert written == found  # no figure is in one of them only
    page = (tmp_path / f"{name}.md").read_text()
    assert found["command"] in page
    if name == "compare":
        return  # nothing to compare with here
    columns = import_module(f"oxygen.bench.{name}").COLUMNS
    assert found["rows"] and found["expected_s"] > 0
    known = {key for row in found["rows"] for key in row}
    assert len(known & set(columns)) >= 5
    for key in filled(columns, found["rows"]):
        assert heading(key) in out and heading(key) in page
    assert set(columns) <= set(WORDS)


def test_an_estimate_measures_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pareto", "--estimate", "--new-tokens", "4,8", "--rounds", "2", "--no-parallel", *QUICKLY]) == 0
    found = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    assert found["expected_s"] > 0 and "rows" not in found


def test_a_report_is_resumed_and_keeps_what_it_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--model", "pi05-tiny", "--only", "compare", "--out", str(tmp_path), *QUICKLY]
    assert main(["all", *options]) == 0
    (tmp_path / "frame.md").write_text("## frame\n\nof an earlier run\n")
    assert main(["all", *options, "--resume"]) == 0
    assert [row["status"] for row in last_line(capsys.readouterr().out)["rows"]] == ["kept"]
    report = (tmp_path / "report.md").read_text()
    assert "of an earlier run" in report and report.index("## frame") < report.index("## compare")
    assert main(["all", *options, "--robot", "droid", "--resume"]) == 0  # another command line
    assert [row["status"] for row in last_line(capsys.readouterr().out)["rows"]] == ["done"]


@pytest.mark.parametrize("name", BENCHES)
def test_help_says_every_default(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert ended.value.code == 0 and "shape of a frame (default: libero)" in text and "[1, 5" not in text


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
    assert set(budget.COLUMNS) <= set(rows[0])


def test_compare_says_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "--model", "pi05-tiny", *QUICKLY]) == 0
    found = last_line(capsys.readouterr().out)
    assert found["rows"] == [] and "lerobot: not compared" in found["notes"][0]
