from __future__ import annotations

import pytest

from oxygen.bench.arrivals import CYCLE
from oxygen.bench.modes import FrameSample
from oxygen.bench.stability import Book, judge


def book_of(seconds: list[float]) -> Book:
    book = Book(len(seconds))
    for i, s in enumerate(seconds):
        book.write(i, FrameSample(frame_s=s, ready_s=s / 2, live=i % 7), "cpu")
    return book


def test_frames_become_one_row_per_cycle() -> None:
    rows = book_of([0.01] * (2 * CYCLE + 5)).rows()
    assert [r["cycle"] for r in rows] == [0, 1]  # a cycle that was begun does not count
    assert rows[0]["frame_ms_mean"] == pytest.approx(10) and rows[0]["live_max"] == 6
    assert rows[0]["resident_bytes"] > 1_000_000


def test_drift_and_growth_are_found() -> None:
    flat = book_of([0.01] * (8 * CYCLE)).rows()
    for row in flat:
        row["resident_bytes"] = 10**8
    assert judge(flat)["time_is_flat"] and judge(flat)["memory_is_flat"]
    slow = [dict(row, frame_ms_p50=10.0 if row["cycle"] < 4 else 12.0) for row in flat]
    noise = judge(slow)
    assert noise["time_drift"] == pytest.approx(0.2)
    assert not judge([dict(row, frame_ms_p50=10 + row["cycle"] * 0.2) for row in flat])["time_is_flat"]
    assert not judge([dict(row, resident_bytes=10**8 + row["cycle"] * 4 * 2**20) for row in flat])["memory_is_flat"]
