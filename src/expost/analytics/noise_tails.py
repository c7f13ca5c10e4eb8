"""Bounds on the noise of refinement levels: tails of one level, joint events of two neighbours.

Laplace: discrete Laplace noise of parameter p = e^{−1/scale}; z_{n−1} is z_n (kept) or z_n plus
fresh noise (``mechanisms.noise_paths``). Gaussian: z_n is the average of z_{n−1} and one
independent discrete Gaussian release. Every function says whether it bounds from above or below.

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
Tests: ``tests/analytics/test_noise_tails.py`` (against exact laws, also joint ones).
"""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from expost.analytics.noise_levels import NoiseLevels
from expost.arrays import Floats

_MOST_SMOOTHING = 1.01  # beyond this factor a shift of 1 bounds a Gaussian tail better
_STEP = 1e-3
_GRID = np.arange(-8.0, 37.0, _STEP)
_LOG_TAIL = np.log([0.5 * math.erfc(x / math.sqrt(2)) for x in _GRID])
_INTERPOLATION = 2e-7  # ln P(N ≥ x) is concave with curvature ≤ 1: _STEP²/8 at most, and rounding
_BANDS = (0.0, 0.2, 0.4, 0.7, 1.1, 1.6, 2.5)  # in deviations; the last one is open


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


def upper(levels: NoiseLevels, level: int, x: Floats) -> Floats:
    """Return an upper bound of P(Z_n ≥ x), x ≥ 0."""
    scale = float(levels.scales[level])
    if levels.law == "laplace":
        return np.asarray(0.5 * discrete_mass(scale) * np.exp(-x / scale))
    shift, factor = lattice(levels.costs, levels.sensitivity)[level]
    normal = factor * normal_above((x - shift) / scale)
    bounded = np.minimum(normal, np.exp(-np.square(x / scale) / 2))  # averages are sub-Gaussian
    return np.where(x <= 0, 1.0, bounded)  # 0 itself may have more mass than a normal law there


def lower(levels: NoiseLevels, level: int, x: Floats) -> Floats:
    """Return a lower bound of P(Z_n > x) for x ≥ 0, and 0 for x < 0."""
    scale, inside = float(levels.scales[level]), np.maximum(x, 0)
    if levels.law == "laplace":  # the next integer above x is at most x + 1
        found = 0.5 * discrete_mass(scale) * np.exp(-(inside + 1) / scale)
    else:
        shift, factor = lattice(levels.costs, levels.sensitivity)[level]
        whole = 1.0 if level == 0 else shift  # (b) for one release, else the coupling
        found = max(0.0, 2 - factor) / factor * normal_below((inside + whole) / scale + 1e-9)
    return np.where(x < 0, 0.0, found)


def after(
    levels: NoiseLevels, level: int, above: Floats, before: Floats, reached: Floats
) -> Floats:
    """Return a bound of P(z_n ≥ above, z_{n−1} < before), above > 0.

    ``reached`` is a bound of P(z_{n−1} < before). Laplace: if z_n ≥ before, only fresh noise leads
    below; otherwise above ≤ z_n < before. Gaussian: the release of level n must be large.
    """
    if levels.law == "laplace":
        return _laplace_after(levels, level, above, before)
    earlier, cost = levels.costs[level - 1], levels.costs[level]
    release = (cost * above - earlier * before) / (cost - earlier)
    return _release_above(levels, level, release) * reached


def _laplace_after(levels: NoiseLevels, level: int, above: Floats, before: Floats) -> Floats:
    fine, coarse = 1 / float(levels.scales[level]), 1 / float(levels.scales[level - 1])
    p, q = math.exp(-fine), math.exp(-coarse)
    start = np.maximum(above, before)
    exponent = np.minimum(coarse * before - (fine + coarse) * start, 0.0)
    jumped = (1 - p) / ((1 + p) * (1 + q) * -math.expm1(-(fine + coarse))) * np.exp(exponent)
    between = upper(levels, level, above) - lower(levels, level, np.maximum(before, 0))
    between = np.where(before > above, np.maximum(between, 0.0), 0.0)
    return np.asarray(between + fresh(fine, coarse) * jumped)


def not_again(levels: NoiseLevels, level: int, above: Floats, below: Floats) -> Floats:
    """Return a bound of P(z_n ≥ above, z_{n+1} < below), for above, below > 0."""
    whole = upper(levels, level, above)
    if levels.law == "laplace":
        return np.minimum(whole, _laplace_not_again(levels, level, above, below))
    return np.minimum(whole, _gaussian_not_again(levels, level, above, below))


def _laplace_not_again(levels: NoiseLevels, level: int, above: Floats, below: Floats) -> Floats:
    """Fresh noise F ≥ above − z on top of z = z_{n+1} < below, summed in closed form."""
    fine, coarse = 1 / float(levels.scales[level + 1]), 1 / float(levels.scales[level])
    p, q = math.exp(-fine), math.exp(-coarse)
    mass = (1 - p) / ((1 + p) * (1 + q)) * np.exp(-coarse * above)
    negative = math.exp(-(fine + coarse)) / -math.expm1(-(fine + coarse))
    positive = np.expm1(-(fine - coarse) * (below + 1)) / math.expm1(-(fine - coarse))
    found = fresh(fine, coarse) * mass * (negative + positive) * (1 + 1e-9)
    return np.where(below <= above, found, math.inf)  # kept noise would be both


def _gaussian_not_again(levels: NoiseLevels, level: int, above: Floats, below: Floats) -> Floats:
    """Sum over bands of z_n: P(band) times P(the next release is small enough at its left end)."""
    scale, cost, finer = float(levels.scales[level]), levels.costs[level], levels.costs[level + 1]
    total = np.zeros(len(above))
    for left, right in pairwise(_BANDS):
        start, end = above + left * scale, above + right * scale
        last = right == _BANDS[-1]
        band = upper(levels, level, start) - (0.0 if last else lower(levels, level, end))
        release = (finer * below - cost * start) / (finer - cost)
        total += np.maximum(band, 0.0) * _release_above(levels, level + 1, -release)
    return total


def _release_above(levels: NoiseLevels, level: int, x: Floats) -> Floats:
    """An upper bound of P(R ≥ x) for the discrete Gaussian release that level n adds: (a), (c)."""
    earlier = levels.costs[level - 1]
    deviation = levels.sensitivity * math.sqrt(0.5 / (levels.costs[level] - earlier))
    shift = np.where(x > 0, 0.5, 1.0)
    return np.minimum(1.0, normal_above((x - shift) / deviation))


def fresh(fine: float, coarse: float) -> float:
    """Return the chance of fresh noise between two rates: 1 − (p_b/p_a)·((1−p_a)/(1−p_b))²."""
    kept = math.exp(coarse - fine) * (math.expm1(-coarse) / math.expm1(-fine)) ** 2
    return min(1.0, max(0.0, 1 - kept) + 1e-12)


@lru_cache(maxsize=256)
def lattice(costs: tuple[float, ...], sensitivity: int = 1) -> tuple[tuple[float, float], ...]:
    """Return for each Gaussian level n a (shift, factor) that compares Z_n with a normal N.

    P(Z_n ≥ x) ≤ factor·P(N ≥ x − shift) for x > 0. The first level is one release: (½, 1) by (a).
    Every later Z_n is an average of releases, each at most 1 above a normal variable in a common
    draw: (1, 1) by (c). Or so for the first release alone, of weight c_0/c_n; once that one is
    normal, release k has a density within a factor 1 ± ε_k of the normal one before normalising,
    ε_k = 2·Σ_m e^{−am²} with a = π²·Δ²·c_{k−1}/((c_k−c_{k−1})c_k) (Poisson summation). As e^{−am²}
    ≤ e^{−a(3m−2)}, the sum is at most e^{−a}/(1−e^{−3a}). Its normaliser is at least the normal
    one, and at most 1 + ε_k times it. So the density is at most factor = Π(1 + ε_k) times the
    normal one, and at least Π(1 − ε_k)/(1 + ε_k) ≥ (2 − factor)/factor times it (:func:`lower`).
    """
    found = [(0.5, 1.0)]
    factor = 1.0
    for before, cost in pairwise(costs):
        rate = math.pi**2 * sensitivity**2 * before / ((cost - before) * cost)
        factor *= 1 + 2 * math.exp(-rate) / -math.expm1(-3 * rate)
        found.append((costs[0] / cost, factor) if factor < _MOST_SMOOTHING else (1.0, 1.0))
    return tuple(found)
