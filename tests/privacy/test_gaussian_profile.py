"""The exact (ε, δ) guarantee of Gaussian noise, against integration in decimal arithmetic."""

from __future__ import annotations

from decimal import Decimal, localcontext

import pytest

from expost.errors import InvalidInput
from expost.privacy.conversions import gaussian_for
from expost.privacy.gaussian_profile import gaussian_delta, gaussian_mu


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


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 0.1), (float("inf"), 0.1), (1.0, 0.0)])
def test_bad_input(epsilon: float, delta: float) -> None:
    with pytest.raises(InvalidInput):
        gaussian_mu(epsilon, delta)
