"""The plan of a search, its rows, and its attempts over estimators: fit, then score.

Plan, metric, score, noise and split are those of ``expost.tune``. Fit and score use disjoint rows,
so a candidate satisfies the larger of the two guarantees. Everything else depends on public
settings. Tests: ``tests/tuning/test_sklearn_front.py``, ``test_sklearn_search.py``,
``test_sklearn_scoring.py``, ``test_sklearn_noise_reduction.py``.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.model_selection import ParameterGrid
from sklearn.pipeline import Pipeline
from sklearn.utils import _safe_indexing

from expost.arrays import Array
from expost.errors import InvalidInput
from expost.execution.calls import call_or_failure
from expost.features.columns import TableSchema
from expost.privacy.guarantees import ADD_REMOVE, REPLACE, ZERO_OUT, Guarantee
from expost.randomness.source import Randomness
from expost.selection.candidate import Candidate
from expost.sklearn._estimators import DPLinearModel, recipe_of
from expost.sklearn._rows import (
    before_last_step,
    check_fit,
    check_steps,
    guarantee_of,
    inside_selection,
    last_step,
    parameter,
)
from expost.sklearn._settings import SearchAsJob
from expost.tuning.model.released_model import Model
from expost.tuning.model.scoring import Score, free_rho, with_scoring
from expost.tuning.plan.job_plan import JobPlan, plan_search
from expost.tuning.plan.rehearsal import Pace
from expost.tuning.plan.strategies import order_for, plan_strategies, weaknesses_of
from expost.tuning.request.metrics import LABELS, PROBABILITIES, Metric, PublicFunction
from expost.tuning.request.settings import GoalSettings, Setting, Settings
from expost.tuning.rows.job_columns import PersonRows, features_for, given_persons, person_codes
from expost.tuning.rows.job_rows import JobRows, split_persons, split_places, with_empty_places
from expost.tuning.runs.candidates import ScoredModel
from expost.tuning.runs.path_training import Finish


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


def persons_of(groups: Any, rows: int) -> tuple[Array | None, int]:
    """Return the person of each row, and the number of persons; None and that of rows without."""
    if groups is None:
        return None, rows
    users = given_persons(groups, rows)
    return users, len(person_codes(users)[1])


@dataclass(frozen=True, eq=False, repr=False)
class PlannedSearch:
    """A search that was checked and planned; ``rows``: of training, None if that is secret."""

    settings: Settings
    planned: JobPlan
    data: dict[str, Any]
    template: Any
    rows: int | None


class SearchPlan(SearchAsJob):
    """The part of :class:`~expost.sklearn.ExPostSearch` that plans it."""

    def _prepare(
        self,
        settings: Settings,
        X: Any,
        targets: Array,
        source: Randomness,
        ledger: Any,
        users: Array | None = None,
    ) -> PlannedSearch:
        """Return the plan of a search and its rows; nothing was charged."""
        n, public = len(targets), self._public_score
        data: dict[str, Any] = {}
        template = rows = recipe = grid = score = None
        if users is not None:  # then no candidate is fitted by itself
            template, cells, labels, schema = self._encoded(X, targets)
            persons = PersonRows.of(cells, labels, users, settings.data.max_rows_per_user)
            rows = split_persons(settings.data, schema, persons, source, public is not None)
            rows = rows.in_positions() if settings.data.regression else rows
            out, n = np.zeros(0, dtype=bool), len(persons.names)
            places, held = rows.places, rows.score_places
        elif public is None:
            out, places, held, _ = split_places(settings.data, n, source)
        else:
            out, places, held = np.zeros(n, dtype=bool), self.n_rows or n, 0
        if settings.model.training != "dp-sgd":
            if rows is None:
                template, cells, labels, schema = self._encoded(X, targets)
                parts = (cells[~out], labels[~out], cells[out], labels[out])
                secret = public is not None, places, held, settings.data.relation
                rows = JobRows(*parts, schema, *secret)
            recipe = recipe_of(schema, features_for("plain", schema, None))
            settings = _with_facts(settings, schema)
            data = rows.as_data("")
            score = None if public is None else ScoreByFunction(template, public)
        else:
            settings = self._with_own_facts(settings, X, targets)
        if self._searched or rows is None:
            grid = self._grid(places, held)
            settings = self._with_levels(settings, grid)
            self._check_candidates(grid, X, targets)
            data |= _parts(X, targets, None if public is not None else out)
        order = order_for(settings, ledger, self.budget) if self._own else None

        def by_attempts(part: Settings) -> JobPlan:
            """Plan the attempts of Algorithm 2 (or 3) over the candidates."""
            assert grid is not None
            delta = part.privacy.delta or None
            level, candidates = grid.level_by(delta), grid.candidates(part.goal, delta)
            return plan_search(part, candidates, places, order or None, held, Pace(0.0, 0.0), level)

        if rows is None or recipe is None:
            planned = by_attempts(settings)
        else:
            planned = plan_strategies(settings, recipe, rows, order, by_attempts, score)
        notes = weaknesses_of(planned, self.n_rows or n)
        if grid is not None and all(step.recipe is not None for step in planned.steps):
            notes.append("the grid is left out: one attempt may cost more than max_epsilon allows")
        planned = replace(planned, warnings=tuple(notes))
        if settings.privacy.max_epsilon == math.inf:
            worst = planned.worst_case.epsilon
            settings = replace(settings, privacy=replace(settings.privacy, max_epsilon=worst))
        hidden = self.n_rows is None and planned.charges.worst_case.neighbours == ADD_REMOVE
        return PlannedSearch(settings, planned, data, template, None if hidden else places)

    def _encoded(self, X: Any, targets: Array) -> tuple[Any, Array, Array, TableSchema]:
        """Return an estimator that knows its columns, and its rows as ``expost.tune`` has them."""
        template = clone(self.estimator)
        if isinstance(template, Pipeline):
            check_steps(template)
        model = last_step(template)
        if self.n_rows is not None:
            model.set_params(n_rows=self.n_rows)  # the actual number must not matter
        cells, _ = model._checked(before_last_step(template, X), targets)
        schema = model._schema()
        cells, labels = schema.encode(cells), schema.targets(targets)
        return template, *with_empty_places(cells, labels, schema), schema

    def _with_own_facts(self, settings: Settings, X: Any, targets: Array) -> Settings:
        """Return settings with what is known about the columns, for the certificate."""
        if isinstance(self.estimator, DPLinearModel) and not self._searched_facts:
            return _with_facts(settings, self._encoded(X, targets)[-1])
        names = getattr(self, "feature_names_in_", None)
        features = None if names is None else tuple(map(str, names))
        return replace(settings, data=replace(settings.data, features=features))

    def _grid(self, rows: int, held: int) -> Grid:
        """Return what is searched."""
        name = self.epsilon_param or parameter(self.estimator, "epsilon")
        if self.epsilons is not None and name not in self.estimator.get_params():
            raise InvalidInput(
                "epsilon_param", name, "name the estimator's parameter that sets its privacy level"
            )
        shares = self.class_shares
        return Grid(
            self.estimator,
            self.param_grid or {},
            None if self.epsilons is None else tuple(self.epsilons),
            name,
            self.guarantee,
            rows,
            held,
            self.n_rows is not None,
            self.repeats,
            () if shares is None else tuple(self._classes or shares),
            self._public_score,
        )

    def _check_candidates(self, grid: Grid, X: Any, targets: Array) -> None:
        """Refuse seeds and what a fit of a candidate would refuse."""
        points = grid.estimators()
        for number, (_, estimator) in enumerate(points):
            self._check_seed(estimator)
            if number < len(points) // len(grid.levels or [1]):  # settings do not depend on ε
                check_fit(clone(estimator), X, targets)

    def _with_levels(self, settings: Settings, grid: Grid) -> Settings:
        """Return the settings with the levels of the candidates and their number."""
        candidates = grid.candidates(settings.goal, self._delta)
        pure = candidates[0].guarantee.as_pure() is not None
        delta = self.delta if pure else self._delta
        if delta is None and not pure:
            raise InvalidInput("delta", None, "pass it: guarantees in Rényi DP or zCDP need one")
        levels = sorted(set(map(grid.level_by(delta), candidates)))
        points = (Setting(0.0, 0.0, 0.0, 0.0),) * (len(candidates) // len(levels))
        search = replace(settings.search, epsilons=tuple(levels), settings=points)
        privacy = replace(settings.privacy, delta=float(delta or 0))
        return replace(settings, search=search, privacy=privacy)

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


@dataclass(frozen=True, eq=False)
class ScoreByFunction:
    """The score of a training that stops when it passes: a function of public data."""

    template: Any
    function: Callable[[Any], float]

    def __call__(
        self, finish: Finish, parameters: Mapping[str, Array]
    ) -> tuple[float, float | None, str | None]:
        with inside_selection():
            estimator = estimator_of(self.template, Model(finish.recipe, parameters))
            return float(self.function(estimator)), None, PublicFunction.scored


def estimator_of(template: Any, model: Model) -> Any:
    """Return a fitted copy of an estimator, or of a pipeline that ends with it."""
    fitted = copy.copy(template)
    if isinstance(fitted, Pipeline):
        name, last = fitted.steps[-1]
        fitted.steps = [*fitted.steps[:-1], (name, copy.copy(last))]
    last_step(fitted)._take(model)
    return fitted


def _with_facts(settings: Settings, schema: TableSchema) -> Settings:
    """Return settings that state the bounds and the names of the columns."""
    pairs = tuple((column.low, column.high) for column in schema.columns)
    names = schema.names
    bounds = pairs if names is None else dict(zip(names, pairs, strict=True))
    return replace(settings, data=replace(settings.data, bounds=bounds, features=names))


def _parts(X: Any, y: Array, out: Array | None) -> dict[str, Any]:
    """Return the rows that candidates are fitted on, and those that score them, if any do."""
    if out is None:
        return {"fit_X": X, "fit_y": y, "rate_X": None, "rate_y": None}
    if hasattr(X, "__array__") and not hasattr(X, "shape"):
        X = np.asarray(X)
    fit, rate = np.flatnonzero(~out), np.flatnonzero(out)
    return {
        "fit_X": _safe_indexing(X, fit),
        "fit_y": y[fit],
        "rate_X": _safe_indexing(X, rate),
        "rate_y": y[rate],
    }
