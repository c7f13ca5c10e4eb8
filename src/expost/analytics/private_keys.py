"""Which groups exist, privately: noisy counts above a threshold.

Each user keeps at most m groups, chosen by a salted hash (``contribution``). The count of a group
is the number of users who keep it. A group of count 0 does not occur, whoever has rows in it; noise
is added to the counts of the groups that occur, and a group is released if its noisy count reaches
the threshold t.

*At most m groups are new.* Let one table have user u in addition. Which groups the others keep does
not depend on u, so the counts differ in the groups that u keeps, at most m, by one each. A group
occurs in only one of the two tables if u alone keeps it: then its count is 1 there and 0 in the
other. Groups of which u has rows but which u does not keep (rank m and above) have the same count,
possibly 0, in both. A new group is released with probability p = P(1 + Z ≥ t); of at most m new
groups none is released with probability at least (1 − p)^m. The other groups cost what their noise
costs. So with 1 − (1 − p)^m ≤ δ the selection is, in both directions,

- Laplace, scale m/ε: (ε, δ)-DP (Korolova et al. 2009);
- Gaussian, variance m/(2ρ): ρ-zCDP except with probability δ, that is δ-approximate ρ-zCDP
  (Bun and Steinke 2016, Definition 8.1), which composes with the counts by adding ρ and δ.

The Gaussian threshold grows with √m, the Laplace one with m. The threshold is the least integer
that the bound allows: p is bounded from above by the exact discrete Laplace tail, or by the normal
tail moved by ½ (``refinement_noise``, (a): P(Z ≥ k) ≤ P(N ≥ k − ½) for integers k ≥ 1).
Test: ``tests/analytics/test_private_keys.py`` (exact, by enumeration; against OpenDP's threshold).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

from expost.errors import InvalidInput
from expost.randomness import samplers
from expost.randomness.source import Randomness
from expost.rationals import count_of, exact_positive


@dataclass(frozen=True)
class KeySelection:
    """How groups are found: noise, its cost (ε or ρ), δ, the cap and the threshold."""

    noise: str
    cost: float
    delta: float
    contributions: int
    threshold: int

    def as_dict(self) -> dict[str, Any]:
        """Return the public facts for JSON."""
        name = "epsilon" if self.noise == "laplace" else "rho"
        return {
            "noise": self.noise,
            name: self.cost,
            "delta": self.delta,
            "max_groups_per_user": self.contributions,
            "threshold": self.threshold,
        }

    def select(
        self, counts: npt.NDArray[np.int64], randomness: Randomness
    ) -> npt.NDArray[np.bool_]:
        """Return which groups are released, given their counts after the cap.

        A group of count 0 is never released: in the neighbouring table it may not be listed at all.
        """
        cost = exact_positive(self.cost, "cost")
        if self.noise == "laplace":
            noise = samplers.discrete_laplaces(self.contributions / cost, len(counts), randomness)
        else:
            variance = Fraction(self.contributions) / (2 * cost)
            noise = samplers.discrete_gaussians(variance, len(counts), randomness)
        return np.asarray((counts > 0) & (counts + noise >= self.threshold))


def best_selection(rho: float, delta: float, contributions: int) -> KeySelection:
    """Return the selection of cost ρ with the smaller threshold.

    Laplace noise of ε = √(2ρ) is ρ-zCDP; both kinds then compose with the counts in the same way.
    """
    check_delta_and_cap(delta, contributions)
    epsilon = math.sqrt(2 * rho) * (1 - 1e-12)
    laplace = laplace_threshold(epsilon, delta, contributions)
    gaussian = gaussian_threshold(rho, delta, contributions)
    if laplace < gaussian:
        return KeySelection("laplace", epsilon, delta, contributions, laplace)
    return KeySelection("gaussian", rho, delta, contributions, gaussian)


def check_delta_and_cap(delta: float, contributions: int) -> None:
    """Refuse a δ or a cap that cannot be meant."""
    count_of(contributions, "max_groups_per_user", at_least=1)
    if not 0 < delta < 1:
        raise InvalidInput("delta", delta, "give 0 < delta < 1")


def chance_of_one(delta: float, contributions: int) -> float:
    """Return the largest p with 1 − (1 − p)^m ≤ δ, rounded down."""
    return -math.expm1(math.log1p(-delta) / contributions) * (1 - 1e-9)


def laplace_threshold(epsilon: float, delta: float, contributions: int) -> int:
    """Return the least t with P(1 + Z ≥ t) = q^{t−1}/(1+q) ≤ p, q = e^{−ε/m}."""
    rate = float(exact_positive(epsilon, "epsilon")) / contributions
    needed = -math.log(chance_of_one(delta, contributions)) - math.log1p(math.exp(-rate))
    return 1 + max(1, math.ceil(needed / rate * (1 + 1e-12)))


def gaussian_threshold(rho: float, delta: float, contributions: int) -> int:
    """Return the least t with P(N ≥ t − 1 − ½) ≤ p, where N has variance m/(2ρ)."""
    deviation = math.sqrt(contributions / (2 * float(exact_positive(rho, "rho"))))
    quantile = -NormalDist().inv_cdf(chance_of_one(delta, contributions))
    return 1 + max(1, math.ceil(deviation * quantile * (1 + 1e-9) + 0.5))
