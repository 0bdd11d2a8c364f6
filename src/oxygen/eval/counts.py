"""Counts with their intervals."""

from __future__ import annotations

import math
from dataclasses import dataclass

Z95 = 1.959963984540054


@dataclass(frozen=True, slots=True)
class Count:
    """`hits` of `total`."""

    hits: int
    total: int

    @property
    def rate(self) -> float:
        return self.hits / self.total if self.total else math.nan

    def interval(self) -> tuple[float, float]:
        """95 % interval of the rate (Wilson, JASA 1927); (0, 1) where nothing was counted."""
        if self.total == 0:
            return 0.0, 1.0
        n, p, z2 = self.total, self.rate, Z95**2
        middle = (p + z2 / (2 * n)) / (1 + z2 / n)
        half = Z95 / (1 + z2 / n) * math.sqrt(p * (1 - p) / n + z2 / (4 * n * n))
        return max(0.0, middle - half), min(1.0, middle + half)

    def __add__(self, other: Count) -> Count:
        return Count(self.hits + other.hits, self.total + other.total)

    def __str__(self) -> str:
        low, high = self.interval()
        return f"{self.hits}/{self.total} = {100 * self.rate:.1f} % [{100 * low:.1f}, {100 * high:.1f}]"

    def to_dict(self) -> dict[str, object]:
        low, high = self.interval()
        rate = None if self.total == 0 else round(self.rate, 4)
        return {"hits": self.hits, "total": self.total, "rate": rate, "interval": [round(low, 4), round(high, 4)]}


def count(flags: list[bool]) -> Count:
    return Count(sum(flags), len(flags))
