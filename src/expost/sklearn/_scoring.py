"""The mechanism behind :class:`~expost.sklearn.ExPostSearch`: fit an estimator, then score it.

The score is a mean over scoring rows with noise, or a function of public data. Fit and score use
disjoint rows, so the promise of both is the larger of the two.

Each row has a value between two public numbers (:mod:`expost.sklearn._metrics`). The query is the
sum of the values less a public centre c, in whole steps, each rounded down. A present row changes
the sum by at most max(high − c, c − low), an absent row adds nothing. The score is c plus the noisy
sum divided by a *public* number of rows:

* Without ``n_rows`` the number of scoring places is public; c is the middle of the range, which
  halves the noise. If no place is empty, the score is the mean.
* With ``n_rows`` the number of scoring rows is not public; c is the target. Then the sum is
  positive iff the mean over the scoring rows is above the target, however many there are.

Tests: ``tests/tuning/test_sklearn_scoring.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import floor
from typing import Any

import numpy as np

from expost.arrays import Array
from expost.errors import MissingExtra
from expost.execution.failure import attempt
from expost.mechanisms.discrete_noise import DiscreteGaussian, DiscreteLaplace, DiscreteNoise, Query
from expost.mechanisms.protocol import Estimate
from expost.privacy.base import REPLACE
from expost.privacy.guarantees import Guarantee
from expost.randomness.source import Randomness
from expost.sklearn._metrics import ACCURACY, NO_FACTS, Facts, range_of, values_of
from expost.sklearn._rows import inside_selection
from expost.tuning.scoring import free_rho, with_scoring

try:
    from sklearn.base import clone
    from sklearn.utils import _safe_indexing
except ImportError:
    raise MissingExtra("scikit-learn", "sklearn") from None

_STEPS = 1 << 16  # steps of the range of a row's value


@dataclass(frozen=True, eq=False, repr=False)
class Fitted:
    """A fitted estimator, its score, and the law of the score's noise.

    ``deviation`` is the standard deviation of Gaussian noise or the scale of Laplace noise, and
    ``unit`` the score's smallest step; both are 0 if the score is public. After noise reduction,
    ``lead`` says by how much the noisy count lies above its threshold, and ``bound`` is a lower
    confidence bound for the score.
    """

    estimator: Any
    score: float
    deviation: float = 0.0
    unit: float = 0.0
    law: str = "gaussian"
    lead: float | None = None
    bound: float | None = None

    def __float__(self) -> float:
        """Return what noise reduction compares with its target: the lead if there is one."""
        return self.score if self.lead is None else self.lead


def score_of(fitted: Fitted) -> float:
    """Return the score, for the selector."""
    return fitted.score


@dataclass(frozen=True)
class RowScore:
    """A score that is a mean of bounded values, one per row.

    Parameters
    ----------
    metric : str
        A metric of :mod:`expost.sklearn._metrics`.
    low, high : float
        The public range of a row's value.
    centre : float
        What an absent row counts for, within the range.
    rows : float
        The public number of scoring rows.
    target_bounds : (float, float), optional
        Public range of a regression's target; targets and predictions are clipped to it.
    facts : Facts
        What else must be publicly known.
    """

    metric: str
    low: float
    high: float
    centre: float
    rows: float
    target_bounds: tuple[float, float] | None = None
    facts: Facts = NO_FACTS

    @classmethod
    def of(
        cls,
        metric: str,
        target_bounds: tuple[float, float] | None,
        rows: float,
        centre: float | None,
        facts: Facts = NO_FACTS,
    ) -> RowScore:
        """Return the score of a metric; by default it is centred in the middle of its range."""
        low, high = range_of(metric, target_bounds, facts)
        middle = (low + high) / 2 if centre is None else min(max(centre, low), high)
        return cls(metric, low, high, middle, rows, target_bounds, facts)

    def _step(self, value: float) -> int:
        """Return a value, less the centre, in whole steps; exact, rounded down."""
        span = Fraction(self.high) - Fraction(self.low)
        return floor((Fraction(value) - Fraction(self.centre)) / span * _STEPS)

    @property
    def step(self) -> float:
        """Size of one step in the unit of the metric."""
        return (self.high - self.low) / _STEPS

    def sensitivity(self, neighbours: str) -> int:
        """Return the most by which one row changes the sum, in steps."""
        lowest, highest = self._step(self.low), self._step(self.high)
        return highest - lowest if neighbours == REPLACE else max(-lowest, highest)

    @property
    def largest(self) -> int:
        """The most that one row adds to the sum, in steps."""
        return self._step(self.high)

    def total(self, fitted: Any, X: Any, y: Array) -> int:
        """Return the sum over rows in steps.

        A row on which ``predict`` raises has the lowest value and must not affect other rows.
        """
        values = attempt(self._values, fitted, X, y)
        if isinstance(values, np.ndarray):
            return self._sum(values)
        single = [
            attempt(self._values, fitted, _safe_indexing(X, [place]), y[place : place + 1])
            for place in range(len(y))
        ]
        lowest = np.array([self.low])
        kept = [each if isinstance(each, np.ndarray) else lowest for each in single]
        return self._sum(np.concatenate(kept)) if kept else 0

    def _sum(self, values: Array) -> int:
        """Return the sum of the values in steps; NaN counts as the lowest value."""
        lowest, highest = self._step(self.low), self._step(self.high)
        if self.metric == ACCURACY:
            right = int(np.count_nonzero(values == 1.0))
            return right * highest + (len(values) - right) * lowest
        steps = np.floor((values - self.centre) / (self.high - self.low) * _STEPS)
        steps = np.where(np.isfinite(steps), steps, lowest)
        return int(np.clip(steps, lowest, highest).astype(np.int64).sum())

    def _values(self, fitted: Any, X: Any, y: Array) -> Array | None:
        """Return one value per row; None for predictions of another shape."""
        return values_of(self.metric, self.target_bounds, self.facts, fitted, X, y)


@dataclass(frozen=True, eq=False, repr=False)
class FitAndScore:
    """Fit a fresh clone on the training rows, then score it: privately, or by ``scorer``."""

    estimator: Any
    scorer: Callable[..., float] | RowScore
    guarantee: Guarantee

    def __call__(self, data: Mapping[str, Any], randomness: Randomness) -> Fitted:
        with inside_selection():
            fitted = self._fresh(randomness).fit(data["train_X"], data["train_y"])
            if not isinstance(self.scorer, RowScore):
                return Fitted(fitted, float(self.scorer(fitted)))
            return self._privately(self.scorer, fitted, data, randomness)

    def _fresh(self, randomness: Randomness) -> Any:
        """Return a clone of the estimator; in a simulation, with a seed of its own."""
        made = clone(self.estimator)
        if randomness.simulated:
            given = made.get_params()
            seeds = [key for key in given if key.split("__")[-1] == "random_state"]
            chosen = {key: randomness.bits(31) for key in seeds if given[key] is None}
            flags = {key: True for key in given if key.split("__")[-1] == "simulation"}
            made.set_params(**chosen, **flags)
        return made

    def _privately(
        self, score: RowScore, fitted: Any, data: Mapping[str, Any], randomness: Randomness
    ) -> Fitted:
        """Score on the scoring rows, with noise that keeps the promise."""
        noise = score_noise(self.guarantee, score.sensitivity(self.guarantee.neighbours))
        noisy = noise(score.total(fitted, data["score_X"], data["score_y"]), randomness)
        assert isinstance(noisy, Estimate)
        unit = score.step / score.rows
        return Fitted(
            fitted,
            score.centre + float(noisy) * unit,
            noise.output_scale * unit,
            unit,
            noise.law,
        )


def score_noise(promise: Guarantee, sensitivity: int) -> DiscreteNoise:
    """Return the noise of a private score that keeps ``promise``; it is called with the sum."""
    query = Query(lambda whole: whole, sensitivity=sensitivity)
    if (pure := promise.as_pure()) is not None:
        return DiscreteLaplace(query, pure.epsilon, pure.neighbours)
    return DiscreteGaussian(query, _rho(promise), promise.neighbours)


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
