"""What a processor hands to the engine: plain integers and uint8 pictures, ready for a model of any framework."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True, eq=False)
class ContextInputs:
    """What one prefill reads.

    images: valid cameras only, in the model's slot order, each [height, width, 3] uint8. Absent cameras are absent.
    token_ids: the valid prompt tokens. num_tokens: length of the context (image tokens and text tokens together).
    """

    images: tuple[np.ndarray, ...]
    token_ids: tuple[int, ...]
    num_tokens: int


@dataclass(frozen=True, slots=True)
class EncodedTask:
    """Where a task reads, how many tokens of it (0: all), and the private tokens prefilled on top of those."""

    context: int
    tail_ids: tuple[int, ...] = ()
    context_len: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class ModelInputs:
    """A request, encoded. `actions` and `texts` are aligned with the request's action tasks and text tasks.

    contexts: one where all tasks share a prefix; more where sharing would not be exact (promise E7). Context 0 is the
    one that the action tasks read, if there are any. state: normalised robot state for the way back to robot units.
    num_unshared: tasks that could not join context 0 because their prefix differs.
    """

    contexts: tuple[ContextInputs, ...]
    actions: tuple[EncodedTask, ...]
    texts: tuple[EncodedTask, ...]
    state: np.ndarray | None = None
    num_unshared: int = 0
