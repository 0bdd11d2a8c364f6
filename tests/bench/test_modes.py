"""Every mode does what it says, counted in verbs and in the time of a clock that only the verbs move."""

from __future__ import annotations

from collections import Counter

import pytest
from bench.rig import COSTS, make_frames, make_rooms
from fakes import FakeRunner

from oxygen.bench.arrivals import fluctuating, live_texts, max_live
from oxygen.bench.modes import Isolated, Oxygen, Shared, UpperBound
from oxygen.bench.probe import Rooms
from oxygen.core.errors import InvalidInput

P, A, R = COSTS["prefill"], COSTS["act"], COSTS["round"]


def verbs(rooms: Rooms) -> Counter[str]:
    assert isinstance(rooms.runner, FakeRunner)
    counted = Counter(verb for verb, _ in rooms.runner.log)
    rooms.runner.log.clear()
    return counted


def test_isolated_prefills_for_every_task() -> None:
    rooms = make_rooms()
    mode = Isolated(rooms.take(1, 1), make_frames(), 10, rooms.clock)
    sample = mode.frame((30, 7))
    assert verbs(rooms) == {"prefill": 3, "act": 1, "decode": 2, "round": 37}
    assert sample.frame_s == pytest.approx(3 * P + A + 37 * R)
    assert sample.ready_s == pytest.approx(P + A)
    assert sample.ttft_s == pytest.approx([2 * P + A + R, 3 * P + A + 31 * R])
    assert sample.age_frames == [0, 0] and sample.management_s == pytest.approx(0)
    assert (sample.verbs.rounds, sample.verbs.tokens) == (37, 37)


def test_shared_prefills_once_and_decodes_to_the_end() -> None:
    rooms = make_rooms()
    sample = Shared(rooms.take(1, 1), make_frames(), 10, rooms.clock).frame((30, 7))
    assert verbs(rooms) == {"prefill": 1, "act": 1, "decode": 2, "round": 37}
    assert sample.frame_s == pytest.approx(P + A + 37 * R)


def test_upper_bound_drops_what_is_beyond_k() -> None:
    rooms = make_rooms()
    sample = UpperBound(rooms.take(1, 1), make_frames(), 10, 5, rooms.clock).frame((30,))
    assert verbs(rooms)["round"] == 5
    assert sample.frame_s == pytest.approx(P + A + 5 * R)
    assert sample.age_s == [] and len(sample.ttft_s) == 1  # no text is ever complete


@pytest.mark.parametrize(("n", "k", "live"), [(30, 1, 30), (30, 5, 6), (30, 10, 3), (7, 3, 3)])
def test_oxygen_in_balance_costs_what_the_stages_cost(n: int, k: int, live: int) -> None:
    rooms = make_rooms()
    mode = Oxygen(rooms.take(live + 1, live + 1), make_frames(), 10, k, rooms.clock)
    for _ in range(live + 2):
        sample = mode.frame((n,))
    assert sample.live == live
    assert sample.frame_s == pytest.approx(P + A + k * R)
    assert sample.ready_s == pytest.approx(P + A)
    assert sample.age_frames == [live - 1]
    last_rounds = n - (live - 1) * k
    full, alone = (live - 1) * (P + A + k * R), P + A + k * R
    assert full < sample.age_s[0] <= full + alone + 1e-9
    assert sample.verbs.tokens == (live - 1) * k + last_rounds
    mode.close()


def test_other_modes_in_between_make_no_answer_older() -> None:
    rooms = make_rooms()
    mode = Oxygen(rooms.take(4, 4), make_frames(), 10, 5, rooms.clock)
    other = Shared(rooms.take(1, 1), make_frames(), 10, rooms.clock)
    ages = []
    for _ in range(6):
        ages += mode.frame((15,)).age_s
        other.frame((60,))
    assert max(ages) <= 3 * (P + A + 5 * R) + 1e-9
    mode.close()


def test_a_fluctuating_load_is_carried_as_foretold_and_leaves_nothing() -> None:
    arrivals = fluctuating(400, 2)
    most = max_live(arrivals, 2)
    rooms = make_rooms(max_contexts=most, max_texts=most)
    mode = Oxygen(rooms.take(most, most), make_frames(), 10, 2, rooms.clock)
    assert [mode.frame(lengths).live for lengths in arrivals] == live_texts(arrivals, 2)
    mode.close()
    assert isinstance(rooms.runner, FakeRunner)
    assert not rooms.runner.contexts and not rooms.runner.tails


def test_rooms_refuse_more_rows_than_there_are() -> None:
    rooms = make_rooms(max_contexts=3, max_texts=3)
    first = rooms.take(2, 1)
    assert (first.limits.max_contexts, first.limits.max_texts) == (2, 1)
    assert rooms.take(1, 2).first_context == 2
    with pytest.raises(InvalidInput, match="rows"):
        rooms.take(1, 0)
