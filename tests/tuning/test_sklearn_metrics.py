"""The metrics of ExPostSearch: bounded values per row, against scikit-learn, and refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("sklearn")

from sklearn import metrics

from expost.errors import InvalidInput
from expost.sklearn import DPLinearRegression, DPLogisticRegression, ExPostSearch
from expost.sklearn._metrics import REGRESSION, read_metric
from expost.sklearn._scoring import _STEPS, RowScore
from expost.tuning.factories import name_of

NONE = dict.fromkeys(("class_shares", "loss_bound", "target_variance", "metric_bounds"))


class Fixed:
    """Predictions that are given with the rows."""

    classes_ = np.array(["a", "b"])

    def predict(self, X: Any) -> Any:
        return self.classes_[(X[:, 0] > 0.5).astype(int)]

    def predict_proba(self, X: Any) -> Any:
        return np.column_stack([1 - X[:, 0], X[:, 0]])


class Numbers:
    def predict(self, X: Any) -> Any:
        return X[:, 0]


def score(scoring: Any, regressor: bool, **facts: Any) -> RowScore:
    read = read_metric(scoring, regressor, NONE | facts)
    assert read is not None
    return RowScore.of(read[0], (0.0, 2.0) if regressor else None, 200, None, read[1])


def mean(row_score: RowScore, fitted: Any, X: Any, y: Any) -> float:
    return row_score.centre + row_score.total(fitted, X, y) * row_score.step / len(y)


def test_classifiers_agree_with_scikit_learn() -> None:
    generator = np.random.default_rng(0)
    X = generator.random((200, 1))
    y = np.where(generator.random(200) < X[:, 0], "b", "a")
    share = float(np.mean(y == "a"))
    fitted = Fixed()
    found = mean(
        score("balanced_accuracy", False, class_shares={"a": share, "b": 1 - share}), fitted, X, y
    )
    wanted = metrics.balanced_accuracy_score(y, fitted.predict(X))
    assert found == pytest.approx(wanted, abs=1e-4)
    found = mean(score("neg_log_loss", False, loss_bound=50.0), fitted, X, y)
    assert found == pytest.approx(-metrics.log_loss(y, fitted.predict_proba(X)), abs=2e-3)
    same = score(lambda p, t: float(p == t), False, metric_bounds=(0, 1))
    assert mean(same, fitted, X, y) == pytest.approx(np.mean(fitted.predict(X) == y), abs=1e-4)


def test_r2_agrees_with_scikit_learn() -> None:
    generator = np.random.default_rng(1)
    y = generator.uniform(0, 2, 200)
    X = np.clip(y + generator.normal(0, 0.2, 200), 0, 2)[:, None]
    found = mean(score("r2", True, target_variance=float(np.var(y))), Numbers(), X, y)
    assert found == pytest.approx(metrics.r2_score(y, X[:, 0]), abs=1e-3)


@pytest.mark.parametrize(
    ("scoring", "facts", "labels"),
    [
        ("balanced_accuracy", {"class_shares": {"a": 0.1, "b": 0.9}}, ["a", "b", "c", ""]),
        ("neg_log_loss", {"loss_bound": 3.0}, ["a", "b", "c", ""]),
        (lambda p, t: {"a": 1e300, "b": -5.0}[t], {"metric_bounds": (-1, 1)}, ["a", "b", "c"]),
        ("r2", {"target_variance": 0.01}, [0.0, 2.0, 1e300, np.nan, -np.inf]),
    ],
)
def test_hostile_rows_move_the_sum_by_at_most_the_sensitivity(
    scoring: Any, facts: dict[str, Any], labels: list[Any]
) -> None:
    regressor = scoring == "r2"
    fitted: Any = Numbers() if regressor else Fixed()
    found = score(scoring, regressor, **facts)
    base_X = np.array([[0.2], [0.9]])
    base_y = np.array([1.0, 0.5]) if regressor else np.array(["a", "b"])
    base = found.total(fitted, base_X, base_y)
    moved = []
    for value in (0.0, 1.0, 0.4, np.nan, np.inf, -1e300):
        for label in labels:
            total = found.total(fitted, np.vstack([base_X, [[value]]]), np.append(base_y, label))
            moved.append(abs(total - base))
    assert 0 < max(moved) <= found.sensitivity("add-remove") <= _STEPS


@pytest.mark.parametrize(
    ("scoring", "regressor", "facts", "match"),
    [
        ("roc_auc", False, {}, "accuracy, balanced_accuracy, neg_log_loss"),
        ("accuracy", True, {}, "neg_mean_squared_error"),
        ("mse", True, {}, "neg_mean_squared_error"),
        ("balanced_accuracy", False, {}, "class_shares"),
        ("balanced_accuracy", False, {"class_shares": {"a": 0.5, "b": 0.6}}, "sum to 1"),
        ("neg_log_loss", False, {}, "loss_bound"),
        ("neg_log_loss", False, {"loss_bound": -1}, "loss_bound"),
        ("accuracy", False, {"loss_bound": 1.0}, "neg_log_loss"),
        ("r2", True, {}, "target_variance"),
        (len, False, {"metric_bounds": (1, 0)}, "low < high"),
        ("accuracy", False, {"metric_bounds": (0, 1)}, "metric_bounds"),
    ],
)
def test_refusals(scoring: Any, regressor: bool, facts: dict[str, Any], match: str) -> None:
    with pytest.raises(InvalidInput, match=match):
        read_metric(scoring, regressor, NONE | facts)


def test_a_search_is_scored_by_them() -> None:
    generator = np.random.default_rng(2)
    y = generator.integers(0, 2, 800)
    X = y[:, None] * 4.0 + generator.normal(2, 1, (800, 1))
    model = DPLogisticRegression(classes=[0, 1], feature_bounds=(0, 8), delta=1e-5, epochs=5)
    for scoring, target, facts in (
        ("balanced_accuracy", 0.7, {"class_shares": {0: 0.5, 1: 0.5}}),
        ("neg_log_loss", -0.6, {"loss_bound": 2.0}),
        (agree, 0.7, {"metric_bounds": (0, 1)}),
    ):
        found = ExPostSearch(
            model,
            {"learning_rate": [4.0]},
            epsilons=[4.0],
            scoring=scoring,
            target=target,
            **facts,
        ).fit(X, y)
        assert not found.passed_ or found.best_score_ >= found.score_bound_ >= target
    linear = DPLinearRegression(feature_bounds=(0, 8), target_bounds=(0, 1), delta=1e-5)
    found = ExPostSearch(
        linear, training="noise-reduction", scoring="r2", target_variance=0.25, target=-0.2
    ).fit(X, y)
    assert found.passed_
    assert found.best_score_ >= found.score_bound_ >= -0.2


def agree(prediction: Any, truth: Any) -> float:
    return float(prediction == truth)


@pytest.mark.parametrize(
    ("metric", "facts", "words", "ends"),
    [
        ("accuracy", {}, "accuracy", [0, 1]),
        (
            "balanced_accuracy",
            {"class_shares": {"no": 0.9, "yes": 0.1}},
            "accuracy weighted by the stated class shares (no: 0.9, yes: 0.1)",
            [0, 1],
        ),
        ("neg_log_loss", {"loss_bound": 2}, "neg_log_loss (each row's clipped to -2 … 0)", [-2, 0]),
        (
            "neg_mean_squared_error",
            {},
            "neg_mean_squared_error (target and prediction clipped to -1 … 2)",
            [-9, 0],
        ),
        (
            "neg_mean_absolute_error",
            {},
            "neg_mean_absolute_error (target and prediction clipped to -1 … 2)",
            [-3, 0],
        ),
        (
            "r2",
            {"target_variance": 9},
            "r2 (target and prediction clipped to -1 … 2, by the stated variance 9)",
            [0, 1],
        ),
        (
            agree,
            {"metric_bounds": (0, 5)},
            f"{name_of(agree)} (each row's clipped to 0 … 5)",
            [0, 5],
        ),
    ],
)
def test_what_is_certified_is_named(metric: Any, facts: Any, words: str, ends: list[float]) -> None:
    """Catches a stated share, variance or bound that the name of a score does not mention."""
    if metric in REGRESSION:
        model: Any = DPLinearRegression(feature_bounds=(0, 8), target_bounds=(-1, 2))
    else:
        model = DPLogisticRegression(classes=["no", "yes"], feature_bounds=(0, 8))
    search = ExPostSearch(model, {"learning_rate": [4.0]}, scoring=metric, target=0.5, **facts)
    record = search._described()
    assert record["range"] == ends
    assert record["certified"] == words
