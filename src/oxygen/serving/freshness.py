"""Whether a frame is what it claims to be: newest, young enough, and from cameras that are alive.

Two machines' clocks are never subtracted as they are. The smallest (arrival - capture) difference seen lately
stands for the clock offset plus the fastest trip; a frame's age is how much it exceeds that.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np

from oxygen.core.errors import InvalidInput, Refused
from oxygen.core.tasks import Observation

_WINDOW = 256
_FUTURE_JUMP_S = 1.0


def capture_time(given: Any) -> tuple[float | None, dict[str, float]]:
    """Read `captured_at`: seconds, or a map of camera -> seconds (then the frame is as old as its oldest picture)."""
    if given is None:
        return None, {}
    times = dict(given) if isinstance(given, Mapping) else {"": given}
    for camera, value in times.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            name = f"captured_at.{camera}" if camera else "captured_at"
            raise InvalidInput(name, "finite seconds since the epoch", repr(value)[:80])
    if not times:
        return None, {}
    cameras = {} if "" in times else {str(camera): float(t) for camera, t in times.items()}
    return float(min(times.values())), cameras


class Freshness:
    """Judges the frames of one session. Warnings are (code, message); refusals are raised."""

    def __init__(self, max_age_s: float | None, max_skew_s: float | None, repeated_warning: int) -> None:
        self._max_age_s, self._max_skew_s, self._repeated_warning = max_age_s, max_skew_s, repeated_warning
        self.reset()

    def reset(self) -> None:
        self._frame_id: int | None = None
        self._captured_at = -math.inf
        self._offsets: deque[float] = deque(maxlen=_WINDOW)
        self._pictures: dict[str, np.ndarray] = {}
        self._state: np.ndarray | None = None
        self.repeats: dict[str, int] = {}

    def check_order(self, frame_id: int | None) -> None:
        """Raises Refused when the robot's own number says that a newer frame has been taken already."""
        if frame_id is None:
            return
        if self._frame_id is not None and frame_id <= self._frame_id:
            raise Refused(
                "out_of_order", f"frame {frame_id} came after frame {self._frame_id}; only newer frames are taken"
            )
        self._frame_id = frame_id

    def check_age(
        self, captured_at: float | None, cameras: Mapping[str, float], received_at: float
    ) -> list[tuple[str, str]]:
        """received_at: this machine's epoch seconds. Raises Refused where a limit is set and exceeded."""
        if captured_at is None:
            return []
        warnings = [*self._skew(cameras), *self._decreasing(captured_at)]
        offset = received_at - captured_at
        fastest = min(self._offsets, default=offset)
        if fastest - offset > _FUTURE_JUMP_S:
            warnings.append(
                self._limit("clock_jump", f"the capture time is {fastest - offset:.1f} s ahead of earlier frames")
            )
        else:
            self._offsets.append(offset)
        if self._max_age_s is not None and offset - fastest > self._max_age_s:
            age = f"{offset - fastest:.2f} s late"
            raise Refused(
                "stale_frame", f"the frame is {age} against the fastest of this link (limit {self._max_age_s:g} s)"
            )
        return warnings

    def check_pictures(self, observation: Observation) -> list[tuple[str, str]]:
        """Count, per camera, how often in a row the very same picture came while the robot's state changed."""
        warnings = []
        state = observation.state
        moved = state is not None and self._state is not None and not np.array_equal(state, self._state)
        for camera, picture in observation.images.items():
            before = self._pictures.get(camera)
            is_same = before is not None and before.shape == picture.shape and np.array_equal(before, picture)
            self.repeats[camera] = self.repeats.get(camera, 0) + 1 if is_same and moved else 0
            if self._repeated_warning and self.repeats[camera] and self.repeats[camera] % self._repeated_warning == 0:
                count = self.repeats[camera]
                warnings.append(
                    ("frozen_camera", f"camera {camera} repeated one picture {count} times while the state changed")
                )
        self._pictures, self._state = dict(observation.images), state
        return warnings

    def _skew(self, cameras: Mapping[str, float]) -> list[tuple[str, str]]:
        if len(cameras) < 2 or self._max_skew_s is None:
            return []
        oldest, newest = min(cameras, key=cameras.__getitem__), max(cameras, key=cameras.__getitem__)
        skew = cameras[newest] - cameras[oldest]
        if skew <= self._max_skew_s:
            return []
        return [("camera_skew", f"camera {oldest} is {skew:.3f} s behind {newest} (limit {self._max_skew_s:g} s)")]

    def _decreasing(self, captured_at: float) -> list[tuple[str, str]]:
        before, self._captured_at = self._captured_at, captured_at
        if captured_at >= before:
            return []
        return [self._limit("capture_time_decreased", f"the capture time went back by {before - captured_at:.3f} s")]

    def _limit(self, code: str, message: str) -> tuple[str, str]:
        """A refusal where frame ages are enforced, a warning where they are only watched."""
        if self._max_age_s is not None:
            raise Refused(code, message)
        return code, message
