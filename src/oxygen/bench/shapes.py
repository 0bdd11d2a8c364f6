"""What a frame of a robot looks like to the model: cameras present, prompt tokens, actions in a chunk; and random
ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from oxygen.core.inputs import ContextInputs
from oxygen.core.plan import ActItem, ExpertLimits, RunnerLimits


@dataclass(frozen=True, slots=True)
class Shape:
    """num_cameras are valid cameras (absent ones cost nothing); prompt_len counts valid prompt tokens; horizon
    actions."""

    name: str
    num_cameras: int
    prompt_len: int
    horizon: int

    def context_len(self, tokens_per_image: int) -> int:
        return self.num_cameras * tokens_per_image + self.prompt_len


SHAPES: dict[str, Shape] = {
    # π0.5-LIBERO reads no state: its prompt is the instruction alone. The others write 8 and 14 numbers into it.
    "libero": Shape("libero", num_cameras=2, prompt_len=12, horizon=10),
    "droid": Shape("droid", num_cameras=2, prompt_len=48, horizon=15),
    "aloha": Shape("aloha", num_cameras=3, prompt_len=70, horizon=50),
    # Every camera and a long prompt: the work on which openpi's own code was timed.
    "full": Shape("full", num_cameras=3, prompt_len=150, horizon=50),
}


class Frames:
    """Random frames of one shape. Pictures come from a small pool made beforehand, so that making them costs no time.

    lead_ids: tokens before the prompt where a model's prompt has tokens for its pictures; tokens_per_image: where it
    has none. readers: action experts with their private tokens, if the model has several (none: one, `action`). state:
    what experts read of the robot.
    """

    def __init__(
        self,
        shape: Shape,
        image_size: int,
        tokens_per_image: int,
        vocab_size: int,
        seed: int = 0,
        *,
        lead_ids: tuple[int, ...] = (),
        readers: tuple[tuple[str, tuple[int, ...]], ...] = (),
        state: np.ndarray | None = None,
    ) -> None:
        rng = np.random.default_rng(seed)
        pictures = rng.integers(0, 256, (4, shape.num_cameras, image_size, image_size, 3), dtype=np.uint8)
        ids = rng.integers(2, vocab_size, (4, shape.prompt_len))
        self.shape = shape
        self.readers, self.state = readers, state
        self.context_len = shape.context_len(tokens_per_image) + len(lead_ids)
        self._pool = [(tuple(p), (*lead_ids, *(int(t) for t in i))) for p, i in zip(pictures, ids, strict=True)]
        self._next = 0

    def make(self) -> ContextInputs:
        """Return the next frame's context; every call returns an object of its own."""
        images, token_ids = self._pool[self._next % len(self._pool)]
        self._next += 1
        return ContextInputs(images, token_ids, self.context_len)

    def chunks(self, limits: RunnerLimits, row: int, num_steps: int) -> list[ActItem]:
        """One chunk of every action expert, from the context in this row. num_steps: of those that have steps."""
        experts = limits.experts or (ExpertLimits("action", limits.horizon, limits.action_dim, num_steps),)
        tails = dict(self.readers)
        return [
            ActItem(0, i, row, self.context_len, e.name, num_steps, _noise(e), tails.get(e.name, ()), self.state)
            for i, e in enumerate(experts)
        ]


def _noise(expert: ExpertLimits) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((expert.horizon, expert.action_dim), dtype=np.float32)
