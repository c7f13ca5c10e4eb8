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

from expost import (
    FAILED,
    ApproxDP,
    Candidate,
    DiscreteLaplace,
    PureDP,
    Query,
    RandomDropping,
    Randomness,
)
from expost.audit import audit
from expost.sklearn import DPLinearRegression, DPLogisticRegression, ExPostSearch
from expost.sklearn._plan import FitAndScore, _parts, scored
from expost.sklearn._rows import inside_selection
from expost.training import configuration as training_data
from expost.tuning.request.settings import GoalSettings
from expost.tuning.rows.job_rows import held_out
from expost.tuning.runs.run_attempts import ClearedScore
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


class Majority(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Predicts the noisy majority of the labels 0 and 1: ε-DP under add-remove neighbours."""

    def __init__(self, epsilon: float = 1.0) -> None:
        self.epsilon = epsilon

    def fit(self, X: Any, y: Any) -> Majority:
        noise = DiscreteLaplace(Query(lambda data: int((2 * data - 1).sum())), self.epsilon)
        self.label_ = int(float(noise(np.asarray(y, dtype=int), Randomness())) > 0)
        return self

    def predict(self, X: Any) -> Any:
        return np.full(len(X), self.label_)


def majority(rows: Any, **changes: Any) -> Any:
    """The release of a search whose split is by position, or by coins with ``n_rows``."""
    X, y = rows
    search = ExPostSearch(
        Majority(), {}, epsilons=[0.4], guarantee=lambda each: PureDP(each.epsilon), **changes
    )
    return search.set_params(holdout=0.5, repeats=4, overhead=0.5).fit(X, y).release_


EVERYBODY = (np.zeros((40, 1)), np.arange(40) % 2)
WITHOUT_ROW_0 = (EVERYBODY[0][1:], EVERYBODY[1][1:])


def label(value: Any) -> bool:
    """What an attacker looks at: the label that the released model predicts."""
    return getattr(getattr(value, "estimator", None), "label_", None) == 1


def test_row_0_removed_from_a_search_with_a_public_number_of_rows():
    """Coins send rows to training or scoring, so nobody moves with row 0: add-remove holds."""
    release = majority(EVERYBODY, n_rows=40)
    assert release.spent.neighbours == "add-remove"
    within_claim(
        lambda rows, randomness: majority(rows, n_rows=40),
        EVERYBODY,
        WITHOUT_ROW_0,
        runs=120,
        events=label,
        simulation_seed=None,
    )


def test_row_0_removed_moves_many_in_a_split_by_position():
    """The attack works, which is why this search claims zero-out neighbours only.

    Rows that train only while row 0 is there have label 0, those that train only without it 1.
    """
    with_row_0, without = held_out(40, 0.5), np.append(False, held_out(39, 0.5))
    y = np.where(with_row_0 == without, np.arange(40) % 2, with_row_0)
    assert majority(EVERYBODY).spent.neighbours == "zero-out"
    report = audit(
        lambda rows, randomness: majority(rows),
        (EVERYBODY[0], y),
        (EVERYBODY[0][1:], y[1:]),
        runs=120,
        confidence=0.999,
        events=label,
        simulation_seed=None,
    )
    assert report.violated


def test_an_empty_place_in_a_split_by_position():
    """The stated relation: row 0's place is empty, and the others stay where they are."""
    rows = _parts(*EVERYBODY, held_out(40, 0.5))
    emptied = {**rows, "fit_X": rows["fit_X"][1:], "fit_y": rows["fit_y"][1:]}
    assert len(emptied["fit_y"]) == 19
    goal = GoalSettings("accuracy", None)
    score, kept = scored(goal, PureDP(0.4, "zero-out"), None, centred=False)
    listed = [Candidate(FitAndScore(Majority(0.4), score, kept, 20), {}, repeats=4)]
    within_claim(
        lambda data, randomness: RandomDropping(0.2).select(
            listed, data, score=ClearedScore(None, 0)
        ),
        rows,
        emptied,
        runs=120,
        events=label,
        simulation_seed=None,
    )
