"""The scalar samplers have exactly the law they state.

Shown on the tree of their choices against mpmath at 60 digits.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from fractions import Fraction

import pytest
from mpmath import exp, jtheta, mpf

from expost.randomness import coins
from expost.randomness.source import Randomness, SimulationRandomness
from tests.randomness.bit_tree import assert_law, enumerate_law
from tests.work import lines_run

Sampler = Callable[[Randomness], Hashable]


def real(value: Fraction) -> mpf:
    return mpf(value.numerator) / value.denominator


def geometric_mass(rate: Fraction, k: int) -> mpf:
    return (1 - exp(-real(rate))) * exp(-real(rate) * k)


def laplace_mass(scale: Fraction, y: int) -> mpf:
    p = exp(-1 / real(scale))
    return (1 - p) / (1 + p) * p ** abs(y)


def gaussian_mass(variance: Fraction, y: int) -> mpf:
    """The normaliser is Jacobi's theta function: no sum of our own."""
    return exp(-(mpf(y) ** 2) / (2 * real(variance))) / jtheta(3, 0, exp(-1 / (2 * real(variance))))


@pytest.mark.parametrize(
    "probability",
    [Fraction(0), Fraction(1), Fraction(1, 2), Fraction(3, 7), Fraction(5, 8), Fraction(1, 100)],
)
@pytest.mark.parametrize("single_bits", [False, True])
def test_bernoulli(probability: Fraction, single_bits: bool) -> None:
    """Would catch a flipped or off-by-one comparison, down to single bits."""
    law = enumerate_law(
        lambda r: coins.bernoulli(probability, r), 300, within=1e-20, single_bits=single_bits
    )
    assert_law(
        law,
        lambda heads: real(probability if heads else 1 - probability),
        within=1e-20,
        outcomes=(True, False),
    )


@pytest.mark.parametrize(
    "x",
    [
        Fraction(0),
        Fraction(1, 3),
        Fraction(1),
        Fraction(5, 2),
        Fraction(7, 5),
        Fraction(3),
        Fraction(99, 100),
    ],
)
def test_bernoulli_exp(x: Fraction) -> None:
    """Would catch a wrong parity, a wrong starting turn, or a lost whole part."""
    law = enumerate_law(lambda r: coins.bernoulli_exp(x, r), 300, within=1e-12)
    assert_law(
        law,
        lambda heads: exp(-real(x)) if heads else 1 - exp(-real(x)),
        within=1e-12,
        outcomes=(True, False),
    )


@pytest.mark.parametrize("x", [Fraction(1, 3), Fraction(1), Fraction(5, 2)])
def test_bernoulli_exp_on_single_bits(x: Fraction) -> None:
    """The same with rejection on bits, nothing taken for granted."""
    law = enumerate_law(lambda r: coins.bernoulli_exp(x, r), 60, within=1e-5, single_bits=True)
    assert_law(law, lambda heads: exp(-real(x)) if heads else 1 - exp(-real(x)), within=1e-5)


def test_bernoulli_exp_is_quick_for_large_x() -> None:
    """Would catch a loop over the integer part: e^{−x} is practically 0; a few coins suffice."""
    x = Fraction(10**40 + 1, 3)
    heads, _ = lines_run(
        lambda: [coins.bernoulli_exp(x, SimulationRandomness(seed)) for seed in range(20)],
        at_most=20_000,
    )
    assert not any(heads)


@pytest.mark.parametrize(
    "rate",
    [Fraction(1), Fraction(2, 3), Fraction(1, 4), Fraction(3), Fraction(7, 2), Fraction(5, 4)],
)
def test_geometric(rate: Fraction) -> None:
    """Would catch a wrong quotient by the numerator, a biased remainder, or a count that starts at
    1.
    """
    law = enumerate_law(lambda r: coins.geometric(rate, r), 300, within=1e-10)
    assert_law(law, lambda k: geometric_mass(rate, k), within=1e-10, outcomes=range(5))
    assert min(law[0]) == 0


@pytest.mark.parametrize("scale", [Fraction(1), Fraction(3, 2), Fraction(1, 3), Fraction(5)])
def test_discrete_laplace(scale: Fraction) -> None:
    """Would catch a zero counted twice, a missing sign, or a scale taken for a rate."""
    law = enumerate_law(lambda r: coins.discrete_laplace(scale, r), 300, within=1e-7)
    assert_law(law, lambda y: laplace_mass(scale, y), within=1e-7, outcomes=range(-3, 4))


@pytest.mark.parametrize("variance", [Fraction(1, 2), Fraction(1), Fraction(5, 2)])
def test_discrete_gaussian(variance: Fraction) -> None:
    """Would catch a wrong proposal scale or centre, or a deviation taken for a variance."""
    law = enumerate_law(lambda r: coins.discrete_gaussian(variance, r), 300, within=1e-3)
    assert_law(law, lambda y: gaussian_mass(variance, y), within=1e-3, outcomes=range(-2, 3))


@pytest.mark.parametrize("variance", [Fraction(1, 2), Fraction(9, 4), Fraction(4), Fraction(17, 3)])
def test_discrete_gaussian_accepts_in_proportion(
    variance: Fraction, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sharper, given the coins above.

    Proposal mass times acceptance is proportional to the Gaussian, to 40 digits.
    """
    asked: list[tuple[Fraction, int, Fraction]] = []
    for proposal in range(-12, 13):
        seen: list[Fraction] = []
        monkeypatch.setattr(
            coins, "_two_sided", lambda rate, _r, y=proposal, s=seen: s.append(1 / rate) or y
        )
        monkeypatch.setattr(
            coins, "_bernoulli_exp_ratio", lambda a, b, _r, s=seen: s.append(Fraction(a, b)) or True
        )
        assert coins.discrete_gaussian(variance, Randomness()) == proposal
        asked.append((seen[0], proposal, seen[1]))
    constants = [
        Fraction(abs(y)) / scale + x - Fraction(y * y) / (2 * variance) for scale, y, x in asked
    ]
    assert len(set(constants)) == 1
    assert all(x >= 0 for _, _, x in asked)


SAMPLERS: dict[
    str, tuple[Sampler, float]
] = {  # and how much a plain walk of a second or so leaves undecided
    "bernoulli": (lambda r: coins.bernoulli(Fraction(3, 7), r), 0.001),
    "bernoulli_exp": (lambda r: coins.bernoulli_exp(Fraction(5, 2), r), 0.001),
    "geometric": (lambda r: coins.geometric(Fraction(2, 3), r), 0.1),
    "discrete_laplace": (lambda r: coins.discrete_laplace(Fraction(3, 2), r), 0.3),
    "discrete_gaussian": (lambda r: coins.discrete_gaussian(Fraction(1, 2), r), 0.5),
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_merged_walks_agree_with_plain_ones(name: str) -> None:
    """Would catch a helper that merges branches with different futures.

    The two walks must bracket the same law.
    """
    sampler, left = SAMPLERS[name]
    plain, plain_left = enumerate_law(sampler, 40, within=left, merge=False)
    merged, merged_left = enumerate_law(sampler, 300, within=1e-3)
    for outcome in {*plain, *merged}:
        low, high = plain.get(outcome, Fraction(0)), merged.get(outcome, Fraction(0))
        assert low <= high + merged_left
        assert high <= low + plain_left


def test_the_walk_sees_a_wrong_coin() -> None:
    """A test of the test: a coin of rate 101/300 instead of 1/3 is refused."""
    law = enumerate_law(lambda r: coins.bernoulli_exp(Fraction(101, 300), r), 300, within=1e-12)
    with pytest.raises(AssertionError, match="truth"):
        assert_law(
            law, lambda heads: exp(-mpf(1) / 3) if heads else 1 - exp(-mpf(1) / 3), within=1e-12
        )


@pytest.mark.parametrize("rate", [Fraction(1, 10**9), Fraction(7, 10**18), Fraction(1e-9)])
def test_geometric_is_quick_for_tiny_rates(rate: Fraction) -> None:
    """Would catch counting one success at a time.

    1,000 draws of mean 10^9 take a few hundred lines each, and have that mean.
    """
    source = SimulationRandomness(20)
    draws, _ = lines_run(
        lambda: [coins.geometric(rate, source) for _ in range(1000)], at_most=1_000_000
    )
    assert 0.8 < float(sum(draws) * rate) / 1000 < 1.2  # six standard errors
