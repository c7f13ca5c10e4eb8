"""ExPostSearch is a front of tuning: the outcome, limits and empty places of ``expost.tune``."""

from __future__ import annotations

import json
import math
import warnings
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sklearn")
pytest.importorskip("numba", reason="needs the native extra")

import pandas as pd
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

import expost
from expost import ApproxDP, Ledger, SimulationRandomness
from expost.certificates.verify import verify_certificate
from expost.errors import InvalidInput
from expost.sklearn import DPLinearRegression, DPLogisticRegression, ExPostSearch

SEED: Any = {"random_state": 3, "simulation": True}
ROWS = 1500


def rows(classes: int = 2, count: int = ROWS) -> tuple[Any, Any]:
    generator = np.random.default_rng(classes)
    y = generator.integers(0, max(2, classes), count)
    middles = np.array([[2.0, 2.0], [8.0, 8.0], [2.0, 8.0]])
    X = middles[y] + generator.normal(size=(count, 2))
    return X, y * 1.0 if classes == 0 else y


def model(classes: int = 2, **changes: Any) -> Any:
    facts: Any = {"feature_bounds": (0, 10), "delta": 1e-5} | changes
    if classes == 0:
        return DPLinearRegression(target_bounds=(0, 1), **facts)
    return DPLogisticRegression(classes=list(range(classes)), **facts)


def tuned(X: Any, y: Any, classes: int, **settings: Any) -> Any:
    facts: Any = {"feature_bounds": [0, 10], "delta": 1e-5}
    facts |= {"target_bounds": [0, 1]} if classes == 0 else {"classes": classes}
    source = SimulationRandomness(3)
    return expost.tune(X, y, **facts, **settings, randomness=source, simulation=True)


CASES: dict[str, tuple[int, dict[str, Any]]] = {
    "two classes": (2, {"at_least": 0.8}),
    "three classes": (3, {"at_least": 0.8}),
    "a regression": (0, {"at_most": 0.1}),
    "absolute errors": (0, {"at_most": 0.3, "metric": "mae"}),
    "log loss": (2, {"at_most": 0.5, "metric": "log_loss"}),
    "second moments": (0, {"at_most": 0.1, "training": "noise-reduction"}),
    "progressive alone": (2, {"at_least": 0.8, "training": "progressive", "max_epsilon": 1.0}),
    "a miss that is told": (2, {"at_least": 0.9, "max_epsilon": 1.0, "tell": 0.2}),
}


@pytest.mark.filterwarnings("ignore:the goal was missed")
@pytest.mark.parametrize("secret", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_the_outcome_is_that_of_tune(name: str, secret: bool, tmp_path: Any) -> None:
    """For the same coins everything is the same: model, score, bounds, charge, requests."""
    classes, settings = CASES[name]
    X, y = rows(classes)
    if "miss" in name:
        y = np.random.default_rng(1).permutation(y)
    there = tuned(X, y, classes, **settings, rows=ROWS if secret else None)
    here = dict(settings)
    if "metric" in here:
        here["scoring"] = here.pop("metric")
    found = ExPostSearch(model(classes), **here, n_rows=ROWS if secret else None, **SEED).fit(X, y)
    assert found.passed_ == there.passed == ("told" not in name)
    assert found.release_.spent == there.release.spent
    assert found.release_.worst_case == there.release.worst_case
    assert found.release_.theorem == there.release.theorem
    assert found.best_score_ == there.score
    assert found.score_bound_ == there.bounds.on_scoring_rows
    assert (found.told_ is None) == (there.told is None)
    if there.told is not None:
        assert found.told_.score == there.told.score
    mine, theirs = json.loads(found.certificate()), json.loads(there.certificate())
    assert mine["requests"] == theirs["requests"]
    for key in ("confidence", "rows", "spent", "scoring", "neighbours", "told", "privacy"):
        assert mine["tuning"][key] == theirs["tuning"][key]
    assert verify_certificate(mine) == []
    assert np.array_equal(found.predict(X), there.model.predict(X))
    found.save(tmp_path / "kept")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kept = expost.load_model(tmp_path / "kept")
    assert np.array_equal(found.predict(X), kept.predict(X))
    if classes:
        assert np.array_equal(found.predict_proba(X), there.model.predict_proba(X))
        assert np.array_equal(found.predict_proba(X), kept.predict_proba(X))


def test_coefficients_describe_the_released_model() -> None:
    for classes in (0, 2, 3):
        X, y = rows(classes)
        goal: Any = {"at_most": 0.1} if classes == 0 else {"at_least": 0.8}
        found = ExPostSearch(model(classes), **goal, **SEED).fit(X, y)
        fitted = found.best_estimator_
        clipped = np.clip(X, 0, 10)
        linear = clipped @ np.atleast_2d(fitted.coef_).T + fitted.intercept_
        if classes == 0:
            assert np.allclose(linear[:, 0], found.predict(X))
        elif classes == 2:
            assert np.array_equal(linear[:, 0] > 0, found.predict(X) == 1)
        else:
            assert np.array_equal(linear.argmax(axis=1), found.predict(X))
        refitted = fitted.set_params(simulation=True, random_state=1).fit(X, y)  # by DP-SGD
        linear = clipped @ np.atleast_2d(refitted.coef_).T + refitted.intercept_
        largest = np.abs(refitted.as_model().parameters["weight"]).sum() + 100
        step = 2.0**-25 * largest  # outputs are rounded, so that they do not depend on other rows
        assert np.allclose(refitted._linear(X), linear, rtol=0, atol=step)


def test_by_default_a_goal_is_reached_progressively_and_a_frame_has_plain_features() -> None:
    X, y = rows()
    search = ExPostSearch(model(), at_least=0.8, **SEED)
    assert search.training == "auto"
    assert search.fit(X, y).training_ == "progressive"
    frame = pd.DataFrame(X, columns=["age", "income"])
    found = ExPostSearch(model(), at_least=0.8, **SEED).fit(frame, y)
    record = json.loads(found.certificate())["tuning"]
    assert record["data"]["bounds"] == {"age": [0, 10], "income": [0, 10]}
    assert record["features"]["record"]["bins"] == 0
    assert found.release_.spent == search.release_.spent
    assert np.array_equal(found.predict(frame), search.predict(X))
    wide = np.hstack([X] * 100)  # arrays of many numbers stay between 0 and 1
    found = ExPostSearch(model(), at_least=0.8, **SEED).fit(wide, y)
    linear = np.clip(wide, 0, 10) @ found.best_estimator_.coef_.T + found.best_estimator_.intercept_
    assert np.array_equal(linear[:, 0] > 0, found.predict(wide) == 1)


@pytest.mark.filterwarnings("ignore:the goal was missed", "ignore:the grid is left out")
@pytest.mark.parametrize("grid", [None, {"learning_rate": [1.0]}])
def test_no_search_costs_more_than_its_limit(grid: Any, tmp_path: Any) -> None:
    X, _ = rows()
    labels = np.random.default_rng(1).integers(0, 2, ROWS)
    book = Ledger.create(tmp_path / "book.db", ApproxDP(10, 1e-2, "zero-out"))
    more: Any = {} if grid is None else {"param_grid": grid, "epsilons": [0.1], "attempts": 2}
    search = ExPostSearch(
        model(epochs=2), at_least=0.8, max_epsilon=1.5, tell=0.25, ledger=book, **more
    ).fit(X, labels)
    assert not search.passed_
    assert search.best_estimator_ is not None
    assert search.release_.worst_case.epsilon <= 1.5
    assert search.privacy_spent_.epsilon <= 1.5
    assert search.told_ is not None
    assert search.told_.low <= search.told_.score <= search.told_.high
    assert book.standing().as_dict()["settled"]["epsilon"] == pytest.approx(
        search.privacy_spent_.epsilon
    )
    assert verify_certificate(json.loads(search.certificate())) == []
    assert (grid is not None) == (search.n_attempts_ > 2)


def test_a_grid_that_does_not_fit_is_left_out_with_a_word() -> None:
    X, y = rows()
    search = ExPostSearch(model(), {}, epsilons=[4.0], at_least=0.8, attempts=1, **SEED)
    with pytest.warns(UserWarning, match="the grid is left out"):
        search.fit(X, y)
    assert search.training_ == "progressive"


# What a row may hold that is no row of the table: each leaves what an empty place leaves.
ODD: dict[str, tuple[Any, Any]] = {
    "NaN": ([math.nan, 0.5], 1),
    "infinity": ([math.inf, -math.inf], 1),
    "a text": (["Jane Doe", 0.5], 1),
    "None": ([None, None], 1),
    "an unseen label": ([0.5, 0.5], 7),
    "a text as a label": ([0.5, 0.5], "Jane Doe"),
    "NaN as a label": ([0.5, 0.5], math.nan),
    "no label": ([0.5, 0.5], None),
    "an endless label": ([0.5, 0.5], math.inf),
}
DOORS: dict[str, dict[str, Any]] = {
    "progressive": {"at_least": 0.6, "levels": [0.5, 1.0]},
    "secret number": {"at_least": 0.6, "levels": [0.5, 1.0], "n_rows": 300},
    "public score": {"at_least": 0.5, "levels": [0.5], "scoring": lambda fitted: 0.7},
    "attempts": {
        "at_least": 0.6,
        "training": "dp-sgd",
        "param_grid": {},
        "epsilons": [1.0],
        "attempts": 2,
    },
    "the best": {"param_grid": {"epsilon": [0.5]}, "repeats": 3},
}


def left(search: Any, X: Any, y: Any) -> Any:
    """All that leaves a fit."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        search.fit(X, y)
    weights = None if search.best_estimator_ is None else search.best_estimator_.as_model()
    kept = None if weights is None else [part.tolist() for part in weights.parameters.values()]
    return search.certificate(), kept, [str(each.message) for each in said]


@pytest.mark.parametrize("door", DOORS)
def test_a_row_that_cannot_be_used_is_an_empty_place(door: str) -> None:
    """No row changes whether a fit fails, what it says, or the place of another row."""
    X, y = rows(count=300)
    for place in (0, 2) if "levels" in DOORS[door] else (2,):  # one trains, one scores
        outcomes = {}
        for name, (row, label) in {"empty": ([math.nan, math.nan], None), **ODD}.items():
            cells, labels = X.tolist(), y.tolist()
            cells[place], labels[place] = row, label
            search = ExPostSearch(model(epochs=2, batch_size=60), **DOORS[door], **SEED)
            outcomes[name] = left(search, cells, labels)
            if "levels" not in DOORS[door]:  # DP-SGD clips a row that has a label
                outcomes[name] = outcomes[name][-1]
        assert all(outcome == outcomes["empty"] for outcome in outcomes.values())


def test_hostile_rows_of_a_regression_and_of_a_pipeline() -> None:
    X, y = rows(0, 300)
    steps = make_pipeline(FunctionTransformer(), model(0))
    outcomes = []
    for row, target in (([math.nan] * 2, None), ([1.0, 2.0], "x"), ([1.0, 2.0], math.inf)):
        cells, targets = X.tolist(), y.tolist()
        cells[0], targets[0] = row, target
        search = ExPostSearch(model(0), at_most=0.2, levels=[1.0], **SEED)
        outcomes.append(left(search, cells, targets))
    assert outcomes[0] == outcomes[1] == outcomes[2]
    X[0] = math.nan
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = ExPostSearch(steps, at_most=0.2, levels=[1.0], **SEED).fit(X, y)
    assert np.isfinite(found.predict(X[1:])).all()


def test_no_rows_are_no_error_if_their_number_is_secret() -> None:
    X, y = rows(count=300)
    for more in (DOORS["secret number"], {**DOORS["attempts"], "n_rows": 300}):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = ExPostSearch(model(epochs=2), **more, **SEED).fit(X[:0], y[:0])
        assert not found.passed_


@pytest.mark.parametrize(
    ("habit", "answer"), [("cv", "holdout"), ("refit", "released"), ("callbacks", "verbose")]
)
def test_habits_of_other_searches_are_answered(habit: str, answer: str) -> None:
    """Before rows are read, with what to use instead."""
    search = ExPostSearch(DPLogisticRegression(), at_least=0.8, **{habit: 5})
    with pytest.raises(InvalidInput, match=answer):
        search.fit(None, None)
    assert not hasattr(search, "cv_results_")
    with pytest.raises(AttributeError, match="secret"):
        _ = search.cv_results_
