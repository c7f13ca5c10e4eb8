"""The mechanism behind :class:`~expost.sklearn.ExPostSearch`: fit an estimator, then score it.

The score is the accuracy on held-out rows with noise, or a function of public data. Fit and score
use disjoint rows, so the promise of both is the larger of the two.
Tests: ``tests/tuning/test_sklearn_search.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from expost.errors import MissingExtra
from expost.execution.failure import attempt
from expost.mechanisms.discrete_noise import DiscreteGaussian, DiscreteLaplace, DiscreteNoise, Query
from expost.mechanisms.protocol import Estimate
from expost.privacy.guarantees import Guarantee
from expost.randomness.source import Randomness
from expost.tuning.scoring import free_rho, with_scoring

try:
    from sklearn.base import clone
    from sklearn.utils import _safe_indexing
except ImportError:
    raise MissingExtra("scikit-learn", "sklearn") from None


@dataclass(frozen=True, eq=False, repr=False)
class Fitted:
    """A fitted estimator and its score."""

    estimator: Any
    score: float


def score_of(fitted: Fitted) -> float:
    """Return the score, for the selector."""
    return fitted.score


@dataclass(frozen=True, eq=False, repr=False)
class FitAndScore:
    """Fit a fresh clone on the training rows, then score it."""

    estimator: Any
    scorer: Callable[..., float]
    guarantee: Guarantee

    def __call__(self, data: Mapping[str, Any], randomness: Randomness) -> Fitted:
        fitted = clone(self.estimator).fit(data["train_X"], data["train_y"])
        return Fitted(fitted, self._rate(fitted, data, randomness))

    def _rate(self, fitted: Any, data: Mapping[str, Any], randomness: Randomness) -> float:
        """Score the fitted estimator, on public data or on the held-out rows."""
        if data["score_X"] is None:
            return float(self.scorer(fitted))
        return float(self.scorer(fitted, data, randomness))


def private_accuracy(promise: Guarantee) -> Callable[[Any, Mapping[str, Any], Randomness], float]:
    """Return a score: the accuracy on held-out rows, with noise that keeps the promise.

    One row changes the number of correct predictions by at most 1.
    """

    def score(fitted: Any, data: Mapping[str, Any], randomness: Randomness) -> float:
        correct = _correct(fitted, data["score_X"], data["score_y"])
        query = Query(lambda whole: whole)
        noise: DiscreteNoise
        if (pure := promise.as_pure()) is not None:
            noise = DiscreteLaplace(query, pure.epsilon, pure.neighbours)
        else:
            noise = DiscreteGaussian(query, _rho(promise), promise.neighbours)
        noisy = noise(correct, randomness)
        assert isinstance(noisy, Estimate)
        return float(noisy) / len(data["score_y"])

    return score


def _correct(fitted: Any, X: Any, y: Any) -> int:
    """Count the correctly predicted rows.

    A row on which ``predict`` raises an error counts as wrong and must not affect other rows.
    """
    whole = attempt(_count, fitted, X, y)
    if isinstance(whole, int):
        return whole
    return sum(_is_correct(fitted, _safe_indexing(X, [place]), y[place]) for place in range(len(y)))


def _count(fitted: Any, X: Any, y: Any) -> int | None:
    """Count the correct predictions of all rows at once; None for predictions of another shape."""
    predicted = np.asarray(fitted.predict(X))
    # Another shape would be broadcast, and one row would count many times.
    return int(np.count_nonzero(predicted == y)) if predicted.shape == y.shape else None


def _is_correct(fitted: Any, row: Any, truth: Any) -> bool:
    """Whether one row is predicted correctly; an error counts as wrong."""
    right = attempt(lambda: bool(np.asarray(fitted.predict(row))[0] == truth))
    return right is True


def _rho(promise: Guarantee) -> float:
    """Return the ρ of the score's noise that the promise covers."""
    stated, curve = promise.as_zcdp(), promise.as_renyi()
    if stated is not None:
        return stated.rho
    assert curve is not None
    return free_rho(curve)


def promise_with_score(promise: Guarantee) -> Guarantee:
    """Return the larger of the promises of fit and score; they use disjoint rows."""
    curve = promise.as_renyi()
    return promise if curve is None else with_scoring(curve, _rho(promise))
