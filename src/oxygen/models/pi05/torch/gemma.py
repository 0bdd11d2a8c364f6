"""The two stacks of Gemma blocks: the trunk, and the action expert whose norms the flow time modulates."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from oxygen.layers.torch.attention import Attend
from oxygen.layers.torch.context import After
from oxygen.layers.torch.linear import Linear
from oxygen.layers.torch.mlp import GatedMlp
from oxygen.layers.torch.norm import RMSNorm, modulated_rms_norm, norm_floor
from oxygen.layers.torch.projections import QkvProjection
from oxygen.layers.torch.rope import Rope
from oxygen.models.pi05.spec import NORM_EPS, GemmaSpec
from oxygen.models.pi05.torch.conditions import Modulation


class TrunkLayer(nn.Module):
    """x ← x + Attn(norm x); x ← x + MLP(norm x)."""

    def __init__(self, spec: GemmaSpec, dtype: torch.dtype, device: torch.device | str) -> None:
        super().__init__()
        place: dict[str, Any] = {"dtype": dtype, "device": device}
        self.attention_norm = RMSNorm(spec.width, NORM_EPS, device)
        self.projection = QkvProjection(spec.width, spec.num_heads, spec.num_kv_heads, spec.head_dim, **place)
        self.out = Linear(spec.attention_width, spec.width, **place)
        self.mlp_norm = RMSNorm(spec.width, NORM_EPS, device)
        self.mlp = GatedMlp(spec.width, spec.mlp_width, **place)

    def forward(self, x: Tensor, rope: Rope, attend: Attend, layer: int, keep: Tensor | None) -> Tensor:
        normed = self.attention_norm(x)
        if keep is None:
            q, k, v = self.projection(normed, rope)
        else:
            q, k, v = self.projection.of_kept(normed, rope, keep)
            x = x[keep]
        x = self.out.add(attend(layer, q, k, v).flatten(1), x)
        return self.mlp.add(self.mlp_norm(x), x)


class Trunk(nn.Module):
    """PaliGemma's language model. Nothing here knows about rows, masks or storage: `attend` does.

    x [N, width] -> hidden states after the final norm, [N, width] or [len(keep), width]. keep: indices of the tokens
    whose last-layer output is wanted. The last layer makes K and V of all tokens, but queries, attention output and MLP
    of these only, so `attend` meets len(keep) queries there. after: sees, and may change, the residual behind a layer.
    """

    def __init__(self, spec: GemmaSpec, dtype: torch.dtype, device: torch.device | str) -> None:
        super().__init__()
        self.layers = nn.ModuleList(TrunkLayer(spec, dtype, device) for _ in range(spec.depth))
        self.norm = RMSNorm(spec.width, NORM_EPS, device)

    def forward(
        self, x: Tensor, rope: Rope, attend: Attend, keep: Tensor | None = None, after: After | None = None
    ) -> Tensor:
        last = len(self.layers) - 1
        for i, layer in enumerate(self.layers):
            x = layer(x, rope, attend, i, keep if i == last else None)
            x = x if after is None else after(i, x)
        return self.norm(x)


class ExpertLayer(nn.Module):
    """x ← x + g₁ ⊙ Attn(mod₁ x); x ← x + g₂ ⊙ MLP(mod₂ x); gains, shifts and gates come from the flow time."""

    def __init__(self, spec: GemmaSpec, floor: Tensor, dtype: torch.dtype, device: torch.device | str) -> None:
        super().__init__()
        place: dict[str, Any] = {"dtype": dtype, "device": device}
        self.floor = floor
        self.projection = QkvProjection(spec.width, spec.num_heads, spec.num_kv_heads, spec.head_dim, **place)
        self.out = Linear(spec.attention_width, spec.width, **place)
        self.mlp = GatedMlp(spec.width, spec.mlp_width, **place)

    def forward(self, x: Tensor, modulation: Modulation, rope: Rope, attend: Attend, layer: int) -> Tensor:
        first, second = 2 * layer, 2 * layer + 1
        normed = modulated_rms_norm(x, modulation.gain[first], modulation.shift[first], self.floor)
        q, k, v = self.projection(normed, rope)
        x = torch.addcmul(x, self.out(attend(layer, q, k, v).flatten(1)), modulation.gate[first])
        normed = modulated_rms_norm(x, modulation.gain[second], modulation.shift[second], self.floor)
        return torch.addcmul(x, self.mlp(normed), modulation.gate[second])


class Expert(nn.Module):
    """The action expert: [N, expert width] -> [N, expert width] after the final norm (its gate is unused)."""

    def __init__(self, spec: GemmaSpec, dtype: torch.dtype, device: torch.device | str) -> None:
        super().__init__()
        self.floor = norm_floor(spec.width, NORM_EPS, device)
        self.layers = nn.ModuleList(ExpertLayer(spec, self.floor, dtype, device) for _ in range(spec.depth))

    def forward(self, x: Tensor, modulation: Modulation, rope: Rope, attend: Attend) -> Tensor:
        for i, layer in enumerate(self.layers):
            x = layer(x, modulation, rope, attend, i)
        return modulated_rms_norm(x, modulation.gain[-1], modulation.shift[-1], self.floor)
