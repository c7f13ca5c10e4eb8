"""Least squares from noisy second moments: Σ zzᵀ with z = (x, 1, y).

Each row is z = (x·r, r, y), where x and y have features and a target in [0, 1] moved to [−1, 1],
and r ≤ 1 scales (x, 1) down to a public norm B where it is longer. One row adds the matrix
zzᵀ, whose Frobenius norm is |z|² ≤ B² + 1. As a vector the upper triangle is used, with
off-diagonal entries times √2, so that the ℓ2 norm of the vector is the Frobenius norm.

The ℓ2 sensitivity is B² + 1 in real numbers. In floating point a row's contributions are rounded to
whole multiples of a step and summed as integers, which is exact in any order; rounding moves the
vector of one row by at most √d·step/2, which is added. Of a person at most ``together`` rows count,
with shares that add up to 1 (:mod:`expost.tuning.rows.job_columns`).

:meth:`SecondMoments.solve` is post-processing: ridge regression without the negative eigenvalues
of the noisy matrix (:func:`solve_noisy`).

Tests: ``tests/training/test_second_moments.py``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from expost.arrays import Array, Floats, Integers
from expost.errors import InvalidInput
from expost.rationals import count_of

_PART = 4096
_BITS = 22  # a contribution has at most this many bits; 2^40 rows fit into 62 bits


@dataclass(frozen=True)
class SecondMoments:
    """The sums that least squares needs, with a public bound on rows."""

    features: int
    norm_bound: float | None = None
    together: int = 1

    def __post_init__(self) -> None:
        count_of(self.features, "features", at_least=1)
        count_of(self.together, "together", at_least=1)
        if self.norm_bound is not None and not 1 <= self.norm_bound <= 1e6:
            raise InvalidInput("norm_bound", self.norm_bound, "give a number from 1 to 1e6")

    @property
    def bound(self) -> float:
        """B."""
        return self.norm_bound or math.sqrt(self.features + 1)

    @property
    def size(self) -> int:
        """Number of entries of z."""
        return self.features + 2

    @property
    def dimension(self) -> int:
        """Number of entries of the upper triangle."""
        return self.size * (self.size + 1) // 2

    @property
    def step(self) -> float:
        """The step to which contributions are rounded."""
        return math.ldexp(1.0, math.frexp(self.bound**2 + 1)[1] - _BITS)

    @property
    def sensitivity(self) -> float:
        """How much one row, or one person, moves the vector of :meth:`sums`, in ℓ2."""
        rounding = self.together * math.sqrt(self.dimension) * self.step
        return (self.bound**2 + 1) * (1 + 1e-9) + rounding

    def rows(self, X: Array, y: Array) -> Floats:
        """Return z of each row; a row with a value that is not finite becomes a zero row."""
        table = np.asarray(X, dtype=np.float64)
        table = table.reshape(len(table), math.prod(table.shape[1:]))  # there may be no rows
        target = np.asarray(y, dtype=np.float64)
        kept = np.isfinite(table).all(axis=1) & np.isfinite(target)
        clean = 2 * np.clip(np.where(kept[:, None], table, 0.0), 0.0, 1.0) - 1
        norms = np.sqrt(np.square(clean).sum(axis=1) + 1)
        scale = np.where(kept, np.minimum(1.0, self.bound * (1 - 2.0**-40) / norms), 0.0)
        z = np.empty((len(table), self.size))
        z[:, :-2] = clean * scale[:, None]
        z[:, -2] = scale
        moved = 2 * np.clip(np.where(kept, target, 0.0), 0.0, 1.0) - 1
        z[:, -1] = np.where(kept, moved, 0.0)
        return z

    def sums(self, X: Array, y: Array, shares: Floats | None = None) -> Floats:
        """Return the upper triangle of Σ zzᵀ, off-diagonal entries times √2."""
        return self.from_whole(self.whole_sums(X, y, shares))

    def from_whole(self, total: Integers) -> Floats:
        """Return the statistic of the sum of :meth:`whole_sums` over all rows."""
        return np.asarray(total * self.step)

    def whole_sums(self, X: Array, y: Array, shares: Floats | None = None) -> Integers:
        """Return the statistic of some rows in steps, to be added up exactly.

        ``shares``: of one unit of privacy; by default all are 1.
        """
        first, second = np.triu_indices(self.size)
        total = np.zeros(self.dimension, dtype=np.int64)
        factor = np.where(first == second, 1.0, math.sqrt(2)) / self.step
        part = max(1, _PART * 64 // self.dimension)
        for start in range(0, len(X), part):
            z = self.rows(X[start : start + part], y[start : start + part])
            products = z[:, first] * z[:, second] * factor
            if shares is not None:
                products *= shares[start : start + part, None]
            whole = np.floor(products + 0.5)
            total += whole.astype(np.int64).sum(axis=0)
        return total

    def solve(self, values: Floats, deviation: float) -> tuple[Floats, Floats]:
        """Return weight and bias on plain features in [0, 1], from noisy sums."""
        matrix = np.zeros((self.size, self.size))
        first, second = np.triu_indices(self.size)
        matrix[first, second] = values / np.where(first == second, 1.0, math.sqrt(2))
        matrix = matrix + np.triu(matrix, 1).T
        solved = solve_noisy(matrix[:-1, :-1], matrix[:-1, -1:], deviation, 2.0)[:, 0]
        # y = (1 + wᵀ(2x − 1) + b)/2 in the plain unit
        weight = np.asarray(solved[:-1], dtype=np.float64)
        return weight[None, :], np.array([(1 + solved[-1] - solved[:-1].sum()) / 2])


def solve_noisy(matrix: Floats, right: Floats, noise: float, ridge: float = 0.5) -> Floats:
    """Solve (M + r·I) w = b for a noisy symmetric M: negative eigenvalues count as 0.

    The exact matrix has no negative eigenvalues; those of the noisy one are noise. The ridge r is
    ``ridge`` times the usual size of the noise of an eigenvalue. All of it is post-processing.
    """
    added = ridge * noise * math.sqrt(len(matrix) / 2) + 1e-9
    try:
        values, vectors = np.linalg.eigh(np.nan_to_num(matrix))
    except np.linalg.LinAlgError:
        return np.zeros_like(right)
    solved = vectors @ ((vectors.T @ right) / (np.maximum(values, 0.0) + added)[:, None])
    return np.where(np.isfinite(solved), solved, 0.0)
