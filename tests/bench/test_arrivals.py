from __future__ import annotations

import math

import pytest

from oxygen.bench.arrivals import CYCLE, fluctuating, live_texts, max_live, mixture, poisson, steady, uniform


def test_uniform_spreads_texts_evenly() -> None:
    assert [len(f) for f in uniform(8, 30, 0.5)] == [0, 1] * 4
    assert [len(f) for f in uniform(4, 30, 2.0)] == [2] * 4
    assert sum(len(f) for f in uniform(100, 30, 0.3)) == 30


def test_poisson_has_its_mean_and_is_reproducible() -> None:
    counts = [len(f) for f in poisson(4000, 7, 1.5, seed=3)]
    assert sum(counts) / 4000 == pytest.approx(1.5, abs=0.1)
    assert sum((c - 1.5) ** 2 for c in counts) / 4000 == pytest.approx(1.5, abs=0.15)  # its variance is its mean
    assert poisson(50, 7, 1.5, seed=3) == poisson(50, 7, 1.5, seed=3)


def test_mixture_has_its_share() -> None:
    lengths = [f[0] for f in mixture(2000, 10, 50, 0.2)]
    assert set(lengths) == {10, 50}
    assert lengths.count(50) / 2000 == pytest.approx(0.2, abs=0.03)


@pytest.mark.parametrize("k", [1, 2, 5])
def test_fluctuating_repeats_and_reaches_forty(k: int) -> None:
    pattern = fluctuating(10 * CYCLE, k)
    live = live_texts(pattern, k)
    assert max(live) == 40
    assert pattern[CYCLE : 2 * CYCLE] == pattern[8 * CYCLE : 9 * CYCLE]
    assert live[CYCLE : 2 * CYCLE] == live[8 * CYCLE : 9 * CYCLE]
    assert len({len(f) for f in pattern}) > 3 and len({n for f in pattern for n in f}) > 3
    assert all(n % k == 0 for f in pattern for n in f)


@pytest.mark.parametrize(("n", "k"), [(30, 1), (30, 5), (7, 3), (1, 5)])
def test_live_texts_of_steady_arrivals(n: int, k: int) -> None:
    assert max_live(steady(100, n), k) == live_texts(steady(100, n), k)[-1] == math.ceil(n / k)
