"""Noise levels: the law of many exact paths at once, the keep coin, Gaussian averages, the grid.

Samples have fixed seeds. A chi-square rejects at 1e-6 and there are ten of them, so a correct
library fails here about once in 100,000 changes of all seeds.
"""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from expost import SimulationRandomness
from expost.analytics.refinement_noise import (
    MOST_LEVELS,
    GaussianLevels,
    LaplaceLevels,
    geometric_grid,
)
from expost.errors import InvalidInput
from expost.randomness.coins import KeepLaw
from expost.randomness.samplers import keep_coins, laplace_paths
from tests.analytics import laws

FALSE_ALARM = 1e-6
PATHS = 200_000
COSTS = (0.4, 0.7, 1.1)
VALUES = np.arange(-60, 61)


def goodness(observed: np.ndarray, expected: np.ndarray) -> float:
    """p-value of counts against expected ones.

    Cells of less than ten are one cell, together with all that lies outside.
    """
    large = expected >= 10
    rest = (observed.sum() - observed[large].sum(), observed.sum() - expected[large].sum())
    seen, due = np.append(observed[large], rest[0]), np.append(expected[large], rest[1])
    return float(stats.chisquare(seen, due * seen.sum() / due.sum()).pvalue)


@pytest.fixture(scope="module")
def paths() -> np.ndarray:
    return laplace_paths([1 / Fraction(cost) for cost in COSTS], PATHS, SimulationRandomness(1))


@pytest.mark.parametrize(("coarse", "fine"), [(0.4, 0.7), (0.05, 1.0), (3.0, 3.1), (0.5, 8.0)])
def test_the_kernel_turns_the_finer_law_into_the_coarser_one(coarse, fine):
    """By enumeration.

    Catches a keep coin that is off, for which no level but the finest would have its law.
    """
    reach = np.arange(-int(60 / coarse), int(60 / coarse) + 1)
    made = laws.laplace(fine, reach) @ laws.kernel(coarse, fine, reach)
    inner = np.abs(reach) < 20 / coarse  # the window cuts off e^{−40}
    np.testing.assert_allclose(made[inner], laws.laplace(coarse, reach)[inner], rtol=1e-9)


@pytest.mark.parametrize("level", range(3))
def test_each_level_has_the_discrete_laplace_law(paths, level):
    """Catches a wrong scale, levels in the wrong order, and noise that is rounded instead of drawn
    on the integers.
    """
    observed = np.array([(paths[level] == value).sum() for value in VALUES])
    assert goodness(observed, PATHS * laws.laplace(COSTS[level], VALUES)) > FALSE_ALARM


@pytest.mark.parametrize("pair", [(0, 1), (1, 2), (0, 2)])
def test_two_levels_have_the_joint_law(paths, pair):
    """Catches levels that are independent, or coupled with another coin.

    (0, 2) is two steps of the kernel.
    """
    coarse, fine = pair
    step = laws.kernel(COSTS[1], COSTS[2], VALUES)
    step = (
        step @ laws.kernel(COSTS[0], COSTS[1], VALUES)
        if pair == (0, 2)
        else laws.kernel(COSTS[coarse], COSTS[fine], VALUES)
    )
    law = laws.laplace(COSTS[fine], VALUES)[:, None] * step
    places = np.clip(paths + 60, 0, 120)
    observed = np.bincount(places[fine] * 121 + places[coarse], minlength=121**2).reshape(121, 121)
    assert goodness(observed.ravel(), PATHS * law.ravel()) > FALSE_ALARM


def test_three_levels_have_the_joint_law(paths):
    """Catches a chain that is not Markov.

    The coarsest level made from the finest once more, instead of from the middle one.
    """
    near = range(-4, 5)
    triples = list(product(near, repeat=3))
    observed = np.array([np.equal(paths.T, triple).all(axis=1).sum() for triple in triples])
    rest = PATHS - observed.sum()
    expected = PATHS * np.array([laws.path(COSTS, triple) for triple in triples])
    assert (
        goodness(np.append(observed, rest), np.append(expected, PATHS - expected.sum()))
        > FALSE_ALARM
    )


def test_all_levels_together_cost_the_finest():
    """By enumeration.

    The joint chance of any path changes by exactly e^{±ε_n} when the count moves by one.
    """
    for triple in product(range(-5, 6), repeat=3):
        moved = tuple(each - 1 for each in triple)
        ratio = math.log(laws.path(COSTS, triple) / laws.path(COSTS, moved))
        assert abs(ratio) == pytest.approx(COSTS[-1], rel=1e-9)


def test_the_joint_law_is_rejected_where_levels_are_independent(paths):
    """The test of the test: marginals alone would pass."""
    places = np.clip(np.array([paths[0], np.roll(paths[1], 1)]) + 60, 0, 120)
    observed = np.bincount(places[1] * 121 + places[0], minlength=121**2)
    law = laws.laplace(COSTS[1], VALUES)[:, None] * laws.kernel(COSTS[0], COSTS[1], VALUES)
    assert goodness(observed, PATHS * law.ravel()) < FALSE_ALARM


rates = st.fractions(min_value=Fraction(1, 10**9), max_value=50)


@given(rates, rates)
def test_the_keep_law_brackets_its_probability(one, other):
    """Catches a formula that is off, or a bracket that does not hold the number.

    Against 120 digits of decimal.
    """
    if one == other:
        return
    coarse, fine = min(one, other), max(one, other)
    with localcontext(prec=120):
        a, b = ((-(Decimal(rate.numerator) / rate.denominator)).exp() for rate in (coarse, fine))
        exact = b / a * ((1 - a) / (1 - b)) ** 2
        kept, other_way = KeepLaw(coarse, fine).masses(40)
        assert kept[0] <= exact <= kept[1]
        assert other_way[0] <= 1 - exact <= other_way[1]
        assert kept[1] - kept[0] <= exact * Decimal("1e-20")


@pytest.mark.parametrize(("coarse", "fine"), [("1/10", "1/7"), ("1/1000", "2"), ("3", "10/3")])
def test_keep_coins_fall_as_often_as_they_should(coarse, fine):
    """Catches coins thrown with the arguments swapped, or True for 'drop'."""
    coins = keep_coins(Fraction(coarse), Fraction(fine), PATHS, SimulationRandomness(2))
    chance = laws.keep(float(Fraction(coarse)), float(Fraction(fine)))
    assert stats.binomtest(int(coins.sum()), PATHS, chance).pvalue > FALSE_ALARM


def test_estimates_are_counts_plus_a_path():
    """Catches noise that is shared between groups, and counts added to the wrong group."""
    levels, counts = LaplaceLevels(COSTS), np.array([0, 10, 10**6])
    seen = levels.estimates(counts, SimulationRandomness(3))
    np.testing.assert_array_equal(
        seen - counts, laplace_paths([1 / Fraction(c) for c in COSTS], 3, SimulationRandomness(3))
    )
    assert seen.shape == (3, 3)


RHOS = (0.02, 0.05, 0.3, 2.0)
GROUPS = 100_000


@pytest.fixture(scope="module")
def noise() -> np.ndarray:
    return GaussianLevels(RHOS).estimates(np.zeros(GROUPS, dtype=np.int64), SimulationRandomness(4))


class TestGaussian:
    """Averages of independent discrete Gaussians, weighted by what each cost."""

    def test_variances(self, noise):
        """Var = Σ w²·Var(release), close to 1/(2ρ).

        Within 6 standard errors, √(2/N) each. Catches weights or increments that are off.
        """
        reach = np.arange(-200, 201)
        variance = before = 0.0
        for level, cost in enumerate(RHOS):
            increment = cost - before
            release = float((laws.gaussian(1 / (2 * increment), reach) * reach**2).sum())
            variance = ((before / cost) ** 2 * variance if level else 0.0) + (
                increment / cost
            ) ** 2 * release
            assert noise[level].var() == pytest.approx(variance, rel=6 * math.sqrt(2 / GROUPS))
            assert variance == pytest.approx(1 / (2 * cost), rel=0.06)
            assert abs(noise[level].mean()) < 6 * math.sqrt(variance / GROUPS)
            before = cost

    def test_coarser_levels_are_finer_ones_plus_something_independent(self, noise):
        """Cov(Z_m, Z_n) = Var(Z_n) for n finer.

        Catches levels that share nothing, or a running average that forgets.
        """
        for coarse, fine in ((0, 1), (1, 2), (0, 3)):
            error = 6 * math.sqrt(2 * noise[coarse].var() * noise[fine].var() / GROUPS)
            assert np.cov(noise[coarse], noise[fine])[0, 1] == pytest.approx(
                noise[fine].var(), abs=error
            )

    def test_each_release_is_a_whole_number(self, noise):
        """What is private is the list of releases.

        Catches continuous noise, which floats cannot make private.
        """
        before = np.zeros(GROUPS)
        spent = 0.0
        for level, cost in enumerate(RHOS):
            release = (noise[level] * cost - before) / (cost - spent)
            np.testing.assert_allclose(release, np.round(release), atol=1e-6)
            before, spent = noise[level] * cost, cost


class TestGrid:
    """first, first·ratio, … and last."""

    @given(st.floats(1e-6, 1e3), st.floats(1.0, 1e6), st.floats(1.05, 10))
    def test_ascends_from_first_to_last_in_steps_of_at_most_the_ratio(self, first, factor, ratio):
        """Catches a last step that is too long, a level that is there twice, and a grid beyond its
        end.
        """
        last = first * factor
        grid = geometric_grid(first, last, ratio)
        assert grid[-1] == last
        assert grid[0] == first or (len(grid) == 1 and last <= first * (1 + 1e-8))
        assert all(a < b <= a * ratio * (1 + 1e-8) for a, b in pairwise(grid))

    @pytest.mark.parametrize("ratio", [1, 1.0, 0.5, 0, -2, math.nan, math.inf, "2", None, True])
    def test_a_ratio_of_at_most_one_is_refused(self, ratio):
        with pytest.raises(InvalidInput, match="ratio"):
            geometric_grid(0.1, 1, ratio)

    @pytest.mark.parametrize("level", [0, -1, math.nan, math.inf])
    def test_levels_are_positive_numbers(self, level):
        for first, last in ((level, 1.0), (1.0, level)):
            with pytest.raises(InvalidInput, match="level"):
                geometric_grid(first, last, 2)

    def test_too_many_levels_are_refused(self):
        """Catches a ratio of 1.0000001 that fills the memory."""
        with pytest.raises(InvalidInput, match=f"at most {MOST_LEVELS} levels"):
            geometric_grid(1e-3, 10, 1.001)
        assert len(geometric_grid(1e-3, 10, 1.03)) <= MOST_LEVELS

    def test_a_grid_that_starts_beyond_its_end_is_one_level(self):
        assert geometric_grid(5, 2, 1.5) == (2.0,)
