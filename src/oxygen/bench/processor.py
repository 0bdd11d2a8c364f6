"""A processor that takes frames as they are: what preprocessing costs is measured elsewhere, and once per frame
anyway."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from oxygen.bench.shapes import Frames
from oxygen.core.inputs import EncodedTask, ModelInputs
from oxygen.core.tasks import ActionTask, Observation, TextTask


class LetterStream:
    """One letter per token."""

    def push(self, token_id: int) -> str:
        return chr(97 + token_id % 26)

    def finish(self) -> str:
        return ""


class Letters:
    """A tokenizer that no text ends."""

    eos_ids: tuple[int, ...] = ()

    def stream(self) -> LetterStream:
        return LetterStream()


class BenchProcessor:
    """Gives every observation the next of the prepared frames; all tasks share its context."""

    def __init__(self, frames: Frames) -> None:
        self.tokenizer = Letters()
        self.kinds = ("narration",)
        self._frames = frames

    def encode(self, observation: Observation, actions: Sequence[ActionTask], texts: Sequence[TextTask]) -> ModelInputs:
        tails = dict(self._frames.readers)
        acting = tuple(EncodedTask(0, tails.get(task.expert, ())) for task in actions)
        return ModelInputs((self._frames.make(),), acting, (EncodedTask(0),) * len(texts), self._frames.state)

    def encode_text(self, inputs: ModelInputs, text: TextTask) -> EncodedTask | None:
        return EncodedTask(0)

    def decode_actions(self, actions: np.ndarray, inputs: ModelInputs, expert: str = "action") -> np.ndarray:
        return actions.astype(np.float64)
