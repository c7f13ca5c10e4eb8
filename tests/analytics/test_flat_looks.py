"""Half-widths of histograms at cuts against exact laws; rank and share intervals."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from expost import SimulationRandomness
from expost.analytics import flat_looks
from expost.analytics.flat_looks import (
    FINER,
    Look,
    half_widths,
    rank_bounds,
    share_bounds,
    surely_at_least,
    surely_at_most,
    take_look,
)
from tests.analytics import laws


def noise_law(weights: list[tuple[int, int]], scale: int) -> np.ndarray:
    """P(Σ weight·Z) on the integers −n … n, for integer weights (weight, how many)."""
    reach = 40 * scale
    single = laws.laplace(1 / scale, np.arange(-reach, reach + 1))
    law = np.ones(1)
    for weight, count in weights:
        spread = np.zeros(weight * 2 * reach + 1)
        spread[::weight] = single
        for _ in range(count):
            law = np.convolve(law, spread)
    return law


@pytest.mark.parametrize(("cells", "others"), [(1, 1), (1, 3), (3, 3), (4, 1)])
@pytest.mark.parametrize("miss", [0.05, 0.01])
def test_half_widths_are_valid_and_sharp(cells: int, others: int, miss: float) -> None:
    """u = 1/4: weights 3 and 1 in quarters, against the convolution of discrete noise."""
    scale = 12
    law = noise_law([(3, cells), (1, others)], scale)
    above = np.cumsum(law[::-1])[::-1]  # P(sum ≥ value)
    middle = len(law) // 2
    part = int(0.25 * flat_looks._PARTS)
    width = half_widths("laplace", cells, others, miss)[part]
    tail = above[middle + 1 + int(4 * (width * scale + cells + others)) :][0]
    assert tail <= miss  # with the slack of a step per cell
    wide = above[middle + int(4 * width * scale * 0.94) :][0]
    assert wide > 0.9 * miss  # and hardly wider than it must be


def test_many_cells_are_covered() -> None:
    """200 cells: the normal approximation of the sum, within some percent."""
    width = half_widths("laplace", 100, 100, 0.05)[20]
    assert 1.6 < width / np.sqrt(2 * 200 * 0.25) < 1.85


def test_gaussian_half_widths() -> None:
    width = half_widths("gaussian", 2, 2, 0.05)[20]
    assert 1.645 * np.sqrt(2 * 0.25 * 2) < width < 1.1 * 1.645 * np.sqrt(2 * 0.25 * 2)


def exact_look(*counts: int, rate: int = 10**6) -> Look:
    edges = np.arange(len(counts) + 1)
    return Look(edges, np.array(counts, dtype=float), "laplace", Fraction(rate), 1)


def test_bounds_of_exact_counts() -> None:
    look = exact_look(3000, 1000, 6000)
    low, high = rank_bounds(look, 1, 1, 0.05)
    assert low == pytest.approx(0.3, abs=0.0015)
    assert high == pytest.approx(0.3, abs=0.0015)
    assert rank_bounds(look, 3, 0, 0.05) == (1.0, 0.0)
    low, high = share_bounds(look, 1, 0.05)
    assert (low, high) == (pytest.approx(0.1, abs=0.0015), pytest.approx(0.1, abs=0.0015))
    assert surely_at_least(look, 1, 0.29, 0.05)
    assert not surely_at_least(look, 1, 0.31, 0.05)
    assert surely_at_most(look, 1, 0.31, 0.05)
    assert not surely_at_most(look, 1, 0.29, 0.05)


def test_an_empty_group_says_nothing() -> None:
    look = exact_look(0, 0, rate=1)
    assert rank_bounds(look, 1, 1, 0.05) == (0.0, 1.0)
    assert share_bounds(look, 0, 0.05) == (0.0, 1.0)


@pytest.mark.parametrize("law", ["laplace", "gaussian"])
def test_coverage(law: str) -> None:
    """800 looks; a bound that misses with 0.05 is beyond 68 with a chance below 1e-6."""
    source, true = SimulationRandomness(11), np.array([60, 40, 100])
    rate = Fraction(1, 4) if law == "laplace" else Fraction(1, 50)
    missed = np.zeros(4)
    for _ in range(800):
        look = take_look(np.arange(4), true, law, rate, 1, source)
        low, high = rank_bounds(look, 2, 1, 0.05)
        first, last = share_bounds(look, 1, 0.05)
        missed += [low > 0.5, high < 0.3, first > 0.2, last < 0.2]
    assert max(missed) <= 73  # binomial(800, 0.05) exceeds it with probability 3e-7
    assert max(missed) >= 15  # and the bounds are not idle: with 0.04 below 15 has 2e-4, seeded


def test_noise_is_that_of_the_rate() -> None:
    """Discrete Laplace noise of scale rows·FINER/rate in steps: its second moment, seeded."""
    source = SimulationRandomness(2)
    look = take_look(
        np.arange(4001), np.zeros(4000, dtype=np.int64), "laplace", Fraction(1, 2), 3, source
    )
    assert look.scale == 6
    steps = look.counts * FINER
    assert np.array_equal(steps, np.round(steps))
    assert np.mean(look.counts**2) == pytest.approx(2 * 36, rel=0.15)
