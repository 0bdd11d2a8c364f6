"""Rotary positions in the half-split form: element i of a head turns together with element i + head_dim / 2."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Rope(NamedTuple):
    """cos and sin of every token's phases, [N, 1, head_dim / 2] float32; made once per call for all layers."""

    cos: Tensor
    sin: Tensor


def rope_phases(positions: Tensor, head_dim: int, theta: float) -> Rope:
    """Phases positions / theta^(2i / head_dim) in float32; a shorter type is radians off a few hundred tokens in."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32, device=positions.device) / head_dim
    phases = positions.to(torch.float32)[:, None, None] / torch.pow(theta, exponents)
    return Rope(phases.cos(), phases.sin())


def apply_rope(x: Tensor, rope: Rope) -> Tensor:
    """Turn x [N, heads, head_dim] by its tokens' phases; the arithmetic is float32, the result has x's type."""
    first, second = x.float().chunk(2, dim=-1)
    turned = torch.cat((first * rope.cos - second * rope.sin, second * rope.cos + first * rope.sin), dim=-1)
    return turned.to(x.dtype)
