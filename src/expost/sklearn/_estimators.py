"""Differentially private linear models with scikit-learn's interface.

Trained by the fleet (:mod:`expost.training`). Features (and regression targets) are clipped to **public** bounds and scaled to [−1, 1] with
them; classes are a **public** list. None of these is read off the data: the smallest income or the list of diagnoses present would be
released without noise. The number of rows is taken as public. ``privacy_spent_`` is the (ε, δ) promise of the fitted parameters under
add-remove neighbours; a ``score`` on private data is not covered by it.
Tests: ``tests/training/test_sklearn.py``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from expost.arrays import Array
from expost.errors import InvalidInput, MissingExtra
from expost.privacy.guarantees import ApproxDP
from expost.randomness.source import Randomness, SimulationRandomness
from expost.training.configuration import Configuration
from expost.training.fleet import Fleet

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError:
    raise MissingExtra("scikit-learn", "sklearn") from None


_WHY = "reading them off the data would tell about single people; give what is known beforehand"


class _DPLinearModel(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Settings and fitting that both models share."""

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
        """Weights and biases (a row an output) for features as they come."""
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
        (trained,) = Fleet(model, [settings], classes).train(
            scaled, y, randomness=_source(self.random_state), simulation=self.simulation, threads=1
        )
        assert trained.promise is not None
        self.promise_ = trained.promise
        self.privacy_spent_: ApproxDP = trained.promise.to_approx(self.delta)
        weights = trained.parameters["weight"] / half
        return weights, trained.parameters["bias"] - weights @ middle

    def _linear(self, X: Any) -> Array:
        """Rows × outputs, of features clipped like those of the training."""
        check_is_fitted(self)
        rows = validate_data(self, X, dtype=np.float64, reset=False)
        return np.asarray(
            np.clip(rows, self._low, self._high) @ np.atleast_2d(self.coef_).T + self.intercept_
        )


class DPLinearRegression(RegressorMixin, _DPLinearModel):  # type: ignore[misc]
    """(ε, δ)-differentially private least squares.

    ``feature_bounds``  (low, high): numbers, or one a feature; public. Features beyond are clipped
    ``target_bounds``   (low, high): numbers; public. Targets beyond are clipped
    ``learning_rate, epochs, batch_size, clip, optimiser``  as in :class:`~expost.training.Configuration`, on features in [−1, 1]
    ``random_state``    a seed, only with ``simulation=True``: a seeded model protects nobody

    Fitted: ``coef_``, ``intercept_`` (for features within the bounds), ``privacy_spent_`` (ApproxDP), ``promise_`` (RenyiDP).
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
        """Train on all rows; every call spends ``privacy_spent_`` again."""
        rows, targets = validate_data(self, X, y, dtype=np.float64, y_numeric=True)
        low, high = _bounds(self.target_bounds, "target_bounds", 1)
        middle, half = float(low[0] + high[0]) / 2, float(high[0] - low[0]) / 2
        weights, biases = self._fit(
            "linear", None, rows, (np.clip(targets, low, high) - middle) / half
        )
        self.coef_, self.intercept_ = weights[0] * half, float(biases[0]) * half + middle
        return self

    def predict(self, X: Any) -> Array:
        return self._linear(X)[:, 0]


class DPLogisticRegression(ClassifierMixin, _DPLinearModel):  # type: ignore[misc]
    """(ε, δ)-differentially private logistic (two classes) or softmax (more) regression.

    ``classes``  all classes that can occur, as a list; public. Other settings as for :class:`DPLinearRegression`.

    Fitted: ``classes_``, ``coef_``, ``intercept_``, ``privacy_spent_`` (ApproxDP), ``promise_`` (RenyiDP).
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
        """Train on all rows; every call spends ``privacy_spent_`` again."""
        rows, labels = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(labels)
        if self.classes is None or len(self.classes) < 2:
            raise InvalidInput("classes", self.classes, f"list all classes that can occur: {_WHY}")
        known = np.unique(np.asarray(self.classes))
        try:
            places = np.minimum(np.searchsorted(known, labels), len(known) - 1)
        except TypeError:
            places = np.zeros(
                len(labels), dtype=np.int64
            )  # texts among numbers: not of the list, as the next line finds
        if not np.array_equal(known[places], labels):
            raise InvalidInput(
                "y", "labels that are not among the classes", "give labels of the public list only"
            )
        two = len(known) == 2
        self.coef_, self.intercept_ = self._fit(
            "logistic" if two else "softmax", None if two else len(known), rows, places
        )
        self.classes_ = known
        return self

    def decision_function(self, X: Any) -> Array:
        logits = self._linear(X)
        return logits[:, 0] if len(self.classes_) == 2 else logits

    def predict_proba(self, X: Any) -> Array:
        logits = self._linear(X)
        if len(self.classes_) == 2:
            logits = np.column_stack([np.zeros(len(logits)), logits])
        shares = np.exp(logits - logits.max(axis=1, keepdims=True))
        return np.asarray(shares / shares.sum(axis=1, keepdims=True))

    def predict(self, X: Any) -> Array:
        shares = self.predict_proba(X)
        return np.asarray(self.classes_[shares.argmax(axis=1)])


def _bounds(bounds: Any, field: str, columns: int) -> tuple[Array, Array]:
    """(low, high) as arrays of ``columns`` numbers."""
    if bounds is None:
        raise InvalidInput(field, None, f"give public bounds (low, high): {_WHY}")
    try:
        low, high = (
            np.broadcast_to(np.asarray(each, dtype=np.float64), (columns,)) for each in bounds
        )
    except (TypeError, ValueError):
        raise InvalidInput(
            field, bounds, f"give (low, high), each a number or {columns} of them"
        ) from None
    if not np.all(np.isfinite(low) & np.isfinite(high) & (low < high)):
        raise InvalidInput(field, bounds, "give finite bounds with low < high")
    return low, high


def _source(random_state: Any) -> Randomness | None:
    """OS entropy, or a seeded source (which the fleet refuses outside a simulation)."""
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
        "random_state", type(random_state).__name__, "give None, or a seed with simulation=True"
    )
