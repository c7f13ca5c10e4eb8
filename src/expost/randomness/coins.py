"""Exact samplers on rationals, one draw at a time. No floating-point number decides a draw.

The caller passes parameters in the stated ranges; they are not checked here.

Tests: ``tests/randomness/test_coins.py`` enumerates all bit sequences;
``tests/statistical/test_samplers.py`` draws 10^6 values.

References
----------
Canonne, Kamath and Steinke, "The Discrete Gaussian for Differential Privacy" (2020), Algorithms
1–3.
"""

from __future__ import annotations

from fractions import Fraction
from math import isqrt

from expost.randomness.source import Randomness


def bernoulli(probability: Fraction, randomness: Randomness) -> bool:
    """Return True with a given probability; ``probability``: in [0, 1]."""
    return randomness.below(probability.denominator) < probability.numerator


def bernoulli_exp(x: Fraction, randomness: Randomness) -> bool:
    """Return True with probability e^{−x}; ``x``: at least 0."""
    whole, numerator = divmod(x.numerator, x.denominator)
    for _ in range(whole):  # stops after at most 1.6 turns on average, also for large x
        if not _bernoulli_exp_fraction(1, 1, randomness):
            return False
    return numerator == 0 or _bernoulli_exp_fraction(numerator, x.denominator, randomness)


def _bernoulli_exp_fraction(numerator: int, denominator: int, randomness: Randomness) -> bool:
    """True with probability e^{−numerator/denominator}, for a ratio in [0, 1]."""
    turn = 1
    while randomness.below(denominator * turn) < numerator:
        turn += 1
    return turn % 2 == 1


def geometric(x: Fraction, randomness: Randomness) -> int:
    """Return k ≥ 0 with probability (1−e^{−x})·e^{−xk}.

    ``x``: greater than 0.

    Let x = s/t. U + tV, where U ∈ [0, t) has weight e^{−U/t} and V counts successes of probability
    e^{−1}, is geometric with continuation probability e^{−1/t}. Its quotient by s is geometric with
    continuation probability e^{−s/t}. The draw takes a few coins, also for very small x.
    """
    s, t = x.numerator, x.denominator
    while True:
        remainder = randomness.below(t)
        if _bernoulli_exp_fraction(remainder, t, randomness):
            break
    quotient = 0
    while _bernoulli_exp_fraction(1, 1, randomness):
        quotient += 1
    return (remainder + t * quotient) // s


def discrete_laplace(scale: Fraction, randomness: Randomness) -> int:
    """Return an integer y with probability proportional to e^{−|y|/scale}.

    ``scale``: greater than 0.
    """
    rate = 1 / scale
    while True:
        magnitude = geometric(rate, randomness)
        negative = randomness.bits(1)
        if magnitude or not negative:
            return -magnitude if negative else magnitude


def discrete_gaussian(variance: Fraction, randomness: Randomness) -> int:
    """Return an integer y with probability proportional to e^{−y²/(2·variance)}.

    ``variance``: greater than 0. The variance of the draw itself is slightly different.
    """
    scale = isqrt(variance.numerator // variance.denominator) + 1
    centre = variance / scale
    while True:
        proposal = discrete_laplace(Fraction(scale), randomness)
        if bernoulli_exp((abs(proposal) - centre) ** 2 / (2 * variance), randomness):
            return proposal
