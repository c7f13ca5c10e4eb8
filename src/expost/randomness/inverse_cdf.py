"""One exact draw from a distribution that is known only through brackets; random subsets.

A uniform real number is compared with the cumulative distribution function. Both are refined until
the comparison is certain, so the draw is exact.

The caller passes parameters in the stated ranges; they are not checked here.

Tests: ``tests/randomness/test_inverse_cdf.py`` enumerates all bit sequences;
``tests/statistical/test_samplers.py`` makes chi-square tests.
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
    """Return one exact draw of ``law``.

    Parameters
    ----------
    law : Law
        The distribution.
    randomness : Randomness
        The source of random bits.
    prefix : int, default 0
        The first bits of the uniform real, where they are known already.
    prefix_bits : int, default 0
        How many bits ``prefix`` has.
    chunk : int, default 64
        How many bits are drawn at a time.
    digits : int, default 45
        The least number of decimal digits to compute with.

    Returns
    -------
    int
        The outcome.
    """
    known, bits = prefix, prefix_bits
    if bits == 0:
        known, bits = randomness.bits(chunk), chunk
    while True:
        outcome = _locate(law, known, bits, max(digits, bits // 3 + 10))
        if outcome is not None:
            return outcome
        known, bits = (known << chunk) | randomness.bits(chunk), bits + chunk


def _locate(law: Law, known: int, bits: int, digits: int) -> int | None:
    """The outcome that all reals in [known, known+1)/2^bits have, or None.

    None means that their outcomes differ, or that the digits do not suffice to decide.
    """
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
    return None  # never reached: the masses of a law sum to 1, which is above ``low``


def binomial_exp(trials: int, x: Fraction, randomness: Randomness) -> int:
    """Return the number of successes among ``trials`` coins of probability e^{−x}.

    Parameters
    ----------
    trials : int
        Number of coins, ≥ 0.
    x : Fraction
        At least 0.
    randomness : Randomness
        The source of random bits.

    Returns
    -------
    int
        The number of successes.

    Notes
    -----
    The time grows with the result, not with ``trials``. The trials are divided into blocks that
    have about 32 expected successes each; the size of a block depends on x alone.
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
    """Return a Poisson draw, as a sum of draws with mean at most 32.

    Parameters
    ----------
    mean : Fraction
        At least 0.
    randomness : Randomness
        The source of random bits.

    Returns
    -------
    int
        The draw.
    """
    total = 0
    while mean > _BLOCK_MEAN:
        total += invert(PoissonLaw(Fraction(_BLOCK_MEAN)), randomness)
        mean -= _BLOCK_MEAN
    return total + (invert(PoissonLaw(mean), randomness) if mean else 0)


def truncated_negative_binomial(shape: Fraction, gamma: Fraction, randomness: Randomness) -> int:
    """Return a draw K ≥ 1 of the truncated negative binomial distribution.

    Parameters
    ----------
    shape, gamma : Fraction
        As in :class:`~expost.randomness.distributions.TruncatedNegativeBinomialLaw`.
    randomness : Randomness
        The source of random bits.

    Returns
    -------
    int
        The draw.
    """
    return 1 + invert(TruncatedNegativeBinomialLaw(shape, gamma), randomness)


def subset(size: int, count: int, randomness: Randomness) -> list[int]:
    """Return a uniformly random set of distinct whole numbers (Floyd's algorithm).

    Parameters
    ----------
    size : int
        The numbers are at least 0 and below ``size``.
    count : int
        How many numbers to return, at most ``size``.
    randomness : Randomness
        The source of random bits.

    Returns
    -------
    list of int
        The numbers, ascending.
    """
    chosen: set[int] = set()
    for bound in range(size - count, size):
        pick = randomness.below(bound + 1)
        chosen.add(bound if pick in chosen else pick)
    return sorted(chosen)
