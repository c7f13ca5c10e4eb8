"""Laws known through brackets.

The brackets hold the truth, and a draw by inversion has exactly that law.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import partial
from itertools import combinations, islice, takewhile
from math import comb

import mpmath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import binomial, exp, factorial, jtheta, log, mpf, rf

from expost.randomness import coins
from expost.randomness.coins import (
    BinomialLaw,
    Bracket,
    FoldedGaussianLaw,
    GeometricLaw,
    KeepLaw,
    Law,
    PoissonLaw,
    TruncatedNegativeBinomialLaw,
    binomial_exp,
    invert,
    poisson,
    subset,
    truncated_negative_binomial,
)
from expost.randomness.source import SimulationRandomness
from tests.randomness.bit_tree import assert_law, enumerate_law, rational
from tests.work import lines_run

Truth = Callable[[int], mpf]

HALF, THIRD = Fraction(1, 2), Fraction(1, 3)


def real(value: Fraction) -> mpf:
    return mpf(value.numerator) / value.denominator


def true_mass(law: Law, k: int) -> mpf:
    """Each law from its textbook formula (the code goes by ratios of neighbours)."""
    match law:
        case GeometricLaw(rate, None):
            return (1 - exp(-real(rate))) * exp(-real(rate) * k)
        case GeometricLaw(rate, size):
            return exp(-real(rate) * k) / mpmath.fsum(exp(-real(rate) * j) for j in range(size))
        case BinomialLaw(trials, x):
            p = exp(-real(x))
            return binomial(trials, k) * p**k * (1 - p) ** (trials - k)
        case PoissonLaw(mean):
            return exp(-real(mean)) * real(mean) ** k / factorial(k)
        case TruncatedNegativeBinomialLaw(shape, gamma):
            eta, g, runs = real(shape), real(gamma), k + 1
            if shape == 0:
                return (1 - g) ** runs / (runs * log(1 / g))
            return (1 - g) ** runs / (g**-eta - 1) * rf(eta, runs) / factorial(runs)
        case FoldedGaussianLaw(variance):
            y = (k + 1) // 2
            return exp(-(mpf(y) ** 2) / (2 * real(variance))) / jtheta(
                3, 0, exp(-1 / (2 * real(variance)))
            )
        case KeepLaw(coarse, fine):
            a, b = exp(-real(coarse)), exp(-real(fine))
            keep = (b / a) * ((1 - a) / (1 - b)) ** 2
            return keep if k == 0 else 1 - keep
    raise AssertionError(law)


LAWS: list[Law] = [
    GeometricLaw(THIRD),
    GeometricLaw(Fraction(2)),
    GeometricLaw(THIRD, 5),
    GeometricLaw(Fraction(1, 10**11), 4),
    BinomialLaw(1, THIRD),
    BinomialLaw(9, Fraction(2, 3)),
    BinomialLaw(10**9, Fraction(20)),
    PoissonLaw(THIRD),
    PoissonLaw(Fraction(32)),
    TruncatedNegativeBinomialLaw(-HALF, Fraction(1, 4)),
    TruncatedNegativeBinomialLaw(Fraction(0), THIRD),
    TruncatedNegativeBinomialLaw(HALF, Fraction(2, 5)),
    TruncatedNegativeBinomialLaw(Fraction(1), Fraction(3, 7)),
    TruncatedNegativeBinomialLaw(Fraction(7, 3), Fraction(1, 100)),
    KeepLaw(THIRD, HALF),
    FoldedGaussianLaw(THIRD),
    FoldedGaussianLaw(Fraction(7, 2)),
    FoldedGaussianLaw(Fraction(100)),
]


def assert_brackets(law: Law, precision: int, *, count: int = 40, lost: int = 8) -> None:
    """The first brackets hold the truth, and are as tight as the precision lets expect (``lost``
    digits less).
    """
    with mpmath.workdps(precision + 60):
        for k, (low, high) in enumerate(islice(law.masses(precision), count)):
            truth = rational(true_mass(law, k))
            slack = truth / 10 ** (precision + 40)
            assert Fraction(low) <= truth + slack, (law, k)
            assert truth - slack <= Fraction(high), (law, k)
            assert Fraction(high) - Fraction(low) <= truth / 10 ** (precision - lost), (law, k)


@pytest.mark.parametrize("precision", [20, 28, 45, 90])
@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_brackets_hold_the_truth(law: Law, precision: int) -> None:
    """Would catch a rounding to nearest anywhere, a wrong formula, or a precision cut to decimal's
    default of 28 digits.
    """
    lost = (
        24
        if law == BinomialLaw(10**9, Fraction(20)) or law == GeometricLaw(Fraction(1, 10**11), 4)
        else 8
    )
    if precision > lost:
        assert_brackets(law, precision, lost=lost)


@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_brackets_do_not_depend_on_the_callers_decimal_context(law: Law) -> None:
    """Would catch an operator (unary minus, ``2 * x``) that rounds to the context the user happens
    to have set.
    """
    wanted, drawn = list(islice(law.masses(46), 12)), invert(law, SimulationRandomness(1))
    coins._gaussian_total.cache_clear()
    with localcontext() as context:
        context.prec, context.rounding, context.Emin, context.Emax = 5, "ROUND_UP", -3, 3
        assert list(islice(law.masses(46), 12)) == wanted
        assert invert(law, SimulationRandomness(1)) == drawn
    coins._gaussian_total.cache_clear()


@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_brackets_sum_to_one(law: Law) -> None:
    """Would catch a wrong normaliser or a law that ends too early."""
    masses = list(takewhile(lambda mass: mass[1] > Decimal("1e-60"), islice(law.masses(60), 6000)))
    low, high = (sum(Fraction(mass[side]) for mass in masses) for side in (0, 1))
    assert high - low < Fraction(1, 10**20)
    assert low <= 1
    assert high >= 1 - Fraction(1, 10**20)  # what lies beyond is less


@pytest.mark.parametrize(
    ("law", "outcomes"),
    [(GeometricLaw(THIRD, 5), 5), (BinomialLaw(9, HALF), 10), (BinomialLaw(0, HALF), 1)],
)
def test_finite_laws_end(law: Law, outcomes: int) -> None:
    """Would catch an outcome too many or too few."""
    assert len(list(law.masses(20))) == outcomes


rates = st.fractions(Fraction(1, 1000), 50, max_denominator=10**6)
gammas = st.fractions(Fraction(1, 100), Fraction(99, 100), max_denominator=1000)
shapes = st.fractions(Fraction(-9, 10), 5, max_denominator=20)
laws = st.one_of(
    st.builds(GeometricLaw, rates),
    st.builds(GeometricLaw, rates, st.integers(1, 50)),
    st.builds(BinomialLaw, st.integers(1, 100), rates),
    st.builds(PoissonLaw, rates),
    st.builds(TruncatedNegativeBinomialLaw, shapes, gammas),
    st.builds(FoldedGaussianLaw, st.fractions(Fraction(1, 20), 400, max_denominator=1000)),
)


@settings(max_examples=150, deadline=None)
@given(laws, st.integers(30, 60))
def test_brackets_hold_the_truth_everywhere(law: Law, precision: int) -> None:
    """The same over the whole range of parameters."""
    assert_brackets(law, precision, count=8, lost=28)


@settings(max_examples=100, deadline=None)
@given(laws, st.integers(0, 2**64 - 1))
def test_inversion_finds_the_outcome_of_a_real(law: Law, word: int) -> None:
    """Would catch an off-by-one.

    The real number begun by ``word`` lies between F(outcome−1) and F(outcome).
    """
    outcome = invert(law, SimulationRandomness(3), prefix=word, prefix_bits=64)
    masses = list(islice(law.masses(60), outcome + 1))
    assert sum(Fraction(low) for low, _ in masses[:-1]) <= Fraction(word + 1, 2**64)
    assert sum(Fraction(high) for _, high in masses) >= Fraction(word, 2**64)


def spreads_widely(law: Law) -> bool:
    """Whether a walk of a law would take long: a branch for each of many outcomes."""
    return sum(mass[1] for mass in islice(law.masses(20), 40)) < Decimal("0.9999")


SMALL = [law for law in LAWS if not spreads_widely(law)]


@pytest.mark.parametrize("chunk", [1, 4])
@pytest.mark.parametrize("law", SMALL, ids=repr)
def test_inversion_is_exact(law: Law, chunk: int) -> None:
    """Would catch a comparison that settles too early, bits that are used twice, or a bias where a
    cell is refined.
    """
    walk = enumerate_law(
        lambda r: invert(law, r, chunk=chunk, digits=3),
        40,
        within=1e-4,
        single_bits=True,
        merge=False,
    )
    assert_law(walk, partial(true_mass, law), within=1e-4)


class Blunt:
    """A law whose brackets stay two digits wide until more than ``until`` are asked for."""

    def __init__(self, law: Law, until: int) -> None:
        self.law, self.until = law, until

    def masses(self, precision: int) -> Iterator[Bracket]:
        return self.law.masses(2 if precision <= self.until else precision)


@pytest.mark.parametrize(
    "law", [GeometricLaw(HALF), BinomialLaw(4, HALF), PoissonLaw(Fraction(2))], ids=repr
)
def test_inversion_is_exact_when_the_digits_do_not_tell(law: Law) -> None:
    """Would catch a guess where the brackets of F overlap the cell.

    Here they do until 12 bits are known.
    """
    walk = enumerate_law(
        lambda r: invert(Blunt(law, 13), r, chunk=4, digits=2),
        40,
        within=1e-4,
        single_bits=True,
        merge=False,
    )
    assert_law(walk, partial(true_mass, law), within=1e-4)


def small_steps(monkeypatch: pytest.MonkeyPatch, block_mean: int) -> None:
    monkeypatch.setattr(coins, "invert", partial(invert, chunk=2))
    monkeypatch.setattr(coins, "_BLOCK_MEAN", block_mean)


@pytest.mark.parametrize(
    ("trials", "x"), [(1, HALF), (5, HALF), (6, Fraction(3, 2)), (4, Fraction(5))]
)
def test_binomial_by_blocks_is_exact(
    trials: int, x: Fraction, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Would catch a block lost or counted twice.

    With blocks of mean 1 the sum is still binomial.
    """
    small_steps(monkeypatch, 1)
    walk = enumerate_law(lambda r: binomial_exp(trials, x, r), 40, within=1e-3, single_bits=True)
    assert_law(walk, partial(true_mass, BinomialLaw(trials, x)), within=1e-3)


@pytest.mark.parametrize("mean", [Fraction(1, 3), Fraction(1), Fraction(5, 2)])
def test_poisson_by_blocks_is_exact(mean: Fraction, monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch a remainder lost: with blocks of mean 1 the sum is still Poisson."""
    small_steps(monkeypatch, 1)
    walk = enumerate_law(lambda r: poisson(mean, r), 40, within=2e-3, single_bits=True)
    assert_law(walk, partial(true_mass, PoissonLaw(mean)), within=2e-3)


def test_poisson_of_nothing_is_nothing() -> None:
    """Would catch a law asked for at mean 0."""
    assert poisson(Fraction(0), SimulationRandomness(1)) == 0


@pytest.mark.parametrize("shape", [-HALF, Fraction(0), HALF, Fraction(1)])
def test_truncated_negative_binomial_starts_at_one(
    shape: Fraction, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Would catch the shift by one forgotten: K ≥ 1, with Papernot and Steinke's masses."""
    small_steps(monkeypatch, 32)
    gamma = Fraction(2, 5)
    walk = enumerate_law(
        lambda r: truncated_negative_binomial(shape, gamma, r), 40, within=1e-4, single_bits=True
    )
    assert_law(
        walk, lambda k: true_mass(TruncatedNegativeBinomialLaw(shape, gamma), k - 1), within=1e-4
    )
    assert min(walk[0]) == 1


@pytest.mark.parametrize(("gamma", "mean"), [(Fraction(1, 10), 10.0), (Fraction(1, 2), 2.0)])
def test_truncated_negative_binomial_of_shape_one_is_geometric(
    gamma: Fraction, mean: float
) -> None:
    """Would catch γ taken for 1−γ: at shape 1 the mean is 1/γ."""
    source = SimulationRandomness(4)
    draws = [truncated_negative_binomial(Fraction(1), gamma, source) for _ in range(4000)]
    assert abs(sum(draws) / 4000 - mean) < 6 * mean / 4000**0.5


@pytest.mark.parametrize("exponent", [3, 12, 30, 60])
def test_binomial_work_follows_the_result(exponent: int) -> None:
    """Would catch a loop over 10^30 trials, or lost digits: mean 10, standard deviation √10."""
    trials = 10**exponent
    with mpmath.workdps(80):
        x = Fraction(int(log(mpf(trials) / 10) * 10**20), 10**20)
    source = SimulationRandomness(5)
    draws, _ = lines_run(
        lambda: [binomial_exp(trials, x, source) for _ in range(400)], at_most=500_000
    )
    mean = sum(draws) / 400
    variance = sum((draw - mean) ** 2 for draw in draws) / 399
    assert abs(mean - 10) < 6 * (10 / 400) ** 0.5
    assert 6 < variance < 15  # 10, to six of its standard errors


def test_binomial_of_several_blocks() -> None:
    """Would catch blocks of a wrong size: 1,000 expected successes are some thirty blocks."""
    source = SimulationRandomness(6)
    draws = [binomial_exp(100_000, Fraction(4605170186, 10**9), source) for _ in range(100)]
    assert abs(sum(draws) / 100 - 1000) < 6 * (990 / 100) ** 0.5


@pytest.mark.parametrize("trials", [0, 1, 10**30])
def test_binomial_of_sure_coins(trials: int) -> None:
    """Would catch a coin of probability 1 treated as random."""
    assert binomial_exp(trials, Fraction(0), SimulationRandomness(7)) == trials


@pytest.mark.parametrize("x", [Fraction(3 * 10**6), Fraction(10**12), Fraction(10**25)])
def test_binomial_of_hopeless_coins(x: Fraction) -> None:
    """Would catch an overflow at large drop levels: an exception there would betray the level."""
    assert binomial_exp(10**30, x, SimulationRandomness(8)) == 0


@pytest.mark.parametrize(("trials", "x"), [(5, Fraction(1, 10**50)), (10**4, Fraction(1, 10**40))])
def test_binomial_of_nearly_sure_coins(trials: int, x: Fraction) -> None:
    """Would catch brackets that collapse when 1−e^{−x} is beyond the digits."""
    assert binomial_exp(trials, x, SimulationRandomness(9)) == trials


@pytest.mark.parametrize(("size", "count"), [(1, 1), (5, 2), (4, 3), (6, 3), (3, 3), (4, 0)])
def test_subset_is_uniform(size: int, count: int) -> None:
    """Would catch a favoured element: every set has mass 1/C(size, count), exactly."""
    masses, undecided = enumerate_law(lambda r: tuple(subset(size, count, r)), 20)
    assert set(masses) == set(combinations(range(size), count))
    assert undecided < Fraction(1, 2**200)
    assert all(
        mass <= Fraction(1, comb(size, count)) <= mass + undecided for mass in masses.values()
    )


def test_subset_of_a_huge_set() -> None:
    """Would catch a list of all members."""
    size = 10**30
    chosen = subset(size, 1000, SimulationRandomness(10))
    assert chosen == sorted(set(chosen))
    assert len(chosen) == 1000
    assert 0 <= chosen[0] < size // 100
    assert size - size // 100 < chosen[-1] < size


def test_decimal_exp_and_ln_round_to_nearest() -> None:
    """The brackets rest on it: an error of at most half a step, at any precision."""
    for digits in (5, 20, 45):
        with localcontext() as context, mpmath.workdps(120):
            context.prec = digits
            for value in ("0.1", "1.7", "33.3", "0.000123"):
                for mine, truth in (
                    (context.exp(-Decimal(value)), exp(-mpf(value))),
                    (context.ln(Decimal(value)), log(mpf(value))),
                ):
                    step = abs(Fraction(context.next_plus(mine)) - Fraction(mine))
                    assert abs(Fraction(mine) - rational(truth)) <= step / 2 * (
                        1 + Fraction(1, 10**50)
                    )
