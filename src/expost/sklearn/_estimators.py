"""Differentially private linear and logistic regression with scikit-learn's interface.

:func:`public_baseline` tells what training without privacy reaches. A score of a non-private model
on private rows would be a release without noise, so it is named for the rows that it takes, and
nothing in the package calls it.

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

from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, clone, is_regressor
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.model_selection import train_test_split
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
    WHY,
    check_all,
    check_bounds,
    check_features,
    check_labels,
    check_numbers,
    check_targets,
    check_width,
    keep_parameters,
    names_of,
    refuses_values,
)
from expost.training.configuration import Configuration
from expost.training.fleet import resolved
from expost.tuning.model.released_model import Model, Recipe, probabilities_of
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


class DPLinearRegression(RegressorMixin, DPLinearModel):  # type: ignore[misc]
    """Linear least-squares regression with (ε, δ)-differential privacy.

    Parameters
    ----------
    epsilon : float, default=1.0
        The ε of the fitted model.
    delta : float, default=1e-6
        The δ of the fitted model.
    feature_bounds : pair, sequence of pairs, or dict
        Required. Public bounds of the features: one pair (low, high) for all, one pair per feature,
        or a pair for each column name. Features outside are clipped.
    target_bounds : pair (low, high)
        Required. Public bounds of the target. Targets outside are clipped.
    n_rows : int, optional
        A public number of rows, for the sampling rate and the normalisation. With it the guarantee
        is for "add-remove" neighbours. Without it the number of rows that ``fit`` receives is
        public, and the guarantee is for "zero-out" neighbours.
    learning_rate : float, default=0.1
        Step size, for features and targets scaled to [−1, 1].
    epochs : float, default=20
        Expected number of passes over the data.
    batch_size : float, default=256
        Expected batch size. Rows are sampled.
    clip : float, default=1.0
        Clipping norm of the gradient of one row.
    optimiser : str, default="sgd"
        As in :class:`~expost.training.Configuration`.
    weight_decay : float, default=0.0
        Decoupled weight decay, as in :class:`~expost.training.Configuration`.
    schedule : str, default="constant"
        Schedule of the learning rate: "constant", "cosine" or "linear".
    random_state : int, optional
        A seed. Only valid with ``simulation=True``: noise from a seed gives no privacy.
    simulation : bool, default=False
        Allow seeded randomness, for tests. The fitted model is then not private.

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,)
        Coefficients, for features within the bounds.
    intercept_ : float
        Intercept.
    n_features_in_ : int
        Number of features.
    feature_names_in_ : ndarray of str
        Their names, if ``fit`` received a data frame.
    privacy_spent_ : ApproxDP or None
        The (ε, δ) guarantee of the fitted parameters, for the neighbours that it names; None if the
        noise came from a seed.
    guarantee_ : RenyiDP or None
        The same guarantee as a Rényi curve.
    simulated_ : bool
        Whether the noise came from a seed. Then the model is not private.
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        *,
        feature_bounds: Any = None,
        target_bounds: Any = None,
        n_rows: int | None = None,
        learning_rate: float = 0.1,
        epochs: float = 20,
        batch_size: float = 256,
        clip: float = 1.0,
        optimiser: str = "sgd",
        weight_decay: float = 0.0,
        schedule: str = "constant",
        random_state: Any = None,
        simulation: bool = False,
    ) -> None:
        keep_parameters(self, locals())

    def _set(self, weights: Array, biases: Array) -> None:
        """Set the parameters of a model of the target in [0, 1]."""
        middle, half = self._target_scale()
        self.coef_ = weights[0] * 2 * half
        self.intercept_ = float(biases[0]) * 2 * half + middle - half

    def _target_schema(self) -> dict[str, Any]:
        """Return the target's public range."""
        low, high = check_bounds(self.target_bounds, "target_bounds", None, 1)
        return {"target_bounds": (float(low[0]), float(high[0]))}

    def _target_facts(self) -> dict[str, Callable[[], object]]:
        """Return the check of the target's range."""
        return {"target_bounds": self._target_scale}

    def _target_scale(self) -> tuple[float, float]:
        """Return middle and half width of the target's public range."""
        low, high = check_bounds(self.target_bounds, "target_bounds", None, 1)
        return float(low[0] + high[0]) / 2, float(high[0] - low[0]) / 2

    def _checked_targets(self, targets: Array) -> Array:
        """Return the targets clipped and scaled to [−1, 1]."""
        middle, half = self._target_scale()
        return np.asarray(np.clip((check_numbers(targets) - middle) / half, -1, 1))

    def predict(self, X: Any) -> Array:
        """Predict targets. Features are clipped to the public bounds."""
        return self._linear(X)[:, 0]


class DPLogisticRegression(ClassifierMixin, DPLinearModel):  # type: ignore[misc]
    """Logistic regression with (ε, δ)-differential privacy; softmax for more than two classes.

    Parameters
    ----------
    epsilon : float, default=1.0
        The ε of the fitted model.
    delta : float, default=1e-6
        The δ of the fitted model.
    classes : list
        Required. The public list of all classes that can occur, at least two.
    feature_bounds : pair, sequence of pairs, or dict
        Required. Public bounds of the features: one pair (low, high) for all, one pair per feature,
        or a pair for each column name. Features outside are clipped.
    n_rows : int, optional
        A public number of rows, for the sampling rate and the normalisation. With it the guarantee
        is for "add-remove" neighbours. Without it the number of rows that ``fit`` receives is
        public, and the guarantee is for "zero-out" neighbours.
    learning_rate : float, default=0.5
        Step size, for features scaled to [−1, 1].
    epochs : float, default=20
        Expected number of passes over the data.
    batch_size : float, default=256
        Expected batch size. Rows are sampled.
    clip : float, default=1.0
        Clipping norm of the gradient of one row.
    optimiser : str, default="sgd"
        As in :class:`~expost.training.Configuration`.
    weight_decay : float, default=0.0
        Decoupled weight decay, as in :class:`~expost.training.Configuration`.
    schedule : str, default="constant"
        Schedule of the learning rate: "constant", "cosine" or "linear".
    class_weight : dict or list, optional
        Public weights of the classes in the loss, before clipping: a dict from class to weight
        (classes that are not in it have weight 1), or one number per class in the order of
        ``classes``. "balanced" is refused, because it would be computed from the labels.
    random_state : int, optional
        A seed. Only valid with ``simulation=True``: noise from a seed gives no privacy.
    simulation : bool, default=False
        Allow seeded randomness, for tests. The fitted model is then not private.

    Attributes
    ----------
    classes_ : ndarray
        The classes, sorted.
    coef_ : ndarray of shape (1, n_features) or (n_classes, n_features)
        Coefficients, for features within the bounds. The logits of a model that a search trained
        progressively are divided by the norm of the scaled row.
    intercept_ : ndarray of shape (1,) or (n_classes,)
        Intercepts.
    n_features_in_ : int
        Number of features.
    feature_names_in_ : ndarray of str
        Their names, if ``fit`` received a data frame.
    privacy_spent_ : ApproxDP or None
        The (ε, δ) guarantee of the fitted parameters, for the neighbours that it names; None if the
        noise came from a seed.
    guarantee_ : RenyiDP or None
        The same guarantee as a Rényi curve.
    simulated_ : bool
        Whether the noise came from a seed. Then the model is not private.
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        *,
        classes: Any = None,
        feature_bounds: Any = None,
        n_rows: int | None = None,
        learning_rate: float = 0.5,
        epochs: float = 20,
        batch_size: float = 256,
        clip: float = 1.0,
        optimiser: str = "sgd",
        weight_decay: float = 0.0,
        schedule: str = "constant",
        class_weight: Any = None,
        random_state: Any = None,
        simulation: bool = False,
    ) -> None:
        keep_parameters(self, locals())

    def _class_weights(self) -> tuple[float, ...] | None:
        """Return the weights in the order of the sorted classes."""
        given = self.class_weight
        if given is None:
            return None
        known, listed = self._known().tolist(), np.asarray(self.classes).tolist()
        valid = (
            "pass a dict from class to weight, or one number > 0 per class in the order of "
            "classes; weights are public and must not be computed from the labels"
        )
        if isinstance(given, Mapping):
            if not set(given) <= set(known):
                raise InvalidInput("class_weight", given, valid)
            weights = dict.fromkeys(known, 1.0) | dict(given)
        elif isinstance(given, list | tuple | np.ndarray) and len(given) == len(known) == len(
            listed
        ):
            weights = dict(zip(listed, given, strict=True))
        else:
            raise InvalidInput("class_weight", given, valid)
        return tuple(float(exact_positive(weights[label], "class_weight")) for label in known)

    def _set(self, weights: Array, biases: Array) -> None:
        """Set the parameters and the classes."""
        self.coef_, self.intercept_, self.classes_ = weights, biases, self._known()

    def _target_schema(self) -> dict[str, Any]:
        """Return the public classes."""
        return {"classes": tuple(self._known().tolist())}

    def _target_facts(self) -> dict[str, Callable[[], object]]:
        """Return the check of the classes."""
        return {"classes": self._known}

    def _known(self) -> Array:
        """Return the public classes, sorted."""
        if self.classes is None or np.ndim(self.classes) != 1 or len(set(self.classes)) < 2:
            given = None if self.classes is None else type(self.classes).__name__
            raise InvalidInput("classes", given, f"list all possible classes, two or more: {WHY}")
        return np.unique(np.asarray(self.classes))

    def _checked_targets(self, targets: Array) -> Array:
        """Return the number of each row's class."""
        return check_labels(self._known(), targets)

    def decision_function(self, X: Any) -> Array:
        """Return the logits: one per row for two classes, else one per row and class."""
        logits = self._linear(X)
        return logits[:, 0] if len(self.classes_) == 2 else logits

    def predict_proba(self, X: Any) -> Array:
        """Return class probabilities (rows × classes)."""
        return probabilities_of(self._linear(X))

    def predict(self, X: Any) -> Array:
        """Predict class labels."""
        shares = self.predict_proba(X)
        return np.asarray(self.classes_[shares.argmax(axis=1)])


def public_baseline(
    estimator: Any, X: Any, y: Any, *, holdout: float = 0.2, seed: int = 0
) -> float:
    """Return the score of the non-private counterpart on *public or simulated* rows.

    The counterpart is scikit-learn's ``LogisticRegression`` or ``LinearRegression`` on features
    that are clipped and scaled to the same public bounds. Its score tells how much the noise costs.

    Parameters
    ----------
    estimator : DPLogisticRegression or DPLinearRegression
        The private model. It is not fitted.
    X, y : array-like
        Rows and targets that are public or made up. Do not pass private rows: the score has no
        noise, and no budget is charged.
    holdout : float, default=0.2
        Share of the rows that scores.
    seed : int, default=0
        Seed of the split.

    Returns
    -------
    float
        The accuracy, or minus the mean squared error.
    """
    if not isinstance(estimator, DPLinearModel):
        raise InvalidInput(
            "estimator",
            type(estimator).__name__,
            "pass a DPLogisticRegression or a DPLinearRegression",
        )
    model: Any = clone(estimator)
    rows, targets = model._checked(X, y)
    low, high = model._low, model._high
    scaled = (np.clip(rows, low, high) - (low + high) / 2) / ((high - low) / 2)
    parts = train_test_split(scaled, targets, test_size=holdout, random_state=seed)
    train_X, test_X, train_y, test_y = parts
    if is_regressor(model):
        half = model._target_scale()[1]
        errors = LinearRegression().fit(train_X, train_y).predict(test_X) - test_y
        return -float(np.mean(np.square(half * np.clip(errors, -2, 2))))
    return float(LogisticRegression(max_iter=1000).fit(train_X, train_y).score(test_X, test_y))
