"""The buffer between chunks and motors, on a clock of its own: seams, starvation, gaps, resets."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oxygen_client import ActionBuffer, Stale
from oxygen_client.messages import Chunk

PERIOD = 0.1


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def chunk(step: int, sent_at: float, horizon: int = 10) -> Chunk:
    """Action i of the chunk is the number of the control step that it is meant for."""
    return Chunk(np.arange(step, step + horizon, dtype=float)[:, None], 0, step, sent_at, sent_at)


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_before_the_first_chunk_it_is_stale_and_says_so(clock: Clock) -> None:
    with pytest.raises(Stale) as caught:
        ActionBuffer(PERIOD, clock=clock).next()
    assert caught.value.age_s == float("inf")


def test_a_slow_first_answer_starts_at_its_first_action(clock: Clock) -> None:
    buffer = ActionBuffer(1 / 30, clock=clock)
    sent_at = clock.now
    clock.now += 0.7  # 21 periods of 30 Hz, and nothing was executed meanwhile
    assert buffer.add(chunk(buffer.step, sent_at, horizon=16))
    assert buffer.next() == [0.0]


def test_a_new_chunk_is_entered_at_what_was_really_executed(clock: Clock) -> None:
    buffer = ActionBuffer(PERIOD, clock=clock)
    buffer.add(chunk(0, clock.now))
    for _ in range(4):
        buffer.next()
        clock.now += PERIOD
    step, sent_at = buffer.step, clock.now
    for _ in range(3):
        buffer.next()
        clock.now += PERIOD
    assert buffer.add(chunk(step, sent_at))
    assert buffer.next() == [7.0]


def test_when_a_chunk_runs_out_it_holds_for_the_grace_and_then_is_stale(clock: Clock) -> None:
    buffer = ActionBuffer(PERIOD, grace=2.0, clock=clock)
    buffer.add(chunk(0, clock.now, horizon=3))
    assert [buffer.next()[0] for _ in range(3)] == [0.0, 1.0, 2.0]
    clock.now += 0.5 * PERIOD
    assert buffer.next() is None
    clock.now += 3 * PERIOD
    with pytest.raises(Stale):
        buffer.next()


def test_after_a_gap_nothing_from_before_it_is_released(clock: Clock) -> None:
    buffer = ActionBuffer(PERIOD, clock=clock)
    buffer.add(chunk(0, clock.now))
    buffer.next()
    clock.now += 3.0  # the loop stood still: the chunk's time has passed
    with pytest.raises(Stale):
        buffer.next()
    assert buffer.add(chunk(buffer.step, clock.now))
    assert buffer.next() == [1.0]


def test_an_older_chunk_that_comes_late_is_not_taken(clock: Clock) -> None:
    buffer = ActionBuffer(PERIOD, clock=clock)
    newer, older = chunk(0, clock.now + 0.2), chunk(0, clock.now)
    assert buffer.add(newer) and not buffer.add(older)


def test_a_chunk_that_is_used_up_on_arrival_is_not_taken(clock: Clock) -> None:
    buffer = ActionBuffer(PERIOD, clock=clock)
    buffer.add(chunk(0, clock.now, horizon=20))
    sent_at = clock.now + 0.01
    for _ in range(10):
        buffer.next()
    assert not buffer.add(chunk(0, sent_at, horizon=10))


def test_a_reset_forgets_chunks_that_are_still_under_way(clock: Clock) -> None:
    buffer = ActionBuffer(PERIOD, clock=clock)
    step, sent_at = buffer.step, clock.now
    clock.now += 0.05
    buffer.reset()
    assert not buffer.add(chunk(step, sent_at))
    with pytest.raises(Stale):
        buffer.next()
    clock.now += 0.05
    assert buffer.add(chunk(buffer.step, clock.now)) and buffer.next() == [0.0]


@given(
    st.lists(
        st.one_of(st.just("next"), st.just("ask"), st.just("answer"), st.just("reset"), st.floats(0.01, 0.5)),
        max_size=80,
    )
)
def test_the_robot_never_skips_or_repeats_an_index(events: list[object]) -> None:
    """Whatever comes in whatever order: each action released is the one meant for the next step to be executed."""
    clock, asked = Clock(), []
    buffer = ActionBuffer(PERIOD, clock=clock)
    executed = 0
    for event in events:
        if event == "next":
            try:
                action = buffer.next()
            except Stale:
                action = None
            if action is not None:
                assert action == [float(executed)]
                executed += 1
            assert buffer.step == executed
        elif event == "ask":
            asked.append((buffer.step, clock.now))
        elif event == "answer" and asked:
            buffer.add(chunk(*asked.pop(0), horizon=6))
        elif event == "reset":
            buffer.reset()
        elif isinstance(event, float):
            clock.now += event
