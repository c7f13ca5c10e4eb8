"""Noise levels of a refinement: costs in ε (Laplace) or ρ (Gaussian), coarse to fine.

A group that was looked at up to level n has cost ε_n (or ρ_n), whatever was seen before
(``mechanisms.noise_paths``). More levels therefore cost nothing in privacy: the refinement stops
closer to what is needed. More looks must be paid for by the coverage of the intervals
(``intervals``).

:func:`ladder` makes the default levels: ratio √2 while a look costs little, ratio 1.2 around the
level that every group can afford. All values are integers (counts, or sums in grid units) and the
noise is drawn on the integers, exactly.
Tests: ``tests/analytics/test_noise_levels.py``.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, log

import numpy as np
import numpy.typing as npt

from expost.arrays import Floats
from expost.errors import InvalidInput
from expost.mechanisms.noise_paths import laplace_paths
from expost.randomness import samplers
from expost.randomness.source import Randomness
from expost.rationals import Number, exact, exact_positive

MOST_LEVELS = 400
COARSE_RATIO, FINE_RATIO = math.sqrt(2), 1.2


def geometric_grid(first: Number, last: Number, ratio: Number) -> tuple[float, ...]:
    """Return first, first·ratio, … and ``last``; each float is taken as the rational it is."""
    low, high = exact_positive(first, "first level"), exact_positive(last, "last level")
    if exact(ratio, "ratio") <= 1:
        raise InvalidInput("ratio", ratio, "give a number > 1")
    if low >= high:
        return (float(high),)
    count = ceil(log(float(high) / float(low)) / log(float(ratio)) - 1e-9)
    if count >= MOST_LEVELS:
        raise InvalidInput(
            "ratio",
            ratio,
            f"that makes {count + 1} levels; give a larger ratio (at most {MOST_LEVELS} levels)",
        )
    grid = [float(low) * float(ratio) ** place for place in range(count)]
    return (*[each for each in grid if each < float(high)], float(high))


def ladder(first: Number, shared: Number, last: Number) -> tuple[float, ...]:
    """Return the default levels: ``shared`` is what every group can afford, ``last`` what one can.

    Next to ``shared`` come shared/1.08, shared/1.5 and shared·1.44; further away the ratio is 1.2,
    and √2 where a look costs less than an eighth of ``shared``. Looks at other places near
    ``shared`` would make its intervals wider (found by trial; any levels are valid).
    """
    low, middle, high = float(first), min(float(shared), float(last)), float(last)
    start = min(middle / 1.5, max(low, middle / 8))
    levels = [
        middle / 1.08,
        middle,
        *geometric_grid(low, max(low, start), COARSE_RATIO),
        *geometric_grid(start, middle / 1.5, FINE_RATIO),
        *geometric_grid(min(high, middle * 1.44), high, FINE_RATIO),
    ]
    return tuple(sorted({each for each in levels if low <= each <= high}))


def spaced_ladder(first: Number, shared: Number, last: Number) -> tuple[float, ...]:
    """Return levels of ratio √2 around ``shared``, for means: few of them can be where one stops.

    The fewer levels a group may stop at, the less its interval is widened for the choice.
    """
    low, middle, high = float(first), min(float(shared), float(last)), float(last)
    below = [middle]
    while below[-1] / COARSE_RATIO >= low:
        below.append(below[-1] / COARSE_RATIO)
    above = [middle * COARSE_RATIO]
    while above[-1] < high / FINE_RATIO:
        above.append(above[-1] * COARSE_RATIO)
    near = [level for level in above if level < high / FINE_RATIO]
    return tuple(sorted({*below, *near, high} if high > middle * FINE_RATIO else set(below)))


@dataclass(frozen=True)
class NoiseLevels(ABC):
    """Costs per level, ascending, and noise for values of a given ``sensitivity``."""

    costs: tuple[float, ...]
    sensitivity: int = 1

    law = "laplace"

    @property
    @abstractmethod
    def scales(self) -> Floats:
        """Scale (Laplace) or standard deviation (Gaussian) of the estimate at each level."""

    @abstractmethod
    def estimates(self, counts: npt.NDArray[np.int64], randomness: Randomness) -> Floats:
        """Noisy values (levels × groups): row n may be looked at once cost n is paid."""


@dataclass(frozen=True)
class LaplaceLevels(NoiseLevels):
    """Pure DP: cost ε, scale sensitivity/ε."""

    law = "laplace"

    @property
    def scales(self) -> Floats:
        return self.sensitivity / np.array(self.costs)

    def estimates(self, counts: npt.NDArray[np.int64], randomness: Randomness) -> Floats:
        exact_scales = [self.sensitivity / Fraction(cost) for cost in self.costs]
        return (laplace_paths(exact_scales, len(counts), randomness) + counts).astype(np.float64)


@dataclass(frozen=True)
class GaussianLevels(NoiseLevels):
    """zCDP: cost ρ, variance sensitivity²/(2ρ).

    The estimate is the inverse-variance average of independent discrete Gaussian releases.
    """

    law = "gaussian"

    @property
    def scales(self) -> Floats:
        return self.sensitivity * np.sqrt(0.5 / np.array(self.costs))

    def estimates(self, counts: npt.NDArray[np.int64], randomness: Randomness) -> Floats:
        averages = np.empty((len(self.costs), len(counts)))
        total = np.zeros(len(counts))
        before = Fraction(0)
        for level, cost in enumerate(self.costs):
            increment = Fraction(cost) - before  # in ρ; variance sensitivity²/(2·increment)
            release = counts + samplers.discrete_gaussian(
                self.sensitivity**2 / (2 * increment), len(counts), randomness
            )
            total += float(increment) * release
            averages[level] = total / cost
            before = Fraction(cost)
        return averages
