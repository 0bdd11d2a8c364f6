"""What StarVLA's flow heads have in common: time, action and state encoders, and a block that looks at one place.

Items of a call are flattened: B items of M tokens each are [B · M, width]. All of them are at the same flow step, so a
block's modulation is one vector pair. Keys and values of a context are [heads, n, head_dim], one pair per item.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oxygen.layers.torch.linear import Linear
from oxygen.layers.torch.mlp import Mlp
from oxygen.models.heads.spec import MAX_POSITIONS, TIME_WIDTH

BLOCK_EPS = 1e-5
KeysValues = tuple[Tensor, Tensor]


def time_buckets(num_steps: int) -> list[int]:
    """The flow times 0, 1/S, 2/S, ... as the heads know them: whole thousandths, cut off."""
    return [int(step / num_steps * 1000) for step in range(num_steps)]


def cos_sin(times: Tensor, width: int) -> Tensor:
    """times [n] -> [n, width]: cosines, then sines, periods up to 10,000 reached by the last frequency.

    All of it in float32, like the original: at 750 thousandths the last bit of a frequency is 5e-5 radians.
    """
    half = width // 2
    inverse = torch.exp(-math.log(10_000.0) * torch.arange(half, dtype=torch.float32, device=times.device) / (half - 1))
    angles = times.float()[:, None] * inverse
    return torch.cat((angles.cos(), angles.sin()), dim=-1)


def sin_cos(times: Tensor, width: int) -> Tensor:
    """times [n] -> [n, width]: sines, then cosines; the last frequency stays short of period 10,000."""
    half = width // 2
    slope = math.log(10_000.0) / half
    angles = times.float()[:, None] * torch.exp(-torch.arange(half, dtype=torch.float32, device=times.device) * slope)
    return torch.cat((angles.sin(), angles.cos()), dim=-1)


class TimeEmbedding(nn.Module):
    """Buckets [S] -> [S, width]."""

    def __init__(self, width: int, dtype: torch.dtype, device: torch.device | str) -> None:
        super().__init__()
        self.inner = Linear(TIME_WIDTH, width, bias=True, dtype=dtype, device=device)
        self.out = Linear(width, width, bias=True, dtype=dtype, device=device)

    def forward(self, buckets: Tensor) -> Tensor:
        return self.out(F.silu(self.inner(cos_sin(buckets, TIME_WIDTH).to(self.out.bias.dtype))))  # type: ignore[union-attr]


class TwoLayers(nn.Module):
    """out(relu(inner x)): the state encoder and the action decoder."""

    def __init__(
        self, in_width: int, inner: int, out_width: int, dtype: torch.dtype, device: torch.device | str
    ) -> None:
        super().__init__()
        self.inner = Linear(in_width, inner, bias=True, dtype=dtype, device=device)
        self.out = Linear(inner, out_width, bias=True, dtype=dtype, device=device)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(F.relu(self.inner(x)))


class ActionEncoder(nn.Module):
    """Noisy actions and the flow time to tokens: W3 swish(W2 [W1 a, τ]) + a learned vector per place in the chunk."""

    def __init__(self, action_dim: int, width: int, dtype: torch.dtype, device: torch.device | str) -> None:
        super().__init__()
        place: dict[str, Any] = {"bias": True, "dtype": dtype, "device": device}
        self.width = width
        self.first = Linear(action_dim, width, **place)
        self.mix = Linear(2 * width, width, **place)
        self.last = Linear(width, width, **place)
        self.positions = nn.Parameter(torch.empty(MAX_POSITIONS, width, dtype=dtype, device=device))

    def times(self, buckets: Tensor) -> Tensor:
        """What the time adds inside, for all steps: [S, width]."""
        assert self.mix.weight is not None
        tau = sin_cos(buckets, self.width).to(self.positions.dtype)
        return F.linear(tau, self.mix.weight[:, self.width :], self.mix.bias)

    def forward(self, actions: Tensor, time: Tensor) -> Tensor:
        """actions [B, H, A]; time [width], a row of `times` -> [B, H, width]."""
        assert self.mix.weight is not None
        first = self.first(actions.to(self.positions.dtype))
        mixed = F.linear(first, self.mix.weight[:, : self.width]) + time
        return self.last(F.silu(mixed)) + self.positions[: actions.shape[1]]


class Block(nn.Module):
    """x ← x + Attn(AdaLN(x), keys); x ← x + MLP(LN x). kv_width: of what the keys and values are made from."""

    def __init__(
        self, width: int, num_heads: int, kv_width: int, dtype: torch.dtype, device: torch.device | str
    ) -> None:
        super().__init__()
        place: dict[str, Any] = {"bias": True, "dtype": dtype, "device": device}
        self.width, self.num_heads = width, num_heads
        self.modulation = Linear(width, 2 * width, **place)
        self.q = Linear(width, width, **place)
        self.kv = Linear(kv_width, 2 * width, **place)
        self.out = Linear(width, width, **place)
        self.mlp = Mlp(width, 4 * width, dtype=dtype, device=device)

    def keys_values(self, x: Tensor, lengths: Sequence[int]) -> list[KeysValues]:
        """x [N, kv_width], item after item of these lengths -> each item's K and V, [heads, n, head_dim]."""
        k, v = self.kv(x).view(len(x), 2, self.num_heads, -1).permute(1, 2, 0, 3).unbind(0)
        keys, values = k.split(list(lengths), dim=1), v.split(list(lengths), dim=1)
        return [(a.contiguous(), b.contiguous()) for a, b in zip(keys, values, strict=True)]

    def forward(
        self, x: Tensor, scale: Tensor, shift: Tensor, context: Sequence[KeysValues] | None, count: int
    ) -> Tensor:
        """x [B · count, width]. context: what to look at, per item; None: the item's own tokens."""
        normed = F.layer_norm(x, (self.width,), eps=BLOCK_EPS) * (1 + scale) + shift
        q = self.q(normed).view(-1, count, self.num_heads, self.width // self.num_heads).transpose(1, 2)
        if context is None:
            context = self.keys_values(normed, [count] * len(q))
        attended = torch.stack([_attend(one, k, v) for one, (k, v) in zip(q, context, strict=True)])
        x = self.out.add(attended.transpose(1, 2).reshape(x.shape), x)
        return self.mlp.add(F.layer_norm(x, (self.width,), eps=BLOCK_EPS), x)

    def pack(self) -> None:
        for linear in (self.q, self.kv, self.out, self.mlp.up, self.mlp.down):
            linear.pack()


def _attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """q [heads, m, D] on k, v [heads, n, D] -> [heads, m, D]."""
    scores = torch.baddbmm(q.new_zeros(1), q, k.transpose(1, 2), beta=0, alpha=q.shape[-1] ** -0.5)
    return torch.bmm(scores.softmax(-1), v)


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """What depends on the flow time alone, for all S steps: made once per number of steps.

    encoder [S, width]; blocks: (scale, shift), [S, width] each, per block; out: the same for an output norm, or None.
    """

    encoder: Tensor
    blocks: tuple[tuple[Tensor, Tensor], ...]
    out: tuple[Tensor, Tensor] | None = None


def joined(tensors: Sequence[Tensor]) -> Tensor:
    """Items one after another, without a copy where there is one."""
    return tensors[0] if len(tensors) == 1 else torch.cat(list(tensors))
