"""Private grid search for scikit-learn estimators that keep a privacy promise.

:class:`ExPostSearch` charges what the winner cost. Without a target it rests on
``theorem:max-score`` (pure promises) and its sharpened Rényi form; with a target, on
``theorem:generalized-at`` and its Rényi form for each attempt, composed.
Tests: ``tests/tuning/test_sklearn_search.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np

from expost.budget.ledger import Ledger
from expost.errors import InvalidInput, MissingExtra
from expost.privacy.advice import warn_if_weak
from expost.privacy.guarantees import Guarantee
from expost.randomness.source import Randomness
from expost.selection.attempts import Belief, plan_attempts
from expost.selection.candidate import Candidate
from expost.selection.release import Release
from expost.sklearn._levels import check_delta, level_by
from expost.sklearn._scoring import FitAndScore, Fitted, promise_with_score, score_of
from expost.tuning.confidence import Margins
from expost.tuning.forecast import composed, dropping, ladder_of
from expost.tuning.rows import held_out
from expost.tuning.run_attempts import make_attempts, steps_of

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
    """Whether the released estimator (before a fit: the estimator) has a method."""
    return lambda search: hasattr(getattr(search, "best_estimator_", search.estimator), method)


class ExPostSearch(MetaEstimatorMixin, BaseEstimator):  # type: ignore[misc]
    """Private grid search.

    With a ``target``, planned attempts of Algorithm 2 release the first estimator that reaches it;
    without one, random dropping (Algorithm 3) releases the best.

    Parameters
    ----------
    estimator : estimator
        An estimator that keeps a privacy promise, draws fresh noise at each ``fit``, and predicts
        row by row.
    param_grid : dict or list of dict
        As in ``GridSearchCV``.
    epsilons : sequence of float, optional
        Values of the parameter ``epsilon_param``, tried in ascending order.
    epsilon_param : str, default="epsilon"
        The estimator's parameter for its ε.
    target : float, optional
        The score to reach. Planned attempts of Algorithm 2 are made until one reaches it; a miss
        releases nothing and costs little. Without a target, the best score wins.
    guarantee : callable, optional
        A function from an estimator to the promise that one fit keeps. Default: the estimator's
        own ``privacy_guarantee(n)`` or ``guarantee``. An attribute ``epsilon`` alone is not taken
        as a promise.
    scoring : "private" or callable, default="private"
        "private" is the accuracy on held-out rows with noise; the noise is chosen so that the
        promise of the candidate covers it. A function from an estimator to a number may look at
        *public* data only; then all rows are used for training.
    holdout : float, default=0.2
        Share of the rows that scores, with ``scoring="private"``. Rows are split by position
        (:mod:`expost.tuning.rows`); the rest trains.
    delta : float, optional
        The δ, for Rényi and zCDP promises. Charges are then (ε̃, δ).
    overhead : float, optional
        ε′ as a fraction of the first drop rate, for a search without a target (default 0.1).
    attempts : int, optional
        The most attempts to reach the target; planned if left out.
    confidence : float, default=0.9
        Of the statement "passed": the chance of releasing an estimator whose score on the scoring
        rows is below the target is at most 1 − confidence.
    expected_shares : sequence of float, optional
        Which shares of the grid may reach the target; by default a robust spread.
    repeats : int, default=1
        Copies of each candidate.
    ledger : Ledger, str or Path, optional
        A ledger, or its path or URL. The worst case is reserved before any row is used.
    budget : str, optional
        Name of the budget in the ledger.
    analyst : str, optional
        Name of the analyst in the ledger.
    n_jobs : int, optional
        Number of processes that fit the kept candidates. The charge is reserved and settled once,
        in this process.
    randomness : Randomness, optional
        Source of randomness. Default: operating-system entropy.
    simulation : bool, default=False
        Allow seeded randomness, for tests. The result is then not private.

    Attributes
    ----------
    best_estimator_ : estimator or None
        The released estimator; None if the target was missed or the winner failed to fit.
    best_params_ : dict
        Its parameters.
    best_score_ : float or None
        Its score.
    passed_ : bool
        Whether an estimator was released that reaches the target.
    score_bound_ : float or None
        With a target: lower confidence bound for the score on the scoring rows.
    n_attempts_ : int
        How many requests were made.
    privacy_spent_ : Guarantee or None
        The realised charge of all requests together; None in a simulation.
    release_ : Release
        The release, with its certificate.

    Notes
    -----
    ``fit`` keeps ex-post differential privacy at ``privacy_spent_`` for everything it sets, if the
    estimators keep their promises as described above (``theorem:max-score`` for pure promises, its
    sharpened Rényi form with ``delta``).

    There is no ``cv_results_``: which candidates ran, and their scores, are secret. The charge
    covers the winner only; a table of losing scores would cost the charge of every candidate. For
    the same reason there are no cross-validation folds.

    Copies neither lose nor double a charge. ``clone`` gives an unfitted search on the *same*
    ledger. A pickle or deep copy contains what was released but no connection: ``fit`` raises an
    error until ``set_params(ledger=…)`` reconnects it. A search with a path or URL reconnects by
    itself.
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
        overhead: float | None = None,
        attempts: int | None = None,
        confidence: float = 0.9,
        expected_shares: Sequence[float] | None = None,
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
        self.attempts = attempts
        self.confidence = confidence
        self.expected_shares = expected_shares
        self.repeats = repeats
        self.ledger = ledger
        self.budget = budget
        self.analyst = analyst
        self.n_jobs = n_jobs
        self.randomness = randomness
        self.simulation = simulation

    def fit(self, X: Any, y: Any) -> ExPostSearch:
        """Reserve the worst case, fit the kept candidates, release one, settle its charge.

        Parameters
        ----------
        X : array-like of shape (n_rows, …)
            Features.
        y : array-like of shape (n_rows,)
            Targets.

        Returns
        -------
        self
        """
        ledger = self._account()
        self._check_numbers()
        data = self._split(X, y)
        candidates = self._candidates(len(data["train_y"]))
        request: dict[str, Any] = {
            "randomness": self.randomness,
            "simulation": self.simulation,
            "executor": self._executor(),
        }
        if ledger is not None:
            request |= {"ledger": ledger, "budget": self.budget, "analyst": self.analyst}
        if self.target is None:
            release = self._best(candidates, data, request)
            spent, self.n_attempts_ = release.spent, 1
        else:
            releases, refused = self._reach(candidates, data, request)
            present = [each for each in releases if each is not None]
            release = present[-1]
            spent = composed([each.spent for each in present])
            self.n_attempts_, self.budget_refused_ = len(present), refused
        self.privacy_spent_ = None if release.simulated else spent
        self.release_ = release
        fitted = release.value if isinstance(release.value, Fitted) else None
        self.passed_ = fitted is not None if release.passed is None else release.passed
        self.best_params_ = dict(release.params)
        self.best_score_ = None if fitted is None else fitted.score
        self.score_bound_ = release.score if self.target is not None else None
        self.best_estimator_ = None if fitted is None else fitted.estimator
        return self

    def _best(
        self, candidates: list[Candidate], data: dict[str, Any], request: dict[str, Any]
    ) -> Release:
        """Make the one request of a search without a target (Algorithm 3)."""
        claim = {} if self.delta is None else {"delta": self.delta}
        overhead = 0.1 if self.overhead is None else self.overhead
        selector = dropping(candidates, overhead, None, **claim)
        warn_if_weak(selector.charges(candidates).worst_case, _rows_of(data))
        return selector.select(candidates, data, score=score_of, **request)

    def _reach(
        self, candidates: list[Candidate], data: dict[str, Any], request: dict[str, Any]
    ) -> tuple[list[Release | None], bool]:
        """Make planned attempts of Algorithm 2 until one reaches the target."""
        assert self.target is not None
        if self.overhead is not None:
            raise InvalidInput(
                "overhead", self.overhead, "with a target the attempts are planned; leave it out"
            )
        delta = None if self.delta is None else float(self.delta)
        check_delta(candidates, delta)
        level = level_by(self.epsilon_param if self.epsilons is not None else None, delta)
        levels = sorted({level(each) for each in candidates})
        ladder = ladder_of(candidates, levels, delta or 1e-6, level)
        shares = self.expected_shares
        schedule = plan_attempts(
            ladder,
            delta=delta,
            belief=None if shares is None else Belief.of_shares(len(levels), shares),
            attempts=self.attempts,
        )
        steps = steps_of(
            schedule, candidates, levels, target=float(self.target), delta=delta, level=level
        )
        margins = Margins.of(self.confidence, schedule, [each.runs for each in steps])
        warn_if_weak(steps[0].charges.worst_case, _rows_of(data))
        return make_attempts(steps, data, None, margins, **request)

    def predict(self, X: Any) -> Any:
        """Predict with the released estimator."""
        return self._winner().predict(X)

    @available_if(_winner_has("predict_proba"))  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> Any:
        """Return class probabilities of the released estimator."""
        return self._winner().predict_proba(X)

    @available_if(_winner_has("decision_function"))  # type: ignore[untyped-decorator]
    def decision_function(self, X: Any) -> Any:
        """Return the decision function of the released estimator."""
        return self._winner().decision_function(X)

    @property
    def classes_(self) -> Any:
        """The classes of the released estimator."""
        return self._winner().classes_

    def _winner(self) -> Any:
        """Return the released estimator, or raise an error if there is none."""
        check_is_fitted(self, "release_")
        if self.best_estimator_ is None:
            raise InvalidInput(
                "best_estimator_",
                None,
                "there is no estimator: the target was missed, or the winner failed to fit",
            )
        return self.best_estimator_

    def _check_numbers(self) -> None:
        """Raise an error for settings with which every fit would fail and be charged."""
        levels, jobs = self.epsilons, self.n_jobs
        if levels is not None and not (
            np.ndim(levels) == 1 and len(levels) and all(map(_is_level, levels))
        ):
            raise InvalidInput("epsilons", levels, "pass a list of numbers > 0, or leave it out")
        if jobs is not None and (
            isinstance(jobs, bool) or not isinstance(jobs, Integral) or jobs == 0
        ):
            raise InvalidInput("n_jobs", jobs, "pass a whole number other than 0, or leave it out")

    def _executor(self) -> Any:
        """Return a pool of spawned processes; forks could share the state of a generator.

        A process that dies is not counted as an outcome: other fits would be lost with it.
        """
        if self.n_jobs in (None, 1):
            return None
        from joblib import effective_n_jobs  # type: ignore[import-untyped]
        from joblib.externals.loky import get_reusable_executor  # type: ignore[import-untyped]

        return get_reusable_executor(max_workers=effective_n_jobs(self.n_jobs))

    def _account(self) -> Any:
        """Return the ledger, opened if it is given by its path or URL."""
        if self.ledger is None and getattr(self, "_left_ledger_behind", False):
            raise InvalidInput(
                "ledger",
                None,
                "this is a copy of a search with a ledger: reconnect it with "
                "set_params(ledger=…) before fitting",
            )
        return Ledger.open(self.ledger) if isinstance(self.ledger, (str, Path)) else self.ledger

    def _split(self, X: Any, y: Any) -> dict[str, Any]:
        """Split the rows into those that train and those that score."""
        rows = len(y)
        if _num_samples(X) != rows:
            raise InvalidInput(
                "X, y", f"{_num_samples(X)} rows and {rows} targets", "pass one target per row"
            )
        if not callable(self.scoring) and self.scoring != "private":
            raise InvalidInput(
                "scoring",
                self.scoring,
                'pass "private", or a function of the estimator that uses public data only',
            )
        if callable(self.scoring):
            return {"train_X": X, "train_y": y, "score_X": None, "score_y": None}
        if np.ndim(y) != 1:
            raise InvalidInput(
                "y",
                f"targets in {np.ndim(y)} dimensions",
                "pass one label per row, as a flat array",
            )
        if not 0 < self.holdout < 1:
            raise InvalidInput("holdout", self.holdout, "pass a share with 0 < holdout < 1")
        out = held_out(rows, self.holdout)
        if out.all() or not out.any():
            raise InvalidInput(
                "holdout", self.holdout, f"{rows} rows cannot be split by it; pass another share"
            )
        train, rest = np.flatnonzero(~out), np.flatnonzero(out)
        return {
            "train_X": _safe_indexing(X, train),
            "train_y": _safe_indexing(y, train),
            "score_X": _safe_indexing(X, rest),
            "score_y": np.asarray(_safe_indexing(y, rest)),
        }

    def _candidates(self, n: int) -> list[Candidate]:
        """List one candidate per point of the grid and ε, in ascending order of ε."""
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
            scorer = self.scoring if callable(self.scoring) else None
            kept = promise if scorer is not None else promise_with_score(promise)
            mechanism = FitAndScore(estimator, scorer, kept)
            candidates.append(Candidate(mechanism, params, repeats=self.repeats))
        return candidates

    def _promise(self, estimator: Any, n: int) -> Guarantee:
        """Return the promise that a fit of the estimator keeps."""
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
                "pass a function of the estimator that returns the PureDP, ZCDP or RenyiDP "
                "promise of one fit",
            )
        return promise

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

    def __sklearn_clone__(self) -> ExPostSearch:
        """Return an unfitted search on the same ledger, with a clone of the estimator."""
        params = self.get_params(deep=False)
        copied = type(self)(**{**params, "estimator": clone(self.estimator)})
        copied._left_ledger_behind = (
            getattr(self, "_left_ledger_behind", False) and self.ledger is None
        )
        return copied

    def __getstate__(self) -> dict[str, Any]:
        """Return what may be copied: everything but open connections and randomness."""
        state = dict(super().__getstate__())
        if state.get("ledger") is not None and not isinstance(state["ledger"], (str, Path)):
            state["ledger"] = None
            state["_left_ledger_behind"] = True
        state["randomness"] = None
        return state


def _is_level(value: object) -> bool:
    """Whether a value is a finite number > 0."""
    return isinstance(value, Real) and not isinstance(value, bool) and 0 < float(value) < np.inf


def _rows_of(data: dict[str, Any]) -> int:
    """Return the number of rows, public: those that train and those that score."""
    return len(data["train_y"]) + (0 if data["score_y"] is None else len(data["score_y"]))
