"""The table of device rows: contexts are shared by readers, tails belong to one text. Integers only."""

from __future__ import annotations

from collections.abc import Mapping


class Rows:
    """A fixed number of rows. Each is free, or counted once for everyone who reads it."""

    def __init__(self, num_rows: int) -> None:
        self._readers = [0] * num_rows
        self._free = list(range(num_rows))[::-1]
        self._freed: list[int] = []

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_used(self) -> int:
        return len(self._readers) - len(self._free)

    def readers(self, row: int) -> int:
        return self._readers[row]

    def take(self) -> int | None:
        """Return a free row, now with one reader; None when all are taken."""
        if not self._free:
            return None
        self._readers[self._free[-1]] = 1
        return self._free.pop()

    def share(self, row: int) -> None:
        """Count one more reader of a row in use."""
        if not self._readers[row]:
            raise ValueError(f"row {row} is free and cannot be shared")
        self._readers[row] += 1

    def release(self, row: int) -> bool:
        """Count one reader less; True when it was the last one and the row is free again."""
        if not self._readers[row]:
            raise ValueError(f"row {row} is free already")
        self._readers[row] -= 1
        if not self._readers[row]:
            self._free.append(row)
            self._freed.append(row)
        return not self._readers[row]

    def take_freed(self) -> list[int]:
        """Return the rows freed since the last call (some may be taken again), for the device to forget."""
        freed, self._freed = self._freed, []
        return freed

    def check(self, readers: Mapping[int, int]) -> None:
        """Prove that every row is free or held exactly by `readers` (row -> how many the owners know of)."""
        held = {row: count for row, count in enumerate(self._readers) if count}
        assert held == dict(readers), f"counted {held}, held {dict(readers)}"
        assert sorted([*self._free, *held]) == list(range(len(self._readers))), "a row is free and held, or neither"
