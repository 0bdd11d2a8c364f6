"""Budgets: how they are written, and how many rounds they allow."""

from __future__ import annotations

import pytest

from oxygen.core.config import Budget, EngineConfig
from oxygen.core.errors import InvalidInput
from oxygen.scheduler.pace import WARM_UP, WINDOW, Pace
from oxygen.scheduler.state import Outcome


def learned(pace, frame_s, round_s, times=1, rounds=1):
    for _ in range(times):
        pace.observe(True, Outcome(base_s=frame_s, decode_s=round_s * rounds, rounds=rounds), wanted_text=True)
    return pace


@pytest.mark.parametrize(
    ("written", "budget"),
    [
        ("fixed:5", Budget("fixed", 5)),
        ("rate:12.5", Budget("rate", 12.5)),
        ("idle", Budget("idle")),
        (" idle ", Budget("idle")),
    ],
)
def test_budgets_are_read_and_written(written, budget):
    assert Budget.parse(written) == budget
    assert Budget.parse(str(budget)) == budget


@pytest.mark.parametrize(
    "written",
    ["", "fixed", "fixed:", "fixed:0", "fixed:-1", "fixed:2.5", "rate:0", "rate:inf", "rate:nan", "idle:3", "slow:1"],
)
def test_other_budgets_are_refused_with_the_forms_that_are_known(written):
    with pytest.raises(InvalidInput, match=r"fixed:K .*rate:F .*idle"):
        Budget.parse(written)
    with pytest.raises(InvalidInput):
        EngineConfig(budget=written)


def test_fixed_is_k_and_never_more_than_the_longest_text_needs():
    pace = Pace(Budget.parse("fixed:5"), 0)
    assert pace.rounds(30, has_actions=True) == 5
    assert pace.rounds(3, has_actions=True) == 3
    assert pace.rounds(0, has_actions=True) == 0


def test_idle_asks_for_all_that_is_left():
    assert Pace(Budget.parse("idle"), 0).rounds(30, has_actions=True) == 30


def test_rate_takes_the_largest_k_that_holds_the_rate():
    pace = learned(Pace(Budget.parse("rate:10"), 0), frame_s=0.041, round_s=0.01, times=WARM_UP + 1, rounds=2)
    assert pace.rounds(30, has_actions=True) == 5  # 0.041 + 5 x 0.01 <= 0.1 < 0.041 + 6 x 0.01
    assert pace.rounds(2, has_actions=True) == 2


def test_rate_is_careful_until_it_knows_and_leaves_the_warm_up_out():
    pace = learned(Pace(Budget.parse("rate:10"), 0), frame_s=40.0, round_s=4.0, times=WARM_UP)
    assert pace.rounds(30, has_actions=True) == 1
    learned(pace, frame_s=0.045, round_s=0.01)
    assert pace.rounds(30, has_actions=True) == 5


def test_rate_is_not_moved_by_a_spike_and_follows_a_change():
    pace = learned(Pace(Budget.parse("rate:10"), 0), frame_s=0.055, round_s=0.01, times=20)
    learned(pace, frame_s=5.0, round_s=1.0, times=2)
    assert pace.rounds(30, has_actions=True) == 4
    learned(pace, frame_s=0.085, round_s=0.01, times=WINDOW)
    assert pace.rounds(30, has_actions=True) == 1


def test_rate_pauses_text_where_there_is_no_time_but_not_where_there_is_no_frame():
    pace = learned(Pace(Budget.parse("rate:10"), 0), frame_s=0.2, round_s=0.01, times=10)
    assert pace.rounds(30, has_actions=True) == 0
    assert pace.rounds(30, has_actions=False) == 1


def test_text_is_due_after_so_many_pauses_and_one_round_settles_it():
    pace = learned(Pace(Budget.parse("rate:10"), 3), frame_s=0.2, round_s=0.01, times=10)
    for _ in range(3):
        assert pace.rounds(30, has_actions=True) == 0
        pace.observe(True, Outcome(base_s=0.2), wanted_text=True)
    assert pace.is_text_due
    assert pace.rounds(30, has_actions=True) == 1
    learned(pace, frame_s=0.2, round_s=0.01)
    assert not pace.is_text_due


def test_steps_without_text_are_no_pauses():
    pace = Pace(Budget.parse("fixed:1"), 1)
    pace.observe(True, Outcome(), wanted_text=False)
    assert not pace.is_text_due
