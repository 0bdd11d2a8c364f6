"""Rotary positions. Element i of a head turns together with element i + head_dim / 2 (the half-split form).

For inference the rows of the q and k weights are put in an order in which the two elements of a pair are neighbours
(`neighbour_order`): a turn is then one product of complex numbers, and q · k is the same sum in another order.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from oxygen.layers.torch import native


@dataclass(frozen=True, slots=True, eq=False)
class Rope:
    """Every token's phases as unit complex numbers, [N, 1, head_dim / 2] complex64; one per call, for all layers."""

    turns: Tensor

    def take(self, tokens: Tensor) -> Rope:
        """The phases of some of the tokens (indices)."""
        return Rope(self.turns[tokens])


def rope_phases(positions: Tensor, head_dim: int, theta: float) -> Rope:
    """Phases positions / theta^(2i / head_dim) in float32; a shorter type is radians off a few hundred tokens in."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32, device=positions.device) / head_dim
    phases = positions.to(torch.float32)[:, None, None] / torch.pow(theta, exponents)
    return Rope(torch.complex(phases.cos(), phases.sin()))


def multi_axis_phases(positions: Tensor, axes: Tensor, head_dim: int, theta: float) -> Rope:
    """Phases of tokens that have a position on several axes. positions [N, num_axes], or [N] where they are equal.

    axes [head_dim / 2]: the axis that each frequency takes its position from.
    """
    if positions.dim() == 1:
        return rope_phases(positions, head_dim, theta)
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32, device=positions.device) / head_dim
    phases = positions.to(torch.float32)[:, None, axes] / torch.pow(theta, exponents)
    return Rope(torch.complex(phases.cos(), phases.sin()))


def apply_rope(x: Tensor, rope: Rope) -> Tensor:
    """Turn x [N, heads, head_dim], half-split, by its tokens' phases; float32 arithmetic, the result has x's type."""
    cos, sin = rope.turns.real, rope.turns.imag
    first, second = x.float().chunk(2, dim=-1)
    turned = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    return turned.to(x.dtype)


def apply_rope_to_neighbours(x: Tensor, rope: Rope) -> Tensor:
    """The same for heads in neighbour order. x must be contiguous along its last axis."""
    if native.takes(x):
        return native.rotate(x, rope.turns)
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * rope.turns).flatten(-2).to(x.dtype)


def neighbour_order(head_dim: int, device: torch.device | str | None = None) -> Tensor:
    """Indices 0, h, 1, h + 1, ... (h = head_dim / 2): a head's elements in the order that inference keeps them in."""
    return torch.arange(head_dim, device=device).view(2, -1).t().flatten()
