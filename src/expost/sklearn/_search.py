"""Private grid search for scikit-learn estimators that keep a privacy promise.

:class:`ExPostSearch` charges what the winner cost. Without a target it rests on
``theorem:max-score`` (pure promises) and its sharpened Rényi form; with a target, on
``theorem:generalized-at`` and its Rényi form for each attempt, composed; with noise reduction, on
:mod:`expost.selection.noise_path`.
Tests: ``tests/tuning/test_sklearn_search.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from fractions import Fraction
from typing import Any

from expost.arrays import Array
from expost.errors import InvalidInput, MissingExtra
from expost.privacy.advice import warn_if_weak
from expost.privacy.guarantees import Guarantee
from expost.randomness.source import Randomness, require_protection
from expost.selection import grid
from expost.selection.attempts import Belief, plan_attempts
from expost.selection.candidate import Candidate
from expost.selection.release import Release
from expost.sklearn._certificate import SearchCertificate
from expost.sklearn._connections import SearchConnections
from expost.sklearn._levels import check_delta, level_by
from expost.sklearn._linear_model import source_of
from expost.sklearn._rows import table_of
from expost.sklearn._scoring import FitAndScore, score_of
from expost.sklearn._split import check_rows, split
from expost.training.progress import progress_bar
from expost.tuning.confidence import Margins
from expost.tuning.forecast import dropping, ladder_of
from expost.tuning.run_attempts import Step, make_attempts, steps_of
from expost.tuning.several_ways import LINEAR_SHARE, share_of, uncharged

try:
    from sklearn.base import BaseEstimator, MetaEstimatorMixin
    from sklearn.utils import get_tags
    from sklearn.utils.metaestimators import available_if
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError:
    raise MissingExtra("scikit-learn", "sklearn") from None

__all__ = ["ExPostSearch"]


def _winner_has(method: str) -> Callable[[ExPostSearch], bool]:
    """Whether the released estimator (before a fit: the estimator) has a method."""
    return lambda search: hasattr(getattr(search, "best_estimator_", search.estimator), method)


class ExPostSearch(SearchCertificate, SearchConnections, MetaEstimatorMixin, BaseEstimator):  # type: ignore[misc]
    """Private grid search.

    With a ``target``, planned attempts of Algorithm 2 release the first estimator that reaches it;
    without one, random dropping (Algorithm 3) releases the best.

    Parameters
    ----------
    estimator : estimator
        An estimator that keeps a privacy promise, draws fresh noise at each ``fit``, and predicts
        row by row.
    param_grid : dict or list of dict, optional
        As in ``GridSearchCV``. Noise reduction has none.
    epsilons : sequence of float, optional
        Privacy levels: values of the parameter ``epsilon_param``, tried in ascending order.
    epsilon_param : str, optional
        The estimator's parameter for its ε. By default ``epsilon``, of the estimator or of one step
        of a ``Pipeline``.
    target : float, optional
        The score to reach. Planned attempts of Algorithm 2 are made until one reaches it; a miss
        releases nothing and costs little. Without a target, the best score wins.
    guarantee : callable, optional
        A function from an estimator to the promise that one fit keeps. Default: the estimator's
        own ``privacy_guarantee(n)`` or ``guarantee``; a ``Pipeline`` keeps the promise of its last
        step if the others learn nothing from the rows. An attribute ``epsilon`` alone is not taken
        as a promise.
    scoring : str or callable, default="private"
        For a classifier "accuracy", "balanced_accuracy" (needs ``class_shares``) or "neg_log_loss"
        (needs ``loss_bound``); for a regressor "neg_mean_squared_error", "neg_mean_absolute_error"
        or "r2" (needs ``target_variance``). They are computed on held-out rows, with noise that the
        promise of the candidate covers. "private" is the first one of each. With ``metric_bounds``,
        a function f(prediction, truth) of one row is scored in the same way. Without it, a function
        from an estimator to a number, which may look at *public* data only; then all rows are used
        for training. Other metrics compare rows, and no bound for them is proven.
    holdout : float, default=0.2
        Share of the rows that scores, if the score is private. The rest trains.
    n_rows : int, optional
        A public number of rows. With it, each row goes to training or scoring by its own coin, all
        rates and normalisations use ``n_rows``, and the promise is for "add-remove" neighbours. An
        estimator with a parameter ``n_rows`` is given its share. Without it, rows are split by
        position, their number is public, and the promise is for "zero-out" neighbours: the place of
        a row may be empty.
    target_bounds : pair, optional
        Public range (low, high) of a regression's target, which bounds the error of a row. By
        default that of the estimator.
    class_shares : dict, optional
        Public share of each class, for "balanced_accuracy".
    loss_bound : float, optional
        Public bound of a row's loss, for "neg_log_loss".
    target_variance : float, optional
        Public variance of the target, for "r2".
    metric_bounds : pair, optional
        Public range of a function of one row.
    training : {"dp-sgd", "progressive", "noise-reduction", "auto"}, default="dp-sgd"
        As in ``expost.tune``. "dp-sgd" fits the candidates by their own ``fit``. "progressive" and
        "noise-reduction" train a ``DPLogisticRegression`` or ``DPLinearRegression`` without a grid,
        step by step or from second moments, until the target is reached; only what was made until
        then is paid. "auto" tries this first, then the grid if there is one.
    levels, norm_bound : optional
        Of these trainings, as in ``expost.tune``.
    delta : float, optional
        The δ, for Rényi and zCDP promises. Charges are then (ε̃, δ). By default that of the
        estimator.
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
    verbose : bool, default=False
        Show a progress bar of the fits. How many there are is secret: do not log it, and clear it
        before sharing a notebook.
    n_jobs : int, optional
        Number of processes that fit the kept candidates. The charge is reserved and settled once,
        in this process.
    random_state : int or Randomness, optional
        Source of randomness. Default: operating-system entropy. A seed is only valid with
        ``simulation=True``, and is passed on to estimators with a ``random_state``.
    simulation : bool, default=False
        Allow seeded randomness, for tests. The result is then not private.

    Attributes
    ----------
    best_estimator_ : estimator or None
        The released estimator; None if the target was missed or the winner failed to fit. The
        ``privacy_spent_`` of this package's own estimators is then that of the search.
    best_params_ : dict
        Its parameters.
    best_score_ : float or None
        Its score.
    passed_ : bool
        Whether an estimator was released that reaches the target.
    score_bound_ : float or None
        With a target: lower confidence bound for the score on the scoring rows (with ``n_rows``:
        for the sum of their scores over the public number of scoring rows).
    neighbours_ : str
        The neighbouring relation of ``privacy_spent_``: "zero-out", "add-remove" or "replace".
    n_features_in_ : int
        Number of features.
    feature_names_in_ : ndarray of str
        Their names, if ``fit`` received a data frame.
    training_ : str or None
        How the released estimator was trained: "dp-sgd" or "noise-reduction"; None without one.
    n_attempts_ : int
        How many requests were made.
    privacy_spent_ : Guarantee or None
        The realised charge of all requests together; None in a simulation.
    release_ : Release
        The release; its ``spent`` is the charge of all requests together. :meth:`certificate` and
        :meth:`save` write it down.

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
        param_grid: Any = None,
        *,
        epsilons: Sequence[float] | None = None,
        epsilon_param: str | None = None,
        target: float | None = None,
        guarantee: Callable[[Any], Guarantee] | None = None,
        scoring: str | Callable[..., float] = "private",
        holdout: float = 0.2,
        n_rows: int | None = None,
        target_bounds: Any = None,
        class_shares: Any = None,
        loss_bound: float | None = None,
        target_variance: float | None = None,
        metric_bounds: Any = None,
        training: str = "dp-sgd",
        levels: Any = None,
        norm_bound: float | None = None,
        delta: float | None = None,
        overhead: float | None = None,
        attempts: int | None = None,
        confidence: float = 0.9,
        expected_shares: Sequence[float] | None = None,
        repeats: int = 1,
        ledger: Any = None,
        budget: str | None = None,
        analyst: str = "",
        verbose: bool = False,
        n_jobs: int | None = None,
        random_state: Any = None,
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
        self.n_rows = n_rows
        self.target_bounds = target_bounds
        self.class_shares = class_shares
        self.loss_bound = loss_bound
        self.target_variance = target_variance
        self.metric_bounds = metric_bounds
        self.training = training
        self.levels = levels
        self.norm_bound = norm_bound
        self.delta = delta
        self.overhead = overhead
        self.attempts = attempts
        self.confidence = confidence
        self.expected_shares = expected_shares
        self.repeats = repeats
        self.ledger = ledger
        self.budget = budget
        self.analyst = analyst
        self.verbose = verbose
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.simulation = simulation

    def fit(self, X: Any, y: Any = None) -> ExPostSearch:
        """Reserve the worst case, fit the kept candidates, release one, settle its charge.

        Parameters
        ----------
        X : array-like or data frame of shape (n_rows, …)
            Features.
        y : array-like of shape (n_rows,)
            Targets.

        Returns
        -------
        self

        Raises
        ------
        InvalidInput
            If a setting is not valid, or the rows are missing, empty or have gaps. Nothing was
            charged.
        BudgetRefused
            The ledger cannot pay the worst case of the first attempt. Nothing was charged.
        """
        self._date = datetime.now(UTC).date().isoformat()  # how long a fit took is secret
        ledger = self._account()
        self._check_numbers()
        self._check_training()
        X = table_of(X)
        targets = check_rows(self.estimator, X, y, self._searched_names())
        source = require_protection(source_of(self.random_state), simulation=self.simulation)
        self._rows = self.n_rows or len(targets)
        steps, margins, data = self._requests(X, targets, source)
        validate_data(self, X, skip_check_array=True)
        self.neighbours_ = steps[0].candidates[0].guarantee.neighbours
        warn_if_weak(steps[0].charges.worst_case, self._rows, stacklevel=2)
        request: dict[str, Any] = {
            "randomness": source,
            "simulation": self.simulation,
            "executor": self._executor(),
            "source": grid.source_of(X),
        }
        if ledger is not None:
            request |= {"ledger": ledger, "budget": self.budget, "analyst": self.analyst}
        releases: list[Release | None]
        with progress_bar("fits", unit=None) if self.verbose else nullcontext() as bar:
            request["progress"] = bar
            if self.target is None:
                (step,) = steps
                release = step.selector.select(step.candidates, data, score=score_of, **request)
                releases, refused = [release], False
            else:
                releases, refused = make_attempts(steps, data, None, margins, **request)
        self._conclude(steps, releases, refused=refused)
        return self

    def _requests(
        self, X: Any, targets: Array, source: Randomness
    ) -> tuple[list[Step], Margins | None, dict[str, Any]]:
        """Return what may be asked, in order, the margins of attempts, and the rows."""
        if self.training == "dp-sgd":
            candidates, out = self._candidates(X, targets, source)
            data = split(X, targets, out)
            if self.target is None:
                return [self._best(candidates)], None, data
            steps, margins = self._reach(candidates, self._delta(candidates), self.confidence)
            return steps, margins, data
        if not self._searched:
            score, out, n = self._score(targets, source)
            steps, rows = self._ways(X, targets, score, out, n, 1.0)
            return steps, None, {**split(X, targets, out), **rows}
        candidates, out = self._candidates(X, targets, source)
        mechanism = candidates[0].mechanism
        assert isinstance(mechanism, FitAndScore)
        n = self._rows if out is None else self._rows - int(mechanism.scorer.rows)  # type: ignore[union-attr]
        steps, rows = self._ways(X, targets, mechanism.scorer, out, n, LINEAR_SHARE)
        delta, rest = self._delta(candidates), 1 - Fraction(LINEAR_SHARE)
        assert delta is not None
        later, margins = self._reach(
            candidates, share_of(delta, rest), 1 - float(rest) * (1 - self.confidence)
        )
        return (
            [*steps, *map(uncharged, later)],
            margins,
            {**split(X, targets, out), **rows},
        )

    def _best(self, candidates: list[Candidate]) -> Step:
        """Return the one request of a search without a target (Algorithm 3)."""
        delta = self._delta(candidates)
        claim = {} if delta is None else {"delta": delta}
        overhead = 0.1 if self.overhead is None else self.overhead
        selector = dropping(candidates, overhead, None, **claim)
        return Step(selector, tuple(candidates), selector.charges(candidates), 1.0)

    def _reach(
        self, candidates: list[Candidate], delta: float | None, confidence: float
    ) -> tuple[list[Step], Margins]:
        """Return planned attempts of Algorithm 2, and their margins."""
        assert self.target is not None
        if self.overhead is not None:
            raise InvalidInput(
                "overhead", self.overhead, "with a target the attempts are planned; leave it out"
            )
        check_delta(candidates, delta)
        level = level_by(self._epsilon_name() if self.epsilons is not None else None, delta)
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
        return steps, Margins.of(confidence, schedule, [each.runs for each in steps])

    def predict(self, X: Any) -> Any:
        """Predict with the released estimator."""
        return self._winner().predict(X)

    def score(self, X: Any, y: Any) -> float:
        """Return the released estimator's own score on *public* rows.

        ``privacy_spent_`` does not cover a score on private rows; ``best_score_`` is covered.
        """
        return float(self._winner().score(X, y))

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

    def __sklearn_tags__(self) -> Any:
        """Return the tags of the estimator that is searched."""
        tags, own = super().__sklearn_tags__(), get_tags(self.estimator)
        tags.estimator_type, tags.input_tags = own.estimator_type, own.input_tags
        tags.classifier_tags, tags.regressor_tags = own.classifier_tags, own.regressor_tags
        tags.target_tags, tags.non_deterministic = own.target_tags, True
        return tags
