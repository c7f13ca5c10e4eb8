"""The plan of a search, and its rows: what ``expost.tune`` plans, and attempts over estimators.

Tests: ``tests/tuning/test_sklearn_front.py``, ``tests/tuning/test_sklearn_noise_reduction.py``.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from expost.arrays import Array
from expost.errors import InvalidInput, MissingExtra
from expost.privacy.guarantees import ADD_REMOVE, Guarantee
from expost.randomness.source import Randomness
from expost.sklearn._attempts import Grid
from expost.sklearn._linear_model import DPLinearModel
from expost.sklearn._rows import (
    before_last_step,
    check_fit,
    check_steps,
    inside_selection,
    last_step,
    parameter,
)
from expost.sklearn._settings import SearchAsJob
from expost.tuning.model.released_model import Model, Recipe
from expost.tuning.plan.job_plan import JobPlan, plan_search
from expost.tuning.plan.rehearsal import Pace
from expost.tuning.plan.strategies import order_for, plan_strategies, weaknesses_of
from expost.tuning.request.metrics import PublicFunction
from expost.tuning.request.settings import Setting, Settings
from expost.tuning.rows.job_rows import JobRows, split_places, with_empty_places
from expost.tuning.rows.table_schema import TableSchema, features_for
from expost.tuning.runs.path_training import Finish

try:
    from sklearn.base import clone
    from sklearn.pipeline import Pipeline
    from sklearn.utils import _safe_indexing
except ImportError:
    raise MissingExtra("scikit-learn", "sklearn") from None


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

    epsilon_param: str | None
    guarantee: Callable[[Any], Guarantee] | None
    simulation: bool
    budget: str | None

    def _prepare(
        self, settings: Settings, X: Any, targets: Array, source: Randomness, ledger: Any
    ) -> PlannedSearch:
        """Return the plan of a search and its rows; nothing was charged."""
        n, public = len(targets), self._public_score
        if public is None:
            out, places, held, _ = split_places(settings.data, n, source)
        else:
            out, places, held = np.zeros(n, dtype=bool), self.n_rows or n, 0
        data: dict[str, Any] = {}
        template = rows = recipe = grid = score = None
        if settings.model.training != "dp-sgd":
            template, cells, labels, schema = self._encoded(X, targets)
            parts = (cells[~out], labels[~out], cells[out], labels[out])
            secret = public is not None, places, held, settings.data.relation
            rows = JobRows(*parts, schema, *secret)
            recipe, settings = _recipe(schema), _with_facts(settings, schema)
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


def _recipe(schema: TableSchema) -> Recipe:
    """Return the linear model of a table, on its plain features."""
    kind = {None: "linear", 2: "logistic"}.get(schema.class_count, "softmax")
    loss = "squared" if kind == "linear" else kind
    return Recipe(kind, loss, schema, features=features_for("plain", schema, None))


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
