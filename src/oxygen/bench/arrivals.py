"""When texts arrive and how long they are: for each frame, the lengths (in tokens) of the texts that begin with it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, repeat

import numpy as np

Arrivals = Sequence[Sequence[int]]
"""arrivals[frame]: one length per text that begins with this frame."""

COUNT_PERIOD = 17
LENGTH_PERIOD = 7
CYCLE = COUNT_PERIOD * LENGTH_PERIOD
"""Frames after which the fluctuating workload repeats itself."""


def steady(num_frames: int, new_tokens: int) -> list[tuple[int, ...]]:
    """One text a frame, all of one length."""
    return list(repeat((new_tokens,), num_frames))


def uniform(num_frames: int, new_tokens: int, rate: float) -> list[tuple[int, ...]]:
    """`rate` texts a frame at even distances (0.5: every second frame; 2: two with each)."""
    total = [math.floor(rate * (i + 1) + 1e-9) for i in range(num_frames)]
    return [(new_tokens,) * (now - before) for before, now in zip([0, *total], total, strict=False)]


def poisson(num_frames: int, new_tokens: int, rate: float, seed: int = 0) -> list[tuple[int, ...]]:
    """A number of texts drawn from a Poisson distribution of mean `rate` with each frame."""
    counts = np.random.default_rng(seed).poisson(rate, num_frames)
    return [(new_tokens,) * int(count) for count in counts]


def mixture(num_frames: int, short: int, long: int, share_long: float, seed: int = 0) -> list[tuple[int, ...]]:
    """One text a frame: long with probability `share_long`, otherwise short."""
    is_long = np.random.default_rng(seed).random(num_frames) < share_long
    return [(long if chosen else short,) for chosen in is_long]


def fluctuating(num_frames: int, k: int, max_live: int = 40) -> list[tuple[int, ...]]:
    """Counts with a period of 17 frames, lengths with a period of 7; at times `max_live` texts at once, never more.

    The counts swing between 0 and 5 texts a frame, the lengths between 3 and 15 times `k` tokens. What would exceed
    `max_live` is left out.
    """
    pattern: list[tuple[int, ...]] = []
    ends: list[int] = []  # frame after whose step each live text is over
    for frame in range(num_frames):
        swing = math.sin(2 * math.pi * (frame % COUNT_PERIOD) / COUNT_PERIOD)
        count = max(0, math.floor(3.6 + 2.6 * swing))
        length = k * math.floor(9.6 + 6 * math.cos(2 * math.pi * (frame % LENGTH_PERIOD) / LENGTH_PERIOD))
        ends = [end for end in ends if end > frame]
        count = min(count, max_live - len(ends))
        ends += [frame + length // k] * count
        pattern.append((length,) * count)
    return pattern


def live_texts(arrivals: Arrivals, k: int) -> list[int]:
    """Texts alive in each frame's step when every step decodes k rounds."""
    change = [0] * (len(arrivals) + 1)
    for frame, lengths in enumerate(arrivals):
        for length in lengths:
            change[frame] += 1
            over = frame + math.ceil(length / k)
            if over < len(change):
                change[over] -= 1
    return list(accumulate(change[:-1]))


def max_live(arrivals: Arrivals, k: int) -> int:
    return max(live_texts(arrivals, k), default=0)


def warm_up_frames(longest: int, k: int) -> int:
    """Frames until texts that begin and texts that end are in balance."""
    return math.ceil(longest / k)
