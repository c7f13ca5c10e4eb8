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
    """A fitted estimator, its score, and the law of the score's noise.

    ``deviation`` is the standard deviation of Gaussian noise or the scale of Laplace noise, and
    ``unit`` the score's smallest step; both are 0 if the score is public.
    """

    estimator: Any
    score: float
    deviation: float = 0.0
    unit: float = 0.0
    law: str = "gaussian"


def score_of(fitted: Fitted) -> float:
    """Return the score, for the selector."""
    return fitted.score


@dataclass(frozen=True, eq=False, repr=False)
class FitAndScore:
    """Fit a fresh clone on the training rows, then score it."""

    estimator: Any
    scorer: Callable[..., float] | None
    guarantee: Guarantee

    def __call__(self, data: Mapping[str, Any], randomness: Randomness) -> Fitted:
        fitted = clone(self.estimator).fit(data["train_X"], data["train_y"])
        if data["score_X"] is None:
            assert self.scorer is not None
            return Fitted(fitted, float(self.scorer(fitted)))
        return self._privately(fitted, data, randomness)

    def _privately(self, fitted: Any, data: Mapping[str, Any], randomness: Randomness) -> Fitted:
        """Score by the accuracy on held-out rows, with noise that keeps the promise.

        One row changes the number of correct predictions by at most 1.
        """
        correct = _correct(fitted, data["score_X"], data["score_y"])
        noise = score_noise(self.guarantee)
        noisy = noise(correct, randomness)
        assert isinstance(noisy, Estimate)
        rows = len(data["score_y"])
        return Fitted(fitted, float(noisy) / rows, noise.output_scale / rows, 1 / rows, noise.law)


def score_noise(promise: Guarantee) -> DiscreteNoise:
    """Return the noise of a private score that keeps ``promise``; it is called with the count."""
    query = Query(lambda whole: whole)
    if (pure := promise.as_pure()) is not None:
        return DiscreteLaplace(query, pure.epsilon, pure.neighbours)
    return DiscreteGaussian(query, _rho(promise), promise.neighbours)


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
