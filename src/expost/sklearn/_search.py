"""Private grid search for scikit-learn: ``ExPostSearch`` tunes estimators that keep a privacy promise and charges what the winner cost.

Tests: ``tests/tuning/test_sklearn_search.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np

from expost.budget.ledger import Ledger
from expost.errors import InvalidInput, MissingExtra
from expost.mechanisms.discrete_noise import DiscreteGaussian, DiscreteLaplace, DiscreteNoise, Query
from expost.mechanisms.outcome import FAILED
from expost.mechanisms.protocol import Estimate
from expost.privacy.guarantees import Guarantee
from expost.randomness.source import Randomness
from expost.selection.candidate import Candidate
from expost.tuning.forecast import dropping
from expost.tuning.rows import held_out
from expost.tuning.scoring import free_rho, with_scoring

try:
    from sklearn.base import BaseEstimator, MetaEstimatorMixin, clone
    from sklearn.model_selection import ParameterGrid
    from sklearn.utils import _safe_indexing
    from sklearn.utils.metaestimators import available_if
    from sklearn.utils.validation import _num_samples, check_is_fitted
except ImportError:
    raise MissingExtra("scikit-learn", "sklearn") from None

__all__ = ["ExPostSearch"]


def _winner_has(method: str) -> Callable[[ExPostSearch], bool]:
    return lambda search: hasattr(getattr(search, "best_estimator_", search.estimator), method)


class ExPostSearch(MetaEstimatorMixin, BaseEstimator):  # type: ignore[misc]
    """Search a grid of private estimators by random dropping; release the cheapest that passes ``target`` (or the best).

    ``fit`` keeps ex-post differential privacy at ``privacy_spent_`` for everything it sets (``theorem:max-score`` for pure promises, its
    sharpened Rényi form with ``delta``), if every estimator keeps its promise, draws its noise freshly at each ``fit``, and predicts
    row by row. Rows are split by position (:mod:`expost.tuning.rows`): a share ``holdout`` scores, the rest trains.

    ``estimator, param_grid``  as in GridSearchCV; ``epsilons`` are the values of the parameter ``epsilon_param``, tried by ascending ε
    ``target``      a bar on the score; without it the best score wins
    ``guarantee``   function(estimator) → promise. Left out, the estimator's own ``privacy_guarantee(n)`` or ``guarantee`` is asked; an
                    attribute ``epsilon`` alone is not taken as a promise
    ``scoring``     "private": noisy accuracy on the held-out rows; noise is chosen so that a candidate's promise covers it. Or
                    function(estimator) → number, which may look at *public* data only; then all rows train
    ``delta``       for Rényi and zCDP promises; charges are then (ε̃, δ)
    ``overhead``    ε′ as a fraction of the first drop rate
    ``ledger``      a Ledger, or its URL; the worst case is reserved before a row is used. ``budget``, ``analyst`` as for selectors
    ``n_jobs``      processes that fit survivors; reserving and settling happen once, in this process

    After ``fit``: ``best_estimator_`` (None if the winner failed), ``best_params_``, ``best_score_``, ``privacy_spent_``, ``release_``.

    There is no ``cv_results_``: which candidates ran and how they scored is secret. The charge covers the winner alone; a table of losing
    scores would have to be paid for candidate by candidate. For the same reason rows are not scored in folds.

    A charge is neither lost nor doubled by copies. ``clone`` gives an unfitted search on the *same* ledger. A pickle (or deep copy) holds
    what was released and no connection: fitting it again is refused until ``set_params(ledger=…)`` reconnects it; with a URL it reconnects
    by itself.
    """

    def __init__(
        self,
        estimator: Any,
        param_grid: Any,
        *,
        epsilons: Sequence[float] | None = None,
        epsilon_param: str = "epsilon",
        target: float | None = None,
        guarantee: Callable[[Any], Guarantee] | None = None,
        scoring: str | Callable[[Any], float] = "private",
        holdout: float = 0.2,
        delta: float | None = None,
        overhead: float = 0.1,
        repeats: int = 1,
        ledger: Any = None,
        budget: str | None = None,
        analyst: str = "",
        n_jobs: int | None = None,
        randomness: Randomness | None = None,
        simulation: bool = False,
    ) -> None:
        self.estimator = estimator
        self.param_grid = param_grid
        self.epsilons = epsilons
        self.epsilon_param = epsilon_param
        self.target = target
        self.guarantee = guarantee
        self.scoring = scoring
        self.holdout = holdout
        self.delta = delta
        self.overhead = overhead
        self.repeats = repeats
        self.ledger = ledger
        self.budget = budget
        self.analyst = analyst
        self.n_jobs = n_jobs
        self.randomness = randomness
        self.simulation = simulation

    def fit(self, X: Any, y: Any) -> ExPostSearch:
        """Reserve, fit the survivors, release one, settle."""
        ledger = self._account()
        self._check_numbers()
        data = self._split(X, y)
        candidates = self._candidates(len(data["train_y"]))
        claim = {} if self.delta is None else {"delta": self.delta}
        selector = dropping(candidates, self.overhead, self.target, **claim)
        request: dict[str, Any] = (
            {}
            if ledger is None
            else {"ledger": ledger, "budget": self.budget, "analyst": self.analyst}
        )
        release = selector.select(
            candidates,
            data,
            score=_score_of,
            randomness=self.randomness,
            simulation=self.simulation,
            executor=self._executor(),
            **request,
        )
        self.release_ = release
        self.privacy_spent_ = release.spent
        self.best_params_ = dict(release.params)
        self.best_score_ = release.score
        self.best_estimator_ = None if release.value is FAILED else release.value.estimator
        return self

    def predict(self, X: Any) -> Any:
        """What the released estimator predicts."""
        return self._winner().predict(X)

    @available_if(_winner_has("predict_proba"))  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> Any:
        """The released estimator's probabilities."""
        return self._winner().predict_proba(X)

    @available_if(_winner_has("decision_function"))  # type: ignore[untyped-decorator]
    def decision_function(self, X: Any) -> Any:
        """The released estimator's decision function."""
        return self._winner().decision_function(X)

    @property
    def classes_(self) -> Any:
        return self._winner().classes_

    def _winner(self) -> Any:
        check_is_fitted(self, "release_")
        if self.best_estimator_ is None:
            raise InvalidInput(
                "best_estimator_",
                None,
                "every estimator that ran failed to fit; the release says so",
            )
        return self.best_estimator_

    def _check_numbers(self) -> None:
        """Refuse here what would fail every fit: as an outcome it would be charged."""
        levels, jobs = self.epsilons, self.n_jobs
        if levels is not None and not (
            np.ndim(levels) == 1 and len(levels) and all(map(_is_level, levels))
        ):
            raise InvalidInput("epsilons", levels, "give a list of numbers > 0, or leave it out")
        if jobs is not None and (
            isinstance(jobs, bool) or not isinstance(jobs, Integral) or jobs == 0
        ):
            raise InvalidInput("n_jobs", jobs, "give a whole number other than 0, or leave it out")

    def _executor(self) -> Any:
        """Fresh processes (never forks, which could share a generator's state). One that dies is not taken for an outcome: its neighbours'
        fits would be lost with it."""
        if self.n_jobs in (None, 1):
            return None
        from joblib import effective_n_jobs  # type: ignore[import-untyped]
        from joblib.externals.loky import get_reusable_executor  # type: ignore[import-untyped]

        return get_reusable_executor(max_workers=effective_n_jobs(self.n_jobs))

    def _account(self) -> Any:
        if self.ledger is None and getattr(self, "_left_ledger_behind", False):
            raise InvalidInput(
                "ledger",
                None,
                "this is a copy of a search with a ledger: reconnect it with set_params(ledger=…) before fitting",
            )
        return Ledger.open(self.ledger) if isinstance(self.ledger, (str, Path)) else self.ledger

    def _split(self, X: Any, y: Any) -> dict[str, Any]:
        rows = len(y)
        if _num_samples(X) != rows:
            raise InvalidInput(
                "X, y", f"{_num_samples(X)} rows and {rows} targets", "give one target a row"
            )
        if not callable(self.scoring) and self.scoring != "private":
            raise InvalidInput(
                "scoring",
                self.scoring,
                'give "private", or a function(estimator) that looks at public data only',
            )
        if callable(self.scoring):
            return {"train_X": X, "train_y": y, "score_X": None, "score_y": None}
        if np.ndim(y) != 1:
            raise InvalidInput(
                "y", f"targets in {np.ndim(y)} dimensions", "give one label a row, as a flat array"
            )
        if not 0 < self.holdout < 1:
            raise InvalidInput("holdout", self.holdout, "give a share with 0 < holdout < 1")
        out = held_out(rows, self.holdout)
        if out.all() or not out.any():
            raise InvalidInput(
                "holdout", self.holdout, f"{rows} rows cannot be split so; give another share"
            )
        train, rest = np.flatnonzero(~out), np.flatnonzero(out)
        return {
            "train_X": _safe_indexing(X, train),
            "train_y": _safe_indexing(y, train),
            "score_X": _safe_indexing(X, rest),
            "score_y": np.asarray(_safe_indexing(y, rest)),
        }

    def _candidates(self, n: int) -> list[Candidate]:
        levels = (
            [{}]
            if self.epsilons is None
            else [{self.epsilon_param: epsilon} for epsilon in sorted(self.epsilons)]
        )
        candidates = []
        for params in [
            {**level, **point} for level in levels for point in ParameterGrid(self.param_grid)
        ]:
            estimator = clone(self.estimator).set_params(**params)
            self._check_seed(estimator)
            promise = self._promise(estimator, n)
            scorer = self.scoring if callable(self.scoring) else _private(promise)
            kept = promise if callable(self.scoring) else _with_scoring(promise)
            mechanism = _FitAndScore(estimator, scorer, kept)
            candidates.append(Candidate(mechanism, params, repeats=self.repeats))
        return candidates

    def _promise(self, estimator: Any, n: int) -> Guarantee:
        own = getattr(estimator, "guarantee", None)
        promise: Any
        if self.guarantee is not None:
            promise = self.guarantee(estimator)
        elif hasattr(estimator, "privacy_guarantee"):
            promise = estimator.privacy_guarantee(n)
        else:
            promise = own() if callable(own) else own
        if not isinstance(promise, Guarantee) or promise.shared_delta is not None:
            raise InvalidInput(
                "guarantee",
                type(promise).__name__,
                "give a function(estimator) that returns the PureDP, ZCDP or RenyiDP which a fit keeps",
            )
        return promise

    def _check_seed(self, estimator: Any) -> None:
        seeds = [
            key
            for key, value in estimator.get_params().items()
            if key.endswith("random_state") and value is not None
        ]
        if seeds and not self.simulation:
            raise InvalidInput(
                seeds[0],
                "a seed",
                "noise from a seed protects nobody; leave it None, or say simulation=True",
            )

    def __sklearn_clone__(self) -> ExPostSearch:
        """Unfitted, on the same ledger (never a copy of it), with a clone of the estimator."""
        params = self.get_params(deep=False)
        copied = type(self)(**{**params, "estimator": clone(self.estimator)})
        copied._left_ledger_behind = (
            getattr(self, "_left_ledger_behind", False) and self.ledger is None
        )
        return copied

    def __getstate__(self) -> dict[str, Any]:
        """What may be copied: everything but open connections and seeded streams."""
        state = dict(super().__getstate__())
        if state.get("ledger") is not None and not isinstance(state["ledger"], (str, Path)):
            state["ledger"] = None
            state["_left_ledger_behind"] = True
        state["randomness"] = None
        return state


@dataclass(frozen=True, eq=False, repr=False)
class _Fitted:
    estimator: Any
    score: float


def _score_of(fitted: _Fitted) -> float:
    return fitted.score


@dataclass(frozen=True, eq=False, repr=False)
class _FitAndScore:
    """Fit a fresh clone on the training rows, then score it."""

    estimator: Any
    scorer: Callable[..., float]
    guarantee: Guarantee

    def __call__(self, data: Mapping[str, Any], randomness: Randomness) -> _Fitted:
        fitted = clone(self.estimator).fit(data["train_X"], data["train_y"])
        return _Fitted(fitted, self._rate(fitted, data, randomness))

    def _rate(self, fitted: Any, data: Mapping[str, Any], randomness: Randomness) -> float:
        if data["score_X"] is None:
            return float(self.scorer(fitted))
        return float(self.scorer(fitted, data, randomness))


def _is_level(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and 0 < float(value) < np.inf


def _private(promise: Guarantee) -> Callable[[Any, Mapping[str, Any], Randomness], float]:
    """Noisy accuracy on the held-out rows within the promise: one row changes the number correct by at most 1."""

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
    """Rows predicted correctly. A row on which ``predict`` raises counts as wrong and leaves the others alone: it is one row's doing."""
    try:
        predicted = np.asarray(fitted.predict(X))
        if (
            predicted.shape == y.shape
        ):  # another shape would be broadcast: one row would count many times
            return int(np.count_nonzero(predicted == y))
    except Exception:
        pass
    return sum(_is_correct(fitted, _safe_indexing(X, [place]), y[place]) for place in range(len(y)))


def _is_correct(fitted: Any, row: Any, truth: Any) -> bool:
    try:
        return bool(np.asarray(fitted.predict(row))[0] == truth)
    except Exception:
        return False


def _rho(promise: Guarantee) -> float:
    stated, curve = promise.as_zcdp(), promise.as_renyi()
    if stated is not None:
        return stated.rho
    assert curve is not None
    return free_rho(curve)


def _with_scoring(promise: Guarantee) -> Guarantee:
    """The larger of the promise and its score's, on disjoint rows."""
    curve = promise.as_renyi()
    return promise if curve is None else with_scoring(curve, _rho(promise))
