"""One forward pass over prefix, tails and noised chunks together, as training sees them.

The prefix (pictures and prompt) is one bidirectional block; every tail hangs on its sample's prefix causally; every
noised chunk reads its sample's prefix and itself. This equals prefill, decode and act of the engine (tested).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def fold_heads(x: Tensor) -> Tensor:
    """[B, N, H, D] -> [B, 1, N * H, D]: with one KV head all query heads are rows of one product."""
    return x.flatten(1, 2).unsqueeze(1)


class PrefixAndTails:
    """The trunk's Attend: tokens come flattened, first B x L of the prefixes, then R x T of the tails.

    valid [B, L] marks the tokens of a prefix that exist. The K and V of the prefixes stay in `kept` for the chunks.
    In the last layer only one query of each prefix comes (the last token of its prompt).
    """

    def __init__(self, valid: Tensor, owner: Tensor, tail_shape: tuple[int, int]) -> None:
        self.valid, self.owner, self.tail_shape = valid, owner, tail_shape
        self.kept: list[tuple[Tensor, Tensor]] = []
        self._prefix_mask = valid[:, None, None, :]
        num_tails, tail_len = tail_shape
        causal = torch.ones(tail_len, tail_len, dtype=torch.bool, device=valid.device).tril()
        self._tail_mask = torch.cat(
            [valid[owner][:, None].expand(-1, tail_len, -1), causal.expand(num_tails, -1, -1)], dim=2
        )  # [R, T, L + T]

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        batch, length = self.valid.shape
        num_tails, tail_len = self.tail_shape
        size = batch * length
        heads, dim = q.shape[1:]
        prefix_k, prefix_v = k[:size].view(batch, length, dim), v[:size].view(batch, length, dim)
        self.kept.append((prefix_k, prefix_v))
        num_prefix = len(q) - num_tails * tail_len
        prefix_q = fold_heads(q[:num_prefix].view(batch, -1, heads, dim))
        seen = F.scaled_dot_product_attention(
            prefix_q, prefix_k.unsqueeze(1), prefix_v.unsqueeze(1), attn_mask=self._prefix_mask
        )
        out = seen.reshape(num_prefix, heads, dim)
        if num_tails == 0:
            return out
        tail_q = fold_heads(q[num_prefix:].view(num_tails, tail_len, heads, dim))
        keys = torch.cat([prefix_k[self.owner], k[size:].view(num_tails, tail_len, dim)], dim=1)
        values = torch.cat([prefix_v[self.owner], v[size:].view(num_tails, tail_len, dim)], dim=1)
        mask = self._tail_mask.repeat_interleave(heads, dim=1).unsqueeze(1)
        tail = F.scaled_dot_product_attention(tail_q, keys.unsqueeze(1), values.unsqueeze(1), attn_mask=mask)
        return torch.cat([out, tail.reshape(-1, heads, dim)])


class ChunksOnPrefix:
    """The expert's Attend: B x K x H tokens, K noised chunks of each of B samples; chunks do not see each other."""

    def __init__(self, kept: list[tuple[Tensor, Tensor]], valid: Tensor, num_draws: int, horizon: int) -> None:
        self.kept, self.shape = kept, (num_draws, horizon)
        own = torch.block_diag(*[torch.ones(horizon, horizon, device=valid.device)] * num_draws).bool()
        tokens = num_draws * horizon
        self._mask = torch.cat(
            [valid[:, None, :].expand(-1, tokens, -1), own.expand(len(valid), -1, -1)], dim=2
        )  # [B, K * H, L + K * H]

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        prefix_k, prefix_v = self.kept[layer]
        batch, _, dim = prefix_k.shape
        heads = q.shape[1]
        keys = torch.cat([prefix_k, k.view(batch, -1, dim)], dim=1).unsqueeze(1)
        values = torch.cat([prefix_v, v.view(batch, -1, dim)], dim=1).unsqueeze(1)
        mask = self._mask.repeat_interleave(heads, dim=1).unsqueeze(1)
        rows = fold_heads(q.view(batch, -1, heads, dim))
        return F.scaled_dot_product_attention(rows, keys, values, attn_mask=mask).reshape(q.shape)
