"""When an estimate is good enough, and intervals that keep their coverage although the estimate decides when to stop.

**The rule.** Stop at the first level whose published half-width κ·h_n is within the wanted relative error of the estimate:
κ·h_n ≤ within·ŷ_n, where h_n is the half-width of the noise at the confidence asked for. (``paper``: the paper's σ-rule.)

**The factor κ.** An estimate that is too large stops early, so h_n itself would cover too rarely. κ is the least factor for which

    Σ_n min( P(stop at n and miss), P(get to n) ) ≤ 1 − confidence   for every true count y.

Missing at level n means |z_n| > κ·h_n; stopping there means y + z_n ≥ κ·h_n/within; getting there means y + z_{n−1} < κ·h_{n−1}/within.
All three are tail events of one noise variable with a known law, so the sum bounds P(the group is answered and its interval misses). It
holds whatever other groups do, and whenever the budget ends, because being answered at n implies the event. The sum is maximised over a
fine grid of y.

**Groups not answered** are published at the last level that was looked at. Which level that is may depend on everything, so their interval
holds at all levels at once (union bound).
Tests: ``tests/analytics/test_intervals.py`` (the bound against simulation).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from expost.analytics.noise_levels import NoiseLevels
from expost.arrays import Floats
from expost.errors import InvalidInput

_LEAST_WITHIN = 1e-9  # smaller ones need counts that no table has, and leave what floats hold
_COUNTS_PER_FOLD = 400  # grid points a factor e of true counts
_MOST_SMOOTHING = 1.01  # beyond this factor a shift of ½ bounds a Gaussian tail better


@dataclass(frozen=True, eq=False)
class StoppingRule:
    """A stop rule on levels: ``least[n]`` is the smallest estimate that stops at level n, ``half_widths[n]`` what is then published."""

    within: float
    confidence: float
    name: str
    factor: float
    least: Floats
    half_widths: Floats
    open_half_widths: Floats


def make_rule(
    levels: NoiseLevels, within: float, confidence: float, name: str = "confidence"
) -> StoppingRule:
    """The rule for these levels; ``name`` is ``confidence`` or ``paper``."""
    if not _LEAST_WITHIN <= within < 1:
        raise InvalidInput(
            "within", within, f"give a relative error of at least {_LEAST_WITHIN:g} and below 1"
        )
    if not 0 < confidence < 1:
        raise InvalidInput("confidence", confidence, "give a number strictly between 0 and 1")
    if name not in ("confidence", "paper"):
        raise InvalidInput("rule", name, "give 'confidence' or 'paper'")
    widths = half_width(levels, confidence)
    everywhere = half_width(levels, 1 - (1 - confidence) / len(levels.costs))
    if name == "confidence":
        factor = coverage_factor(levels, within, confidence)
        return StoppingRule(
            within, confidence, name, factor, factor * widths / within, factor * widths, everywhere
        )
    least = paper_least(levels, within)
    factor = _search(levels, lambda kappa: (kappa * widths, least), confidence)
    return StoppingRule(within, confidence, name, factor, least, factor * widths, everywhere)


def half_width(levels: NoiseLevels, confidence: float) -> Floats:
    """Half-width of an interval that holds with this confidence at each level: where twice ``_tail`` is 1 − confidence."""
    if levels.law == "laplace":
        return np.asarray(levels.scales * np.log(_discrete(levels.scales) / (1 - confidence)))
    normal = [
        shift - scale * NormalDist().inv_cdf((1 - confidence) / (2 * factor))
        for scale, (shift, factor) in zip(levels.scales, lattice(levels.costs), strict=True)
    ]
    widths = np.minimum(normal, levels.scales * math.sqrt(2 * math.log(2 / (1 - confidence))))
    return np.asarray(np.maximum.accumulate(widths[::-1])[::-1])  # never wider at a finer level


def _discrete(scales: npt.ArrayLike) -> Floats:
    """2/(1+p), p = e^{−1/scale}: how much heavier a discrete Laplace tail is than e^{−x/scale}, P(|Z| ≥ m) = 2p^m/(1+p)."""
    return np.asarray(2 / (1 + np.exp(-1 / np.asarray(scales, dtype=float))))


def paper_least(levels: NoiseLevels, within: float) -> Floats:
    """The paper's σ-rule, (ŷ+σ)/(ŷ−σ) ≤ 1 + within and ŷ ≥ σ, as a least estimate: ŷ ≥ σ·(2+within)/within."""
    return np.asarray(levels.scales * (2 + within) / within)


def coverage_factor(levels: NoiseLevels, within: float, confidence: float) -> float:
    """The least κ for which the bound above is at most 1 − confidence at every true count."""
    widths = half_width(levels, confidence)
    return _search(levels, lambda kappa: (kappa * widths, kappa * widths / within), confidence)


def _search(
    levels: NoiseLevels, rule: Callable[[float], tuple[Floats, Floats]], confidence: float
) -> float:
    def missing(kappa: float) -> float:
        widths, least = rule(kappa)
        return worst_miss(levels, widths, least)

    low, high = 1.0, 2.0
    if missing(low) <= 1 - confidence:
        return low
    while missing(high) > 1 - confidence:
        low, high = high, 2 * high
    while high - low > 1e-4:
        middle = (low + high) / 2
        low, high = (middle, high) if missing(middle) > 1 - confidence else (low, middle)
    return high


def worst_miss(levels: NoiseLevels, widths: Floats, least: Floats) -> float:
    """The largest, over true counts, of the bound on the chance to be answered with an interval that misses."""
    scales = levels.scales
    finest, coarsest = float(least[-1]), float(least[0])
    folds = math.log(max(coarsest, 2.0) * 4) - math.log(max(finest / 4, 0.5))
    counts = np.exp(
        np.linspace(
            math.log(max(finest / 4, 0.5)),
            math.log(max(coarsest, 2.0) * 4),
            int(folds * _COUNTS_PER_FOLD),
        )
    )
    total = np.zeros(len(counts))
    reached = np.ones(len(counts))
    for level, (width, smallest, scale) in enumerate(zip(widths, least, scales, strict=True)):
        threshold = (smallest - counts) / scale  # z/scale must be at least this to stop
        edge = width / scale
        high = _tail(levels, level, np.maximum(threshold, edge))
        low = np.where(threshold < -edge, _tail(levels, level, np.array([edge])), 0.0)
        total += np.minimum(high + low, reached)
        reached = np.where(
            threshold < 0, _tail(levels, level, np.maximum(-threshold, 0)), 1.0
        )  # P(z below the threshold)
    return float(total.max())


def _tail(levels: NoiseLevels, level: int, x: Floats) -> Floats:
    """An upper bound of P(Z ≥ x·scale), x ≥ 0, for the noise of a level."""
    scale = float(levels.scales[level])
    if levels.law == "laplace":
        return np.asarray(0.5 * _discrete(scale) * np.exp(-x))
    shift, factor = lattice(levels.costs)[level]
    normal = np.asarray(0.5 * factor * _ERFC((x - shift / scale) / math.sqrt(2)), dtype=float)
    sub_gaussian = np.exp(-np.square(x) / 2)  # as discrete Gaussians are, and averages of them
    return np.asarray(np.minimum(normal, sub_gaussian))


@lru_cache(maxsize=256)
def lattice(costs: tuple[float, ...]) -> tuple[tuple[float, float], ...]:
    """For each Gaussian level n a (shift, factor) with P(Z_n ≥ x) ≤ factor·P(N(0, σ_n²) ≥ x − shift): Z_n is not normal.

    It is an average of discrete Gaussians, each at most a normal variable plus ½ in law: (½, 1). Or so for the first alone, of weight
    c_0/c_n; once that one is normal, release k has a density of at most 1 + ε_k times the normal one, ε_k = 2·Σ_m e^{−am²} with
    a = π²c_{k−1}/((c_k−c_{k−1})c_k) (Poisson summation). As e^{−am²} ≤ e^{−a(3m−2)}, the sum is at most e^{−a}/(1−e^{−3a}).
    """
    found = [(0.5, 1.0)]
    factor = 1.0
    for before, cost in pairwise(costs):
        rate = math.pi**2 * before / ((cost - before) * cost)
        factor *= 1 + 2 * math.exp(-rate) / -math.expm1(-3 * rate)
        found.append((0.5 * costs[0] / cost, factor) if factor < _MOST_SMOOTHING else (0.5, 1.0))
    return tuple(found)


_ERFC = np.frompyfunc(math.erfc, 1, 1)
