"""(T3): charges of Algorithms 2 and 3 from privacy profiles, and misses without δ.

A profile δ_j(ε) bounds Σ_o (Q_j(o) − e^ε Q′_j(o))₊ in both directions. For a shift s on the lattice
let ρ_j(u) be the largest value of (1 − uQ)/(1 − u e^{−γ_j s} Q′) over the probabilities (Q, Q′)
that the profile allows for one event: a competitor that is kept with probability u. With
R(x) = Π_{j∈J_i} ρ_j(e^{−γ_j x}) and I_i = E[e^{−γ_i x} R(x)], the outcomes of candidate i with the
charge::

    s(ε′+γ_i) + ln(I_i/keep_i) + ε_i,    keep_i = E[e^{−γ_i x}],

satisfy Σ_o (A(o,i) − e^{charge} A′(o,i))₊ ≤ I_i·δ_i(ε_i) for every ε_i ≥ 0. In Algorithm 2
A(⊥) ≤ e^{sε′}·E[R]·A′(⊥), so "nothing" needs no δ. If Algorithm 3 draws again until something is
kept, both sides of the first statement are divided by 1 − P_⊥, which does not depend on the data.

ρ_j(u) = e^{γ_j s − t} for the t with e^t + u·δ_j(t) = e^{γ_j s}; a smaller t gives a larger bound.
A profile is convex in e^ε, so between two points it lies below their chord, and the equation with
the chord has a closed solution (:func:`log_ratios`). ρ_j falls as the level grows, so the value at
the first level of a cell bounds the cell. Results are rounded up.

The shift is a parameter of the analysis only: no search for a good one can make a charge invalid.

Statement and proof: docs/theory.md. Tests: ``tests/theorems/test_profile_charges.py``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache
from hashlib import blake2b

import numpy as np

from expost.arrays import Floats
from expost.privacy.profiles import Profile
from expost.selection.renyi.sharp_charges import SHIFT_GRID, Priced, Problem, log_sum

_PAD = 2.0**-44
_CHORDS = (0.0, 0.5, 0.8, 0.95)  # where a chord begins, times γ·s
_LEAST_DELTA = 1e-40  # smaller values of a profile are of no use
_FLOOR = 1e-300
_POINTS = 1025  # of a table of a profile: steps of 1.1 %
_STRIDE = 4  # of the shifts that are tried first
_MOST_ROWS = 50_000  # kept for reuse; about 1 kB each

_rows: dict[tuple[Profile, bytes], dict[float, Floats]] = {}
"""ln ρ in every cell, by profile, cells and γ·s: the attempts of one job share them."""


def log_ratios(profile: Profile, gaps: Floats, keeping: Floats) -> Floats:
    """Return upper bounds of ln ρ(u) for one profile."""
    ends = gaps[:, None] * np.array([*_CHORDS, 1.0])
    deltas = tabulated(profile, ends * (1 - _PAD))
    last, u = deltas[:, -1:], keeping[None, :]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        high = np.exp(gaps)[:, None]  # where it is ∞, ρ − 1 is below the floor
        # Q = 0 and Q′ = 1 at worst.
        best = -np.log1p(-np.minimum(u * np.exp(-gaps)[:, None] * (1 + _PAD), 1.0))
        for start, delta in zip(ends.T[:-1, :, None], deltas.T[:-1, :, None], strict=True):
            room = high * -np.expm1(start - gaps[:, None]) * (1 - _PAD)  # e^{γs} − e^{t₀}
            slope = np.maximum(delta - last, 0.0) / room * (1 + _PAD)
            fall = u * last / (1 - u * slope) * (1 + _PAD)  # e^{γs} − e^t
            valid = (u * slope < 1) & (fall <= room)
            best = np.where(valid, np.minimum(best, -np.log1p(-fall / high)), best)
    return np.asarray(best * (1 + _PAD) + _FLOOR)


def log_moments(problem: Problem, shifts: Floats) -> Floats:
    """Return ln I_i of each group and, in Algorithm 2, ln E[R] of "nothing", rounded up."""
    lattice = problem.lattice
    ratios = known_ratios(problem, shifts).transpose(1, 0, 2)  # shifts × groups × cells
    weighted = problem.copies[:, None] * ratios
    everything = weighted.sum(axis=1, keepdims=True)
    others = (np.cumsum(weighted, axis=1) if problem.earlier_only else everything) - ratios
    rows = lattice.log_masses + np.maximum(others, 0.0) * (1 + 1e-12)
    if problem.earlier_only:
        nothing = lattice.log_masses_nothing + everything * (1 + 1e-12)
        rows = np.concatenate([rows, nothing], axis=1)
    return log_sum(rows) + _PAD


def losses(problem: Problem, shift: float, moments: Floats) -> Floats:
    """Return s(ε′+γ_i) + ln(I_i/keep_i) of each group, and sε′ + ln E[R], rounded up."""
    rates, log_keep = problem.rates, problem.lattice.log_keep
    if problem.earlier_only:
        rates, log_keep = np.append(rates, 0.0), np.append(log_keep, 0.0)
    total = shift * (problem.overhead + rates)
    return np.asarray(total * (1 + _PAD) + (moments - log_keep) + _PAD * (1 + np.abs(log_keep)))


def log_targets(problem: Problem, moments: Floats) -> Floats:
    """Return ln of the δ_i(ε_i) that each group may have: I_i·δ_i(ε_i) is its share of δ."""
    assert problem.log_delta is not None
    kept = math.log1p(-problem.lattice.nothing) if problem.conditioned else 0.0
    return problem.log_weights + problem.log_delta + kept - moments[: len(problem.rates)] - _PAD


def price_by_profiles(problem: Problem) -> Priced:
    """Return the charge of each outcome by (T3), at the best shift of the grid."""
    known: dict[int, Floats] = {}
    best, where = np.full(problem.outcomes, np.inf), np.zeros(problem.outcomes, dtype=int)

    def visit(indices: Iterable[int]) -> None:
        new = [index for index in indices if 0 <= index < SHIFT_GRID and index not in known]
        shifts = np.array([problem.shift(index) for index in new])
        known.update(zip(new, log_moments(problem, shifts), strict=True) if new else ())
        for index in new:
            charges = losses(problem, problem.shift(index), known[index])
            targets = log_targets(problem, known[index])
            for group, (profile, target) in enumerate(zip(problem.profiles, targets, strict=True)):
                charges[group] += least_epsilon(profile, target)
            better = charges < best
            best[better], where[better] = charges[better], index

    visit(range(0, SHIFT_GRID, _STRIDE))
    for stride in (2, 1):
        visit(sorted({int(index) + by for index in where for by in (-stride, stride)}))
    shifts = np.array([problem.shift(int(index)) for index in where])
    return Priced(best, np.full(len(best), np.nan), shifts, ("T3",) * len(best))


def tabulated(profile: Profile, epsilons: Floats) -> Floats:
    """Return upper bounds of δ(ε) from a table of the profile.

    A profile is convex in e^ε, so it lies below the chord between two points of the table.
    """
    grid, deltas = _table(profile)  # type: ignore[arg-type]  # profiles are hashable
    inside = np.minimum(epsilons, grid[-1])  # beyond the table: its last value
    index = np.clip(np.searchsorted(grid, inside, side="right") - 1, 0, len(grid) - 2)
    part = np.expm1(inside - grid[index]) / np.expm1(grid[index + 1] - grid[index]) * (1 - _PAD)
    return np.asarray((deltas[index] + part * (deltas[index + 1] - deltas[index])) * (1 + _PAD))


def least_epsilon(profile: Profile, log_deltas: Floats) -> Floats:
    """Return an ε with ln δ(ε) ≤ ``log_deltas``, about the least one; ∞ where none is known.

    It is the point where the chord between two points of the table reaches δ, rounded up.
    """
    grid, deltas = _table(profile)  # type: ignore[arg-type]
    wanted = np.exp(log_deltas) * (1 - _PAD)
    after = np.searchsorted(-deltas, -wanted)  # the first point with δ ≤ wanted
    index = np.clip(after, 1, len(grid) - 1)
    high, low = deltas[index - 1], deltas[index]
    with np.errstate(divide="ignore", invalid="ignore"):
        part = np.clip((high - wanted) / (high - low) * (1 + _PAD), 0.0, 1.0)
    rise = np.log1p(part * np.expm1(grid[index] - grid[index - 1]))
    shifted = np.minimum(grid[index - 1] + rise * (1 + _PAD), grid[index])
    return np.where(after == 0, 0.0, np.where(after == len(grid), np.inf, shifted))


@lru_cache(maxsize=4096)
def _table(profile: Profile) -> tuple[Floats, Floats]:
    """Return values of ε, ascending, and bounds of δ there, made non-increasing."""
    floor = float(profile.delta(np.array([math.inf]))[0])
    top = 2.0**-10
    while top < 2.0**20 and float(profile.delta(np.array([top]))[0]) > 1.01 * floor + _LEAST_DELTA:
        top *= 2
    grid = np.concatenate([[0.0], np.geomspace(top * 1e-5, top, _POINTS - 1)])
    return grid, np.minimum.accumulate(np.maximum(profile.delta(grid), _FLOOR))


def known_ratios(problem: Problem, shifts: Floats) -> Floats:
    """Return :func:`log_ratios` of all groups (groups × shifts × cells).

    Rows that were computed before, also for another list of candidates, are taken from the table.
    """
    if sum(map(len, _rows.values())) > _MOST_ROWS:
        _rows.clear()
    charges = []
    keeping = np.ascontiguousarray(problem.lattice.keeping)
    for profile, rate, kept in zip(problem.profiles, problem.rates, keeping, strict=True):
        gaps = rate * shifts
        rows = _rows.setdefault((profile, blake2b(kept, digest_size=16).digest()), {})
        missing = np.array([gap for gap in gaps.tolist() if gap not in rows])
        if len(missing):
            rows.update(zip(missing.tolist(), log_ratios(profile, missing, kept), strict=True))
        charges.append([rows[gap] for gap in gaps.tolist()])
    return np.array(charges)
