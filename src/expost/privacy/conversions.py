"""The default Rényi orders; they are dense where the best order of a tuning job lies.

The tight conversion from a Rényi divergence to ε at a given δ, on plain numbers.

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

INTEGER_ORDERS: tuple[float, ...] = tuple(
    float(order)
    for order in (
        *range(2, 65),
        *range(66, 129, 2),
        *range(132, 257, 4),
        *range(264, 513, 8),
        *range(528, 1025, 16),
        1152,
        1280,
        1536,
        1792,
        2048,
        2560,
        3072,
        4096,
        6144,
        8192,
    )
)
"""Whole orders up to 1,024 with steps of at most 3.2 %, then sparser to 8,192 for very small ε."""

FRACTIONAL_ORDERS: tuple[float, ...] = (
    *(1.05, 1.1, 1.2, 1.25, 1.3, 1.4, 1.5, 1.6, 1.7, 1.75, 1.8, 1.9),
    *(2.1, 2.2, 2.4, 2.6, 2.8, 3.25, 3.5, 3.75, 4.5, 5.5),
)
"""Fractional orders, which matter for large ε: DP-SGD at ε ≈ 10 is best between 1.4 and 3."""

DEFAULT_ORDERS: tuple[float, ...] = tuple(sorted((*FRACTIONAL_ORDERS, *INTEGER_ORDERS)))
""":data:`INTEGER_ORDERS` and :data:`FRACTIONAL_ORDERS`. Ledgers name their own orders."""


def tight_epsilon(order: float, divergence: float, log_delta: float) -> float:
    """Return ε(α) + ln((α−1)/α) − (ln δ + ln α)/(α−1), padded up: the divergence implies (ε, δ)-DP.

    It can be negative. Canonne, Kamath and Steinke (2020), Proposition 12; Asoodeh et al. (2020).
    """
    first = -math.log1p(1 / (order - 1))
    second = (log_delta + math.log(order)) / (order - 1)
    magnitude = divergence + abs(first) + (abs(log_delta) + math.log(order)) / (order - 1)
    return pad_up(divergence + first - second, magnitude)


def tight_epsilon_of_zcdp(rho: float, log_delta: float) -> float:
    """Return the least :func:`tight_epsilon` of ρ-zCDP, ρ > 0, that a search over orders finds."""

    def epsilon(log_excess: float) -> float:
        order = 1 + math.exp(log_excess)
        return tight_epsilon(order, round_up(Fraction(order) * Fraction(rho)), log_delta)

    guess = max(
        -20.0, 0.5 * (math.log(max(-log_delta, 1e-3)) - math.log(rho))
    )  # keeps the orders above 1 in floating point
    return _minimise(epsilon, guess - 12, guess + 12)


def log_of_delta(delta: Number) -> float:
    """Return ln δ, for a float with 0 < δ < 1."""
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
