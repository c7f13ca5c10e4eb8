"""Differentially private linear models with scikit-learn's interface.

The models are trained with DP-SGD by the fleet (:mod:`expost.training`). Features (and regression
targets) are clipped to **public** bounds and scaled to [−1, 1]; the classes are a **public** list.
None of these is read off the data: that would release, for example, the smallest income or the list
of diagnoses without noise. The number of rows is assumed to be public. ``privacy_spent_`` is the
(ε, δ) promise of the fitted parameters under add-remove neighbours. It does not cover a ``score``
on private data.

``fit`` refuses shapes and number types, never values: a refusal is not noisy. A cell that is not a
number becomes NaN. A row with NaN, or with a label outside the public classes, counts for nothing
in the training (:mod:`expost.training.data`). Tests: ``tests/training/test_sklearn.py``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from expost.arrays import Array
from expost.errors import InvalidInput, MissingExtra
from expost.execution.failure import attempt
from expost.privacy.advice import warn_if_weak
from expost.privacy.guarantees import ApproxDP
from expost.randomness.source import Randomness, SimulationRandomness
from expost.training.configuration import Configuration
from expost.training.fleet import Fleet

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data
except ImportError:
    raise MissingExtra("scikit-learn", "sklearn") from None


_WHY = "reading them off the data would reveal single people; pass what is publicly known"


class _DPLinearModel(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Settings and fitting shared by both models."""

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        *,
        feature_bounds: Any = None,
        learning_rate: float = 0.5,
        epochs: float = 20,
        batch_size: float = 256,
        clip: float = 1.0,
        optimiser: str = "sgd",
        random_state: Any = None,
        simulation: bool = False,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.feature_bounds = feature_bounds
        self.learning_rate = learning_rate
        self.epochs = epochs
        self.batch_size = batch_size
        self.clip = clip
        self.optimiser = optimiser
        self.random_state = random_state
        self.simulation = simulation

    def _fit(self, model: str, classes: int | None, X: Array, y: Array) -> tuple[Array, Array]:
        """Return weights and biases (one row per output) for unscaled features."""
        low, high = _bounds(self.feature_bounds, "feature_bounds", X.shape[1])
        self._low, self._high = low, high
        settings = Configuration(
            self.learning_rate,
            self.epochs,
            min(self.batch_size, len(X)),
            self.clip,
            epsilon=self.epsilon,
            delta=self.delta,
            optimiser=self.optimiser,
        )
        middle, half = (low + high) / 2, (high - low) / 2
        scaled = (np.clip(X, low, high) - middle) / half
        source = _source(self.random_state)
        warn_if_weak(ApproxDP(self.epsilon, self.delta), len(X), stacklevel=3)
        (trained,) = Fleet(model, [settings], classes).train(
            scaled, y, randomness=source, simulation=self.simulation, threads=1
        )
        assert trained.promise is not None
        self.simulated_ = source is not None and source.simulated
        # Noise from a seed protects nobody, so there is nothing to report.
        self.promise_ = None if self.simulated_ else trained.promise
        self.privacy_spent_: ApproxDP | None = (
            None if self.simulated_ else trained.promise.to_approx(self.delta)
        )
        weights = trained.parameters["weight"] / half
        return weights, trained.parameters["bias"] - weights @ middle

    def _linear(self, X: Any) -> Array:
        """Return the linear predictions (rows × outputs), with features clipped as in training."""
        check_is_fitted(self)
        rows = self._rows(X, reset=False)
        rows = np.where(np.isnan(rows), (self._low + self._high) / 2, rows)
        return np.asarray(
            np.clip(rows, self._low, self._high) @ np.atleast_2d(self.coef_).T + self.intercept_
        )

    def _rows(self, X: Any, *, reset: bool = True) -> Array:
        """Return the features as numbers; refuse shapes and number types only."""
        return np.asarray(
            validate_data(
                self,
                _without_text(X),
                dtype=np.float64,
                ensure_all_finite=False,
                reset=reset,
            )
        )

    def __sklearn_tags__(self) -> Any:
        """Return scikit-learn's tags: NaN is allowed, and targets are required."""
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.target_tags.required = True
        return tags


class DPLinearRegression(RegressorMixin, _DPLinearModel):  # type: ignore[misc]
    """Linear least-squares regression with (ε, δ)-differential privacy.

    Parameters
    ----------
    epsilon : float, default=1.0
        The ε of the fitted model.
    delta : float, default=1e-6
        The δ of the fitted model.
    feature_bounds : tuple (low, high)
        Required. Public bounds of the features: two numbers, or two arrays with one number per
        feature. Features outside are clipped.
    target_bounds : tuple (low, high)
        Required. Public bounds of the target. Targets outside are clipped.
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
    privacy_spent_ : ApproxDP or None
        The (ε, δ) promise of the fitted parameters, under add-remove neighbours; None if the noise
        came from a seed.
    promise_ : RenyiDP or None
        The same promise as a Rényi curve.
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
        learning_rate: float = 0.1,
        epochs: float = 20,
        batch_size: float = 256,
        clip: float = 1.0,
        optimiser: str = "sgd",
        random_state: Any = None,
        simulation: bool = False,
    ) -> None:
        super().__init__(
            epsilon,
            delta,
            feature_bounds=feature_bounds,
            learning_rate=learning_rate,
            epochs=epochs,
            batch_size=batch_size,
            clip=clip,
            optimiser=optimiser,
            random_state=random_state,
            simulation=simulation,
        )
        self.target_bounds = target_bounds

    def fit(self, X: Any, y: Any) -> DPLinearRegression:
        """Train on all rows. Every call spends ``privacy_spent_`` again.

        Parameters
        ----------
        X : array-like of shape (n_rows, n_features)
            Features.
        y : array-like of shape (n_rows,)
            Targets.

        Returns
        -------
        self
        """
        rows = self._rows(X)
        targets = np.asarray(_without_text(_targets(y, len(rows))), dtype=np.float64)
        low, high = _bounds(self.target_bounds, "target_bounds", 1)
        middle, half = float(low[0] + high[0]) / 2, float(high[0] - low[0]) / 2
        weights, biases = self._fit(
            "linear", None, rows, (np.clip(targets, low, high) - middle) / half
        )
        self.coef_, self.intercept_ = weights[0] * half, float(biases[0]) * half + middle
        return self

    def predict(self, X: Any) -> Array:
        """Predict targets. Features are clipped to the public bounds."""
        return self._linear(X)[:, 0]


class DPLogisticRegression(ClassifierMixin, _DPLinearModel):  # type: ignore[misc]
    """Logistic regression with (ε, δ)-differential privacy; softmax for more than two classes.

    Parameters
    ----------
    epsilon : float, default=1.0
        The ε of the fitted model.
    delta : float, default=1e-6
        The δ of the fitted model.
    classes : list
        Required. The public list of all classes that can occur, at least two.
    feature_bounds : tuple (low, high)
        Required. Public bounds of the features: two numbers, or two arrays with one number per
        feature. Features outside are clipped.
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
    random_state : int, optional
        A seed. Only valid with ``simulation=True``: noise from a seed gives no privacy.
    simulation : bool, default=False
        Allow seeded randomness, for tests. The fitted model is then not private.

    Attributes
    ----------
    classes_ : ndarray
        The classes, sorted.
    coef_ : ndarray of shape (1, n_features) or (n_classes, n_features)
        Coefficients, for features within the bounds.
    intercept_ : ndarray of shape (1,) or (n_classes,)
        Intercepts.
    privacy_spent_ : ApproxDP or None
        The (ε, δ) promise of the fitted parameters, under add-remove neighbours; None if the noise
        came from a seed.
    promise_ : RenyiDP or None
        The same promise as a Rényi curve.
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
        learning_rate: float = 0.5,
        epochs: float = 20,
        batch_size: float = 256,
        clip: float = 1.0,
        optimiser: str = "sgd",
        random_state: Any = None,
        simulation: bool = False,
    ) -> None:
        super().__init__(
            epsilon,
            delta,
            feature_bounds=feature_bounds,
            learning_rate=learning_rate,
            epochs=epochs,
            batch_size=batch_size,
            clip=clip,
            optimiser=optimiser,
            random_state=random_state,
            simulation=simulation,
        )
        self.classes = classes

    def fit(self, X: Any, y: Any) -> DPLogisticRegression:
        """Train on all rows. Every call spends ``privacy_spent_`` again.

        Parameters
        ----------
        X : array-like of shape (n_rows, n_features)
            Features.
        y : array-like of shape (n_rows,)
            Targets.

        Returns
        -------
        self
        """
        rows = self._rows(X)
        labels = _targets(y, len(rows))
        if self.classes is None or len(self.classes) < 2:
            raise InvalidInput("classes", self.classes, f"list all possible classes: {_WHY}")
        known = np.unique(np.asarray(self.classes))
        places = _places(known, labels)
        two = len(known) == 2
        self.coef_, self.intercept_ = self._fit(
            "logistic" if two else "softmax", None if two else len(known), rows, places
        )
        self.classes_ = known
        return self

    def decision_function(self, X: Any) -> Array:
        """Return the logits: one per row for two classes, else one per row and class."""
        logits = self._linear(X)
        return logits[:, 0] if len(self.classes_) == 2 else logits

    def predict_proba(self, X: Any) -> Array:
        """Return class probabilities (rows × classes)."""
        logits = self._linear(X)
        if len(self.classes_) == 2:
            logits = np.column_stack([np.zeros(len(logits)), logits])
        shares = np.exp(logits - logits.max(axis=1, keepdims=True))
        return np.asarray(shares / shares.sum(axis=1, keepdims=True))

    def predict(self, X: Any) -> Array:
        """Predict class labels."""
        shares = self.predict_proba(X)
        return np.asarray(self.classes_[shares.argmax(axis=1)])


def _targets(y: Any, rows: int) -> Array:
    """Return the targets as an array of one value per row; refuse shapes only."""
    targets = np.asarray(column_or_1d(y, warn=True))
    if len(targets) != rows:
        raise InvalidInput("y", f"{len(targets)} targets", f"pass one per row, {rows} in all")
    return targets


def _without_text(values: Any) -> Any:
    """Return values of other types as numbers, NaN for what is not a number.

    The error of a conversion would quote the value, and whether it comes depends on the data.
    """
    array = None if hasattr(values, "toarray") else attempt(np.asarray, values)
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "OUS" or array.ndim > 2:
        return values
    numbers = np.empty(array.shape, dtype=np.float64)
    for place, value in np.ndenumerate(array):
        number = attempt(float, value)
        numbers[place] = number if isinstance(number, float) else np.nan
    return numbers


def _places(known: Array, labels: Array) -> Array:
    """Return the place of each label in the sorted public list; NaN for a label outside it."""
    if known.dtype.kind == labels.dtype.kind or {known.dtype.kind, labels.dtype.kind} <= set(
        "biuf"
    ):
        found = np.minimum(np.searchsorted(known, labels), len(known) - 1)
        return np.where(known[found] == labels, found.astype(np.float64), np.nan)
    table = {value: float(place) for place, value in enumerate(known.tolist())}
    places = [attempt(table.get, label, np.nan) for label in labels.tolist()]
    return np.array([each if isinstance(each, float) else np.nan for each in places])


def _bounds(bounds: Any, field: str, columns: int) -> tuple[Array, Array]:
    """Return (low, high) as arrays of ``columns`` numbers."""
    if bounds is None:
        raise InvalidInput(field, None, f"pass public bounds (low, high): {_WHY}")
    try:
        low, high = (
            np.broadcast_to(np.asarray(each, dtype=np.float64), (columns,)) for each in bounds
        )
    except (TypeError, ValueError):
        raise InvalidInput(
            field, bounds, f"pass (low, high), each a number or an array of length {columns}"
        ) from None
    if not np.all(np.isfinite(low) & np.isfinite(high) & (low < high)):
        raise InvalidInput(field, bounds, "pass finite bounds with low < high")
    return low, high


def _source(random_state: Any) -> Randomness | None:
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
