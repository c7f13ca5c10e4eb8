"""The tight conversion from a Rényi divergence to ε at a given δ, on plain numbers.

Logarithms are padded up (:func:`expost.rationals.pad_up`), so ε is never too small. The conversion
is valid at every order. A search for the best order therefore needs no certificate.

Tests: ``tests/privacy/test_guarantees.py``.

References
----------
Canonne, Kamath and Steinke, "The Discrete Gaussian for Differential Privacy" (2020), Proposition
12; Asoodeh et al. (2020).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

from expost.errors import InvalidGuarantee
from expost.rationals import Number, exact, pad_up, round_down, round_up


def tight_epsilon(order: float, divergence: float, log_delta: float) -> float:
    """Return ε such that a Rényi divergence implies (ε, δ)-DP.

    Parameters
    ----------
    order : float
        The Rényi order α > 1.
    divergence : float
        Upper bound ε(α) of the divergence at this order.
    log_delta : float
        ln δ.

    Returns
    -------
    float
        ε(α) + ln((α−1)/α) − (ln δ + ln α)/(α−1), padded up. It can be negative.

    References
    ----------
    Canonne, Kamath and Steinke (2020), Proposition 12; Asoodeh et al. (2020).
    """
    first = -math.log1p(1 / (order - 1))
    second = (log_delta + math.log(order)) / (order - 1)
    magnitude = divergence + abs(first) + (abs(log_delta) + math.log(order)) / (order - 1)
    return pad_up(divergence + first - second, magnitude)


def tight_epsilon_of_zcdp(rho: float, log_delta: float) -> float:
    """Return ε such that ρ-zCDP, ρ > 0, implies (ε, δ)-DP, at the best order that a search finds.

    Parameters
    ----------
    rho : float
        ρ > 0; the divergence at order α is αρ.
    log_delta : float
        ln δ.

    Returns
    -------
    float
        The smallest :func:`tight_epsilon` found. It can be negative.
    """

    def epsilon(log_excess: float) -> float:
        order = 1 + math.exp(log_excess)
        return tight_epsilon(order, round_up(Fraction(order) * Fraction(rho)), log_delta)

    guess = max(
        -20.0, 0.5 * (math.log(max(-log_delta, 1e-3)) - math.log(rho))
    )  # keeps the orders above 1 in floating point
    return _minimise(epsilon, guess - 12, guess + 12)


def log_of_delta(delta: Number) -> float:
    """Return ln δ.

    Parameters
    ----------
    delta : number
        δ with 0 < δ < 1.

    Returns
    -------
    float
        ln δ.

    Raises
    ------
    InvalidGuarantee
        If δ is not between 0 and 1, or is below the smallest positive float.
    """
    value = exact(delta, "delta", error=InvalidGuarantee)
    if not 0 < value < 1:
        raise InvalidGuarantee(
            "delta",
            delta,
            "give 0 < delta < 1: a zCDP or Rényi guarantee implies no pure guarantee",
        )
    if round_down(value) == 0:
        raise InvalidGuarantee(
            "delta", type(delta).__name__, "give at least 5e-324, the smallest float"
        )
    return math.log(round_down(value))


def _minimise(
    function: Callable[[float], float], low: float, high: float, steps: int = 80
) -> float:
    """Return the least value of a unimodal function that golden-section search finds."""
    ratio = (math.sqrt(5) - 1) / 2
    a, b = high - ratio * (high - low), low + ratio * (high - low)
    at_a, at_b = function(a), function(b)
    for _ in range(steps):
        if at_a <= at_b:
            high, b, at_b = b, a, at_a
            a = high - ratio * (high - low)
            at_a = function(a)
        else:
            low, a, at_a = a, b, at_b
            b = low + ratio * (high - low)
            at_b = function(b)
    return min(at_a, at_b)
