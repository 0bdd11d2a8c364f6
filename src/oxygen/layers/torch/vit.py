"""The block of a vision transformer as SigLIP has it: pre-norm, biases everywhere, full attention in each picture."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from oxygen.layers.torch.attention import batched_attention
from oxygen.layers.torch.linear import Linear
from oxygen.layers.torch.mlp import Mlp


class VitBlock(nn.Module):
    """x ← x + Attn(LN x); x ← x + MLP(LN x). x [n · T, width]: the T tokens of a picture see each other."""

    def __init__(
        self,
        width: int,
        num_heads: int,
        mlp_width: int,
        eps: float,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.attention_norm = nn.LayerNorm(width, eps=eps, dtype=dtype, device=device)
        self.qkv = Linear(width, 3 * width, bias=True, dtype=dtype, device=device)
        self.out = Linear(width, width, bias=True, dtype=dtype, device=device)
        self.mlp_norm = nn.LayerNorm(width, eps=eps, dtype=dtype, device=device)
        self.mlp = Mlp(width, mlp_width, dtype=dtype, device=device)

    def forward(self, x: Tensor, tokens_per_image: int) -> Tensor:
        qkv = self.qkv(self.attention_norm(x)).view(
            -1, tokens_per_image, 3, self.num_heads, x.shape[-1] // self.num_heads
        )
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)  # each [n, heads, T, head_dim]
        attended = batched_attention(q, k, v).transpose(1, 2).reshape(x.shape)
        x = self.out.add(attended, x)
        return self.mlp.add(self.mlp_norm(x), x)
