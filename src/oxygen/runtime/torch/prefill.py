"""The prefill verb: contexts to one row each, and for action experts the hidden states that they read, in one pass.

An expert may have private tokens of its own behind the context (its tail). They go through the trunk in the same pass,
on top of the context that is being written, and leave nothing behind but what the expert reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from oxygen.core.errors import RequestFault
from oxygen.core.plan import PrefillItem
from oxygen.layers.experts import Tap
from oxygen.layers.torch.context import After, ContextTokens, Features, add_after
from oxygen.runtime.torch.act import FeaturesOf
from oxygen.runtime.torch.attention import Attend, JointAttend, PassingTailAttend, PrefillAttend, Scratch
from oxygen.runtime.torch.graphs import Graphs, StaticPrefill, prefill_key
from oxygen.runtime.torch.store import Store
from oxygen.runtime.torch.timings import Timings

MAX_TOKENS = 2048
"""Tokens per pass of the trunk: beyond this a larger batch buys no speed and takes memory."""


@dataclass(frozen=True, slots=True)
class Reader:
    """A reader of hidden states among a pass's items: whose context (place in the pass), which expert, its tail."""

    index: int
    expert: str
    tail: tuple[int, ...]
    taps: tuple[Tap, ...]


class Prefill:
    """Pictures are embedded once per frame key and kept until the next call, for contexts of the same frame.

    features: what readers of hidden states find until the next call; see `FeaturesOf`.
    """

    def __init__(self, model: Any, store: Store, scratch: Scratch, graphs: Graphs, timings: Timings) -> None:
        self._model, self._store, self._scratch = model, store, scratch
        self._experts = model.experts
        self._graphs, self._timings = graphs, timings
        self._embedded: dict[int, Sequence[Any]] = {}
        self.features: FeaturesOf = {}

    def run(self, items: Sequence[PrefillItem]) -> None:
        """Write every item's context and last hidden state into its row."""
        for item in items:
            self._check(item)
        if not items:
            return
        self.features.clear()
        with self._timings.stage("vision"):
            self._embed_pictures(items)
        with self._timings.stage("prefill"):
            for batch in _batches(items):
                self._run_batch(batch)

    def forget_step(self) -> None:
        """Pictures and features outlive no step."""
        self._embedded.clear()
        self.features.clear()

    def forget_rows(self, rows: Sequence[int]) -> None:
        """Features of contexts that are gone."""
        for key in [key for key in self.features if key[0] in rows]:
            del self.features[key]

    def _check(self, item: PrefillItem) -> None:
        inputs, room = item.inputs, self._store.shape.context_len
        reason = self._model.refusal(inputs)
        if reason is None and not 1 <= inputs.num_tokens <= room:
            reason = f"context: {inputs.num_tokens} tokens, room for {room}"
        if reason is not None:
            raise RequestFault(item.request_id, reason)
        vocab_size = self._model.spec.vocab_size
        check_ids(item.request_id, inputs.token_ids, vocab_size)
        for name, tail in item.readers:
            if name not in self._experts:
                raise RequestFault(item.request_id, f"the action experts are {list(self._experts)}, not {name!r}")
            check_ids(item.request_id, tail, vocab_size)
            reads = self._experts[name].shape.reads
            count = (*inputs.token_ids, *tail).count(reads.token_id)
            if reads.token_id is not None and count < reads.num_tokens:
                raise RequestFault(
                    item.request_id, f"expert {name} reads at {reads.num_tokens} query tokens, its prompt has {count}"
                )

    def _embed_pictures(self, items: Sequence[PrefillItem]) -> None:
        """Fill `_embedded` for this call's frame keys, in one pass."""
        new = {item.frame_key: item.inputs.images for item in items if item.frame_key not in self._embedded}
        wanted = {item.frame_key for item in items}
        self._embedded = {key: value for key, value in self._embedded.items() if key in wanted}
        pictures = self._model.embed_pictures([image for images in new.values() for image in images])
        start = 0
        for key, images in new.items():
            self._embedded[key] = pictures[start : start + len(images)]
            start += len(images)

    def _run_batch(self, items: Sequence[PrefillItem]) -> None:
        store = self._store
        rows = [item.context_row for item in items]
        contexts = [self._model.lay_out(item.inputs, self._embedded[item.frame_key]) for item in items]
        for row, context in zip(rows, contexts, strict=True):
            store.contexts.take(row, len(context.x))
            store.lengths[row], store.shifts[row] = len(context.x), context.shift
            store.open_from[row] = context.open_from
        readers = self._readers(items)
        if self._graphs.enabled and len(items) == 1 and not readers:
            has_additions = contexts[0].additions is not None
            key = prefill_key(len(contexts[0].x), store.shape.context_len, has_additions)
            static = self._graphs.get(key, lambda: StaticPrefill(self._model, store, key, contexts[0]))
            if isinstance(static, StaticPrefill):
                static.load(rows[0], contexts[0])
                static.replay()
                store.last_hidden[rows[0]] = static.hidden[0]
                return
        lengths = [len(context.x) for context in contexts]
        ends = torch.tensor(lengths, device=store.device).cumsum(0) - 1
        attend: Attend = PrefillAttend(store, rows, lengths, self._scratch, self._model.is_causal)
        after = _add_after_all(contexts)
        if readers:
            hidden = self._run_with_readers(items, contexts, readers, attend, after)[ends]
        else:
            rope = self._model.rope(torch.cat([context.positions for context in contexts]))
            hidden = self._model.trunk(torch.cat([c.x for c in contexts]), rope, attend, ends, after)
        store.last_hidden.index_copy_(0, torch.tensor(rows, device=store.device), hidden)

    def _readers(self, items: Sequence[PrefillItem]) -> list[Reader]:
        """Those of the items' readers that read hidden states."""
        return [
            Reader(index, name, tail, self._experts[name].shape.reads.hidden)
            for index, item in enumerate(items)
            for name, tail in item.readers
            if self._experts[name].shape.reads.hidden
        ]

    def _run_with_readers(
        self,
        items: Sequence[PrefillItem],
        contexts: Sequence[ContextTokens],
        readers: Sequence[Reader],
        attend: Attend,
        after: After | None,
    ) -> Tensor:
        """One pass over contexts, then tails, filling `features` -> hidden states of all tokens."""
        store, model = self._store, self._model
        tailed = [reader for reader in readers if reader.tail]
        x, positions = [context.x for context in contexts], [context.positions for context in contexts]
        num_tokens = sum(map(len, x))
        if tailed:
            ids = [i for reader in tailed for i in reader.tail]
            x.append(model.embed_tokens(torch.tensor(ids, dtype=torch.int64, device=store.device)))
            positions += [_behind(contexts[reader.index], len(reader.tail)) for reader in tailed]
            segments = [(items[r.index].context_row, len(contexts[r.index].x), len(r.tail)) for r in tailed]
            attend = JointAttend(attend, num_tokens, PassingTailAttend(store, segments, self._scratch))
        wanted = {tap for reader in readers for tap in reader.taps}
        taken: dict[Tap, Tensor] = {}

        def tap_after(layer: int, residual: Tensor) -> Tensor:
            residual = residual if after is None else after(layer, residual)
            if Tap(layer) in wanted:
                taken[Tap(layer)] = residual
            return residual

        hidden: Tensor = model.trunk(torch.cat(x), model.rope(torch.cat(positions)), attend, None, tap_after)
        taken |= {tap: hidden for tap in wanted if tap.stage == "normed"}
        starts = [sum(len(c.x) for c in contexts[:i]) for i in range(len(contexts))]
        for reader in readers:
            item, start = items[reader.index], starts[reader.index]
            spans = [slice(start, start + len(contexts[reader.index].x))]
            if reader.tail:
                spans.append(slice(num_tokens, num_tokens + len(reader.tail)))
                num_tokens += len(reader.tail)
            read = {tap: _joined([taken[tap][span] for span in spans]) for tap in reader.taps}
            # Words only: where pictures have tokens of their own (π0.5), none of them is a query token.
            self.features[item.context_row, reader.expert] = Features((*item.inputs.token_ids, *reader.tail), read)
        return hidden


def _behind(context: ContextTokens, count: int) -> Tensor:
    """Positions of `count` tokens that follow a context, with as many axes as it has."""
    first = len(context.x) + context.shift
    positions = torch.arange(first, first + count, device=context.x.device)
    return positions[:, None].expand(-1, context.positions.shape[1]) if context.positions.dim() == 2 else positions


def _add_after_all(contexts: Sequence[ContextTokens]) -> After | None:
    """What the contexts of a pass have added to them, one behind the other."""
    present = [context.additions for context in contexts if context.additions is not None]
    if not present:
        return None
    shape = (len(present[0]), -1, -1)
    parts = [
        context.x.new_zeros(1, *context.x.shape).expand(shape) if context.additions is None else context.additions
        for context in contexts
    ]
    return add_after(_joined(parts, dim=1))


def _joined(parts: Sequence[Tensor], dim: int = 0) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), dim)


def check_ids(request_id: int, ids: Sequence[int], vocab_size: int) -> None:
    """Token ids outside the vocabulary are that request's fault."""
    if ids and not (min(ids) >= 0 and max(ids) < vocab_size):
        raise RequestFault(request_id, f"token ids must be from 0 to {vocab_size - 1}, got {min(ids)} to {max(ids)}")


def _batches(items: Sequence[PrefillItem]) -> Iterator[list[PrefillItem]]:
    """Cut into passes of at most MAX_TOKENS tokens (one item at least)."""
    batch: list[PrefillItem] = []
    total = 0
    for item in items:
        count = item.inputs.num_tokens + sum(len(tail) for _, tail in item.readers)
        if batch and total + count > MAX_TOKENS:
            yield batch
            batch, total = [], 0
        batch.append(item)
        total += count
    if batch:
        yield batch
