"""Which neighbouring context rows a decode round reads in one batched product. Plain integers.

A run is a range of context rows, every row holding the same number of cells (texts that hang on it). Texts of one
context are cells of one row, so the round reads that context once. Rows in the range that nobody reads, shorter
contexts and rows with fewer texts are padding: a run grows as long as its padding costs less than starting another
one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

RUN_OVERHEAD = 1500
"""Cost of one more run, in positions read (a handful of small operations; measured 2026-11-29: 50 µs, three rows of
550).
"""

CELL_COST = 0.1
"""Cost of each further text of a context, as a share of reading the context."""


@dataclass(frozen=True, slots=True)
class LiveText:
    """One text in a round: `computed` tail positions exist, the round writes the next one."""

    context_row: int
    context_len: int
    tail_row: int
    computed: int


@dataclass(frozen=True, slots=True)
class Run:
    """Context rows start .. stop with `cells` texts each; texts first .. last of the batch (sorted by context row).

    cell_text: text (counted from `first`) in each of the (stop - start) · cells cells; padding repeats text 0.
    text_cell: cell of each text. context_lens: positions that each cell's text reads (padding: the longest).
    """

    start: int
    stop: int
    cells: int
    first: int
    last: int
    context_len: int
    cell_text: tuple[int, ...]
    text_cell: tuple[int, ...]
    context_lens: tuple[int, ...]


def cost(num_rows: int, context_len: int, cells: int) -> float:
    """Positions read, with a surcharge for further texts."""
    return num_rows * context_len * (1.0 + CELL_COST * (cells - 1))


def plan_runs(texts: Sequence[LiveText]) -> list[Run]:
    """Cut texts, sorted by context row, into runs."""
    contexts = [(row, list(group)) for row, group in groupby(texts, key=lambda t: t.context_row)]
    bounds: list[tuple[int, int]] = []
    first = 0
    for i in range(1, len(contexts) + 1):
        if i == len(contexts) or not _joins(contexts, first, i):
            bounds.append((first, i))
            first = i
    runs: list[Run] = []
    done = 0
    for a, b in bounds:
        run = _tight_run(contexts[a:b], done)
        runs.append(run)
        done = run.last
    return runs


def _joins(contexts: Sequence[tuple[int, list[LiveText]]], first: int, i: int) -> bool:
    """Whether context i belongs into the run that began with context `first`."""
    start = contexts[first][0]
    lens = [max(text.context_len for text in group) for _, group in contexts[first : i + 1]]
    cells = [len(group) for _, group in contexts[first : i + 1]]
    apart = cost(contexts[i - 1][0] + 1 - start, max(lens[:-1]), max(cells[:-1])) + cost(1, lens[-1], cells[-1])
    return cost(contexts[i][0] + 1 - start, max(lens), max(cells)) <= apart + RUN_OVERHEAD


def _tight_run(contexts: Sequence[tuple[int, list[LiveText]]], first: int) -> Run:
    texts = [text for _, group in contexts for text in group]
    cells = max(len(group) for _, group in contexts)
    longest = max(text.context_len for text in texts)
    return make_run(texts, contexts[-1][0] + 1, cells, longest, start=contexts[0][0], first=first)


def make_run(
    texts: Sequence[LiveText], stop: int, cells: int, context_len: int, *, start: int = 0, first: int = 0
) -> Run:
    """A run over the rows start .. stop with `cells` cells each, for texts sorted by context row."""
    cell_text = [0] * ((stop - start) * cells)
    context_lens = [context_len] * ((stop - start) * cells)
    text_cell: list[int] = []
    used: dict[int, int] = {}
    for index, text in enumerate(texts):
        row = text.context_row - start
        cell = row * cells + used.get(row, 0)
        used[row] = used.get(row, 0) + 1
        context_lens[cell] = text.context_len
        cell_text[cell] = index
        text_cell.append(cell)
    return Run(
        start=start,
        stop=stop,
        cells=cells,
        first=first,
        last=first + len(texts),
        context_len=context_len,
        cell_text=tuple(cell_text),
        text_cell=tuple(text_cell),
        context_lens=tuple(context_lens),
    )
