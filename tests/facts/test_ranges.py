"""Ranges of numbers: near the quantiles without noise, and total on any numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from expost.facts.readings import SHARES, DistinctNumbers, Range, find_range

QUANTILES = (0.005, 0.995)


def numbers(values: Any) -> DistinctNumbers:
    distinct, counts = np.unique(np.asarray(values, dtype=float), return_counts=True)
    return DistinctNumbers(distinct, counts.astype(float))


def ranged(values: Any, *, deviation: float = 1e-3, whole: bool = False, seed: int = 0) -> Range:
    """The range of values, with noise of about this standard deviation in total."""
    generator, used = np.random.default_rng(seed), [0.0]
    precision = deviation**-2

    def look(counts: Any, part: float) -> tuple[Any, float]:
        used[0] += part
        noise = 1 / math.sqrt(part)
        return counts + generator.normal(0, noise, len(counts)), noise

    cells = max(1.0, float(len(values)))
    limits = find_range(numbers(values), look, precision, cells, QUANTILES, whole=whole)
    assert used[0] <= precision * (1 + 1e-9)
    return limits


@pytest.mark.parametrize(
    "values",
    [
        np.linspace(0, 100, 5001),
        np.random.default_rng(1).normal(170, 10, 5001),
        np.random.default_rng(2).lognormal(12, 0.5, 5001),
        -np.random.default_rng(3).exponential(3.0, 5001),
        1e9 + np.random.default_rng(4).normal(0, 1e7, 5001),
    ],
)
def test_without_much_noise_bounds_are_near_the_quantiles(values: Any) -> None:
    limits = ranged(values)
    below, above = float(np.mean(values < limits.low)), float(np.mean(values > limits.high))
    assert below < 0.02
    assert above < 0.02
    span = np.quantile(values, 0.995) - np.quantile(values, 0.005)
    assert limits.high - limits.low < 2 * span
    assert np.quantile(values, 0.3) < limits.median < np.quantile(values, 0.7)


def test_a_column_that_is_mostly_zero_has_its_tail_in_the_bounds() -> None:
    values = np.concatenate([np.zeros(9000), np.random.default_rng(1).integers(2000, 9000, 1000)])
    limits = ranged(values, deviation=20, whole=True)
    assert limits.low == 0
    assert 4096 <= limits.high <= 16384


@pytest.mark.parametrize("values", [[], [5], [0, 0, 0], [1e300, -1e300], [-1e-300], [math.pi] * 9])
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("deviation", [1e-3, 1e3])
def test_any_numbers_have_a_range(values: list[float], whole: bool, deviation: float) -> None:
    for seed in range(5):
        limits = ranged(values, deviation=deviation, whole=whole, seed=seed)
        assert -math.inf < limits.low < limits.high < math.inf
        assert limits.low <= limits.median <= limits.high
        assert np.all(np.diff(limits.edges) > 0)


def test_shares_are_a_division() -> None:
    assert sum(SHARES.values()) == pytest.approx(1)


def test_cuts_are_a_partition() -> None:
    some = numbers([1, 2, 2, 3, 5])
    assert some.cut([2.0], [2.0]).tolist() == [1, 2, 2]
    assert some.cut([1.0, 2.0], [3.0, 4.0]).tolist() == [0, 1, 3, 0, 1]
    assert some.cut([], []).tolist() == [5]
