"""Scores of estimators in ExPostSearch: what ``predict`` returns, as the metrics of tuning take it.

The metrics, their sensitivity and their noise are tested in test_metrics.py and test_scoring.py.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sklearn")

from sklearn import metrics
from sklearn.base import BaseEstimator

from expost import ZCDP, PureDP, SimulationRandomness
from expost.errors import InvalidInput
from expost.sklearn import DPLinearRegression, DPLogisticRegression, ExPostSearch
from expost.sklearn._plan import FitAndScore, scored
from expost.tuning.model.scoring import Score
from expost.tuning.request.factories import name_of
from expost.tuning.request.metrics import RowFunction
from expost.tuning.request.settings import GoalSettings


def agree(prediction: Any, truth: Any) -> float:
    return float(prediction == truth)


class Says(BaseEstimator):  # type: ignore[misc]
    """Predicts its input, or the class at its place; raises on 13."""

    def __init__(self, labels: Any = None, column: bool = False) -> None:
        self.labels, self.column = labels, column

    def fit(self, X: Any, y: Any) -> Any:
        return self

    @property
    def classes_(self) -> Any:
        return np.array(self.labels)

    def predict(self, X: Any) -> Any:
        if (X == 13).any():
            raise ValueError("13")
        said = X[:, 0] if self.labels is None else self.classes_[(X[:, 0] > 0.5).astype(int)]
        return said[:, None] if self.column else said

    def predict_proba(self, X: Any) -> Any:
        return np.column_stack([1 - X[:, 0], X[:, 0]])


AB = ("a", "b")
GOALS: dict[str, tuple[GoalSettings, Any]] = {
    "accuracy": (GoalSettings("accuracy", 0.8), AB),
    "shares": (GoalSettings("balanced_accuracy", 0.8, class_shares=(0.1, 0.9)), AB),
    "log_loss": (GoalSettings("log_loss", 0.5, 3.0), AB),
    "function": (
        GoalSettings("f", 0.5, metric_bounds=(0.0, 2.0), function=RowFunction("f", given=agree)),
        AB,
    ),
    "mse": (GoalSettings("mse", 4.0, 25.0), None),
    "mae": (GoalSettings("mae", 2.0, 5.0), None),
    "r2": (GoalSettings("r2", 0.2, 25.0, target_variance=2.0), None),
}


def mechanism(name: str, guarantee: Any = None, rows: int = 7, column: bool = False) -> FitAndScore:
    goal, labels = GOALS[name]
    promised = PureDP(0.5, "zero-out") if guarantee is None else guarantee
    score, kept = scored(goal, promised, None, centred=promised.neighbours == "add-remove")
    shares = tuple(labels) if name == "shares" else ()
    return FitAndScore(Says(labels, column), score, kept, rows, shares)


@pytest.mark.parametrize("name", GOALS)
@pytest.mark.parametrize("relation", ["zero-out", "add-remove", "replace"])
def test_one_row_changes_the_sum_by_at_most_the_sensitivity(name: str, relation: str) -> None:
    """Every value that a row may have, present against absent and against every other."""
    call = mechanism(name, PureDP(0.5, relation))
    X = np.array([[0.0], [1.0], [2.5], [1e300], [-np.inf], [np.nan], [13.0]])
    y: Any = np.array([0.0, 0.0, 5.0, -7.0, 1.0, np.nan, 1.0])
    if GOALS[name][1] is not None:
        y = np.array(["a", "a", "b", "a", "c", "", "b"])
    whole = call.total(call.estimator, X, y)
    alone = [call.total(call.estimator, X[[row]], y[[row]]) for row in range(len(y))]
    assert whole == sum(alone)
    if relation == "replace":
        assert max(alone) - min(alone) <= call.score.sensitivity
    assert 0 < max(map(abs, alone)) <= call.score.sensitivity
    assert call.total(call.estimator, X[:0], y[:0]) == 0


@pytest.mark.parametrize("name", GOALS)
@pytest.mark.parametrize("column", [False, True])
def test_the_score_is_that_of_scikit_learn(name: str, column: bool) -> None:
    generator = np.random.default_rng(3)
    call = mechanism(name, rows=400, column=column)
    if GOALS[name][1] is None:
        X, y = generator.integers(0, 6, (400, 1)) * 1.0, generator.integers(0, 6, 400) * 1.0
    else:
        X = generator.uniform(0.1, 0.9, (400, 1))
        y = np.where(generator.random(400) < 0.9, "b", "a")
        y[:40], y[40:] = "a", "b"  # as stated
    guess = call.estimator.predict(X).reshape(-1)
    wanted = {
        "accuracy": lambda: metrics.accuracy_score(y, guess),
        "shares": lambda: metrics.balanced_accuracy_score(y, guess),
        "log_loss": lambda: -metrics.log_loss(y, call.estimator.predict_proba(X)),
        "function": lambda: np.mean(guess == y),
        "mse": lambda: -metrics.mean_squared_error(y, guess),
        "mae": lambda: -metrics.mean_absolute_error(y, guess),
        "r2": lambda: 1 - metrics.mean_squared_error(y, guess) / 2,
    }[name]()
    total = call.total(call.estimator, X, y)
    assert call.score.of_sum(total, 400) == pytest.approx(wanted, abs=2e-3)


def test_another_shape_is_worth_nothing() -> None:
    """It would be broadcast: one row would change n − 1 of the n² values."""

    class Square(Says):
        def predict(self, X: Any) -> Any:
            return np.column_stack([X[:, 0], X[:, 0]])

    call = mechanism("mse", rows=4)
    X, y = np.zeros((4, 1)), np.zeros(4)
    assert call.total(Square(), X, y) == 4 * -call.score.centre


@pytest.mark.parametrize("guarantee", [PureDP(0.5, "zero-out"), ZCDP(0.125, "zero-out")])
def test_noise_is_halved_and_is_what_is_stated(guarantee: Any) -> None:
    """Laplace noise of scale ½/(εn); Gaussian noise of deviation ½/(√(2ρ)·n)."""
    y = np.full(50, "a")
    data = {"fit_X": y, "fit_y": y, "rate_X": np.zeros((50, 1)), "rate_y": y}
    call, source = mechanism("accuracy", guarantee, rows=50), SimulationRandomness(1)
    runs = [call(data, source) for _ in range(1500)]
    pure = isinstance(guarantee, PureDP)
    assert runs[0].deviation == pytest.approx(1 / 50)
    assert (runs[0].law == "laplace") == pure
    spread = runs[0].deviation * (np.sqrt(2) if pure else 1)
    assert np.std([run.score for run in runs]) == pytest.approx(spread, rel=0.12)
    assert np.mean([run.score for run in runs]) == pytest.approx(1, abs=0.004)


@pytest.mark.parametrize("present", [30, 50, 90])
def test_centred_at_the_goal_the_number_of_rows_does_not_matter(present: int) -> None:
    """The sum is positive iff the accuracy of the rows that are there is above the goal."""
    call = mechanism("accuracy", PureDP(0.5), rows=50)
    for right in (0.7, 0.9):
        y = np.full(present, "a")
        X = np.where(np.arange(present) < right * present, 0.0, 1.0)[:, None]
        assert (call.total(call.estimator, X, y) > 0) == (right > 0.8)


def test_a_public_score_is_exact() -> None:
    call = FitAndScore(Says(AB), Score(GOALS["accuracy"][0], None), PureDP(1), 0, (), lambda _: 0.7)
    fitted = call({"fit_X": None, "fit_y": None}, SimulationRandomness(1))
    assert (fitted.score, fitted.deviation, fitted.unit) == (0.7, 0.0, 0.0)


CLASSIFIER = DPLogisticRegression(classes=["no", "yes"], feature_bounds=(0, 8), delta=1e-5)
REGRESSOR = DPLinearRegression(feature_bounds=(0, 8), target_bounds=(-1, 2), delta=1e-5)


@pytest.mark.parametrize(
    ("scoring", "regressor", "facts", "match"),
    [
        ("roc_auc", False, {}, "accuracy, balanced_accuracy, log_loss"),
        ("accuracy", True, {}, "mae, mse, r2"),
        ("balanced_accuracy", False, {}, "class_shares"),
        ("balanced_accuracy", False, {"class_shares": {"no": 0.5, "yes": 0.6}}, "sum to 1"),
        ("balanced_accuracy", False, {"class_shares": {"no": 0.5, "other": 0.5}}, "each class"),
        ("log_loss", False, {"loss_bound": -1}, "loss_bound"),
        ("accuracy", False, {"loss_bound": 1.0}, "loss_bound"),
        ("r2", True, {}, "target_variance"),
        (agree, False, {"metric_bounds": (1, 0)}, "low < high"),
        ("accuracy", False, {"metric_bounds": (0, 1)}, "metric_bounds"),
        ("mse", True, {"at_least": None, "at_most": 99.0}, "at_most"),
        ("accuracy", False, {"at_most": 0.5}, "exactly one"),
        (lambda fitted: 1.0, False, {"at_least": None, "at_most": 0.5}, "larger if better"),
    ],
)
def test_refusals(scoring: Any, regressor: bool, facts: dict[str, Any], match: str) -> None:
    goal = {"at_least": -0.5 if regressor and scoring != "r2" else 0.5}
    search = ExPostSearch(REGRESSOR if regressor else CLASSIFIER, scoring=scoring, **(goal | facts))
    X, y = np.zeros((40, 1)), np.zeros(40) if regressor else np.full(40, "no")
    with pytest.raises(InvalidInput, match=match):
        search.fit(X, y)


@pytest.mark.parametrize(
    ("scoring", "facts", "words", "ends"),
    [
        ("private", {}, "accuracy", [0, 1]),
        (
            "balanced_accuracy",
            {"class_shares": {"yes": 0.1, "no": 0.9}},
            "accuracy weighted by the stated class shares (0.9, 0.1)",
            [0, 1],
        ),
        (
            "neg_log_loss",
            {"at_least": -0.9, "loss_bound": 2},
            "log_loss (clipped at 2 per row)",
            [0, 2],
        ),
        ("log_loss", {"at_most": 0.9}, "log_loss (clipped at 4 per row)", [0, 4]),
        ("private", {"at_least": -2.0}, "mse (clipped at 2.25 per row)", [0, 2.25]),
        ("mse", {"at_most": 3.0}, "mse (clipped at 9 per row)", [0, 9]),
        ("mae", {"at_most": 1.0}, "mae (clipped at 1.5 per row)", [0, 1.5]),
        (
            "r2",
            {"at_least": 0.1, "target_variance": 9},
            "r2 (by the stated variance 9, each row's squared error clipped at 2.25)",
            [0.75, 1],
        ),
        (
            agree,
            {"metric_bounds": (0, 5)},
            f"{name_of(agree)} (clipped to 0 … 5 per row)",
            [0, 5],
        ),
    ],
)
def test_what_is_certified_is_named(
    scoring: Any, facts: Any, words: str, ends: list[float]
) -> None:
    """Catches a stated share, variance or bound that the name of a score does not mention."""
    regression = any(name in words for name in ("mse", "mae", "r2"))
    facts = facts if "at_most" in facts else {"at_least": 0.8} | facts
    if scoring == "r2":
        facts["at_least"] = 0.8
    search = ExPostSearch(REGRESSOR if regression else CLASSIFIER, scoring=scoring, **facts)
    generator = np.random.default_rng(2)
    truth = generator.integers(0, 2, 3000)
    X = truth[:, None] * 4.0 + generator.normal(2, 0.5, (3000, 1))
    y: Any = truth * 1.0 if regression else np.where(truth == 1, "yes", "no")
    found = search.fit(X, y)
    goal = json.loads(found.certificate())["tuning"]["goal"]
    assert goal["certified"] == words
    assert goal["range"] == ends
    assert found.passed_
    assert found.best_score_ >= found.score_bound_
    larger = goal["larger_is_better"]
    assert found.score_bound_ >= (goal["value"] if larger else -goal["value"])
