"""The prefill verb: pictures and prompt tokens to one context row each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from oxygen.core.errors import RequestFault
from oxygen.core.plan import PrefillItem
from oxygen.runtime.torch.attention import PrefillAttend, Scratch
from oxygen.runtime.torch.graphs import Graphs, StaticPrefill, prefill_key
from oxygen.runtime.torch.store import Store
from oxygen.runtime.torch.timings import Timings

MAX_TOKENS = 2048
"""Tokens per pass of the trunk: beyond this a larger batch buys no speed and takes memory."""


class Prefill:
    """Pictures are embedded once per frame key and kept until the next call, for contexts of the same frame."""

    def __init__(self, model: Any, store: Store, scratch: Scratch, graphs: Graphs, timings: Timings) -> None:
        self._model, self._store, self._scratch = model, store, scratch
        self._graphs, self._timings = graphs, timings
        self._embedded: dict[int, Tensor] = {}

    def run(self, items: Sequence[PrefillItem]) -> None:
        """Write every item's context and last hidden state into its row."""
        for item in items:
            self._check(item)
        if not items:
            return
        with self._timings.stage("vision"):
            self._embed_pictures(items)
        with self._timings.stage("prefill"):
            for batch in _batches(items):
                self._run_batch(batch)

    def forget_pictures(self) -> None:
        self._embedded.clear()

    def _check(self, item: PrefillItem) -> None:
        spec, inputs = self._model.spec, item.inputs
        size = spec.vision.image_size
        for image in inputs.images:
            if image.shape != (size, size, 3) or image.dtype != np.uint8:
                raise RequestFault(
                    item.request_id, f"picture: expected [{size}, {size}, 3] uint8, got {image.shape} {image.dtype}"
                )
        count = len(inputs.images) * spec.tokens_per_image + len(inputs.token_ids)
        if count != inputs.num_tokens or not 1 <= count <= self._store.shape.context_len:
            raise RequestFault(
                item.request_id,
                f"context: {count} tokens, declared {inputs.num_tokens}, room for {self._store.shape.context_len}",
            )
        check_ids(item.request_id, inputs.token_ids, spec.vocab_size)

    def _embed_pictures(self, items: Sequence[PrefillItem]) -> None:
        """Fill `_embedded` for this call's frame keys, [num_images · tokens_per_image, width] each, in one pass."""
        new = {item.frame_key: item.inputs.images for item in items if item.frame_key not in self._embedded}
        wanted = {item.frame_key for item in items}
        self._embedded = {key: value for key, value in self._embedded.items() if key in wanted}
        images = [image for pictures in new.values() for image in pictures]
        if images:
            stacked = torch.from_numpy(np.stack(images)).to(self._store.device)
            pixels = stacked.permute(0, 3, 1, 2).to(torch.float32).mul_(2.0 / 255.0).sub_(1.0)
            tokens = self._model.embed_images(pixels)
        start = 0
        for key, pictures in new.items():
            if pictures:
                self._embedded[key] = tokens[start : start + len(pictures)].flatten(0, 1)
            start += len(pictures)

    def _run_batch(self, items: Sequence[PrefillItem]) -> None:
        store = self._store
        rows = [item.context_row for item in items]
        lengths = [item.inputs.num_tokens for item in items]
        x = self._embed(items)
        for row, length in zip(rows, lengths, strict=True):
            store.contexts.take(row, length)
        if self._graphs.enabled and len(items) == 1:
            key = prefill_key(lengths[0], store.shape.context_len)
            static = self._graphs.get(key, lambda: StaticPrefill(self._model, store, key))
            if isinstance(static, StaticPrefill):
                static.load(rows[0], lengths[0])
                static.x[: lengths[0]] = x
                static.replay()
                store.last_hidden[rows[0]] = static.hidden[0]
                return
        device = store.device
        positions = torch.cat([torch.arange(n, device=device) for n in lengths])
        ends = torch.tensor(lengths, device=device).cumsum(0) - 1
        attend = PrefillAttend(store, rows, lengths, self._scratch)
        hidden = self._model.trunk(x, self._model.rope(positions), attend, ends)
        store.last_hidden.index_copy_(0, torch.tensor(rows, device=device), hidden)

    def _embed(self, items: Sequence[PrefillItem]) -> Tensor:
        """All tokens of all items, pictures before text within each, [N, width]."""
        ids = [i for item in items for i in item.inputs.token_ids]
        text = self._model.embed_tokens(torch.tensor(ids, dtype=torch.int64, device=self._store.device))
        parts: list[Tensor] = []
        start = 0
        for item in items:
            if item.inputs.images:
                parts.append(self._embedded[item.frame_key])
            stop = start + len(item.inputs.token_ids)
            parts.append(text[start:stop])
            start = stop
        return torch.cat(parts)


def check_ids(request_id: int, ids: Sequence[int], vocab_size: int) -> None:
    """Token ids outside the vocabulary are that request's fault."""
    if ids and not (min(ids) >= 0 and max(ids) < vocab_size):
        raise RequestFault(request_id, f"token ids must be from 0 to {vocab_size - 1}, got {min(ids)} to {max(ids)}")


def _batches(items: Sequence[PrefillItem]) -> Iterator[list[PrefillItem]]:
    """Cut into passes of at most MAX_TOKENS tokens (one item at least)."""
    batch: list[PrefillItem] = []
    total = 0
    for item in items:
        if batch and total + item.inputs.num_tokens > MAX_TOKENS:
            yield batch
            batch, total = [], 0
        batch.append(item)
        total += item.inputs.num_tokens
    if batch:
        yield batch
