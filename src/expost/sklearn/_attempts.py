"""The candidates of a search: fit an estimator on one part of the rows, score it on the other.

Metric, score, noise and split are those of ``expost.tune`` (:mod:`expost.tuning.request.metrics`,
:mod:`expost.tuning.model.scoring`, :mod:`expost.tuning.rows.job_rows`). Fit and score use disjoint
rows, so a candidate satisfies the larger of the two guarantees. Everything else depends on public
settings.

Tests: ``tests/tuning/test_sklearn_search.py``, ``tests/tuning/test_sklearn_scoring.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from expost.arrays import Array
from expost.errors import InvalidInput, MissingExtra
from expost.execution.calls import call_or_failure
from expost.privacy.guarantees import ADD_REMOVE, REPLACE, ZERO_OUT, Guarantee
from expost.randomness.source import Randomness
from expost.selection.candidate import Candidate
from expost.sklearn._rows import guarantee_of, inside_selection, parameter
from expost.tuning.model.scoring import Score, free_rho, with_scoring
from expost.tuning.request.metrics import LABELS, PROBABILITIES, Metric
from expost.tuning.request.settings import GoalSettings
from expost.tuning.runs.candidates import ScoredModel

try:
    from sklearn.base import clone
    from sklearn.model_selection import ParameterGrid
    from sklearn.utils import _safe_indexing
except ImportError:
    raise MissingExtra("scikit-learn", "sklearn") from None


@dataclass(frozen=True, eq=False, repr=False)
class FittedEstimator(ScoredModel):
    """A fitted estimator, and its score with the distribution of its noise."""

    estimator: Any = None


@dataclass(frozen=True, eq=False, repr=False)
class FitAndScore:
    """Fit a fresh clone on the training rows, then score it.

    ``rows``: the public number of scoring rows. ``labels``: the classes that have a stated share.
    ``public``: a function of the fitted estimator that is the score instead.
    """

    estimator: Any
    score: Score
    guarantee: Guarantee
    rows: int
    labels: tuple[Any, ...] = ()
    public: Callable[[Any], float] | None = None

    def __call__(self, data: Mapping[str, Any], randomness: Randomness) -> FittedEstimator:
        with inside_selection():
            fitted = self._fresh(randomness).fit(data["fit_X"], data["fit_y"])
            if self.public is not None:
                return FittedEstimator({}, float(self.public(fitted)), estimator=fitted)
            total = self.total(fitted, data["rate_X"], data["rate_y"])
        return FittedEstimator(
            {},
            self.score.noisy(total, self.rows, randomness),
            self.score.deviation / self.rows,
            self.score.unit / self.rows,
            law=self.score.law,
            estimator=fitted,
        )

    def _fresh(self, randomness: Randomness) -> Any:
        """Return a clone of the estimator; in a simulation, with a seed of its own."""
        fresh = clone(self.estimator)
        if randomness.simulated:
            given = fresh.get_params()
            seeds = [key for key in given if key.split("__")[-1] == "random_state"]
            chosen = {key: randomness.bits(31) for key in seeds if given[key] is None}
            flags = {key: True for key in given if key.split("__")[-1] == "simulation"}
            fresh.set_params(**chosen, **flags)
        return fresh

    def total(self, fitted: Any, X: Any, y: Array) -> int:
        """Return the sum over the rows in steps.

        A row on which ``predict`` raises has the lowest value and must not affect other rows.
        """
        total = call_or_failure(self._sum, fitted, X, y)
        if isinstance(total, int):
            return total
        alone = (
            call_or_failure(self._sum, fitted, _safe_indexing(X, [row]), y[row : row + 1])
            for row in range(len(y))
        )
        return sum(count if isinstance(count, int) else -self.score.centre for count in alone)

    def _sum(self, fitted: Any, X: Any, y: Array) -> int | None:
        """Return the sum over rows that can be predicted; None for another shape."""
        judged = predictions_of(self.score.metric, self.labels, fitted, X, y)
        return None if judged is None else self.score.sum_of(*judged)


def predictions_of(
    metric: Metric, labels: tuple[Any, ...], fitted: Any, X: Any, y: Array
) -> tuple[Array, Array] | None:
    """Return predictions and truth as a metric takes them; None for predictions of another shape.

    Another shape would be broadcast, and one row would count many times.
    """
    if metric.takes == PROBABILITIES:
        shares, labels = np.asarray(fitted.predict_proba(X)), tuple(fitted.classes_)
        same_shape = shares.shape == (len(y), len(labels))
        return (shares, _numbers_of(labels, y)) if same_shape else None
    predicted = np.asarray(fitted.predict(X))
    if predicted.ndim == 2 and predicted.shape[1] == 1:
        predicted = predicted[:, 0]
    if predicted.shape != y.shape:
        return None
    if metric.takes == LABELS:
        return predicted, y
    if metric.regression:
        return predicted.astype(np.float64), y.astype(np.float64)
    right = np.asarray(predicted == y)
    if right.shape != y.shape:
        return None
    truth = _numbers_of(labels, y) if labels else np.zeros(len(y))
    return np.where(right, truth, -1.0), truth


def _numbers_of(labels: tuple[Any, ...], y: Array) -> Array:
    """Return the number of each row's class; NaN for a class that is not listed."""
    numbers = np.full(len(y), np.nan)
    for number, label in enumerate(labels):
        numbers[np.asarray(y == label)] = number
    return numbers


def scored(
    goal: GoalSettings, guarantee: Guarantee, delta: float | None, *, centred: bool
) -> tuple[Score, Guarantee]:
    """Return a private score whose noise an estimator's guarantee covers, and that of both."""
    replaced = guarantee.neighbours == REPLACE
    if (pure := guarantee.as_pure()) is not None:
        return Score(goal, None, centred, pure.epsilon, replaced), guarantee
    stated, curve = guarantee.as_zcdp(), guarantee.as_renyi()
    if curve is None:
        assert stated is not None
        return Score(goal, stated.rho, centred, None, replaced), guarantee
    rho = free_rho(curve, delta) if stated is None else stated.rho
    return Score(goal, rho, centred, None, replaced), with_scoring(curve, rho)


@dataclass(frozen=True, eq=False, repr=False)
class Grid:
    """What is searched: an estimator at every level and point of a grid.

    ``rows`` and ``score_rows``: the public numbers of training and scoring rows. ``stated_rows``:
    they were stated, and the actual numbers are secret.
    """

    estimator: Any
    points: Any
    levels: tuple[float, ...] | None
    epsilon_name: str | None
    guarantee: Callable[[Any], Guarantee] | None
    rows: int
    score_rows: int
    stated_rows: bool
    repeats: int
    labels: tuple[Any, ...] = ()
    public: Callable[[Any], float] | None = None

    def estimators(self) -> list[tuple[dict[str, Any], Any]]:
        """Return the parameters of every candidate, in ascending order of levels, and a clone."""
        levels: list[dict[Any, Any]] = [{}]
        if self.levels is not None:
            levels = [{self.epsilon_name: level} for level in sorted(self.levels)]
        name = parameter(self.estimator, "n_rows")
        stated = {name: self.rows} if self.stated_rows and name is not None else {}
        listed = [{**level, **point} for level in levels for point in ParameterGrid(self.points)]
        return [(params, clone(self.estimator).set_params(**params, **stated)) for params in listed]

    def candidates(self, goal: GoalSettings, delta: float | None) -> list[Candidate]:
        """Return the candidates. No row is read."""
        listed = []
        for params, estimator in self.estimators():
            kept = self._guarantee(estimator)
            score = Score(goal, None)
            if self.public is None:
                score, kept = scored(goal, kept, delta, centred=self.stated_rows)
            mechanism = FitAndScore(
                estimator, score, kept, self.score_rows, self.labels, self.public
            )
            listed.append(Candidate(mechanism, params, repeats=self.repeats))
        return listed

    def level_by(self, delta: float | None) -> Callable[[Candidate], float]:
        """Return a function that names the level of a candidate.

        Under Rényi DP it is the value of the parameter for ε, if levels are given. Otherwise it is
        the ε of the candidate's guarantee: its own under pure DP, else that at ``delta``.
        """

        def by_guarantee(candidate: Candidate) -> float:
            if (pure := candidate.guarantee.as_pure()) is not None:
                return pure.epsilon
            if self.levels is not None:
                return float(candidate.params[self.epsilon_name])  # type: ignore[index]
            return float(f"{candidate.guarantee.to_approx(delta or 0).epsilon:.6g}")

        return by_guarantee

    def _guarantee(self, estimator: Any) -> Guarantee:
        """Return the guarantee of a fit, for the neighbours of the search."""
        if self.guarantee is None:
            stated: Any = guarantee_of(estimator, self.rows)
        else:
            stated = self.guarantee(estimator)
        if not isinstance(stated, Guarantee) or stated.shared_delta is not None:
            raise InvalidInput(
                "guarantee",
                None if stated is None else type(stated).__name__,
                "pass a function of the estimator that returns the PureDP, ZCDP or RenyiDP "
                "guarantee of one fit",
            )
        if self.stated_rows and stated.neighbours == ZERO_OUT:
            raise InvalidInput(
                "n_rows",
                "a number",
                "the estimator's guarantee depends on the number of rows (zero-out neighbours); "
                "leave n_rows out, or use an estimator with a parameter n_rows",
            )
        # Rows are split by position: if one is removed, others move to another part.
        by_position = self.public is None and not self.stated_rows
        moves = by_position and stated.neighbours == ADD_REMOVE
        return stated.as_zero_out() if moves else stated
