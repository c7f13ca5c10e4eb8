"""Which groups exist, privately: noisy counts above a threshold (Korolova et al. 2009; Google's partition selection).

Each person contributes to at most ``contributions`` groups (the first by name: a choice that looks at that person's groups only). Group
counts then change by at most one in at most that many groups. With discrete Laplace noise of scale contributions/ε, keeping groups whose
noisy count reaches t is (ε, δ)-DP when a group of one person passes with probability at most δ/contributions:
P(1 + Z ≥ t) = p^{t−1}/(1+p), p = e^{−ε/contributions}.
Test: ``tests/analytics/test_private_keys.py`` (exact, by enumeration).
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from expost.errors import InvalidInput
from expost.privacy.guarantees import ApproxDP
from expost.randomness import samplers
from expost.randomness.source import Randomness
from expost.rationals import count_of, exact_positive


def threshold(epsilon: float, delta: float, contributions: int) -> int:
    """The least t for which a group of one person passes with probability at most δ/contributions (one step on the safe side)."""
    rate = float(exact_positive(epsilon, "epsilon")) / contributions
    # p^{t−1}/(1+p) ≤ δ/c  ⇔  (t−1)·rate ≥ −ln(δ/c) − ln(1+p)
    needed = (-math.log(delta / contributions) - math.log1p(math.exp(-rate))) / rate
    return 1 + math.ceil(needed * (1 + 1e-12)) + 1


def select_groups(
    counts: npt.NDArray[np.int64],
    epsilon: float,
    delta: float,
    contributions: int,
    randomness: Randomness,
) -> npt.NDArray[np.bool_]:
    """Which groups are released, given their counts after bounding contributions. Keeps ``partition_guarantee``."""
    count_of(contributions, "max_groups_per_user", at_least=1)
    if not 0 < delta < 1:
        raise InvalidInput("delta", delta, "give 0 < delta < 1")
    scale = contributions / exact_positive(epsilon, "epsilon")
    noisy = counts + samplers.discrete_laplace(Fraction(scale), len(counts), randomness)
    return np.asarray(noisy >= threshold(epsilon, delta, contributions))


def partition_guarantee(epsilon: float, delta: float) -> ApproxDP:
    """What the selection of groups promises."""
    return ApproxDP(epsilon, delta)
