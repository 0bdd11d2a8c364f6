"""Device storage of contexts and tails, allocated once and addressed by row.

A row is [kv_heads, length, head_dim] of K and of V in every layer. The last row of each store is the trash row:
padding writes there and nobody reads it. Rows in use are finite at every position, also past their end (`take`
zero-fills there): masked positions may then be multiplied by a zero weight without a stale NaN coming through. Rows
that are not in use may hold anything; a reader that sweeps over them keeps every row's result apart and drops
theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class StoreShape:
    """Sizes of both stores. Lengths are tokens; width is that of the trunk's hidden state."""

    num_layers: int
    kv_heads: int
    head_dim: int
    width: int
    max_contexts: int
    max_texts: int
    context_len: int
    tail_len: int

    def context_bytes(self, dtype: torch.dtype) -> int:
        """Bytes of one context row (K, V and the last hidden state)."""
        return (2 * self.num_layers * self.kv_heads * self.context_len * self.head_dim + self.width) * dtype.itemsize

    def tail_bytes(self, dtype: torch.dtype) -> int:
        """Bytes of one tail row."""
        return 2 * self.num_layers * self.kv_heads * self.tail_len * self.head_dim * dtype.itemsize

    def total_bytes(self, dtype: torch.dtype) -> int:
        """Bytes of both stores, trash rows included."""
        return (self.max_contexts + 1) * self.context_bytes(dtype) + (self.max_texts + 1) * self.tail_bytes(dtype)


class RowStore:
    """K and V of all layers for rows of one length. `keys[layer]`, `values[layer]`: [rows + 1, kv_heads, length,
    head_dim].
    """

    def __init__(
        self,
        *,
        num_rows: int,
        length: int,
        num_layers: int,
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._all = torch.zeros(2, num_layers, num_rows + 1, kv_heads, length, head_dim, dtype=dtype, device=device)
        self.keys: list[Tensor] = list(self._all[0].unbind(0))
        self.values: list[Tensor] = list(self._all[1].unbind(0))
        self.flat_keys: list[Tensor] = [k.view(-1, head_dim) for k in self.keys]
        self.flat_values: list[Tensor] = [v.view(-1, head_dim) for v in self.values]
        self.num_layers = num_layers
        self.num_rows = num_rows
        self.kv_heads = kv_heads
        self.length = length
        self.trash = num_rows

    def take(self, row: int, written: int) -> None:
        """The row is in use from now on: its first `written` positions get written, those after them become zero."""
        if written < self.length:
            self._all[:, :, row, :, written:].zero_()

    def write(self, layer: int, row: int, start: int, k: Tensor, v: Tensor) -> None:
        """Put k and v, [n, kv_heads, head_dim], at positions start .. start + n of a row."""
        stop = start + k.shape[0]
        self.keys[layer][row, :, start:stop].copy_(k.transpose(0, 1))
        self.values[layer][row, :, start:stop].copy_(v.transpose(0, 1))

    def slots(self, rows: Sequence[int] | Tensor, positions: Sequence[int] | Tensor, device: torch.device) -> Tensor:
        """Places of (row, position) pairs in `flat_keys`, kv heads of one token next to each other: [n * kv_heads]."""
        r = torch.as_tensor(rows, dtype=torch.int64, device=device)
        p = torch.as_tensor(positions, dtype=torch.int64, device=device)
        if self.kv_heads == 1:
            return r * self.length + p
        heads = torch.arange(self.kv_heads, device=device)
        return ((r[:, None] * self.kv_heads + heads) * self.length + p[:, None]).flatten()

    def scatter(self, layer: int, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """Put one token per (row, position) of `slots`; k and v are [n, kv_heads, head_dim]."""
        head_dim = k.shape[-1]
        self.flat_keys[layer].index_copy_(0, slots, k.reshape(-1, head_dim))
        self.flat_values[layer].index_copy_(0, slots, v.reshape(-1, head_dim))

    def poison(self, rows: Sequence[int]) -> None:
        """Fill rows with NaN, so that a reader of a freed row shows itself."""
        for row in rows:
            self._all[:, :, row].fill_(float("nan"))

    def num_bytes(self) -> int:
        return self._all.numel() * self._all.element_size()


class Store:
    """The contexts with their last hidden states, and the tails."""

    def __init__(self, shape: StoreShape, dtype: torch.dtype, device: torch.device) -> None:
        self.shape = shape
        self.dtype = dtype
        self.device = device
        per_layer = {"num_layers": shape.num_layers, "kv_heads": shape.kv_heads, "head_dim": shape.head_dim}
        self.contexts = RowStore(
            num_rows=shape.max_contexts, length=shape.context_len, dtype=dtype, device=device, **per_layer
        )
        self.tails = RowStore(num_rows=shape.max_texts, length=shape.tail_len, dtype=dtype, device=device, **per_layer)
        # Of each context in use: its length, how far positions run ahead of token numbers behind it, and the first
        # token number from which that holds (a text may begin there, or later).
        self.lengths = [0] * (shape.max_contexts + 1)
        self.shifts = [0] * (shape.max_contexts + 1)
        self.open_from = [0] * (shape.max_contexts + 1)
        self.last_hidden = torch.zeros(shape.max_contexts + 1, shape.width, dtype=dtype, device=device)

    def position(self, context_row: int, index: int) -> int:
        """Position of token number `index` of a sequence that goes on behind a context."""
        return index + self.shifts[context_row]

    def poison(self, context_rows: Sequence[int], tail_rows: Sequence[int]) -> None:
        """Fill freed rows with NaN."""
        self.contexts.poison(context_rows)
        self.tails.poison(tail_rows)
        for row in context_rows:
            self.last_hidden[row].fill_(float("nan"))

    def num_bytes(self) -> int:
        return self.contexts.num_bytes() + self.tails.num_bytes() + self.last_hidden.numel() * self.dtype.itemsize
