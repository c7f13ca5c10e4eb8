"""The exact (ε, δ) guarantee of Gaussian noise, against integration in decimal arithmetic."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from expost.errors import InvalidInput
from expost.privacy.dpsgd import gaussian_for
from expost.privacy.profiles import _TERMS, _mills, gaussian_delta, gaussian_mu
from expost.selection.noise_path import NoisePath

mpmath = pytest.importorskip("mpmath")


def integrated(epsilon: float, mu: float) -> float:
    """∫ (p − e^ε·q)₊ for N(0, 1) and N(μ, 1), by Simpson's rule with 40 digits."""
    with localcontext() as context:
        context.prec = 40
        m, e = Decimal(mu), Decimal(epsilon)
        start = e / m + m / 2  # the densities N(μ, 1) and e^ε·N(0, 1) cross here
        width, steps = Decimal(12) / 3000, 3000
        total = Decimal(0)
        for place in range(steps + 1):
            x = start + width * place
            value = (-((x - m) ** 2) / 2).exp() - (e - x * x / 2).exp()
            total += value * (1 if place in (0, steps) else 4 if place % 2 else 2)
        pi = Decimal("3.14159265358979323846264338327950288419716939937510")
        return float(total * width / 3 / (2 * pi).sqrt())


@pytest.mark.parametrize("epsilon", [0.005, 0.05, 1.0, 4.0])
@pytest.mark.parametrize("sigmas", [1.0, 4.0, 6.5])
def test_against_integration(epsilon: float, sigmas: float) -> None:
    mu = epsilon / sigmas
    expected, found = integrated(epsilon, mu), gaussian_delta(epsilon, mu)
    assert expected <= found <= expected * (1 + 1e-8)


@pytest.mark.parametrize("epsilon", [1e-6, 0.005, 0.3, 4.0, 50.0])
@pytest.mark.parametrize("delta", [1e-12, 5e-9, 1e-5, 0.1])
def test_mu_is_the_largest_that_holds(epsilon: float, delta: float) -> None:
    mu = gaussian_mu(epsilon, delta)
    assert gaussian_delta(epsilon, mu) <= delta < gaussian_delta(epsilon, mu * (1 + 1e-9))
    assert mu**2 / 2 >= gaussian_for(epsilon, delta).rho * (1 - 1e-9)


def exactly(epsilon: float, mu: float) -> Any:
    """δ from the definition, with enough digits for what cancels."""
    with mpmath.workdps(80):
        e, m = mpmath.mpf(epsilon), mpmath.mpf(mu)
        first, second = (mpmath.erfc((e / m + h) / mpmath.sqrt(2)) / 2 for h in (-m / 2, m / 2))
        return first - mpmath.exp(e) * second


@given(
    st.floats(-6, 4).map(lambda power: 10**power),
    st.one_of(st.floats(-300, -0.302).map(lambda power: 10**power), st.floats(0.01, 0.5)),
)
@example(334.6, 2.6e-186)  # Φ of the second term is no normal number
@example(1e4, 1e-300)
@example(1e4, 0.5)
@example(1e-6, 1e-300)
@example(1e-6, 0.5)
@example(700.0, 1e-300)
@example(0.5, 5e-324)
def test_mu_against_the_definition(epsilon: float, delta: float) -> None:
    """For every ε and δ: the guarantee holds in real numbers, and hardly any noise is wasted."""
    mu = gaussian_mu(epsilon, delta)
    assert exactly(epsilon, mu) <= delta
    assert exactly(epsilon, mu * (1 + 1e-7)) > delta or delta < 1e-300


@given(
    st.one_of(st.just(0.0), st.floats(-8, 4).map(lambda power: 10**power)),
    st.floats(-8, 3).map(lambda power: 10**power),
)
@example(0.6250952407898798, 3.9114412669834198)
@example(0.0, 1000.0)
@example(1.0, 1e-8)
@example(1e4, 141.0)
def test_delta_against_the_definition(epsilon: float, mu: float) -> None:
    """The bound holds wherever it is asked for, and never exceeds 1."""
    found, expected = gaussian_delta(epsilon, mu), exactly(epsilon, mu)
    assert expected <= found <= 1
    if expected > 1e-300:
        assert found <= expected * (1 + 1e-4) + 1e-13 * mu


def test_a_level_of_a_path_keeps_its_promise_where_tails_are_tiny() -> None:
    """The public call: the noise of a level with (334.6, 2.6e-186) is enough."""
    (level,) = NoisePath(lambda data: [0.0], 1, lambda values, scale: values).levels(
        [334.6], delta=2.6e-186
    )
    assert exactly(334.6, math.sqrt(level.mechanism.square())) <= 2.6e-186


def test_the_continued_fraction_is_long_enough() -> None:
    """Two convergents enclose the ratio: at 3, the least x, they agree far below a rounding."""

    def convergent(terms: int) -> Fraction:
        tail = Fraction(3)
        for number in range(terms, 0, -1):
            tail = 3 + number / tail
        return 1 / tail

    ends = sorted([convergent(_TERMS), convergent(_TERMS - 1)])
    assert ends[1] - ends[0] < Fraction(1, 10**18) * ends[0]
    assert ends[0] * (1 - 3e-15) <= Fraction(_mills(3.0)) <= ends[1] * (1 + 3e-15)


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(0.0, 0.1), (1e-310, 0.1), (float("inf"), 0.1), (1.0, 0.0)]
)
def test_bad_input(epsilon: float, delta: float) -> None:
    with pytest.raises(InvalidInput):
        gaussian_mu(epsilon, delta)
