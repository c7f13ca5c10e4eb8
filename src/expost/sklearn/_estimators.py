"""Differentially private linear and logistic regression with scikit-learn's interface.

:func:`public_baseline` tells what training without privacy reaches. A score of a non-private model
on private rows would be a release without noise, so it is named for the rows that it takes, and
nothing in the package calls it.

What is public, which neighbours the guarantee is for, and which rows are refused is stated in
:mod:`expost.sklearn._linear_model`. Tests: ``tests/training/test_sklearn.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from sklearn.base import ClassifierMixin, RegressorMixin, clone, is_regressor
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.model_selection import train_test_split

from expost.arrays import Array
from expost.errors import InvalidInput
from expost.rationals import exact_positive
from expost.sklearn._linear_model import DPLinearModel
from expost.sklearn._rows import WHY, check_bounds, check_labels, check_numbers, keep_parameters
from expost.tuning.model.released_model import probabilities_of


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
