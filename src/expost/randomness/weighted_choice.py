"""One exact draw of an index whose probability is proportional to m_k·e^{−rate·d_k}.

The masses m_k and the distances d_k are whole numbers and the rate is rational: this is the
exponential mechanism with a base measure. A 64-bit word is the beginning of a uniform real number.
Floating point narrows the cumulative weights down to intervals; the relative error of each one is
far below :data:`_ERROR` per outcome. If the word lies in one outcome whatever the errors are, that
is the draw. Otherwise :func:`~expost.randomness.coins.invert` continues with the same word
and certified brackets. So the draw is exact, and no rounded number decides it.
Tests: ``tests/randomness/test_weighted_choice.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from expost.arrays import Integers
from expost.randomness.coins import ZERO, Bracket, arithmetic, invert
from expost.randomness.source import Randomness

_WORD = 2.0**64
_ERROR = 2.0**-49  # per outcome, of the cumulative weights; exp, product and sum err by 2^-51
_ALWAYS = 4096  # outcomes' worth of error for the exponents: a rounded one errs by ≤ 1075·2^-53


@dataclass(frozen=True)
class ExponentialLaw:
    """P(k) ∝ masses[k]·e^{−rate·distances[k]}; distances are ≥ 0, and one mass is positive."""

    masses_: Sequence[int]
    distances: Sequence[int]
    rate: Fraction

    def masses(self, precision: int) -> Iterator[Bracket]:
        """Yield brackets of P(0), P(1), …; see ``Law.masses``."""
        a = arithmetic(precision)
        nearest = min(self.distances)
        weights = [
            a.times_ratio(a.exp_minus(a.rational(self.rate * (distance - nearest))), mass, 1)
            for mass, distance in zip(self.masses_, self.distances, strict=True)
        ]
        total: Bracket = (ZERO, ZERO)
        for weight in weights:
            total = a.add(total, weight)
        for weight in weights:
            yield a.over(weight, total)


def weighted_choice(
    masses: Integers, distances: Integers, rate: Fraction, randomness: Randomness
) -> int:
    """Return k with probability proportional to masses[k]·e^{−rate·distances[k]}.

    ``masses``: ≥ 0, at most 2^53, one of them positive. ``distances``: ≥ 0. ``rate``: ≥ 0. Where
    the nearest outcome has mass 0, the masses of the others still decide.
    """
    nearest = int(distances[masses > 0].min())
    apart = np.maximum(distances - nearest, 0)
    upto = np.cumsum(masses * np.exp(-float(rate) * apart))
    word = int(randomness.words(1)[0])
    total, error = float(upto[-1]), _ERROR * (len(upto) + _ALWAYS)
    low = total * (word / _WORD - error)
    high = total * ((word + 1) / _WORD + error)
    first, last = np.searchsorted(upto, (low, high), side="right")
    if first == last and first < len(upto):
        return int(first)
    law = ExponentialLaw(masses.tolist(), distances.tolist(), rate)
    return invert(law, randomness, prefix=word, prefix_bits=64)
