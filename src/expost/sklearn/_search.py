"""Private hyperparameter search for scikit-learn estimators: a front of ``expost.tune``.

Metrics, scoring, split, plan, charges and certificate are those of :mod:`expost.tuning`. This
package's own estimators are trained as there, progressively first; candidates of a grid, of any
package, are fitted by their own ``fit`` (:mod:`expost.sklearn._plan`). Without a goal a search
rests on ``theorem:max-score`` (pure guarantees) and its sharpened Rényi form; with a goal, on
``theorem:generalized-at`` and its Rényi form for each attempt, composed, and on
:mod:`expost.selection.noise_path`.
Tests: ``tests/tuning/test_sklearn_search.py``, ``tests/tuning/test_sklearn_front.py``.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sklearn.base import BaseEstimator, MetaEstimatorMixin
from sklearn.utils import get_tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted, validate_data

from expost.certificates.document import document_text
from expost.errors import InvalidInput, InvalidRelease
from expost.privacy.guarantees import Guarantee
from expost.randomness.source import require_protection
from expost.sklearn._estimators import DPLinearModel, randomness_of
from expost.sklearn._plan import FittedEstimator, SearchPlan, estimator_of, persons_of
from expost.sklearn._rows import (
    inside_selection,
    keep_parameters,
    last_step,
    require_usable_rows,
    table_of,
)
from expost.sklearn._settings import named_by_parameters
from expost.training.engines import progress_bar
from expost.tuning.job import run_plan
from expost.tuning.model.released_model import MISSED_MODEL, MODEL
from expost.tuning.model.tuned import Tuned
from expost.tuning.runs.run_attempts import CERTIFICATE

__all__ = ["ExPostSearch"]


def _winner_has(method: str) -> Callable[[ExPostSearch], bool]:
    """Whether the released estimator (before a fit: the estimator) has a method."""
    return lambda search: hasattr(getattr(search, "best_estimator_", search.estimator), method)


class ExPostSearch(SearchPlan, MetaEstimatorMixin, BaseEstimator):  # type: ignore[misc]
    """Private grid search.

    With a goal (``at_least`` or ``at_most``) the first estimator that reaches it is released: of a
    training that stops when it passes, or of planned attempts of Algorithm 2. Without one, random
    dropping (Algorithm 3) releases the best.

    Parameters
    ----------
    estimator : estimator
        An estimator that keeps a privacy guarantee, draws fresh noise at each ``fit``, and predicts
        row by row.
    param_grid : dict or list of dict, optional
        As in ``GridSearchCV``. Noise reduction has none.
    epsilons : sequence of float, optional
        Privacy levels: values of the parameter ``epsilon_param``, tried in ascending order.
    epsilon_param : str, optional
        The estimator's parameter for its ε. By default ``epsilon``, of the estimator or of one step
        of a ``Pipeline``.
    at_least, at_most : float, optional
        The score to reach; ``at_most`` for the loss of "log_loss", "mse" and "mae" (of which
        ``at_least=-4`` means ``at_most=4``). Without a goal, the best score wins.
    guarantee : callable, optional
        A function from an estimator to the guarantee that one fit keeps. Default: the estimator's
        own ``privacy_guarantee(n)`` or ``guarantee``; a ``Pipeline`` keeps the guarantee of its
        last step if the others learn nothing from the rows. An attribute ``epsilon`` alone is not
        taken as a guarantee.
    scoring : str or callable, default="private"
        A metric of ``expost.tune``: "accuracy", "balanced_accuracy" (needs ``class_shares``) or
        "log_loss"; for a regressor "mse", "mae" or "r2" (needs ``target_variance``). "private" is
        the first one of each. scikit-learn's names of losses ("neg_log_loss", …) mean the same.
        They are computed on held-out rows, with noise that the guarantee of the candidate covers.
        With ``metric_bounds``, a function f(prediction, truth) of one row is scored in the same
        way. Without it, a function from an estimator to a number, which may look at *public* data
        only; then all rows are used for training.
    holdout : float, optional
        Share of the rows that scores, if the score is private. The rest trains. Default: as in
        ``expost.tune``.
    n_rows : int, optional
        A public number of rows. With it, each row goes to training or scoring by its own coin, all
        rates and normalisations use ``n_rows``, and the guarantee is for "add-remove" neighbours.
        An estimator with a parameter ``n_rows`` is given its share. Without it, rows are split by
        position, their number is public, and the guarantee is for "zero-out" neighbours: a row is
        present or blank.
    target_bounds : pair, optional
        Public range (low, high) of a regression's target, which bounds the error of a row. By
        default that of the estimator.
    class_shares : dict, optional
        Public share of each class, for "balanced_accuracy".
    loss_bound : float, optional
        Public bound to which a row's loss is clipped. By default from ``target_bounds``; 4 for
        "log_loss".
    target_variance : float, optional
        Public variance of the target, for "r2".
    metric_bounds : pair, optional
        Public range of a function of one row.
    training : {"auto", "progressive", "noise-reduction", "dp-sgd"}, default="auto"
        As in ``expost.tune``. "progressive" and "noise-reduction" (regressions only) train a
        ``DPLogisticRegression`` or ``DPLinearRegression`` without a grid, step by step or from
        second moments, until the goal is reached; only what was made until then is charged.
        "dp-sgd" fits the candidates of the grid by their own ``fit``. "auto" tries the first for
        this package's estimators with a goal, then the grid if there is one; else the grid alone.
    levels, norm_bound : optional
        Of these trainings, as in ``expost.tune``.
    max_epsilon : float, optional
        The most that the search may cost, whatever happens. Default: 4 for this package's
        estimators with a goal; else what the levels cost.
    tell : float, optional
        ε of a sharper score of an estimator that missed the goal, as in ``expost.tune``.
    max_rows_per_user : int, optional
        With ``fit(groups=…)``: the most rows of a person that are used, as in ``expost.tune``.
    delta : float, optional
        The δ, for Rényi and zCDP guarantees. Charges are then (ε̃, δ). By default that of the
        estimator.
    overhead : float, optional
        ε′ as a fraction of the first drop rate, for a search without a goal (default 0.1).
    attempts : int, optional
        The most attempts to reach the goal; planned if left out.
    confidence : float, default=0.9
        Of the statement "passed": the chance of releasing an estimator whose score on the scoring
        rows is below the goal is at most 1 − confidence.
    expected_shares : sequence of float, optional
        Which shares of the grid may reach the goal; by default a robust spread.
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
        The released estimator. If the goal was missed, it is the last one of a training that
        stops when it passes, because that is charged (``passed_`` is then False, and ``fit``
        warns); None if only attempts with DP-SGD were made or the winner failed to fit. The
        ``privacy_spent_`` of this package's own estimators is that of the search.
    best_params_ : dict
        Its parameters.
    best_score_ : float or None
        Its score.
    passed_ : bool
        Whether the released estimator reaches the goal.
    score_bound_ : float or None
        With a goal: lower confidence bound for the score on the scoring rows (with ``n_rows``:
        for the sum of their scores over the public number of scoring rows).
    neighbours_ : str
        The neighbouring relation of ``privacy_spent_``: "zero-out", "add-remove" or "replace".
    n_features_in_ : int
        Number of features.
    feature_names_in_ : ndarray of str
        Their names, if ``fit`` received a data frame.
    training_ : str or None
        How the released estimator was trained: "dp-sgd", "progressive" or "noise-reduction"; None
        without one.
    told_ : Told or None
        A further noisy score of an estimator that missed, if ``tell`` was given.
    n_attempts_ : int
        How many requests were made.
    privacy_spent_ : Guarantee or None
        The actual charge of all requests together; None in a simulation.
    release_ : Release
        The release; its ``spent`` is the charge of all requests together. :meth:`certificate` and
        :meth:`save` write it down.

    Notes
    -----
    ``fit`` keeps ex-post differential privacy at ``privacy_spent_`` for everything it sets, if the
    estimators keep their guarantees as described above (``theorem:max-score`` for pure guarantees,
    its sharpened Rényi form with ``delta``).

    There is no ``cv_results_``: which candidates ran, and their scores, are secret. The charge
    covers the winner only; a table of losing scores would cost the charge of every candidate. For
    the same reason ``cv``, ``refit`` and ``callbacks`` are refused, with what to use instead.

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
        at_least: float | None = None,
        at_most: float | None = None,
        guarantee: Callable[[Any], Guarantee] | None = None,
        scoring: str | Callable[..., float] = "private",
        holdout: float | None = None,
        n_rows: int | None = None,
        target_bounds: Any = None,
        class_shares: Any = None,
        loss_bound: float | None = None,
        target_variance: float | None = None,
        metric_bounds: Any = None,
        training: str = "auto",
        levels: Any = None,
        norm_bound: float | None = None,
        max_epsilon: float | None = None,
        tell: float | None = None,
        max_rows_per_user: int | None = None,
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
        cv: Any = None,
        refit: bool = True,
        callbacks: Any = None,
    ) -> None:
        keep_parameters(self, locals())

    @property
    def cv_results_(self) -> Any:
        """Not there: the scores of all candidates would have to be paid for."""
        raise AttributeError(
            "there is no cv_results_: which candidates ran, and their scores, are secret; see "
            "best_params_, best_score_ and certificate()"
        )

    def _refuse_habits(self) -> None:
        """Answer keywords of other searches with what to use here, and why."""
        if self.cv is not None:
            raise InvalidInput(
                "cv",
                self.cv,
                "leave it out: every fold would be paid for; holdout= says which share of the rows "
                "scores, and scoring= takes a function of public rows",
            )
        if self.refit is not True:
            raise InvalidInput(
                "refit",
                self.refit,
                "leave it out: the estimator that was scored is the one that is released and paid",
            )
        if self.callbacks is not None:
            raise InvalidInput(
                "callbacks",
                self.callbacks,
                "leave it out: what happens during a search is secret; verbose=True shows progress",
            )

    def fit(self, X: Any, y: Any = None, *, groups: Any = None) -> ExPostSearch:
        """Reserve the worst case, train until the goal is reached, release one, settle its charge.

        Parameters
        ----------
        X : array-like or data frame of shape (n_rows, …)
            Features. With this package's estimators a row that cannot be used (NaN, infinity, a
            text, a label that is not listed) counts as an empty place, as in ``expost.tune``.
        y : array-like of shape (n_rows,)
            Targets.
        groups : array-like of shape (n_rows,), optional
            The person of each row. One person with all their rows is then protected instead of one
            row, all rows of a person train or all score, and ``n_rows`` is a number of persons.

        Returns
        -------
        self

        Raises
        ------
        InvalidInput
            If a setting is not valid, or the rows are missing or empty; with estimators of other
            packages also if they have gaps. Nothing was charged.
        BudgetRefused
            The ledger cannot pay the worst case of the first attempt. Nothing was charged.
        """
        date = datetime.now(UTC).date().isoformat()  # how long a fit took is secret
        self._refuse_habits()
        ledger = self._account()
        self._check_numbers()
        training = self._training()
        X, stated = table_of(X), self.n_rows is not None
        source = require_protection(randomness_of(self.random_state), simulation=self.simulation)
        # Nothing is refused because of a value where rows are read as by expost.tune.
        with named_by_parameters(), inside_selection() if self._own else nullcontext():
            targets = require_usable_rows(self.estimator, X, y, self._searched_names, secret=stated)
            users, n = persons_of(groups, len(targets))
            settings = self._settings(training, n, persons=users is not None)
            validate_data(self, X, skip_check_array=True)
            job = self._prepare(settings, X, targets, source, ledger, users)
        for text in job.planned.warnings:
            warnings.warn(text, stacklevel=2)
        account = {} if ledger is None else {"budget": self.budget, "analyst": self.analyst}
        with progress_bar("fits", unit=None) if self.verbose else nullcontext() as bar:
            tuned = run_plan(
                job.settings,
                job.planned,
                job.data,
                rows=job.rows,
                date=date,
                randomness=source,
                simulation=self.simulation,
                executor=self._executor(),
                progress=bar,
                ledger=ledger,
                **account,
            )
        self._conclude(tuned, job.template)
        return self

    def _conclude(self, tuned: Tuned, template: Any) -> None:
        """Set the attributes of a fit."""
        self.told_, self._certificate = tuned.told, None
        with suppress(InvalidRelease, RecursionError):  # JSON cannot hold the parameters
            self._certificate = tuned.certificate()  # settings may be changed after the fit
        self.release_, value = tuned.release, tuned.release.value
        self.neighbours_ = self.release_.spent.neighbours
        self.n_attempts_, self.passed_ = len(tuned.attempts), tuned.passed
        self.privacy_spent_ = None if self.release_.simulated else self.release_.spent
        self.best_params_, self.best_score_ = tuned.params, tuned.score
        self.score_bound_ = None if tuned.bounds is None else tuned.bounds.on_scoring_rows
        self.best_estimator_ = self.training_ = None
        if isinstance(value, FittedEstimator):
            self.best_estimator_, self.training_ = value.estimator, "dp-sgd"
        elif tuned.model is not None:
            self.best_estimator_ = estimator_of(template, tuned.model)
            self.training_ = self.release_.selector["training"]
        model = last_step(self.best_estimator_)
        if isinstance(model, DPLinearModel):  # never the charge of one fit alone
            model.simulated_, model.guarantee_ = self.release_.simulated, None
            model.privacy_spent_ = None if self.release_.simulated else self.release_.spent
        if not self.passed_ and self.best_estimator_ is not None:
            warnings.warn(
                "the goal was missed: best_estimator_ is the last estimator that was paid (passed_ "
                "is False). Pass a lower goal, a larger max_epsilon, more rows, other features (a "
                "Pipeline) or a public score",
                stacklevel=3,
            )

    def certificate(self, model: str | Path | None = None) -> str:
        """Return the certificate of the fit as JSON: what was released, and all that it cost.

        ``expost certificate`` shows it, ``expost certificate verify`` computes its price again, and
        ``expost certificate sign`` signs it. It covers every attempt.

        Parameters
        ----------
        model : str or Path, optional
            A file in which you stored the released estimator. The certificate then states its
            SHA-256 hash.

        Returns
        -------
        str
            The JSON text.

        Raises
        ------
        InvalidRelease
            JSON cannot hold the parameters of the grid.
        """
        check_is_fitted(self, "release_")
        if self._certificate is None:
            raise InvalidRelease(
                "params", "of the grid", "a certificate holds numbers, texts and lists only"
            )
        if model is None:
            return self._certificate
        file = Path(model)
        stated = {"model": file.name, "sha256": hashlib.sha256(file.read_bytes()).hexdigest()}
        return document_text(json.loads(self._certificate) | {"value": stated})

    def save(self, folder: str | Path) -> Path:
        """Write the released model and the certificate to a folder, as ``expost.tune(out=…)`` does.

        ``model.npz`` (``missed-model.npz`` after a miss) is written for a ``DPLogisticRegression``
        or ``DPLinearRegression``; ``expost.load_model`` reads it. Other estimators have no file
        format that is safe to read: store them yourself, and pass the file to :meth:`certificate`.

        Parameters
        ----------
        folder : str or Path
            The folder. It is made if there is none.

        Returns
        -------
        Path
            The certificate, ``release.json``.

        Raises
        ------
        InvalidInput
            The folder contains a certificate.
        InvalidRelease
            JSON cannot hold the parameters of the grid.
        """
        check_is_fitted(self, "release_")
        directory = Path(folder)
        if (directory / CERTIFICATE).exists():
            raise InvalidInput(
                "folder", str(folder), f"it contains a {CERTIFICATE}; pass another folder"
            )
        directory.mkdir(parents=True, exist_ok=True)
        model = None
        if isinstance(self.best_estimator_, DPLinearModel):
            model = directory / (MODEL if self.passed_ else MISSED_MODEL)
            replace(self.best_estimator_.as_model(), passed=self.release_.passed).save(model)
        temporary = directory / f".{CERTIFICATE}"
        temporary.write_text(self.certificate(model) + "\n", encoding="utf-8")
        return temporary.replace(directory / CERTIFICATE)

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
                "there is no estimator: the goal was missed, or the winner failed to fit",
            )
        return self.best_estimator_

    def __sklearn_tags__(self) -> Any:
        """Return the tags of the estimator that is searched."""
        tags, own = super().__sklearn_tags__(), get_tags(self.estimator)
        tags.estimator_type, tags.input_tags = own.estimator_type, own.input_tags
        tags.classifier_tags, tags.regressor_tags = own.classifier_tags, own.regressor_tags
        tags.target_tags, tags.non_deterministic = own.target_tags, True
        return tags
