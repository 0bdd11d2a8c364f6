"""What the engine asks of a processor and its tokenizer; the real ones live in the processing room."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from oxygen.core.inputs import EncodedTask, ModelInputs
from oxygen.core.tasks import ActionTask, Observation, TextTask


class TokenStream(Protocol):
    """Turns tokens into text piece by piece: every piece is valid text, and all of them joined are the whole text."""

    def push(self, token_id: int) -> str:
        """Take one more token; return what has become certain (possibly nothing)."""

    def finish(self) -> str:
        """Return what is left: bytes that never became a character show as replacement marks."""


class Tokenizer(Protocol):
    """Tokens and text. Safe to use from several threads."""

    @property
    def eos_ids(self) -> tuple[int, ...]: ...

    def stream(self) -> TokenStream: ...


class Processor(Protocol):
    """Observations and tasks to model inputs, model outputs to robot units. Safe to use from several threads."""

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def kinds(self) -> Sequence[str]:
        """Kinds of text that may be asked for."""

    def encode(self, observation: Observation, actions: Sequence[ActionTask], texts: Sequence[TextTask]) -> ModelInputs:
        """Encode a frame with its tasks; raises InvalidInput."""

    def encode_text(self, inputs: ModelInputs, text: TextTask) -> EncodedTask | None:
        """Encode a late question on context 0 of a frame encoded before; None where sharing it would not be exact."""

    def decode_actions(self, actions: np.ndarray, inputs: ModelInputs, expert: str = "action") -> np.ndarray:
        """[horizon, action_dim] float32 normalised -> [horizon, robot action_dim] float64 in robot units."""
