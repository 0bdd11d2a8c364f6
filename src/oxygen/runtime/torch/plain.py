"""The attends of `attention.py` and `decode_attention.py` once more, slow and plain: what they compute, not how.

Every token looks at a list of keys written out for it, softmax in float32. Signatures are those of the fast ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from oxygen.runtime.torch.attention import Scratch, TailSegment
from oxygen.runtime.torch.runs import LiveText
from oxygen.runtime.torch.store import RowStore, Store


def see(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """One query q [Hq, D] on keys and values [m, Hkv, D] -> [Hq, D]."""
    group = q.shape[0] // k.shape[1]
    k, v = k.repeat_interleave(group, 1).float(), v.repeat_interleave(group, 1).float()
    weights = (torch.einsum("hd,mhd->hm", q.float(), k) * q.shape[-1] ** -0.5).softmax(-1)
    return torch.einsum("hm,mhd->hd", weights, v).to(q.dtype)


def read(rows: RowStore, layer: int, row: int, length: int) -> tuple[Tensor, Tensor]:
    """The first `length` positions of a row, [length, Hkv, D] each."""
    return rows.keys[layer][row, :, :length].transpose(0, 1), rows.values[layer][row, :, :length].transpose(0, 1)


class PlainPrefillAttend:
    def __init__(
        self, store: Store, rows: Sequence[int], lengths: Sequence[int], scratch: Scratch | None = None
    ) -> None:
        self._store, self._rows, self._lengths = store.contexts, rows, lengths

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out: list[Tensor] = []
        kept = q.shape[0] != k.shape[0]
        start = 0
        for i, (row, length) in enumerate(zip(self._rows, self._lengths, strict=True)):
            own_k, own_v = k[start : start + length], v[start : start + length]
            self._store.write(layer, row, 0, own_k, own_v)
            queries = q[i : i + 1] if kept else q[start : start + length]
            out += [see(one, own_k, own_v) for one in queries]
            start += length
        return torch.stack(out)


class PlainActAttend:
    def __init__(
        self, store: Store, rows: Sequence[int], lengths: Sequence[int], scratch: Scratch | None = None
    ) -> None:
        self._store, self._rows, self._lengths = store.contexts, rows, lengths

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        count = q.shape[0] // len(self._rows)
        out: list[Tensor] = []
        for i, (row, length) in enumerate(zip(self._rows, self._lengths, strict=True)):
            tokens = slice(i * count, (i + 1) * count)
            context_k, context_v = read(self._store, layer, row, length)
            all_k, all_v = torch.cat((context_k, k[tokens])), torch.cat((context_v, v[tokens]))
            out += [see(one, all_k, all_v) for one in q[tokens]]
        return torch.stack(out)


class PlainTailAttend:
    def __init__(self, store: Store, segments: Sequence[TailSegment], scratch: Scratch | None = None) -> None:
        self._store, self._segments = store, segments

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out: list[Tensor] = []
        kept = q.shape[0] != k.shape[0]
        first = 0
        for index, s in enumerate(self._segments):
            tokens = slice(first, first + s.count)
            first += s.count
            self._store.tails.write(layer, s.tail_row, s.start, k[tokens], v[tokens])
            context_k, context_v = read(self._store.contexts, layer, s.context_row, s.context_len)
            for i in range(s.count - 1 if kept else 0, s.count):
                tail_k, tail_v = read(self._store.tails, layer, s.tail_row, s.start + i + 1)
                one = q[index] if kept else q[tokens][i]
                out.append(see(one, torch.cat((context_k, tail_k)), torch.cat((context_v, tail_v))))
        return torch.stack(out)


class PlainDecodeAttend:
    def __init__(self, store: Store, texts: Sequence[LiveText]) -> None:
        self._store, self._texts, self._ahead = store, texts, 0

    def advance(self) -> None:
        self._ahead += 1

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out: list[Tensor] = []
        for i, t in enumerate(self._texts):
            position = t.computed + self._ahead
            self._store.tails.write(layer, t.tail_row, position, k[i : i + 1], v[i : i + 1])
            context_k, context_v = read(self._store.contexts, layer, t.context_row, t.context_len)
            tail_k, tail_v = read(self._store.tails, layer, t.tail_row, position + 1)
            out.append(see(q[i], torch.cat((context_k, tail_k)), torch.cat((context_v, tail_v))))
        return torch.stack(out)
