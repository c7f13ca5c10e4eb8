"""A point near the minimiser, with a bound on its distance that holds for every data set.

The problem is λ-strongly convex and M-smooth (:mod:`expost.training.convex.problem`). Two ways
certify a point w:

1. *By its gradient.* |w − w*| ≤ |∇F(w)|/λ. If the computed gradient plus the public bound on its
   rounding error is at most λ·tolerance, w is accepted. Nesterov's method looks for such a point.
2. *By counting steps.* A gradient step of length 1/M with an error of at most e in the gradient
   brings w to a distance of at most (1 − λ/M)·|w − w*| + e/M. From 0, whose distance is at most R,
   k steps lead to (1 − λ/M)^k·R + e/λ. With e ≤ λ·tolerance/4 this is at most the tolerance after a
   public number of steps (:func:`enough_steps`).

The first way is fast, and its success depends on data. If it does not certify a point after a
number of steps that suffices in real numbers, or meets a number that is not finite, the second way
is taken, which always ends. So the distance is at most ``problem.tolerance`` in every case, and the
sensitivity G/(nλ) + 2·tolerance does not depend on data. Nothing here fails on any rows. How long
it takes does depend on rows; it is not released.

**Any number of rows.** The number of rows may be secret and far above ``crowd`` times ``places``.
The tolerance stays the public one, and smoothness, R, the steps and the rounding are those of the
actual number. Nothing else is assumed in the proof:

- In way 1 the error of the gradient is bounded for the rows that are there and the norm of the
  point that was found, so an accepted point is within the tolerance whatever the number of rows is.
- In way 2, from 0 the distance to w* is at most R + e/λ at every step, so that the norm of the
  iterates is at most 2R + e/λ ≤ ``reach``, for which e is bounded. If e ≤ λ·tolerance/4 holds in
  float64, that is used; else the steps are made in the widest floating point there is (ε = 2^{−64}
  on x86, 2^{−113} on 64-bit ARM with Linux). The result is rounded to float64 once, which moves it
  by 2^{−53}·(R + tolerance), less than the quarter of the tolerance that is left for 10¹² rows.

e grows at most with rows^1.5 up to 2^{24} rows, and by the choice of the tolerance it is small
enough for ``crowd`` times ``places`` rows in float64. So a 2^{11} times smaller ε suffices for 160
times as many: with a crowd of 16, for 2,500 times the public number or 2^{24} rows, whichever is
less, whatever the problem is. Not proved is way 2 with more rows than :func:`most_rows`, which
returns the exact limit; for usual settings such rows take hundreds of gigabytes. Where there is no
wider type than float64, the limit is that of float64.

Tests: ``tests/training/test_convex.py``.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from expost.arrays import Array, Floats
from expost.training.convex.problem import ConvexProblem

_WIDE = float(np.finfo(np.longdouble).eps) / 2  # half a unit in the last place of a number near 1
_SPARE = 4.0  # steps of the first way, as a multiple of what suffices in real numbers


def minimise(problem: ConvexProblem, X: Array, y: Array, valid: Array | None = None) -> Floats:
    """Return a point whose distance to the minimiser is at most ``problem.tolerance``.

    Parameters
    ----------
    problem : ConvexProblem
        Loss, regularisation and public number of places.
    X : ndarray of shape (rows, width)
        Rows of norm at most 1 (:class:`~expost.training.convex.preprocessing.Preprocessing`). There
        may be more than ``problem.crowd`` times ``problem.places``: it only costs time.
    y : ndarray of shape (rows,)
        Targets. A row with a target that is not valid counts as absent.
    valid : ndarray of bool, optional
        Rows to keep. The others count as absent.

    Returns
    -------
    ndarray of shape (width, outputs)
    """
    targets, usable = problem.targets(y)
    usable = usable & np.isfinite(X).all(axis=1)
    if valid is not None:
        usable = usable & valid
    rows = np.asarray(X) if usable.all() else np.where(usable[:, None], X, 0)
    found = accelerated(problem, rows, targets)
    return counted(problem, rows, targets) if found is None else found


def actual(problem: ConvexProblem, rows: int) -> ConvexProblem:
    """Return the problem with the crowd that is there; its bounds are no public numbers."""
    return replace(problem, crowd=max(1, -(-rows // problem.places)))


def accelerated(problem: ConvexProblem, X: Array, y: Array) -> Floats | None:
    """Return a point that its gradient certifies, or None (way 1)."""
    strong, smooth = problem.regularisation, actual(problem, len(X)).smoothness
    ratio = math.sqrt(strong / smooth)
    momentum = (1 - ratio) / (1 + ratio)
    weights = np.zeros((problem.width, problem.outputs))
    ahead = weights
    with np.errstate(all="ignore"):
        for _ in range(many_steps(problem, len(X))):
            gradient = problem.gradient(ahead, X, y)
            if certified(problem, ahead, gradient, len(X)):
                return ahead
            if not np.isfinite(gradient).all():
                return None
            moved = ahead - gradient / smooth
            ahead, weights = moved + momentum * (moved - weights), moved
    return None


def certified(
    problem: ConvexProblem, weights: Floats, gradient: Floats, rows: int | None = None
) -> bool:
    """Return whether the gradient proves that the point is within the tolerance."""
    norm = float(np.linalg.norm(weights)) * (1 + 1e-9)
    rounding = problem.rounding_of(problem.places if rows is None else rows, norm)
    length = float(np.linalg.norm(gradient)) * (1 + 1e-9) + rounding
    return length <= problem.regularisation * problem.tolerance


def many_steps(problem: ConvexProblem, rows: int) -> int:
    """Return after how many steps of way 1 the second way is taken."""
    there = actual(problem, rows)
    rate = math.sqrt(problem.regularisation / there.smoothness)
    digits = math.log(max(there.smoothness * there.radius / problem.tolerance, 2.0))
    digits += math.log(1 + 1 / problem.regularisation)
    return 100 + math.ceil(_SPARE * digits / rate)


def enough_steps(problem: ConvexProblem, rows: int = 1) -> int:
    """Return after how many gradient steps the distance is at most half the tolerance."""
    there = actual(problem, rows)
    contraction = -math.log1p(-problem.regularisation / there.smoothness)
    return max(1, math.ceil(math.log(max(2 * there.radius / problem.tolerance, 2)) / contraction))


def most_rows(problem: ConvexProblem, unit: float = _WIDE) -> int:
    """Return for how many rows way 2 is proved, up to a factor of 2; a public number."""
    rows = 1
    while rows < 2**60 and _is_enough(problem, 2 * rows, unit):
        rows *= 2
    return rows


def _is_enough(problem: ConvexProblem, rows: int, unit: float) -> bool:
    """Whether a gradient of so many rows has an error of at most λ·tolerance/4 in way 2."""
    error = problem.rounding_of(rows, actual(problem, rows).reach, unit)
    return 4 * error <= problem.regularisation * problem.tolerance


def counted(problem: ConvexProblem, X: Array, y: Array) -> Floats:
    """Return the point after a sufficient number of gradient steps from 0 (way 2)."""
    kind = np.float64 if _is_enough(problem, len(X), 2.0**-53) else np.longdouble
    weights = np.zeros((problem.width, problem.outputs), dtype=kind)
    smooth = actual(problem, len(X)).smoothness
    for _ in range(enough_steps(problem, len(X))):
        weights = weights - problem.gradient(weights, X, y) / smooth
    return weights.astype(np.float64)
