"""The half-trained policy on the arm, for rollouts between stages, before a checkpoint exists."""

from __future__ import annotations

import numpy as np
import torch

from oxygen.models.pi05.torch import Pi05
from oxygen.training.batches import Batch, Scales
from oxygen.training.language import Words
from oxygen.training.torch.losses import denoise, encode


class Policy:
    """(pictures, state, instruction) -> chunk [H, A] in robot units. Noise comes from `seed` and a count of calls."""

    def __init__(self, model: Pi05, scales: Scales, words: Words, seed: int) -> None:
        self._model, self._scales, self._words = model, scales, words
        self._rng = np.random.default_rng(seed)

    @torch.no_grad()
    def __call__(self, pictures: np.ndarray, state: np.ndarray, instruction: str) -> np.ndarray:
        """pictures [cameras, S, S, 3] uint8, state [4] in robot units."""
        spec = self._model.spec
        ids = np.array([self._words.prefix(instruction, self._scales.state(state.astype(np.float64)))], np.int64)
        batch = Batch(
            images=pictures[None].astype(np.float32) / 127.5 - 1.0,
            prefix_ids=ids,
            prefix_lens=np.array([ids.shape[1]], np.int64),
            tail_ids=np.zeros((0, 0), np.int64),
            tail_targets=np.zeros((0, 0), np.int64),
            tail_owner=np.zeros(0, np.int64),
            tail_kind=(),
            chunks=np.zeros((1, spec.horizon, spec.action_dim), np.float32),
            aux=np.zeros((1, 4), np.float32),
        )
        noise = self._rng.standard_normal((1, spec.horizon, spec.action_dim)).astype(np.float32)
        return denoise(self._model, encode(self._model, batch), noise, spec.num_steps)[0]
