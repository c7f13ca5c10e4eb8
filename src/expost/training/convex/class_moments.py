"""Classification by least squares from noisy second moments: Σ xxᵀ and Σ x·tᵀ.

x is a row of norm at most 1 (:mod:`expost.training.convex.preprocessing`) and t = e_y − 1/K the
centred class (one number ±1/√2 for two classes with one output), with |t|² ≤ 1 − 1/K. One row adds
(√a·xxᵀ, √(1−a)·x·tᵀ), whose norm is at most √(a + (1 − a)(1 − 1/K)). As a vector the upper triangle
of the first matrix is used, with off-diagonal entries times √2.

Sums are exact. The entries of x are rounded towards zero to multiples of 2^{−16}, which makes no
row longer. Products of two of them, and sums of at most 4,096 such products, are whole multiples of
2^{−32}, fewer than 2^{53} of them. So a matrix product in floating point gives them exactly in any
order; the parts are added as 64-bit integers. One row moves the exact sums by the bound above,
however many rows there are. What is left is the rounding when the sums are turned into floating
point, multiplied by t and scaled: at most (K + 8)·2^{−53} times the number of rows, since the terms
of a row sum up to at most 1. The sensitivity contains it for 2^{30} rows in each of two
neighbouring data sets; the integers hold 2^{31} rows.

The weights solve (Σ xxᵀ + r·I) W = Σ x·tᵀ without the negative eigenvalues, which are noise
(:func:`expost.training.convex.moments.solve_noisy`). The ridge r follows the noise: with much noise
the solution is close to the difference of class means, with little noise to least squares. So one
statistic serves as a whole range of regularisations, and the choice is post-processing.

Tests: ``tests/training/test_convex.py``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from expost.arrays import Array, Floats
from expost.rationals import count_of
from expost.training.convex.moments import parts_of, solve_noisy
from expost.training.convex.preprocessing import Preprocessing

_STEPS = 2.0**16  # per unit


@dataclass(frozen=True)
class ClassMoments:
    """The sums that least squares classification needs.

    Parameters
    ----------
    features : int
        Number of features, without the bias.
    classes : int
        K.
    outputs : int
        K, or 1 for a single output and two classes.
    preprocessing : Preprocessing
        How rows are scaled.
    share : float
        a, the share of the squared sensitivity that belongs to Σ xxᵀ.
    """

    features: int
    classes: int
    outputs: int
    preprocessing: Preprocessing
    share: float = 0.3

    def __post_init__(self) -> None:
        for name in ("features", "outputs"):
            count_of(getattr(self, name), name, at_least=1)
        count_of(self.classes, "classes", at_least=2)

    @property
    def width(self) -> int:
        """Number of columns of the rows, with the bias."""
        return self.features + 1

    @property
    def dimension(self) -> int:
        """Number of entries of the statistic."""
        return self.width * (self.width + 1) // 2 + self.width * self.outputs

    @property
    def sensitivity(self) -> float:
        """How much one row moves the vector of :meth:`sums`, in ℓ2."""
        plain = self.share + (1 - self.share) * (1 - 1 / self.classes)
        return math.sqrt(plain) * (1 + 1e-9) + (self.classes + 8) * 2.0**-22

    def sums(self, X: Array, y: Array) -> Floats:
        """Return the statistic; a row that is not usable adds nothing."""
        numbers = np.asarray(y, dtype=np.float64)
        with np.errstate(invalid="ignore"):
            valid = (numbers >= 0) & (numbers < self.classes) & (numbers == np.floor(numbers))
        rows = self.preprocessing.rows(X, valid)
        labels = np.where(valid, numbers, 0.0).astype(np.int64)
        square = np.zeros((self.width, self.width), dtype=np.int64)
        by_class = np.zeros((self.width, self.classes), dtype=np.int64)
        classes = np.eye(self.classes)
        for part, of_part in parts_of(rows, labels):
            whole = np.trunc(part * _STEPS)
            square += (whole.T @ whole).astype(np.int64)
            by_class += (whole.T @ classes[of_part]).astype(np.int64)
        cross = by_class @ self._targets() / _STEPS
        first, second = np.triu_indices(self.width)
        factor = np.where(first == second, 1.0, math.sqrt(2)) * math.sqrt(self.share)
        return np.concatenate(
            [square[first, second] / _STEPS**2 * factor, cross.ravel() * math.sqrt(1 - self.share)]
        )

    def _targets(self) -> Floats:
        """Return t of each class."""
        if self.outputs == 1:
            return np.array([[-1.0], [1.0]]) / math.sqrt(2)
        return np.asarray(np.eye(self.classes) - 1 / self.classes)

    def solve(self, values: Floats, deviation: float) -> tuple[Floats, Floats]:
        """Return weight and bias on plain features in [0, 1], from a noisy statistic."""
        first, second = np.triu_indices(self.width)
        cut = len(first)
        matrix = np.zeros((self.width, self.width))
        entries = values[:cut] / math.sqrt(self.share)
        matrix[first, second] = entries / np.where(first == second, 1.0, math.sqrt(2))
        matrix = matrix + np.triu(matrix, 1).T
        right = values[cut:].reshape(self.width, self.outputs) / math.sqrt(1 - self.share)
        return self.preprocessing.unfold(
            solve_noisy(matrix, right, deviation / math.sqrt(self.share))
        )
