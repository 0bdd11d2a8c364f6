"""Root-mean-square norms. Statistics and weights are float32 whatever the type of the activations."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def rms_normalize(x: Tensor, eps: float) -> Tensor:
    """x · (mean(x²) + eps)^−½ over the last axis, in float32."""
    x = x.float()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


class RMSNorm(nn.Module):
    """n(x) · (1 + weight): the weight is stored zero-centred, as Gemma does. x [N, width] -> [N, width]."""

    def __init__(self, width: int, eps: float, device: torch.device | str | None = None) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(width, dtype=torch.float32, device=device))

    def forward(self, x: Tensor) -> Tensor:
        return (rms_normalize(x, self.eps) * (1.0 + self.weight)).to(x.dtype)


def modulated_rms_norm(x: Tensor, gain: Tensor, shift: Tensor, eps: float) -> Tensor:
    """Adaptive RMSNorm, n(x) · gain + shift with gain = 1 + scale; gain and shift are float32 [width] or [N, width]."""
    return torch.addcmul(shift, rms_normalize(x, eps), gain).to(x.dtype)
