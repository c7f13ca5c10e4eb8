"""The samplers against laws computed by scipy or by hand: chi-square, 10^4 to 10^6 seeded draws.

Each test rejects at 1e-6. There are about 40, so a correct library fails one of them once in 25,000
changes of all seeds. The exact tests in ``tests/randomness`` show the laws. These tests would catch
what the exact tests cannot see, such as draws that depend on each other, a source that repeats, or
a table that is built wrongly at full size.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy import special, stats

from expost.randomness import coins, samplers
from expost.randomness.source import Randomness, SimulationRandomness
from tests.statistical.goodness import alike, fit, fit_between

FALSE_ALARM = 1e-6
MANY = 1_000_000
SOME = 50_000
FEW = 12_000

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


def repeated(draw: Callable[[Randomness], int], count: int, seed: int) -> Integers:
    source = SimulationRandomness(seed)
    return np.array([draw(source) for _ in range(count)], dtype=np.int64)


def geometric_law(rate: float) -> Callable[[Integers], Floats]:
    return lambda k: -np.expm1(-rate) * np.exp(-rate * k)


def laplace_law(scale: float) -> Callable[[Integers], Floats]:
    return lambda y: np.tanh(0.5 / scale) * np.exp(-np.abs(y) / scale)


def gaussian_law(variance: float) -> Callable[[Integers], Floats]:
    reach = np.arange(-int(40 * variance**0.5) - 40, int(40 * variance**0.5) + 41)
    total = np.exp(-(reach**2) / (2 * variance)).sum()
    return lambda y: np.exp(-(y**2) / (2 * variance)) / total


def papernot_steinke_law(shape: float, gamma: float) -> Callable[[Integers], Floats]:
    def mass(k: Integers) -> Floats:
        if shape == 0:
            return (1 - gamma) ** k / (k * np.log(1 / gamma))
        return (
            (1 - gamma) ** k / (gamma**-shape - 1) * special.poch(shape, k) / special.factorial(k)
        )

    return mass


# One draw at a time


@pytest.mark.parametrize(
    "probability", [Fraction(1, 2), Fraction(1, 1000), Fraction(12345, 2**20 + 7)]
)
def test_bernoulli(probability: Fraction) -> None:
    """Would catch a biased coin."""
    draws = repeated(lambda r: coins.bernoulli(probability, r), SOME, 101)
    assert stats.binomtest(int(draws.sum()), SOME, float(probability)).pvalue > FALSE_ALARM


@pytest.mark.parametrize(
    "x", [Fraction(1, 3), Fraction(1), Fraction(5, 2), Fraction(1, 10**6), Fraction(0.7)]
)
def test_bernoulli_exp(x: Fraction) -> None:
    """Would catch a biased e^{−x} coin, large denominators (a float's) included."""
    draws = repeated(lambda r: coins.bernoulli_exp(x, r), SOME, 102)
    assert stats.binomtest(int(draws.sum()), SOME, float(np.exp(-float(x)))).pvalue > FALSE_ALARM


@pytest.mark.parametrize("rate", [Fraction(1, 10), Fraction(2, 3), Fraction(0.3)])
def test_geometric(rate: Fraction) -> None:
    """Would catch a wrong rate or a wrong start."""
    draws = repeated(lambda r: coins.geometric(rate, r), SOME, 103)
    assert fit(draws, geometric_law(float(rate)), 0, int(30 / rate)) > FALSE_ALARM


def test_geometric_of_tiny_rate() -> None:
    """Would catch blocks put together wrongly: mean 10^9, 60 cells of equal mass."""
    draws = repeated(lambda r: coins.geometric(Fraction(1, 10**9), r), FEW, 104)
    edges = np.floor(-1e9 * np.log1p(-np.arange(1, 60) / 60)).astype(np.int64)
    assert fit_between(draws, lambda e: -np.expm1(-(e + 1) / 1e9), edges) > FALSE_ALARM


@pytest.mark.parametrize("scale", [Fraction(1, 2), Fraction(7, 2), Fraction(20)])
def test_discrete_laplace(scale: Fraction) -> None:
    """Would catch a wrong scale or a doubled zero."""
    draws = repeated(lambda r: coins.discrete_laplace(scale, r), SOME, 105)
    reach = int(30 * scale) + 5
    assert fit(draws, laplace_law(float(scale)), -reach, reach + 1) > FALSE_ALARM


@pytest.mark.slow
@pytest.mark.parametrize("variance", [Fraction(1, 3), Fraction(25, 4), Fraction(400)])
def test_discrete_gaussian(variance: Fraction) -> None:
    """Would catch a wrong variance."""
    draws = repeated(lambda r: coins.discrete_gaussian(variance, r), SOME, 106)
    reach = int(12 * float(variance) ** 0.5) + 3
    assert fit(draws, gaussian_law(float(variance)), -reach, reach + 1) > FALSE_ALARM


@pytest.mark.parametrize(
    ("trials", "x"), [(10, Fraction(1, 2)), (1000, Fraction(5)), (500, Fraction(1))]
)
def test_binomial(trials: int, x: Fraction) -> None:
    """Would catch a wrong success probability; the last one is a sum of several blocks."""
    count = FEW if trials != 500 else FEW // 6
    draws = repeated(lambda r: coins.binomial_exp(trials, x, r), count, 107)
    assert (
        fit(draws, lambda k: stats.binom.pmf(k, trials, np.exp(-float(x))), 0, trials + 1)
        > FALSE_ALARM
    )


@pytest.mark.parametrize("mean", [Fraction(3, 2), Fraction(75)])
def test_poisson(mean: Fraction) -> None:
    """Would catch a wrong mean; the second is a sum of three blocks."""
    draws = repeated(lambda r: coins.poisson(mean, r), FEW // 2, 108)
    assert fit(draws, lambda k: stats.poisson.pmf(k, float(mean)), 0, 400) > FALSE_ALARM


@pytest.mark.parametrize("shape", [Fraction(-1, 2), Fraction(0), Fraction(1, 2), Fraction(1)])
def test_truncated_negative_binomial(shape: Fraction) -> None:
    """Would catch a wrong shape or γ."""
    draws = repeated(
        lambda r: coins.truncated_negative_binomial(shape, Fraction(1, 5), r), FEW, 109
    )
    assert fit(draws, papernot_steinke_law(float(shape), 0.2), 1, 120) > FALSE_ALARM


def test_subset() -> None:
    """Would catch a favoured set."""
    source = SimulationRandomness(110)
    counts = Counter(tuple(coins.subset(6, 3, source)) for _ in range(FEW))
    assert (
        stats.chisquare([counts[chosen] for chosen in combinations(range(6), 3)]).pvalue
        > FALSE_ALARM
    )


def test_below() -> None:
    """Would catch a biased bound at full speed."""
    draws = repeated(lambda r: r.below(37), SOME, 111)
    assert stats.chisquare(np.bincount(draws, minlength=37)).pvalue > FALSE_ALARM


# Many at once


@pytest.mark.parametrize("rate", [Fraction(5), Fraction(2, 3), Fraction(1, 50)])
def test_vectorised_geometric(rate: Fraction) -> None:
    """Would catch a table that is off anywhere it is looked up."""
    draws = samplers.geometrics(rate, MANY, SimulationRandomness(201))
    assert fit(draws, geometric_law(float(rate)), 0, int(30 / rate) + 3) > FALSE_ALARM


@pytest.mark.parametrize("scale", [500, 10**6, 2**50])
def test_vectorised_geometric_of_large_scale(scale: int) -> None:
    """Would catch digits that are wrong or depend on each other.

    60 cells of equal mass, and the low digit given the rest.
    """
    draws = samplers.geometrics(Fraction(1, scale), MANY, SimulationRandomness(202))
    edges = np.floor(-scale * np.log1p(-np.arange(1, 60) / 60)).astype(np.int64)
    assert fit_between(draws, lambda e: -np.expm1(-(e + 1.0) / scale), edges) > FALSE_ALARM
    low, above = draws % 4096, draws // 4096
    size = 4096 // 32
    law = np.exp(-np.arange(32) * size / scale)
    for half in (
        above % 2 == 0,
        above % 2 == 1,
    ):  # within a block of 4,096 the law does not depend on the block
        counts = np.bincount(low[half] // size, minlength=32)
        if counts.sum() > 10_000:
            keep = law / law.sum() * counts.sum() >= 25
            assert (
                stats.chisquare(
                    counts[keep], law[keep] / law[keep].sum() * counts[keep].sum()
                ).pvalue
                > FALSE_ALARM
            )


@pytest.mark.parametrize("scale", [Fraction(1, 3), Fraction(7, 2), Fraction(100)])
def test_vectorised_laplace(scale: Fraction) -> None:
    """Would catch a wrong scale, or two geometric draws that are not independent."""
    draws = samplers.discrete_laplaces(scale, MANY, SimulationRandomness(203))
    reach = int(30 * scale) + 5
    assert fit(draws, laplace_law(float(scale)), -reach, reach + 1) > FALSE_ALARM


@pytest.mark.parametrize("variance", [Fraction(1, 3), Fraction(25, 4), Fraction(10**4)])
def test_vectorised_gaussian(variance: Fraction) -> None:
    """Would catch a wrong variance or fold."""
    draws = samplers.discrete_gaussians(variance, MANY, SimulationRandomness(204))
    reach = int(12 * float(variance) ** 0.5) + 3
    assert fit(draws, gaussian_law(float(variance)), -reach, reach + 1) > FALSE_ALARM


def test_vectorised_draws_do_not_depend_on_each_other() -> None:
    """Would catch words used twice: neighbouring draws are independent (a table of 8 × 8)."""
    draws = np.minimum(samplers.geometrics(Fraction(1, 2), MANY, SimulationRandomness(205)), 7)
    table = np.bincount(8 * draws[:-1:2] + draws[1::2], minlength=64).reshape(8, 8)
    assert stats.chi2_contingency(table).pvalue > FALSE_ALARM


def test_scalar_and_vectorised_laplace_agree() -> None:
    """Would catch two samplers of one name with two laws."""
    one = repeated(lambda r: coins.discrete_laplace(Fraction(5, 2), r), SOME, 206)
    many = samplers.discrete_laplaces(Fraction(5, 2), SOME, SimulationRandomness(207))
    assert alike(one, many) > FALSE_ALARM


# Against another library


def opendp_draws(kind: str, scale: float, count: int) -> Integers:
    """OpenDP's noise has no seed: these two tests each fail by chance once in a million runs."""
    dp: Any = pytest.importorskip(
        "opendp.prelude", reason="opendp is not installed: pip install 'expost[opendp]'"
    )
    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T=int))
    if kind == "laplace":
        mechanism = dp.m.make_laplace(space, dp.l1_distance(T=int), scale=scale)
    else:
        mechanism = dp.m.make_gaussian(space, dp.l2_distance(T=int), scale=scale)
    return np.array(mechanism([0] * count), dtype=np.int64)


@pytest.mark.slow
def test_laplace_agrees_with_opendp() -> None:
    """Would catch a scale that means something else than it does to others."""
    mine = samplers.discrete_laplaces(Fraction(7, 2), MANY, SimulationRandomness(301))
    assert alike(mine, opendp_draws("laplace", 3.5, 300_000)) > FALSE_ALARM


@pytest.mark.slow
def test_gaussian_agrees_with_opendp() -> None:
    """Would catch another meaning of variance: OpenDP's scale is the deviation parameter."""
    mine = samplers.discrete_gaussians(Fraction(25, 4), MANY, SimulationRandomness(302))
    assert alike(mine, opendp_draws("gaussian", 2.5, 150_000)) > FALSE_ALARM


# Tests of the tests: a sampler that is off by 1 or 2 % must be rejected


def test_a_scale_off_by_one_percent_is_rejected() -> None:
    """Would catch a chi-square that has no power."""
    draws = samplers.discrete_laplaces(Fraction(101, 100) * 10, MANY, SimulationRandomness(401))
    assert fit(draws, laplace_law(10.0), -300, 301) < FALSE_ALARM


def test_two_samples_whose_scales_differ_by_two_percent_are_told_apart() -> None:
    """The same for two samples, which are half as sharp."""
    wrong = samplers.discrete_laplaces(Fraction(102, 100) * 10, MANY, SimulationRandomness(401))
    right = samplers.discrete_laplaces(Fraction(10), MANY, SimulationRandomness(402))
    assert alike(wrong, right) < FALSE_ALARM


def test_a_variance_off_by_two_percent_is_rejected() -> None:
    """The same for the Gaussian."""
    draws = samplers.discrete_gaussians(Fraction(102, 100) * 25, MANY, SimulationRandomness(403))
    assert fit(draws, gaussian_law(25.0), -60, 61) < FALSE_ALARM


def test_a_large_scale_off_by_one_percent_is_rejected() -> None:
    """The same for cells of equal mass."""
    draws = samplers.geometrics(Fraction(1, 10**6), MANY, SimulationRandomness(404))
    edges = np.floor(-1.01e6 * np.log1p(-np.arange(1, 60) / 60)).astype(np.int64)
    assert fit_between(draws, lambda e: -np.expm1(-(e + 1.0) / 1.01e6), edges) < FALSE_ALARM


def test_a_doubled_zero_is_rejected() -> None:
    """A sampler that forgets to reject −0 is found out by 50,000 draws."""
    source = SimulationRandomness(405)
    size = np.array([coins.geometric(Fraction(2, 7), source) for _ in range(SOME)])
    sign = np.where(source.words(SOME) % np.uint64(2) == 0, 1, -1)
    assert fit(size * sign, laplace_law(3.5), -110, 111) < FALSE_ALARM
