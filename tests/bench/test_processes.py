"""Benchmarks that start processes of their own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from oxygen.bench.main import main
from oxygen.bench.memory import measure_apart
from oxygen.bench.setup import Setup
from oxygen.core.errors import Refused


def test_memory_is_measured_in_a_process_of_its_own() -> None:
    row = measure_apart(Setup(threads=1), "oxygen", 1, new_tokens=2, num_frames=1)
    assert row["context_rows"] == 3 and row["frame_ms"] > 0
    assert row["peak_bytes"] > 10**7 and row["contexts_mib"] > 0


def test_a_process_that_cannot_open_its_model_says_why(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="isolated"):
        measure_apart(Setup(model=str(tmp_path)), "isolated", None, new_tokens=2, num_frames=1)


def test_all_runs_each_apart_and_writes_one_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["all", "--quick", "--only", "management", "--out", str(tmp_path), "--threads", "1"]) == 0
    found = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    assert [(r["bench"], r["status"]) for r in found["rows"]] == [("management", "done")]
    assert found["results"]["management"]["rows"][0]["live_texts"] == 6
    assert "## management" in (tmp_path / "report.md").read_text()
