"""Graph capture: shape buckets, static buffers, padding to the trash rows. Eager is the same model code with this off.

Mode `cuda` captures each shape once as a CUDA graph and replays it. Mode `plain` runs the same static-buffer path
with the capture replaced by a call (tests, on a CPU). Mode `off` makes no static shape at all. The CUDA mode is
written for a GPU but has not been measured on one. A failed capture turns graphs off for good, is logged once and
shows in `state()`; work goes on eagerly.

What varies within a bucket sits in device buffers (`numbers`: all integers of a shape, one transfer). What a graph
bakes in is its key. Chunks bake the context rows in, because a row is read where it lies; so their graphs are made
when a set of rows comes a second time and the oldest give way when there are too many.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from oxygen.layers.torch.context import ContextTokens, Reading, add_after
from oxygen.runtime.torch.attention import ActAttend, PaddedPrefillAttend, Scratch, causal_mask
from oxygen.runtime.torch.decode_attention import DecodeAttend, RunTensors, run_orders, span_mask
from oxygen.runtime.torch.flow import action_positions, denoise
from oxygen.runtime.torch.runs import LiveText, make_run
from oxygen.runtime.torch.store import Store

log = logging.getLogger(__name__)

MODES = ("off", "plain", "cuda")
PREFILL_STEP = 64
CONTEXT_STEP = 128
TAIL_STEP = 32
BATCHES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128)
WARM_RUNS = 2

Key = tuple[Any, ...]


def round_up(value: int, step: int, limit: int) -> int:
    """The next multiple of `step`, at most `limit`."""
    return min(-(-value // step) * step, limit)


def bucket(value: int, limit: int) -> int:
    """The next batch size of BATCHES (or multiple of 64 above them), at most `limit`."""
    return min(next((b for b in BATCHES if b >= value), -(-value // 64) * 64), limit)


def act_key(expert: str, rows: Sequence[int], context_len: int, num_steps: int, limit: int) -> Key:
    """Shape of a denoise loop: whose, which rows, how much of each, how many steps."""
    return ("act", expert, tuple(rows), round_up(context_len, CONTEXT_STEP, limit), num_steps)


def prefill_key(num_tokens: int, limit: int, has_additions: bool = False) -> Key:
    """Shape of the prefill of one context, with or without what is added behind its first layers."""
    return ("prefill", round_up(num_tokens, PREFILL_STEP, limit), has_additions)


def round_key(texts: Sequence[LiveText], store: Store) -> Key:
    """Shape of a decode round: texts, context rows read, cells per row, context length, tail rows, tail length.

    Context rows and tail rows are read from row 0 on, so low rows (which the cache hands out first) keep it small.
    """
    shape = store.shape
    per_row: dict[int, int] = {}
    for t in texts:
        per_row[t.context_row] = per_row.get(t.context_row, 0) + 1
    return (
        "round",
        bucket(len(texts), shape.max_texts),
        bucket(max(per_row) + 1, shape.max_contexts),
        bucket(max(per_row.values()), shape.max_texts),
        round_up(max(t.context_len for t in texts), CONTEXT_STEP, shape.context_len),
        bucket(max(t.tail_row for t in texts) + 1, shape.max_texts),
        round_up(max(t.computed for t in texts) + 1, TAIL_STEP, shape.tail_len),
    )


class Static:
    """One captured shape. A subclass allocates its buffers, then `run` is what gets captured; `replay` runs it."""

    _graph: Any = None

    def run(self) -> None:
        raise TypeError(f"{type(self).__name__} has nothing to run")

    def capture(self, pool: Any) -> None:
        """Record `run` as a CUDA graph. Buffers still hold what they were made with, so only trash rows are written."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_RUNS):
                self.run()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            self.run()
        self._graph = graph

    def replay(self) -> None:
        if self._graph is None:
            self.run()
        else:
            self._graph.replay()


class StaticPrefill(Static):
    """One context of up to `size` tokens. x [size, width] is filled by the caller; `hidden` [1, width] comes out."""

    def __init__(self, model: Any, store: Store, key: Key, like: ContextTokens) -> None:
        size = key[1]
        self._model, self._store, self._size = model, store, size
        self._causal = causal_mask(size, store.dtype, store.device) if model.is_causal else None
        self._scratch = Scratch(store.dtype, store.device)
        self.x = torch.zeros(size, store.shape.width, dtype=store.dtype, device=store.device)
        self.hidden = torch.zeros(1, store.shape.width, dtype=store.dtype, device=store.device)
        self._trash = store.contexts.slots([store.contexts.trash] * size, [0] * size, store.device)
        self._slots = self._trash.clone()
        self._positions = torch.zeros((size, *like.positions.shape[1:]), dtype=torch.int64, device=store.device)
        self._additions = None if like.additions is None else self.x.new_zeros(len(like.additions), *self.x.shape)
        self._length = torch.ones(1, dtype=torch.int64, device=store.device)

    def load(self, row: int, context: ContextTokens) -> None:
        """Take a context in, and aim at a row. What lies behind the context is padding."""
        contexts, length = self._store.contexts, len(context.x)
        self.x[:length] = context.x
        self._positions[:length] = context.positions
        if self._additions is not None and context.additions is not None:
            self._additions.zero_()
            self._additions[:, :length] = context.additions
        self._slots.copy_(self._trash)
        self._slots[: length * contexts.kv_heads] = contexts.slots([row] * length, range(length), self._store.device)
        self._length.fill_(length)

    def run(self) -> None:
        mask = span_mask(self._length, self._size, self._store.dtype)[0] if self._causal is None else self._causal
        attend = PaddedPrefillAttend(self._store, self._slots, mask, self._scratch)
        rope, after = self._model.rope(self._positions), add_after(self._additions)
        self.hidden.copy_(self._model.trunk(self.x, rope, attend, self._length - 1, after))


class StaticAct(Static):
    """The whole denoise loop of some rows. x [B, H, A] float32: noise goes in, actions come out."""

    def __init__(
        self,
        expert: Any,
        store: Store,
        key: Key,
        shape: Sequence[int],
    ) -> None:
        _, _, rows, context_len, num_steps = key
        self._expert, self._store, self._rows, self._context_len = expert, store, rows, context_len
        self._num_steps = num_steps
        self._scratch = Scratch(store.dtype, store.device)
        self.x = torch.zeros(*shape, dtype=torch.float32, device=store.device)
        self._lens = torch.ones(len(rows), dtype=torch.int64, device=store.device)
        self._next = torch.ones(len(rows), dtype=torch.int64, device=store.device)
        self._expert.prepare(self._reading(), num_steps)  # what is made once must not be made inside a capture

    def load(self, noise: Tensor, lens: Sequence[int]) -> None:
        """The items' noise and context lengths."""
        self.x.copy_(noise)
        self._lens.copy_(torch.tensor(lens))
        self._next.copy_(torch.tensor([self._store.position(r, n) for r, n in zip(self._rows, lens, strict=True)]))

    def run(self) -> None:
        denoise(self._expert, self._expert.prepare(self._reading(), self._num_steps), self.x, self._num_steps)

    def _reading(self) -> Reading:
        masks = list(span_mask(self._lens, self._context_len, self._store.dtype))
        lens = [self._context_len] * len(self._rows)
        attend = ActAttend(self._store, self._rows, lens, self._scratch, masks)
        return Reading(len(self._rows), attend, action_positions(self._next, self.x.shape[1]))


class StaticRound(Static):
    """One decode round's trunk pass. tokens [B] are filled by the caller; `hidden` [B, width] comes out."""

    def __init__(self, model: Any, store: Store, key: Key) -> None:
        _, batch, rows, cells, context_len, tails, tail_len = key
        self._model, self._store, self._key = model, store, key
        sizes = (batch, batch, batch * store.shape.kv_heads, rows * cells, rows * cells)
        orders = (rows * cells, batch, tails, rows * cells, tails, batch)
        self.tokens = torch.zeros(batch, dtype=torch.int64, device=store.device)
        self.hidden = torch.zeros(batch, store.shape.width, dtype=store.dtype, device=store.device)
        self._numbers = torch.zeros(sum(sizes[1:]) + sum(orders), dtype=torch.int64, device=store.device)
        parts = self._numbers.split([*sizes[1:], *orders])
        self._positions, self._slots, self._context_lens, self._visible = parts[:4]
        self._trash = store.tails.slots([store.tails.trash] * batch, [0] * batch, torch.device("cpu")).tolist()
        self._slots.copy_(torch.tensor(self._trash))
        self._run = RunTensors(0, rows, cells, 0, batch, context_len, 0, tails, tail_len, *parts[4:])

    def load(self, texts: Sequence[LiveText]) -> None:
        """The round's texts, sorted by context row. Padding texts write to the trash row and repeat text 0."""
        _, batch, rows, cells, context_len, tails, _ = self._key
        padding = batch - len(texts)
        run = make_run(texts, rows, cells, context_len)
        orders = run_orders(run, texts, 0, tails)
        slots = self._store.tails.slots([t.tail_row for t in texts], [t.computed for t in texts], torch.device("cpu"))
        kv_heads = self._store.shape.kv_heads
        numbers = [self._store.position(t.context_row, t.context_len + t.computed) for t in texts] + [0] * padding
        numbers += slots.tolist() + self._trash[: padding * kv_heads]
        numbers += run.context_lens
        numbers += [texts[text].computed + 1 for text in run.cell_text]
        numbers += orders.cell_text
        numbers += [*orders.text_cell, *[0] * padding]
        numbers += orders.tail_text
        numbers += orders.tail_of_cell
        numbers += orders.cell_of_tail
        numbers += [*orders.tail_of_text, *[0] * padding]
        self._numbers.copy_(torch.tensor(numbers))

    def run(self) -> None:
        run, dtype = self._run, self._store.dtype
        run.context_mask = span_mask(self._context_lens.view(-1, 1, run.cells, 1), run.context_len, dtype)
        run.tail_mask = span_mask(self._visible.view(-1, 1, run.cells, 1), run.tail_len, dtype)
        attend = DecodeAttend.over(self._store, [run], self._slots)
        rope = self._model.rope(self._positions)
        self.hidden.copy_(self._model.trunk(self._model.embed_tokens(self.tokens), rope, attend))


class Graphs:
    """The shapes made so far. `limit` bounds them; the one used longest ago goes first."""

    def __init__(self, mode: str, limit: int = 128) -> None:
        if mode not in MODES:
            raise ValueError(f"graphs: expected one of {', '.join(MODES)}, got {mode!r}")
        self.mode = mode
        self.failure: str | None = None
        self._limit = limit
        self._shapes: OrderedDict[Key, Static] = OrderedDict()
        self._seen: OrderedDict[Key, None] = OrderedDict()
        self._pool: Any = None

    @property
    def enabled(self) -> bool:
        return self.mode != "off" and self.failure is None

    def get(self, key: Key, make: Callable[[], Static], at_once: bool = False) -> Static | None:
        """The shape of a key, made when the key comes the second time (or `at_once`); None means: go eagerly."""
        found = self._shapes.get(key)
        if found is not None:
            self._shapes.move_to_end(key)
            return found
        if self.mode == "cuda" and not at_once and key not in self._seen:
            self._seen[key] = None
            if len(self._seen) > 16 * self._limit:
                self._seen.popitem(last=False)
            return None
        return self._make(key, make)

    def state(self) -> dict[str, Any]:
        """For `info()`: mode, number of shapes, and why capture failed if it did."""
        return {"mode": self.mode, "shapes": len(self._shapes), "failure": self.failure}

    def _make(self, key: Key, make: Callable[[], Static]) -> Static | None:
        static = make()
        if self.mode == "cuda":
            try:
                if self._pool is None:
                    self._pool = torch.cuda.graph_pool_handle()
                static.capture(self._pool)
            except RuntimeError as error:
                self.failure = f"capture of {key} failed: {error}"
                log.warning("CUDA graphs are off, work goes on eagerly: %s", self.failure)
                self._shapes.clear()
                return None
        self._shapes[key] = static
        if len(self._shapes) > self._limit:
            self._shapes.popitem(last=False)
        return static
