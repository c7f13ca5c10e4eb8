"""Tuning at a server: prices, refusals, and a job that is killed and continues."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from expost.budget.ledger import Ledger
from expost.errors import InvalidInput
from expost.server.jobs import runner
from expost.server.people.accounts import Person
from expost.server.server_settings import ServerSettings
from expost.server.service import Service
from tests.server.running_server import JOB, furnish, open_server

ROOT = Path(__file__).parent.parent.parent
ANN, ADA, OLGA = (
    Person("ann", "analyst"),
    Person("ada", "auditor"),
    Person("olga", "owner"),
)


CODE = {"features": "function", "function": "os:system", "dimension": 1}
CHAIN = {"features": "chain", "steps": [CODE | {"features": "encoder"}]}


def test_price_and_checks(tmp_path: Path) -> None:
    with open_server(tmp_path, threads=0) as made:
        price = made.service.price(ANN, JOB)
        assert price["delta"] == 1e-5
        assert price["plan"]["reach"]
        assert price["question"]["privacy"] == {"delta": 1e-5}
        alone = made.service.price(ANN, JOB | {"search": {}, "privacy": {"max_epsilon": 3.0}})
        assert alone["epsilon"] == alone["plan"]["worst_case"] == 3.0  # one training that stops
        assert made.service.entries(ADA, budget="models")[1:] == []
        for wrong in (
            {"model": {"kind": "os:system"}},
            {"model": {"kind": "tests.server.running_server:open_server"}},
            {"search": {"epsilons": []}},
            {"goal": {"metric": "accuracy"}},
            {"privacy": {"delta": 2}},
            {"privacy": {"learn_facts": 0.1}},
            {"dataset": "visits"},
            {"model": {"kind": "softmax", "training": "auto", "features": CODE}},
            {"search": JOB["search"] | {"features": ["plain", CODE]}},  # type: ignore[operator]
            {"search": JOB["search"] | {"features": [CHAIN]}},  # type: ignore[operator]
            {"search": JOB["search"] | {"model": ["os:system"]}},  # type: ignore[operator]
            {"model": {}, "search": JOB["search"] | {"model": ["os:system"]}},  # type: ignore[operator]
        ):
            with pytest.raises(InvalidInput):
                made.service.price(ANN, JOB | wrong)
            with pytest.raises(InvalidInput):
                made.service.ask(ANN, JOB | wrong, "wrong")


def test_a_price_says_what_is_charged_at_most_and_whether_it_fits(tmp_path: Path) -> None:
    """Catches a price below what the job may cost: with levels up to 2 it once cost 5.18."""
    simple = {"dataset": "digits", "kind": "tune", "goal": {"at_least": 0.3}}
    with open_server(tmp_path, threads=0) as server:
        service = server.service
        price = service.price(ANN, simple)
        assert price["question"]["model"] == {"kind": "softmax", "training": "auto"}
        assert price["epsilon"] == price["plan"]["worst_case"] == price["worst_case"]["epsilon"]
        assert price["epsilon"] <= 4
        assert price["fits"]
        assert 0 < price["plan"]["price_of_a_miss"][0] < price["plan"]["all_missed"] <= 4
        told = service.price(ANN, simple | {"privacy": {"tell": 0.5}})
        assert told["plan"]["all_missed"] == pytest.approx(told["epsilon"]) == pytest.approx(4.0)
        small = service.price(ANN, simple | {"privacy": {"max_epsilon": 0.5}})
        assert small["epsilon"] <= 0.5
        service.change_budget(OLGA, "models", "less", 3.0)
        assert not service.price(ANN, simple)["fits"]
        assert service.price(ANN, simple | {"privacy": {"max_epsilon": 0.5}})["fits"]
        both = service.price(ANN, JOB)
        assert both["plan"]["left_out"].startswith("To cost at most privacy.max_epsilon = 4: ")
        assert both["epsilon"] <= 4
        for many in ({"epsilons": [0.01 * n for n in range(1, 99)]}, {"clips": [*range(1, 1100)]}):
            with pytest.raises(InvalidInput, match="a server takes at most 50 levels"):
                service.price(ANN, JOB | {"search": JOB["search"] | many})  # type: ignore[operator]


def test_the_number_of_rows_is_kept_only_where_it_is_public(tmp_path: Path) -> None:
    """Catches a count of the rows that is stored, or priced by, although it is secret."""
    rows = tmp_path / "rows.csv"
    rows.write_text("a,label\n" + "0.5,1\n" * 321, encoding="utf-8")
    facts = {"kind": "rows", "budget": "models", "delta": 1e-5, "source": str(rows)}
    data = {"target": "label", "feature_bounds": [0, 1], "classes": 2}
    with open_server(tmp_path, threads=0) as server:
        for name, more in (("open", {}), ("secret", {"rows": 300})):
            made = server.service.register(OLGA, facts | {"name": name, "data": data | more})
            assert made["places"] == more.get("rows", 321)
            assert ("321" in json.dumps(made)) == (name == "open")
        for who in (ANN, ADA):
            shown = json.dumps(server.service.dataset(who, "open"))
            assert "head" not in shown
            assert str(rows) not in shown


def test_a_job_that_the_budget_cannot_pay(tmp_path: Path) -> None:
    with open_server(tmp_path) as made:
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
    service = Service(ServerSettings(tmp_path / "server", tick=0.0, threads=0))
    furnish(service, tmp_path)
    slow = JOB | {"search": JOB["search"] | {"epochs": [20.0]}}  # type: ignore[operator]
    view = service.ask(ANN, slow, "a long job", "yearly report")
    first = start(tmp_path / "server")
    ledger = service._ledgers.ledger  # people see nothing of a running job
    reserved = _until(lambda: [e for e in ledger.entries() if e.action == "reserve"], 60)
    assert reserved[0].memo == "yearly report"  # the purpose is kept, as the form says
    assert [each["action"] for each in _entries(service)] == ["create"]
    first.kill()
    first.wait()
    second = start(tmp_path / "server")
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
    with open_server(tmp_path, threads=0) as made:
        service = made.service
        real = Ledger.settle

        def broken(self: Ledger, reservation: Any, outcome: object, **more: Any) -> Any:
            raise MemoryError("row 12")

        monkeypatch.setattr(Ledger, "settle", broken)
        monkeypatch.setattr(runner, "MOST_TRIES", 2)
        view = service.ask(ANN, JOB, "fails")
        for _ in range(2):
            row = _until(lambda: service._queue.claim(service.runner.name, "here", 30.0), 30)
            service.runner.run_one(row)
        monkeypatch.setattr(Ledger, "settle", real)
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
