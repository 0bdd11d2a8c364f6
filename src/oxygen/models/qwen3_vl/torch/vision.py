"""The image tower of Qwen3-VL: pictures in multiples of 32 pixels to tokens of the trunk's width, and DeepStack sets.

Patches come in the order of their merge blocks (2 x 2 neighbours together), so that merging is a reshape. A still
picture counts as two equal frames; the two halves of the patch map are therefore added up.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oxygen.layers.torch.attention import batched_attention
from oxygen.layers.torch.linear import Linear
from oxygen.layers.torch.mlp import Mlp
from oxygen.layers.torch.rope import Rope, apply_rope
from oxygen.models.qwen3_vl.spec import CHANNELS, FRAMES, NORM_EPS, QwenVisionSpec

ROPE_THETA = 10_000.0


class VisionBlock(nn.Module):
    """x ← x + Attn(LN x); x ← x + MLP(LN x), queries and keys turned. x [n · T, width]: a picture sees itself."""

    def __init__(self, spec: QwenVisionSpec, dtype: torch.dtype, device: torch.device | str) -> None:
        super().__init__()
        place: dict[str, Any] = {"dtype": dtype, "device": device}
        self.num_heads = spec.num_heads
        self.attention_norm = nn.LayerNorm(spec.width, eps=NORM_EPS, **place)
        self.qkv = Linear(spec.width, 3 * spec.width, bias=True, **place)
        self.out = Linear(spec.width, spec.width, bias=True, **place)
        self.mlp_norm = nn.LayerNorm(spec.width, eps=NORM_EPS, **place)
        self.mlp = Mlp(spec.width, spec.mlp_width, **place)

    def forward(self, x: Tensor, rope: Rope, num_patches: int) -> Tensor:
        qk, v = (
            self.qkv(self.attention_norm(x)).view(len(x), 3 * self.num_heads, -1).tensor_split((2 * self.num_heads,), 1)
        )
        q, k = apply_rope(qk, rope).chunk(2, dim=1)
        heads = (t.unflatten(0, (-1, num_patches)).transpose(1, 2) for t in (q, k, v))  # [n, heads, T, head_dim]
        attended = batched_attention(*heads).transpose(1, 2).reshape(x.shape)
        x = self.out.add(attended, x)
        return self.mlp.add(self.mlp_norm(x), x)


class Merger(nn.Module):
    """The patches of a merge block to one token. The norm comes before they are joined, or (`joins_first`) after."""

    def __init__(
        self, spec: QwenVisionSpec, out_width: int, joins_first: bool, dtype: torch.dtype, device: torch.device | str
    ) -> None:
        super().__init__()
        place: dict[str, Any] = {"dtype": dtype, "device": device}
        self.joined = spec.width * spec.merge**2
        self.joins_first = joins_first
        self.norm = nn.LayerNorm(self.joined if joins_first else spec.width, eps=NORM_EPS, **place)
        self.inner = Linear(self.joined, self.joined, bias=True, **place)
        self.out = Linear(self.joined, out_width, bias=True, **place)

    def forward(self, x: Tensor) -> Tensor:
        """x [n, width] -> [n / merge², out_width]."""
        x = self.norm(x.view(-1, self.joined)) if self.joins_first else self.norm(x).view(-1, self.joined)
        return self.out(F.gelu(self.inner(x)))


class VisionTower(nn.Module):
    """pixels [n, 3, H, W] float32 in [-1, 1] -> tokens [n, T, out_width] and DeepStack sets [taps, n, T, out_width]."""

    def __init__(self, spec: QwenVisionSpec, out_width: int, dtype: torch.dtype, device: torch.device | str) -> None:
        super().__init__()
        self.spec, self.dtype = spec, dtype
        place: dict[str, Any] = {"dtype": dtype, "device": device}
        self.patch = Linear(spec.patch_numbers, spec.width, bias=True, **place)
        self.positions = nn.Parameter(torch.empty(spec.table_side**2, spec.width, **place))
        self.blocks = nn.ModuleList(VisionBlock(spec, dtype, device) for _ in range(spec.depth))
        self.merger = Merger(spec, out_width, False, dtype, device)
        self.deep_mergers = nn.ModuleList(Merger(spec, out_width, True, dtype, device) for _ in spec.taps)
        self._placed: dict[tuple[int, int], tuple[Tensor, Rope]] = {}
        self._still: Tensor | None = None

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        num, _, height, width = pixels.shape
        rows, columns = height // self.spec.patch_size, width // self.spec.patch_size
        positions, rope = self._place(rows, columns)
        patches = self._by_blocks(pixels.unflatten(3, (columns, -1)).unflatten(2, (rows, -1)).permute(0, 2, 4, 1, 3, 5))
        embedded = F.linear(patches.flatten(2).to(self.dtype), self._still_weight(), self.patch.bias) + positions
        x = embedded.flatten(0, 1)
        turns = Rope(rope.turns.repeat(num, 1, 1)) if num > 1 else rope
        deep: list[Tensor] = []
        for i, block in enumerate(self.blocks):
            x = block(x, turns, rows * columns)
            if i in self.spec.taps:
                deep.append(self.deep_mergers[self.spec.taps.index(i)](x))
        tokens = self.merger(x)
        sets = torch.stack(deep) if deep else tokens.new_empty((0, *tokens.shape))
        return tokens.unflatten(0, (num, -1)), sets.unflatten(1, (num, -1))

    def prepare(self) -> None:
        """Fold and pack; the weights must not change afterwards."""
        self._still = self._still_weight()
        for block in self.blocks:
            for linear in (block.qkv, block.out, block.mlp.up, block.mlp.down):
                linear.pack()
        for merger in (self.merger, *self.deep_mergers):
            merger.inner.pack()
            merger.out.pack()

    def _still_weight(self) -> Tensor:
        """[width, 3 · patch²]: the patch map for two equal frames."""
        if self._still is not None:
            return self._still
        assert self.patch.weight is not None
        return self.patch.weight.view(self.spec.width, CHANNELS, FRAMES, -1).sum(2).flatten(1)

    def _by_blocks(self, grid: Tensor) -> Tensor:
        """[n, rows, columns, ...] -> [n, rows · columns, ...] in the order of merge blocks."""
        merge = self.spec.merge
        blocks = grid.unflatten(2, (-1, merge)).unflatten(1, (-1, merge)).transpose(2, 3)
        return blocks.flatten(1, 4)

    def _place(self, rows: int, columns: int) -> tuple[Tensor, Rope]:
        """Learned positions, interpolated to the grid, and phases of its patches; kept per size for inference."""
        found = self._placed.get((rows, columns))
        if found is None:
            found = self._make_place(rows, columns)
            if self._still is not None:
                self._placed[rows, columns] = found
        return found

    def _make_place(self, rows: int, columns: int) -> tuple[Tensor, Rope]:
        side, device = self.spec.table_side, self.positions.device
        y = torch.linspace(0, side - 1, rows, device=device)
        x = torch.linspace(0, side - 1, columns, device=device)
        top, left = y.int(), x.int()
        bottom, right = (top + 1).clamp(max=side - 1), (left + 1).clamp(max=side - 1)
        dy, dx = (y - top)[:, None], (x - left)[None]
        corners = (
            (top, left, (1 - dy) * (1 - dx)),
            (top, right, (1 - dy) * dx),
            (bottom, left, dy * (1 - dx)),
            (bottom, right, dy * dx),
        )
        table = self.positions.view(side, side, -1)
        learned = sum(table[i[:, None].long(), j[None].long()] * w[..., None].to(self.dtype) for i, j, w in corners)
        assert isinstance(learned, Tensor)
        quarter = self.spec.head_dim // 4
        inverse = ROPE_THETA ** (-torch.arange(quarter, dtype=torch.float32, device=device) / quarter)
        row = torch.arange(rows, dtype=torch.float32, device=device)[:, None, None].expand(rows, columns, 1)
        column = torch.arange(columns, dtype=torch.float32, device=device)[None, :, None].expand(rows, columns, 1)
        angles = self._by_blocks(torch.cat((row * inverse, column * inverse), dim=-1)[None])[0]
        turns = torch.complex(angles.cos(), angles.sin())[:, None]
        return self._by_blocks(learned[None])[0], Rope(turns)
