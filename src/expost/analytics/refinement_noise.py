"""Noise of a refinement: its levels, bounds on its tails, when to stop, and intervals that hold.

**Levels.** Costs are in ε (Laplace) or ρ (Gaussian), coarse to fine. A group that was looked at up
to level n has cost ε_n (or ρ_n), whatever was seen before (``mechanisms.noise_paths``). More levels
therefore cost nothing in privacy: the refinement stops closer to what is needed. More looks must be
paid for by the coverage of the intervals (below).

``refinement.ladder`` makes the default levels: ratio √2 while a look costs little, ratio 1.2 around
the level that every group can afford. All values are integers (counts, or sums in grid units) and
the noise is drawn on the integers, exactly.

**Tails** of one level, and joint events of two neighbouring ones. Laplace: discrete Laplace noise
of parameter p = e^{−1/scale}; z_{n−1} is z_n (kept) or z_n plus fresh noise. Gaussian: z_n is the
average of z_{n−1} and one independent discrete Gaussian release. Every function says whether it
bounds from above or below.

**One discrete Gaussian R against a normal variable N of the same parameter σ.** Write f(x) =
e^{−x²/2σ²}, Z = Σ_j f(j) ≥ σ√(2π) and I_j for the integral of f over [j−½, j+½]. For integers:

- (a) P(R ≥ k) ≤ P(N ≥ k − ½) for k ≥ 1,
- (b) P(R ≥ k) ≥ P(N ≥ k) for k ≥ 0,
- (c) P(R ≥ k) ≤ P(N ≥ k − 1) for every k.

*Proof.* f(j)/I_j falls with |j|, and the I_j add up to σ√(2π), so f(0)/I_0 ≥ Z/σ√(2π), that is
Z·P(|N| < ½) ≤ 1. (a): D(k) = Σ_{j≥k} f(j) − Z·P(N ≥ k − ½) tends to 0, and D(k) − D(k+1) = f(k) −
Z·I_k/σ√(2π) is first ≥ 0, then ≤ 0 as k grows; so D ≤ 0 on k ≥ 1 if D(1) ≤ 0, which is
Z·P(|N| < ½) ≤ 1. (b): f(j) divided by its integral over [j, j+1] grows with j ≥ 0 and is at j = 0
at least Z/σ√(2π), because P(0 < N < 1) ≤ P(|N| < ½); sum over j ≥ k. (c): for k ≥ 1 from (a), for k
≤ 0 from (b), because P(R ≥ k) = 1 − P(R ≥ 1 − k). ∎

By (c) and symmetry one can draw R and N together so that |R − N| ≤ 1.

**When an estimate is good enough.** Stop at the first level whose half-width w_n is within the
wanted relative error of the estimate: w_n ≤ within·|ŷ_n|, that is |ŷ_n| ≥ T_n = w_n/within.
(``paper``: the paper's σ-rule decides; the half-widths are those below.) With an absolute error
there is one level, chosen without data, and nothing to decide.

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
Tests: ``tests/analytics/test_noise_levels.py``, ``test_noise_tails.py`` (against exact laws),
``test_intervals.py`` (enumeration and simulation).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import pairwise
from math import ceil, log
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from expost.arrays import Floats
from expost.errors import InvalidInput
from expost.randomness import samplers
from expost.randomness.samplers import laplace_paths
from expost.randomness.source import Randomness
from expost.rationals import Number, exact, exact_positive

MOST_LEVELS = 400
_MOST_SMOOTHING = 1.01  # beyond this factor a shift of 1 bounds a Gaussian tail better
_STEP = 1e-3
_GRID = np.arange(-8.0, 37.0, _STEP)
_LOG_TAIL = np.log([0.5 * math.erfc(x / math.sqrt(2)) for x in _GRID])
_INTERPOLATION = 2e-7  # ln P(N ≥ x) is concave with curvature ≤ 1: _STEP²/8 at most, and rounding
ENOUGH = 64  # at this cost per unit of sensitivity noise is 0 but for a chance of e^{−64}
_PATH_REACH, _PATH_RATIO = 32, 1.1  # of a path that later questions may continue
_BANDS = (0.0, 0.2, 0.4, 0.7, 1.1, 1.6, 2.5)  # in deviations; the last one is open
_LEAST_WITHIN = 1e-9  # smaller errors need counts that no table has
_COUNTS_PER_FOLD = 300  # intervals per factor e of true values
_NEGLIGIBLE = 5e-8  # what a tail beyond its window can add
_FACTOR_STEP = 0.001  # by which factors are raised at least
_BLOCK = 768  # true values that are looked at together
_FEW = 64  # true values where a bound is too large, from which on critical ones are looked at
_SMOOTH = 150  # scales up to which neighbouring true values are alike
_CRITICAL, _NEIGHBOURS = 0.9, 15  # part of what is allowed; true values beside a critical one
Level = int | npt.NDArray[np.int64]


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
    grid = [float(low) * float(ratio) ** step for step in range(count)]
    return (*[cost for cost in grid if cost < float(high)], float(high))


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

    @cached_property
    def masses(self) -> Floats:
        """The factor of a tail of discrete Laplace noise at each level."""
        return np.asarray(0.5 * discrete_mass(self.scales))

    @cached_property
    def jumps(self) -> Floats:
        """What joint bounds of Laplace noise at n − 1 and n need, a column per level n > 0.

        Both rates, 1 − e^{−(sum of the rates)}, the mass of noise 0 at both, the chance of fresh
        noise, and what ends of fresh noise below and above 0 add (:func:`not_again`).
        """
        columns = [[math.nan] * 7]
        for coarse, fine in pairwise(1 / self.scales):
            p, q, whole = math.exp(-fine), math.exp(-coarse), -math.expm1(-(fine + coarse))
            mass, negative = (1 - p) / ((1 + p) * (1 + q)), math.exp(-(fine + coarse)) / whole
            positive = math.expm1(-(fine - coarse))
            jump = (1 - p) / ((1 + p) * (1 + q) * whole)
            columns.append([fine, coarse, jump, mass, fresh(fine, coarse), negative, positive])
        return np.array(columns).T


@dataclass(frozen=True)
class LaplaceLevels(NoiseLevels):
    """Pure DP: cost ε, scale sensitivity/ε."""

    law = "laplace"

    @cached_property
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

    @cached_property
    def scales(self) -> Floats:
        return self.sensitivity * np.sqrt(0.5 / np.array(self.costs))

    def estimates(self, counts: npt.NDArray[np.int64], randomness: Randomness) -> Floats:
        averages = np.empty((len(self.costs), len(counts)))
        total = np.zeros(len(counts))
        before = Fraction(0)
        for level, cost in enumerate(self.costs):
            increment = Fraction(cost) - before  # in ρ; variance sensitivity²/(2·increment)
            release = counts + samplers.discrete_gaussians(
                self.sensitivity**2 / (2 * increment), len(counts), randomness
            )
            total += float(increment) * release
            averages[level] = total / cost
            before = Fraction(cost)
        return averages


def normal_above(x: npt.ArrayLike) -> Floats:
    """Return an upper bound of P(N(0, 1) ≥ x), within 1e-6 of it relatively for x ≤ 37."""
    logs = np.interp(np.asarray(x, dtype=float), _GRID, _LOG_TAIL, left=0.0)
    return np.asarray(np.exp(logs + _INTERPOLATION))


def normal_below(x: npt.ArrayLike) -> Floats:
    """Return a lower bound of P(N(0, 1) ≥ x), within 1e-6 of it relatively for −8 ≤ x ≤ 37."""
    logs = np.interp(np.asarray(x, dtype=float), _GRID, _LOG_TAIL, right=-math.inf)
    return np.asarray(np.exp(logs - _INTERPOLATION))


def discrete_mass(scales: npt.ArrayLike) -> Floats:
    """Return 2/(1+p), p = e^{−1/scale}: P(|Z| ≥ m) = 2p^m/(1+p) for a discrete Laplace Z."""
    return np.asarray(2 / (1 + np.exp(-1 / np.asarray(scales, dtype=float))))


def upper(levels: NoiseLevels, level: Level, x: Floats) -> Floats:
    """Return an upper bound of P(Z_n ≥ x), x ≥ 0; levels may be one for each x."""
    scale = levels.scales[level]
    if levels.law == "laplace":
        return np.asarray(levels.masses[level] * np.exp(-x / scale))
    shift, factor = lattice(levels.costs, levels.sensitivity).T[:, level]
    normal = factor * normal_above((x - shift) / scale)
    bounded = np.minimum(normal, np.exp(-np.square(x / scale) / 2))  # averages are sub-Gaussian
    return np.where(x <= 0, 1.0, bounded)  # 0 itself may have more mass than a normal law there


def lower(levels: NoiseLevels, level: Level, x: Floats) -> Floats:
    """Return a lower bound of P(Z_n > x) for x ≥ 0, and 0 for x < 0."""
    scale, inside = levels.scales[level], np.maximum(x, 0)
    if levels.law == "laplace":  # the next integer above x is at most x + 1
        bound = levels.masses[level] * np.exp(-(inside + 1) / scale)
    else:
        shift, factor = lattice(levels.costs, levels.sensitivity).T[:, level]
        whole = np.where(np.asarray(level) == 0, 1.0, shift)  # (b) for one release, or the coupling
        bound = np.maximum(0.0, 2 - factor) / factor
        bound = bound * normal_below((inside + whole) / scale + 1e-9)
    return np.where(x < 0, 0.0, bound)


def after(
    levels: NoiseLevels, level: Level, above: Floats, before: Floats, reached: Floats, high: Floats
) -> Floats:
    """Return a bound of P(z_n ≥ above, z_{n−1} < before), above > 0.

    ``reached`` is a bound of P(z_{n−1} < before), ``high`` one of P(z_n ≥ above). Laplace: if z_n ≥
    before, only fresh noise leads below; otherwise above ≤ z_n < before. Gaussian: the release of
    level n must be large.
    """
    if levels.law == "laplace":
        fine, coarse, jump, _, chance, _, _ = levels.jumps[:, level]
        start = np.maximum(above, before)
        exponent = np.minimum(coarse * before - (fine + coarse) * start, 0.0)
        jumped = jump * np.exp(exponent)
        between = high - lower(levels, level, np.maximum(before, 0))
        between = np.where(before > above, np.maximum(between, 0.0), 0.0)
        return np.asarray(between + chance * jumped)
    costs = np.array(levels.costs)
    earlier, cost = costs[level - 1], costs[level]
    release = (cost * above - earlier * before) / (cost - earlier)
    return _release_above(levels, level, release) * reached


def not_again(
    levels: NoiseLevels, level: Level, above: Floats, below: Floats, high: Floats
) -> Floats:
    """Return a bound of P(z_n ≥ above, z_{n+1} < below), for above, below > 0.

    ``high`` is a bound of P(z_n ≥ above).
    """
    if levels.law == "gaussian":
        return np.minimum(high, _gaussian_not_again(levels, level, above, below))
    # Fresh noise F ≥ above − z on top of z = z_{n+1} < below, summed in closed form.
    fine, coarse, _, mass, chance, negative, positive = levels.jumps[:, level + 1]
    both = mass * np.exp(-coarse * above)
    ends = negative + np.expm1(-(fine - coarse) * (below + 1)) / positive
    bound = chance * both * ends * (1 + 1e-9)
    return np.where(below <= above, np.minimum(high, bound), high)  # kept noise would be both


def _gaussian_not_again(levels: NoiseLevels, level: Level, above: Floats, below: Floats) -> Floats:
    """Sum over bands of z_n: P(band) times P(the next release is small enough at its left end)."""
    costs = np.array(levels.costs)
    scale, cost, finer = levels.scales[level], costs[level], costs[level + 1]
    total = np.zeros_like(above)
    for left, right in pairwise(_BANDS):
        start, end = above + left * scale, above + right * scale
        last = right == _BANDS[-1]
        band = upper(levels, level, start) - (0.0 if last else lower(levels, level, end))
        release = (finer * below - cost * start) / (finer - cost)
        total += np.maximum(band, 0.0) * _release_above(levels, level + 1, -release)
    return total


def _release_above(levels: NoiseLevels, level: Level, x: Floats) -> Floats:
    """An upper bound of P(R ≥ x) for the discrete Gaussian release that level n adds: (a), (c)."""
    costs = np.array(levels.costs)
    deviation = levels.sensitivity * np.sqrt(0.5 / (costs[level] - costs[level - 1]))
    shift = np.where(x > 0, 0.5, 1.0)
    return np.minimum(1.0, normal_above((x - shift) / deviation))


def fresh(fine: float, coarse: float) -> float:
    """Return the chance of fresh noise between two rates: 1 − (p_b/p_a)·((1−p_a)/(1−p_b))²."""
    kept = math.exp(coarse - fine) * (math.expm1(-coarse) / math.expm1(-fine)) ** 2
    return min(1.0, max(0.0, 1 - kept) + 1e-12)


@lru_cache(maxsize=256)
def lattice(costs: tuple[float, ...], sensitivity: int = 1) -> Floats:
    """Return for each Gaussian level n a row (shift, factor) that compares Z_n with a normal N.

    P(Z_n ≥ x) ≤ factor·P(N ≥ x − shift) for x > 0. The first level is one release: (½, 1) by (a).
    Every later Z_n is an average of releases, each at most 1 above a normal variable in a common
    draw: (1, 1) by (c). Or so for the first release alone, of weight c_0/c_n; once that one is
    normal, release k has a density within a factor 1 ± ε_k of the normal one before normalising,
    ε_k = 2·Σ_m e^{−am²} with a = π²·Δ²·c_{k−1}/((c_k−c_{k−1})c_k) (Poisson summation). As e^{−am²}
    ≤ e^{−a(3m−2)}, the sum is at most e^{−a}/(1−e^{−3a}). Its normaliser is at least the normal
    one, and at most 1 + ε_k times it. So the density is at most factor = Π(1 + ε_k) times the
    normal one, and at least Π(1 − ε_k)/(1 + ε_k) ≥ (2 − factor)/factor times it (:func:`lower`).
    """
    compared = [(0.5, 1.0)]
    factor = 1.0
    for before, cost in pairwise(costs):
        rate = math.pi**2 * sensitivity**2 * before / ((cost - before) * cost)
        factor *= 1 + 2 * math.exp(-rate) / -math.expm1(-3 * rate)
        compared.append((costs[0] / cost, factor) if factor < _MOST_SMOOTHING else (1.0, 1.0))
    return np.array(compared)


@dataclass(frozen=True)
class GroupPaths:
    """Noisy values of all groups at the costs of a whole path, and what was paid for so far.

    Secret, like the values themselves. ``paid`` is the last step that was looked at, −1 for none.
    A later question looks further along the same path (``asked_before``).
    """

    costs: tuple[float, ...]
    noisy: Floats = field(repr=False)
    paid: npt.NDArray[np.int64] = field(repr=False)
    second: Floats | None = field(repr=False, default=None)  # of a mean

    @classmethod
    def beyond(
        cls,
        levels: NoiseLevels,
        values: npt.NDArray[np.int64],
        randomness: Randomness,
        second: npt.NDArray[np.int64] | None = None,
    ) -> GroupPaths:
        """Draw a path at these levels and at finer ones, up to 32 times the last cost."""
        last, most = levels.costs[-1], float(ENOUGH * levels.sensitivity)
        finer = geometric_grid(last, max(last, min(most, last * _PATH_REACH)), _PATH_RATIO)[1:]
        costs = (*levels.costs, *finer)
        finest = replace(levels, costs=costs)
        noisy = finest.estimates(values, randomness)
        beside = None if second is None else finest.estimates(second, randomness)
        return cls(costs, noisy, np.full(len(values), -1), beside)

    def at(self, noisy: Floats, costs: Sequence[float]) -> Floats:
        """Return the noisy values at some costs of the path."""
        return noisy[np.searchsorted(self.costs, costs)]


@dataclass(frozen=True, eq=False)
class StoppingRule:
    """A stop rule on levels, in the unit of the

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
    draft: bool = False,
) -> StoppingRule:
    """Return the rule for these levels.

    ``name`` is ``confidence`` or ``paper``; ``shared`` is the level whose half-width matters most
    (default: the finest). A ``draft`` has the half-widths with which the search for the rule
    begins: it says at once what the rule cannot do.
    """
    check_within(within)
    check_confidence(confidence)
    check_rule(name)
    level = len(levels.costs) - 1 if shared is None else shared
    return _make_rule(levels, float(within), float(confidence), name, signed, level, draft)


def check_within(within: float) -> None:
    """Refuse a relative error that is no relative error."""
    if not _LEAST_WITHIN <= within < 1:
        raise InvalidInput(
            "within",
            within,
            f"give a relative error of at least {_LEAST_WITHIN:g} and below 1; 5 % is 0.05",
        )


def check_rule(name: str) -> None:
    """Refuse an unknown stop rule."""
    if name not in ("confidence", "paper"):
        raise InvalidInput("rule", name, "give 'confidence' or 'paper'")


def check_confidence(confidence: float) -> None:
    """Refuse a confidence outside (0, 1)."""
    if not 0 < confidence < 1:
        raise InvalidInput("confidence", confidence, "give a number strictly between 0 and 1")


@lru_cache(maxsize=64)
def _make_rule(
    levels: NoiseLevels,
    within: float,
    confidence: float,
    name: str,
    signed: bool,
    shared: int,
    draft: bool = False,
) -> StoppingRule:
    widths = half_width(levels, confidence)
    paper = paper_least(levels, within)

    def limits(factors: Floats) -> tuple[Floats, Floats]:
        wide = np.maximum.accumulate((factors * widths)[::-1])[::-1]  # never wider at a finer level
        return wide, paper if name == "paper" else wide / within

    factors = np.full(len(levels.costs), 1.04)
    factors[shared] = 1.0
    if not draft:
        factors = _search(levels, limits, factors, confidence, signed, shared)
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
    return half_widths_at(levels, (1 - confidence) * miss_shares(len(levels.costs)))


@lru_cache(maxsize=64)
def joint_half_widths(levels: NoiseLevels, miss: float) -> Floats:
    """Return h_n, all the same number of scales: P(z_n ≥ h_n at some level n) ≤ ``miss``.

    P(⋃ H_n) ≤ P(H_last) + Σ P(H_n and not H_{n+1}): the last level at which H_n happens is the
    finest one, or the next one is not.
    """
    low, high, every = 0.0, 60.0, np.arange(len(levels.costs))  # in scales

    def bound(factor: float) -> float:
        widths = factor * levels.scales
        alone, coarse = upper(levels, every, widths), every[:-1]
        parts = not_again(levels, coarse, widths[:-1], widths[1:], alone[:-1])
        return float(np.sum(parts) + alone[-1])

    while high - low > 1e-4:
        middle = (low + high) / 2
        low, high = (low, middle) if bound(middle) <= miss else (middle, high)
    return np.asarray(high * levels.scales)


def miss_shares(count: int) -> Floats:
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
        return np.asarray(levels.scales * np.log(discrete_mass(levels.scales) / misses))
    normal = [
        shift - scale * NormalDist().inv_cdf(miss / (2 * factor * (1 + 1e-6)))
        for scale, miss, (shift, factor) in zip(
            levels.scales, misses, lattice(levels.costs, levels.sensitivity), strict=True
        )
    ]
    return np.asarray(np.minimum(normal, levels.scales * np.sqrt(2 * np.log(2 / misses))))


def paper_least(levels: NoiseLevels, within: float) -> Floats:
    """Return the paper's σ-rule, (ŷ+σ)/(ŷ−σ) ≤ 1 + within and ŷ ≥ σ, as a least estimate."""
    return np.asarray(levels.scales * (2 + within) / within)


def _search(
    levels: NoiseLevels,
    limits: Callable[[Floats], tuple[Floats, Floats]],
    factors: Floats,
    confidence: float,
    signed: bool,
    shared: int,
) -> Floats:
    """Factors κ_n whose bound is at most 1 − confidence, the one of level ``shared`` small.

    They are at least those that are given.

    Levels that contribute where the bound is too large are widened step by step; level ``shared``
    in smaller steps than the others. As soon as the bound is too large at few true values, only
    those near critical ones are looked at. Any result that passes the last test, which is at all
    true values, is valid.
    """
    allowed, least_tail = 1 - confidence, _least_tail(len(levels.costs), 1e-4 * (1 - confidence))
    patience, step = np.ones(len(factors)), _FACTOR_STEP
    patience[shared] = 1 / 32
    smooth = levels.law == "laplace" and (limits(factors)[1] / levels.scales).max() <= _SMOOTH
    critical = None  # true values near which the bound is, or may become, too large; None: all
    while True:
        widths, least = limits(factors)
        values = true_values(float(least.min()), float(least.max()))
        cells = np.arange(len(values) - 1) if critical is None else _cells_near(values, critical)
        ends = values[cells], values[cells + 1]
        parts, total = _misses(levels, widths, least, ends, least_tail, signed=signed)
        excess = total > allowed
        if not excess.any():
            if critical is None:
                return factors
            critical = None
            continue
        few = smooth and excess.sum() <= _FEW
        critical = ends[0][total > _CRITICAL * allowed] if few else None
        here = parts[:, excess]
        guilty = here >= np.minimum(0.1 * total[excess], 0.5 * here.max(axis=0))
        step *= 1.07  # so that the search ends soon
        steps = np.where(guilty, 0.3 * np.log(total[excess] / allowed) + step, 0.0).max(axis=1)
        factors *= 1 + patience * steps
        patience[shared] = min(1.0, patience[shared] * 1.1)


def _cells_near(values: Floats, critical: Floats) -> npt.NDArray[np.int64]:
    """The intervals of true values that are near critical ones."""
    near = np.searchsorted(values, critical)[:, None] + np.arange(-_NEIGHBOURS, _NEIGHBOURS + 1)
    chosen = np.zeros(len(values) - 1, dtype=bool)
    chosen[np.clip(near, 0, len(values) - 2)] = True
    return np.flatnonzero(chosen)


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
    values = true_values(float(least.min()), float(least.max()))
    least_tail = _least_tail(len(widths), beyond)
    return _misses(levels, widths, least, (values[:-1], values[1:]), least_tail, signed=signed)


def _least_tail(count: int, beyond: float) -> float:
    """What a tail outside its window may add, of so many levels."""
    return min(_NEGLIGIBLE, beyond / (4 * count))


def _misses(
    levels: NoiseLevels,
    widths: Floats,
    least: Floats,
    ends: tuple[Floats, Floats],
    least_tail: float,
    *,
    signed: bool,
) -> tuple[Floats, Floats]:
    """The bounds of :func:`misses` for intervals of true values, ascending.

    Rows are levels. Those that have a window here are computed together; outside their windows
    what is computed is left out.
    """
    first, last = ends
    count, size = len(widths), len(first)
    if size > _BLOCK:  # so much stays in the caches of a processor
        blocks = zip(*(np.array_split(end, size // _BLOCK + 1) for end in ends), strict=True)
        done = [_misses(levels, widths, least, b, least_tail, signed=signed) for b in blocks]
        return np.hstack([parts for parts, _ in done]), np.hstack([total for _, total in done])
    folds = -math.log(least_tail)
    far = folds if levels.law == "laplace" else math.sqrt(2 * folds)
    every, reach = np.arange(count), levels.scales * far + 2  # noise exceeds this almost never
    # before a window, the level is not passed; after it, the level before is not passed by
    start = np.searchsorted(last, least - reach)[:, None]
    end = np.append(size, np.searchsorted(first, (least + reach)[:-1]))[:, None]
    some = np.flatnonzero(end > start)
    rows = slice(int(some.min(initial=count)), int(some.max(initial=-1)) + 1)
    level, smallest, width = every[rows, None], least[rows, None], widths[rows, None]
    inside = (np.arange(size) >= start[rows]) & (np.arange(size) < end[rows])
    here, there = smallest - last, smallest - first  # thresholds of z_n, both ends
    edge = np.maximum(here, width)
    high, single = upper(levels, level, edge), upper(levels, every, widths)
    beyond = np.where(first > np.append(math.inf, least)[: rows.stop + 1, None], least_tail, 1.0)
    passed = np.where(there < 0, upper(levels, level, np.maximum(-there, 0)), 1.0)
    passed = np.where(inside, passed, beyond[rows.start + 1 :])
    reached = np.vstack([beyond[rows.start : rows.start + 1], passed])[:-1]
    direct, later = high.copy(), slice(int(rows.start == 0), None)
    above, before = edge[later], least[level[later] - 1] - first
    jumped = after(levels, level[later], above, before, reached[later], high[later])
    direct[later] = np.minimum(high[later], jumped)
    below = single[rows, None] - lower(levels, level, -here)
    low = np.where(here < -width, np.clip(below, 0.0, reached), 0.0)
    coarse = slice(0, count - 1 - rows.start)
    next_one = level[coarse] + 1
    finer = np.maximum(least[next_one] - first, widths[next_one])
    again = not_again(levels, level[coarse], edge[coarse], finer, high[coarse])
    ended = np.arange(size) >= end  # stopped before; only for the chains of _least_cut
    always = np.zeros(count)
    always[:-1] = not_again(levels, every[:-1], widths[:-1], widths[1:], single[:-1])
    tables = [np.zeros((count, size)) for _ in range(2)]
    tables += [np.where(ended, chances[:, None], 0.0) for chances in (single, always)]
    for table, bounds in zip(tables, (np.minimum(direct, reached), low, high, again), strict=True):
        np.copyto(table[rows][: len(bounds)], bounds, where=inside[: len(bounds)])
    if signed:
        tables[1] += upper(levels, every[:, None], least[:, None] + first)
    total = tables[1].sum(axis=0) + _least_cut(tables[0], *tables[2:])
    return tables[0] + tables[1], total + 4 * count * least_tail


def _least_cut(direct: Floats, alone: Floats, again: Floats) -> Floats:
    """The smallest, over the cut k, of the bound on a high miss at any level.

    Up to level k: P(H_k) + Σ_{n<k} P(H_n and not H_{n+1}); after it: the direct bounds.
    """
    later = np.zeros((len(direct) + 1, direct.shape[1]))  # row by row: NumPy's cumsum is slow here
    for level in range(len(direct) - 1, -1, -1):
        np.add(later[level + 1], direct[level], out=later[level])
    least, upto = later[0], np.zeros(direct.shape[1])
    for level in range(len(direct)):
        least = np.minimum(least, upto + alone[level] + later[level + 1])
        upto += again[level]
    return np.asarray(least)


def true_values(finest: float, coarsest: float) -> Floats:
    """Return true values from 0 to infinity, fine between these thresholds."""
    start, end = math.log(max(finest / 4, 1e-6)), math.log(max(coarsest, 1e-5) * 4)
    folds = np.exp(np.linspace(start, end, int((end - start) * _COUNTS_PER_FOLD) + 2))
    return np.concatenate([np.linspace(0.0, folds[0], 20)[:-1], folds, [math.inf]])
