"""When an estimate is good enough, and intervals that hold although the estimate decides.

**The rule.** Stop at the first level whose half-width w_n is within the wanted relative error of
the estimate: w_n ≤ within·|ŷ_n|, that is |ŷ_n| ≥ T_n = w_n/within. (``paper``: the paper's
σ-rule decides; the half-widths are those below.) With an absolute error there is one level, chosen
without data, and nothing to decide.

**The half-widths.** An estimate that is too large stops too early, so the half-width h_n of a
single look would cover too rarely. w_n = κ·h_n with the least κ ≥ 1 for which, for every true
value y, the bound below on P(the group is answered and its interval misses) is at most
1 − confidence. With t_n = T_n − y, a miss at level n is one of

- *high*: z_n ≥ max(t_n, w_n) after z_{n−1} < t_{n−1}. Bounded by the smaller of P(z_n ≥ max(…))
  and :func:`_jump`, which bounds the joint event: noise that was below t_{n−1} is above w_n one
  level later. The noise of neighbouring levels is strongly coupled, so this is small.
- *low*: t_n ≤ z_n ≤ −w_n after z_{n−1} < t_{n−1}. Bounded by the smaller of
  P(z_n ≤ −w_n) − P(z_n < t_n) and P(z_{n−1} < t_{n−1}).

The sum over n bounds the chance of being answered with a wrong interval (union over looks). It
holds whatever other groups do, and wherever the budget ends, because being answered at n implies
one of the events of level n. Values of either sign (sums) add P(z_n ≤ −T_n − y) per level. The sum
is maximised over a fine grid of y ≥ 0; by symmetry that covers y < 0.

**The last look.** Which level is a group's last one may depend on its noise. Groups that are not
answered, and means, are then published with half-widths that hold at all levels at once (union
bound with the weights of :func:`shares`). Where the last level is decided by the other groups
alone (``refinement``), the half-width of a single look is enough (:func:`single_look`).
Tests: ``tests/analytics/test_intervals.py`` (enumeration and simulation).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np

from expost.analytics import noise_tails as tails
from expost.analytics.noise_levels import NoiseLevels
from expost.arrays import Floats
from expost.errors import InvalidInput

_LEAST_WITHIN = 1e-9  # smaller errors need counts that no table has
_COUNTS_PER_FOLD = 300  # intervals per factor e of true values
_NEGLIGIBLE = 5e-8  # what a tail beyond its window can add
_STEP = 0.001  # by which factors are raised at least


@dataclass(frozen=True, eq=False)
class StoppingRule:
    """A stop rule on levels, in the unit of the noise.

    ``least[n]`` is the smallest |estimate| that stops at level n, ``half_widths[n]`` what is then
    published, ``open_half_widths[n]`` what is published for a group that never stopped.
    """

    within: float | None
    confidence: float
    name: str
    factor: float
    least: Floats
    half_widths: Floats
    open_half_widths: Floats
    signed: bool = False


def make_rule(
    levels: NoiseLevels,
    within: float,
    confidence: float,
    name: str = "confidence",
    *,
    signed: bool = False,
    shared: int | None = None,
) -> StoppingRule:
    """Return the rule for these levels.

    ``name`` is ``confidence`` or ``paper``; ``shared`` is the level whose half-width matters most
    (default: the finest).
    """
    check_within(within)
    check_confidence(confidence)
    if name not in ("confidence", "paper"):
        raise InvalidInput("rule", name, "give 'confidence' or 'paper'")
    place = len(levels.costs) - 1 if shared is None else shared
    return _make_rule(levels, float(within), float(confidence), name, signed, place)


def check_within(within: float) -> None:
    """Refuse a relative error that is no relative error."""
    if not _LEAST_WITHIN <= within < 1:
        raise InvalidInput(
            "within", within, f"give a relative error of at least {_LEAST_WITHIN:g} and below 1"
        )


def check_confidence(confidence: float) -> None:
    """Refuse a confidence outside (0, 1)."""
    if not 0 < confidence < 1:
        raise InvalidInput("confidence", confidence, "give a number strictly between 0 and 1")


@lru_cache(maxsize=64)
def _make_rule(
    levels: NoiseLevels, within: float, confidence: float, name: str, signed: bool, shared: int
) -> StoppingRule:
    widths = half_width(levels, confidence)
    paper = paper_least(levels, within)

    def limits(factors: Floats) -> tuple[Floats, Floats]:
        wide = np.maximum.accumulate((factors * widths)[::-1])[::-1]  # never wider at a finer level
        return wide, paper if name == "paper" else wide / within

    factors = _search(levels, limits, confidence, signed, shared)
    half_widths, least = limits(factors)
    everywhere = simultaneous_half_width(levels, confidence)
    factor = float(half_widths[shared] / widths[shared])
    return StoppingRule(within, confidence, name, factor, least, half_widths, everywhere, signed)


def absolute_rule(levels: NoiseLevels, confidence: float) -> StoppingRule:
    """Return the rule of a job with an absolute error: one level, which always stops."""
    widths = half_width(levels, confidence)
    nothing = np.full(len(widths), -math.inf)
    return StoppingRule(None, confidence, "absolute", 1.0, nothing, widths, widths, True)


def single_look(levels: NoiseLevels, rule: StoppingRule) -> tuple[Floats, Floats]:
    """Return half-widths and least estimates of a look whose level does not depend on its noise."""
    widths = half_width(levels, rule.confidence)
    least = rule.least
    if rule.name == "confidence" and rule.within is not None:
        least = widths / rule.within
    return widths, least


def half_width(levels: NoiseLevels, confidence: float) -> Floats:
    """Return the half-width that holds with this confidence at each level on its own."""
    return half_widths_at(levels, np.full(len(levels.costs), 1 - confidence))


def simultaneous_half_width(levels: NoiseLevels, confidence: float) -> Floats:
    """Return half-widths that hold with this confidence at all levels at once."""
    return half_widths_at(levels, (1 - confidence) * shares(len(levels.costs)))


def shares(count: int) -> Floats:
    """Return how a miss probability is split over the levels; the sum is at most 1.

    Half of it is for the finest level, the rest falls with the squared distance from it.
    """
    if count == 1:
        return np.ones(1)
    distance = np.arange(count - 1, 0, -1, dtype=float)
    weights = 1 / np.square(distance + 2)
    return np.append(weights / weights.sum(), 1.0) / 2 * (1 - 1e-12)


def half_widths_at(levels: NoiseLevels, misses: Floats) -> Floats:
    """Return, per level, where twice the bound of the tail is the given miss probability."""
    if levels.law == "laplace":
        return np.asarray(levels.scales * np.log(tails.discrete_mass(levels.scales) / misses))
    normal = [
        shift - scale * NormalDist().inv_cdf(miss / (2 * factor * (1 + 1e-6)))
        for scale, miss, (shift, factor) in zip(
            levels.scales, misses, tails.lattice(levels.costs, levels.sensitivity), strict=True
        )
    ]
    return np.asarray(np.minimum(normal, levels.scales * np.sqrt(2 * np.log(2 / misses))))


def paper_least(levels: NoiseLevels, within: float) -> Floats:
    """Return the paper's σ-rule, (ŷ+σ)/(ŷ−σ) ≤ 1 + within and ŷ ≥ σ, as a least estimate."""
    return np.asarray(levels.scales * (2 + within) / within)


def _search(
    levels: NoiseLevels,
    limits: Callable[[Floats], tuple[Floats, Floats]],
    confidence: float,
    signed: bool,
    shared: int,
) -> Floats:
    """Factors κ_n ≥ 1 whose bound is at most 1 − confidence, the one of level ``shared`` small.

    Levels that contribute where the bound is too large are widened step by step; level ``shared``
    in smaller steps than the others. Any result that passes the test is valid.
    """
    allowed = 1 - confidence
    factors = np.full(len(levels.costs), 1.04)
    factors[shared] = 1.0
    patience, step = np.ones(len(factors)), _STEP
    patience[shared] = 1 / 32
    while True:
        parts, total = misses(levels, *limits(factors), signed=signed, beyond=1e-4 * allowed)
        excess = total > allowed
        if not excess.any():
            return factors
        here = parts[:, excess]
        guilty = here >= np.minimum(0.1 * total[excess], 0.5 * here.max(axis=0))
        step *= 1.07  # so that the search ends soon
        steps = np.where(guilty, 0.3 * np.log(total[excess] / allowed) + step, 0.0).max(axis=1)
        factors *= 1 + patience * steps
        patience[shared] = min(1.0, patience[shared] * 1.1)


def worst_miss(
    levels: NoiseLevels, widths: Floats, least: Floats, *, signed: bool = False
) -> float:
    """Return the bound on P(answered and missed) at the worst true value."""
    return float(misses(levels, widths, least, signed=signed)[1].max())


def misses(
    levels: NoiseLevels,
    widths: Floats,
    least: Floats,
    *,
    signed: bool = False,
    beyond: float = 1e-5,
) -> tuple[Floats, Floats]:
    """Return bounds per level and true value (roughly), and their total per true value.

    A true value stands for the interval up to the next one: each bound takes the end at which it
    is larger. ``beyond`` bounds what tails outside their windows add in all.
    """
    least_tail = min(_NEGLIGIBLE, beyond / (4 * len(widths)))
    values = true_values(float(least.min()), float(least.max()))
    first, last = values[:-1], values[1:]
    size = len(first)
    direct, alone, again = (np.zeros((len(widths), size)) for _ in range(3))
    low = np.full((len(widths), size), 0.0)
    reached, before, end = np.ones(size), np.full(size, math.inf), size
    for level, (width, smallest) in enumerate(zip(widths, least, strict=True)):
        reach = _reach(levels, level, least_tail)
        # below, the level is not passed; above, the level before is not passed by
        near = slice(int(np.searchsorted(last, smallest - reach)), end)
        here, there = smallest - last[near], smallest - first[near]  # thresholds of z_n, both ends
        edge = np.maximum(here, width)
        high = alone[level, near] = tails.upper(levels, level, edge)
        if level:
            high = np.minimum(high, tails.after(levels, level, edge, before[near], reached[near]))
        direct[level, near] = np.minimum(high, reached[near])
        if level + 1 < len(widths):
            finer = np.maximum(least[level + 1] - first[near], widths[level + 1])
            again[level, near] = tails.not_again(levels, level, edge, finer)
        if end < size:  # values that stopped before; here only for the chains of _least_cut
            alone[level, end:] = tails.upper(levels, level, np.array([width]))
            if level + 1 < len(widths):
                ends = np.array([width]), np.array([widths[level + 1]])
                again[level, end:] = tails.not_again(levels, level, *ends)
        below = tails.upper(levels, level, np.array([width])) - tails.lower(levels, level, -here)
        low[level, near] = np.where(here < -width, np.clip(below, 0.0, reached[near]), 0.0)
        if signed:
            low[level] += tails.upper(levels, level, smallest + first)
        passed = np.where(there < 0, tails.upper(levels, level, np.maximum(-there, 0)), 1.0)
        reached = np.where(first > smallest, least_tail, 1.0)
        reached[near] = passed
        before = smallest - first
        end = int(np.searchsorted(first, smallest + reach))
    total = low.sum(axis=0) + _least_cut(direct, alone, again)
    return direct + low, total + 4 * len(widths) * least_tail


def _reach(levels: NoiseLevels, level: int, least_tail: float) -> float:
    """A distance that noise of this level exceeds with a negligible chance only."""
    folds = -math.log(least_tail)
    far = folds if levels.law == "laplace" else math.sqrt(2 * folds)
    return float(levels.scales[level]) * far + 2


def _least_cut(direct: Floats, alone: Floats, again: Floats) -> Floats:
    """The smallest, over the cut k, of the bound on a high miss at any level.

    Up to level k: P(H_k) + Σ_{n<k} P(H_n and not H_{n+1}); after it: the direct bounds.
    """
    zero = np.zeros((1, direct.shape[1]))
    upto = np.vstack([zero, np.cumsum(again, axis=0)[:-1]])
    later = np.vstack([np.cumsum(direct[::-1], axis=0)[::-1], zero])
    return np.asarray(np.minimum((upto + alone + later[1:]).min(axis=0), later[0]))


def true_values(finest: float, coarsest: float) -> Floats:
    """Return true values from 0 to infinity, fine between these thresholds."""
    start, end = math.log(max(finest / 4, 1e-6)), math.log(max(coarsest, 1e-5) * 4)
    folds = np.exp(np.linspace(start, end, int((end - start) * _COUNTS_PER_FOLD) + 2))
    return np.concatenate([np.linspace(0.0, folds[0], 20)[:-1], folds, [math.inf]])
