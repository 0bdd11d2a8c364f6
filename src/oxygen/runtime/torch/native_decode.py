"""How a decode round attends where compiled kernels can be had: one call a layer, row by row, nothing to plan.

`decode_attention.py` does the same in library calls: on a GPU, in captured graphs, and without a compiler.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from oxygen.layers.native.build import Round, Rows, kernels
from oxygen.layers.torch import native
from oxygen.runtime.torch.decode_attention import DecodeAttend
from oxygen.runtime.torch.runs import LiveText
from oxygen.runtime.torch.store import RowStore, Store


def decode_attend(store: Store, texts: Sequence[LiveText]) -> DecodeAttend | NativeDecodeAttend:
    """The quicker of the two for this store. texts: sorted by context row, token i of the pass is text i's."""
    shape = store.shape
    if shape.head_dim in native.HEAD_DIMS and native.takes(store.last_hidden):
        return NativeDecodeAttend(store, texts)
    return DecodeAttend(store, texts)


class NativeDecodeAttend:
    """An `Attend` with the contract of `DecodeAttend`. A text's result does not depend on what else is in the batch."""

    def __init__(self, store: Store, texts: Sequence[LiveText]) -> None:
        library = kernels()
        assert library is not None, "made by `decode_attend` only"
        self._decode = library.oxygen_decode
        places = [(t.context_row, t.context_len, t.tail_row, t.computed) for t in texts]
        self._texts = torch.tensor(places, dtype=torch.int64)
        self._store, self._round = store, Round(_rows(store.contexts), _rows(store.tails))
        self._round.texts, self._round.num_texts = self._texts.data_ptr(), len(texts)
        self._round.kv_heads, self._round.head_dim = store.shape.kv_heads, store.shape.head_dim
        self._round.is_bfloat16 = store.dtype == torch.bfloat16
        self._strides = (ctypes.c_int64 * 3)()

    def advance(self) -> None:
        """The same texts, one token further."""
        self._texts[:, 3] += 1

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = _side_by_side(q), _side_by_side(k), _side_by_side(v)
        out = torch.empty(q.shape, dtype=q.dtype)
        self._round.num_heads = q.shape[1]
        self._strides[:] = q.stride(0), k.stride(0), v.stride(0)
        pointers = (q.data_ptr(), k.data_ptr(), v.data_ptr(), ctypes.addressof(self._strides), out.data_ptr())
        if self._decode(ctypes.byref(self._round), layer, *pointers):
            raise ValueError(f"head_dim: expected one of {native.HEAD_DIMS}, got {q.shape[2]}")
        return out


def _rows(rows: RowStore) -> Rows:
    return Rows(rows.keys[0].data_ptr(), rows.values[0].data_ptr(), rows.num_rows + 1, rows.length)


def _side_by_side(x: Tensor) -> Tensor:
    """x [N, heads, D] with the heads of a token next to each other."""
    return x if x.stride(2) == 1 and x.stride(1) == x.shape[2] else x.contiguous()
