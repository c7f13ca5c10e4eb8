"""Goals of a whole job: K groups within the error, or the k largest groups with confidence.

Both look at all groups at one level after another and stop by a rule on released values, so they
cost what the last level costs: m times its cost (``refinement``).

**K groups within the error** (``answered``). A group passes a level if its estimate is good enough
by a single look. The job stops at the first level S at which b = K + 1 groups pass, or at the last
level. A group g is *late* if exactly b − 1 groups passed at an earlier level, and g was not one of
them. Let a be the first level at which b − 1 groups other than g pass (the last level if there is
none); it depends on the noise of the others only. If g passes at S and is not late, then S = a: at
S at least b − 1 others pass, or S is the last level; and had b − 1 others passed at an earlier
level, either b groups would have passed there, or g would be late. So P(g passes, is not late, and
its interval at S misses) ≤ P(its interval at level a misses) ≤ 1 − confidence. In the same way, if
g does not pass at S, then S is the first level at which b others pass, and a single look is enough
for g, too. Only groups that pass and are not late are called answered; late groups have intervals
that hold at all levels at once. b is K + 1 because mostly one group is late.

**The k largest groups** (``top``, Laplace noise of scale s). Write A for the set of the k largest
estimates at a level, T for the k largest values, and gap for the distance between the k-th and the
next estimate. For t ≥ 4s

    P(gap ≥ t and A ≠ T) ≤ g(t/s) · P(A ≠ T),  g(t) = 1.001·(1 + 2t/3)·e^{−t}.

*Proof.* Let s = 1. The events A = A₀ are disjoint: fix A₀ ≠ T and groups i in A₀ but not in T, j in
T but not in A₀, so y_j ≥ y_i. Fix the noise of all groups but i and j, and put x = z_i, w = −z_j,
two independent Laplace variables. A = A₀ says x ≥ α, w ≥ β and x + w ≥ γ, γ = y_j − y_i ≥ 0, where
α and β come from the other groups; with the gap each of the three bounds rises by t. Write φ(u) =
P(x ≥ u), so φ(u + t) = e^{−t}φ(u) for u ≥ 0, and compare the integrals over w of φ(max(α, γ − w)).
Where max(α, γ − w) ≥ 0 the integrand falls by the factor e^{−t}. Elsewhere w = γ + v with v ≥ 0 and
a = −α ≥ 0. If β ≤ γ the integrals are e^{−γ}/2 times N(a) = ∫e^{−v}φ(t − min(a, v))dv at most, and
D(a) = ∫e^{−v}φ(−min(a, v))dv = 3/4 − e^{−2a}/4. For a ≤ t, N(a) = e^{−t}(1 + a)/2, and N/D ≤
e^{−t}(1 + t)/1.5 · 1/(1 − e^{−2a}/3) is at most g(t) (a = 0: e^{−t}; it grows with a). For a > t, N
≤ e^{−t}(t/2 + 3/4) and D ≥ 3/4 − e^{−2t}/4: N/D ≤ (1 + 2t/3)e^{−t}/(1 − e^{−2t}/3) ≤ g(t). If β >
γ, N is at most e^{−(β−γ)−t} and D at least e^{−(β−γ)}/2: N/D ≤ 2e^{−t}. Sum over A₀. ∎

Discrete noise is within 1 of continuous noise in a common draw (``means``), so a gap of t + 2 is
asked for. Each level has an equal share of 1 − confidence; so P(the list is stated and wrong) ≤ 1 −
confidence, wherever the job stops. Values that tie may be listed in either order.
Tests: ``tests/analytics/test_refinement_goals.py`` (exact laws of small jobs, simulation, mutants).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from expost.analytics.refinement_noise import (
    NoiseLevels,
    StoppingRule,
    geometric_grid,
    half_width,
    simultaneous_half_width,
)
from expost.rationals import round_down

SINGLE, TOP = "single", "top"
_RANGE, _RATIO = 32, 1.015  # levels of ``answered``: from a 32nd of what all can afford
_GAUSSIAN_RATIO = 1.05  # of ρ; each level is a draw of its own
_TOP_RANGE, _TOP_RATIO = 32, 1.3
_LEAST_GAP = 4.0  # in scales; the proof needs it


def one_level_for_all(wanted: Any, groups: int, most: int) -> bool:
    """Whether a job looks at all groups at one level: K groups wanted, and only m are charged."""
    return wanted.answered is not None and wanted.within is not None and most < groups


def goal_levels(
    least: Fraction, shared: Fraction, *, top: bool, gaussian: bool = False
) -> tuple[float, ...]:
    """Return the levels up to what all groups can afford."""
    reach, ratio = (_TOP_RANGE, _TOP_RATIO) if top else (_RANGE, _RATIO)
    ratio = _GAUSSIAN_RATIO if gaussian else ratio
    first = max(least, shared / reach)
    return geometric_grid(round_down(min(first, shared)), round_down(shared), ratio)


def single_rule(
    levels: NoiseLevels, within: float, confidence: float, signed: bool
) -> StoppingRule:
    """Return the rule of ``answered``: single looks decide, other intervals hold at all levels."""
    everywhere = simultaneous_half_width(levels, confidence)
    least = half_width(levels, confidence) / within
    return StoppingRule(within, confidence, SINGLE, 1.0, least, everywhere, everywhere, signed)


def late_groups(passed: Sequence[npt.NDArray[np.bool_]], enough: int) -> npt.NDArray[np.bool_]:
    """Return the groups that may have decided on the last of these levels.

    They did not pass at an earlier level at which all but one of ``enough`` groups did.
    """
    late = np.zeros(len(passed[0]) if passed else 0, dtype=bool)
    for level in passed[:-1]:
        if level.sum() == enough - 1:
            late |= ~level
    return late


def top_rule(levels: NoiseLevels, confidence: float) -> StoppingRule:
    """Return the rule of ``top``: ``least`` holds the gaps that state the list."""
    share = (1 - confidence) / len(levels.costs)
    gaps = levels.scales * _least_gap(share) + 2
    everywhere = simultaneous_half_width(levels, confidence)
    return StoppingRule(None, confidence, TOP, 1.0, gaps, everywhere, everywhere, True)


def wrong_list(gap: float) -> float:
    """Return g: a bound of P(the list is stated and wrong) for a gap in scales of the noise."""
    return 1.001 * (1 + 2 * gap / 3) * math.exp(-gap) if gap >= _LEAST_GAP else 1.0


def _least_gap(chance: float) -> float:
    """The gap, in scales, at which the bound is at most ``chance``; rounded up."""
    low, high = _LEAST_GAP, 1000.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if wrong_list(middle) <= chance else (middle, high)
    return high
