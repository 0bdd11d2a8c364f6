"""Several operating points, one after another on one runner; within a point all modes take turns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from oxygen.bench.command import Run
from oxygen.bench.estimate import Prices
from oxygen.bench.parallel import open_pair
from oxygen.bench.probe import Rooms
from oxygen.bench.stand import Point, Stand, room_for


def sweep(run: Run, points: Sequence[Point]) -> list[dict[str, Any]]:
    """Measure every point; returns all rows."""
    room = room_for(points)
    wants_pair = any("parallel" in point.modes for point in points) and not getattr(run.args, "no_parallel", False)
    pair = open_pair(run.setup, room["tail_len"], run.report.note) if wants_pair else None
    rows: list[dict[str, Any]] = []
    try:
        rooms = Rooms(run.setup.open(**room))
        prices = Prices.measure(rooms, run.setup.frames())
        stands = [Stand(run, rooms, point, pair) for point in points]
        run.expect(sum(stand.expected_s(prices) for stand in stands), f"{len(points)} points")
        for i, (stand, point) in enumerate(zip(stands, points, strict=True)):
            stand.measure(f"{run.report.bench} {i + 1}/{len(points)}: N = {point.new_tokens}, S = {point.num_steps}")
            rows += stand.rows()
    finally:
        if pair is not None:
            pair.close()
    return rows
