"""Regularised empirical risk of linear models: gradients, and bounds that are public.

F(w) = (1/n)·Σ_i ℓ(w; x_i, y_i) + (λ/2)·|w|², over the rows that are present. n is a public number
of places, at least the number of rows (or a known part of it: ``crowd``), and does not change with
the data; rows have norm at most 1; a zero row is an absent row.

**Sensitivity of the minimiser.** Let D′ be D without one row, w and w′ the minimisers, and G a
bound on the gradient of one row's loss at w′. ∇F_D(w) = 0 and ∇F_D(w′) = (1/n)·∇ℓ(w′; x, y), so by
strong convexity λ|w − w′|² ≤ ⟨∇F_D(w) − ∇F_D(w′), w − w′⟩ ≤ (G/n)·|w − w′|. Hence |w − w′| ≤
G/(nλ). A solver that returns a point within ``tolerance`` of the minimiser adds 2·``tolerance``
(:mod:`expost.training.convex.solver`). This is for neighbours of which one has a row more:
zero-out, and add-remove with a public number of places, whatever the actual number of rows is.

**The norm of the minimiser and G.** F(w*) ≤ F(0) gives |w*| ≤ √(2·F(0)/λ), and λw* =
−(1/n)·Σ∇ℓ_i(w*) gives |w*| ≤ G/λ. G is a bound on the gradient at points of norm at most R:

=========  =========================================================================================
logistic   the gradient is (σ(xᵀw) − y)·x and |xᵀw| ≤ R, so G(R) = σ(R) = 1/(1 + e^{−R}); F(0) =
           ln 2; the Hessian is at most ¼
softmax    the gradient is (p − e_y)xᵀ with logits z of norm at most R. Two logits differ by at most
           √2·R, so p_y ≥ a = 1/(1 + (K−1)e^{√2R}) and every p_k ≤ b = 1/(1 + (K−1)e^{−√2R}). |p −
           e_y|² = (1−p_y)² + Σ_{k≠y} p_k² ≤ (1−a)² + b(1−a) = G(R)², and G ≤ √2; F(0) = ln K;
           the Hessian is at most ½ (Böhning 1992)
squared    the loss is ½(xᵀw − y)² with targets in [0, 1]: G(R) = R + 1; F(0) = ½; the Hessian is at
           most 1
=========  =========================================================================================

Starting from R = √(2·F(0)/λ), R ← min(R, G(R)/λ) is repeated; each step keeps |w*| ≤ R, for every
data set, so R and G(R) are public.

Tests: ``tests/training/test_convex.py`` (against brute force on tiny problems).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from expost.arrays import Array, Floats
from expost.errors import InvalidInput
from expost.rationals import count_of

LOSSES = ("logistic", "softmax", "squared")
PART = 4096
_EPS = 2.0**-53
_ROUNDED_UP = 1 + 1e-9


@dataclass(frozen=True)
class ConvexProblem:
    """A regularised linear model on a public number of places.

    Parameters
    ----------
    loss : {"logistic", "softmax", "squared"}
        Targets are classes 0 and 1, classes 0 to K − 1, or numbers in [0, 1].
    places : int
        n, the public number of places by which losses are divided.
    width : int
        Number of columns of the rows, with the bias.
    regularisation : float
        λ, from 1e-6 to 1e6.
    classes : int
        K, for softmax.
    crowd : int
        1 if there are at most ``places`` rows. More if the actual number is secret: then G is a
        bound at every point, which holds for any number of rows, and the tolerance is chosen for
        the rounding of ``crowd`` times ``places`` rows. For more rows the solver keeps the same
        tolerance (:func:`~expost.training.convex.solver.minimise`). Squared loss has no bound at
        every point, so that its number of rows must be public: ``crowd`` is 1.
    """

    loss: str
    places: int
    width: int
    regularisation: float
    classes: int = 2
    crowd: int = 1

    def __post_init__(self) -> None:
        if self.loss not in LOSSES:
            raise InvalidInput("loss", self.loss, "choose from " + ", ".join(LOSSES))
        for name in ("places", "width"):
            count_of(getattr(self, name), name, at_least=1)
        count_of(self.classes, "classes", at_least=2)
        if self.loss == "squared" and self.crowd > 1:
            raise InvalidInput("crowd", self.crowd, "squared loss needs a public number of rows: 1")
        if not 1e-6 <= self.regularisation <= 1e6:
            raise InvalidInput(
                "regularisation", self.regularisation, "give a number from 1e-6 to 1e6"
            )

    @property
    def outputs(self) -> int:
        """Number of linear outputs."""
        return self.classes if self.loss == "softmax" else 1

    @property
    def smoothness(self) -> float:
        """A bound on the Hessian of F, for ``crowd`` times ``places`` rows."""
        return self.smoothness_of(self.crowd)

    def smoothness_of(self, crowd: float) -> float:
        """Return a bound on the Hessian of F for ``crowd`` times ``places`` rows."""
        curvature = {"logistic": 0.25, "softmax": 0.5, "squared": 1.0}[self.loss]
        return curvature * crowd + self.regularisation

    def _gradient_at(self, radius: float) -> float:
        """Return G(R)."""
        if self.loss == "logistic":
            return 1 / (1 + math.exp(-min(radius, 700.0)))
        if self.loss == "squared":
            return radius + 1
        growth = math.exp(min(math.sqrt(2) * radius, 700.0))
        a = 1 / (1 + (self.classes - 1) * growth)
        b = 1 / (1 + (self.classes - 1) / growth)
        return min(math.sqrt(2), math.sqrt((1 - a) ** 2 + b * (1 - a)))

    @property
    def radius(self) -> float:
        """R: a public bound on the norm of the minimiser, rounded up."""
        at_zero = {"logistic": math.log(2), "softmax": math.log(self.classes), "squared": 0.5}
        share = self.regularisation / self.crowd
        radius = math.sqrt(2 * at_zero[self.loss] / share) * _ROUNDED_UP
        for _ in range(64):
            radius = min(radius, self._gradient_at(radius) / share * _ROUNDED_UP)
        return radius

    @property
    def row_gradient(self) -> float:
        """G(R): a bound on the gradient of one row's loss at any minimiser, rounded up.

        If the number of rows is secret, it is the bound at any point, where there is one: it then
        holds for every number of rows.
        """
        everywhere = self.crowd > 1 and self.loss != "squared"
        return self._gradient_at(math.inf if everywhere else self.radius) * _ROUNDED_UP

    @property
    def exact_sensitivity(self) -> float:
        """G/(nλ): how far one row moves the exact minimiser."""
        return self.row_gradient / (self.places * self.regularisation) * _ROUNDED_UP

    @property
    def rounding(self) -> float:
        """A bound on the error of a computed gradient at the points that the solver visits."""
        return self.rounding_of(self.crowd * self.places, self.reach)

    @property
    def reach(self) -> float:
        """A bound on the norm of the points that :func:`~.solver.counted` visits: 2R + tolerance.

        Where rounding decides the tolerance, a quarter of it is below 1.
        """
        return 2 * self.radius + 1 + self._least_gradient / self.regularisation

    @property
    def _least_gradient(self) -> float:
        """The tolerance times λ where rounding does not matter."""
        return 1e-3 * self.row_gradient / self.places

    def rounding_of(self, rows: int, length: float, unit: float = _EPS) -> float:
        """Return a bound on the error of a gradient of ``rows`` rows at a point of this norm.

        The terms, to first order in ε (``unit``, 2^{−53} for float64) and with room to spare. A
        logit is a sum of ``width`` products: width·ε·|w|. The residuals (probabilities minus
        labels, or predictions minus targets) change by at most that much per logit, and their own
        evaluation adds 64·K·ε. Sums over rows are made in parts of 4,096 rows, and the parts are
        added: (4,096 + rows/4,096 + 16)·ε times the sum of absolute terms, whose norm is at most √2
        (squared: |w| + 1) per row, after division by n. The regularisation and the update of the
        point add 4ε·M|w|.
        """
        crowd = max(1.0, rows / self.places)
        logit = self.width * unit * length * math.sqrt(self.outputs)
        residual = logit + 64 * self.outputs * unit * (length if self.loss == "squared" else 1.0)
        most = length + 1 if self.loss == "squared" else math.sqrt(2)
        summed = (PART + rows / PART + 16) * unit * most
        return 2 * (crowd * (residual + summed) + 4 * unit * self.smoothness_of(crowd) * length)

    @property
    def tolerance(self) -> float:
        """The distance to the minimiser that the solver guarantees; public."""
        gradient = max(self._least_gradient, 4 * self.rounding)
        return gradient / self.regularisation

    @property
    def sensitivity(self) -> float:
        """ℓ2 sensitivity of the point that the solver returns: G/(nλ) + 2·tolerance."""
        return (self.exact_sensitivity + 2 * self.tolerance) * _ROUNDED_UP

    def gradient(self, weights: Floats, X: Array, y: Array) -> Floats:
        """Return the gradient of F, in the precision of ``weights``, of shape (width, outputs).

        ``X`` has rows of norm at most 1 (zero rows are absent) and ``y`` valid targets.
        """
        total = np.zeros_like(weights)
        for rows, targets in parts_of(X, y, weights.dtype):
            total += rows.T @ self._residuals(rows @ weights, targets)
        return np.asarray(total / self.places + self.regularisation * weights)

    def _residuals(self, logits: Floats, y: Array) -> Floats:
        """Return the derivative of each row's loss by its outputs."""
        if self.loss == "squared":
            return np.asarray(logits - y[:, None])
        if self.loss == "logistic":
            with np.errstate(over="ignore"):
                return np.asarray(1 / (1 + np.exp(-logits)) - y[:, None])
        shares = np.exp(logits - logits.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        shares[np.arange(len(shares)), y.astype(np.int64)] -= 1
        return np.asarray(shares)

    def targets(self, y: Array) -> tuple[Floats, Array]:
        """Return targets that are valid everywhere, and which of the given ones were valid."""
        numbers = np.asarray(y, dtype=np.float64)
        with np.errstate(invalid="ignore"):
            if self.loss == "squared":
                valid = np.isfinite(numbers)
                return np.clip(np.where(valid, numbers, 0.0), 0.0, 1.0), valid
            top = self.classes if self.loss == "softmax" else 2
            valid = (numbers >= 0) & (numbers < top) & (numbers == np.floor(numbers))
        return np.where(valid, numbers, 0.0), valid


def parts_of(X: Array, y: Array, dtype: Any = np.float64) -> Iterator[tuple[Floats, Array]]:
    """Yield parts of at most 4,096 rows."""
    for start in range(0, len(X), PART):
        yield np.asarray(X[start : start + PART], dtype=dtype), y[start : start + PART]
