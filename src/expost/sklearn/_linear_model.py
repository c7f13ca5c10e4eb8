"""The training that both private linear models share: settings, guarantee, checks and predictions.

The models are trained with DP-SGD by the fleet (:mod:`expost.training`). Features (and regression
targets) are clipped to **public** bounds and scaled to [−1, 1]; the classes are a **public** list.
None of these is read off the data: that would release, for example, the smallest income or the list
of diagnoses without noise.

Neighbours. A step takes each row with probability ``batch_size / n``. Without ``n_rows``, n is the
number of rows that ``fit`` receives. It is then public, and the guarantee is about one row whose
place may be empty ("zero-out"). With a public ``n_rows`` the rate and the normalisation do not
depend on the data, and the guarantee is about one row that is present or absent ("add-remove").
``privacy_spent_`` covers the fitted parameters. It does not cover a ``score`` on private data.

Which rows ``fit`` refuses, and why a selection refuses none, is stated in
:mod:`expost.sklearn._rows`. Tests: ``tests/training/test_sklearn.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import lru_cache
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from expost.arrays import Array
from expost.errors import InvalidInput
from expost.features import Features
from expost.features.columns import Column, TableSchema
from expost.privacy.charges import warn_if_weak
from expost.privacy.guarantees import ADD_REMOVE, ZERO_OUT, ApproxDP, Guarantee, RenyiDP
from expost.randomness.source import Randomness, SimulationRandomness
from expost.rationals import count_of, exact_positive
from expost.sklearn._rows import (
    check_all,
    check_bounds,
    check_features,
    check_targets,
    check_width,
    names_of,
    refuses_values,
)
from expost.training.configuration import Configuration
from expost.training.fleet import resolved
from expost.tuning.model.released_model import Model, Recipe
from expost.tuning.runs.candidates import fleet


class DPLinearModel(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Settings and fitting shared by both models."""

    epsilon: float
    delta: float
    feature_bounds: Any
    n_rows: int | None
    learning_rate: float
    epochs: float
    batch_size: float
    clip: float
    optimiser: str
    weight_decay: float
    schedule: str
    random_state: Any
    simulation: bool
    coef_: Array
    intercept_: Any
    _model: Model

    def fit(self, X: Any, y: Any = None) -> Self:
        """Train on all rows. Every call spends ``privacy_spent_`` again.

        Parameters
        ----------
        X : array-like or data frame of shape (n_rows, n_features)
            Features: numbers without gaps.
        y : array-like of shape (n_rows,)
            Targets.

        Returns
        -------
        self

        Raises
        ------
        InvalidInput
            If a setting is not valid, or the rows have NaN, infinity or another shape. Nothing is
            spent then.
        """
        self._train(*self._checked(X, y))
        return self

    def privacy_guarantee(self, n: int | None = None) -> RenyiDP:
        """Return what one ``fit`` guarantees. It depends on public settings only.

        Parameters
        ----------
        n : int, optional
            The number of rows, public. Needed unless ``n_rows`` is set, which is used instead.

        Returns
        -------
        RenyiDP
            The Rényi curve, for "zero-out" neighbours, or for "add-remove" if ``n_rows`` is set.

        Raises
        ------
        InvalidInput
            If a setting is not valid.
        """
        return self._resolved(n)[1]

    def check_fit(self, X: Any, y: Any) -> None:
        """Refuse what :meth:`fit` would refuse, without fitting or spending anything.

        Parameters
        ----------
        X, y : array-like
            As in :meth:`fit`.

        Raises
        ------
        InvalidInput
            If the rows, the targets or a setting are not valid.
        """
        self._checked(X, y)

    def check_facts(self, X: Any, given: Collection[str] = ()) -> None:
        """Refuse missing and wrong public facts, all of them in one message.

        Parameters
        ----------
        X : array-like or data frame
            Features. Only the types and names of its columns are looked at.
        given : collection of str
            Settings that are not checked, because a search sets them.

        Raises
        ------
        InvalidInput
            If a fact is missing or not valid, or a column holds no numbers.
        """
        names, columns = names_of(X)
        facts = {
            "X": lambda: check_width(X),
            "feature_bounds": lambda: check_bounds(
                self.feature_bounds, "feature_bounds", names, columns
            ),
            **self._target_facts(),
        }
        check_all(check for name, check in facts.items() if name not in given)

    def _target_facts(self) -> dict[str, Callable[[], object]]:
        """Return the checks of what must be known about the target."""
        raise NotImplementedError

    def _public_rows(self, n: int | None) -> int:
        """Return the number of rows that rate and normalisation use."""
        if self.n_rows is not None:
            return count_of(self.n_rows, "n_rows", at_least=1)
        return count_of(n, "n", at_least=1)

    def _configuration(self, n: int | None) -> Configuration:
        """Return the settings of the training; a batch is at most the public number of rows."""
        exact_positive(self.batch_size, "batch_size")
        return Configuration(
            self.learning_rate,
            self.epochs,
            min(self.batch_size, self._public_rows(n)),
            self.clip,
            epsilon=self.epsilon,
            delta=self.delta,
            optimiser=self.optimiser,
            weight_decay=self.weight_decay,
            schedule=self.schedule,
            class_weights=self._class_weights(),
        )

    def _class_weights(self) -> tuple[float, ...] | None:
        """Return the public weight of each class; None if all count the same."""
        return None

    def _resolved(self, n: int | None) -> tuple[Configuration, RenyiDP]:
        """Return the settings with their noise, and the guarantee of the training."""
        neighbours = ZERO_OUT if self.n_rows is None else ADD_REMOVE
        return _calibrated(self._configuration(n), self._public_rows(n), neighbours)

    def _checked(self, X: Any, y: Any) -> tuple[Array, Array]:
        """Return checked rows and targets; refuse bad settings, too."""
        self.check_facts(X)
        rows = check_features(self, X)
        names = getattr(self, "feature_names_in_", None)
        self._low, self._high = check_bounds(
            self.feature_bounds, "feature_bounds", names, rows.shape[1]
        )
        randomness_of(self.random_state)
        self._configuration(len(rows))
        return rows, self._checked_targets(check_targets(y, len(rows)))

    def _checked_targets(self, targets: Array) -> Array:
        """Return targets as the training takes them."""
        raise NotImplementedError

    def _train(self, X: Array, y: Array) -> None:
        """Train on checked rows and targets and set the fitted attributes."""
        middle, half = (self._low + self._high) / 2, (self._high - self._low) / 2
        scaled = (np.clip(X, self._low, self._high) - middle) / half
        source, recipe = randomness_of(self.random_state), recipe_of(self._schema())
        if refuses_values():
            warn_if_weak(
                ApproxDP(self.epsilon, self.delta), self._public_rows(len(X)), stacklevel=4
            )
        configuration, guarantee = self._resolved(len(X))
        (trained,) = fleet(recipe, [configuration]).train(
            scaled,
            y,
            randomness=source,
            simulation=self.simulation,
            threads=1,
            rows=self.n_rows,
        )
        weight, bias = trained.parameters["weight"], trained.parameters["bias"]
        weight, bias = 2 * weight, bias - weight.sum(axis=1)  # for features in [0, 1]
        if recipe.target_bounds is not None:  # and for such a target
            weight, bias = weight / 2, (bias + 1) / 2
        self._take(Model(recipe, {"weight": weight, "bias": bias}))
        self.simulated_ = source is not None and source.simulated
        # Noise from a seed protects nobody, so there is nothing to report.
        self.guarantee_ = None if self.simulated_ else guarantee
        self.privacy_spent_: Guarantee | None = (
            None if self.simulated_ else guarantee.to_approx(self.delta)
        )

    def _schema(self) -> TableSchema:
        """Return the public facts about the columns and the target."""
        names = getattr(self, "feature_names_in_", [None] * len(self._low))
        columns = tuple(
            Column(low=float(low), high=float(high), name=None if name is None else str(name))
            for low, high, name in zip(self._low, self._high, names, strict=True)
        )
        return TableSchema(columns, **self._target_schema())

    def _target_schema(self) -> dict[str, Any]:
        """Return what must be known about the target, as a schema states it."""
        raise NotImplementedError

    def as_model(self) -> Model:
        """Return the fitted model as a :class:`~expost.Model`, which can be saved safely."""
        check_is_fitted(self)
        return self._model

    def _take(self, model: Model) -> None:
        """Take a model of features (and a target) scaled to [0, 1]."""
        weight, bias = linear_parts(model)
        weights = weight / (self._high - self._low)
        self._set(weights, bias - weights @ self._low)
        self._model = model

    def _set(self, weights: Array, biases: Array) -> None:
        """Set the fitted attributes from one row of weights per output."""
        raise NotImplementedError

    def _linear(self, X: Any) -> Array:
        """Return the linear predictions (rows × outputs), with features clipped as in training."""
        check_is_fitted(self)
        rows = check_features(self, X, reset=False)
        rows = np.where(np.isnan(rows), (self._low + self._high) / 2, rows)
        rows = np.clip(rows, self._low, self._high)  # infinity, too
        recipe = self._model.recipe
        raw = recipe.outputs(self._model.parameters, recipe.schema.encode(rows))
        if recipe.target_bounds is None:
            return raw
        low, high = recipe.target_bounds
        return np.asarray(low + raw * (high - low))

    def __sklearn_tags__(self) -> Any:
        """Return scikit-learn's tags: targets are required, and results are random."""
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.non_deterministic = self.random_state is None
        return tags


def recipe_of(schema: TableSchema, features: Features | None = None) -> Recipe:
    """Return the linear model of a table."""
    kind = {None: "linear", 2: "logistic"}.get(schema.class_count, "softmax")
    return Recipe(kind, "squared" if kind == "linear" else kind, schema, features=features)


def linear_parts(model: Model) -> tuple[Array, Array]:
    """Return weights and biases on features in [0, 1] of a model on plain features.

    Rows that are divided by their norm have logits that are divided by it, too; which of them is
    the largest, and the sign of a single one, stay the same.
    """
    weight, bias = model.parameters["weight"], model.parameters["bias"]
    features = model.recipe.features
    if features is None:
        return weight, bias
    columns = weight.shape[1] - 1
    first, last = features.values(np.array([np.zeros(columns), np.ones(columns)]))
    divided = features.transform_cells(np.ones((1, columns)))[0]
    length = last[0] / divided[0]
    coef = weight[:, :-1] * (last - first)
    biases = weight[:, :-1] @ first + weight[:, -1] * divided[-1] * length
    if features.norm == "row":
        return coef, biases
    return coef / length, biases / length + bias


@lru_cache(1024)
def _calibrated(
    configuration: Configuration, n: int, neighbours: str
) -> tuple[Configuration, RenyiDP]:
    """Return a configuration with its noise, and its guarantee; a search asks many times."""
    noisy = resolved(configuration, configuration.plan(n, neighbours=neighbours))
    return noisy, noisy.guarantee(n, neighbours=neighbours)


def randomness_of(random_state: Any) -> Randomness | None:
    """Return None for OS entropy, or a seeded source, which only a simulation may use."""
    if random_state is None or isinstance(random_state, Randomness):
        return random_state
    if isinstance(random_state, (np.random.RandomState, np.random.Generator)):
        draw = (
            random_state.integers
            if isinstance(random_state, np.random.Generator)
            else random_state.randint
        )
        return SimulationRandomness(int(draw(2**31)))
    if isinstance(random_state, (int, np.integer)):
        return SimulationRandomness(int(random_state))
    raise InvalidInput(
        "random_state", type(random_state).__name__, "pass None, or a seed with simulation=True"
    )
