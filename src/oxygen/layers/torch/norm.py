"""Root-mean-square norms. Statistics and weights are float32 whatever the type of the activations.

All of them divide by hypot(‖x‖, √(width · eps)), which is √width times the root of mean(x²) + eps: one pass with a
float32 sum and one division, half the steps of the written-out form. √width is left over for the factor that follows.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from oxygen.layers.torch import native


def norm_floor(width: int, eps: float, device: torch.device | str | None = None) -> Tensor:
    """√(width · eps), the smallest length that `unit_rows` divides by."""
    return torch.tensor(math.sqrt(width * eps), dtype=torch.float32, device=device)


def unit_rows(x: Tensor, floor: Tensor) -> Tensor:
    """x / hypot(‖x‖, floor) for x [N, width], in float32: times √width it is x · (mean(x²) + eps)^−½."""
    return torch.div(x, torch.hypot(torch.linalg.vector_norm(x, 2, -1, True, dtype=torch.float32), floor))


class RMSNorm(nn.Module):
    """x · (mean(x²) + eps)^−½ · (centre + weight), [N, width].

    centre: 1 where the weight is stored zero-centred, as Gemma does, 0 where it is stored plainly, as Qwen does.
    """

    def __init__(self, width: int, eps: float, device: torch.device | str | None = None, centre: float = 1.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width, dtype=torch.float32, device=device))
        self.centre = centre
        self._root = math.sqrt(width)
        self._floor, self._length = norm_floor(width, eps, device), math.sqrt(width * eps)
        self._gain: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self._gain is not None and native.takes(x):
            return native.rms_norm(x, self._gain, None, self._length)
        gain = (self.centre + self.weight) * self._root if self._gain is None else self._gain
        return (unit_rows(x, self._floor) * gain).to(x.dtype)

    def prepare(self) -> None:
        """Fold what depends on the weight alone; the weight must not change afterwards."""
        self._gain = (self.centre + self.weight.detach()) * self._root


def modulated_rms_norm(x: Tensor, gain: Tensor, shift: Tensor, floor: Tensor) -> Tensor:
    """Adaptive RMSNorm, unit_rows(x) · gain + shift; √width is in the gain. Both are float32, [width] or [N, width]."""
    if gain.dim() == 1 and native.takes(x):
        return native.rms_norm(x, gain, shift, float(floor))
    return torch.addcmul(shift, unit_rows(x, floor), gain).to(x.dtype)
