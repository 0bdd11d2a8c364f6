"""Scene facts and the sentences made of them; no simulator needed."""

from __future__ import annotations

import numpy as np
import pytest

from oxygen.sim.facts import SceneFacts, memory, narration, questions, subtask
from oxygen.sim.tasks import (
    DAGGER_SEEDS,
    DEMO_SEEDS,
    EVALUATION_SEEDS,
    LAYOUTS_PER_BLOCK,
    SELECTION_SEEDS,
    TASK_NAMES,
    TASKS,
    TRAIN_SEEDS,
)


def facts(task: str = "drawer-open", extent: float = 0.0, offset: tuple[float, float, float] = (0.3, 0.3, 0.1), **more):
    return SceneFacts(task, extent, more.get("start", 0.0), offset, more.get("done", False))


def test_the_phase_follows_position_motion_and_success() -> None:
    assert facts().phase == 0
    assert facts(offset=(0.0, 0.01, 0.02)).phase == 1
    assert facts(extent=0.5).phase == 1, "a drawer that moved is being acted on, wherever the gripper is"
    assert facts(extent=1.1, done=True).phase == 2


def test_sentences_say_what_is_true() -> None:
    assert subtask(facts()) == "move to the drawer handle"
    assert subtask(facts(extent=0.5)) == "pull the drawer open"
    assert memory(facts(extent=0.5, offset=(0.0, 0.0, 0.03))) == (
        "the drawer is half open, the gripper is at the drawer handle."
    )
    assert memory(facts(offset=(0.0, 0.02, 0.2))).endswith("above the drawer handle.")
    assert "the drawer is open" in narration(facts(extent=1.1, done=True))


@pytest.mark.parametrize(
    ("extent", "word"), [(-1.0, "closed"), (-0.5, "half closed"), (0.0, "in the middle"), (1.0, "open")]
)
def test_a_faucet_turns_both_ways(extent: float, word: str) -> None:
    assert facts("faucet-close", extent).level == word


def test_play_below_zero_is_the_zero_of_other_joints() -> None:
    assert facts("drawer-close", -0.3).level == "closed"


def test_every_question_has_a_true_answer() -> None:
    asked = {q.text: q.answer for q in questions(facts(extent=1.0), "window", "drawer-close")}
    assert asked["is the drawer open?"] == "yes"
    assert asked["is the drawer closed?"] == "no"
    assert asked["is there a window?"] == "no"
    assert asked["are you told to close the drawer?"] == "no"
    assert asked["which task is this?"] == "open the drawer"
    same = {q.text: q.answer for q in questions(facts(), "drawer", "drawer-open")}
    assert same["is there a drawer?"] == "yes"
    assert same["are you told to open the drawer?"] == "yes"


def test_twins_are_mutual_and_share_a_scene() -> None:
    for name, task in TASKS.items():
        if task.twin is not None:
            assert TASKS[task.twin].twin == name
            assert TASKS[task.twin].mechanism is task.mechanism
            assert TASKS[task.twin].instruction != task.instruction


def test_layouts_of_evaluation_are_apart_from_all_others() -> None:
    splits = [TRAIN_SEEDS, DAGGER_SEEDS, SELECTION_SEEDS, DEMO_SEEDS, EVALUATION_SEEDS]
    blocks = [{seed // LAYOUTS_PER_BLOCK for seed in split} for split in splits]
    for i, one in enumerate(blocks):
        for other in blocks[i + 1 :]:
            assert not one & other, "two splits draw layouts from one block"


def test_borders_are_called_unclear() -> None:
    assert not facts(extent=0.21).is_clear
    assert facts(extent=0.5).is_clear
    at = TASKS["drawer-open"].mechanism.at_distance
    assert not facts(offset=(0.0, 0.0, at + 0.005)).is_clear
    assert len(TASK_NAMES) == 8
    assert np.isfinite(at)
