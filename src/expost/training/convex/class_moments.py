"""Classification by least squares from noisy second moments: Σ xxᵀ and Σ x·tᵀ.

x is a row of norm at most 1 (:mod:`expost.training.convex.preprocessing`) and t = e_y − 1/K the
centred class (one number ±1/√2 for two classes with one output), with |t|² ≤ 1 − 1/K. One row adds
(√a·xxᵀ, √(1−a)·x·tᵀ), whose norm is at most √(a + (1 − a)(1 − 1/K)). As a vector the upper triangle
of the first matrix is used, with off-diagonal entries times √2.

Sums are made by matrix products of at most 4,096 rows, and these are added. A product of m rows has
an error of at most (4,096 + m/4,096 + 16)·ε·m in norm, because the terms of a row sum up to at most
1; the sensitivity contains it for each of two neighbouring data sets.

The weights solve (Σ xxᵀ + r·I) W = Σ x·tᵀ. The ridge r is a multiple of the noise's norm: with much
noise the solution is close to the difference of class means, with little noise to least squares. So
one statistic serves as a whole range of regularisations, and the choice is post-processing.

Tests: ``tests/training/test_convex.py``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from expost.arrays import Array, Floats
from expost.rationals import count_of
from expost.training.convex.preprocessing import Preprocessing
from expost.training.convex.problem import PART, parts_of

_EPS = 2.0**-53


@dataclass(frozen=True)
class ClassMoments:
    """The sums that least squares classification needs.

    Parameters
    ----------
    places : int
        Public number of rows; ``crowd`` times as many may be there.
    features : int
        Number of features, without the bias.
    classes : int
        K.
    outputs : int
        K, or 1 for a single output and two classes.
    preprocessing : Preprocessing
        How rows are scaled.
    crowd : int
        How many times ``places`` the actual number of rows may be.
    share : float
        a, the share of the squared sensitivity that belongs to Σ xxᵀ.
    ridge : float
        The ridge as a multiple of σ·√(2·width), about the norm of the noise of Σ xxᵀ.
    """

    places: int
    features: int
    classes: int
    outputs: int
    preprocessing: Preprocessing
    crowd: int = 1
    share: float = 0.3
    ridge: float = 2.0

    def __post_init__(self) -> None:
        for name in ("places", "features", "outputs", "crowd"):
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
    def rounding(self) -> float:
        """A bound on the error of the computed sums, in norm."""
        rows = self.crowd * self.places
        return 4 * (PART + rows / PART + 16) * _EPS * rows

    @property
    def sensitivity(self) -> float:
        """How much one row moves the vector of :meth:`sums`, in ℓ2."""
        plain = self.share + (1 - self.share) * (1 - 1 / self.classes)
        return math.sqrt(plain) * (1 + 1e-9) + 2 * self.rounding

    def sums(self, X: Array, y: Array) -> Floats:
        """Return the statistic; a row that is not usable adds nothing."""
        numbers = np.asarray(y, dtype=np.float64)
        with np.errstate(invalid="ignore"):
            valid = (numbers >= 0) & (numbers < self.classes) & (numbers == np.floor(numbers))
        rows = self.preprocessing.rows(X, valid)
        labels = np.where(valid, numbers, 0.0).astype(np.int64)
        square = np.zeros((self.width, self.width))
        cross = np.zeros((self.width, self.outputs))
        for part, of_part in parts_of(rows, labels):
            square += part.T @ part
            cross += part.T @ self._targets(of_part)
        first, second = np.triu_indices(self.width)
        factor = np.where(first == second, 1.0, math.sqrt(2)) * math.sqrt(self.share)
        return np.concatenate(
            [square[first, second] * factor, cross.ravel() * math.sqrt(1 - self.share)]
        )

    def _targets(self, labels: Array) -> Floats:
        """Return t of each row."""
        if self.outputs == 1:
            return np.asarray((2.0 * labels[:, None] - 1) / math.sqrt(2))
        return np.asarray(np.eye(self.classes)[labels] - 1 / self.classes)

    def solve(self, values: Floats, deviation: float) -> tuple[Floats, Floats]:
        """Return weight and bias on plain features in [0, 1], from a noisy statistic."""
        first, second = np.triu_indices(self.width)
        cut = len(first)
        matrix = np.zeros((self.width, self.width))
        entries = values[:cut] / math.sqrt(self.share)
        matrix[first, second] = entries / np.where(first == second, 1.0, math.sqrt(2))
        matrix = matrix + np.triu(matrix, 1).T
        noise = deviation / math.sqrt(self.share)
        matrix[np.diag_indices(self.width)] += self.ridge * noise * math.sqrt(2 * self.width) + 1e-9
        right = values[cut:].reshape(self.width, self.outputs) / math.sqrt(1 - self.share)
        try:
            solved = np.asarray(np.linalg.solve(matrix, right), dtype=np.float64)
        except np.linalg.LinAlgError:
            solved = np.zeros_like(right)
        return self.preprocessing.unfold(np.where(np.isfinite(solved), solved, 0.0))
