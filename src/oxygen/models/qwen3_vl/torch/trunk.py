"""The text layers of Qwen3-VL: per-head norms of queries and keys, several query heads per K and V, causal
throughout.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from oxygen.layers.torch.attention import Attend
from oxygen.layers.torch.context import After
from oxygen.layers.torch.linear import Linear
from oxygen.layers.torch.mlp import GatedMlp
from oxygen.layers.torch.norm import RMSNorm
from oxygen.layers.torch.projections import QkvProjection
from oxygen.layers.torch.rope import Rope
from oxygen.models.qwen3_vl.spec import NORM_EPS, QwenSpec


class TrunkLayer(nn.Module):
    """x ← x + Attn(norm x); x ← x + MLP(norm x)."""

    def __init__(self, spec: QwenSpec, dtype: torch.dtype, device: torch.device | str) -> None:
        super().__init__()
        place: dict[str, Any] = {"dtype": dtype, "device": device}
        self.attention_norm = RMSNorm(spec.width, NORM_EPS, device, centre=0.0)
        self.projection = QkvProjection(
            spec.width, spec.num_heads, spec.num_kv_heads, spec.head_dim, norms=NORM_EPS, **place
        )
        self.out = Linear(spec.attention_width, spec.width, **place)
        self.mlp_norm = RMSNorm(spec.width, NORM_EPS, device, centre=0.0)
        self.mlp = GatedMlp(spec.width, spec.mlp_width, activation="silu", **place)

    def forward(self, x: Tensor, rope: Rope, attend: Attend, layer: int, keep: Tensor | None) -> Tensor:
        normed = self.attention_norm(x)
        if keep is None:
            q, k, v = self.projection(normed, rope)
        else:
            q, k, v = self.projection.of_kept(normed, rope, keep)
            x = x[keep]
        x = self.out.add(attend(layer, q, k, v).flatten(1), x)
        return self.mlp.add(self.mlp_norm(x), x)

    def prepare(self, *, split: bool) -> None:
        """Fold and pack for inference. split: the layer will be asked for some tokens only."""
        self.projection.prepare(split=split)
        self.attention_norm.prepare()
        self.mlp_norm.prepare()
        self.out.pack()
        self.mlp.pack()


class Trunk(nn.Module):
    """x [N, width] -> hidden states after the final norm, [N, width] or [len(keep), width].

    Nothing here knows about rows, masks or storage: `attend` does. keep: indices of the tokens whose last-layer output
    is wanted; the last layer then makes queries, attention output and MLP of these only. after: sees, and may
    change, the residual behind each layer (DeepStack additions come in there, and taps are taken).
    """

    def __init__(self, spec: QwenSpec, dtype: torch.dtype, device: torch.device | str) -> None:
        super().__init__()
        self.layers = nn.ModuleList(TrunkLayer(spec, dtype, device) for _ in range(spec.depth))
        self.norm = RMSNorm(spec.width, NORM_EPS, device, centre=0.0)

    def forward(
        self, x: Tensor, rope: Rope, attend: Attend, keep: Tensor | None = None, after: After | None = None
    ) -> Tensor:
        last = len(self.layers) - 1
        for i, layer in enumerate(self.layers):
            x = layer(x, rope, attend, i, keep if i == last else None)
            x = x if after is None else after(i, x)
        return self.norm(x)

    def prepare(self) -> None:
        """Fold and pack for inference."""
        for layer in self.layers:
            layer.prepare(split=layer is self.layers[-1])
        self.norm.prepare()
