from __future__ import annotations

from argparse import Namespace
from types import SimpleNamespace
from typing import Any

import pytest
from bench.rig import COSTS, MeteredRunner, make_frames, make_rooms

from oxygen.bench.frame import actions_first
from oxygen.bench.measure import Lane, alternate, is_due, put, spread, steady_lane
from oxygen.bench.modes import Oxygen, Shared
from oxygen.bench.stand import ALL, Point, Stand
from oxygen.bench.words import cautions, filled, legend

P, A, R = COSTS["prefill"], COSTS["act"], COSTS["round"]
FIELDS = {
    *("mode", "k", "new_tokens", "num_steps", "frame_ms", "ideal_frame_ms", "action_ready_ms_p50"),
    *("action_ready_ms_p99", "action_hz", "frames_per_s", "tokens_per_s", "ttft_ms", "mean_batch"),
    *("answer_age_frames", "answer_age_s", "management_share", "peak_bytes", "speedup"),
    *("prefill_ms", "vision_ms", "act_ms", "round_ms"),
}
"""What a row of a frame benchmark has."""
SPREADS = {
    "frame_ms",
    "action_ready_ms_p50",
    "ttft_ms",
    "answer_age_s",
    "prefill_ms",
    "vision_ms",
    "act_ms",
    "round_ms",
}


def stand_of(point: Point, frames: int = 8) -> Stand:
    """A stand on a runner without a model."""
    rooms = make_rooms(MeteredRunner)
    run: Any = SimpleNamespace(
        args=Namespace(frames=frames, baseline_frames=3),
        setup=SimpleNamespace(frames=make_frames, num_steps=10),
        alternate=lambda title, lanes, between: alternate(lanes, between=between),
    )
    return Stand(run, rooms, point)


def test_short_lanes_are_spread_over_the_whole_run() -> None:
    turns = [turn for turn in range(12) if is_due(turn, 3, 12)]
    assert turns == [3, 7, 11]
    assert [turn for turn in range(5) if is_due(turn, 5, 5)] == [0, 1, 2, 3, 4]


def test_lanes_take_turns_and_warm_up_is_apart() -> None:
    rooms = make_rooms()
    engine = Oxygen(rooms.take(4, 4), make_frames(), 10, 5, rooms.clock)
    busy, few = steady_lane(engine, 15, 6), steady_lane(Shared(rooms.take(1, 1), make_frames(), 10, rooms.clock), 15, 2)
    assert busy.warm_up >= 3
    order: list[int] = []
    alternate([busy, few], between=order.append)
    assert (len(busy.samples), len(few.samples)) == (6, 2)
    assert all(s.live == 3 for s in busy.samples)  # in balance from the first measured frame on
    assert order == list(range(6))


def test_spread_is_from_the_tenth_to_the_ninetieth_percentile() -> None:
    assert spread([float(i) for i in range(101)]) == pytest.approx(80)
    row: dict[str, Any] = {}
    put(row, "x_ms", [1.0, 2.0, 30.0])
    assert row["x_ms"] == 2.0 and row["x_ms_spread"] > 0
    put(row, "none_ms", [])
    assert row["none_ms"] is None and row["none_ms_spread"] is None


def test_all_modes_of_a_point_have_all_fields_and_reach_the_ideal() -> None:
    stand = stand_of(Point(30, (1, 5, 10), 10, ALL, is_metered=True, with_alone=True))
    stand.measure("test")
    rows = stand.rows()
    assert [(r["mode"], r["k"]) for r in rows if r["mode"] == "oxygen"] == [
        ("oxygen", 1),
        ("oxygen", 5),
        ("oxygen", 10),
    ]
    for row in rows:
        assert set(row) >= FIELDS, FIELDS - set(row)
        assert {f"{name}_spread" for name in SPREADS} <= set(row)
        assert row["ideal_share"] == pytest.approx(1.0)  # on this clock only the verbs take time
    isolated = rows[0]
    assert isolated["mode"] == "isolated" and isolated["speedup"] == 1.0
    assert isolated["frame_ms"] == pytest.approx(1e3 * (2 * P + A + 30 * R))
    oxygen = next(r for r in rows if r["mode"] == "oxygen" and r["k"] == 5)
    assert oxygen["frame_ms"] == pytest.approx(1e3 * (P + A + 5 * R))
    assert oxygen["mean_batch"] == 6 and oxygen["answer_age_frames"] == 5
    assert oxygen["tokens_per_s"] == pytest.approx(30 / (P + A + 5 * R), rel=1e-3)
    assert oxygen["action_hz"] == pytest.approx(5 / (P + A + 5 * R), rel=1e-3)
    assert oxygen["speedup"] == pytest.approx(isolated["frame_ms"] / oxygen["frame_ms"], abs=1e-3)


def test_actions_with_texts_are_compared_with_actions_alone() -> None:
    stand = stand_of(Point(30, (1,), 10, ("oxygen",), with_alone=True))
    stand.measure("test")
    found = actions_first(stand)
    assert found["live_texts"] == 30 and found["ratio"] == pytest.approx(1.0)
    assert found["action_ready_ms"] == pytest.approx(1e3 * (P + A))


def test_patterns_start_again() -> None:
    rooms = make_rooms()
    lane = Lane(Shared(rooms.take(1, 1), make_frames(), 10, rooms.clock), [(2,), ()], num_frames=4)
    assert [lane.step().live for _ in range(4)] == [1, 0, 1, 0]


def test_a_figure_below_its_spread_and_a_difference_below_it_are_named() -> None:
    base = {"mode": "isolated", "new_tokens": 30, "frame_ms": 100.0, "frame_ms_spread": 8.0, "speedup": 1}
    near = base | {"mode": "parallel", "frame_ms": 95.0, "speedup": 1.05}
    far = base | {"mode": "oxygen", "k": 1, "frame_ms": 50.0, "speedup": 2.0}
    assert cautions([base, far]) == []
    (one,) = cautions([base, near, far])
    assert "parallel" in one and "oxygen" not in one
    (wide,) = cautions([{"stage": "act", "measured_ms": 2.0, "measured_ms_spread": 3.0}])
    assert "measured ms" in wide and "act" in wide


def test_columns_without_a_figure_are_left_out() -> None:
    assert filled(("mode", "k", "ideal_frame_ms"), [{"mode": "shared", "k": None}]) == ["mode"]
    assert legend(["new_tokens"], [{"mode": "shared"}])[1] == "N: tokens of a text"
