"""One exact draw from a law known only through brackets: a uniform real is compared with the distribution function,
and both are refined until the comparison is certain.

Tests: ``tests/randomness/test_inverse_cdf.py`` (bit tree), ``tests/statistical/test_samplers.py`` (chi-square).
"""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

from expost.randomness.distributions import (
    ZERO,
    BinomialLaw,
    Law,
    PoissonLaw,
    TruncatedNegativeBinomialLaw,
    arithmetic,
)
from expost.randomness.source import Randomness

_DIGITS = 45
_BLOCK_MEAN = 32


def invert(
    law: Law,
    randomness: Randomness,
    *,
    prefix: int = 0,
    prefix_bits: int = 0,
    chunk: int = 64,
    digits: int = _DIGITS,
) -> int:
    """A draw of ``law``; ``prefix`` holds the first bits of the uniform real when they are known already."""
    known, bits = prefix, prefix_bits
    if bits == 0:
        known, bits = randomness.bits(chunk), chunk
    while True:
        outcome = _locate(law, known, bits, max(digits, bits // 3 + 10))
        if outcome is not None:
            return outcome
        known, bits = (known << chunk) | randomness.bits(chunk), bits + chunk


def _locate(law: Law, known: int, bits: int, digits: int) -> int | None:
    """The outcome of every real in [known, known+1)/2^bits, or None if they differ or the digits do not tell."""
    a = arithmetic(digits)
    unit = Decimal(2**bits)
    low, high = a.down.divide(Decimal(known), unit), a.up.divide(Decimal(known + 1), unit)
    below = (ZERO, ZERO)
    for outcome, mass in enumerate(law.masses(digits)):
        below = a.add(below, mass)
        if high <= below[0]:
            return outcome
        if low < below[1]:
            return None
    return None  # never: the masses of a law sum to 1, which is above ``low``


def binomial_exp(trials: int, x: Fraction, randomness: Randomness) -> int:
    """Successes among ``trials`` coins of probability e^{−x}; time follows the result, never ``trials``.

    The trials are cut into blocks that expect about 32 successes each (the cut depends on x alone).
    """
    if x == 0:
        return trials
    a = arithmetic(20)
    wanted = a.up.divide(Decimal(_BLOCK_MEAN), a.exp_minus(a.rational(x))[1])
    block = trials if wanted >= trials else int(wanted)
    total, left = 0, trials
    while left > 0:
        size = min(block, left)
        total += invert(BinomialLaw(size, x), randomness)
        left -= size
    return total


def poisson(mean: Fraction, randomness: Randomness) -> int:
    """A Poisson draw, as a sum of blocks of mean 32 at most."""
    total = 0
    while mean > _BLOCK_MEAN:
        total += invert(PoissonLaw(Fraction(_BLOCK_MEAN)), randomness)
        mean -= _BLOCK_MEAN
    return total + (invert(PoissonLaw(mean), randomness) if mean else 0)


def truncated_negative_binomial(shape: Fraction, gamma: Fraction, randomness: Randomness) -> int:
    """K ≥ 1 of Papernot and Steinke's law (see :class:`TruncatedNegativeBinomialLaw`)."""
    return 1 + invert(TruncatedNegativeBinomialLaw(shape, gamma), randomness)


def subset(size: int, count: int, randomness: Randomness) -> list[int]:
    """``count`` distinct numbers below ``size``, uniform over such sets, ascending (Floyd's algorithm)."""
    chosen: set[int] = set()
    for bound in range(size - count, size):
        pick = randomness.below(bound + 1)
        chosen.add(bound if pick in chosen else pick)
    return sorted(chosen)
