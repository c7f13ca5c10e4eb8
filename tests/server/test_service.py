"""Asking at a server: prices without data, one charge per key, refusals, ticks, records."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sql

from expost.errors import InvalidInput
from expost.server.database import acts, requests
from expost.server.jobs import questions, runner, sql_questions, states
from expost.server.jobs.states import Queue
from expost.server.people.accounts import Person
from expost.server.problems import Conflict, NotFound
from expost.server.server_settings import ServerSettings
from expost.server.service import Service
from tests.server.running_server import QUESTION, Server, open_server

ANN, BOB, ADA, OLGA = (
    Person("ann", "analyst"),
    Person("bob", "analyst"),
    Person("ada", "auditor"),
    Person("olga", "owner"),
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with open_server(tmp_path_factory.mktemp("service")) as made:
        yield made


@pytest.fixture
def still(tmp_path: Path) -> Iterator[Server]:
    """A server that runs nothing by itself."""
    with open_server(tmp_path, threads=0) as made:
        yield made


def test_prices_need_no_data(server: Server) -> None:
    """A price is the same when the file is gone, and nothing is charged."""
    source, hidden = server.folder / "visits.csv", server.folder / "hidden.csv"
    before = server.service.entries(ADA)
    told = server.service.price(ANN, QUESTION)
    source.rename(hidden)
    try:
        assert server.service.price(ANN, QUESTION) == told
        other = server.service.price(ANN, QUESTION | {"within": 0.1})
    finally:
        hidden.rename(source)
    assert other["epsilon"] > told["epsilon"]  # a smaller error costs more
    assert told["fits"]
    assert told["worst_case"] == told["epsilon"]
    assert told["plan"]["smallest_size_for_all"] <= told["question"]["size"]
    assert server.service.entries(ADA) == before


@pytest.mark.parametrize(
    "asked",
    [
        {"kind": "count", "within": 0.2},
        {"kind": "count", "by": ["city"], "plus_minus": 200.0},
        {"kind": "count", "by": ["city"], "count_rows": True, "within": 0.3},
        {"kind": "sum", "by": ["city"], "column": "spend", "within": 0.3},
        {"kind": "mean", "by": ["city"], "column": "spend", "plus_minus": 10.0},
        {"kind": "count", "by": ["city"], "keys": ["Ulm"], "where": ["age>=30"], "within": 0.3},
    ],
    ids=lambda asked: f"{asked['kind']}-{len(asked)}",
)
def test_every_kind_is_priced_and_answered(server: Server, asked: dict[str, Any]) -> None:
    question = {"dataset": "visits", **asked}
    price = server.service.price(ANN, question)
    view = server.service.ask(ANN, question, json.dumps(asked))
    view = server.wait(view["id"])
    assert view["status"] == "done"
    assert view["price"]["epsilon"] == price["epsilon"]
    assert view["charge"]["epsilon"] <= price["worst_case"]
    found = server.service.release(ANN, view["id"])
    groups = view["question"]["groups"] or 1
    assert len(found["result"]["answers"] + found["result"]["unanswered"]) == groups
    assert found["certificate"]["source"] == "data set visits"
    verdict = server.service.verify_release(ADA, view["id"])
    assert (verdict["valid"], verdict["checked"]) == (True, ["charge", "ledger"])


def test_one_key_one_charge(server: Server) -> None:
    answers: list[dict[str, Any]] = []

    def ask() -> None:
        answers.append(server.service.ask(ANN, QUESTION, "one key"))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({each["id"] for each in answers}) == 1
    assert len(answers) == 8
    view = server.wait(answers[0]["id"])
    assert server.service.ask(ANN, QUESTION, "one key")["charge"] == view["charge"]
    mine = [e["action"] for e in server.service.entries(ADA) if e["reservation"] == view["id"]]
    assert mine == ["reserve", "settle"]
    first = server.service.release(ANN, view["id"])
    assert server.service.release(ANN, view["id"]) == first  # fetched again, unchanged
    with pytest.raises(Conflict):
        server.service.ask(ANN, QUESTION | {"within": 0.3}, "one key")
    # Keys belong to people.
    assert server.service.ask(BOB, QUESTION, "one key")["id"] != view["id"]


def test_refusals_are_recorded_and_cost_nothing(server: Server) -> None:
    answer = server.ask("bob", QUESTION | {"epsilon": 1.5}, "more than the cap")
    assert answer.status_code == 402
    view = answer.json()
    assert view["status"] == "refused"
    assert view["refusal"]["requested"] == 1.5
    assert server.call("bob", "GET", f"/api/releases/{view['id']}").status_code == 402
    assert server.ask("bob", QUESTION | {"epsilon": 1.5}, "more than the cap").json() == view
    assert not any(e["reservation"] == view["id"] for e in server.service.entries(ADA))
    assert view["id"] in {each["id"] for each in server.service.budget(ADA, "visits")["refusals"]}
    assert not server.service.price(BOB, QUESTION | {"epsilon": 1.5})["fits"]


def test_held_until_it_has_run(still: Server) -> None:
    price = still.service.price(ANN, QUESTION)
    view = still.service.ask(ANN, QUESTION, "held")
    assert view["status"] == "queued"
    standing = still.service.budget(ADA, "visits")
    assert standing["held"] == price["worst_case"]
    (waiting,) = standing["open"]
    assert waiting["reservation"] == view["id"]
    with pytest.raises(NotFound):
        still.service.release(ANN, view["id"])


def run_all(service: Service) -> None:
    while (row := service._queue.claim(service.runner.name, "here", 30.0)) is not None:
        service.runner.run_one(row)


def test_results_appear_at_ticks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing shows that a request is finished before the tick: status, charge, budget, entries."""
    with open_server(tmp_path, threads=0, tick=1000.0) as made:
        service = made.service
        service.runner.stop()  # this test publishes by hand
        now = [1_000_000_500.0]
        monkeypatch.setattr(time, "time", lambda: now[0])
        view = service.ask(ANN, QUESTION, "ticks")
        before = (service.request(ANN, view["id"]), service.budget(ANN, "visits"))
        entries = service.entries(ADA)
        run_all(service)
        service.runner.publish()
        assert service._queue.get(view["id"])["state"] == "computed"
        assert (service.request(ANN, view["id"]), service.budget(ANN, "visits")) == before
        assert service.entries(ADA) == entries
        with pytest.raises(NotFound):
            service.release(ANN, view["id"])
        now[0] = 1_000_001_003.0
        service.runner.publish()
        shown = service.request(ANN, view["id"])
        assert shown["status"] == "done"
        assert shown["published"] == "2001-09-09T02:03:20+00:00"  # the tick, not the moment
        assert service.budget(ANN, "visits")["held"] == 0


def test_a_failure_has_no_cause_and_one_price(
    still: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a row may do to the engine, people see the same: no answer, the worst case."""
    seen = []
    for number, error in enumerate(
        (RuntimeError("row 7"), MemoryError(), InvalidInput("a", 1, "b"))
    ):

        def broken(*_: Any, error: Exception = error, **__: Any) -> Any:
            raise error

        monkeypatch.setattr(questions, "run_checked", broken)
        view = still.service.ask(ANN, QUESTION, f"broken {number}")
        for _ in range(runner.MOST_TRIES):
            row = None
            while row is None:
                time.sleep(0.01)
                monkeypatch.setattr(Queue, "release", _release_now)
                row = still.service._queue.claim("worker", "here", 30.0)
            still.service.runner.name = "worker"
            still.service.runner.run_one(row)
        shown = still.service.request(ANN, view["id"])
        seen.append({name: shown[name] for name in ("status", "charge", "refusal", "release")})
    assert seen[0]["status"] == "no answer"
    assert seen[0]["charge"]["epsilon"] == still.service.price(ANN, QUESTION)["worst_case"]
    assert seen[1:] == seen[:-1]
    assert still.service.verify(ADA)["valid"]


def _release_now(self: Queue, identity: str, worker: str, pause: float) -> None:
    self._store.change(
        requests.update()
        .where(requests.c.id == identity)
        .values(state="queued", worker=None, lease=0.0, tries=requests.c.tries + 1)
    )


def test_a_source_that_is_gone_costs_nothing(
    still: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    (still.folder / "visits.csv").unlink()
    monkeypatch.setattr(Queue, "release", _release_now)
    view = still.service.ask(ANN, QUESTION, "gone")
    run_all(still.service)
    shown = still.service.request(ANN, view["id"])
    assert shown["status"] == "no answer"
    assert shown["charge"]["epsilon"] == 0
    assert still.service.budget(ADA, "visits")["settled"] == 0


def _change(server: Server, identity: str, column: str, change: Any) -> None:
    """Change a stored document behind the back of the server."""
    row = server.service._queue.get(identity)
    document = json.loads(row[column])
    change(document)
    values = {column: json.dumps(document)}
    where = requests.c.id == identity
    server.service.store.change(requests.update().where(where).values(**values))


@pytest.mark.parametrize("factor", [0.5, 99])
def test_what_runs_is_what_was_reserved(
    still: Server, monkeypatch: pytest.MonkeyPatch, factor: float
) -> None:
    """Catches a question that runs at another ε than the one of its reservation."""
    monkeypatch.setattr(Queue, "release", _release_now)
    view = still.service.ask(ANN, QUESTION, "changed")
    epsilon = factor * view["price"]["epsilon"]
    _change(still, view["id"], "question", lambda question: question.update(epsilon=epsilon))
    run_all(still.service)
    shown = still.service.request(ANN, view["id"])
    assert shown["status"] == "no answer"
    assert shown["charge"]["epsilon"] == view["price"]["epsilon"]


def test_verifying_prices_again_as_the_command_does(still: Server, tmp_path: Path) -> None:
    """Catches a server that compares with the ledger only: another charge has another price."""
    from typer.testing import CliRunner

    from expost.cli.main import app

    view = still.service.ask(ANN, QUESTION, "priced")
    run_all(still.service)
    assert still.service.verify_release(ADA, view["id"])["valid"]

    def cheaper(document: dict[str, Any]) -> None:
        document["certificate"]["charged"]["epsilon"] /= 2

    _change(still, view["id"], "result", cheaper)
    checked = still.service.verify_release(ADA, view["id"])
    assert "charge: the charge is not that of the outcome" in checked["problems"]
    path = tmp_path / "release.json"
    path.write_text(json.dumps(still.service.certificate(ADA, view["id"])))
    ledger = str(still.folder / "server" / "ledger.db")
    command = ["certificate", "verify", str(path), "--ledger", ledger, "--json"]
    told = json.dumps(json.loads(CliRunner().invoke(app, command).output))
    assert all(problem in told for problem in checked["problems"])


def test_a_late_worker_cannot_record_a_second_result(still: Server) -> None:
    """The lease of a worker ran out: another one answers, and only one result exists."""
    view = still.service.ask(ANN, QUESTION, "late")
    queue = still.service._queue
    row = queue.claim("slow", "here", 0.0)
    assert row is not None
    again = queue.claim("fast", "here", 30.0)
    assert again is not None
    assert queue.claim("third", "here", 30.0) is None
    still.service.runner.name = "fast"
    still.service.runner.run_one(again)
    released = still.service.release(ANN, view["id"])
    assert not queue.record(view["id"], "slow", 0, {"result": {}, "certificate": {}})
    still.service.runner.name = "slow"
    still.service.runner.run_one(row)
    assert still.service.release(ANN, view["id"]) == released


def test_what_crashes_left_unreserved_is_completed(still: Server) -> None:
    view = still.service.ask(ANN, QUESTION, "first")
    row = still.service.store.row(sql.select(requests).where(requests.c.id == view["id"]))
    copy = row | {"id": "c" * 32, "key": "second", "state": "recorded", "reserved": ""}
    still.service.store.change(requests.insert().values(**copy))
    (left,) = still.service._queue.unreserved(time.time())
    still.service._complete(left)
    assert still.service.request(ANN, "c" * 32)["status"] == "queued"
    assert len(still.service.budget(ADA, "visits")["open"]) == 2


def test_acts_are_chained(server: Server) -> None:
    found = server.service.acts(ADA)
    assert [each["act"] for each in found[:3]] == ["first owner", "add person", "add person"]
    assert {"open budget", "register data set", "new token"} <= {each["act"] for each in found}
    assert server.service.verify(ADA)["valid"]
    change = acts.update().where(acts.c.number == 2).values(detail='{"name": "eve"}')
    kept = server.service.store.row(sql.select(acts.c.detail).where(acts.c.number == 2))
    server.service.store.change(change)
    try:
        assert not server.service.verify(ADA)["valid"]
    finally:
        server.service.store.change(acts.update().where(acts.c.number == 2).values(**kept))


def test_budgets_change_with_a_reason(server: Server) -> None:
    changed = server.service.change_budget(OLGA, "visits", "a new project", 6.0)
    assert changed["budget"]["epsilon"] == 6.0
    server.service.change_budget(OLGA, "visits", "more for bob", 2.0, analyst="bob")
    (cap,) = server.service.budget(BOB, "visits")["caps"]
    assert cap["budget"]["epsilon"] == 2.0
    history = server.service.history(ADA, "visits")
    assert history["points"][-1]["spent"] >= 0
    assert set(history["by_analyst"]) <= {"ann", "bob"}
    assert set(server.service.history(BOB, "visits")["by_analyst"]) == {"bob"}


def test_facts_are_checked(server: Server) -> None:
    base = {
        "name": "again",
        "budget": "visits",
        "source": str(server.folder / "visits.csv"),
        "user": "person",
    }
    for wrong in (
        {"user": "nobody"},
        {"groups": {"nothing": None}},
        {"values": {"spend": [1.0, 1.0]}},
        {"values": {"spend": [0.0, float("inf")]}},
        {"groups": {"city": ["a", "a"]}},
        {"delta": 2.0},
        {"source": str(server.folder / "absent.csv")},
        {"source": str(server.folder / "server" / "server.db")},
        {"max_groups_per_user": 0},
    ):
        with pytest.raises(InvalidInput):
            server.service.register(OLGA, base | wrong)
    with pytest.raises(NotFound):
        server.service.register(OLGA, base | {"budget": "none"})
    with pytest.raises(Conflict):
        server.service.register(OLGA, base | {"name": "visits"})
    server.service.register(OLGA, base | {"largest_epsilon": 0.01, "groups": {"city": None}})
    with pytest.raises(InvalidInput, match="at most"):
        server.service.price(ANN, {"dataset": "again", "kind": "count", "within": 0.001})
    with pytest.raises(InvalidInput, match="not public"):
        server.service.price(ANN, {"dataset": "again", "kind": "count", "by": ["city"]})
    server.service.retire(OLGA, "again")
    with pytest.raises(NotFound):
        server.service.price(ANN, {"dataset": "again", "kind": "count"})


def test_the_cheapest_price_is_the_cheapest(server: Server) -> None:
    """One step less of the grid and groups of the stated size are not all answered."""
    told = server.service.price(ANN, QUESTION)
    places = [sql_questions.epsilon_at(place) for place in range(421)]
    less = places[places.index(told["epsilon"]) - 1]
    fewer = server.service.price(ANN, QUESTION | {"epsilon": less})
    size = told["question"]["size"]
    enough = {each["size"]: each for each in told["plan"]["sizes"]}[size]
    short = {each["size"]: each for each in fewer["plan"]["sizes"]}[size]
    assert enough["groups"] is None
    assert short["groups"] is not None


def test_ticks() -> None:
    assert states.next_tick(10.0, 20.0) == 20.0
    assert states.next_tick(10.0, 20.1) == 30.0
    assert states.last_tick(10.0, 29.9) == 20.0
    assert states.last_tick(0.0, 29.9) == 29.9


@pytest.mark.parametrize(
    "options", [{"tick": -1.0}, {"workers": "x"}, {"threads": 99}, {"port": 0}]
)
def test_settings_are_checked(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        ServerSettings(tmp_path, **options)


def test_lists_read_a_long_question_once(still: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list shows how many groups were asked for; their names are parsed once, not each time."""
    keys = [f"town {number}" for number in range(3000)]
    asked = still.ask("ann", QUESTION | {"keys": keys, "epsilon": 0.5}, "long")
    short = still.ask("ann", QUESTION | {"epsilon": 0.5}, "short")
    assert {asked.status_code, short.status_code} == {201}
    first = still.call("ann", "GET", "/api/requests").json()
    assert [view["question"]["groups"] for view in first] == [4, 3000]
    assert "town 7" not in json.dumps(first)
    one = still.call("ann", "GET", f"/api/requests/{asked.json()['id']}").json()
    assert one == first[1]
    long = [len(text) for text in _parsed(still, monkeypatch) if len(text) > 10_000]
    assert long == []


def _parsed(server: Server, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a list of requests parses."""
    texts: list[str] = []
    real = json.loads

    def loads(text: Any, *more: Any, **options: Any) -> Any:
        texts.append(str(text))
        return real(text, *more, **options)

    monkeypatch.setattr(json, "loads", loads)
    server.service.requests(server.person("ann"))
    monkeypatch.setattr(json, "loads", real)
    assert texts
    return texts
