"""A runner without a model whose verbs cost what a test says, on a clock that only they move."""

from __future__ import annotations

from typing import Any

from fakes import FakeClock, FakeRunner, fake_limits

from oxygen.bench.probe import Rooms
from oxygen.bench.shapes import Frames, Shape
from oxygen.core.plan import DecodeItem

COSTS = {"prefill": 0.2, "act": 0.1, "round": 0.01}
SHAPE = Shape("test", num_cameras=2, prompt_len=5, horizon=5)


class MeteredRunner(FakeRunner):
    """Lets stages be measured on tails that nobody wrote."""

    def _known(self, item: DecodeItem) -> list[int]:
        return list(item.pending)


def make_rooms(kind: type[FakeRunner] = FakeRunner, **sizes: Any) -> Rooms:
    clock = FakeClock(0.0)
    limits = fake_limits(**{"max_contexts": 80, "max_texts": 80, "tail_len": 64} | sizes)
    return Rooms(kind(limits, clock, COSTS), clock)


def make_frames() -> Frames:
    return Frames(SHAPE, image_size=4, tokens_per_image=4, vocab_size=250)
