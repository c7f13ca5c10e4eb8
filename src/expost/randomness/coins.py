"""Exact samplers on rationals, one draw at a time; no float decides a coin.

After Canonne, Kamath and Steinke, "The Discrete Gaussian for Differential Privacy" (2020), Algorithms 1–3.
Tests: ``tests/randomness/test_coins.py`` enumerates the bit tree, ``tests/statistical/test_samplers.py`` draws 10^6.
"""

from __future__ import annotations

from fractions import Fraction
from math import isqrt

from expost.randomness.source import Randomness


def bernoulli(probability: Fraction, randomness: Randomness) -> bool:
    """True with probability ``probability`` ∈ [0, 1]."""
    return randomness.below(probability.denominator) < probability.numerator


def bernoulli_exp(x: Fraction, randomness: Randomness) -> bool:
    """True with probability e^{−x}, x ≥ 0."""
    whole, numerator = divmod(x.numerator, x.denominator)
    for _ in range(whole):  # stops after 1.6 turns on average, however large x is
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
    """k with probability (1−e^{−x})·e^{−xk}, x > 0: failures e^{−x}. Takes a few coins, however small x is.

    With x = s/t: U + tV, where U ∈ [0, t) has weight e^{−U/t} and V counts successes of e^{−1}, has failure
    probability e^{−1/t}; its quotient by s has failure probability e^{−s/t}.
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
    """y with probability ∝ e^{−|y|/scale}, scale > 0."""
    rate = 1 / scale
    while True:
        magnitude = geometric(rate, randomness)
        negative = randomness.bits(1)
        if magnitude or not negative:
            return -magnitude if negative else magnitude


def discrete_gaussian(variance: Fraction, randomness: Randomness) -> int:
    """y with probability ∝ e^{−y²/(2·variance)}, variance > 0."""
    scale = isqrt(variance.numerator // variance.denominator) + 1
    centre = variance / scale
    while True:
        proposal = discrete_laplace(Fraction(scale), randomness)
        if bernoulli_exp((abs(proposal) - centre) ** 2 / (2 * variance), randomness):
            return proposal
