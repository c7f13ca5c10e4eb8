"""ExPostSearch and the private estimators with hostile rows and hostile estimators."""

from __future__ import annotations

import math
import random
import warnings
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sklearn")

from sklearn.base import BaseEstimator, ClassifierMixin

from expost import FAILED, ApproxDP, PureDP
from expost.sklearn import DPLinearRegression, DPLogisticRegression, ExPostSearch
from expost.sklearn._rows import inside_selection
from expost.training import data as training_data
from tests.hostile.acts import FAILURES, SECRET
from tests.hostile.judge import within_claim

rows_may_be_unusable = pytest.mark.skipif(
    not hasattr(training_data, "check_training_data"),
    reason="the training refuses rows that it cannot use",
)
ROWS = np.linspace(0, 1, 12).reshape(6, 2)
LABELS = np.array([0, 1, 0, 1, 0, 1])
PAIRS = {
    "NaN": (np.vstack([ROWS[:-1], [[np.nan, 0.5]]]), LABELS),
    "infinity": (np.vstack([ROWS[:-1], [[np.inf, -np.inf]]]), LABELS),
    "huge": (np.vstack([ROWS[:-1], [[1e308, -1e308]]]), LABELS),
    "the only row of a class": (ROWS, np.array([0, 0, 0, 0, 0, 1])),
    "a label outside": (ROWS, np.array([0, 1, 0, 1, 0, 7])),
    "a text label": (ROWS, np.array([0, 1, 0, 1, 0, SECRET], dtype=object)),
    "a text feature": (np.array([*map(list, ROWS[:-1]), [SECRET, 0.5]], dtype=object), LABELS),
}


@rows_may_be_unusable
@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("model", ["logistic", "linear"])
def test_estimators_on_hostile_rows(name, model):
    """Inside a selection nothing is refused because of a value, and the claim is kept.

    At its own door ``fit`` refuses gaps and unknown labels, for the curator and before anything is
    spent (``tests/training/test_sklearn.py``).
    """
    claim = ApproxDP(0.5, 1e-3, "zero-out")
    settings = {"epsilon": 0.5, "delta": 1e-3, "feature_bounds": (0, 1), "epochs": 2}

    def fit(rows: Any, randomness: Any) -> float:
        estimator: Any = (
            DPLogisticRegression(classes=[0, 1], **settings)
            if model == "logistic"
            else DPLinearRegression(target_bounds=(0, 1), **settings)
        )
        with inside_selection():
            return float(np.ravel(estimator.fit(*rows).coef_)[0])

    hostile = PAIRS[name]
    base = (ROWS, np.array([0] * 6)) if name == "the only row of a class" else (ROWS, LABELS)
    fit(hostile, None)  # an exception would end the test
    within_claim(fit, base, hostile, claim=claim, runs=60, simulation_seed=None)


class HostileFit(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Commits its act with probability 0.8 or 0.2, as a row says: ln 4-DP."""

    def __init__(self, act: str = "raises", epsilon: float = 1.0) -> None:
        self.act, self.epsilon = act, epsilon

    def fit(self, X: Any, y: Any) -> HostileFit:
        if random.SystemRandom().random() < (0.8 if np.max(X) > 0.5 else 0.2):
            FAILURES[self.act]()
            raise ValueError(SECRET)
        self.classes_ = np.array([0, 1])
        return self

    def predict(self, X: Any) -> Any:
        return np.zeros(len(X))


@pytest.mark.parametrize("act", FAILURES)
def test_a_search_over_estimators_that_fail(act):
    """A failure is released at the price of the estimator that failed, whatever it raises."""

    def request(rows: Any, randomness: Any) -> Any:
        search = ExPostSearch(
            HostileFit(act),
            {"epsilon": [1.0, 2.0]},
            guarantee=lambda _: PureDP(math.log(4)),
            scoring=lambda fitted: fitted.epsilon,
            overhead=0.5,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return search.fit(rows, LABELS).release_

    within_claim(
        request,
        np.zeros((6, 2)),
        np.vstack([np.zeros((5, 2)), [[1.0, 1.0]]]),
        runs=80,
        events=lambda value: value is FAILED,
        simulation_seed=None,
    )
