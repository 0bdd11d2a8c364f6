"""q, k and v of one input as one map, with a way to ask queries of fewer tokens than leave keys behind."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oxygen.layers.torch.linear import Linear, PackedLinear, can_pack
from oxygen.layers.torch.norm import RMSNorm
from oxygen.layers.torch.rope import Rope, apply_rope, apply_rope_to_neighbours, neighbour_order


class QkvProjection(nn.Module):
    """x [N, width] -> q [N, Hq, Dh], k and v [N, Hkv, Dh]; q and k turned by RoPE. Weight rows: q, then k, then v.

    With `norms`, q and k are normed per head before they turn, by plain weights [head_dim] each (Qwen). After `prepare`
    the elements of q and k heads come in `neighbour_order`; their products are the same.
    """

    def __init__(
        self,
        width: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        *,
        norms: float | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads, self.head_dim = num_heads, num_kv_heads, head_dim
        self.qkv = Linear(width, (num_heads + 2 * num_kv_heads) * head_dim, dtype=dtype, device=device)
        self._split: tuple[PackedLinear, PackedLinear] | None = None
        self._turn = apply_rope
        self._counts = (num_heads + num_kv_heads, num_kv_heads)
        self.q_norm = None if norms is None else RMSNorm(head_dim, norms, device, centre=0.0)
        self.k_norm = None if norms is None else RMSNorm(head_dim, norms, device, centre=0.0)

    def forward(self, x: Tensor, rope: Rope) -> tuple[Tensor, Tensor, Tensor]:
        if self._split is not None:
            return self.of_kept(x, rope, None)
        qk, v = self.qkv(x).view(x.shape[0], -1, self.head_dim).split(self._counts, dim=1)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = qk[:, : self.num_heads], qk[:, self.num_heads :]
            return self._turn(self.q_norm(q), rope), self._turn(self.k_norm(k), rope), v
        turned = self._turn(qk, rope)
        return turned[:, : self.num_heads], turned[:, self.num_heads :], v

    def of_kept(self, x: Tensor, rope: Rope, keep: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """k and v of all tokens, q of the tokens `keep` (indices; None: of all) only."""
        asked, asked_rope = (x, rope) if keep is None else (x[keep], rope.take(keep))
        if self._split is not None:
            q, kv = self._split[0](asked), self._split[1](x)
        else:
            q_weight, kv_weight = self._parts()
            q, kv = F.linear(asked, q_weight), F.linear(x, kv_weight)
        k, v = kv.view(x.shape[0], -1, self.head_dim).chunk(2, dim=1)
        q = q.view(-1, self.num_heads, self.head_dim)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        return self._turn(q, asked_rope), self._turn(k, rope), v

    def _parts(self) -> tuple[Tensor, Tensor]:
        assert self.qkv.weight is not None
        num_q = self.num_heads * self.head_dim
        return self.qkv.weight[:num_q], self.qkv.weight[num_q:]

    def prepare(self, *, split: bool = False) -> None:
        """Order and pack the weight. split: keep q apart from k and v, for a layer that is asked with `of_kept`."""
        weight = self.qkv.weight
        if weight is None or self._turn is apply_rope_to_neighbours:
            return
        order = neighbour_order(self.head_dim, weight.device)
        heads = weight.data.view(-1, self.head_dim, weight.shape[1])[: self._counts[0]]
        heads.copy_(heads[:, order])
        self._turn = apply_rope_to_neighbours
        for norm in (self.q_norm, self.k_norm):
            if norm is not None:
                norm.weight.data.copy_(norm.weight.data[order])
                norm.prepare()
        if split and can_pack(weight):
            q_weight, kv_weight = self._parts()
            self._split = (PackedLinear(q_weight), PackedLinear(kv_weight))
            self.qkv.weight = None
        elif not split:
            self.qkv.pack()
