"""Noise levels of a refinement: a geometric grid of ε (Laplace) or ρ (Gaussian), coarse to fine, and estimates at each.

A group looked at up to level n has cost ε_n (or ρ_n), whatever was seen before (``mechanisms.noise_reduction``). A finer grid therefore
costs nothing in privacy: it stops closer to the need (less ε wasted), but looks more often, which the coverage of the intervals has to pay
for (``rules``).
"""

from __future__ import annotations

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


def geometric_grid(first: Number, last: Number, ratio: Number) -> tuple[float, ...]:
    """first, first·ratio, … and ``last``; each a float, which is taken as the rational it is."""
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


@dataclass(frozen=True)
class NoiseLevels(ABC):
    """Costs per level, ascending, and the noise that goes with them for counts of sensitivity 1."""

    costs: tuple[float, ...]

    law = "laplace"

    @property
    @abstractmethod
    def scales(self) -> Floats:
        """Scale (Laplace) or standard deviation (Gaussian) of the estimate at each level."""

    @abstractmethod
    def estimates(self, counts: npt.NDArray[np.int64], randomness: Randomness) -> Floats:
        """Noisy counts (levels × groups): row n may be looked at once cost n is paid."""


@dataclass(frozen=True)
class LaplaceLevels(NoiseLevels):
    """Pure DP: cost ε, scale 1/ε."""

    law = "laplace"

    @property
    def scales(self) -> Floats:
        return 1.0 / np.array(self.costs)

    def estimates(self, counts: npt.NDArray[np.int64], randomness: Randomness) -> Floats:
        exact_scales = [1 / Fraction(cost) for cost in self.costs]
        return (laplace_paths(exact_scales, len(counts), randomness) + counts).astype(np.float64)


@dataclass(frozen=True)
class GaussianLevels(NoiseLevels):
    """zCDP: cost ρ, variance 1/(2ρ); the estimate is the inverse-variance average of independent discrete releases."""

    law = "gaussian"

    @property
    def scales(self) -> Floats:
        return np.sqrt(0.5 / np.array(self.costs))

    def estimates(self, counts: npt.NDArray[np.int64], randomness: Randomness) -> Floats:
        averages = np.empty((len(self.costs), len(counts)))
        total = np.zeros(len(counts))
        before = Fraction(0)
        for level, cost in enumerate(self.costs):
            increment = Fraction(cost) - before  # in ρ; a release of variance 1/(2·increment)
            release = counts + samplers.discrete_gaussian(
                1 / (2 * increment), len(counts), randomness
            )
            total += float(increment) * release
            averages[level] = total / cost
            before = Fraction(cost)
        return averages
