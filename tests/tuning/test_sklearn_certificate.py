"""The certificate of an ExPostSearch: it covers all attempts, verifies, and names its model."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sklearn")
pytest.importorskip("sqlalchemy")

import pandas as pd
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from typer.testing import CliRunner

import expost
from expost import ApproxDP, Ledger, PureDP, Release
from expost.cli.main import app
from expost.errors import InvalidInput, InvalidRelease
from expost.sklearn import DPLinearRegression, DPLogisticRegression, ExPostSearch
from tests.tuning.jobs import clouds, line
from tests.tuning.private_estimators import NearestNoisyMean, pure

BY_FIT = {"training": "dp-sgd", "max_epsilon": 100.0}
FAST = {"epochs": 4, "batch_size": 60, "delta": 1e-4}


def classifier(**changes: Any) -> Any:
    return DPLogisticRegression(**{"classes": [0, 1], "feature_bounds": (0, 1), **FAST, **changes})


def search(estimator: Any = None, grid: Any = None, **changes: Any) -> Any:
    settings = {"epsilons": [1, 4], "at_least": 0.6, "attempts": 3, **BY_FIT} | changes
    chosen = classifier() if estimator is None else estimator
    return ExPostSearch(chosen, {"learning_rate": [1.0, 4.0]} if grid is None else grid, **settings)


def verified(file: Path, *options: str) -> None:
    result = CliRunner().invoke(app, ["certificate", "verify", str(file), *options])
    assert result.exit_code == 0, result.output


def several_attempts() -> Any:
    """A search whose three attempts miss."""
    X, y = clouds()
    labels = np.random.default_rng(1).integers(0, 2, len(y))
    return search(at_least=0.9, confidence=0.5).fit(X, labels)


def without_a_target() -> Any:
    X, y = clouds()
    return search(at_least=None, attempts=None).fit(X, y)


def pure_promises() -> Any:
    X, y = clouds()
    made = NearestNoisyMean()
    return search(made, {}, guarantee=pure, epsilons=[1.0, 2.0]).fit(X, y)


def secret_rows() -> Any:
    X, y = clouds()
    return search(n_rows=300).fit(pd.DataFrame(X, columns=["age", "income"]), y)


def public_score() -> Any:
    X, y = clouds()
    return search(scoring=lambda fitted: float(np.mean(fitted.predict(X) == y))).fit(X, y)


def secret_number_of_rows() -> Any:
    """An add-remove promise and a public score: nothing may tell the number of rows."""
    X, y = clouds()
    public = {"scoring": lambda fitted: float(np.mean(fitted.predict(X) == y))}
    return search(NearestNoisyMean(), {}, guarantee=pure, epsilons=[2.0], **public).fit(X, y)


def pipeline() -> Any:
    X, y = clouds()
    return search(make_pipeline(FunctionTransformer(), classifier()), {}).fit(X, y)


def noise_reduction() -> Any:
    X, y = clouds()
    made = ExPostSearch(classifier(), training="progressive", at_least=0.6)
    return made.fit(X, y)


def both_ways() -> Any:
    X, y = clouds()
    return search(training="auto").fit(X, y)


SEARCHES = [
    noise_reduction,
    both_ways,
    several_attempts,
    without_a_target,
    pure_promises,
    secret_rows,
    public_score,
    secret_number_of_rows,
    pipeline,
]


@pytest.mark.parametrize("made", SEARCHES)
def test_every_certificate_verifies_and_covers_the_fit(made: Any, tmp_path: Path) -> None:
    found = made()
    assert found.release_.spent == found.privacy_spent_
    if hasattr(found.best_estimator_, "privacy_spent_"):  # never the charge of one fit alone
        assert found.best_estimator_.privacy_spent_ == found.privacy_spent_
    file = found.save(tmp_path / "kept")
    assert file == tmp_path / "kept" / "release.json"
    assert Release.load(file).spent == found.privacy_spent_
    linear = isinstance(found.best_estimator_, (DPLogisticRegression, DPLinearRegression))
    model = tmp_path / "kept" / "model.npz"
    assert model.exists() == linear
    verified(file, *(["--model", str(model)] if linear else []))
    shown = CliRunner().invoke(app, ["certificate", str(file)])
    assert shown.exit_code == 0, shown.output


def test_the_charge_is_the_sum_over_all_attempts(tmp_path: Path) -> None:
    found = several_attempts()
    assert not found.passed_
    assert found.n_attempts_ == 3
    document = json.loads(found.certificate())
    listed = [each["spent"]["epsilon"] for each in document["tuning"]["attempts"]]
    assert len(listed) == 3
    assert document["spent"]["epsilon"] == pytest.approx(sum(listed))
    assert found.release_.spent.epsilon > max(listed)
    assert "3 of at most 3 attempts" in document["theorem"]
    data = document["tuning"]["data"]
    assert data["bounds"] == [[0.0, 1.0], [0.0, 1.0]]
    assert data["classes"] == [0, 1]
    assert document["tuning"]["rows"] == {"training": 240, "scoring": 60}


def test_a_secret_number_of_rows_is_not_in_the_certificate() -> None:
    found = secret_number_of_rows()
    assert found.neighbours_ == "add-remove"
    document = json.loads(found.certificate())
    assert document["tuning"]["rows"] is None
    assert document["tuning"]["data"]["rows"] is None


@pytest.mark.parametrize("key", ["epsilon", "delta"])
def test_a_smaller_charge_does_not_verify(key: str, tmp_path: Path) -> None:
    document = json.loads(several_attempts().certificate())
    document["spent"][key] *= 0.9
    file = tmp_path / "release.json"
    file.write_text(json.dumps(document))
    result = CliRunner().invoke(app, ["certificate", "verify", str(file)])
    assert result.exit_code == 1, result.output


def test_the_ledger_confirms_it(tmp_path: Path) -> None:
    X, y = clouds()
    place = tmp_path / "ledger.db"
    Ledger.create(place, ApproxDP(1000, 0.1, "zero-out"), "people")
    frame = pd.DataFrame(X, columns=["age", "income"])
    found = search(ledger=place, budget="people", analyst="ana").fit(frame, y)
    file = found.save(tmp_path / "kept")
    verified(file, "--ledger", str(place), "--model", str(file.parent / "model.npz"))
    assert json.loads(file.read_text())["ledger"][0]["source"]["columns"] == ["age", "income"]


def test_the_saved_model_predicts_what_the_search_predicts(tmp_path: Path) -> None:
    X, y = clouds()
    frame = pd.DataFrame(X, columns=["age", "income"])
    bounds = {"age": (-0.5, 1), "income": (0, 2)}
    made = classifier(classes=["no", "yes"], feature_bounds=bounds)
    found = search(made).fit(frame, np.where(y == 1, "yes", "no"))
    found.save(tmp_path)
    model = expost.load_model(tmp_path / "model.npz")
    assert model.predict(frame).tolist() == found.predict(frame).tolist()
    assert np.allclose(model.predict_proba(frame), found.predict_proba(frame))
    with pytest.raises(InvalidInput, match=r"contains a release\.json"):
        found.save(tmp_path)


def test_three_classes_and_a_regression_as_models() -> None:
    X, y = clouds()
    three = classifier(classes=[0, 1, 7]).fit(X, y)
    assert three.as_model().predict(X).tolist() == three.predict(X).tolist()
    X, y = line()
    made = DPLinearRegression(feature_bounds=(0, 1), target_bounds=(-3, 12), **FAST).fit(X, y)
    assert np.allclose(made.as_model().predict(X), made.predict(X), atol=1e-6)


def test_a_file_of_ones_own_is_named_by_its_hash(tmp_path: Path) -> None:
    found = pipeline()
    own = tmp_path / "pipeline.onnx"
    own.write_bytes(b"a file of another library")
    file = tmp_path / "release.json"
    file.write_text(found.certificate(own))
    verified(file, "--model", str(own))
    own.write_bytes(b"another file")
    result = CliRunner().invoke(app, ["certificate", "verify", str(file), "--model", str(own)])
    assert result.exit_code == 1


def test_a_copy_has_the_same_certificate() -> None:
    found = search(attempts=1).fit(*clouds())
    before = found.certificate()
    found.set_params(at_least=0.99, confidence=0.99, n_rows=17, holdout=0.9, scoring="neg_log_loss")
    assert found.certificate() == before  # what was true at the fit
    assert pickle.loads(pickle.dumps(found)).certificate() == found.certificate()


class Annotated(NearestNoisyMean):
    """A parameter of it may be any object."""

    def __init__(self, epsilon: float = 1.0, note: Any = None) -> None:
        super().__init__(epsilon)
        self.note = note


def test_parameters_that_json_cannot_hold_are_no_reason_to_lose_a_fit() -> None:
    grid = {"note": [object()]}
    found = search(Annotated(), grid, guarantee=pure, epsilons=[2.0]).fit(*clouds())
    assert found.privacy_spent_.as_pure() == PureDP(found.privacy_spent_.epsilon, "zero-out")
    if found.passed_:
        with pytest.raises(InvalidRelease):
            found.certificate()
