"""A job that was interrupted goes on: same draws, one charge, and nothing secret is left behind."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest

import expost
from expost.budget.ledger import Ledger
from expost.budget.terms import ApproxBudget
from expost.errors import CheckpointMismatch
from expost.tuning.api import Journal
from expost.tuning.candidates import TrainAndScore
from tests.tuning.jobs import clouds, job

REAL = TrainAndScore.run_together


def interrupted(monkeypatch: pytest.MonkeyPatch, after: int = 0) -> list[list[Any]]:
    """The training is interrupted after so many fleets; which candidates were asked for is noted."""
    asked: list[list[Any]] = []

    def stop(self: TrainAndScore, calls: Any, data: Any, randomness: Any) -> Any:
        asked.append([call.configuration for call in calls])
        if len(asked) > after:
            raise KeyboardInterrupt
        return REAL(self, calls, data, randomness)

    monkeypatch.setattr(TrainAndScore, "run_together", stop)
    return asked


def recording(monkeypatch: pytest.MonkeyPatch) -> list[list[Any]]:
    asked: list[list[Any]] = []

    def note(self: TrainAndScore, calls: Any, data: Any, randomness: Any) -> Any:
        asked.append([call.configuration for call in calls])
        return REAL(self, calls, data, randomness)

    monkeypatch.setattr(TrainAndScore, "run_together", note)
    return asked


def test_same_draws_and_one_charge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger.create(tmp_path / "ledger.db", ApproxBudget(100, 0.01))
    out = tmp_path / "out"
    wide = job(search={"learning_rates": [1, 2, 3, 4]}, privacy={"repeats": 2})
    first = interrupted(monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        expost.tune(wide, *clouds(), ledger=ledger, out=out)
    files = {path.name: stat.S_IMODE(path.stat().st_mode) for path in out.iterdir()}
    assert files["checkpoint"] == files["attempts.json"] == 0o600
    second = recording(monkeypatch)
    result = expost.tune(wide, *clouds(), ledger=ledger, out=out)
    assert second == first
    assert [entry.action for entry in ledger.entries()] == ["create", "reserve", "settle"]
    assert ledger.standing().as_dict()["settled"]["epsilon"] == result.spent.epsilon
    assert sorted(path.name for path in out.iterdir()) == ["model.npz", "privacy.png", "release.json"]


def test_finished_attempts_are_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger.create(tmp_path / "ledger.db", ApproxBudget(100, 0.01))
    hopeless = job(goal={"at_least": 1.0}, search={"epsilons": [4]}, privacy={"attempts": 2})
    rows = clouds(noise=1.0)
    interrupted(monkeypatch, after=1)
    with pytest.raises(KeyboardInterrupt):
        expost.tune(hopeless, *rows, ledger=ledger, out=tmp_path / "out")
    kinds = [entry.action for entry in ledger.entries()]
    assert kinds == ["create", "reserve", "settle", "reserve"]
    recording(monkeypatch)
    result = expost.tune(hopeless, *rows, ledger=ledger, out=tmp_path / "out")
    assert [entry.action for entry in ledger.entries()] == [*kinds, "settle"]
    assert len(result.attempts) == 2


def test_an_attempt_whose_outcome_was_lost_counts_at_its_worst(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    monkeypatch.setattr(Journal, "add", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        expost.tune(job(), *clouds(), out=out)
    monkeypatch.undo()
    assert json.loads((out / "attempts.json").read_text())["begun"] == 1
    result = expost.tune(job(), *clouds(), out=out)
    assert [each.release is None for each in result.attempts] == [True, False]
    assert result.spent.epsilon > result.forecast.charges.worst_case.epsilon
    assert result.spent.delta == pytest.approx(2e-4)
    assert "lost in a crash" in result.certificate()


@pytest.mark.parametrize("change", ["settings", "data"])
def test_another_job_does_not_go_on_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    interrupted(monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        expost.tune(job(), *clouds(), out=tmp_path / "out")
    monkeypatch.undo()
    X, y = clouds()
    if change == "data":
        X[0, 0] += 0.1
    with pytest.raises(CheckpointMismatch, match="another folder"):
        expost.tune(job(goal={"at_least": 0.6 if change == "settings" else 0.7}), X, y, out=tmp_path / "out")


def test_a_folder_is_held_by_one_process(tmp_path: Path) -> None:
    held = Journal(tmp_path / "out", {"job": "this"})
    with pytest.raises(CheckpointMismatch, match="in use"):
        Journal(tmp_path / "out", {"job": "this"})
    held.close()
    Journal(tmp_path / "out", {"job": "this"}).close()
