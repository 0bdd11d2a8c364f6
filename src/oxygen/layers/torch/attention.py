"""Attention written out plainly, for training, tests and whoever has no storage of their own."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer, q [N, Hq, Dh], k [N, Hkv, Dh], v [N, Hkv, Dh]) -> [N, Hq, Dh].

q and k come after RoPE, unscaled. The callee scales by Dh^−½, keeps k and v where it wants and attends as it wants.
In the last layer of a trunk called with `keep`, q has len(keep) tokens and k, v have all.
"""


def masked_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """softmax(q kᵀ / √Dh) v. q [..., N, Hq, Dh], k and v [..., M, Hkv, Dh] -> [..., N, Hq, Dh].

    mask [..., N, M] is true where a query may look; every query must see at least one key. The query heads that
    share a KV head are folded into rows of one product. Softmax is float32; its result is cast back before it meets v.
    """
    *batch, num_queries, num_heads, head_dim = q.shape
    num_kv_heads = k.shape[-2]
    group = num_heads // num_kv_heads
    rows = q.unflatten(-2, (num_kv_heads, group)).movedim(-3, -4).movedim(-2, -3)  # [..., Hkv, group, N, Dh]
    rows = rows.reshape(*batch, num_kv_heads, group * num_queries, head_dim)
    logits = (rows @ k.movedim(-3, -2).transpose(-1, -2)).float() * head_dim**-0.5
    if mask is not None:
        logits = logits.unflatten(-2, (group, num_queries))
        logits = logits.masked_fill(~mask[..., None, None, :, :], float("-inf")).flatten(-3, -2)
    weights = torch.softmax(logits, dim=-1).to(v.dtype)
    out = (weights @ v.movedim(-3, -2)).unflatten(-2, (group, num_queries))  # [..., Hkv, group, N, Dh]
    return out.movedim(-2, -4).flatten(-3, -2)
