"""Histograms with noise at cuts of the caller's choice, and what they say about ranks.

**A look** counts the values of a group in the cells between cuts and adds independent noise to
every cell. One row is in one cell, so a look of rate e costs a person with at most r rows e, in ε
(discrete Laplace noise of scale r/e) or in ρ (discrete Gaussian noise of variance r²/(2ρ): r rows
move the counts by at most r in ℓ1, hence in ℓ2). Counts are made in steps of 1/:data:`FINER` rows.

**Ranks.** Let L be the rows left of a cut and R the others. The rank of the cut is L/(L + R), and
it is at most u exactly if (1 − u)·L − u·R ≤ 0. The left side is linear, so its noise has a law that
does not depend on the data: the sum of k independent noises of weight 1 − u and of k′ of weight u,
where k and k′ cells lie left and right. The size of the group is never divided by; that it is noisy
is part of this law.

**The law.** :func:`half_widths` bounds the point that this sum exceeds with probability β.

- *Laplace.* A discrete Laplace variable is ⌊E⌋ − ⌊E′⌋ for exponential E, E′, so it is within one
  step of the Laplace variable E − E′. The sum of Laplace variables of scales a_i has the
  characteristic function φ(t) = Π 1/(1 + a_i²t²), and P(S > x) = ½ − (1/π)∫ sin(tx)·φ(t)/t dt over
  t > 0 (Gil-Pelaez). The midpoint rule with step d replaces the sign of S − x by a square wave of
  half period π/d, so it errs by at most P(|S − x| > π/d); the integral from T on is at most
  φ(T)/(2π). Both are below :data:`_NUMERIC`, which is added. The law is unimodal, so the tail is
  convex in x ≥ 0 and interpolation between computed points bounds it from above.
- *Gaussian.* A discrete Gaussian variable is within one step of a normal one of the same parameter
  (``refinement_noise``, (c)), and sums of normal variables are normal.

Larger weights only spread a symmetric unimodal law. So where many u are tried, the larger weight of
each kind is taken for all u between two points of a grid; a single u has its own weights. A noise
of weight a is rounded by at most a steps.

**Rank intervals** (:func:`rank_bounds`). u rises from 0 in steps until "the rank is at least u"
fails: (1 − u)L − uR − h < 0. A wrong bound needs the first u above the true rank to pass, which has
probability at most β: one test, although many are made (a fixed sequence). From above likewise.
Tests: ``tests/analytics/test_flat_looks.py`` (against exact convolutions, coverage).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from statistics import NormalDist
from typing import Any

import numpy as np

from expost.arrays import Floats, Integers
from expost.randomness import samplers
from expost.randomness.source import Randomness

FINER = 16  # noise steps per row
STEPS = 1000  # rank bounds are multiples of 1/STEPS
_PARTS = 40  # of [0, 1] that share their weights
_STEP, _TERMS = 0.05, 8000  # of the midpoint rule; the integral ends at 400
_POINTS = np.arange(0.0, 30.05, 0.1)  # π/_STEP − 30 = 32 scales are left beyond the last one
_NUMERIC = 1e-6
_SHARES = np.arange(1, STEPS + 1) / STEPS


@dataclass(frozen=True)
class Look:
    """Noisy counts of the cells between ``edges``, in rows, and the noise they have."""

    edges: Integers
    counts: Floats
    law: str
    rate: Fraction
    rows: int

    @property
    def scale(self) -> float:
        """Scale (Laplace) or standard deviation (Gaussian) of the noise of one cell, in rows."""
        rate = float(self.rate)
        return self.rows / rate if self.law == "laplace" else self.rows * (0.5 / rate) ** 0.5


def take_look(
    edges: Integers,
    counts: Integers,
    law: str,
    rate: Fraction,
    rows: int,
    randomness: Randomness,
) -> Look:
    """Add noise to the counts of cells; costs ``rate`` for a person with at most ``rows`` rows."""
    whole = rows * FINER
    if law == "laplace":
        noise = samplers.discrete_laplaces(whole / rate, len(counts), randomness)
    else:
        noise = samplers.discrete_gaussians(whole**2 / (2 * rate), len(counts), randomness)
    return Look(edges, (counts * FINER + noise) / FINER, law, rate, rows)


def rank_bounds(look: Look, lower: int, upper: int, miss: float) -> tuple[float, float]:
    """Return bounds of the share of rows: at least of cells < ``lower``, at most of those < upper.

    Each bound fails with probability at most ``miss``. ``lower`` and ``upper`` are numbers of
    cells, from the left, 0 < upper ≤ lower < all (or equal; no cells, or all, bound nothing).
    """
    return (
        _at_least(look, _part(look, lower), lower, miss),
        1 - _at_least(look, _part(look, upper)[::-1], len(look.counts) - upper, miss),
    )


def share_bounds(look: Look, cell: int, miss: float) -> tuple[float, float]:
    """Return bounds of the share of rows in one cell; each fails with probability ≤ ``miss``."""
    inside, whole = float(look.counts[cell]), float(look.counts.sum())
    cells = len(look.counts)
    low = _at_least(look, (inside, whole - inside), 1, miss)
    return low, 1 - _at_least(look, (whole - inside, inside), cells - 1, miss)


def surely_at_least(look: Look, cells: int, rank: float, miss: float) -> bool:
    """Whether the share of rows in the first cells is at least ``rank``; wrong with ≤ ``miss``."""
    return _is_at_least(look, _part(look, cells), cells, rank, miss)


def surely_at_most(look: Look, cells: int, rank: float, miss: float) -> bool:
    """Whether the share of rows in the first cells is at most ``rank``; wrong with ≤ ``miss``."""
    rest = _part(look, cells)[::-1]
    return _is_at_least(look, rest, len(look.counts) - cells, 1 - rank, miss)


def _is_at_least(
    look: Look, parts: tuple[float, float], cells: int, share: float, miss: float
) -> bool:
    """Whether the first part, of ``cells`` cells, is surely a share of at least ``share``."""
    if share <= 0 or cells == len(look.counts):
        return True
    if share >= 1 or cells == 0:
        return False
    width = half_width_at(look.law, cells, len(look.counts), share, miss) * look.scale
    slack = _rounding(look, cells, share)
    return bool((1 - share) * parts[0] - share * parts[1] - width - slack >= 0)


def _rounding(look: Look, cells: int, shares: Any) -> Any:
    """What rounding to noise steps may add: the noise is discrete."""
    return ((1 - shares) * cells + shares * (len(look.counts) - cells)) / FINER


def _part(look: Look, cells: int) -> tuple[float, float]:
    """Rows left of a cut, and the others."""
    return float(look.counts[:cells].sum()), float(look.counts[cells:].sum())


def _at_least(look: Look, parts: tuple[float, float], cells: int, miss: float) -> float:
    """The largest u up to which the first part is surely a share of u, in steps; 0 if none is.

    ``cells`` is the number of cells in the first part.
    """
    if cells == 0:
        return 0.0
    if cells == len(look.counts):
        return 1.0
    failed = np.flatnonzero(_margins(look, parts, cells, _SHARES, miss) < 0)
    return float((failed[0] if len(failed) else STEPS) / STEPS)


def _margins(
    look: Look, parts: tuple[float, float], cells: int, shares: Floats, miss: float
) -> Floats:
    """(1 − u)·first − u·second − h for every share u."""
    widths = half_widths(look.law, cells, len(look.counts) - cells, miss)
    part = np.minimum((shares * _PARTS).astype(int), _PARTS - 1)
    width = widths[part] * look.scale + _rounding(look, cells, shares)
    return np.asarray((1 - shares) * parts[0] - shares * parts[1] - width)


@lru_cache(maxsize=4096)
def half_width_at(law: str, left: int, cells: int, rank: float, miss: float) -> float:
    """Return the half-width at one rank, with ``left`` of ``cells`` cells below the cut."""
    weights = np.array([1 - rank]), np.array([rank])
    return float(_widths(law, left, cells - left, miss, *weights)[0])


@lru_cache(maxsize=4096)
def half_widths(law: str, cells: int, others: int, miss: float) -> Floats:
    """Return, per part of [0, 1] of u, what (1 − u)·Σ Z − u·Σ Z′ exceeds with chance ≤ ``miss``.

    In units of the scale of one cell's noise; ``cells`` noises Z and ``others`` noises Z′.
    """
    lows = np.arange(_PARTS) / _PARTS
    return _widths(law, cells, others, miss, 1 - lows, lows + 1 / _PARTS)


def _widths(
    law: str, cells: int, others: int, miss: float, first: Floats, second: Floats
) -> Floats:
    """What first·Σ Z − second·Σ Z′ exceeds with chance ≤ ``miss``, for each pair of weights."""
    if law == "gaussian":
        deviation = np.sqrt(cells * first**2 + others * second**2)
        return np.asarray(-NormalDist().inv_cdf(miss) * deviation * (1 + 1e-9))
    unit = max(1.0, math.sqrt((cells + others) / 8))  # sums of many cells fit the points, too
    times = (np.arange(_TERMS) + 0.5) * _STEP
    squares = np.square(times)[:, None]
    factors = (1 + squares * (first / unit) ** 2) ** -float(cells)
    factors *= (1 + squares * (second / unit) ** 2) ** -float(others)
    tails = 0.5 - _sines() @ (factors / times[:, None]) * (_STEP / np.pi) + _NUMERIC
    return unit * np.array([_reaches(tails[:, part], miss) for part in range(len(first))])


def _reaches(tail: Floats, miss: float) -> float:
    """Where a convex tail falls to ``miss``, by interpolation; the last point if it does not."""
    index = int(np.argmax(tail <= miss))
    if index == 0:  # not reached; at 0 the tail is a half
        raise ArithmeticError("the tail of the noise was not computed far enough")
    left, right = tail[index - 1], tail[index]
    return float(_POINTS[index - 1] + (left - miss) / (left - right) * 0.1)


@lru_cache(maxsize=1)
def _sines() -> Floats:
    """sin(t·x) for all points x and all times t of the rule."""
    times = (np.arange(_TERMS) + 0.5) * _STEP
    return np.asarray(np.sin(np.outer(_POINTS, times)))
