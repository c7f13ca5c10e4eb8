"""The private score of ExPostSearch: its sensitivity, its mean, its noise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("sklearn")

from sklearn.base import BaseEstimator

from expost import PureDP, SimulationRandomness
from expost.sklearn._metrics import REGRESSION, Facts
from expost.sklearn._scoring import FitAndScore, RowScore


class Says(BaseEstimator):  # type: ignore[misc]
    """Predicts its input; raises on 13."""

    def fit(self, X: Any, y: Any) -> Any:
        return self

    def predict(self, X: Any) -> Any:
        if (X == 13).any():
            raise ValueError("13")
        return X[:, 0]


METRICS = ["accuracy", *REGRESSION]


def scored(metric: str, rows: float, centre: float | None = None) -> RowScore:
    facts = Facts(target_variance=2.0 if metric == "r2" else None)
    return RowScore.of(metric, None if metric == "accuracy" else (0.0, 5.0), rows, centre, facts)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("centre", [None, -3.0, 0.8])
def test_one_row_changes_the_sum_by_at_most_the_sensitivity(
    metric: str, centre: float | None
) -> None:
    """Law: every value a row may have, present against absent and against every other."""
    score = scored(metric, 4, centre)
    X = np.array([[0.0], [1.0], [2.5], [1e300], [-np.inf], [np.nan], [13.0]])
    y = np.array([0.0, 0.0, 5.0, -7.0, 1.0, 1.0, 1.0])
    whole = score.total(Says(), X, y)
    alone = [score.total(Says(), X[[k]], y[[k]]) for k in range(len(y))]
    assert whole == sum(alone)
    assert max(map(abs, alone)) <= score.sensitivity("add-remove") == score.sensitivity("zero-out")
    assert max(alone) - min(alone) <= score.sensitivity("replace")
    if metric == "accuracy":
        assert max(map(abs, alone)) == score.sensitivity("add-remove")
    assert score.total(Says(), X[:0], y[:0]) == 0


@pytest.mark.parametrize("metric", METRICS)
def test_the_score_is_the_mean(metric: str) -> None:
    generator = np.random.default_rng(3)
    X, y = generator.integers(0, 6, (400, 1)).astype(float), generator.integers(0, 6, 400) * 1.0
    errors = X[:, 0] - y
    mean = {
        "accuracy": np.mean(errors == 0),
        REGRESSION[0]: -np.mean(errors**2),
        REGRESSION[1]: -np.mean(abs(errors)),
        "r2": 1 - np.mean(errors**2) / 2,
    }[metric]
    score = scored(metric, 400)
    assert score.centre + score.total(Says(), X, y) * score.step / 400 == pytest.approx(
        mean, abs=2 * score.step
    )


def test_noise_is_halved_and_is_what_is_stated() -> None:
    """The standard deviation of the released scores is that of Laplace noise of scale ½/(εn)."""
    y = np.zeros(50)
    mechanism = FitAndScore(Says(), scored("accuracy", 50), PureDP(0.5, "zero-out"))
    data = {"train_X": y, "train_y": y, "score_X": y[:, None], "score_y": y}
    source = SimulationRandomness(1)
    runs = [mechanism(data, source) for _ in range(2000)]
    assert runs[0].deviation == pytest.approx(0.5 / (0.5 * 50))
    assert np.std([each.score for each in runs]) == pytest.approx(
        np.sqrt(2) * runs[0].deviation, rel=0.12
    )
    assert np.mean([each.score for each in runs]) == pytest.approx(1, abs=0.003)


@pytest.mark.parametrize("present", [30, 50, 90])
def test_with_a_target_as_centre_the_number_of_rows_does_not_matter(present: int) -> None:
    """The sum is positive iff the accuracy of the rows that are there is above the target."""
    score = scored("accuracy", 50, 0.8)
    for right in (0.7, 0.9):
        y = np.zeros(present)
        X = np.where(np.arange(present) < right * present, 0.0, 1.0)[:, None]
        assert (score.total(Says(), X, y) > 0) == (right > 0.8)
