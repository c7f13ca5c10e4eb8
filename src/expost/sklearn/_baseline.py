"""What training without privacy reaches, on rows that are public or made up.

A score of a non-private model on private rows would be a release without noise. So the function is
named for the rows it takes, and nothing in the package calls it.
Tests: ``tests/training/test_sklearn.py``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from expost.errors import InvalidInput, MissingExtra
from expost.sklearn._linear_model import DPLinearModel

try:
    from sklearn.base import clone, is_regressor
    from sklearn.linear_model import LinearRegression, LogisticRegression
    from sklearn.model_selection import train_test_split
except ImportError:
    raise MissingExtra("scikit-learn", "sklearn") from None


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
