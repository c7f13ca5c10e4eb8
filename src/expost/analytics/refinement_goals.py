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

**Drawn lists.** Where a person may be in many groups, looks at all of them cost m times as much as
a function of sensitivity Δ. Then the list itself is drawn, by the exponential mechanism: list B
with probability proportional to e^{r·q(B)/(2Δ)}. This costs r in ε and r²/8 in ρ (bounded range),
for any m. Let A be a list with the largest q, d_B = q(A) − q(B), and S(r) the sum of
e^{−r·d_B/(2Δ)} over all other lists. A is drawn with probability 1/(1 + S(r)). For κ > 0 let U be
the largest u ≥ 0 with S(κΔ/u) ≤ e^{−κ} (0 if there is none). *Lemma.* (a) S(κΔ/u) ≤ e^{−κ} for all
0 < u ≤ U. (b) U moves by at most Δ when a person is added or removed. *Proof.* (a) S falls with r.
(b) G(r) = −ln S(r)/r is −ln of the r-norm of the numbers e^{−d_B/(2Δ)}, so it rises with r. Every q
moves by at most Δ, so the largest odds of a list, 1/S(r), change by a factor of at most e^r, and G
by at most 1. Let Δ < u ≤ U, r = κΔ/u and r′ = κΔ/(u − Δ) > r. For a neighbour G′(r′) ≥ G(r′) − 1 ≥
G(r) − 1 ≥ κ/r − 1 = κ/r′, so S′(r′) ≤ e^{−κ} and U′ ≥ u − Δ. ∎ ⌊U⌋ moves by at most Δ as well, a
whole number. It has a noise path of one value, looked at level by level, with half-widths h_n that
its noise exceeds at some level with probability at most β. With u = noisy ⌊U⌋ − h_n > 0 a list is
drawn at r = κΔ/u, when a further look would not make both together cheaper. *Confidence.* U ≥ u
except with probability β, and then a list with a smaller q than A's is drawn with probability at
most 1/(1 + e^κ), the draw being independent of the path. So P(stated and wrong) ≤ β + 1/(1 + e^κ) ≤
1 − confidence. *Charge.* The last look at the path and the draw, composed adaptively. In the end
the listed groups are looked at, at one level that released values decide before: intervals are
those of a single look.
Tests: ``tests/analytics/test_refinement_goals.py`` (coverage on hostile tables, joint law of small
jobs by enumeration, mutants).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from expost.analytics.refinement_noise import (
    GaussianLevels,
    LaplaceLevels,
    NoiseLevels,
    StoppingRule,
    geometric_grid,
    half_width,
    half_widths_at,
    joint_half_widths,
    simultaneous_half_width,
)
from expost.arrays import Floats
from expost.randomness.coins import arithmetic, subset
from expost.randomness.samplers import ExponentialLaw, choice_of_logs
from expost.randomness.source import Randomness
from expost.rationals import round_down, round_up

GIVEN, RACE = "given", "race"
LAWS: dict[str, type[NoiseLevels]] = {"laplace": LaplaceLevels, "gaussian": GaussianLevels}
LEAST_COST = {"laplace": Fraction(1, 10**12), "gaussian": Fraction(1, 2**81)}  # samplers' limit
SINGLE, TOP = "single", "top"
_RANGE, _RATIO = 32, 1.015  # levels of ``answered``: from a 32nd of what all can afford
_GAUSSIAN_RATIO = 1.05  # of ρ; each level is a draw of its own
_TOP_RANGE, _TOP_RATIO = 64, 1.1
_DRAWN_RANGE, _DRAWN_RATIO = 1024, 1.2  # of levels for the groups of a list that was drawn
TEST_PART = 3  # of the total is kept for tests: as much as the looks at three groups
_FIRST_TEST = 0.7  # of 1 − confidence; later tests have 0.3 of what the one before had
_CLEAR, _BELOW = 1.0, 0.5  # noises that a test leaves for its own noise and that of the gap
_DRAWN_FROM = {"laplace": 8, "gaussian": 16}  # groups per person from which drawing is cheaper
_MOST_PAIRS = 10**5  # of a group inside and one outside the list, among which one is drawn
LIST_PART = Fraction(2, 3)  # of the total for a list that is drawn, the rest for its groups
VALUE_PART = Fraction(1, 2)  # of what a list has cost may be spent on its groups
_PATH_PART = Fraction(3, 5)  # of the list's part for the path at most
_PATH_RANGE, _PATH_RATIO = 512, math.sqrt(2)
_DRAW_MISS = 0.36  # of 1 − confidence for the draw, the rest for the path


@dataclass(frozen=True)
class Wanted:
    """How accurate answers must be, in grid units where absolute.

    ``draft`` asks for a rule that is made at once, and stops no later than the real one.
    """

    within: float | None = 0.1
    plus_minus: Fraction | None = None
    confidence: float = 0.9
    rule: str = "confidence"
    signed: bool = False
    answered: int | None = None
    top: int | None = None
    draft: bool = False


@dataclass(frozen=True)
class LevelOptions:
    """What the levels depend on besides the wanted error; ``most_groups`` is m, None for all."""

    law: str
    total: Fraction
    sensitivity: int = 1
    most_groups: int | None = None
    order: str = RACE
    max_group: Fraction | None = None
    ratio: float | None = None
    spaced: bool = False
    path: tuple[float, ...] | None = None


def one_level_for_all(wanted: Any, groups: int, most: int) -> bool:
    """Whether a job looks at all groups at one level: K groups wanted, and only m are charged."""
    return wanted.answered is not None and wanted.within is not None and most < groups


def draws_list(top: int, groups: int, most: int, law: str) -> bool:
    """Whether a top list is drawn: a person may be in many groups, and there are few enough."""
    return most >= _DRAWN_FROM[law] and top * (groups - top) <= _MOST_PAIRS


def goal_levels(
    least: Fraction, shared: Fraction, *, top: bool, drawn: bool = False, gaussian: bool = False
) -> tuple[float, ...]:
    """Return the levels up to what all groups can afford."""
    reach, ratio = (_TOP_RANGE, _TOP_RATIO) if top else (_RANGE, _RATIO)
    reach, ratio = (_DRAWN_RANGE, _DRAWN_RATIO) if drawn else (reach, ratio)
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


@dataclass(frozen=True)
class ListLaw:
    """All lists of ``size`` groups and their q, by the boundary: the first group that is left out
    and the last that is listed, in the order of values. Secret.
    """

    values: npt.NDArray[np.int64]
    size: int

    @cached_property
    def _order(self) -> npt.NDArray[np.int64]:
        return np.argsort(-self.values, kind="stable")

    @cached_property
    def _between(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Per boundary, how many groups lie between its two, and how many of these are listed."""
        out, last = np.indices((self.size, len(self.values) - self.size)).reshape(2, -1)
        return last + self.size - out - 1, self.size - 1 - out

    @cached_property
    def distances(self) -> npt.NDArray[np.int64]:
        """q(A) − q(B) per boundary of B, A the list of the largest values."""
        ordered = self.values[self._order]
        out, last = np.indices((self.size, len(ordered) - self.size)).reshape(2, -1)
        return np.asarray(
            ordered[self.size - 1] - ordered[self.size] - ordered[last + self.size] + ordered[out]
        )

    @cached_property
    def _logs(self) -> Floats:
        """ln of the number of lists per boundary, a sum of at most ``size`` logarithms."""
        between, listed = self._between
        logs = np.zeros(len(between))
        for number in range(1, self.size):
            more = listed >= number
            ratio = (between[more] - listed[more] + number) / number
            logs[more] += np.log(ratio)
        return logs

    def _masses(self) -> list[int]:
        return [math.comb(int(n), int(k)) for n, k in zip(*self._between, strict=True)]

    def clear_by(self, odds: Fraction) -> int:
        """Return ⌊U⌋ for κ = ``odds``, exactly."""
        low, high = 0, int(self.distances.min()) // 2  # no term of S may exceed e^{−κ}
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self._is_clear(middle, odds) else (low, middle - 1)
        return low

    def _is_clear(self, u: int, odds: Fraction) -> bool:
        """Whether S(κΔ/u) ≤ e^{−κ}: by floating point where it is clear, else exactly."""
        if len(self.values) == 2:
            return 2 * u <= int(self.distances[0])
        if int(self.distances.min()) == 2 * u:  # one term is e^{−κ}, and there are others
            return False
        with np.errstate(over="ignore"):
            parts = np.exp(self._logs - float(odds) * (self.distances / (2.0 * u) - 1))
        total = float(parts.sum())
        if abs(total - 1) > 1e-7:
            return total < 1
        precision, masses = 50, self._masses()
        while True:
            a = arithmetic(precision)
            whole, limit = a.rational(Fraction(0)), a.exp_minus(a.rational(odds))
            for mass, distance in zip(masses, self.distances.tolist(), strict=True):
                term = a.exp_minus(a.rational(odds * distance / (2 * u)))
                whole = a.add(whole, a.times_ratio(term, mass, 1))
            if whole[1] <= limit[0] or whole[0] > limit[1]:
                return bool(whole[1] <= limit[0])
            precision *= 2

    def draw(self, rate: Fraction, randomness: Randomness) -> list[int]:
        """Draw a list: B with probability proportional to e^{−rate·(q(A) − q(B))}, exactly."""
        logs = np.append(0.0, self._logs - float(rate) * self.distances)

        def law() -> ExponentialLaw:
            return ExponentialLaw([1, *self._masses()], [0, *self.distances.tolist()], rate)

        chosen = choice_of_logs(logs, law, randomness) - 1
        if chosen < 0:
            return [int(group) for group in self._order[: self.size]]
        others = len(self.values) - self.size
        out, last = chosen // others, chosen % others + self.size
        between, listed = (int(numbers[chosen]) for numbers in self._between)
        among = [out + 1 + index for index in subset(between, listed, randomness)]
        ranks = [*range(out), *among, last]
        return [int(self._order[rank]) for rank in ranks]


def draw_list(
    values: npt.NDArray[np.int64],
    size: int,
    levels: NoiseLevels,
    rule: StoppingRule,
    limit: Fraction,
    randomness: Randomness,
) -> tuple[list[int] | None, Fraction]:
    """Draw a list of the largest groups if it can be clear for ``limit``; return what it cost.

    ``levels`` give the law and the sensitivity of the noise.
    """
    allowed = 1 - rule.confidence
    sensitivity = levels.sensitivity * (2 if rule.signed else 1)
    odds = Fraction(math.log(1 / (_DRAW_MISS * allowed) - 1))
    miss = allowed - 1 / (1 + math.exp(float(odds))) * (1 + 1e-9)
    gaussian = levels.law == "gaussian"
    reach, ratio = (_PATH_RANGE**2, 2.0) if gaussian else (_PATH_RANGE, _PATH_RATIO)
    last = round_down(limit * _PATH_PART)
    first = min(last, max(last / reach, 4 * levels.costs[0]))
    path = type(levels)(geometric_grid(first, last, ratio), sensitivity)
    widths = joint_half_widths(path, miss)
    lists = ListLaw(values, size)
    clear = np.array([lists.clear_by(odds)], dtype=np.int64)
    noisy = path.estimates(clear, randomness)[:, 0]

    def rate_for(level: int, least: float) -> tuple[Fraction, Fraction]:
        """r at which a list that is clear by ``least`` is drawn, and the price with the path."""
        if least <= 0:
            return Fraction(0), 2 * limit
        rate = Fraction(round_up(odds * sensitivity / Fraction(least)))
        price = rate**2 / 8 if gaussian else rate
        return rate, Fraction(path.costs[level]) + price

    for level in range(len(path.costs)):
        rate, price = rate_for(level, float(noisy[level] - widths[level]))
        if price > limit:
            continue
        if level + 1 < len(path.costs):
            further = rate_for(level + 1, float(noisy[level] - widths[level + 1]))[1]
            if further < price:
                continue
        return lists.draw(rate / (2 * sensitivity), randomness), price
    return None, Fraction(path.costs[-1])
