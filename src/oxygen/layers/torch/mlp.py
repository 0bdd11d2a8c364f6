"""The two feed-forward blocks: gated (Gemma by GELU, Qwen by SiLU) and plain (SigLIP); GELU is the tanh form."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oxygen.layers.torch.linear import Linear, PackedLinear, can_pack


class GatedMlp(nn.Module):
    """down(act(gate x) · up x). gate and up are one weight, [2 · mlp_width, width], gate rows first.

    activation: `gelu` or `silu`.
    """

    def __init__(
        self,
        width: int,
        mlp_width: int,
        *,
        activation: str = "gelu",
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        self.activation = activation
        self.gate_up = Linear(width, 2 * mlp_width, dtype=dtype, device=device)
        self.down = Linear(mlp_width, width, dtype=dtype, device=device)
        self._packed: tuple[PackedLinear, PackedLinear] | None = None

    def inner(self, x: Tensor) -> Tensor:
        """x [N, width] -> act(gate x) · up x, [N, mlp_width]: what the down map reads."""
        if self._packed is not None:
            gate, up = self._packed
            return gate.gated(x, self.activation, up)
        gate_x, up_x = self.gate_up(x).chunk(2, dim=-1)
        return (F.gelu(gate_x, approximate="tanh") if self.activation == "gelu" else F.silu(gate_x)) * up_x

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.inner(x))

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        """residual + the block."""
        return self.down.add(self.inner(x), residual)

    def pack(self) -> None:
        """Packed, gate and up are two products: the first takes its activation along."""
        weight = self.gate_up.weight
        if self._packed is None and weight is not None and can_pack(weight):
            gate, up = weight.detach().chunk(2, dim=0)
            self._packed = (PackedLinear(gate), PackedLinear(up))
            self.gate_up.weight = None
        self.down.pack()


class Mlp(nn.Module):
    """down(gelu(up x)) with biases."""

    def __init__(
        self,
        width: int,
        mlp_width: int,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        self.up = Linear(width, mlp_width, bias=True, dtype=dtype, device=device)
        self.down = Linear(mlp_width, width, bias=True, dtype=dtype, device=device)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.up.gelu(x))

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        """residual + the block."""
        return self.down.add(self.up.gelu(x), residual)
