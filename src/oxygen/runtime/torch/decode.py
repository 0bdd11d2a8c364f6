"""The decode verb: up to k rounds for all live texts, one trunk pass, one head product and one sampling a round.

A round takes each text's pending tokens: one (the last sampled), several (its prompt tail, in its first round) or
none (a text that starts straight from its context's last hidden state). All of them share one pass of the trunk, so
the weights are read once, and the first token of a new text costs no extra reading of the head.

`lookahead` (the default on a GPU): a round is launched before the tokens of the round before have been looked at,
so the device never waits for the host. A text that turns out to have ended has then been computed once too often;
that result is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from oxygen.core.errors import RequestFault
from oxygen.core.plan import AfterRound, DecodeItem
from oxygen.runtime.torch.attention import JointAttend, Scratch, TailAttend, TailSegment
from oxygen.runtime.torch.decode_attention import DecodeAttend
from oxygen.runtime.torch.graphs import Graphs, StaticRound, round_key
from oxygen.runtime.torch.native_attention import NativeAttend, decode_attend
from oxygen.runtime.torch.prefill import check_ids
from oxygen.runtime.torch.runs import LiveText
from oxygen.runtime.torch.sampler import FAULTY, SamplingRows, sample
from oxygen.runtime.torch.store import Store
from oxygen.runtime.torch.timings import Timings


@dataclass(slots=True)
class Live:
    """A text during one decode call; `index` is its place in the items.

    `computed` and `drawn` count what has been launched, `left` what may still be launched, `owed` the tokens to
    hand out.
    """

    index: int
    item: DecodeItem
    computed: int
    drawn: int
    left: int
    owed: int
    ended: bool = False

    def place(self) -> LiveText:
        return LiveText(self.item.context_row, self.item.context_len, self.item.tail_row, self.computed)


@dataclass(slots=True)
class Round:
    """A launched round: the texts in token order, their tokens on the device, and what a next round of the same can
    reuse.
    """

    texts: list[Live]
    tokens: Tensor
    sampling: SamplingRows
    attend: DecodeAttend | NativeAttend | None = None
    positions: Tensor | None = None
    draws: Tensor | None = None


class Decode:
    """Runs decode calls on a model and a store."""

    def __init__(
        self,
        model: Any,
        store: Store,
        scratch: Scratch,
        graphs: Graphs,
        timings: Timings,
        forbidden: Tensor | None = None,
        lookahead: bool = False,
        eos_ids: Sequence[int] = (),
    ) -> None:
        self._model, self._store, self._scratch = model, store, scratch
        self._graphs, self._timings = graphs, timings
        self.forbidden, self.lookahead, self._eos_ids = forbidden, lookahead, tuple(eos_ids)

    def run(self, items: Sequence[DecodeItem], rounds: int, after_round: AfterRound) -> None:
        """See core.plan.Runner.decode. After a RequestFault nothing is lost: the tokens of the faulty round were not
        handed out, and the same call without that text computes them again.
        """
        for item in items:
            self._check(item, rounds)
            if item.num_computed == 0:
                self._store.tails.take(item.tail_row, 0)
        if not items or rounds < 1:
            return
        live = [_live(i, item, rounds) for i, item in enumerate(items)]
        with self._timings.stage("round"):
            current = self._launch_first(live)
            ahead = self._launch_ahead(current)
            tokens = current.tokens.tolist()
        while True:
            _hand_out(current, tokens, after_round)
            going = [t for t in current.texts if not t.ended]
            if not going:
                return
            with self._timings.stage("round"):
                current = ahead if ahead is not None else self._launch_next(current, going)
                ahead = self._launch_ahead(current)
                tokens = current.tokens.tolist()

    def _check(self, item: DecodeItem, rounds: int) -> None:
        shape = self._store.shape
        gained = min(rounds, item.max_tokens)
        if gained < 1 and rounds > 0:
            raise RequestFault(item.request_id, f"max_tokens must be at least 1, got {item.max_tokens}")
        need = item.num_computed + len(item.pending) + gained - 1
        if need > shape.tail_len or item.context_len > shape.context_len:
            raise RequestFault(item.request_id, f"the text needs {need} tail positions, there are {shape.tail_len}")
        if not item.pending and item.num_computed:
            raise RequestFault(item.request_id, "a text that has begun needs a pending token")
        length, open_from = self._store.lengths[item.context_row], self._store.open_from[item.context_row]
        if not open_from <= item.context_len <= length or (not item.pending and item.context_len != length):
            where = f"from {open_from} to {length} (with a prompt of its own) or at {length}"
            raise RequestFault(item.request_id, f"a text may begin behind {where} tokens, not {item.context_len}")
        check_ids(item.request_id, item.pending, self._model.spec.vocab_size)

    def _launch_first(self, live: Sequence[Live]) -> Round:
        """The first round: every kind of text. Token order: one pending, several pending, none pending."""
        single = sorted((t for t in live if len(t.item.pending) == 1), key=_by_context)
        ragged = [t for t in live if len(t.item.pending) > 1]
        fresh = [t for t in live if not t.item.pending]
        hidden: list[Tensor] = []
        if single and not ragged:
            hidden.append(self._hidden_of(single, self._integers([t.item.pending[0] for t in single])))
        elif ragged:
            hidden.append(self._hidden_with_tails(single, ragged))
        if fresh:
            hidden.append(self._store.last_hidden.index_select(0, self._integers([t.item.context_row for t in fresh])))
        order = [*single, *ragged, *fresh]
        return self._finish(order, hidden[0] if len(hidden) == 1 else torch.cat(hidden), first=True)

    def _launch_ahead(self, current: Round) -> Round | None:
        """The next round of all that may have one, before this one's tokens are known."""
        going = [t for t in current.texts if t.left > 0 and not t.ended]
        return self._launch_next(current, going) if self.lookahead and going else None

    def _launch_next(self, current: Round, going: Sequence[Live]) -> Round:
        """One more token for the texts of `going`, each on its token of `current`."""
        order = sorted(going, key=_by_context)
        same = len(order) == len(current.texts) and all(a is b for a, b in zip(order, current.texts, strict=True))
        if same:
            tokens = current.tokens
        else:
            at = {id(t): i for i, t in enumerate(current.texts)}
            tokens = current.tokens.index_select(0, self._integers([at[id(t)] for t in order]))
        if self.lookahead:
            tokens = tokens.clamp(min=0)  # a faulty text's token is no index; the fault shows when its round is read
        static = self._static(order)
        if static is not None:
            return self._finish(order, self._replay(static, order, tokens), like=current if same else None)
        attend, positions = (current.attend, current.positions) if same else (None, None)
        if attend is None or positions is None:
            attend, positions = self._eager_state(order)
        else:
            attend.advance()
            positions += 1
        hidden = self._trunk(tokens, positions, attend)
        done = self._finish(order, hidden, like=current if same else None)
        done.attend, done.positions = attend, positions
        return done

    def _finish(self, order: list[Live], hidden: Tensor, like: Round | None = None, first: bool = False) -> Round:
        """Head and sampling. Counts the texts up: what was pending is computed, one more token is drawn."""
        sampling = (
            SamplingRows.of([t.item.sampling for t in order], self._store.device) if like is None else like.sampling
        )
        draws = None
        if sampling.drawn is not None:
            draws = self._integers([t.drawn for t in order])
        tokens = sample(self._model.logits(hidden), sampling, draws, self.forbidden, self._eos_ids)
        for t in order:
            t.computed += len(t.item.pending) if first else 1
            t.drawn += 1
            t.left -= 1
        return Round(order, tokens, sampling)

    def _hidden_of(self, order: Sequence[Live], tokens: Tensor) -> Tensor:
        """One pending token each -> hidden states [n, width]. `order` is sorted by context row."""
        static = self._static(order)
        if static is not None:
            return self._replay(static, order, tokens)
        attend, positions = self._eager_state(order)
        return self._trunk(tokens, positions, attend)

    def _eager_state(self, order: Sequence[Live]) -> tuple[DecodeAttend | NativeAttend, Tensor]:
        attend = decode_attend(self._store, [t.place() for t in order])
        return attend, self._integers([self._next(t) for t in order])

    def _next(self, text: Live) -> int:
        """Position of the text's next token."""
        return self._store.position(text.item.context_row, text.item.context_len + text.computed)

    def _trunk(self, tokens: Tensor, positions: Tensor, attend: DecodeAttend | NativeAttend) -> Tensor:
        return self._model.trunk(self._model.embed_tokens(tokens), self._model.rope(positions), attend)

    def _hidden_with_tails(self, single: Sequence[Live], ragged: Sequence[Live]) -> Tensor:
        """Texts with one pending token and prompt tails in one pass -> one hidden state per text, [n, width]."""
        ids = [t.item.pending[0] for t in single]
        positions = [self._next(t) for t in single]
        keep = list(range(len(single)))
        segments: list[TailSegment] = []
        for t in ragged:
            count = len(t.item.pending)
            segments.append(TailSegment(t.item.context_row, t.item.context_len, t.item.tail_row, t.computed, count))
            ids += t.item.pending
            positions += range(self._next(t), self._next(t) + count)
            keep.append(len(ids) - 1)
        attend: Any = TailAttend(self._store, segments, self._scratch)
        if single:
            attend = JointAttend(decode_attend(self._store, [t.place() for t in single]), len(single), attend)
        x = self._model.embed_tokens(self._integers(ids))
        return self._model.trunk(x, self._model.rope(self._integers(positions)), attend, self._integers(keep))

    def _static(self, order: Sequence[Live]) -> StaticRound | None:
        if not self._graphs.enabled:
            return None
        key = round_key([t.place() for t in order], self._store)
        static = self._graphs.get(key, lambda: StaticRound(self._model, self._store, key))
        return static if isinstance(static, StaticRound) else None

    def _replay(self, static: StaticRound, order: Sequence[Live], tokens: Tensor) -> Tensor:
        static.load([t.place() for t in order])
        static.tokens[: len(order)] = tokens
        static.replay()
        return static.hidden[: len(order)]

    def _integers(self, values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self._store.device)


def _live(index: int, item: DecodeItem, rounds: int) -> Live:
    gained = min(item.max_tokens, rounds)
    return Live(index, item, item.num_computed, item.num_generated, left=gained, owed=gained)


def _by_context(text: Live) -> tuple[int, int]:
    return text.item.context_row, text.item.tail_row


def _hand_out(current: Round, tokens: Sequence[int], after_round: AfterRound) -> None:
    """Give a round's tokens to the caller in item order and mark the texts that end."""
    got = sorted(
        ((t, token) for t, token in zip(current.texts, tokens, strict=True) if not t.ended),
        key=lambda pair: pair[0].index,
    )
    for t, token in got:
        if token == FAULTY:
            raise RequestFault(t.item.request_id, "the logits of the text are not finite")
    going = after_round([token for _, token in got])
    if len(going) != len(got):
        raise ValueError(f"after_round answered for {len(going)} of {len(got)} texts")
    for (t, _), goes_on in zip(got, going, strict=True):
        t.owed -= 1
        t.ended = not goes_on or t.owed <= 0
