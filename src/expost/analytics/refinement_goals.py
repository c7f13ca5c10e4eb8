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

**The k largest groups** (``top``). The k largest estimates of a level propose a list A. Whether it
is right is tested. Write y for the values and

    q(A) = min_{i in A} y_i − max_{j not in A} y_j.

A is right (ties may be listed in either order) exactly if q(A) ≥ 0. *Sensitivity.* A person adds to
every value something between 0 and Δ, in any number of groups. Both the minimum and the maximum
rise by 0 to Δ, so q(A) moves by at most Δ: a test of q(A) costs what a look at **one** group costs,
not m. Where values may be negative it moves by at most 2Δ. *Test* number j: q(A) plus fresh noise
is at least h, where noise of this scale is above h with probability at most α_j. A and the scale of
the noise are chosen from released values. *Confidence.* Given all that happened before test j, a
wrong list has q(A) < 0 and passes with probability at most α_j. So P(a list is stated and wrong) ≤
Σ α_j ≤ 1 − confidence, for every table, any number of groups and levels, and wherever the job
stops. *Charge.* Looks and tests are composed adaptively: m times the cost of the last level and the
costs of all tests (``Refinement.spent``), which never exceed the total.

A test is made when the gap between the k-th and the next estimate is large compared with the noise
(the fewer groups a person is in, the dearer is a test, and the larger the gap), with noise that a
list with this gap would mostly pass. The same list is tested again at twice the cost only.
Tests: ``tests/analytics/test_refinement_goals.py`` (coverage on hostile tables, joint law of small
jobs by enumeration, mutants).
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
    half_widths_at,
    simultaneous_half_width,
)
from expost.randomness.source import Randomness
from expost.rationals import round_down

SINGLE, TOP = "single", "top"
_RANGE, _RATIO = 32, 1.015  # levels of ``answered``: from a 32nd of what all can afford
_GAUSSIAN_RATIO = 1.05  # of ρ; each level is a draw of its own
_TOP_RANGE, _TOP_RATIO = 64, 1.1
TEST_PART = 3  # of the total is kept for tests: as much as the looks at three groups
_FIRST_TEST = 0.7  # of 1 − confidence; later tests have 0.3 of what the one before had
_CLEAR, _BELOW = 1.0, 0.5  # noises that a test leaves for its own noise and that of the gap


def one_level_for_all(wanted: Any, groups: int, most: int) -> bool:
    """Whether a job looks at all groups at one level: K groups wanted, and only m are charged."""
    return wanted.answered is not None and wanted.within is not None and most < groups


def goal_levels(
    least: Fraction, shared: Fraction, *, top: bool, gaussian: bool = False
) -> tuple[float, ...]:
    """Return the levels up to what all groups can afford."""
    reach, ratio = (_TOP_RANGE, _TOP_RATIO) if top else (_RANGE, _RATIO)
    if gaussian:  # costs are squares
        reach, ratio = (reach**2, ratio**2) if top else (reach, _GAUSSIAN_RATIO)
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


def top_rule(levels: NoiseLevels, confidence: float, signed: bool) -> StoppingRule:
    """Return the rule of ``top``: no group stops by itself, intervals hold at all levels."""
    never = np.full(len(levels.costs), math.inf)
    everywhere = simultaneous_half_width(levels, confidence)
    return StoppingRule(None, confidence, TOP, 1.0, never, everywhere, everywhere, signed)


class ListTests:
    """The tests of one job: when the next one is made, what it costs, and whether a list passes."""

    def __init__(self, levels: NoiseLevels, rule: StoppingRule, most: int) -> None:
        self._levels, self._sensitivity = levels, levels.sensitivity * (2 if rule.signed else 1)
        self._miss = (1 - rule.confidence) * _FIRST_TEST  # α_j of the next test
        self._gap = 1.5 + 1.5 / most
        self._most, self._last = most, (frozenset[int](), Fraction(0))
        self.spent = Fraction(0)

    def cost(self, listed: frozenset[int], gap: float, level: int, room: Fraction) -> Fraction:
        """Return what a test of this list should cost now; 0 to wait, never more than ``room``."""
        scale, price = float(self._levels.scales[level]), self._levels.costs[level]
        if gap < self._gap * scale:
            return Fraction(0)
        noise = (gap - _BELOW * scale) / (self._noises(level) + _CLEAR)
        wanted = self._sensitivity / noise
        wanted = wanted if self._levels.law == "laplace" else wanted**2 / 2
        cost = Fraction(max(wanted, self._levels.costs[0]))
        if listed == self._last[0] and cost < 2 * self._last[1]:
            cost = 2 * self._last[1]
            if cost > (1 + Fraction(self._most, 2)) * Fraction(price):
                return Fraction(0)
        return Fraction(round_down(min(cost, room))) if 2 * room >= cost else Fraction(0)

    def passes(
        self,
        listed: frozenset[int],
        values: npt.NDArray[np.int64],
        cost: Fraction,
        randomness: Randomness,
    ) -> bool:
        """Test a list and pay for it: whether q plus noise is at least h."""
        inside = np.isin(np.arange(len(values)), list(listed))
        q = int(values[inside].min()) - int(values[~inside].max())
        noise = type(self._levels)((float(cost),), self._sensitivity)
        self.spent += cost
        least = half_widths_at(noise, np.array([2 * self._miss]))[0]
        self._miss *= 1 - _FIRST_TEST
        self._last = listed, cost
        return bool(noise.estimates(np.array([q], dtype=np.int64), randomness)[0, 0] >= least)

    def _noises(self, level: int) -> float:
        """The half-width h of the next test, in scales of its noise."""
        widths = half_widths_at(self._levels, np.full(len(self._levels.costs), 2 * self._miss))
        return float(widths[level] / self._levels.scales[level])
