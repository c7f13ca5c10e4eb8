"""Kills, stops and clocks: no request loses its answer, is charged twice, or waits for ever."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from expost.server.database import requests
from expost.server.jobs import questions, states
from expost.server.jobs import runner as runner_module
from expost.server.people.accounts import Person
from tests.server.running_server import QUESTION, Server, open_server

ADA = Person("ada", "auditor")
HOME, LEASE = "home", 30.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with open_server(tmp_path, threads=0, pricers=0) as server:
        yield server


def row_of(server: Server, identity: str) -> dict[str, Any]:
    row: dict[str, Any] = server.service._queue.get(identity)
    return row


def set_values(server: Server, **values: Any) -> None:
    server.service.store.change(requests.update().values(**values))


def run_queued(server: Server) -> None:
    """Run what can be claimed, as a worker does."""
    runner = server.service.runner
    while (row := server.service._queue.claim(runner.name, HOME, LEASE)) is not None:
        runner.run_one(row)


def killed_workers(server: Server, count: int) -> None:
    """So many processes claim the request and are gone."""
    for number in range(count):
        worker = f"worker {number}"
        assert server.service._queue.claim(worker, HOME, LEASE) is not None
        server.service._queue.end_leases(worker)


def test_the_death_of_a_process_is_not_a_try(server: Server) -> None:
    identity = server.ask("ann", QUESTION, "one").json()["id"]
    killed_workers(server, 40)
    assert row_of(server, identity)["tries"] == 0
    run_queued(server)
    assert server.call("ann", "GET", f"/api/requests/{identity}").json()["status"] == "done"
    actions = [e["action"] for e in server.service.entries(ADA) if e["reservation"] == identity]
    assert actions == ["reserve", "settle"]


def test_a_request_that_kills_its_workers_ends(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner_module, "MOST_DEATHS", 5)
    identity = server.ask("ann", QUESTION, "one").json()["id"]
    killed_workers(server, 6)
    other = server.ask("ann", QUESTION, "two").json()["id"]
    claimed = server.service._queue.claim("w", HOME, LEASE)
    assert claimed["id"] == other  # others come first
    server.service._queue.give_back("w")
    run_queued(server)
    view = server.call("ann", "GET", f"/api/requests/{identity}").json()
    assert view["status"] == "no answer"
    assert view["charge"]["epsilon"] == pytest.approx(view["price"]["epsilon"])
    assert server.call("ann", "GET", f"/api/requests/{other}").json()["status"] == "done"


def test_only_the_first_record_counts(server: Server) -> None:
    """A process that was paused computes another draw: it is not taken."""
    identity = server.ask("ann", QUESTION, "one").json()["id"]
    queue = server.service._queue
    queue.claim("paused", HOME, LEASE)
    queue.end_leases("paused")
    run_queued(server)
    before = row_of(server, identity)["result"]
    assert not queue.record(identity, "paused", 1, {"result": "another draw"})
    assert row_of(server, identity)["result"] == before


def test_a_clock_that_is_set_back_holds_nothing(server: Server) -> None:
    identity = server.ask("ann", QUESTION, "one").json()["id"]
    hours = time.time() + 7200
    set_values(server, lease=hours)  # it failed, then the clock was set back
    run_queued(server)
    assert row_of(server, identity)["state"] == states.DONE
    second = server.ask("ann", QUESTION, "two").json()["id"]
    set_values(server, state=states.COMPUTED, finished=hours, outcome=json.dumps("abandon"))
    server.service.runner.publish()
    assert row_of(server, second)["state"] == states.FAILED
    third = server.ask("ann", QUESTION, "three").json()["id"]
    set_values(server, state=states.RECORDED, created=hours)
    unreserved = server.service._queue.unreserved(time.time() - 10)
    assert third in [row["id"] for row in unreserved]


def test_a_result_before_its_tick_is_still_held(server: Server) -> None:
    server.ask("ann", QUESTION, "one")
    now = time.time()
    set_values(server, state=states.COMPUTED, finished=now + 5)
    assert server.service._queue.computed(now) == []


def test_stopping_does_not_wait_for_a_long_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go = threading.Event(), threading.Event()

    def long_run(*_: Any) -> Any:
        begun.set()
        go.wait(300)
        raise RuntimeError("it was ended")

    monkeypatch.setattr(questions, "run_checked", long_run)
    try:
        with open_server(tmp_path, threads=1, pricers=0, grace=0.05) as server:
            identity = server.ask("ann", QUESTION, "one").json()["id"]
            assert begun.wait(120)
            server.service.runner.stop()  # returns although the run goes on
            row = row_of(server, identity)
            assert (row["state"], row["worker"], row["tries"]) == (states.QUEUED, None, 0)
    finally:
        go.set()
