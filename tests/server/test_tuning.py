"""Tuning at a desk: prices, refusals, and a job that is killed and continues."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from expost.errors import InvalidInput
from expost.server import runner
from expost.server.charging import AtTicks
from expost.server.people import Person
from expost.server.service import Service
from expost.server.settings import Settings
from tests.server.desk import JOB, furnish, open_desk

ROOT = Path(__file__).parent.parent.parent
ANN, ADA, OLGA = (
    Person("ann", "analyst"),
    Person("ada", "auditor"),
    Person("olga", "owner"),
)


def test_price_and_checks(tmp_path: Path) -> None:
    with open_desk(tmp_path, threads=0) as made:
        price = made.service.price(ANN, JOB)
        assert price["delta"] == 1e-5
        assert price["plan"]["reach"]
        assert price["question"]["privacy"] == {"delta": 1e-5}
        assert made.service.entries(ADA, budget="models")[1:] == []
        for wrong in (
            {"model": {"kind": "os:system"}},
            {"model": {"kind": "tests.server.desk:open_desk"}},
            {"search": {}},
            {"goal": {"metric": "accuracy"}},
            {"privacy": {"delta": 2}},
            {"dataset": "visits"},
        ):
            with pytest.raises(InvalidInput):
                made.service.price(ANN, JOB | wrong)
            with pytest.raises(InvalidInput):
                made.service.ask(ANN, JOB | wrong, "wrong")


def test_a_job_that_the_budget_cannot_pay(tmp_path: Path) -> None:
    with open_desk(tmp_path) as made:
        made.service.change_budget(OLGA, "models", "less", 0.01)
        view = made.wait(made.ask("ann", JOB, "too dear").json()["id"], seconds=60)
        assert view["status"] == "refused"
        assert view["refusal"]["requested"]["epsilon"] > 0.01
        actions = [each["action"] for each in made.service.entries(ADA, budget="models")]
        assert actions == ["create", "change"]


def start(home: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.server.tuning_process", str(home)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
    )


def test_a_killed_job_continues(tmp_path: Path) -> None:
    """The same draws, one charge per attempt, one answer."""
    service = Service(Settings(tmp_path / "desk", tick=0.0, threads=0))
    furnish(service, tmp_path)
    slow = JOB | {"search": JOB["search"] | {"epochs": [20.0]}}  # type: ignore[operator]
    view = service.ask(ANN, slow, "a long job")
    first = start(tmp_path / "desk")
    ledger = service._ledgers.ledger  # people see nothing of a running job
    reserved = _until(lambda: [e for e in ledger.entries() if e.action == "reserve"], 60)
    assert [each["action"] for each in _entries(service)] == ["create"]
    first.kill()
    first.wait()
    second = start(tmp_path / "desk")
    try:
        done = _until(lambda: _final(service, view["id"]), 90)
    finally:
        second.kill()
        second.wait()
    assert done["status"] in ("done", "missed")
    entries = _entries(service)
    begun = [each["reservation"] for each in entries if each["action"] == "reserve"]
    ended = [each["reservation"] for each in entries if each["action"] == "settle"]
    assert begun == ended
    assert begun[0] == reserved[0].reservation  # the reservation of the killed process
    assert len(set(begun)) == len(begun)
    found = service.release(ANN, view["id"])
    tuning = found["certificate"]["tuning"]
    assert len(tuning["attempts"]) == len(begun)
    assert not any("lost" in each.get("outcome", "") for each in tuning["attempts"])
    assert [each["reservation"] for each in found["certificate"]["ledger"]] == begun
    assert service.verify(ADA)["valid"]
    past = service.history(ADA, "models")  # every attempt belongs to its data set
    assert past["by_dataset"] == {"digits": pytest.approx(past["points"][-1]["spent"])}
    assert past["by_dataset"]["digits"] > 0
    assert "jobs" not in json.dumps(found)
    service.close()


def test_a_job_that_cannot_end_is_settled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An attempt that was begun and fails every time stays charged at its worst case."""
    with open_desk(tmp_path, threads=0) as made:
        service = made.service
        real = AtTicks.settle

        def broken(self: AtTicks, reservation: Any, outcome: object, **more: Any) -> Any:
            raise MemoryError("row 12")

        monkeypatch.setattr(AtTicks, "settle", broken)
        monkeypatch.setattr(runner, "MOST_TRIES", 2)
        view = service.ask(ANN, JOB, "fails")
        for _ in range(2):
            row = _until(lambda: service._queue.claim(service.runner.name, "here", 30.0), 30)
            service.runner.run_one(row)
        monkeypatch.setattr(AtTicks, "settle", real)
        shown = service.request(ANN, view["id"])
        assert shown["status"] == "no answer"
        actions = [each["action"] for each in _entries(service)]
        assert actions == ["create", "reserve", "abandon"]
        standing = service.budget(ADA, "models")
        assert standing["held"]["epsilon"] == 0
        assert shown["charge"] == standing["settled"]
        history = service.history(ADA, "models")
        assert history["by_dataset"] == {"digits": standing["settled"]["epsilon"]}


def _entries(service: Service) -> list[dict[str, Any]]:
    return service.entries(ADA, budget="models")


def _final(service: Service, identity: str) -> dict[str, Any] | None:
    view = service.request(ANN, identity)
    return None if view["status"] in ("queued", "running") else view


def _until(found: Any, seconds: float) -> Any:
    deadline = time.monotonic() + seconds
    while not (value := found()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return value
