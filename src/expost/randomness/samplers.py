"""Many exact draws at once: one 64-bit word a draw against a table of ⌊2^64·F(k)⌋.

A word differing from every table entry settles the draw for *all* continuations of the uniform real it begins. A word that
equals an entry (probability 2^-64 an entry), or lies beyond the table, is continued by :func:`invert` with more bits. So
the law is exact although nearly every draw costs one look-up.
"""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from math import ceil

import numpy as np
import numpy.typing as npt

from expost.arrays import Integers
from expost.errors import InvalidInput
from expost.randomness import coins
from expost.randomness.distributions import (
    ZERO,
    FoldedGaussianLaw,
    GeometricLaw,
    KeepLaw,
    Law,
    arithmetic,
)
from expost.randomness.inverse_cdf import invert
from expost.randomness.source import Randomness

_DIGIT = 4096  # base in which large geometric draws are written
_LARGEST_TABLE = 16384
_TAIL = 45  # e^{−45} < 2^{−64}
_LARGEST_SCALE = 2**50  # keeps every sum inside 64 bits
_LARGEST_TABLED_DEVIATION = 2048


class InversionTable:
    """The first ``size`` outcomes of a law (all of them, if ``complete``), for look-up by words of ``width`` bits."""

    def __init__(self, law: Law, size: int, *, complete: bool = False, width: int = 64) -> None:
        self.law = law
        self.width = width
        self.bounds = _bounds(law, size - 1 if complete else size, width)
        self.complete = complete and len(self.bounds) == size - 1

    def draw(self, count: int, randomness: Randomness) -> Integers:
        words = randomness.words(count)
        if self.width < 64:
            words = words >> np.uint64(64 - self.width)
        outcomes = np.searchsorted(self.bounds, words, side="right").astype(np.int64)
        unsure = np.zeros(count, dtype=np.bool_)
        if len(self.bounds):
            unsure |= words == self.bounds[np.maximum(outcomes - 1, 0)]
        if not self.complete:
            unsure |= outcomes == len(self.bounds)
        for place in np.flatnonzero(unsure):
            outcomes[place] = invert(
                self.law, randomness, prefix=int(words[place]), prefix_bits=self.width
            )
        return outcomes


def _bounds(law: Law, size: int, width: int) -> npt.NDArray[np.uint64]:
    """⌊2^width·F(k)⌋ for k < size, shorter if the digits cannot tell F(k) from 1; each certain."""
    unit = Decimal(2**width)
    digits = 45
    while True:
        a = arithmetic(digits)
        below = (ZERO, ZERO)
        bounds: list[int] = []
        for _, mass in zip(range(size), law.masses(digits), strict=False):
            below = a.add(below, mass)
            low, high = int(a.down.multiply(below[0], unit)), int(a.up.multiply(below[1], unit))
            if low != high:
                break
            bounds.append(low)
        else:
            return np.array(bounds, dtype=np.uint64)
        if low == 2**width - 1:
            return np.array(bounds, dtype=np.uint64)
        digits *= 2


@lru_cache(maxsize=256)
def _geometric_tables(rate: Fraction) -> tuple[tuple[InversionTable, ...], InversionTable]:
    """Tables of the base-4096 digits of a geometric draw (they are independent), and of what stands above them."""
    digits: list[InversionTable] = []
    top = rate
    while _TAIL / top > _LARGEST_TABLE:
        digits.append(InversionTable(GeometricLaw(top, _DIGIT), _DIGIT, complete=True))
        top *= _DIGIT
    return tuple(digits), InversionTable(GeometricLaw(top), ceil(_TAIL / top) + 1)


def geometric(rate: Fraction, count: int, randomness: Randomness) -> Integers:
    """``count`` draws of k with probability (1−e^{−rate})·e^{−rate·k}."""
    if rate * _LARGEST_SCALE < 1:
        raise InvalidInput(
            "scale", 1 / rate, f"vectorised draws take a scale ≤ 2^50 = {_LARGEST_SCALE}"
        )
    digits, top = _geometric_tables(rate)
    total = top.draw(count, randomness)
    for digit in reversed(digits):
        total = total * _DIGIT + digit.draw(count, randomness)
    return total


def discrete_laplace(scale: Fraction, count: int, randomness: Randomness) -> Integers:
    """``count`` draws of y with probability ∝ e^{−|y|/scale}: the difference of two geometric draws."""
    rate = 1 / scale
    return geometric(rate, count, randomness) - geometric(rate, count, randomness)


@lru_cache(maxsize=1024)
def _keep_table(coarse: Fraction, fine: Fraction) -> InversionTable:
    return InversionTable(KeepLaw(coarse, fine), 2, complete=True)


def keep_coins(
    coarse: Fraction, fine: Fraction, count: int, randomness: Randomness
) -> npt.NDArray[np.bool_]:
    """``count`` coins of noise reduction: True with probability (p_b/p_a)·((1−p_a)/(1−p_b))²."""
    return np.asarray(_keep_table(coarse, fine).draw(count, randomness) == 0)


@lru_cache(maxsize=64)
def _gaussian_table(variance: Fraction) -> InversionTable:
    deviations = 10  # e^{−50} < 2^{−64}
    return InversionTable(
        FoldedGaussianLaw(variance), 2 * ceil(deviations * float(variance) ** 0.5) + 3
    )


def discrete_gaussian(variance: Fraction, count: int, randomness: Randomness) -> Integers:
    """``count`` draws of y with probability ∝ e^{−y²/(2·variance)}.

    Above a standard deviation of 2,048 the draws are made one at a time (:func:`coins.discrete_gaussian`).
    """
    if variance > _LARGEST_TABLED_DEVIATION**2:
        return np.array(
            [coins.discrete_gaussian(variance, randomness) for _ in range(count)], dtype=np.int64
        )
    folded = _gaussian_table(variance).draw(count, randomness)
    return np.where(folded % 2 == 1, -((folded + 1) // 2), folded // 2)
