"""FAST: an action chunk as text. Its tokens decode like any text, from a range of ids of their own; the finished ids
are byte-pair coded coefficients of a cosine transform over time (Pertsch et al., 2025).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from oxygen.core.errors import CheckpointError, InvalidInput, OxygenError
from oxygen.core.tasks import Sampling, TextTask
from oxygen.processing.chat_config import ExpertOutput
from oxygen.processing.statistics import Statistics
from oxygen.processing.tokenizer import Tokenizer

FAST = "fast"
"""The kind of its text tasks, and the name of its prompt."""


@dataclass(frozen=True, slots=True)
class FastCodec:
    """Ids of the FAST vocabulary <-> [horizon, action_dim]. scale: coefficients were multiplied by it and rounded."""

    tokenizer: Tokenizer
    num_ids: int
    scale: float
    min_token: int
    horizon: int
    action_dim: int

    def decode(self, ids: Sequence[int]) -> np.ndarray:
        """[horizon, action_dim] float64, normalised. Raises OxygenError for ids that are no whole chunk."""
        contents, expected = self.tokenizer.vocabulary.contents, self.horizon * self.action_dim
        try:
            text = b"".join([contents[i] for i in ids]).decode("utf-8")
        except (IndexError, UnicodeDecodeError) as error:
            raise OxygenError(f"FAST: ids that stand for no text: {error}") from None
        if len(text) != expected:
            raise OxygenError(f"FAST: {len(text)} coefficients, a chunk has {self.horizon} x {self.action_dim}")
        coefficients = np.array([ord(c) + self.min_token for c in text], dtype=np.float64).reshape(self.horizon, -1)
        return cosines(self.horizon).T @ (coefficients / self.scale)


def cosines(n: int) -> np.ndarray:
    """The orthonormal cosine transform (DCT-II) [frequency, time]; its transpose is the way back."""
    frequency, time = np.arange(n)[:, None], np.arange(n)[None, :]
    matrix = np.cos(np.pi * frequency * (2 * time + 1) / (2 * n)) * np.sqrt(2.0 / n)
    matrix[0] /= np.sqrt(2.0)
    return matrix


@dataclass(frozen=True, slots=True)
class FastExpert:
    """A codec at its place in the trunk's vocabulary, and the way to robot units. modes: one for each robot action."""

    codec: FastCodec
    first_id: int
    output: ExpertOutput
    modes: tuple[str, ...]

    @property
    def ids(self) -> range:
        return range(self.first_id, self.first_id + self.codec.num_ids)

    def task(self, max_new_tokens: int, **settings: Any) -> TextTask:
        """The text task of one chunk. settings: of its sampling."""
        return TextTask(FAST, max_new_tokens=max_new_tokens, sampling=Sampling(allowed=self.ids, **settings))

    def check(self, task: TextTask) -> None:
        """Refuse a text that might say something else. Raises InvalidInput."""
        if task.sampling.allowed != self.ids:
            raise InvalidInput(
                "sampling.allowed", f"{self.ids}: FAST speaks its own tokens", repr(task.sampling.allowed)
            )

    def forbidden(self, tokenizer: Tokenizer, vocab_size: int, mask: np.ndarray | None) -> np.ndarray:
        """[vocab_size] bool: a mask of other texts, with these tokens. Raises CheckpointError where they are others."""
        names = tokenizer.vocabulary.names
        for place, i in ((0, self.ids.start), (len(self.ids) - 1, self.ids.stop - 1)):
            got = names[i] if i < min(len(names), vocab_size) else "none"
            if got != (wanted := f"<robot_action_{place}>"):
                raise CheckpointError(f"processor: fast: token {i} must be {wanted}, the tokenizer says {got}")
        mask = np.zeros(vocab_size, dtype=bool) if mask is None else mask.copy()
        mask[self.ids.start : self.ids.stop] = True
        return mask

    def chunk(self, token_ids: Sequence[int], statistics: Statistics | None) -> np.ndarray:
        """A finished text's ids -> [horizon, robot action_dim] float64 in robot units. Raises OxygenError."""
        if odd := [i for i in token_ids if i not in self.ids]:
            raise OxygenError(f"FAST: token {odd[0]} is not one of {self.ids.start} to {self.ids.stop - 1}")
        normal = self.codec.decode([i - self.first_id for i in token_ids])
        return self.output.units(normal, self.modes, statistics)
