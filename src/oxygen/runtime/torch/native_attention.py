"""How decode rounds and action chunks attend where compiled kernels can be had: one call a layer, nothing to plan.

`decode_attention.py` and `attention.py` do the same in library calls: on a GPU, in captured graphs, without a compiler.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import addressof

import torch
from torch import Tensor

from oxygen.layers.native.build import Call, Rows, Tokens, kernels
from oxygen.layers.torch import native
from oxygen.runtime.torch.attention import ActAttend, Attend, Scratch
from oxygen.runtime.torch.decode_attention import DecodeAttend
from oxygen.runtime.torch.runs import LiveText
from oxygen.runtime.torch.store import RowStore, Store

MOST_TOKENS = 32
"""Tokens of a chunk up to which the kernel wins in bfloat16; at 50 the library's products are 5 % quicker."""


def decode_attend(store: Store, texts: Sequence[LiveText]) -> DecodeAttend | NativeAttend:
    """The quicker `DecodeAttend` for this store. texts: sorted by context row, token i of the pass is text i's."""
    if not _has_kernel(store):
        return DecodeAttend(store, texts)
    return NativeAttend(store, [(t.context_row, t.context_len, t.tail_row, t.computed) for t in texts])


def act_attend(store: Store, rows: Sequence[int], lengths: Sequence[int], horizon: int, scratch: Scratch) -> Attend:
    """The quicker `ActAttend` for this store: items of `horizon` tokens each on these context rows and lengths."""
    if not _has_kernel(store) or (store.dtype == torch.bfloat16 and horizon > MOST_TOKENS):
        return ActAttend(store, rows, lengths, scratch)
    places = [(row, length, 0, horizon) for row, length in zip(rows, lengths, strict=True)]
    return NativeAttend(store, places, is_act=True)


class NativeAttend:
    """An `Attend` over rows of the store. A token's result does not depend on what else is in the batch.

    places: (context row, context length, tail row, tail position to fill) of each text, or, with is_act, (context row,
    context length, 0, number of tokens) of each item.
    """

    def __init__(self, store: Store, places: Sequence[tuple[int, int, int, int]], is_act: bool = False) -> None:
        library = kernels()
        assert library is not None, "made where there are kernels only"
        self._attend, self._is_act = library.oxygen_attend, is_act
        self._places = torch.tensor(places, dtype=torch.int64)
        self._store, self._call, self._tokens = store, Call(_rows(store.contexts), _rows(store.tails)), Tokens()
        self._call.places, self._call.num_places = self._places.data_ptr(), len(places)
        self._call.kv_heads, self._call.head_dim = store.shape.kv_heads, store.shape.head_dim
        self._call.is_bfloat16 = store.dtype == torch.bfloat16
        self._addresses = addressof(self._call), addressof(self._tokens)

    def advance(self) -> None:
        """The same texts, one token further."""
        self._places[:, 3] += 1

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = _side_by_side(q), _side_by_side(k), _side_by_side(v)
        out, tokens = torch.empty(q.shape, dtype=q.dtype), self._tokens
        self._call.num_heads = q.shape[1]
        tokens.q, tokens.k, tokens.v, tokens.out = q.data_ptr(), k.data_ptr(), v.data_ptr(), out.data_ptr()
        tokens.q_stride, tokens.k_stride, tokens.v_stride = q.stride(0), k.stride(0), v.stride(0)
        if self._attend(*self._addresses, layer, self._is_act):
            raise ValueError(f"head_dim: expected one of {native.HEAD_DIMS}, got {q.shape[2]}")
        return out


def _has_kernel(store: Store) -> bool:
    return store.shape.head_dim in native.HEAD_DIMS and native.takes(store.last_hidden)


def _rows(rows: RowStore) -> Rows:
    return Rows(rows.keys[0].data_ptr(), rows.values[0].data_ptr(), rows.num_rows + 1, rows.length)


def _side_by_side(x: Tensor) -> Tensor:
    """x [N, heads, D] with the heads of a token next to each other."""
    return x if x.stride(2) == 1 and x.stride(1) == x.shape[2] else x.contiguous()
