"""Noise reduction in ExPostSearch: cost, law of counts, estimators, refusals, several ways."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sklearn")

from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

import expost
from expost.budget.budgets import ApproxBudget
from expost.budget.ledger import Ledger
from expost.certificates.verify import verify_certificate
from expost.errors import InvalidInput
from expost.randomness.source import SimulationRandomness
from expost.selection.noise_path import NoisePath, PathLevel, _total_delta
from expost.sklearn import DPLinearRegression, DPLogisticRegression, ExPostSearch
from expost.tuning.runs.path_training import HeldOutCount
from tests.tuning.private_estimators import NearestNoisyMean, pure


def rows(classes: int = 2, count: int = 1500) -> tuple[Any, Any]:
    generator = np.random.default_rng(classes)
    y = generator.integers(0, classes, count)
    middles = np.array([[2.0, 2.0], [8.0, 8.0], [2.0, 8.0]])
    return middles[y] + generator.normal(size=(count, 2)), y


def model(classes: int = 2, **changes: Any) -> Any:
    return DPLogisticRegression(
        classes=list(range(classes)), feature_bounds=(0, 10), delta=1e-5, **changes
    )


def reduced(estimator: Any = None, **changes: Any) -> Any:
    settings = {"training": "progressive", "at_least": 0.8} | changes
    return ExPostSearch(model() if estimator is None else estimator, **settings)


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize(
    "changes",
    [{}, {"n_rows": 1500}, {"training": "auto", "n_rows": 1500}],
)
def test_one_level_is_paid_and_the_estimator_reaches_the_target(
    classes: int, changes: dict[str, Any]
) -> None:
    X, y = rows(classes)
    found = reduced(model(classes), **changes).fit(X, y)
    assert found.passed_
    assert found.training_ == "progressive"
    spent = found.privacy_spent_
    assert (spent.epsilon, spent.delta) == (found.best_params_["epsilon"], 1e-5)
    assert spent.neighbours == ("add-remove" if "n_rows" in changes else "zero-out")
    assert found.best_params_["training"] == "progressive"
    assert found.best_estimator_.privacy_spent_ == spent
    assert ("that rise and fall" in found.release_.theorem) == ("n_rows" in changes)
    assert found.score_bound_ <= found.best_score_
    assert np.mean(found.predict(X) == y) > 0.75
    assert found.predict_proba(X).shape == (len(X), classes)
    assert clone(found.best_estimator_).fit(X, y).coef_.shape == found.best_estimator_.coef_.shape


def test_a_regression_by_second_moments_and_public_scoring() -> None:
    generator = np.random.default_rng(0)
    X = generator.uniform(0, 4, (3000, 2))
    y = 1 + X @ [2.0, -1.0] + generator.normal(0, 0.1, 3000)
    estimator = DPLinearRegression(feature_bounds=(0, 4), target_bounds=(-5, 10), delta=1e-6)
    moments = {"training": "noise-reduction"}
    found = reduced(estimator, at_least=-4.0, random_state=1, simulation=True, **moments).fit(X, y)
    assert found.passed_
    assert found.training_ == "noise-reduction"
    assert "Brownian noise reduction" in found.release_.theorem
    assert found.privacy_spent_ is found.best_estimator_.privacy_spent_ is None
    assert np.mean((found.predict(X) - y) ** 2) < 4
    public = reduced(
        estimator,
        at_least=-0.5,
        scoring=lambda each: -float(np.mean((each.predict(X) - y) ** 2)),
        **moments,
    ).fit(X, y)
    assert public.passed_
    assert public.score_bound_ == public.best_score_ >= -0.5
    # The error that passed bounds Σ (Δ coefficient)²·variance, up to the small covariance.
    bound = 1.1 * np.sqrt(0.5 / X.var(axis=0).min())
    assert np.allclose(public.best_estimator_.coef_, [2, -1], atol=bound)
    assert "at-classic" not in public.release_.theorem


def test_a_pipeline_of_stateless_steps() -> None:
    X, y = rows()
    halved = make_pipeline(
        FunctionTransformer(lambda table: np.asarray(table) / 2),
        DPLogisticRegression(classes=[0, 1], feature_bounds=(0, 5), delta=1e-5),
    )
    found = reduced(halved).fit(X, y)
    assert found.passed_
    assert np.mean(found.predict(X) == y) > 0.75
    with pytest.raises(InvalidInput, match="fitted on the rows"):
        reduced(make_pipeline(StandardScaler(), model())).fit(X, y)


def test_a_miss_releases_the_last_estimator_and_pays_its_level(tmp_path: Any) -> None:
    book = Ledger.create(tmp_path / "book.db", ApproxBudget(3.0, 1e-4, "zero-out"))
    X, y = rows()
    search = reduced(at_least=0.7, levels=[0.6, 0.8, 1.0], confidence=1 - 1e-9, ledger=book)
    with pytest.warns(UserWarning, match="the goal was missed"):
        search.fit(X, generator_labels(len(y)))
    assert not search.passed_
    assert search.score_bound_ < search.best_score_ < 0.7
    assert search.training_ == "progressive"
    assert len(search.predict(X)) == len(X)
    record = json.loads(search.certificate())
    assert (record["outcome"], record["passed"]) == ("missed", False)
    assert verify_certificate(record) == []
    search.save(tmp_path / "saved")
    with pytest.warns(UserWarning, match="missed"):
        assert expost.load_model(tmp_path / "saved").passed is False
    assert (search.privacy_spent_.epsilon, search.privacy_spent_.delta) == (2.0, 1e-5)
    assert book.standing().as_dict()["settled"]["epsilon"] == 2.0  # of two ways


def generator_labels(count: int) -> Any:
    return np.random.default_rng(5).integers(0, 2, count)


def test_auto_adds_up_what_was_tried_and_shares_delta() -> None:
    X, _ = rows()
    search = ExPostSearch(
        model(epochs=1),
        {"learning_rate": [1.0]},
        epsilons=[0.5],
        at_least=0.9,
        attempts=2,
        confidence=0.999,
        max_epsilon=20.0,
    )
    labels = generator_labels(len(X))
    settings = search._settings(search._training(), len(X))
    job = search._prepare(settings, X, labels, SimulationRandomness(1), None)
    steps, margins, data = job.planned.steps, job.planned.margins, job.data
    assert {"X", "y", "fit_X", "rate_X"} <= set(data)
    assert margins is not None
    assert margins.confidence == pytest.approx(0.9995)
    used = Fraction(_total_delta([each.guarantee for each in steps[0].candidates]))
    used += sum(Fraction(step.selector.delta) for step in steps[1:])
    assert Fraction(0.99e-5) < used <= Fraction(1e-5)
    missed = search.fit(X, generator_labels(len(X)))
    assert not missed.passed_
    assert missed.n_attempts_ == len(steps)
    assert missed.privacy_spent_.delta == 1e-5
    assert missed.privacy_spent_.epsilon == pytest.approx(
        sum(step.charges.nothing.epsilon for step in steps)
    )


@pytest.mark.parametrize("secret", [False, True])
def test_one_person_moves_statistic_and_counts_by_at_most_their_bounds(secret: bool) -> None:
    X, y = rows(count=300)
    estimator = DPLinearRegression(feature_bounds=(0, 10), target_bounds=(0, 1), delta=1e-5)
    how: Any = {"training": "noise-reduction", "at_least": -0.5}
    search = reduced(estimator, n_rows=300 if secret else None, **how)
    settings = search._settings(search._training(), len(X))
    job = search._prepare(settings, X, y, SimulationRandomness(3), None)
    steps, data = job.planned.steps, job.data
    level, rule = steps[0].candidates[0].mechanism, steps[0].selector.held_out
    assert isinstance(level, PathLevel)
    assert isinstance(level.path, NoisePath)
    assert isinstance(rule.count, HeldOutCount)
    assert rule.monotone is not secret
    base = level.path.values(data)
    less = {"X": data["X"][1:], "y": data["y"][1:]}
    assert 0 < np.linalg.norm(level.path.values(less) - base) <= float(level.path.bound)
    fitted = level.path.finish(base, 0.1)
    held = {"score_X": data["score_X"], "score_y": data["score_y"]}
    whole = rule.count(fitted, held)
    changes = []
    for place in range(20):
        left = {name: np.delete(each, place, axis=0) for name, each in held.items()}
        changes.append(whole - rule.count(fitted, left))
    assert max(map(abs, changes)) <= rule.steps
    if not secret:
        assert min(changes) >= 0


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"training": "sgd"}, "dp-sgd, noise-reduction, progressive, auto"),
        ({"training": "noise-reduction"}, "progressive"),
        ({"at_least": None}, "at_least"),
        ({"param_grid": {"learning_rate": [1.0]}}, "no grid"),
        ({"epsilons": [1.0]}, "epsilons"),
        ({"attempts": 3}, "attempts"),
        ({"repeats": 2}, "repeats"),
        ({"levels": [2.0, 1.0]}, "ascending"),
        ({"levels": []}, "levels"),
        ({"levels": [0.001]}, "can tell"),
        ({"norm_bound": 2.0}, "norm_bound"),
        ({"training": "dp-sgd", "param_grid": {}, "levels": [1.0]}, "levels"),
        ({"training": "dp-sgd"}, "param_grid"),
        ({"estimator": NearestNoisyMean(), "guarantee": pure}, "DPLogisticRegression"),
        ({"estimator": model(class_weight={0: 2.0})}, "class_weight"),
        ({"scoring": "roc_auc"}, "log_loss"),
        ({"at_most": 0.5}, "exactly one"),
        ({"tell": 5.0}, "less than 4"),
        ({"max_epsilon": -1.0}, "max_epsilon"),
        ({"confidence": 0.2}, "confidence"),
    ],
)
def test_settings_that_do_not_fit_are_refused(changes: dict[str, Any], match: str) -> None:
    X, y = rows(count=300)
    with pytest.raises(InvalidInput, match=match):
        reduced(changes.pop("estimator", None), **changes).fit(X, y)
