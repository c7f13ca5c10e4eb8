"""Several server processes on one database, on SQLite and on PostgreSQL; one is killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from expost.server.people.accounts import Person
from expost.server.server_settings import ServerSettings
from expost.server.service import Service
from tests.server.running_server import QUESTION, furnish

ROOT = Path(__file__).parent.parent.parent
ANN, ADA = Person("ann", "analyst"), Person("ada", "auditor")
COUNT = 8


def start(home: Path, database: str | None, name: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.server.asking", home, database or "-", name, str(COUNT)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("backend", ["sqlite", "postgresql"])
def test_processes_share_a_database(
    tmp_path: Path, backend: str, request: pytest.FixtureRequest
) -> None:
    """Two processes ask at once, a third one is killed meanwhile; nothing is lost or overspent."""
    database = None if backend == "sqlite" else request.getfixturevalue("postgres_url")
    # With PostgreSQL each process has a folder of its own, as on several hosts.
    homes = [tmp_path / ("server" if database is None else f"server{n}") for n in range(4)]
    service = Service(ServerSettings(homes[0], database=database, tick=0.0, lease=5.0))
    furnish(service, tmp_path)
    victim = start(homes[3], database, "victim")
    running = [start(homes[number], database, f"process{number}") for number in (1, 2)]
    time.sleep(3.0)
    victim.kill()
    victim.wait()
    told = [json.loads(each.communicate(timeout=120)[0]) for each in running]
    service.runner.start()
    deadline = time.monotonic() + 60
    while any(each["status"] in ("queued", "running") for each in service.requests(ADA)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    views = service.requests(ADA, 500)
    assert {each["status"] for each in views} <= {"done", "refused"}
    entries = service.entries(ADA)
    for each in views:
        mine = [entry["action"] for entry in entries if entry["reservation"] == each["id"]]
        assert mine == (["reserve", "settle"] if each["status"] == "done" else [])
        if each["status"] == "done":
            found = service.release(ANN, each["id"])["result"]
            assert len(found["answers"] + found["unanswered"]) == 4
    shared = [dict(enumerate(part)) for part in told]
    for number in range(1, COUNT, 2):
        assert shared[0][number][0] == shared[1][number][0]  # the same key, the same request
    standing = service.budget(ADA, "visits")
    assert standing["settled"] <= 5.0
    assert standing["held"] == 0
    checked = service.verify(ADA)
    assert (checked["valid"], checked["problems"]) == (True, [])
    service.close()


def test_postgres_keeps_everything(tmp_path: Path, postgres_url: str) -> None:
    """A server on PostgreSQL: people, data sets, requests and the ledger in one database."""
    service = Service(ServerSettings(tmp_path / "server", database=postgres_url, tick=0.0))
    tokens = furnish(service, tmp_path)
    assert service.by_token(tokens["ann"], "test").name == "ann"
    service.runner.start()
    view = service.ask(ANN, QUESTION, "on postgres")
    deadline = time.monotonic() + 60
    while view["status"] != "done":
        assert time.monotonic() < deadline, view
        time.sleep(0.02)
        view = service.request(ANN, view["id"])
    service.close()
    again = Service(ServerSettings(tmp_path / "other", database=postgres_url, tick=0.0))
    found = again.release(ANN, view["id"])["result"]
    assert len(found["answers"] + found["unanswered"]) == 4
    assert again.verify(ADA)["valid"]
    assert not (tmp_path / "server" / "server.db").exists()
    again.close()
