"""LIBERO by openpi's protocol: pictures, state, idle steps, replanning, limits, on a scene that only writes down."""

from __future__ import annotations

import argparse
import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from rich.progress import Progress

from oxygen.checkpoint.folder import Checkpoint
from oxygen.core.errors import InvalidInput
from oxygen.core.tasks import ActionResult, ActionTask, Observation, TextTask
from oxygen.eval import command, libero_scene
from oxygen.eval.libero import (
    IDLE_ACTION,
    LiberoWishes,
    Reading,
    Run,
    axis_angle,
    evaluate_libero,
    run_libero_episode,
    state_of,
    turned,
)
from oxygen.eval.libero_command import robot_of
from oxygen.eval.libero_script import CLOSED, OPEN, REACH, ScriptedDoor
from oxygen.sim.graphics import NoSimulator


class PaperScene:
    """Writes down what is done to it; done at the `done_at`-th step, idle ones counted."""

    language = "put it there"
    num_states = 3

    def __init__(self, done_at: int = 10**9) -> None:
        self.done_at = done_at
        self.starts: list[int] = []
        self.steps: list[np.ndarray] = []
        self.looked_at: list[int] = []
        self.num_closed = 0

    def reset(self, number: int) -> Reading:
        self.starts.append(number)
        self.steps, self.looked_at = [], []
        return self._reading()

    def step(self, action: np.ndarray) -> tuple[Reading, bool]:
        self.steps.append(np.array(action))
        return self._reading(), len(self.steps) == self.done_at

    def pictures(self) -> tuple[np.ndarray, np.ndarray]:
        self.looked_at.append(len(self.steps))
        front = np.zeros((224, 224, 3), np.uint8)
        front[0, 0] = (10, 20, 30)
        return front, front[:, ::-1]

    def close(self) -> None:
        self.num_closed += 1

    def _reading(self) -> Reading:
        return Reading(np.array([len(self.steps), 0.0, 0.0]), np.array([0.0, 0.0, 1.0, 0.0]), np.array([0.04, -0.04]))


class Chunk:
    texts: tuple[()] = ()

    def __init__(self, actions: np.ndarray) -> None:
        self._result = ActionResult(actions, "libero", 0, 0.0, "action", 0.0)

    def actions(self, timeout: float | None = None) -> ActionResult:
        return self._result


class CountingDoor:
    """Action j of chunk i is 10 i + j, in all dimensions."""

    def __init__(self, shape: tuple[int, int] = (10, 7)) -> None:
        self.shape = shape
        self.frames: list[Observation] = []
        self.noises: list[np.ndarray] = []

    def submit(self, observation: Observation, actions: ActionTask | None, texts: Sequence[TextTask]) -> Chunk:
        assert actions is not None and actions.noise is not None
        self.noises.append(np.asarray(actions.noise))
        numbers = 10.0 * len(self.frames) + np.arange(self.shape[0])
        self.frames.append(observation)
        return Chunk(np.repeat(numbers[:, None], self.shape[1], axis=1))


def zeros(_: int) -> np.ndarray:
    return np.zeros((10, 32), np.float32)


def drive(scene: PaperScene, door: CountingDoor, limit: int) -> Run:
    return run_libero_episode(scene, 0, door, limit=limit, noise=zeros)


def test_pictures_are_turned_by_180_degrees_and_fitted() -> None:
    picture = np.arange(4 * 4 * 3, dtype=np.uint8).reshape(4, 4, 3)
    large = turned(np.kron(picture, np.ones((56, 56, 1), np.uint8)))
    assert large.shape == (224, 224, 3)
    assert np.array_equal(large[28::56, 28::56], np.rot90(picture, 2))
    wide = turned(np.full((100, 200, 3), 9, np.uint8))
    assert wide.shape == (224, 224, 3)
    assert not wide[:56].any() and (wide[56:168] == 9).all() and not wide[168:].any()


@pytest.mark.parametrize(
    ("quaternion", "expected"),
    [
        ((0, 0, 0, 1), (0, 0, 0)),
        ((0, 0, 0, -1), (0, 0, 0)),
        ((0, 0, 0, 1.0000001), (0, 0, 0)),
        ((1, 0, 0, 0), (np.pi, 0, 0)),
        ((0, np.sin(0.3), 0, np.cos(0.3)), (0, 0.6, 0)),
        ((0, 0, np.sin(2.0), np.cos(2.0)), (0, 0, 4.0)),  # not brought back below pi
    ],
)
def test_axis_angle(quaternion: tuple[float, ...], expected: tuple[float, ...]) -> None:
    assert axis_angle(np.array(quaternion, np.float64)) == pytest.approx(np.array(expected), abs=1e-9)


def test_state_is_position_axis_angle_fingers() -> None:
    reading = Reading(np.array([1.0, 2.0, 3.0]), np.array([0.0, 0.0, 1.0, 0.0]), np.array([0.04, -0.03]))
    assert state_of(reading) == pytest.approx([1, 2, 3, 0, 0, np.pi, 0.04, -0.03])


def test_ten_idle_steps_then_five_actions_of_each_chunk() -> None:
    scene, door = PaperScene(), CountingDoor()
    run = drive(scene, door, limit=12)
    assert (run.succeeded, run.num_steps, len(run.chunks)) == (False, 12, 3)
    assert all(np.array_equal(step, IDLE_ACTION) for step in scene.steps[:10])
    assert [step[0] for step in scene.steps[10:]] == [0, 1, 2, 3, 4, 10, 11, 12, 13, 14, 20, 21]
    assert scene.looked_at == [10, 15, 20]
    assert [frame.frame_id for frame in door.frames] == [0, 1, 2]
    assert [frame.state[0] for frame in door.frames] == [10, 15, 20]
    assert {frame.prompt for frame in door.frames} == {"put it there"}


def test_the_door_gets_both_pictures_turned() -> None:
    scene, door = PaperScene(), CountingDoor()
    drive(scene, door, limit=1)
    images = door.frames[0].images
    assert tuple(images["image"][-1, -1]) == (10, 20, 30)
    assert tuple(images["wrist_image"][-1, 0]) == (10, 20, 30)


def test_success_ends_an_episode_at_once_but_not_while_idle() -> None:
    run = drive(PaperScene(done_at=17), CountingDoor(), limit=100)
    assert (run.succeeded, run.num_steps) == (True, 7)
    run = drive(PaperScene(done_at=4), CountingDoor(), limit=6)
    assert (run.succeeded, run.num_steps) == (False, 6)


@pytest.mark.parametrize("shape", [(4, 7), (10, 4)])
def test_a_chunk_that_does_not_fit_is_refused(shape: tuple[int, int]) -> None:
    with pytest.raises(InvalidInput, match="actions"):
        drive(PaperScene(), CountingDoor(shape), limit=10)


@pytest.mark.parametrize(
    ("suite", "limit"), [("libero_spatial", 220), ("libero_object", 280), ("libero_goal", 300), ("libero_10", 520)]
)
def test_limits_of_the_suites(suite: str, limit: int) -> None:
    assert LiberoWishes(suite).limit == limit
    assert LiberoWishes(suite, max_steps=3).limit == 3


def test_every_task_and_initial_state_is_counted_and_scenes_are_closed() -> None:
    scenes = {0: PaperScene(done_at=12), 4: PaperScene()}
    for task, scene in scenes.items():
        scene.language = f"do {task}"
    door = CountingDoor()
    wishes = LiberoWishes("libero_goal", (0, 4), episodes=2, max_steps=5)
    with Progress(disable=True) as progress:
        report = evaluate_libero(scenes.__getitem__, door, (10, 32), wishes, progress)
    assert {name: (found.hits, found.total) for name, found in report.success.items()} == {
        "0: do 0": (2, 2),
        "4: do 4": (0, 2),
    }
    assert report.num_frames == len(door.frames) == 4
    assert [scene.starts for scene in scenes.values()] == [[0, 1], [0, 1]]
    assert [scene.num_closed for scene in scenes.values()] == [1, 1]
    assert len({noise.tobytes() for noise in door.noises}) == 4


def test_more_episodes_than_initial_states_are_refused() -> None:
    with Progress(disable=True) as progress, pytest.raises(InvalidInput, match="episodes"):
        wishes = LiberoWishes("libero_goal", (0,), episodes=4)
        evaluate_libero(lambda _: PaperScene(), CountingDoor(), (10, 32), wishes, progress)


class IdealArm(PaperScene):
    """A hand that goes where it is told, and takes the cup with it once closed around it."""

    things = ("cup_1", "plate_1")

    def __init__(self) -> None:
        super().__init__()
        self.hand = np.array([0.0, 0.0, 0.3])
        self.sensors = {"cup_1_pos": np.array([0.1, -0.2, 0.05]), "plate_1_pos": np.array([0.0, 0.25, 0.0])}
        self.is_held = False

    def step(self, action: np.ndarray) -> tuple[Reading, bool]:
        super().step(action)
        self.hand = self.hand + REACH * action[:3]
        cup = self.sensors["cup_1_pos"]
        self.is_held = action[6] == CLOSED and (self.is_held or bool(np.linalg.norm(self.hand - cup) < 0.02))
        if self.is_held:
            self.sensors = {**self.sensors, "cup_1_pos": self.hand.copy()}
        away = np.linalg.norm((self.sensors["cup_1_pos"] - self.sensors["plate_1_pos"])[:2])
        return self._reading(), bool(action[6] == OPEN and away < 0.02)

    def _reading(self) -> Reading:
        return Reading(self.hand, np.array([1.0, 0.0, 0.0, 0.0]), np.array([0.04, -0.04]))


def test_the_script_carries_a_thing_to_its_goal_again_and_again() -> None:
    door = ScriptedDoor()
    for number in range(2):
        scene = IdealArm()
        door.watch(scene)
        run = run_libero_episode(scene, number, door, limit=280, noise=zeros)
        assert run.succeeded, f"episode {number}"


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return parser.parse_args(words)


def test_a_missing_extra_is_one_line_with_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(libero_scene, "NEEDED", ("no_such_simulator",))
    assert command.run(parsed("--suite", "libero_goal", "--policy", "script")) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert said == "oxygen eval: the simulator needs no_such_simulator: pip install 'oxygen-vla[libero]'"


def test_incomplete_objects_are_one_line_with_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = tmp_path / "paper_objects"
    folder.mkdir()
    for number in (1, 2, 3, 5):
        (folder / f"part_{number}.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(libero_scene, "ASSETS", "paper_objects")
    monkeypatch.setattr(libero_scene, "require_simulator", lambda *_: "osmesa")
    assert command.run(parsed("--suite", "libero_goal", "--policy", "script")) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "lack paper_objects.part_4: pip install 'oxygen-vla[libero]'" in said


@pytest.mark.parametrize(
    ("words", "field"),
    [
        (("--tasks", "10"), "tasks"),
        (("--tasks", "door"), "tasks"),
        (("--episodes", "0"), "episodes"),
        (("--model", "oxygen-tiny"), "model"),
    ],
)
def test_wrong_wishes_are_refused(monkeypatch: pytest.MonkeyPatch, words: tuple[str, str], field: str) -> None:
    monkeypatch.setattr("oxygen.eval.libero_command.require_libero", lambda: None)
    with pytest.raises(InvalidInput, match=field):
        command.run(parsed("--suite", "libero_10", "--policy", "script", *words))


def test_the_arm_refuses_tasks_it_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "require_simulator", lambda: "osmesa")
    with pytest.raises(InvalidInput, match="tasks"):
        command.run(parsed("--tasks", "0"))


@pytest.mark.skipif(importlib.util.find_spec("libero") is None, reason="the extra `libero` is not installed")
def test_a_real_scene_gives_pictures_and_readings() -> None:
    try:
        libero_scene.require_libero()
    except NoSimulator as error:
        pytest.skip(str(error))
    assert os.environ["MUJOCO_GL"]
    scene = libero_scene.LiberoScene("libero_spatial", 0, is_fast=True)
    try:
        reading = scene.reset(0)
        moved, is_done = scene.step(np.array([1.0, 0, 0, 0, 0, 0, -1.0]))
        assert moved.position[0] > reading.position[0] and not is_done
        assert scene.num_states == 50 and scene.things == ("akita_black_bowl_1", "plate_1")
        for picture in scene.pictures():
            assert picture.shape == (256, 256, 3) and picture.std() > 10
    finally:
        scene.close()


@pytest.mark.parametrize(
    ("config", "declared", "robot"),
    [
        (None, None, "pi05_libero"),
        ({"action_horizon": 10}, None, "libero"),
        ({"action_horizon": 10}, {"robot": "droid"}, None),
    ],
)
def test_what_a_folder_must_be_told(config: object, declared: object, robot: str | None) -> None:
    folder = SimpleNamespace(config=config or {}, declared=declared or {}, pipeline=None)
    assert robot_of(cast(Checkpoint, folder)) == robot
