"""A miss at every door: the model that was paid, its status, its price, a noisy score, advice."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pandas")

import expost
from expost.budget.budgets import ApproxBudget
from expost.budget.ledger import Ledger
from expost.certificates.document import worst_in_turn
from expost.certificates.verify import verify_certificate
from expost.errors import InvalidInput
from expost.privacy.charges import Charges
from expost.privacy.guarantees import ZERO_OUT, ApproxDP
from expost.randomness.source import SimulationRandomness
from expost.tuning.runs.path_training import TellScore
from tests.fuzz.command import expost as command
from tests.tuning.jobs import clouds
from tests.tuning.jobs import job as grid_job
from tests.tuning.test_noise_reduction import blobs
from tests.tuning.test_noise_reduction import job as blobs_job
from tests.tuning.test_progressive_jobs import job, people

SEEDED: Any = {"randomness": SimulationRandomness(1), "simulation": True}


def coins(count: int = 1500) -> tuple[Any, Any]:
    """Rows whose labels are coins: no model reaches 0.9."""
    X, y = people(count)
    return X, np.random.default_rng(8).permutation(y)


def hopeless(**privacy: Any) -> dict[str, Any]:
    tables = job()
    tables["goal"]["at_least"] = 0.9
    tables["privacy"] |= privacy
    return tables


@pytest.fixture(scope="module")
def missed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path, Any]:
    folder = tmp_path_factory.mktemp("missed")
    ledger = Ledger.create(folder / "book.db", ApproxBudget(5.0, 1e-4, ZERO_OUT))
    result = expost.tune(hopeless(tell=0.3), *coins(), ledger=ledger, out=folder / "out")
    return result, folder / "out", ledger


def test_the_model_that_was_paid_is_released_as_missed(missed: Any) -> None:
    result, folder, ledger = missed
    assert result.passed is False
    assert 0.3 < result.bounds.on_scoring_rows < result.score < 0.8  # of the last look, paid
    assert not (folder / "model.npz").exists()
    X, _ = people(50, seed=3)
    with pytest.warns(UserWarning, match="missed the goal"):
        loaded = expost.load_model(folder)
    assert loaded.passed is False
    assert "passed=False" in repr(loaded)
    assert np.array_equal(loaded.predict(X), result.model.predict(X))
    # The path with the larger ε is released, at its last level; both paths were paid.
    first, second = result.forecast.steps
    assert result.params["epsilon"] == first.candidates[-1].params["epsilon"]
    tops = [step.candidates[-1].params["epsilon"] for step in (first, second)]
    assert tops[0] > tops[1]
    assert result.spent.epsilon == pytest.approx(sum(tops) + 0.3)
    assert result.spent.epsilon <= result.worst_case.epsilon <= 4.0
    assert ledger.remaining()["epsilon"] == pytest.approx(5 - sum(tops) - 0.3)


def test_the_certificate_says_missed_and_names_the_model(missed: Any) -> None:
    import hashlib

    _, folder, _ = missed
    document = json.loads((folder / "release.json").read_text())
    digest = hashlib.sha256((folder / "missed-model.npz").read_bytes()).hexdigest()
    assert document["outcome"] == "missed"
    assert document["value"] == {"model": "missed-model.npz", "sha256": digest}
    assert verify_certificate(document) == []
    assert [each["outcome"] for each in document["requests"]["made"]] == [
        "missed",
        "missed",
        "value",  # the score
    ]
    for change in ("told", "outcome", "passed"):
        forged = json.loads(json.dumps(document))
        if change == "told":
            forged["tuning"]["told"]["spent"]["epsilon"] = 0.1
        else:
            forged[change] = "value" if change == "outcome" else True
        assert verify_certificate(forged), change


def test_a_score_is_told_for_its_epsilon(missed: Any) -> None:
    result, _, _ = missed
    told = result.told
    assert (told.epsilon, told.spent.epsilon, told.spent.delta) == (0.3, 0.3, 0.0)
    assert told.low <= told.score <= told.high
    assert told.high - told.low == pytest.approx(2 * math.log(1 / 0.1) / 0.3 / 525, rel=0.2)
    assert abs(told.score - result.score) < 0.1
    assert any("reaches about" in text for text in result.advice)
    assert result.as_dict()["told"]["score"] == told.score


@pytest.mark.parametrize("tell", [0.01, 0.3, 0.9])
def test_the_score_is_part_of_the_limit(tell: float) -> None:
    plan = expost.plan_job(hopeless(tell=tell, max_epsilon=1.0), *coins(4000))
    assert plan.worst_case.epsilon <= 1.0
    assert plan.worst_case.epsilon > 0.95
    assert plan.all_missed.epsilon == pytest.approx(plan.worst_case.epsilon - tell)
    assert plan.as_dict()["tell"] == tell


def test_scores_that_cannot_be_told_are_refused() -> None:
    for change, word in (
        ({"tell": 4.0}, "less than 4"),
        ({"tell": 0.0}, "at least 0.0001"),
        ({"tell": 0.1, "scoring": "public"}, "public rows is told"),
    ):
        with pytest.raises(InvalidInput, match=word):
            expost.plan_job(hopeless(**change), *coins(100))
    with pytest.raises(InvalidInput, match="releases no model"):
        expost.plan_job(grid_job(privacy={"tell": 0.1}), *clouds())


def test_a_pass_is_not_charged_for_a_score() -> None:
    tables = job()
    tables["privacy"]["tell"] = 0.5
    result = expost.tune(tables, *people(), **SEEDED)
    assert result.passed
    assert (result.told, result.advice) == (None, [])
    assert result.spent.epsilon == result.params["epsilon"]
    assert result.model.passed is True
    # A job with one path: its pass is also its last request.
    tables = blobs_job(privacy__tell=0.5, model__levels=[2.0])
    alone = expost.tune(tables, *blobs(), **SEEDED)
    assert alone.passed
    assert alone.forecast.attempts == 1
    assert alone.told is None
    assert alone.spent.epsilon == alone.params["epsilon"]


def test_the_interval_covers_and_the_noise_has_its_law() -> None:
    """The exact tail of discrete Laplace noise: never beyond 1 − confidence, and close to it."""

    class Count:
        class score:
            sensitivity, step = 1, 1.0

    for epsilon in (0.05, 0.3, 2.0, 7.0):
        teller = TellScore(epsilon, Count, 1, ZERO_OUT)  # type: ignore[arg-type]
        for confidence in (0.5, 0.9, 0.999):
            half = teller.half_width(confidence)
            assert half is not None
            p = math.exp(-epsilon)
            beyond = [2 * p ** (m + 1) / (1 + p) for m in (half, half - 1)]
            assert beyond[0] <= 1 - confidence + 1e-9
            assert half == 0 or beyond[1] > 1 - confidence
    assert TellScore(1.0, Count, 1, "add-remove").half_width(0.9) is None  # type: ignore[arg-type]


def test_the_noise_is_scaled_to_what_one_person_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loss counts in 2^16 steps: noise of scale 1/ε would protect one step only."""
    scales = []

    def noise(scale: Fraction, _: Any) -> int:
        scales.append(scale)
        return 0

    monkeypatch.setattr("expost.tuning.runs.path_training.discrete_laplace", noise)
    tables = hopeless(tell=0.25)
    tables["goal"] = {"metric": "log_loss", "at_most": 0.05, "loss_bound": 4.0}
    result = expost.tune(tables, *coins(), **SEEDED)
    assert scales == [2**16 / Fraction(0.25)]
    assert 0.4 < result.told.score < 1.5  # a loss, in its own direction
    assert result.told.low < result.told.score < result.told.high
    assert result.advice[0].startswith("a higher goal (at_most)")


def test_attempts_that_miss_release_nothing() -> None:
    result = expost.tune(grid_job(goal={"at_least": 0.95}), *clouds(noise=0.6), **SEEDED)
    assert not result.passed
    assert (result.model, result.told) == (None, None)
    assert "other levels or settings" in result.advice


def test_public_rows_tell_the_score_of_a_miss(tmp_path: Path) -> None:
    X, y = coins(900)
    public = tmp_path / "public.csv"
    X.assign(label=y).iloc[:300].to_csv(public, index=False)
    X.assign(label=y).iloc[300:].to_csv(tmp_path / "rows.csv", index=False)
    tables = hopeless(scoring="public", max_epsilon=0.5)
    tables["data"] |= {
        "path": str(tmp_path / "rows.csv"),
        "public_test": str(public),
        "target": "label",
    }
    result = expost.tune(tables, **SEEDED)
    assert result.passed is False
    right = np.mean(result.model.predict(X.iloc[:300]) == y[:300])
    assert result.score == pytest.approx(right)
    assert any("reaches about" in text for text in result.advice)


def test_the_command_ends_with_code_5_and_says_what_to_try(tmp_path: Path) -> None:
    X, y = coins(1200)
    X.assign(label=y).to_csv(tmp_path / "rows.csv", index=False)
    options = [
        *("--target", "label", "--at-least", "0.9", "--classes", "no,yes"),
        *("--bounds", "age=17:90", "--bounds", "gain=0:99999"),
        *("--categories", "work=office,field,home", "--tell", "0.2", "--max-epsilon", "1.5"),
    ]
    out = tmp_path / "out"
    made = command("tune", str(tmp_path / "rows.csv"), *options, "--out", str(out))
    assert made.code == 5, made.err
    said = " ".join(made.text.split())
    assert "The job costs at most ε = 1.5" in said
    assert "released as missed" in said
    assert "what to try" in said.lower()
    assert "a lower goal (at_least)" in said
    assert "between" in said
    assert (out / "missed-model.npz").exists()
    shown = command("certificate", str(out / "release.json"))
    assert "missed: a model" in " ".join(shown.out.split())
    assert command("certificate", "verify", str(out / "release.json")).code == 0


def test_a_secret_number_of_rows_is_told_without_an_interval() -> None:
    tables = hopeless(tell=0.5)
    tables["data"]["rows"] = 1500
    for rows in (0, 1, 1500):
        result = expost.tune(tables, *coins(rows), **SEEDED)
        assert result.passed is False
        assert result.model is not None
        assert 0 <= result.told.score <= 1
        assert (result.told.low, result.told.high) == (None, None)
        assert result.bounds.on_scoring_rows == 0  # certifies nothing


def test_the_worst_case_is_that_of_requests_in_turn() -> None:
    """Every sequence of misses that ends with any outcome costs at most the worst case."""
    generator = np.random.default_rng(0)
    for _ in range(200):
        charges = []
        for number in range(int(generator.integers(1, 5))):
            delta = 1e-5 if number == 0 else 0.0
            levels = [ApproxDP(float(x), delta) for x in generator.uniform(0, 2, 3)]
            nothing = ApproxDP(float(generator.uniform(0, 2)), delta)
            charges.append(Charges.from_list(levels, nothing))
        worst = worst_in_turn(charges)
        totals = []
        for last in range(len(charges)):
            before = sum(Fraction(each.nothing.epsilon) for each in charges[:last])  # type: ignore[attr-defined]
            ends = [*charges[last].levels, charges[last].nothing]
            totals += [before + Fraction(each.epsilon) for each in ends]  # type: ignore[attr-defined]
        assert worst.delta == 1e-5  # type: ignore[attr-defined]
        assert float(max(totals)) == pytest.approx(worst.epsilon)  # type: ignore[attr-defined]
        assert max(totals) <= Fraction(worst.epsilon)  # type: ignore[attr-defined]
