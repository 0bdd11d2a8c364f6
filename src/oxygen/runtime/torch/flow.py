"""The flow loop: noise to actions in S Euler steps of an expert's velocity."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def denoise(expert: Any, prepared: Any, x: Tensor, num_steps: int) -> Tensor:
    """x [B, H, A] float32, changed in place from noise to actions. prepared: of `expert.prepare`, for these items.

    Everything that does not change between steps is in `prepared`: phases, the modulation of all steps, and what the
    expert reads of the contexts. Time runs as the expert declares it.
    """
    for step in range(num_steps):
        x.add_(expert.velocity(prepared, x, step), alpha=expert.shape.direction / num_steps)
    return x


def action_positions(first: Tensor, horizon: int) -> Tensor:
    """Positions of the action tokens, item after item: they go on behind each context. first [B] -> [B · H]."""
    return (first[:, None] + torch.arange(horizon, device=first.device)).flatten()
