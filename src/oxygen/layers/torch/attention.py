"""Attention without storage: written out with a mask for training and tests, and a quick form for those who see all.

On a CPU the library's fused attention is not the quick one: for 918 queries and keys of 128 it takes three times as
long in bfloat16, and twice as long in float32, as two products with the query heads of a KV head folded into rows.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from oxygen.layers.torch.linear import can_pack

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer, q [N, Hq, Dh], k [N, Hkv, Dh], v [N, Hkv, Dh]) -> [N, Hq, Dh].

q and k come after RoPE, unscaled. The callee scales by Dh^−½, keeps k and v where it wants and attends as it wants.
In the last layer of a trunk called with `keep`, q has len(keep) tokens and k, v have all.
"""

_LOGITS_AT_ONCE = 1 << 20


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


def full_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """One sequence, every query sees every key: q [N, Hq, Dh], k and v [M, Hkv, Dh] -> [N, Hq, Dh]. Inference only.

    k and v may be views into storage. In bfloat16 the logits are rounded to bfloat16 before a float32 softmax, as in
    openpi's PyTorch code.
    """
    num_queries, num_heads, head_dim = q.shape
    num_kv_heads = k.shape[1]
    if q.device.type != "cpu":
        qh, kh, vh = (t.transpose(0, 1)[None] for t in (q, k, v))
        return F.scaled_dot_product_attention(qh, kh, vh, enable_gqa=num_heads != num_kv_heads)[0].transpose(0, 1)
    if num_kv_heads == 1:
        return _rows_attention(q.reshape(-1, head_dim), k[:, 0].contiguous(), v[:, 0].contiguous()).view(q.shape)
    out = []
    for i, heads in enumerate(q.chunk(num_kv_heads, dim=1)):
        rows = _rows_attention(heads.reshape(-1, head_dim), k[:, i].contiguous(), v[:, i].contiguous())
        out.append(rows.view(num_queries, -1, head_dim))
    return torch.cat(out, dim=1)


def _rows_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """q [R, Dh], k and v [M, Dh] -> [R, Dh], in pieces whose logits stay in the cache. All contiguous: on strided rows
    oneDNN falls back to its reference code, a thousand times slower."""
    rows_at_once = max(1, _LOGITS_AT_ONCE // len(k))
    attend = _float_rows if q.dtype == torch.float32 and can_pack(q) else _plain_rows
    if len(q) <= rows_at_once:
        return attend(q, k, v)
    return torch.cat([attend(rows, k, v) for rows in q.split(rows_at_once)])


def _plain_rows(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    logits = torch.addmm(q.new_zeros(1), q, k.t(), beta=0, alpha=q.shape[1] ** -0.5)
    return torch.mm(torch.softmax(logits, dim=-1), v)


def _float_rows(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """float32 through oneDNN, which is twice as fast as the library's own float32 product here."""
    product = torch.ops.mkldnn._linear_pointwise.default
    logits = product(q * q.shape[1] ** -0.5, k, None, "none", [], "")
    return product(torch.softmax(logits, dim=-1), v.t(), None, "none", [], "")


def batched_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Many sequences of one length, every query sees every key of its own: [n, heads, T, Dh] each -> the same."""
    if q.device.type != "cpu" or q.dtype == torch.float32:
        return F.scaled_dot_product_attention(q, k, v)
    shape = q.shape
    q, k, v = (t.reshape(-1, shape[2], shape[3]) for t in (q, k, v))
    logits = torch.baddbmm(q.new_zeros(1), q, k.transpose(1, 2), beta=0, alpha=shape[3] ** -0.5)
    return torch.bmm(torch.softmax(logits, dim=-1), v).view(shape)
