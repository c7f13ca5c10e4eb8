"""Jobs that stop when they pass: cost, confidence, hostile rows, second moments, resuming."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import expost
from expost.budget.budgets import ApproxBudget
from expost.budget.ledger import Ledger
from expost.errors import InvalidInput
from expost.features.columns import Column, TableSchema
from expost.privacy.guarantees import ADD_REMOVE, ZERO_OUT
from expost.randomness.source import SimulationRandomness
from expost.selection.noise_path import NoisePath, PathLevel
from expost.tuning.model.released_model import Recipe
from expost.tuning.model.scoring import Score
from expost.tuning.request.settings import GoalSettings
from expost.tuning.rows.job_columns import features_for
from expost.tuning.runs.candidates import ScoredModel
from expost.tuning.runs.path_training import (
    MOMENTS,
    PROGRESSIVE,
    HeldOutCount,
    Places,
    Strategy,
    step_of,
)


def blobs(rows: int = 1500, seed: int = 0, classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    y = generator.integers(0, classes, rows)
    centres = np.eye(classes, 5) * 6 + 2
    X = np.clip(centres[y] + generator.normal(size=(rows, 5)), 0, 10)
    return X, y


def job(**changes: Any) -> dict[str, Any]:
    tables: dict[str, dict[str, Any]] = {
        "data": {"feature_bounds": [0, 10], "classes": 3, "holdout": 0.2},
        "model": {"kind": "softmax", "training": "progressive"},
        "goal": {"metric": "accuracy", "at_least": 0.8},
        "privacy": {"delta": 1e-5},
    }
    for name, value in changes.items():
        table, _, key = name.partition("__")
        tables[table][key] = value
    return tables


def run(tables: dict[str, Any], seed: int = 1, **more: Any) -> Any:
    X, y = blobs()
    source: dict[str, Any] = {"randomness": SimulationRandomness(seed), "simulation": True}
    return expost.tune(tables, X, y, **source, **more)


def test_a_job_without_search_pays_one_level() -> None:
    plans: list[Any] = []
    result = run(job(), before=plans.append)
    assert result.passed
    assert result.spent.epsilon == result.params["epsilon"]
    assert result.spent.delta == 1e-5
    assert len(result.attempts) == 1
    assert plans[0].worst_case.epsilon == 4.0
    assert "noisy counts" in " ".join(plans[0].reasons)
    X, y = blobs(seed=5)
    assert np.mean(result.model.predict(X) == y) > 0.7
    assert result.bounds.on_scoring_rows >= 0.8
    assert result.bounds.on_population < result.bounds.on_scoring_rows
    record = json.loads(result.certificate())
    assert record["score"] == result.bounds.on_scoring_rows  # not by how much a count passed
    assert record["spent"]["epsilon"] == result.spent.epsilon
    assert "fresh noise on held-out counts" in record["theorem"]
    assert "noisy counts" in record["tuning"]["scoring"]
    assert "DP-SGD" not in record["tuning"]["scoring"]
    assert record["tuning"]["score_noise"] is None


def test_public_rows_score_exactly(tmp_path: Path) -> None:
    X, y = blobs(400, seed=9)
    np.savez(tmp_path / "test.npz", X=X, y=y)
    tables = job(privacy__scoring="public", data__public_test=str(tmp_path / "test.npz"))
    del tables["data"]["holdout"]
    result = run(tables)
    assert result.passed
    assert result.score == pytest.approx(np.mean(result.model.predict(X) == y))
    assert result.score >= 0.8
    assert result.bounds.on_scoring_rows == result.score


def test_regression_by_second_moments() -> None:
    generator = np.random.default_rng(3)
    X = generator.random((3000, 4)) * 10
    y = X @ [0.3, 0.2, 0.0, -0.1] + 2 + generator.normal(size=3000) * 0.1
    result = expost.tune(
        {
            "data": {"feature_bounds": [0, 10], "target_bounds": [0, 8], "holdout": 0.2},
            "model": {"kind": "linear", "training": "noise-reduction"},
            "goal": {"metric": "mse", "at_most": 0.5, "loss_bound": 8.0},
            "privacy": {"delta": 1e-5},
        },
        X,
        y,
        randomness=SimulationRandomness(1),
        simulation=True,
    )
    assert result.passed
    assert np.mean((result.model.predict(X) - y) ** 2) < 0.6
    assert result.params["epsilon"] < 4
    assert -result.bounds.on_scoring_rows <= 0.5 + 1e-4


def test_a_missed_bar_releases_the_last_model_and_pays_its_level() -> None:
    X, y = blobs()
    shuffled = np.random.default_rng(8).permutation(y)  # nothing can be learned
    source: Any = {"randomness": SimulationRandomness(1), "simulation": True}
    result = expost.tune(job(model__levels=[0.8, 1.0]), X, shuffled, **source)
    assert not result.passed
    assert result.model is not None
    assert result.model.passed is False
    assert result.score < 0.8
    assert result.bounds.on_scoring_rows < result.score
    assert result.spent.epsilon == 2.0  # of two strategies


def recipe(loss: str = "softmax", classes: int | None = 3) -> Recipe:
    kind = "linear" if loss == "squared" else loss
    bounds = (0.0, 2.0) if loss == "squared" else None
    return Recipe(kind, loss, TableSchema(tuple(Column() for _ in range(2)), classes, bounds))


@pytest.mark.parametrize("relation", [ZERO_OUT, ADD_REMOVE])
def test_hostile_rows_move_the_statistic_by_at_most_its_sensitivity(relation: str) -> None:
    goal = GoalSettings("mse", 1.0, 4.0)
    strategy = Strategy(MOMENTS, (0.6, 1.0), 1e-5, 0.9)
    step = step_of(
        strategy, recipe("squared", None), goal, Places(20, 400, 2, relation), None, None
    )
    level = step.candidates[0].mechanism
    assert isinstance(level, PathLevel)
    path = level.path
    assert isinstance(path, NoisePath)
    generator = np.random.default_rng(2)
    X, y = generator.random((19, 2)), generator.integers(0, 2, 19).astype(float)
    base = path.values({"X": np.vstack([X, [0, 0]]), "y": np.append(y, np.nan)})
    moved = []
    for row in ([0.2, 0.9], [1e300, -1e300], [np.nan, 0.5], [np.inf, 0.5], [0.0, 0.0]):
        for target in (0.0, 1.0, 2.0, np.nan, -1.0, 1e300):
            data = {"X": np.vstack([X, row]), "y": np.append(y, target)}
            moved.append(float(np.linalg.norm(path.values(data) - base)))
    assert max(moved) <= float(path.bound)
    assert max(moved) > 0.05 * float(path.bound)
    assert min(moved) == 0


def count_of(
    relation: str, goal: GoalSettings, loss: str
) -> tuple[HeldOutCount, list[ScoredModel]]:
    made = recipe(loss, None if loss == "squared" else 3)
    outputs = 1 if loss == "squared" else 3
    generator = np.random.default_rng(0)
    models = [
        ScoredModel({"weight": generator.normal(size=(outputs, 2)), "bias": np.zeros(outputs)}, 0.0)
        for _ in range(6)
    ]
    models.append(
        ScoredModel({"weight": np.full((outputs, 2), np.nan), "bias": np.zeros(outputs)}, 0.0)
    )
    return HeldOutCount(made, Score(goal, None, centred=relation == ADD_REMOVE)), models


@pytest.mark.parametrize("loss", ["softmax", "squared"])
def test_one_person_moves_every_count_by_at_most_the_steps(loss: str) -> None:
    """Public places: 0 to ``steps``, upwards. Secret number of rows: at most ``steps``."""
    goal = GoalSettings("mse", 1.0, 4.0) if loss == "squared" else GoalSettings("accuracy", 0.7)
    generator = np.random.default_rng(1)
    X, y = generator.random((30, 2)), generator.integers(0, 2, 30).astype(float)
    for relation in (ZERO_OUT, ADD_REMOVE):
        count, models = count_of(relation, goal, loss)
        steps = count.score.sensitivity
        for row, target in (([0.5, 0.5], 1.0), ([0.0, 1.0], 0.0), ([1.0, 0.0], 2.0)):
            with_row = {"score_X": np.vstack([X, row]), "score_y": np.append(y, target)}
            without = {"score_X": X, "score_y": y}
            if relation == ZERO_OUT:  # the place is there, and empty
                without = {"score_X": np.vstack([X, [0, 0]]), "score_y": np.append(y, np.nan)}
            rises = [count(model, with_row) - count(model, without) for model in models]
            assert all(abs(rise) <= steps for rise in rises)
            if relation == ZERO_OUT:
                assert min(rises) >= 0
        assert (relation == ZERO_OUT) or min(rises) < 0


def test_passed_means_passed() -> None:
    """The goal is just above what the model can reach: wrong passes stay within 1 − confidence."""
    X, y = blobs(600, seed=2)
    goal = GoalSettings("accuracy", 0.8, None, 0.8)
    strategy = Strategy(PROGRESSIVE, (0.6, 0.8, 1.2, 2.0), 1e-5, 0.8)
    data = {"X": X[:400] / 10, "y": y[:400].astype(float)}
    data |= {"score_X": X[400:] / 10, "score_y": np.where(np.arange(200) % 5 < 1, 9, y[400:])}
    schema = TableSchema(tuple(Column() for _ in range(5)), 3)
    made = Recipe("softmax", "softmax", schema, features=features_for("auto", schema, None))
    step = step_of(strategy, made, goal, Places(400, 200, 5, ZERO_OUT), None, None)
    wrong = 0
    for seed in range(60):
        release = step.selector.select(
            step.candidates, data, randomness=SimulationRandomness(seed), simulation=True
        )
        assert isinstance(release.value, ScoredModel)
        if release.passed:
            right = made.decide(release.value.parameters, data["score_X"]) == data["score_y"]
            wrong += bool(np.mean(right) < 0.8)
            bounds = release.value.bounds
            assert bounds is not None
    assert wrong <= 0.2 * 60 + 9


def test_settings_that_do_not_fit_are_refused() -> None:
    for change, word in (
        ({"model__kind": "cnn"}, "input_shape"),
        ({"model__features": "best"}, "features"),
        ({"privacy__max_epsilon": 0}, "max_epsilon"),
        ({"model__levels": [2.0, 1.0]}, "ascending"),
        ({"model__norm_bound": 2.0}, "regression"),
        ({"model__training": "sgd"}, "training"),
        ({"model__training": "noise-reduction"}, "regressions"),
        ({"model__training": "dp-sgd"}, "search"),
        ({"model__levels": [0.02]}, "scoring rows"),
    ):
        with pytest.raises(InvalidInput, match=word):
            run(job(**change))
    tables = job()
    tables["goal"] = {"metric": "accuracy", "maximize": True}
    with pytest.raises(InvalidInput, match="stops at a goal"):
        run(tables)


def test_keywords_train_by_noise_reduction() -> None:
    X, y = blobs()
    result = expost.tune(
        X,
        X[:, 0] / 2 + y,
        at_most=2.0,
        feature_bounds=[0, 10],
        target_bounds=[0, 8],
        training="noise-reduction",
        randomness=SimulationRandomness(4),
        simulation=True,
    )
    assert result.passed
    assert set(result.params) == {"epsilon"}


def test_secret_number_of_rows() -> None:
    result = run(job(data__rows=1400))
    assert result.passed
    assert "fresh noise on held-out counts that rise and fall" in result.release.theorem


KILLED = """
import os, signal, sys
from tests.tuning.test_noise_reduction import paid_run
from expost.tuning.runs.path_training import Finish
looks = []
plain = Finish.__call__
def counted(self, *values):
    looks.append(1)
    if len(looks) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return plain(self, *values)
Finish.__call__ = counted
paid_run(sys.argv[1], sys.argv[2])
"""


def paid_run(book: str, out: str) -> Any:
    X, y = blobs()
    y = np.random.default_rng(8).permutation(y)  # no look passes; the third one kills the process
    levels = [0.6, 0.7, 0.8, 0.9, 1.0]
    tables = job(model__levels=levels, goal__at_least=0.7, goal__confidence=1 - 1e-9)
    return expost.tune(tables, X, y, ledger=Ledger.open(book), out=out)


def test_killed_job_is_charged_at_its_worst_case_and_resumes(tmp_path: Path) -> None:
    book, out = str(tmp_path / "ledger.db"), str(tmp_path / "out")
    Ledger.create(book, ApproxBudget(2.0, 1e-4, ZERO_OUT))
    died = subprocess.run(
        [sys.executable, "-c", KILLED, book, out],
        env=dict(os.environ),
        cwd=Path(__file__).parents[2],
        check=False,
    )
    assert died.returncode == -signal.SIGKILL
    assert Ledger.open(book).standing().as_dict()["held"]["epsilon"] == 1.0
    assert not (Path(out) / "model.npz").exists()
    result = paid_run(book, out)
    standing = Ledger.open(book).standing().as_dict()
    assert standing["held"]["epsilon"] == 0
    assert standing["settled"]["epsilon"] == result.spent.epsilon
