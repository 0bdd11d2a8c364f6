"""The next token of every text: greedy, or drawn from (seed, position) of the text alone.

A draw is an integer hash of (seed, position) turned into a number u in [0, 1) and looked up in the cumulative
distribution in vocabulary order. Nothing about the batch enters, and every filter is a threshold on the row's own
logits, so a text draws the same token whoever shares the round. A row whose logits are not finite gets FAULTY: that
text's fault, not the device's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from oxygen.core.tasks import Sampling

FAULTY = -1
"""Stands for the token of a row whose logits hold NaN or infinity."""

_SMALLEST = torch.finfo(torch.float32).tiny  # what is smaller is zero on some device, and would divide or keep nothing
_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as int64: 2^64 over the golden ratio
_MIX_1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
_MIX_2 = -7723592293110705685  # 0x94D049BB133111EB


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """Logical shift of int64 (torch's is arithmetic)."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _mix(x: Tensor) -> Tensor:
    """The finalizer of SplitMix64 (Steele, Lea and Flood, 2014) on int64, which wraps around as uint64 does."""
    x = (x ^ _shift_right(x, 30)) * _MIX_1
    x = (x ^ _shift_right(x, 27)) * _MIX_2
    return x ^ _shift_right(x, 31)


def uniform(seeds: Tensor, positions: Tensor) -> Tensor:
    """u in [0, 1), float64, from int64 seeds and positions (same shape): any position comes at once."""
    bits = _mix(_mix(seeds + _GOLDEN) + (positions + 1) * _GOLDEN)
    return _shift_right(bits, 11).to(torch.float64) * 2.0**-53


@dataclass(frozen=True, slots=True)
class SamplingRows:
    """The sampling settings of a batch on the device, and which rows need what.

    drawn: rows with a temperature, None when all are greedy. The other tensors are aligned with `drawn`. confined: rows
    that may only say ids of a range, or end.
    """

    drawn: Tensor | None
    temperature: Tensor | None = None
    top_k: Tensor | None = None
    max_top_k: int = 0
    nucleus: Tensor | None = None
    top_p: Tensor | None = None
    seeds: Tensor | None = None
    confined: tuple[tuple[int, range], ...] = ()

    @classmethod
    def of(cls, settings: Sequence[Sampling], device: torch.device) -> SamplingRows:
        rows = [i for i, s in enumerate(settings) if s.temperature > 0]
        confined = tuple((i, s.allowed) for i, s in enumerate(settings) if s.allowed is not None)
        if not rows:
            return cls(None, confined=confined)
        drawn = [settings[i] for i in rows]
        nucleus = [i for i, s in enumerate(drawn) if s.top_p < 1]
        max_top_k = max(s.top_k for s in drawn)

        def floats(values: list[float]) -> Tensor:
            return torch.tensor(values, dtype=torch.float32, device=device)

        def integers(values: list[int]) -> Tensor:
            return torch.tensor(values, dtype=torch.int64, device=device)

        return cls(
            drawn=integers(rows),
            temperature=floats([max(s.temperature, _SMALLEST) for s in drawn]),
            top_k=integers([s.top_k for s in drawn]) if max_top_k else None,
            max_top_k=max_top_k,
            nucleus=integers(nucleus) if nucleus else None,
            top_p=floats([max(drawn[i].top_p, _SMALLEST) for i in nucleus]) if nucleus else None,
            seeds=integers([s.seed for s in drawn]),
            confined=confined,
        )


def sample(
    logits: Tensor,
    rows: SamplingRows,
    positions: Tensor | None,
    forbidden: Tensor | None = None,
    eos_ids: Sequence[int] = (),
) -> Tensor:
    """logits [n, vocab] float32 -> tokens [n] int64 (FAULTY where logits are not finite).

    positions [n] int64: number of each text's draw (read for drawn rows only). forbidden [vocab]: additive, -inf
    where a token must not come; a confined row has its own rule. logits may be changed in place.
    """
    kept = [(row, part, logits[row, part].clone()) for row, ids in rows.confined for part in _parts(ids, eos_ids)]
    if forbidden is not None:
        logits = logits.add_(forbidden)
    for row, _ in rows.confined:
        logits[row] = float("-inf")
    for row, part, own in kept:
        logits[row, part] = own
    best, tokens = logits.max(-1)
    if rows.drawn is not None:
        assert positions is not None
        tokens.index_copy_(0, rows.drawn, _draw(logits, best, rows, positions))
    return tokens.masked_fill_(~best.isfinite(), FAULTY)


def _parts(ids: range, eos_ids: Sequence[int]) -> list[slice]:
    return [slice(ids.start, ids.stop), *(slice(i, i + 1) for i in eos_ids)]


def _draw(logits: Tensor, best: Tensor, rows: SamplingRows, positions: Tensor) -> Tensor:
    """One token for every row of `rows.drawn`."""
    assert rows.drawn is not None and rows.temperature is not None and rows.seeds is not None
    scaled = (logits.index_select(0, rows.drawn) - best[rows.drawn, None]) / rows.temperature[:, None]
    if rows.top_k is not None:
        width = min(rows.max_top_k, scaled.shape[1])
        ordered = scaled.topk(width, dim=-1).values
        kept = ordered.gather(1, rows.top_k.clamp(1, width)[:, None] - 1)
        scaled = scaled.masked_fill((scaled < kept) & (rows.top_k > 0)[:, None], float("-inf"))
    if rows.nucleus is not None:
        assert rows.top_p is not None
        part = scaled.index_select(0, rows.nucleus)
        scaled.index_copy_(0, rows.nucleus, part.masked_fill(part < _nucleus_floor(part, rows.top_p), float("-inf")))
    cumulative = scaled.softmax(-1).cumsum(-1, dtype=torch.float64)
    target = uniform(rows.seeds, positions.index_select(0, rows.drawn)) * cumulative[:, -1]
    token = torch.searchsorted(cumulative, target[:, None], right=True)[:, 0]
    return token.clamp_(max=logits.shape[1] - 1)


def _nucleus_floor(scaled: Tensor, top_p: Tensor) -> Tensor:
    """The smallest logit of the smallest set whose probability reaches top_p, [n, 1]."""
    ordered = scaled.sort(-1, descending=True).values
    before = ordered.softmax(-1).cumsum(-1, dtype=torch.float64).roll(1, -1)
    before[:, 0] = 0
    last = (before < top_p[:, None]).sum(-1, keepdim=True) - 1
    return ordered.gather(1, last)
