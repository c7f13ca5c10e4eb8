"""A job on a secret number of rows: what is released follows the public number."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import expost
from expost.budget.budgets import ApproxBudget
from expost.budget.ledger import Ledger
from expost.errors import InvalidGuarantee
from expost.randomness.source import SimulationRandomness
from expost.tuning.model.scoring import Score
from expost.tuning.request.settings import GoalSettings
from expost.tuning.runs.candidates import TrainAndScore
from expost.tuning.runs.run_attempts import Journal
from tests.tuning.jobs import clouds, job

STEPS = 1 << 16
GOALS = [
    GoalSettings("accuracy", 0.8),
    GoalSettings("accuracy", 1 / 3),
    GoalSettings("accuracy", None),
    GoalSettings("mse", 2.5, 10.0),
    GoalSettings("mse", None, 10.0),
]


@pytest.mark.parametrize("goal", GOALS)
def test_one_row_moves_a_centred_sum_by_at_most_the_sensitivity(goal: GoalSettings) -> None:
    """Over all decisions that a row can get, and an empty place; some row reaches the bound."""
    score = Score(goal, 0.1, centred=True)
    decided = np.concatenate([np.linspace(-9, 9, 37), [np.nan, np.inf]])
    moves = [
        score.sum_of(np.array([one]), np.array([truth]))
        for one in decided
        for truth in (0.0, np.nan)
    ]
    assert max(map(abs, moves)) <= score.sensitivity <= STEPS
    assert {0 - score.centre, STEPS - score.centre} <= set(moves)
    assert score.sensitivity == max(score.centre, STEPS - score.centre)
    assert score.deviation == pytest.approx(
        score.sensitivity / STEPS * (goal.loss_bound or 1) * 5**0.5
    )


@pytest.mark.parametrize("rows", [5, 10, 40])
def test_a_wrong_number_does_not_move_the_decision_at_the_bar(rows: int) -> None:
    """Ten rows are scored. With the right number the score is the accuracy up to a step."""
    score, source = (
        Score(GoalSettings("accuracy", 0.7), None, centred=True),
        SimulationRandomness(1),
    )
    truth = np.ones(10)
    for correct in range(11):
        decided = np.where(np.arange(10) < correct, 1.0, 0.0)
        found = score(decided, truth, source, rows)
        assert (found >= 0.7) == (correct > 7)  # 7 of 10 is the goal, less what was rounded
        if rows == 10:
            assert correct / 10 - 2 / STEPS <= found <= correct / 10


def test_a_squared_error_is_rounded_against_the_model() -> None:
    score, source = Score(GoalSettings("mse", 2.5, 10.0), None, True), SimulationRandomness(1)
    assert -1.0 - 3 / STEPS * 10 <= score(np.ones(4), np.zeros(4), source, 4) <= -1.0
    assert score(np.full(4, np.nan), np.zeros(4), source, 4) == pytest.approx(-10, abs=1e-3)
    assert score(np.zeros(0), np.zeros(0), source, 4) == -2.5


def test_the_noise_of_a_centred_score() -> None:
    score = Score(GoalSettings("accuracy", 0.8), 0.05, centred=True)
    source = SimulationRandomness(3)
    decided, truth = np.ones(100), np.where(np.arange(100) < 60, 1.0, 0.0)
    found = np.array([score(decided, truth, source, 100) for _ in range(2000)])
    assert score.deviation == pytest.approx(0.8 * 10**0.5, rel=1e-4)
    assert found.std() == pytest.approx(score.deviation / 100, rel=0.08)
    assert found.mean() == pytest.approx(0.6, abs=5 * score.deviation / 100 / 2000**0.5)


# Whole jobs


def test_no_number_of_rows_fails_or_shows(tmp_path: Path) -> None:
    """Charges, plan and certificate's numbers are those of the public number."""
    seen = set()
    for count in (0, 1, 150, 300, 900):
        X, y = clouds(max(count, 1))
        ledger = Ledger.create(tmp_path / f"{count}.db", ApproxBudget(100, 0.01))
        result = expost.tune(job(data={"rows": 300}), X[:count], y[:count], ledger=ledger)
        assert result.spent.neighbours == "add-remove"
        details = result.details
        seen.add(
            (
                result.worst_case.epsilon,
                result.forecast.scoring_rows,
                json.dumps([details["rows"], details["schedule"]], sort_keys=True),
            )
        )
    assert len(seen) == 1


@pytest.mark.parametrize("rows", [None, 300])
def test_odd_rows_do_not_stop_a_job(rows: int | None) -> None:
    """NaN, labels outside, and the only row of a class: before, each decided between a model and
    an error.
    """
    X, y = clouds()
    y = np.zeros(300)
    y[0], X[1], y[2] = 1, np.nan, 77
    result = expost.tune(job(data={"rows": rows}, goal={"at_least": 0.5}), X, y)
    assert result.attempts


def test_a_budget_for_presence_asks_for_a_public_number(tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path / "ledger.db", ApproxBudget(100, 0.01))
    with pytest.raises(InvalidGuarantee, match=r"zero-out.*data\.rows"):
        expost.tune(job(), *clouds(), ledger=ledger)
    assert [entry.action for entry in ledger.entries()] == ["create"]


def test_an_interrupted_job_keeps_its_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches coins that are tossed again: both splits together would tell more than one."""
    seen: list[Any] = []

    real = TrainAndScore.run_together

    def stop(self: TrainAndScore, calls: Any, data: Any, randomness: Any) -> Any:
        if data["job"] == "rehearsal":
            return real(self, calls, data, randomness)
        seen.append(data)
        raise KeyboardInterrupt

    monkeypatch.setattr(TrainAndScore, "run_together", stop)
    told, out = job(data={"rows": 300}, search={"epsilons": [4]}), tmp_path / "out"
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            expost.tune(told, *clouds(), out=out)
    assert len(seen) == 2
    assert np.array_equal(seen[0]["score_X"], seen[1]["score_X"])
    record = json.loads((out / "attempts.json").read_text())
    assert len(bytes.fromhex(record["key"])) == 32
    assert (out / "attempts.json").stat().st_mode & 0o777 == 0o600
    monkeypatch.undo()
    expost.tune(told, *clouds(), out=out)
    assert not any(record["key"] in path.read_text("latin-1") for path in out.iterdir())


def test_a_journal_keeps_the_first_key(tmp_path: Path) -> None:
    first = Journal(tmp_path, {"job": "a"}, b"1" * 32)
    first.begin()
    first.close()
    second = Journal(tmp_path, {"job": "a"}, b"2" * 32)
    assert second.key == b"1" * 32
    second.close()
