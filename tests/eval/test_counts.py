"""Wilson intervals, balanced questions, tables."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from oxygen.core.tasks import Observation
from oxygen.eval.closed_loop import Report, Wishes
from oxygen.eval.counts import Count, count
from oxygen.eval.report import rows, tables
from oxygen.eval.texts import Asked, balanced, open_questions
from oxygen.sim.facts import SceneFacts, questions


@pytest.mark.parametrize(
    ("hits", "total", "low", "high"),
    [
        # Newcombe, Statistics in Medicine 17 (1998), table I, method 3
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_intervals_are_those_of_the_literature(hits: int, total: int, low: float, high: float) -> None:
    found = Count(hits, total).interval()
    assert found == pytest.approx((low, high), abs=5e-5)


def test_intervals_stay_in_bounds_and_mirror() -> None:
    assert Count(0, 0).interval() == (0.0, 1.0)
    assert math.isnan(Count(0, 0).rate)
    for hits in range(21):
        low, high = Count(hits, 20).interval()
        assert 0.0 <= low <= hits / 20 <= high <= 1.0
        mirrored = Count(20 - hits, 20).interval()
        assert (low, high) == pytest.approx((1 - mirrored[1], 1 - mirrored[0]))


def test_counts_add() -> None:
    assert Count(1, 2) + Count(3, 4) == Count(4, 6)
    assert count([True, False, True]) == Count(2, 3)


def asked_of(num_frames: int) -> list[Asked]:
    rng = np.random.default_rng(0)
    observation = Observation({})
    found = []
    for _ in range(num_frames):
        facts = SceneFacts("drawer-open", float(rng.uniform(0, 1.2)), 0.0, (0.1, 0.1, 0.1), bool(rng.random() < 0.1))
        found += [Asked(observation, facts, q) for q in questions(facts, "window", "drawer-close")]
    return found


def test_a_balanced_set_has_as_many_yes_as_no_in_every_topic() -> None:
    chosen = balanced(asked_of(200), 15, seed=0)
    topics = {one.question.topic for one in chosen}
    assert {"extent", "done", "moved", "scene", "told", "closed"} <= topics
    for topic in topics:
        answers = [one.question.answer for one in chosen if one.question.topic == topic]
        assert answers.count("yes") == answers.count("no") <= 15
    assert "at" not in topics, "the gripper was never at the handle: a topic with one answer only proves nothing"
    assert chosen == balanced(asked_of(200), 15, seed=0) or len(chosen) == len(balanced(asked_of(200), 15, seed=0))


def test_open_questions_are_capped_by_topic() -> None:
    chosen = open_questions(asked_of(50), 7, seed=0)
    topics = [one.question.topic for one in chosen]
    assert set(topics) == {"doing", "task", "level", "object"}
    assert all(topics.count(topic) == 7 for topic in set(topics))


def test_evaluation_layouts_run_out_loudly() -> None:
    assert len(Wishes(seed=100).layouts(20)) == 20
    with pytest.raises(ValueError, match="set apart"):
        Wishes(seed=9_990).layouts(20)


def test_tables_and_rows_tell_the_same() -> None:
    report = Report(
        success={"drawer-open": Count(19, 20), "drawer-close": Count(18, 20)},
        twin={"drawer-open": Count(0, 10)},
        texts={"subtask": (Count(90, 100), Count(80, 81))},
        yes_no={"done": Count(39, 40)},
        open_answers={"doing": Count(10, 10)},
        num_frames=50,
        loop_s=5.0,
        action_ready_ms=[10.0, 20.0, 30.0],
    )
    text = tables(report)
    assert "| **all** | 37/40 = 92.5 % |" in text
    assert "80/81" in text
    found = json.loads(json.dumps(rows(report, "oxygen")))
    by_name = {(row["what"], row.get("name")): row for row in found}
    assert by_name[("success", "all")]["hits"] == 37
    assert by_name[("twin", "all")]["rate"] == 0.0
    assert by_name[("clear", "subtask")]["total"] == 81
    assert by_name[("loop", None)]["frames_per_s"] == 10.0
    assert by_name[("loop", None)]["action_ready_ms_p50"] == 20.0
