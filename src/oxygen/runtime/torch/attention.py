"""How prefill, the action expert and prompt tails attend: over rows of the store, in place.

Every class here is an `Attend` of the model: (layer, q [N, Hq, D], k [N, Hkv, D], v [N, Hkv, D]) -> [N, Hq, D],
with q and k after RoPE and unscaled. `plain.py` holds the same classes written for reading; a test compares them.

The query heads that share a KV head are folded into query rows, so one KV head is one matrix product. Scores of one
block of queries live in a scratch buffer that is used again and again (on a CPU it stays in the cache; allocating
it anew costs more than the products). Two parts of the keys (context and own) write their scores side by side and
share one softmax.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from oxygen.runtime.torch.store import Store

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]

CPU_BLOCK = 128
"""Query tokens per block on a CPU: scores of a block (8 heads, 600 keys, bfloat16: 1.2 MB) stay near the cores."""


class Scratch:
    """One buffer for scores, grown when a call needs more. Not shared between threads."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._flat = torch.empty(0, dtype=dtype, device=device)

    def get(self, num_rows: int, num_columns: int) -> Tensor:
        """An uninitialised [num_rows, num_columns] buffer, valid until the next call."""
        size = num_rows * num_columns
        if self._flat.numel() < size:
            self._flat = torch.empty(size, dtype=self._flat.dtype, device=self._flat.device)
        return self._flat[:size].view(num_rows, num_columns)


@dataclass(frozen=True, slots=True)
class Keys:
    """One part of what a query sees: k and v [Hkv, m, D]; mask is additive, [m] or [N, m], or None for all."""

    k: Tensor
    v: Tensor
    mask: Tensor | None = None


def attend_parts(q: Tensor, parts: Sequence[Keys], scratch: Scratch, out: Tensor) -> None:
    """out = softmax(q · K / √D) · V over the parts together. q, out [N, Hq, D]; q is unscaled."""
    num_tokens, num_heads, head_dim = q.shape
    kv_heads = parts[0].k.shape[0]
    group = num_heads // kv_heads
    block = num_tokens if q.is_cuda else CPU_BLOCK
    q = q * head_dim**-0.5
    for head in range(kv_heads):
        if kv_heads == 1:
            rows, target = q.view(-1, head_dim), out.view(-1, head_dim)
        else:
            rows = q[:, head * group : (head + 1) * group].reshape(-1, head_dim)
            target = torch.empty_like(rows)
        views = [(part.k[head], part.v[head], part.mask) for part in parts]
        for first in range(0, num_tokens, block):
            last = min(first + block, num_tokens)
            cells = slice(first * group, last * group)
            _attend_block(rows[cells], views, slice(first, last), scratch, target[cells])
        if kv_heads > 1:
            out[:, head * group : (head + 1) * group] = target.view(num_tokens, group, head_dim)


def _attend_block(
    rows: Tensor, parts: Sequence[tuple[Tensor, Tensor, Tensor | None]], tokens: slice, scratch: Scratch, out: Tensor
) -> None:
    """One block of folded query rows [n · group, D] on one KV head. out [n · group, D]."""
    scores = scratch.get(rows.shape[0], sum(k.shape[0] for k, _, _ in parts))
    start = 0
    for k, _, mask in parts:
        part = scores[:, start : start + k.shape[0]]
        torch.mm(rows, k.t(), out=part)
        if mask is not None:
            if mask.dim() == 2:
                mask = mask[tokens]
                part.unflatten(0, (mask.shape[0], -1)).add_(mask[:, None])
            else:
                part.add_(mask)
        start += k.shape[0]
    torch.softmax(scores, -1, out=scores)
    start = 0
    for k, v, _ in parts:
        part = scores[:, start : start + k.shape[0]]
        if start == 0:
            torch.mm(part, v, out=out)
        else:
            out.addmm_(part, v)
        start += k.shape[0]


def causal_mask(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Additive [size, size]: token i sees those up to itself."""
    return torch.full((size, size), float("-inf"), dtype=dtype, device=device).triu_(1)


def attend_causally(q: Tensor, keys: Keys, scratch: Scratch, out: Tensor) -> None:
    """Token i of q sees keys up to i. Block by block, so that what a block cannot see is not computed."""
    num_tokens = q.shape[0]
    block = num_tokens if q.is_cuda else CPU_BLOCK
    mask = causal_mask(min(block, num_tokens), q.dtype, q.device)
    for first in range(0, num_tokens, block):
        last = min(first + block, num_tokens)
        size = last - first
        own = Keys(keys.k[:, first:last], keys.v[:, first:last], mask[:size, :size])
        before = (Keys(keys.k[:, :first], keys.v[:, :first]),) if first else ()
        attend_parts(q[first:last], (*before, own), scratch, out[first:last])


class PrefillAttend:
    """Several contexts in one call, each within itself. K and V go straight into the rows.

    rows, lengths: the segments in token order. is_causal: a token sees those up to itself, otherwise the whole segment.
    In the last layer q may hold one token per segment (its last).
    """

    def __init__(
        self, store: Store, rows: Sequence[int], lengths: Sequence[int], scratch: Scratch, is_causal: bool = False
    ) -> None:
        self._is_causal = is_causal
        self._store = store.contexts
        self._scratch = scratch
        starts = [sum(lengths[:i]) for i in range(len(lengths))]
        self._segments = list(zip(rows, starts, lengths, strict=True))
        self._num_tokens = sum(lengths)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        whole = q.shape[0] == self._num_tokens
        for index, (row, start, length) in enumerate(self._segments):
            self._store.write(layer, row, 0, k[start : start + length], v[start : start + length])
            keys = Keys(self._store.keys[layer][row, :, :length], self._store.values[layer][row, :, :length])
            tokens = slice(start, start + length) if whole else slice(index, index + 1)
            if whole and self._is_causal:
                attend_causally(q[tokens], keys, self._scratch, out[tokens])
            else:
                attend_parts(q[tokens], (keys,), self._scratch, out[tokens])
        return out


class PaddedPrefillAttend:
    """One context padded to a bucket, for a captured graph: everything that varies is in the tensors.

    slots [N · Hkv]: where each token goes (padding goes to the trash row). mask [N] additive: which tokens are real.
    """

    def __init__(self, store: Store, slots: Tensor, mask: Tensor, scratch: Scratch) -> None:
        self._store = store.contexts
        self._slots = slots
        self._mask = mask
        self._scratch = scratch

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self._store.scatter(layer, self._slots, k, v)
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        keys = Keys(k.transpose(0, 1).contiguous(), v.transpose(0, 1).contiguous(), self._mask)
        attend_parts(q, (keys,), self._scratch, out)
        return out


class ActAttend:
    """Action chunks: each item's tokens see its context row, in place, and all of the item's own tokens.

    rows: context row of each item. lengths: positions read of each row. masks: additive [length] per item where a
    length is padded to a bucket, else None. Tokens are item after item, the same number each.
    """

    def __init__(
        self,
        store: Store,
        rows: Sequence[int],
        lengths: Sequence[int],
        scratch: Scratch,
        masks: Sequence[Tensor] | None = None,
    ) -> None:
        self._scratch = scratch
        self._num_items = len(rows)
        contexts = store.contexts
        self._parts = [
            [
                Keys(
                    contexts.keys[layer][row, :, :length],
                    contexts.values[layer][row, :, :length],
                    None if masks is None else masks[i],
                )
                for i, (row, length) in enumerate(zip(rows, lengths, strict=True))
            ]
            for layer in range(contexts.num_layers)
        ]

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        count = q.shape[0] // self._num_items
        k, v = k.transpose(0, 1), v.transpose(0, 1)
        for item, context in enumerate(self._parts[layer]):
            tokens = slice(item * count, (item + 1) * count)
            own = Keys(k[:, tokens], v[:, tokens])
            attend_parts(q[tokens], (context, own), self._scratch, out[tokens])
        return out


@dataclass(frozen=True, slots=True)
class TailSegment:
    """`count` new tokens of one text, at tail positions from `start`, on top of its context."""

    context_row: int
    context_len: int
    tail_row: int
    start: int
    count: int


class TailAttend:
    """Prompt tails: each segment sees its context whole and its own tail causally. K and V go into the tail rows.

    In the last layer q holds one token per segment (its last).
    """

    def __init__(self, store: Store, segments: Sequence[TailSegment], scratch: Scratch) -> None:
        self._store = store
        self._segments = list(segments)
        self._scratch = scratch
        self._num_tokens = sum(s.count for s in segments)
        self._masks = [_causal_mask(s, store.dtype, store.device) for s in segments]

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        whole = q.shape[0] == self._num_tokens
        contexts, tails = self._store.contexts, self._store.tails
        first = 0
        for index, s in enumerate(self._segments):
            tokens = slice(first, first + s.count)
            first += s.count
            tails.write(layer, s.tail_row, s.start, k[tokens], v[tokens])
            stop = s.start + s.count
            context = Keys(
                contexts.keys[layer][s.context_row, :, : s.context_len],
                contexts.values[layer][s.context_row, :, : s.context_len],
            )
            own = Keys(
                tails.keys[layer][s.tail_row, :, :stop],
                tails.values[layer][s.tail_row, :, :stop],
                self._masks[index] if whole else None,
            )
            wanted = tokens if whole else slice(index, index + 1)
            attend_parts(q[wanted], (context, own), self._scratch, out[wanted])
        return out


def _causal_mask(s: TailSegment, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Additive [count, start + count]: token i sees tail positions up to start + i."""
    mask = torch.full((s.count, s.start + s.count), float("-inf"), dtype=dtype, device=device)
    return mask.triu_(s.start + 1)


class PassingTailAttend:
    """Private tokens of action experts: each segment sees its context whole and itself causally. Nothing is kept.

    segments: (context row, context length, number of tokens), in token order. All tokens are queries in every layer.
    """

    def __init__(self, store: Store, segments: Sequence[tuple[int, int, int]], scratch: Scratch) -> None:
        self._contexts, self._segments, self._scratch = store.contexts, list(segments), scratch
        self._masks = [causal_mask(count, store.dtype, store.device) for _, _, count in segments]

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        k, v = k.transpose(0, 1), v.transpose(0, 1)
        first = 0
        for (row, length, count), mask in zip(self._segments, self._masks, strict=True):
            tokens = slice(first, first + count)
            first += count
            context = Keys(self._contexts.keys[layer][row, :, :length], self._contexts.values[layer][row, :, :length])
            attend_parts(q[tokens], (context, Keys(k[:, tokens], v[:, tokens], mask)), self._scratch, out[tokens])
        return out


class JointAttend:
    """Two kinds of tokens in one pass: the first `num_first` go to one attend, the rest to another.

    In the last layer of a pass with `keep`, all of the first kind are kept.
    """

    def __init__(self, first: Attend, num_first: int, rest: Attend) -> None:
        self._first = first
        self._num_first = num_first
        self._rest = rest

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        n = self._num_first
        return torch.cat((self._first(layer, q[:n], k[:n], v[:n]), self._rest(layer, q[n:], k[n:], v[n:])))
