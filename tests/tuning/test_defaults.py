"""Jobs from rows and keywords: defaults are public, complete, and the same job as their TOML."""

from __future__ import annotations

import tomllib
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import expost
from expost.errors import InvalidInput
from expost.randomness.source import SimulationRandomness
from expost.tuning import default_job, read_settings
from expost.tuning.request.defaults import as_toml, default_batch, default_delta, default_epochs
from tests.tuning.jobs import clouds, job, line


def simulate(*arguments: Any, **settings: Any) -> Any:
    return expost.tune(*arguments, randomness=SimulationRandomness(1), simulation=True, **settings)


@pytest.mark.parametrize("n", [1, 9, 10, 11, 99, 100, 101, 1797, 60_000, 10**7])
def test_delta_is_a_power_of_ten_below_a_tenth_of_one_over_n(n: int) -> None:
    delta = default_delta(n)
    assert delta * 10 * n <= 1 + 1e-12 < 10.0000001 * delta * 10 * n
    assert f"{delta:.6e}".startswith("1.000000e")


@pytest.mark.parametrize("n", [2, 20, 100, 455, 1437, 16_000, 48_000, 10**6])
def test_the_grid_fits_the_rows(n: int) -> None:
    batch = default_batch(n)
    assert 1 <= batch <= n
    epochs = default_epochs(n, batch)
    steps = [each * n / batch for each in epochs]
    assert all(each >= 1 for each in epochs)
    assert n > 400_000 or (40 <= steps[0] <= 160 and 160 <= steps[-1] <= 480)


def test_defaults_depend_on_the_number_of_rows_and_not_on_values() -> None:
    X, _ = clouds()
    facts: dict[str, Any] = {"at_least": 0.8, "feature_bounds": [0, 1], "classes": 2}
    assert default_job(X, **facts) == default_job(1e9 * X[::-1], **facts)
    assert default_job(X, **facts)["model"]["kind"] == "logistic"
    assert default_job(X, **{**facts, "classes": ["a", "b", "c"]})["model"]["kind"] == "softmax"
    assert default_job(X, **facts, rows=300) == {
        **default_job(X, **facts),
        "data": {**default_job(X, **facts)["data"], "rows": 300},
    }
    other = default_job(X, **facts, rows=10**6)
    assert other["privacy"]["delta"] == 1e-7
    assert "search" not in other
    grid = default_job(X, **facts, rows=10**6, training="dp-sgd")
    assert grid["search"]["epsilons"][0] < 0.25


def test_training_of_jobs_with_and_without_a_grid() -> None:
    """Progressive training comes first; a grid follows where one is asked for."""
    X, _ = clouds()
    facts: dict[str, Any] = {"at_least": 0.8, "feature_bounds": [0, 1], "classes": 2}
    made = default_job(X, **facts)
    assert made["model"] == {"kind": "logistic", "training": "auto", "features": "auto"}
    assert 'training = "auto"' in as_toml(made)
    assert made["data"]["holdout"] == 0.35
    assert default_job(X, **facts | {"classes": 3})["data"]["holdout"] == 0.2
    regression: dict[str, Any] = {"at_most": 0.1, "feature_bounds": [0, 1], "target_bounds": [0, 1]}
    for rows, share in ((400, 0.35), (10**5, 0.25)):
        job = default_job(X, **regression, rows=rows)
        assert job["data"]["holdout"] == share
        del job["data"]["holdout"]
        assert read_settings(job, given_data=True).data.holdout == share
    del made["model"]["training"]
    assert read_settings(made, given_data=True).model.training == "auto"
    for asked in ({"attempts": 3}, {"epsilons": [1.0]}, {"training": "dp-sgd"}):
        grid = default_job(X, **facts, **asked)
        assert grid["model"]["training"] == asked.get("training", "auto")
        assert grid["data"]["holdout"] == (0.2 if "training" in asked else 0.35)
        assert "features" in grid["search"]  # rows of norm 1
    best = default_job(X, **{**facts, "at_least": None}, maximize=True)
    assert best["model"]["training"] == "dp-sgd"
    assert best["search"]["features"] == ["auto"]
    tokens = default_job(X, **facts, integers=True, model="cnn")
    assert tokens["model"]["training"] == "dp-sgd"


def test_arrays_and_keywords() -> None:
    X, y = clouds(1000)
    result = simulate(X, y, at_least=0.7, feature_bounds=(0, 1), classes=2, attempts=4)
    assert result.passed
    assert result.details["privacy"]["delta"] == 1e-4
    again = simulate(
        default_job(X, at_least=0.7, feature_bounds=(0, 1), classes=2, attempts=4), X, y
    )
    assert (again.params, again.score, again.spent) == (result.params, result.score, result.spent)


def test_a_data_frame_with_strings_and_gaps() -> None:
    pandas = pytest.importorskip("pandas")
    X, y = clouds(1000)
    frame = pandas.DataFrame({"a": 40 * X[:, 0], "b": X[:, 1], "city": ["Bern", "Zug"] * 500})
    frame["label"] = np.where(y == 1, "yes", "no")
    frame.loc[3, "a"] = None
    facts: dict[str, Any] = {
        "feature_bounds": {"a": [0, 40], "b": [0, 1]},
        "categories": {"city": ["Bern", "Zug"]},
        "missing": {"a": 20},
        "classes": ["no", "yes"],
    }
    result = simulate(frame, target="label", at_least=0.7, attempts=4, **facts)
    assert result.passed
    assert set(result.model.predict(frame[["city", "b", "a"]].head(20))) <= {"no", "yes"}
    assert result.details["neighbours"] == "zero-out"


def test_missing_facts_are_asked_for_at_once() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"age": [1.0, 2.0], "city": ["a", "b"], "label": ["n", "y"]})
    with pytest.raises(InvalidInput) as caught:
        expost.tune(frame, target="label", at_least=0.8)
    for word in ("classes=", "feature_bounds={'age'", "categories={'city'"):
        assert word in str(caught.value)


def test_regression() -> None:
    X, y = line(1500)
    made = default_job(X, at_most=4, target_bounds=[0, 10], feature_bounds=[0, 1])
    assert made["model"]["kind"] == "linear"
    assert made["goal"] == {"metric": "mse", "at_most": 4, "loss_bound": 25.0, "confidence": 0.9}
    assert default_job(X, at_most=30, target_bounds=[0, 10])["goal"]["loss_bound"] == 100
    assert simulate(made, X, y).passed


@pytest.mark.parametrize(
    ("arguments", "settings", "said"),
    [
        ((job(),), {"at_least": 0.8}, "settings of its own"),
        (("job.toml",), {"delta": 1e-5}, "settings of its own"),
        (clouds(), {"at_leest": 0.8}, "did you mean at_least"),
        (clouds(), {"classes": 2}, "at_least=0.8"),
        ((7,), {"at_least": 0.8}, "TOML file, a mapping"),
        (("rows.csv", *clouds()), {"at_least": 0.8}, "rows.csv holds the rows"),
        ((clouds()[0], *clouds()), {"at_least": 0.8}, "before X, y"),
        (("missing.csv",), {"at_least": 0.8}, "no such file"),
    ],
)
def test_mistakes_are_named(arguments: Any, settings: Any, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        expost.tune(*arguments, **settings)


def test_toml_is_the_same_job(tmp_path: Path) -> None:
    facts: dict[str, Any] = {
        "at_least": 0.8,
        "target": 'the "label"',
        "feature_bounds": {"a b": (0, 1.5), "é": (-1, 1)},
        "categories": {"city": ("Bern", "Zug\t\x7f")},
        "missing": {"a b": "indicator", "é": 1},
        "classes": (-1, 1),
    }
    made = default_job(np.zeros((500, 3)), **facts)
    made["data"]["path"] = "rows.csv"
    text = as_toml(made)
    assert tomllib.loads(text) == made
    (tmp_path / "job.toml").write_text(text, encoding="utf-8")
    one, other = read_settings(tmp_path / "job.toml"), read_settings(made)
    assert one.public() == other.public()
    with pytest.raises(InvalidInput, match=r"model\.kind"):
        as_toml(default_job(np.zeros((9, 3)), at_least=0.5, model=dict))


def test_weak_guarantees_warn_and_are_certified() -> None:
    X, y = clouds()
    with pytest.warns(UserWarning, match=r"delta = 0.01 is at least 1/300"):
        result = simulate(job(privacy={"delta": 0.01}), X, y)
    assert "1/300" in result.as_dict()["warnings"][0]
    assert "1/300" in result.details["warnings"][0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert simulate(job(), X, y).as_dict()["warnings"] == []
