"""The candidates of a search: one per privacy level and point of the grid, with its promise.

Everything here depends on public settings and on the number of rows, but for the coins of a split
with a public ``n_rows``. Tests: ``tests/tuning/test_sklearn_search.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from expost.errors import InvalidInput, MissingExtra
from expost.privacy.base import ADD_REMOVE, ZERO_OUT
from expost.privacy.guarantees import Guarantee
from expost.randomness.source import Randomness
from expost.rationals import count_of
from expost.selection.candidate import Candidate
from expost.sklearn._conventions import check_fit, parameter, promise_of, setting
from expost.sklearn._metrics import REGRESSION, Facts, described, read_metric
from expost.sklearn._rows import check_bounds
from expost.sklearn._scoring import (
    FitAndScore,
    RowScore,
    promise_with_score,
)
from expost.sklearn._split import by_coins, by_position

try:
    from sklearn.base import clone, is_regressor
    from sklearn.model_selection import ParameterGrid
except ImportError:
    raise MissingExtra("scikit-learn", "sklearn") from None


class CandidateLister:
    """The part of :class:`~expost.sklearn.ExPostSearch` that lists and prices candidates."""

    estimator: Any
    param_grid: Any
    epsilons: Sequence[float] | None
    epsilon_param: str | None
    target: float | None
    guarantee: Callable[[Any], Guarantee] | None
    scoring: str | Callable[..., float]
    holdout: float
    n_rows: int | None
    target_bounds: Any
    class_shares: Any
    loss_bound: float | None
    target_variance: float | None
    metric_bounds: Any
    delta: float | None
    repeats: int
    simulation: bool

    def _candidates(self, X: Any, targets: Any, source: Randomness) -> tuple[list[Candidate], Any]:
        """List one candidate per level and point of the grid, and which rows score."""
        score, out, n = self._score(targets, source)
        name = None if self.epsilons is None else self._epsilon_name()
        levels = [{}] if self.epsilons is None else [{name: each} for each in sorted(self.epsilons)]
        rows = parameter(self.estimator, "n_rows")
        public = {} if self.n_rows is None or rows is None else {rows: n}
        candidates = []
        for place, level in enumerate(levels):
            for point in ParameterGrid(self.param_grid):
                params = {**level, **point}
                estimator = clone(self.estimator).set_params(**params, **public)
                self._check_seed(estimator)
                promise = self._promise(estimator, n, split=out is not None)
                if place == 0:
                    check_fit(clone(estimator), X, targets)
                kept = promise_with_score(promise) if isinstance(score, RowScore) else promise
                mechanism = FitAndScore(estimator, score, kept)
                candidates.append(Candidate(mechanism, params, repeats=self.repeats))
        return candidates, out

    def _searched_names(self) -> set[str]:
        """Return the names of the parameters that the grid sets."""
        grids = [self.param_grid] if isinstance(self.param_grid, Mapping) else self.param_grid
        return {str(name) for each in grids or [] for name in (each or {})}

    def _score(self, targets: Any, source: Randomness) -> tuple[Any, Any, int]:
        """Return the score, which rows score, and the public number of training rows."""
        n = len(targets)
        public = None if self.n_rows is None else count_of(self.n_rows, "n_rows", at_least=2)
        if self._metric() is None:
            return self.scoring, None, public or n
        if not 0 < self.holdout < 1:
            raise InvalidInput("holdout", self.holdout, "pass a share with 0 < holdout < 1")
        if public is None:
            out = by_position(n, self.holdout)
            held = int(np.count_nonzero(out))
            return self._row_score(held, None), out, n - held
        held = round(public * self.holdout)
        if not 0 < held < public:
            raise InvalidInput("n_rows", public, "pass more rows, or another holdout")
        score = self._row_score(held, self.target)
        return score, by_coins(n, self.holdout, source), public - held

    def _row_score(self, held: int, centre: float | None) -> RowScore:
        """Return the private score on a public number of scoring rows."""
        metric, bounds, facts = self._defined()
        return RowScore.of(metric, bounds, held, centre, facts)

    def _described(self) -> dict[str, Any]:
        """Return what a private score certifies, for the certificate."""
        return described(*self._defined())

    def _defined(self) -> tuple[str, tuple[float, float] | None, Facts]:
        """Return the metric of a private score and the public numbers that define it."""
        read = self._metric()
        assert read is not None
        metric, facts = read
        if metric not in REGRESSION:
            return metric, None, facts
        given = self.target_bounds
        given = setting(self.estimator, "target_bounds") if given is None else given
        low, high = check_bounds(given, "target_bounds", None, 1)
        return metric, (float(low[0]), float(high[0])), facts

    def _metric(self) -> tuple[str, Facts] | None:
        """Return the metric of a private score with its facts; None for a public score."""
        facts = {
            "class_shares": self.class_shares,
            "loss_bound": self.loss_bound,
            "target_variance": self.target_variance,
            "metric_bounds": self.metric_bounds,
        }
        return read_metric(self.scoring, is_regressor(self.estimator), facts)

    def _promise(self, estimator: Any, n: int, *, split: bool) -> Guarantee:
        """Return the promise that a fit keeps, for the neighbours of this search."""
        promise: Any = (
            promise_of(estimator, n) if self.guarantee is None else self.guarantee(estimator)
        )
        if not isinstance(promise, Guarantee) or promise.shared_delta is not None:
            raise InvalidInput(
                "guarantee",
                None if promise is None else type(promise).__name__,
                "pass a function of the estimator that returns the PureDP, ZCDP or RenyiDP "
                "promise of one fit",
            )
        if self.n_rows is not None and promise.neighbours == ZERO_OUT:
            raise InvalidInput(
                "n_rows",
                self.n_rows,
                "the estimator's promise depends on the number of rows (zero-out neighbours); "
                "leave n_rows out, or use an estimator with a parameter n_rows",
            )
        by_place = split and self.n_rows is None and promise.neighbours == ADD_REMOVE
        return promise.as_zero_out() if by_place else promise

    def _delta(self, candidates: list[Candidate]) -> float | None:
        """Return the δ of the claim: as given, or that of estimators without a pure promise."""
        given = self.delta
        if given is None and candidates[0].guarantee.as_pure() is None:
            given = setting(self.estimator, "delta")
        return None if given is None else float(given)

    def _epsilon_name(self) -> str:
        """Return the full name of the parameter that sets the level."""
        name = self.epsilon_param or parameter(self.estimator, "epsilon")
        if name is None or name not in self.estimator.get_params():
            raise InvalidInput(
                "epsilon_param", name, "name the estimator's parameter that sets its privacy level"
            )
        return str(name)

    def _check_seed(self, estimator: Any) -> None:
        """Raise an error for a seeded estimator outside a simulation."""
        seeds = [
            key
            for key, value in estimator.get_params().items()
            if key.endswith("random_state") and value is not None
        ]
        if seeds and not self.simulation:
            raise InvalidInput(
                seeds[0],
                "a seed",
                "noise from a seed gives no privacy; leave it None, or pass simulation=True",
            )
