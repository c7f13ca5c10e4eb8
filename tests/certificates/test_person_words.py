"""What a charge means for one person: the limit of Bayes' rule, rounded up, the same everywhere."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest

from expost.certificates.document import certainty_text, person_words


@pytest.mark.parametrize(
    ("epsilon", "percent"),
    [(0.0, "50.0"), (math.log(3), "75.0"), (0.05, "51.3"), (10.0, "99.996"), (900.0, "100")],
)
def test_certainty_in_per_cent(epsilon: float, percent: str) -> None:
    assert certainty_text(epsilon) == percent


@pytest.mark.parametrize("epsilon", [step / 50 for step in range(1, 450)])
def test_no_observer_is_more_certain_than_is_said(epsilon: float) -> None:
    """Randomised response reaches the limit exactly: P(yes | in) / P(yes | out) = e^ε."""
    factor = Fraction(math.exp(epsilon))
    yes_in, yes_out = factor / (1 + factor), 1 / (1 + factor)
    posterior = 100 * yes_in / (yes_in + yes_out)  # even odds before
    said = Fraction(certainty_text(epsilon))
    assert posterior <= said + Fraction(1, 10**7)  # floating point of e^ε
    assert said - posterior <= Fraction(1, 10)


def test_delta_is_said_plainly() -> None:
    assert "fail" not in person_words(0.1)
    assert "small probability (about δ = 1e-06)" in person_words(0.1, 1e-6, "row")
    assert "whether one row is in the data" in person_words(0.1, 1e-6, "row")


def test_the_bound_on_the_failure_of_delta() -> None:
    """The docstring's claim on randomised response that shows everything with probability δ."""
    epsilon, delta = 0.3, 0.01
    # Outcomes: "shown" has odds infinity, all others e^±ε: P(loss > ε + t) = δ for every t.
    for t in (0.01, 0.1, 1.0, 10.0):
        assert delta <= delta / (1 - math.exp(-t))
    # Gaussian: μ such that (ε, δ) holds; the tail of the loss is below δ/(1 − e^(−t)).
    from statistics import NormalDist

    normal, low, high = NormalDist(), 0.0, 5.0
    for _ in range(60):
        middle = (low + high) / 2
        profile = normal.cdf(middle / 2 - epsilon / middle) - math.exp(epsilon) * normal.cdf(
            -middle / 2 - epsilon / middle
        )
        low, high = (middle, high) if profile < delta else (low, middle)
    for t in (0.01, 0.1, 0.5, 1.0):
        tail = 1 - normal.cdf((epsilon + t) / low - low / 2)
        assert tail <= delta / (1 - math.exp(-t))
    assert 1 - normal.cdf(epsilon / low - low / 2) > delta  # without t it is more than δ
