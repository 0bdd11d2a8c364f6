"""The flow loop: noise at t = 1 to actions at t = 0 in S Euler steps of the velocity."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from oxygen.runtime.torch.attention import Attend


def denoise(model: Any, x: Tensor, num_steps: int, rope: Any, attend: Attend) -> Tensor:
    """x [B, H, A] float32, changed in place from noise to actions. rope is that of the B · H action tokens.

    Everything that does not change between steps is made before the loop: phases, the modulation of all steps, and the
    context's K and V, which `attend` reads where they lie.
    """
    conditions = model.conditions(num_steps)
    for step in range(num_steps):
        x.add_(model.velocity(x, conditions, step, rope, attend), alpha=-1.0 / num_steps)
    return x


def action_positions(context_lens: Tensor, horizon: int) -> Tensor:
    """Positions of the action tokens, item after item: they continue each context's count. context_lens [B] -> [B ·
    H].
    """
    return (context_lens[:, None] + torch.arange(horizon, device=context_lens.device)).flatten()
