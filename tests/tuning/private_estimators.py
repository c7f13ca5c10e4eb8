"""A small private classifier for tests of the search: noisy class sums, nearest mean.

Features are in [0, 1].
"""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin

from expost import ZCDP, PureDP


class NearestNoisyMean(ClassifierMixin, BaseEstimator):
    """ε-DP under add-remove neighbours.

    A row changes one class's sums by at most ``features`` in ℓ1 and its count by 1.
    """

    def __init__(
        self, epsilon: float = 1.0, shrink: float = 0.0, random_state: int | None = None
    ) -> None:
        self.epsilon = epsilon
        self.shrink = shrink
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> NearestNoisyMean:
        generator = np.random.default_rng(self.random_state)
        self.classes_ = np.array([0, 1])
        scale = (X.shape[1] + 1) / self.epsilon
        rows = [
            np.append(np.clip(X[y == label], 0, 1).sum(axis=0), (y == label).sum())
            for label in self.classes_
        ]
        noisy = np.array(rows) + generator.laplace(0, scale, (2, X.shape[1] + 1))
        self.means_ = (noisy[:, :-1] + self.shrink) / np.maximum(1, noisy[:, -1:] + 2 * self.shrink)
        return self

    def predict(self, X: Any) -> Any:
        if not np.isfinite(X).all():
            raise ValueError("NaN")
        return ((X[:, None, :] - self.means_[None]) ** 2).sum(axis=2).argmin(axis=1)


class SelfDescribing(NearestNoisyMean):
    """The same with a guarantee of its own."""

    def privacy_guarantee(self, n: int) -> Any:
        assert n > 0
        return PureDP(self.epsilon)


class Failing(SelfDescribing):
    def fit(self, X: Any, y: Any) -> Failing:
        raise RuntimeError("no")


def pure(estimator: Any) -> PureDP:
    return PureDP(estimator.epsilon)


def concentrated(estimator: Any) -> ZCDP:
    return PureDP(estimator.epsilon).to_zcdp()


class Accountant:
    """An accountant in the object, as diffprivlib's BudgetAccountant: copies count separately."""

    def __init__(self) -> None:
        self.spent: list[float] = []


class Accounted(NearestNoisyMean):
    """A classifier that charges an accountant it was given."""

    def __init__(self, epsilon: float = 1.0, shrink: float = 0.0, accountant: Any = None) -> None:
        super().__init__(epsilon, shrink)
        self.accountant = accountant

    def fit(self, X: Any, y: Any) -> Accounted:
        super().fit(X, y)
        self.accountant.spent.append(self.epsilon)
        return self

    random_state: int | None = None
