"""Means: two sums on one path, and an interval for their ratio.

With public bounds low ≤ v ≤ high put A = Σ(v − low), B = Σ(high − v) and R = high − low, in grid
units. A user with at most r rows in a group changes (A, B) by (a, b) ≥ 0 with a + b ≤ r·R, so both
the ℓ1 and the ℓ2 sensitivity of the pair are r·R: both sums are released at the same level for the
price of one. The mean is low + R·θ with θ = A/N, N = A + B.

**Interval of one look.** At the true θ the noise of both sums enters together: Â − θN̂ = T with T =
(1 − θ)Z₁ − θZ₂, whatever N is. So {θ : |Â − θN̂| ≤ q(θ)} covers with probability 1 − miss if
P(|T| > q(θ)) ≤ miss. For Laplace noise of scale s and a = 1 − θ ≠ b = θ this probability is
(a²e^{−t/as} − b²e^{−t/bs})/(a² − b²), (1 + t/2as)e^{−t/as} for a = b; for Gaussian noise T is
normal. Discrete noise can be drawn together with continuous noise so that they differ by at most 1
(Laplace: differences of exponential variables and of their integer parts; Gaussian:
``refinement_noise``, statement (c)), so that adding a + b = 1 to q is enough. q falls with
min(θ, 1 − θ) (convex combinations of log-concave noise are more peaked: Proschan 1965), so q(0)
bounds it. The published interval is θ̂ ± max q/N̂ with the maximum over an interval that holds all
such θ, found from q(0)/N̂ in a few steps.

**Stopping.** A mean is good enough if R·q(0)/N̂ is at most the wanted error (``within`` times
|mean|, or ``plus_minus``), less the shift by caps. Multiplied by N̂ this says L̂ ≥ t_n = R·q_n(0)
for a linear L̂ = c₁Â + c₂B̂ (one for means of either sign), whose noise is V = c₁Z₁ + c₂Z₂. Let each
level have miss probability a, write H_n for a miss of level n, and let k be the first level with
t_k ≤ L, the true value. Being answered at n implies V_n ≥ t_n − L and V_{n−1} < t_{n−1} − L. The
noise of all levels has the law of its negative, so for a symmetric event H and δ > 0 both
P(V_n ≥ δ, H) and P(V_n ≤ −δ, H) are at most P(H)/2. Misses of neighbouring levels mostly happen
together, so those of level n are counted where level k does not miss:

    P(answered and missed) ≤ P(H_k) + Σ_{n≠k} P(answered at n, H_n, not H_k)
        ≤ a + Σ_{n<k} min(D_n/2, P(V_n ≥ t_n − L)) + Σ_{n>k} min(D_n/2, P(V_{n−1} < t_{n−1} − L)),

D_n = a − P(H_n and H_k) (:func:`_apart`), plus P(V_n ≥ t_n + L) per level for the other sign. a is
a large number for which this is at most 1 − confidence for every L ≥ 0 (a fine grid, each bound at
the worse end of its cell): about 0.6 of 1 − confidence for the default levels. Groups that are not
answered have intervals that hold at all levels at once; where the level is decided by the other
groups (``refinement``), those of a single look.
Tests: ``tests/analytics/test_sums.py``, ``test_means.py``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

from expost.analytics.refinement import Answer, Job, Refinement
from expost.analytics.refinement_noise import (
    GroupPaths,
    NoiseLevels,
    StoppingRule,
    fresh,
    miss_shares,
    normal_above,
    normal_below,
    true_values,
)
from expost.arrays import Floats
from expost.randomness.source import Randomness

_CELLS = 256  # of min(θ, 1 − θ) in a table of quantiles
_SMALL = np.arange(_CELLS + 1) / (2 * _CELLS)
_STEPS = 60  # of bisections
_AROUND = 40  # values on either side of the worst one


@dataclass(frozen=True, eq=False)
class MeanRule(StoppingRule):
    """The stop rule of means: ``least`` and ``open_half_widths`` are about L̂.

    ``miss`` is the miss probability a of an answered group's level. ``targets`` are the two pairs
    (c₁, c₂): for means above and below 0.
    """

    miss: float = 0.0
    targets: tuple[tuple[float, float], ...] = ()


def mean_rule(
    levels: NoiseLevels,
    confidence: float,
    *,
    low: int,
    high: int,
    within: float | None,
    plus_minus: float | None,
    shift: float = 0.0,
    draft: bool = False,
) -> MeanRule:
    """Return the rule for means between public bounds, in grid units.

    A ``draft`` has the quantiles of a single look, which stops no later.
    """
    if plus_minus is not None:
        targets = [(plus_minus - shift, plus_minus - shift)]
    else:
        assert within is not None
        targets = [(sign * within * high - shift, sign * within * low - shift) for sign in (1, -1)]
    weights = tuple(max(abs(pair[part]) for pair in targets) for part in (0, 1))
    allowed, spread = 1 - confidence, high - low
    miss = allowed if draft else _best_miss(levels, allowed, weights, spread)
    least = spread * quantiles(levels, miss)
    factor = float(quantiles(levels, miss)[-1] / quantiles(levels, allowed)[-1])
    return MeanRule(
        within,
        confidence,
        "mean",
        factor,
        least,
        least,
        _half_widths(levels, allowed, weights),
        True,
        miss,
        tuple(targets),
    )


@lru_cache(maxsize=64)
def _best_miss(
    levels: NoiseLevels, allowed: float, weights: tuple[float, ...], spread: int
) -> float:
    """A large miss probability per level for which the bound is at most ``allowed``."""
    miss, largest = allowed / len(levels.costs), allowed  # by the union bound
    worst = math.nan  # the true value at which the bound was largest
    for _ in range(12):
        middle = (miss + largest) / 2
        fits = True
        for around in (worst, None):  # where it was too large it mostly is again
            if fits and around is not math.nan:
                first, total = mean_misses(levels, middle, weights, spread, around)
                worst, fits = float(first[total.argmax()]), bool(total.max() <= allowed)
        miss, largest = (middle, largest) if fits else (miss, middle)
    return miss


def worst_mean_miss(
    levels: NoiseLevels, miss: float, weights: tuple[float, ...], spread: int
) -> float:
    """Return the bound on P(answered and missed) at the worst L, see above."""
    return float(mean_misses(levels, miss, weights, spread)[1].max())


def mean_misses(
    levels: NoiseLevels,
    miss: float,
    weights: tuple[float, ...],
    spread: int,
    around: float | None = None,
) -> tuple[Floats, Floats]:
    """Return values of L, all or those around one, and the bounds from each up to the next."""
    least = spread * quantiles(levels, miss)
    ends = np.union1d(true_values(float(least.min()), float(least.max())), least)
    if around is not None:
        middle = int(np.searchsorted(ends, around))
        ends = ends[max(0, middle - _AROUND) : middle + _AROUND]
    first, last = ends[:-1], ends[1:]  # a cell is first ≤ L < last; no threshold lies inside
    stop = np.minimum((least[:, None] > first).sum(axis=0), len(least) - 1)  # k of each cell
    half = _apart(levels, miss)[:, stop] / 2
    total = np.full(len(first), miss)
    for level, smallest in enumerate(least):
        cut = int((stop > level).sum())  # stop falls: the cells before have not reached this level
        early = tail(levels, level, smallest - np.minimum(last[:cut], smallest), weights)
        total[:cut] += np.minimum(half[level, :cut], early)
        if level + 1 < len(least):
            late = tail(levels, level, np.maximum(first[cut:] - smallest, 0.0), weights)
            total[cut:] += np.minimum(half[level + 1, cut:], late)
        total += np.minimum(miss / 2, tail(levels, level, smallest + first, weights))
    return first, total


def _apart(levels: NoiseLevels, miss: float) -> Floats:
    """D: for each two levels a bound on P(one misses and the other does not).

    Laplace: noise of the coarser level is that of the finer one unless it is fresh (independent
    coins), and then both miss if the finer noise exceeds the quantile of the coarser level.
    Gaussian: both are normal with correlation √(cost/finer cost); only misses on the same side
    are counted. The 2 covers that either noise is discrete.
    """
    scales, unit = levels.scales, _unit_quantiles(levels.law, miss)
    apart = np.zeros((len(scales), len(scales)))
    for fine in range(len(scales)):
        if levels.law == "laplace":
            excess = (unit * scales[:fine, None] + 2) / scales[fine]
            least = _laplace_tail(excess, 1 - _SMALL, _SMALL).min(axis=1)
            both = _kept(levels)[fine, :fine] ** 2 * least * (1 - 1e-9)
        else:
            beyond = float(unit[0]) + 2 * math.sqrt(2) / float(scales[fine])
            shares = np.sqrt(np.array(levels.costs[:fine]) / levels.costs[fine])
            both = 2 * _both_above(beyond, shares)
        apart[fine, :fine] = apart[:fine, fine] = miss - both
    return apart


@lru_cache(maxsize=64)
def _kept(levels: NoiseLevels) -> Floats:
    """The chance that Laplace noise of a coarser level (column) is that of a finer one (row)."""
    rates = [1 / float(scale) for scale in levels.scales]
    return np.array([[1 - fresh(fine, min(fine, rate)) for rate in rates] for fine in rates])


def _both_above(z: float, correlations: Floats) -> Floats:
    """Lower bounds of P(X > z, Y > z) for standard normal X and Y: lower sums over X."""
    cells = np.linspace(z, z + 6, 121)
    rest = np.sqrt(np.maximum(1e-12, 1 - correlations**2))
    given = (correlations[:, None] * cells[:-1] - z) / rest[:, None]
    mass = normal_below(cells[:-1]) - normal_above(cells[1:])
    return np.asarray((np.maximum(mass, 0.0) * normal_below(-given)).sum(axis=1))


def tail(levels: NoiseLevels, level: int | slice, x: Floats, weights: tuple[float, ...]) -> Floats:
    """Return an upper bound of P(c₁Z₁ + c₂Z₂ ≥ x) for |c| = ``weights``; 1 for small x."""
    scale = levels.scales[level]
    inside = np.asarray(x - sum(weights), dtype=float) / scale  # discrete noise is this close
    large, small = max(weights), min(weights)
    if large == 0:
        return np.where(np.asarray(x) > 0, 0.0, 1.0)
    if levels.law == "laplace":
        bound = _laplace_tail(np.maximum(inside, 0.0), large, small) / 2
    else:
        bound = normal_above(inside / math.hypot(large, small))
    return np.where(inside <= 0, 1.0, bound)


def _laplace_tail(t: Floats, large: Any, small: Any) -> Floats:
    """P(|aX + bY| > t) for Laplace X, Y of scale 1 and a ≥ b ≥ 0."""
    alike = large - small < 1e-6 * large  # equal up to rounding: the larger one for both
    decay = np.exp(-t / large)
    if np.ndim(large) == 0 and not alike:
        other = 0.0 if small == 0 else small**2 * np.exp(-t / max(small, 1e-9 * large))
        return np.asarray((large**2 * decay - other) / (large**2 - small**2))
    equal = (1 + t / (2 * large)) * decay
    other = np.square(small) * np.exp(-t / np.maximum(small, 1e-9 * large))
    between = np.where(alike, 1.0, np.square(large) - np.square(small))
    unequal = (np.square(large) * decay - other) / between
    return np.asarray(np.where(alike, equal, unequal))


@lru_cache(maxsize=64)
def _half_widths(levels: NoiseLevels, allowed: float, weights: tuple[float, ...]) -> Floats:
    """Return x of each level with P(|c₁Z₁ + c₂Z₂| ≥ x) at most the level's share of ``allowed``."""
    misses = allowed * miss_shares(len(levels.costs))
    folds = np.array([2 - math.log(miss) for miss in misses])
    low, high = np.zeros(len(misses)), levels.scales * sum(weights) * folds * 2 + 1
    high += 2 * sum(weights)
    for _ in range(_STEPS):
        middle = (low + high) / 2
        fits = 2 * tail(levels, slice(None), middle, weights) <= misses
        low, high = np.where(fits, low, middle), np.where(fits, middle, high)
    return np.asarray(high)


def quantiles(levels: NoiseLevels, miss: float) -> Floats:
    """Return q(0) at each level: P(|Z| > q) ≤ miss."""
    return np.asarray(levels.scales * _unit_quantiles(levels.law, miss)[0] + 1)


@lru_cache(maxsize=512)
def _unit_quantiles(law: str, miss: float) -> Floats:
    """Quantiles of |(1 − θ)X − θY| for min(θ, 1 − θ) = 0, …, ½, noise of scale 1, rounded up."""
    if law == "gaussian":
        deviation = -NormalDist().inv_cdf(miss / 2) * (1 + 1e-9)
        return np.asarray(deviation * np.hypot(1 - _SMALL, _SMALL))
    # ln P(> t) is concave, as sums of Laplace noise are log-concave. So Newton's steps, which begin
    # above the quantile, never pass it.
    large, small = 1 - _SMALL, _SMALL
    high = np.full(len(_SMALL), -math.log(miss))
    for _ in range(6):
        chance, equal = _laplace_tail(high, large, small), np.exp(-high / large)
        unequal = large * equal - small * np.exp(-high / np.maximum(small, 1e-9 * large))
        density = unequal / np.maximum(large**2 - small**2, 1e-9)
        density[-1] = (1 + 2 * high[-1]) * equal[-1]  # two equal parts
        high += np.log(chance / miss) * chance / density
    return high * (1 + 1e-12)


class MeanRefinement(Refinement):
    """A refinement whose answers are means, in grid units; the rule of its job is a mean's."""

    def __init__(
        self,
        job: Job,
        groups: Sequence[Any],
        first: npt.NDArray[np.int64],
        second: npt.NDArray[np.int64],
        randomness: Randomness,
        path: GroupPaths | None = None,
        *,
        low: int,
        high: int,
    ) -> None:
        super().__init__(job, groups, first, randomness, path)
        assert isinstance(job.rule, MeanRule)
        self._rule = job.rule
        if path is None or path.second is None:
            self._second = job.levels.estimates(second, randomness)
        else:
            self._second = path.at(path.second, job.levels.costs)
        self._low, self._range = low, high - low
        self._single_least = self._range * quantiles(job.levels, 1 - job.rule.confidence)

    def _size(self, level: int, group: Any) -> Any:
        """L̂: the larger of the two for means above and below 0."""
        first, second = self._estimates[level, group], self._second[level, group]
        sizes = [a * first + b * second for a, b in self._rule.targets]
        return np.maximum.reduce(sizes)

    def _answer(self, group: int) -> Answer:
        level, rule = int(self._charge.level[group]), self._rule
        ends = float(self._low), float(self._low + self._range)
        if level < 0:
            return Answer(self.groups[group], math.nan, *ends, self._cost(group))
        cost, count = self._cost(group), len(self.job.levels.costs)
        miss = 1 - rule.confidence
        stopped = None if self._free[group] else self._stopped.get(group)
        if stopped is not None:
            level, miss = stopped, rule.miss
        elif not self._free[group]:
            miss *= float(miss_shares(count)[level])
        first, second = (float(path[level, group]) for path in (self._estimates, self._second))
        share, width = _interval(self.job.levels, level, miss, first, first + second)
        mean = self._low + self._range * share
        low, high = (
            min(max(mean + sign * self._range * width, ends[0]), ends[1]) for sign in (-1, 1)
        )
        return Answer(self.groups[group], mean, low, high, cost)


def _interval(
    levels: NoiseLevels, level: int, miss: float, first: float, whole: float
) -> tuple[float, float]:
    """An estimate of θ = A/N between 0 and 1, and a half-width."""
    if whole <= 0:
        return 0.5, 0.5
    scale, unit = float(levels.scales[level]), _unit_quantiles(levels.law, miss)
    share, width = first / whole, (scale * float(unit[0]) + 1) / whole
    for _ in range(4):  # q is largest at that end of the interval which is farther from ½
        ends = (min(max(share + sign * width, 0.0), 1.0) for sign in (-1, 1))
        nearest = min(min(end, 1 - end) for end in ends)
        width = min(width, (scale * float(unit[int(nearest * 2 * _CELLS)]) + 1) / whole)
    inside = min(max(share, 0.0), 1.0)
    return inside, width + abs(share - inside) if share != inside else width
