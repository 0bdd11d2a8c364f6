"""The checkpoint in the package: it opens, it is small, it says true things, and both modes agree to the bit."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from oxygen.checkpoint.shipped import SHIPPED, resolve
from oxygen.core.config import EngineConfig
from oxygen.core.tasks import TextTask
from oxygen.demo import command
from oxygen.demo.measure import Run, run_all, same_actions, same_texts
from oxygen.demo.show import FILMS, arms_for
from oxygen.demo.workload import wanted_texts
from oxygen.eval.doors import OpenDoor, open_door
from oxygen.sim.drive import run_episode
from oxygen.sim.facts import subtask
from oxygen.sim.recorded import RecordedArm, load_films
from oxygen.sim.tasks import TASKS

MAX_BYTES = 20_000_000


@pytest.fixture(scope="module")
def opened() -> Iterator[OpenDoor]:
    with open_door("oxygen-tiny", "oxygen", config=EngineConfig(debug=True)) as found:
        yield found


def test_the_folder_is_small_and_complete() -> None:
    folder = resolve("oxygen-tiny")
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) < MAX_BYTES
    card = (folder / "MODEL_CARD.md").read_text(encoding="utf-8")
    for heading in ("## Data", "## Training", "## Results", "## Limits"):
        assert heading in card
    assert FILMS.stat().st_size < 1_000_000
    assert resolve("some/where") == Path("some/where")
    assert SHIPPED == ("oxygen-tiny",)


def test_its_actions_are_near_those_of_the_film(opened: OpenDoor) -> None:
    """The film was made by a policy of this kind: the same pictures must still lead to much the same motion."""
    for film in load_films(FILMS):
        episode = run_episode(RecordedArm(film), 0, opened.door, noise_shape=opened.noise_shape)
        moved = np.array([look.chunk[:5, :3].mean(axis=0) for look in episode.looks[:-1]]) * 0.05
        shown = np.diff(film.states[:, :3], axis=0)
        agreement = np.corrcoef(moved.ravel(), shown.ravel())[0, 1]
        assert agreement > 0.7, f"{film.task}: the arm would move elsewhere ({agreement:.2f})"


def test_it_says_what_the_scene_shows(opened: OpenDoor) -> None:
    right = total = 0
    for film in load_films(FILMS):
        wanted = [TextTask("subtask", max_new_tokens=12)]
        episode = run_episode(
            RecordedArm(film), 0, opened.door, wanted=lambda _, w=wanted: w, noise_shape=opened.noise_shape
        )
        for look in episode.looks:
            right += look.answer.texts[0].result(30).text == subtask(look.facts)
            total += 1
    assert right / total > 0.8


def test_it_answers_questions_about_its_task(opened: OpenDoor) -> None:
    for film in load_films(FILMS):
        arm = RecordedArm(film)
        wanted = [TextTask("answer", question="which task is this?", max_new_tokens=16)]
        arm.max_steps = 1
        episode = run_episode(arm, 0, opened.door, wanted=lambda _, w=wanted: w, noise_shape=opened.noise_shape)
        assert episode.looks[0].answer.texts[0].result(30).text == TASKS[film.task].instruction


def test_both_modes_give_the_same_actions_and_texts() -> None:
    runs: list[Run] = []
    for mode in ("oxygen", "isolated"):
        with open_door("oxygen-tiny", mode, config=EngineConfig(budget="fixed:3")) as opened:
            arms = arms_for(("faucet-close",), (), is_live=False)
            runs.append(run_all(opened, arms, lambda *_: None, lambda _: None, is_closed_loop=False))
    assert same_actions(*runs)
    assert same_texts(*runs)
    assert runs[0].num_tokens == runs[1].num_tokens > 100
    kinds = {spoken.kind for spoken in runs[0].texts}
    assert kinds == {"subtask", "narration", "memory", "answer"}


def test_the_same_over_the_network() -> None:
    """The robot door carries noise, frames and texts: the same film gives the same chunks as the engine itself."""
    pytest.importorskip("oxygen_client")
    runs: list[Run] = []
    for mode in ("oxygen", "remote"):
        with open_door("oxygen-tiny", mode, config=EngineConfig(budget="fixed:8")) as opened:
            arms = arms_for(("faucet-close",), (), is_live=False)
            runs.append(run_all(opened, arms, lambda *_: None, lambda _: None, is_closed_loop=False))
    here, there = runs
    assert same_actions(here, there)
    assert [s.result.text for s in here.texts] == [s.result.text for s in there.texts]


def test_the_workload_keeps_text_alive_over_frames() -> None:
    counts = [len(wanted_texts("drawer-open")(frame)) for frame in range(12)]
    assert min(counts) == 1
    assert max(counts) >= 2


def test_the_recorded_demo_runs_and_ends_in_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    assert command.run(parser.parse_args(["--recorded", "--tasks", "faucet-close", "--out", str(tmp_path)])) == 0
    line = json.loads(capsys.readouterr().out.splitlines()[-1])
    wanted = {"episodes", "frames_per_s", "action_ready_ms_p50", "tokens_per_s", "answer_age_frames_p50"}
    assert wanted <= line.keys()
    assert wanted <= line["isolated"].keys()
    assert line["success"] is None, "a recording cannot succeed"
    assert line["same_actions"]
    assert line["same_texts"]
    assert (tmp_path / "demo.gif").stat().st_size > 10_000


def test_the_front_door_opens_the_shipped_policy() -> None:
    import oxygen

    engine = oxygen.load_demo_policy(config=EngineConfig(budget="fixed:4"))
    try:
        film = load_films(FILMS)[0]
        arm = RecordedArm(film)
        observation = oxygen.Observation(arm.look(), arm.state.astype(np.float64), arm.task.instruction)
        ticket = engine.submit(observation, texts=oxygen.TextTask("memory", max_new_tokens=24))
        assert ticket.actions(30).actions.shape == (10, 4)
        assert ticket.text("memory").result(30).text.startswith(f"the {arm.task.mechanism.noun} is ")
    finally:
        engine.close()
