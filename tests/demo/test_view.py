"""What a person reads: the live panel at 80 columns in both modes, the lines of a pipe, the table, the plot."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from oxygen.core.config import EngineConfig
from oxygen.demo.measure import Run, run_all
from oxygen.demo.plot import plot
from oxygen.demo.show import arms_for, comparison
from oxygen.demo.view import LEGEND, View
from oxygen.eval.doors import open_door
from oxygen.sim.drive import Body, Look

WIDTH = 80


def shown(mode: str, is_terminal: bool) -> tuple[Run, list[str], str]:
    """The recorded faucet in one mode: the run, every panel that was drawn, and all that the console got."""
    file = io.StringIO()
    console = Console(file=file, width=WIDTH, force_terminal=is_terminal, color_system=None)
    panels: list[str] = []
    with (
        open_door("oxygen-tiny", mode, config=EngineConfig(budget="fixed:3")) as opened,
        View(console, mode, 1) as view,
    ):
        if opened.engine is not None:
            opened.engine.subscribe(view.record)

        def on_look(run: Run, body: Body, look: Look) -> None:
            view.look(run, body, look)
            drawn = Console(file=io.StringIO(), width=WIDTH, record=True)
            drawn.print(view.panel())
            panels.append(drawn.export_text())

        run = run_all(opened, arms_for(("faucet-close",), (), is_live=False), on_look, view.end, is_closed_loop=False)
    return run, panels, file.getvalue()


@pytest.mark.parametrize("mode", ["oxygen", "isolated"])
def test_a_panel_of_80_columns_says_what_its_numbers_are(mode: str) -> None:
    _, panels, _ = shown(mode, is_terminal=True)
    last = panels[-1]
    assert max(len(line) for line in last.splitlines()) <= WIDTH
    for words in ("close the faucet", "per second", "ms after this frame", "tokens per second", "of frame", LEGEND):
        assert words in last
    assert f"{mode}, recorded (open loop), episode 1 of 1" in last
    assert any("turn the faucet closed" in panel for panel in panels), "a finished subtask is shown"
    assert " – tokens" not in last, "both modes show how fast text comes"


def test_a_pipe_gets_a_line_per_episode_and_its_last_narration() -> None:
    run, _, said = shown("oxygen", is_terminal=False)
    lines = said.splitlines()
    assert lines[0] == "oxygen: one prefill per camera frame, read by the actions and by all texts"
    assert lines[1].split()[:4] == ["close", "the", "faucet", "replayed"]
    assert f"{len(run.looks)} frames" in lines[1]
    assert lines[2].startswith("    “")
    assert "\x1b" not in said


def test_the_table_has_a_unit_for_every_number_and_the_plot_is_drawn(tmp_path: Path) -> None:
    run, _, _ = shown("oxygen", is_terminal=False)
    console = Console(file=io.StringIO(), width=WIDTH, record=True)
    console.print(comparison(run.summary(), run.summary()))
    text = console.export_text()
    for unit in ("per second", "ms", "tokens/s", "frames"):
        assert unit in text
    assert "tasks done" not in text, "a recording cannot succeed"
    pytest.importorskip("matplotlib")
    assert plot(tmp_path / "demo.png", [run, run])
    assert (tmp_path / "demo.png").stat().st_size > 10_000
