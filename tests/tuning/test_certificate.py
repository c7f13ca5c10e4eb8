"""End to end on tiny data: what is released, what it says, and what it does not say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import expost
from expost.errors import InvalidInput, SimulationOnly
from expost.mechanisms import FAILED, NOTHING
from expost.privacy.guarantees import ApproxDP
from expost.randomness.source import SimulationRandomness
from expost.selection.release import Release
from expost.tuning import load_model
from expost.tuning.runs.candidates import TrainAndScore
from tests.tuning.jobs import clouds, job, line, write


def simulate(config: Any, X: Any, y: Any, seed: int = 1, **more: Any) -> Any:
    return expost.tune(config, X, y, randomness=SimulationRandomness(seed), simulation=True, **more)


def test_the_cheapest_model_that_passes() -> None:
    X, y = clouds()
    result = simulate(job(), X, y)
    assert result.passed
    assert result.score >= 0.7
    assert set(result.params) == {"epsilon", "learning_rate", "epochs", "batch_size", "clip"}
    steps = result.forecast.steps
    last = result.attempts[-1].release
    made = steps[len(result.attempts) - 1]
    assert last.passed
    assert last.spent == made.charges[last.index]
    assert made.selector.verify(last, made.candidates)
    paid = [step.charges.nothing for step in steps[: len(result.attempts) - 1]]
    assert result.spent.epsilon == pytest.approx(
        sum(each.epsilon for each in paid) + last.spent.epsilon
    )
    assert result.spent.delta == 1e-4  # the job's δ, however many attempts were made
    assert result.worst_case.epsilon >= max(step.charges.worst_case.epsilon for step in steps)
    assert np.mean(result.model.predict(X) == y) > 0.8
    assert result.release.simulated


def test_params_show_the_axes_that_are_given() -> None:
    more = {
        "optimisers": ["adam"],
        "schedules": ["cosine"],
        "weight_decays": [0.01],
        "class_weights": [[1, 2]],
        "learning_rates": [0.3],
    }
    X, y = clouds()
    result = simulate(job(search=more), X, y)
    assert result.passed
    found = {key: result.as_dict()["params"][key] for key in list(result.params)[5:]}
    assert found == {
        "optimiser": "adam",
        "schedule": "cosine",
        "weight_decay": 0.01,
        "class_weights": [1.0, 2.0],
    }
    for wrong, field in (
        ({"class_weights": [[1, 2, 3]]}, "class_weights"),
        ({"class_weights": [[1, 1e9]]}, "class_weights"),
        ({"weight_decays": [5]}, "weight_decay"),
    ):
        with pytest.raises(InvalidInput, match=field):
            simulate(job(search=wrong), X, y)


def test_what_a_document_says() -> None:
    X, y = clouds()
    document = simulate(job(), X, y).as_dict()
    assert list(document)[:9] == [
        "params",
        "score",
        "passed",
        "certified",
        "confidence",
        "spent",
        "worst_case",
        "theorem",
        "model",
    ]
    assert set(document["spent"]) == set(document["worst_case"]) == {"epsilon", "delta"}
    assert document["spent"]["delta"] == 1e-4
    assert document["model"] is None
    assert 0 < document["spent"]["epsilon"] <= document["worst_case"]["epsilon"]
    json.dumps(document, allow_nan=False)


@pytest.mark.usefixtures("pictures")
def test_a_folder_holds_certificate_model_and_picture_and_nothing_else(tmp_path: Path) -> None:
    config = write(tmp_path)
    result = expost.tune(config, out=tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "model.npz",
        "privacy.png",
        "release.json",
    ]
    assert (tmp_path / "out" / "privacy.png").read_bytes().startswith(b"\x89PNG")
    text = (tmp_path / "out" / "release.json").read_text(encoding="utf-8")
    record = json.loads(text)
    certificate = Release.from_json(text)
    assert certificate.spent == result.release.spent
    assert not certificate.simulated
    assert certificate.value["model"] == "model.npz"
    terms = record["tuning"]
    assert terms["rows"] == {"training": 240, "scoring": 60}
    assert "disjoint" in terms["scoring"]
    assert terms["goal"] == {
        "metric": "accuracy",
        "value": 0.7,
        "loss_bound": None,
        "confidence": 0.9,
        "class_shares": None,
        "target_variance": None,
        "metric_bounds": None,
        "larger_is_better": True,
        "certified": "accuracy",
        "range": [0.0, 1.0],
    }
    assert (record["schema"], record["kind"]) == (2, "tuning")
    assert len(terms["attempts"]) == len(result.attempts)
    bounds = terms["confidence"]
    assert bounds["confidence"] == 0.9
    assert 0.7 <= bounds["bound_on_scoring_rows"] < bounds["noisy_score"]
    assert bounds["bound_on_population"] < bounds["bound_on_scoring_rows"]
    X, _ = clouds()
    loaded = load_model(tmp_path / "out" / "model.npz")
    assert np.array_equal(loaded.predict(X), result.model.predict(X))
    for secret in ("kept", "draws", '"runs"', "seconds", str(tmp_path)):
        assert secret not in text
    with pytest.raises(InvalidInput, match="finished job"):
        expost.tune(config, out=tmp_path / "out")


def test_nothing_that_ran_but_lost_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scores: list[float] = []
    real = TrainAndScore.run_together

    def note(self: TrainAndScore, calls: Any, data: Any, randomness: Any) -> Any:
        outputs = real(self, calls, data, randomness)
        if data["job"] == "rehearsal":
            return outputs
        scores.extend(output.score for output in outputs)
        return outputs

    monkeypatch.setattr(TrainAndScore, "run_together", note)
    X, y = clouds()
    wide = job(
        search={"learning_rates": [1, 2, 3, 4, 5]},
        goal={"at_least": None, "maximize": True},
        privacy={"repeats": 4, "overhead": 2},
    )
    result = simulate(wide, X, y, out=tmp_path / "out")
    losing = {
        score for score in scores if score != result.score and len(repr(score)) > 10
    }  # short ones may be anything
    assert len(losing) > 1
    texts = [
        (tmp_path / "out" / "release.json").read_text(encoding="utf-8"),
        json.dumps(result.as_dict()),
        repr(result),
    ]
    for text in texts:
        assert not [score for score in losing if repr(score) in text]
        assert '"weight"' not in text
    with np.load(tmp_path / "out" / "model.npz") as archive:
        assert sorted(archive.files) == ["expost", "parameter:bias", "parameter:weight"]


def test_maximise_takes_the_whole_grid() -> None:
    X, y = clouds()
    result = simulate(job(goal={"at_least": None, "maximize": True}), X, y)
    assert result.release.passed is None
    assert result.passed is result.as_dict()["passed"] is True
    assert result.release.selector["at_least"] is None


def test_public_scoring_says_so(tmp_path: Path) -> None:
    X, y = clouds()
    np.savez(tmp_path / "test.npz", X=X[:50], y=y[:50])
    config = job(data={"public_test": str(tmp_path / "test.npz")}, privacy={"scoring": "public"})
    result = simulate(config, X[50:], y[50:])
    assert "declared public" in result.details["scoring"]
    assert result.details["rows"] == {"training": 250, "scoring": 50}
    assert result.details["score_noise"] == 0
    assert result.score * 50 == round(result.score * 50)


def test_regression() -> None:
    X, y = line(1500)
    config = job(
        data={"classes": None, "target_bounds": [0, 10]},
        model={"kind": "linear"},
        search={"learning_rates": [0.3], "epochs": [20], "batch_sizes": [100]},
        goal={"metric": "mse", "at_least": None, "at_most": 5, "loss_bound": 25},
    )
    result = simulate(config, X, y)
    assert result.passed
    error = np.mean((result.model.predict(X) - y) ** 2)
    assert error < 6
    assert (
        abs(result.score + error) < 5 * result.details["score_noise"]
    )  # the score is minus the error on held-out rows, and noise


def test_every_run_failing_is_an_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    real = TrainAndScore.run_together

    def fail(self: TrainAndScore, calls: Any, data: Any, randomness: Any) -> Any:
        if data["job"] != "rehearsal":
            raise MemoryError
        return real(self, calls, data, randomness)

    monkeypatch.setattr(TrainAndScore, "run_together", fail)
    X, y = clouds()
    failures: list[object] = []
    result = simulate(job(), X, y, on_failure=lambda _, error: failures.append(error))
    assert result.release.value is NOTHING  # with a goal a failure is a miss like any other
    assert (result.model, result.score, result.passed) == (None, None, False)
    assert isinstance(result.spent, ApproxDP)
    assert failures
    best = simulate(job(goal={"at_least": None, "maximize": True}), X, y)
    assert best.release.value is FAILED
    assert (best.model, best.score, best.passed) == (None, None, False)


def test_seeds_are_for_simulations() -> None:
    X, y = clouds()
    with pytest.raises(SimulationOnly):
        expost.tune(job(), X, y, randomness=SimulationRandomness(1))


def test_importing_expost_stays_light_and_knows_tune() -> None:
    assert callable(expost.tune)
    with pytest.raises(AttributeError, match="tuna"):
        expost.tuna  # noqa: B018
