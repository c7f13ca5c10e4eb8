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
public number of steps, or meets a number that is not finite, the second way is taken, which always
ends. So the distance is at most ``problem.tolerance`` in every case, and the sensitivity
G/(nλ) + 2·tolerance does not depend on data. Nothing here fails on any rows. How long it takes does
depend on rows; it is not released.

The iterates of the second way stay within R of w* up to e/λ, hence within the norm 2R + 1 that the
bound on the rounding is for; in the first way a point is accepted only if its norm is at most that.

Tests: ``tests/training/test_convex.py``.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from expost.arrays import Array, Floats
from expost.training.convex.problem import ConvexProblem

_MOST_STEPS = 5_000


def minimise(problem: ConvexProblem, X: Array, y: Array, valid: Array | None = None) -> Floats:
    """Return a point whose distance to the minimiser is at most ``problem.tolerance``.

    Parameters
    ----------
    problem : ConvexProblem
        Loss, regularisation and public number of places.
    X : ndarray of shape (rows, width)
        Rows of norm at most 1 (:class:`~expost.training.convex.preprocessing.Preprocessing`), at
        most ``problem.places`` of them. If there are more than ``problem.crowd`` times as many,
        the bounds on smoothness and norm are taken for the actual number: it only costs time.
    y : ndarray of shape (rows,)
        Targets. A row with a target that is not valid counts as absent.
    valid : ndarray of bool, optional
        Rows to keep. The others count as absent.

    Returns
    -------
    ndarray of shape (width, outputs)
    """
    needed = -(-len(X) // problem.places)
    if needed > problem.crowd:
        problem = replace(problem, crowd=needed)
    targets, usable = problem.targets(y)
    usable = usable & np.isfinite(X).all(axis=1)
    if valid is not None:
        usable = usable & valid
    rows = np.asarray(X) if usable.all() else np.where(usable[:, None], X, 0)
    found = accelerated(problem, rows, targets)
    return counted(problem, rows, targets) if found is None else found


def accelerated(problem: ConvexProblem, X: Array, y: Array) -> Floats | None:
    """Return a point that its gradient certifies, or None (way 1)."""
    # The actual number of rows may be smaller than the public bound, which only costs time.
    crowded = problem.crowd > 1 and len(X) <= problem.places
    strong = problem.regularisation
    smooth = replace(problem, crowd=1).smoothness if crowded else problem.smoothness
    ratio = math.sqrt(strong / smooth)
    momentum = (1 - ratio) / (1 + ratio)
    weights = np.zeros((problem.width, problem.outputs))
    ahead = weights
    with np.errstate(all="ignore"):
        for _ in range(_MOST_STEPS):
            gradient = problem.gradient(ahead, X, y)
            if certified(problem, ahead, gradient):
                return ahead
            if not np.isfinite(gradient).all():
                return None
            moved = ahead - gradient / smooth
            ahead, weights = moved + momentum * (moved - weights), moved
    return None


def certified(problem: ConvexProblem, weights: Floats, gradient: Floats) -> bool:
    """Return whether the gradient proves that the point is within the tolerance."""
    length = float(np.linalg.norm(gradient)) * (1 + 1e-9) + problem.rounding
    near = length <= problem.regularisation * problem.tolerance
    return bool(near and np.linalg.norm(weights) <= 2 * problem.radius + 1)


def enough_steps(problem: ConvexProblem) -> int:
    """Return after how many gradient steps the distance is at most half the tolerance."""
    contraction = -math.log1p(-problem.regularisation / problem.smoothness)
    return max(1, math.ceil(math.log(max(2 * problem.radius / problem.tolerance, 2)) / contraction))


def counted(problem: ConvexProblem, X: Array, y: Array) -> Floats:
    """Return the point after a public number of gradient steps from 0 (way 2)."""
    weights = np.zeros((problem.width, problem.outputs))
    for _ in range(enough_steps(problem)):
        weights = weights - problem.gradient(weights, X, y) / problem.smoothness
    return weights
