"""The recorded arm and the robot's loop, driven by a door that answers at once."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from oxygen.core.tasks import ActionResult, TextResult, TextTask
from oxygen.sim.drive import EXECUTED, noise_for, run_episode
from oxygen.sim.facts import SceneFacts
from oxygen.sim.isolated import LateAnswer, LateText
from oxygen.sim.recorded import Film, RecordedArm, load_films, save_films


class Echo:
    """Gives back the noise as actions, and the kind as text."""

    def __init__(self) -> None:
        self.frames: list[tuple[int, str]] = []

    def submit(self, observation, actions, texts) -> LateAnswer:
        self.frames.append((observation.frame_id, observation.prompt))
        chunk = ActionResult(actions.noise.astype(np.float64), "arm", observation.frame_id, 0.0, "action", 0.0)
        answer = LateAnswer([LateText(task.kind) for task in texts])
        answer.chunk.set_result(chunk)
        for text in answer.texts:
            frame_id = observation.frame_id
            text.future.set_result(TextResult(text.kind, (5,), text.kind, "arm", frame_id, 0.0, "stop", 0, 0.0, 0.0))
        return answer


def film(task: str = "window-open", length: int = 3) -> Film:
    rng = np.random.default_rng(0)
    facts = tuple(SceneFacts(task, 0.1 * i, 0.0, (0.1, 0.2, 0.3), False) for i in range(length))
    images = rng.integers(0, 256, (length, 2, 64, 64, 3), dtype=np.uint8)
    return Film(task, images, rng.random((length, 4), dtype=np.float32), facts)


def test_films_survive_the_disk(tmp_path: Path) -> None:
    films = [film(), film("drawer-close", 5)]
    save_films(tmp_path / "films.npz", films)
    back = load_films(tmp_path / "films.npz")
    for before, after in zip(films, back, strict=True):
        assert after.task == before.task
        assert after.facts == before.facts
        assert np.array_equal(after.images, before.images)
        assert np.array_equal(after.states, before.states)


def test_a_recorded_arm_shows_every_frame_once_and_achieves_nothing() -> None:
    door, arm = Echo(), RecordedArm(film())
    wanted = [TextTask("subtask")]
    episode = run_episode(arm, 7, door, wanted=lambda _: wanted, noise_shape=(10, 4))
    assert [frame for frame, _ in door.frames] == [0, 1, 2]
    assert {prompt for _, prompt in door.frames} == {"open the window"}
    assert not episode.succeeded
    assert episode.num_steps == 3 * EXECUTED
    for look, picture in zip(episode.looks, film().images, strict=True):
        assert np.array_equal(look.observation.images["front"], picture[0])
        assert look.answer.texts[0].result().text == "subtask"


def test_noise_belongs_to_layout_and_step() -> None:
    assert np.array_equal(noise_for(3, 5, 10, 4), noise_for(3, 5, 10, 4))
    assert not np.array_equal(noise_for(3, 5, 10, 4), noise_for(3, 10, 10, 4))
    assert not np.array_equal(noise_for(3, 5, 10, 4), noise_for(4, 5, 10, 4))
