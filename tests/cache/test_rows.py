"""The row table: free or held, never both, never twice."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oxygen.cache.rows import Rows


def test_rows_are_taken_once_and_run_out():
    rows = Rows(3)
    assert sorted(rows.take() for _ in range(3)) == [0, 1, 2]
    assert rows.take() is None
    assert (rows.num_used, rows.num_free) == (3, 0)
    rows.check({0: 1, 1: 1, 2: 1})


def test_a_shared_row_is_free_only_when_the_last_reader_leaves():
    rows = Rows(1)
    row = rows.take()
    rows.share(row)
    assert rows.readers(row) == 2
    assert not rows.release(row)
    assert rows.take() is None
    assert rows.release(row)
    assert rows.take_freed() == [row]
    assert rows.take_freed() == []
    assert rows.take() == row


def test_free_rows_can_be_neither_shared_nor_released():
    rows = Rows(1)
    with pytest.raises(ValueError, match="free"):
        rows.share(0)
    with pytest.raises(ValueError, match="free"):
        rows.release(0)


def test_check_finds_a_reader_that_the_table_does_not_know():
    rows = Rows(2)
    row = rows.take()
    rows.check({row: 1})
    for wrong in ({}, {row: 2}, {row: 1, 1 - row: 1}):
        with pytest.raises(AssertionError, match="held"):
            rows.check(wrong)


@given(st.integers(1, 5), st.lists(st.sampled_from(["take", "share", "release"]), max_size=60), st.randoms())
def test_the_table_agrees_with_a_bag_of_readers(num_rows, operations, random):
    rows, readers = Rows(num_rows), Counter()
    for operation in operations:
        held = sorted(readers.elements())
        if operation == "take":
            row = rows.take()
            assert (row is None) == (len(set(held)) == num_rows)
            if row is not None:
                assert not readers[row]
                readers[row] += 1
        elif held:
            row = random.choice(held)
            if operation == "share":
                rows.share(row)
                readers[row] += 1
            else:
                readers[row] -= 1
                assert rows.release(row) == (readers[row] == 0)
        rows.check(+readers)
        assert rows.num_used == len(+readers)
