"""Normalisation equals openpi's and LeRobot's golden data, refuses what it cannot do, and is undone by its inverse."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from processing.cases import DATA

from oxygen.core.errors import CheckpointError, InvalidInput
from oxygen.processing.normalize import Normalizer
from oxygen.processing.statistics import FieldStatistics, read_statistics

OPENPI = np.load(DATA / "normalization.npz")
LEROBOT = np.load(DATA / "normalization_lerobot.npz")
STATISTICS = read_statistics(DATA / "norm_stats.json", "golden").state
MODES = {"q": "quantile", "z": "zscore"}


def cases(golden: np.lib.npyio.NpzFile) -> list[str]:
    return [key.removesuffix("_in") for key in golden.files if key.endswith("_in")]


def apply(case: str, x: np.ndarray, dialect: str) -> np.ndarray:
    verb, mode = case.split("_")[:2]
    normalizer = Normalizer("state", MODES[mode], dialect, STATISTICS)
    return normalizer.normalize(x) if verb == "normalize" else normalizer.unnormalize(x)


@pytest.mark.parametrize("case", cases(OPENPI))
def test_equals_openpi_bit_for_bit(case: str) -> None:
    result = apply(case, OPENPI[f"{case}_in"], "openpi")
    assert result.dtype == np.float64
    assert np.array_equal(result, OPENPI[f"{case}_out"])


@pytest.mark.parametrize("case", cases(LEROBOT))
def test_equals_lerobot(case: str) -> None:
    result = apply(case, LEROBOT[f"{case}_in"], "lerobot")
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, LEROBOT[f"{case}_out"], rtol=3e-7, atol=3e-7)


def test_golden_statistics_are_those_of_the_goldens() -> None:
    for name in ("mean", "std", "q01", "q99"):
        assert np.array_equal(getattr(STATISTICS, name), OPENPI[name])


@pytest.mark.parametrize("mode", ["quantile", "zscore"])
def test_widths_that_do_not_fit_are_refused(mode: str) -> None:
    normalizer = Normalizer("actions", mode, "openpi", STATISTICS)
    with pytest.raises(InvalidInput, match="at most 8"):
        normalizer.normalize(np.zeros(9))
    with pytest.raises(InvalidInput, match="at least 8"):
        normalizer.unnormalize(np.zeros((4, 7)))


def test_missing_quantiles_are_refused_not_replaced() -> None:
    only_means = FieldStatistics.read({"mean": [0.0], "std": [1.0], "q01": None, "q99": None}, "x")
    with pytest.raises(CheckpointError, match="q01 and q99"):
        Normalizer("state", "quantile", "openpi", only_means)
    with pytest.raises(CheckpointError, match="min and max"):
        Normalizer("state", "minmax", "lerobot", only_means)


def test_values_outside_the_range_pass_unclamped() -> None:
    normalizer = Normalizer("state", "quantile", "openpi", FieldStatistics.read({"q01": [-1.0], "q99": [1.0]}, "x"))
    assert normalizer.normalize(np.array([30.0]))[0] == pytest.approx(30, rel=1e-6)


@given(
    st.lists(st.floats(-1e4, 1e4), min_size=1, max_size=8),
    st.sampled_from(["quantile", "zscore", "minmax", "identity"]),
    st.sampled_from(["openpi", "lerobot"]),
)
def test_the_way_back_undoes_the_way_in(values: list[float], mode: str, dialect: str) -> None:
    x = np.array(values)
    low, width = np.linspace(-3, 1, len(x)), np.linspace(0.5, 4, len(x))
    read = {"q01": low, "q99": low + width, "min": low, "max": low + width, "mean": low, "std": width}
    normalizer = Normalizer("state", mode, dialect, FieldStatistics.read(read, "x"))
    back = normalizer.unnormalize(normalizer.normalize(x))
    tolerance = 1e-9 if dialect == "openpi" else 2e-6
    np.testing.assert_allclose(back, x, rtol=tolerance, atol=tolerance * 10)
