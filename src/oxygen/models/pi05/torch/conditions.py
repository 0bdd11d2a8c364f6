"""What the flow time does to the action expert, for all steps at once: nothing else enters, so it is made once."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oxygen.layers.torch.linear import Linear
from oxygen.models.pi05.spec import TIME_MAX_PERIOD, TIME_MIN_PERIOD, GemmaSpec


class Modulation(NamedTuple):
    """One step's norms, in order: attention and MLP of each layer, then the final one (2 · depth + 1 in all).

    gain, which is (1 + scale) · √width for the norm to unit length, and shift are float32; gate has the activations'
    type. Each is [norms, width], or [norms, N, width] where the tokens of a call have different times (training).
    """

    gain: Tensor
    shift: Tensor
    gate: Tensor


class StepConditions(NamedTuple):
    """Modulation of all steps, each tensor [num_steps, 2 · depth + 1, width]; `times` are the steps' flow times."""

    times: tuple[float, ...]
    gain: Tensor
    shift: Tensor
    gate: Tensor

    def of_step(self, step: int) -> Modulation:
        return Modulation(self.gain[step], self.shift[step], self.gate[step])


def time_embedding(times: Tensor, width: int) -> Tensor:
    """times [S] -> [S, width] float32: sines then cosines of 2π t / period, periods from 0.004 to 4 in equal ratios.

    The phases reach 1571 radians, so they are formed in float64, as openpi's PyTorch code does.
    """
    fractions = torch.linspace(0.0, 1.0, width // 2, dtype=torch.float64, device=times.device)
    periods = TIME_MIN_PERIOD * (TIME_MAX_PERIOD / TIME_MIN_PERIOD) ** fractions
    phases = times.to(torch.float64)[:, None] * (2.0 * math.pi) / periods
    return torch.cat((phases.sin(), phases.cos()), dim=-1).float()


class TimeConditioning(nn.Module):
    """Flow times -> modulation of every norm of the expert. All weights and all arithmetic are float32.

    `modulation` holds the dense maps of all norms one under the other: per norm `width` rows of scale, shift and gate.
    """

    def __init__(self, spec: GemmaSpec, device: torch.device | str) -> None:
        super().__init__()
        self.width, self.num_norms = spec.width, 2 * spec.depth + 1
        place: dict[str, Any] = {"bias": True, "dtype": torch.float32, "device": device}
        self.time_in = Linear(spec.width, spec.width, **place)
        self.time_out = Linear(spec.width, spec.width, **place)
        self.modulation = Linear(spec.width, self.num_norms * 3 * spec.width, **place)

    def condition(self, times: Tensor) -> Tensor:
        """times [S] -> the time vector [S, width]; SiLU follows the second map too."""
        return F.silu(self.time_out(F.silu(self.time_in(time_embedding(times, self.width)))))

    def forward(self, times: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """times [S] -> gain, shift, gate, each [S, norms, width] float32."""
        scale, shift, gate = self.modulation(self.condition(times)).view(-1, self.num_norms, 3, self.width).unbind(2)
        return (1.0 + scale) * math.sqrt(self.width), shift, gate
