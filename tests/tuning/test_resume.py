"""A job that was interrupted goes on: same draws, one charge, and nothing secret is left behind."""

from __future__ import annotations

import fcntl
import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

import expost
from expost.budget.budgets import ApproxBudget
from expost.budget.ledger import Ledger
from expost.errors import CheckpointMismatch, InvalidInput
from expost.execution.engine import SelectionState
from expost.randomness.source import SimulationRandomness
from expost.selection.release import Release
from expost.tuning.job import Journal
from expost.tuning.runs.candidates import TrainAndScore
from tests.tuning.jobs import clouds, job

REAL = TrainAndScore.run_together


def interrupted(monkeypatch: pytest.MonkeyPatch, after: int = 0) -> list[list[Any]]:
    """Interrupt the training after ``after`` fleets and record which candidates were asked for."""
    asked: list[list[Any]] = []

    def stop(self: TrainAndScore, calls: Any, data: Any, randomness: Any) -> Any:
        if data["job"] == "rehearsal":
            return REAL(self, calls, data, randomness)
        asked.append([call.configuration for call in calls])
        if len(asked) > after:
            raise KeyboardInterrupt
        return REAL(self, calls, data, randomness)

    monkeypatch.setattr(TrainAndScore, "run_together", stop)
    return asked


def recording(monkeypatch: pytest.MonkeyPatch) -> list[list[Any]]:
    asked: list[list[Any]] = []

    def note(self: TrainAndScore, calls: Any, data: Any, randomness: Any) -> Any:
        if data["job"] != "rehearsal":
            asked.append([call.configuration for call in calls])
        return REAL(self, calls, data, randomness)

    monkeypatch.setattr(TrainAndScore, "run_together", note)
    return asked


def test_same_draws_and_one_charge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger.create(tmp_path / "ledger.db", ApproxBudget(100, 0.01, "zero-out"))
    out = tmp_path / "out"
    wide = job(search={"learning_rates": [1, 2, 3, 4]}, privacy={"repeats": 2})
    first = interrupted(monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        expost.tune(wide, *clouds(), ledger=ledger, out=out)
    files = {path.name: stat.S_IMODE(path.stat().st_mode) for path in out.iterdir()}
    (checkpoint,) = [name for name in files if name.startswith("checkpoint-")]
    assert files[checkpoint] == files["attempts.json"] == 0o600
    second = recording(monkeypatch)
    result = expost.tune(wide, *clouds(), ledger=ledger, out=out)
    assert second[: len(first)] == first
    kinds = [entry.action for entry in ledger.entries()]
    assert kinds == ["create", *["reserve", "settle"] * len(result.attempts)]
    assert ledger.standing().as_dict()["settled"]["epsilon"] == result.spent.epsilon
    assert sorted(path.name for path in out.iterdir()) == [
        "model.npz",
        "privacy.png",
        "release.json",
    ]


def test_a_progress_bar_that_has_moved_is_no_other_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches a checkpoint that knows the state of the callback, and refuses the same command."""
    interrupted(monkeypatch)
    for moved in ([], [(1.0, 2.0)]):
        bar = list(moved)

        def progress(done: float, total: float, bar: list[tuple[float, float]] = bar) -> None:
            bar.append((done, total))

        if not moved:
            with pytest.raises(KeyboardInterrupt):
                expost.tune(job(), *clouds(), out=tmp_path / "out", progress=progress)
            recording(monkeypatch)
        else:
            result = expost.tune(job(), *clouds(), out=tmp_path / "out", progress=progress)
    assert len(bar) > 1
    assert len(result.attempts) >= 1


def test_finished_attempts_are_not_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger.create(tmp_path / "ledger.db", ApproxBudget(100, 0.01, "zero-out"))
    hopeless = job(goal={"at_least": 0.95}, search={"epsilons": [4]}, privacy={"attempts": 2})
    rows = clouds(noise=20.0)
    begin = Journal.begin

    def second(self: Journal) -> None:  # whether or not the draws of an attempt keep a candidate
        begin(self)
        if self.attempts:
            raise KeyboardInterrupt

    monkeypatch.setattr(Journal, "begin", second)
    with pytest.raises(KeyboardInterrupt):
        expost.tune(hopeless, *rows, ledger=ledger, out=tmp_path / "out")
    kinds = [entry.action for entry in ledger.entries()]
    assert kinds == ["create", "reserve", "settle", "reserve"]
    monkeypatch.undo()
    result = expost.tune(hopeless, *rows, ledger=ledger, out=tmp_path / "out")
    assert [entry.action for entry in ledger.entries()] == [*kinds, "settle"]
    assert len(result.attempts) == 2


def stop(*_: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(("owner", "method"), [(Journal, "add"), (SelectionState, "finish")])
def test_no_crash_loses_a_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: type, method: str
) -> None:
    """Stopped after the ledger was settled, before or after the release was recorded."""
    ledger = Ledger.create(tmp_path / "ledger.db", ApproxBudget(100, 0.01, "zero-out"))
    out = tmp_path / "out"
    easy = job(goal={"at_least": 0.2})
    monkeypatch.setattr(owner, method, stop)
    with pytest.raises(KeyboardInterrupt):
        expost.tune(easy, *clouds(), ledger=ledger, out=out)
    monkeypatch.undo()
    settled = ledger.standing().as_dict()["settled"]["epsilon"]
    result = expost.tune(easy, *clouds(), ledger=ledger, out=out)
    assert [each.release is None for each in result.attempts] == [False] * len(result.attempts)
    assert result.attempts[0].spent.epsilon == settled
    assert not list(out.glob("checkpoint*"))
    kinds = [entry.action for entry in ledger.entries()]
    assert kinds == ["create", *["reserve", "settle"] * len(result.attempts)]


def test_an_attempt_whose_checkpoint_was_removed_counts_at_its_worst(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    monkeypatch.setattr(Journal, "add", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        expost.tune(job(), *clouds(), out=out)
    monkeypatch.undo()
    (out / "checkpoint-1").unlink()
    assert json.loads((out / "attempts.json").read_text())["begun"] == 1
    result = expost.tune(job(), *clouds(), out=out)
    assert [each.release is None for each in result.attempts][:2] == [True, False]
    assert result.spent.epsilon > result.forecast.charges.worst_case.epsilon
    assert result.spent.delta == 1e-4
    assert "lost in a crash" in result.certificate()
    assert Release.load(out / "release.json").spent <= result.worst_case


def test_a_lost_attempt_is_not_forgotten_by_a_second_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    for method in (
        "add",
        "begin",
    ):  # after the first attempt was settled; after the second was reserved, before it was noted
        monkeypatch.setattr(Journal, method, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            expost.tune(job(), *clouds(), out=out)
        monkeypatch.undo()
        (out / "checkpoint-1").unlink(missing_ok=True)
    result = expost.tune(job(), *clouds(), out=out)
    assert [each.release is None for each in result.attempts] == [True, False]


def test_another_job_does_not_go_on_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The refusal says what differs: settings by name, the ledger, or the data."""
    out = tmp_path / "out"
    ledger = Ledger.create(tmp_path / "ledger.db", ApproxBudget(100, 0.01, "zero-out"))
    monkeypatch.setattr(Journal, "add", stop)
    with pytest.raises(KeyboardInterrupt):
        expost.tune(job(), *clouds(), out=out)
    monkeypatch.undo()

    def refusal(described: dict[str, Any], *rows: Any, **how: Any) -> str:
        with pytest.raises(CheckpointMismatch, match="another folder") as caught:
            expost.tune(described, *rows, out=out, **how)
        return str(caught.value).partition("unfinished job ")[2].partition(". To continue")[0]

    X, y = clouds()
    other = job(goal={"at_least": 0.6}, privacy={"delta": 1e-5})
    assert refusal(other, X, y) == "with other settings (the goal, privacy.delta)"
    bounds = job(data={"feature_bounds": [0, 2]})
    assert refusal(bounds, X, y) == "with other settings (data.feature_bounds)"
    assert refusal(job(), X, y, ledger=ledger) == "that has no ledger"
    X[0, 0] += 0.1
    assert refusal(job(), X, y) == "with other data"
    assert [entry.action for entry in ledger.entries()] == ["create"]


def test_a_job_with_a_ledger_does_not_go_on_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    ledger = Ledger.create(tmp_path / "ledger.db", ApproxBudget(100, 0.01, "zero-out"))
    monkeypatch.setattr(Journal, "add", stop)
    with pytest.raises(KeyboardInterrupt):
        expost.tune(job(), *clouds(), out=out, ledger=ledger)
    monkeypatch.undo()
    with pytest.raises(CheckpointMismatch, match="unfinished job that has a ledger"):
        expost.tune(job(), *clouds(), out=out)
    with pytest.raises(CheckpointMismatch, match="with another ledger, budget or analyst"):
        expost.tune(job(), *clouds(), out=out, ledger=ledger, analyst="ana")


def test_a_finished_folder_is_refused_before_the_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches seconds of planning before a refusal that needs none of it."""
    (tmp_path / "release.json").write_text("{}")
    monkeypatch.setattr("expost.tuning.job._prepared", stop)
    with pytest.raises(InvalidInput, match="finished job"):
        expost.tune(job(), *clouds(), out=tmp_path)


def test_a_folder_is_held_by_one_process(tmp_path: Path) -> None:
    held = Journal(tmp_path / "out", {"job": "this"})
    with pytest.raises(CheckpointMismatch, match="in use"):
        Journal(tmp_path / "out", {"job": "this"})
    held.close()
    Journal(tmp_path / "out", {"job": "this"}).close()


def test_a_finished_folder_is_cleared_of_what_a_crash_left_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    replace = os.replace
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        expost.tune(job(), *clouds(), out=out)  # a draft of attempts.json stays
    monkeypatch.setattr(os, "replace", replace)
    monkeypatch.setattr(Journal, "finish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        expost.tune(job(), *clouds(), out=out)
    monkeypatch.undo()
    assert len(list(out.iterdir())) > 3
    with pytest.raises(InvalidInput, match="finished"):
        expost.tune(job(), *clouds(), out=out)
    assert sorted(path.name for path in out.iterdir()) == [
        "model.npz",
        "privacy.png",
        "release.json",
    ]


def test_who_comes_while_another_finishes_does_not_start_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Journal(tmp_path / "out", {"job": "this"})
    lock = fcntl.flock

    def late(*arguments: Any) -> None:
        held.finish()
        held.close()
        lock(*arguments)

    monkeypatch.setattr(fcntl, "flock", late)
    with pytest.raises(CheckpointMismatch, match="in use"):
        Journal(tmp_path / "out", {"job": "this"})


@pytest.mark.parametrize("after", [0, 1])
def test_a_simulation_does_not_go_on_as_a_real_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    hopeless = job(
        goal={"at_least": 0.95}, search={"epsilons": [4]}, privacy={"attempts": 8, "repeats": 4}
    )
    rows = clouds(noise=20.0)
    interrupted(monkeypatch, after=after)
    with pytest.raises(KeyboardInterrupt):
        expost.tune(
            hopeless,
            *rows,
            out=tmp_path / "out",
            randomness=SimulationRandomness(1),
            simulation=True,
        )
    monkeypatch.undo()
    with pytest.raises(CheckpointMismatch):
        expost.tune(hopeless, *rows, out=tmp_path / "out")
