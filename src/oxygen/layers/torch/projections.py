"""q, k and v of one input as one map, with a way to ask queries of fewer tokens than leave keys behind."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oxygen.layers.torch.linear import Linear, PackedLinear, can_pack
from oxygen.layers.torch.rope import Rope, apply_rope


class QkvProjection(nn.Module):
    """x [N, width] -> q [N, Hq, Dh], k and v [N, Hkv, Dh]; q and k turned by RoPE. Weight rows: q, then k, then v."""

    def __init__(
        self,
        width: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads, self.head_dim = num_heads, num_kv_heads, head_dim
        self.qkv = Linear(width, (num_heads + 2 * num_kv_heads) * head_dim, dtype=dtype, device=device)
        self._split: tuple[PackedLinear, PackedLinear] | None = None

    def forward(self, x: Tensor, rope: Rope) -> tuple[Tensor, Tensor, Tensor]:
        if self._split is not None:
            return self.of_kept(x, rope, None)
        heads = self.qkv(x).view(-1, self.num_heads + 2 * self.num_kv_heads, self.head_dim)
        turned = apply_rope(heads[:, : self.num_heads + self.num_kv_heads], rope)
        q, k = turned.split((self.num_heads, self.num_kv_heads), dim=1)
        return q, k, heads[:, self.num_heads + self.num_kv_heads :]

    def of_kept(self, x: Tensor, rope: Rope, keep: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """k and v of all tokens, q of the tokens `keep` (indices; None: of all) only."""
        asked, asked_rope = (x, rope) if keep is None else (x[keep], Rope(rope.cos[keep], rope.sin[keep]))
        if self._split is not None:
            q, kv = self._split[0](asked), self._split[1](x)
        else:
            assert self.qkv.weight is not None
            q_weight, kv_weight = self.qkv.weight.split(
                (self.num_heads * self.head_dim, 2 * self.num_kv_heads * self.head_dim), dim=0
            )
            q, kv = F.linear(asked, q_weight), F.linear(x, kv_weight)
        k, v = kv.view(-1, 2 * self.num_kv_heads, self.head_dim).chunk(2, dim=1)
        return apply_rope(q.view(-1, self.num_heads, self.head_dim), asked_rope), apply_rope(k, rope), v

    def pack(self, *, split: bool = False) -> None:
        """split: keep q apart from k and v, for a layer that is asked with `of_kept`."""
        weight = self.qkv.weight
        if not split:
            self.qkv.pack()
        elif self._split is None and weight is not None and can_pack(weight):
            q_weight, kv_weight = weight.detach().split(
                (self.num_heads * self.head_dim, 2 * self.num_kv_heads * self.head_dim), dim=0
            )
            self._split = (PackedLinear(q_weight), PackedLinear(kv_weight))
            self.qkv.weight = None
