"""Who may ask about which data set: people, groups, and everybody."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
import sqlalchemy as sql

from tests.server.running_server import QUESTION, Server, open_server, visits
from tests.server.test_pages import csrf, problems, sign_in

NUMBERS = count()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with open_server(tmp_path_factory.mktemp("access"), threads=0, pricers=0) as server:
        yield server


def open_to(server: Server, *askers: str) -> Any:
    facts = visits(server.folder / "visits.csv") | {"askers": list(askers)}
    return server.call("olga", "PUT", "/api/datasets/visits", facts)


def sees(server: Server, who: str) -> bool:
    """Whether a data set exists for a person; every door says the same, in the same words."""
    doors = [
        ("GET", "/api/datasets/{name}", None),
        ("POST", "/api/price", QUESTION),
        ("POST", "/api/requests", {"question": QUESTION}),
        ("GET", "/api/budgets/{name}", None),
        ("GET", "/api/budgets/{name}/history", None),
    ]
    seen = set()
    for method, path, body in doors:
        key = {"idempotency_key": f"key {next(NUMBERS)}"}
        told = server.call(who, method, path.format(name="visits"), body, **key)
        other = json.loads(json.dumps(body).replace('"visits"', '"none"'))
        absent = server.call(who, method, path.format(name="none"), other, **key)
        assert told.status_code in (200, 201, 404)
        seen.add(told.status_code != 404)
        if told.status_code == 404:
            assert told.text == absent.text
    for path in ("/api/datasets", "/api/budgets"):
        listed = server.call(who, "GET", path).json()
        seen.add("visits" in {view["name"] for view in listed})
    client = sign_in(server, who)
    for path in ("/datasets/visits", "/ask/visits", "/budgets/visits"):
        seen.add(client.get(path).status_code == 200)
    seen |= {"visits" in client.get(path).text for path in ("/datasets", "/budgets")}
    assert len(seen) == 1, seen
    return seen.pop()


def test_people_and_groups(server: Server) -> None:
    assert sees(server, "ann")
    assert sees(server, "bob")  # by default everybody
    open_to(server, "ann")
    assert sees(server, "ann")
    assert not sees(server, "bob")
    open_to(server, "@health")
    assert not sees(server, "ann")
    profile = {"groups": ["health", "ward 3"], "mail": "bob@example.org"}
    assert server.call("olga", "PUT", "/api/people/bob", profile).status_code == 200
    assert sees(server, "bob")
    assert server.call("olga", "PUT", "/api/people/bob", {}).status_code == 200
    assert not sees(server, "bob")
    for who in ("olga", "ada"):  # owners and auditors see everything
        shown = server.call(who, "GET", "/api/datasets/visits").json()
        assert shown["askers"] == ["@health"]
        assert "@health" in sign_in(server, who).get("/datasets/visits").text
    open_to(server, "*")
    assert sees(server, "ann")
    assert "askers" not in server.call("ann", "GET", "/api/datasets/visits").json()


def test_answers_that_were_paid_stay(server: Server) -> None:
    open_to(server, "*")
    asked = server.ask("ann", QUESTION, "paid").json()["id"]
    runner = server.service.runner
    while (row := server.service._queue.claim(runner.name, "here", 60.0)) is not None:
        runner.run_one(row)
    open_to(server, "bob")
    assert server.call("ann", "GET", f"/api/releases/{asked}").status_code == 200
    shown = sign_in(server, "ann").get(f"/requests/{asked}")
    assert "not open to you" in shown.text
    assert problems(shown.text) == []


def test_changing_facts_keeps_the_list(server: Server) -> None:
    open_to(server, "bob")
    facts = visits(server.folder / "visits.csv")
    assert server.call("olga", "PUT", "/api/datasets/visits", facts).json()["askers"] == ["bob"]
    assert not sees(server, "ann")
    opened = facts | {"askers": None}
    assert server.call("olga", "PUT", "/api/datasets/visits", opened).json()["askers"] is None
    act = server.call("ada", "GET", "/api/acts?after=1").json()[-1]
    assert act["detail"]["askers"] is None


@pytest.mark.parametrize("askers", [[], ["@"], ["a b"], ["@a,b"], [" ann"], ["*", "ann"], ["zoe"]])
def test_names_that_are_none(server: Server, askers: list[str]) -> None:
    """Also the name of nobody: who gets it later, perhaps by choosing it, would be let in."""
    assert open_to(server, *askers).status_code == 422


def test_the_forms(server: Server) -> None:
    client = sign_in(server, "olga")
    token = {"csrf": csrf(client)}
    fields = {"source": str(server.folder / "visits.csv"), "user": "person"}
    fields |= {"groups": "city\nBern", "values": "spend: 0, 100", "approval_days": "3"}
    rules = {"askers": "ann\n@health", "approval_above": "0.25"}
    sent = client.post("/datasets/visits/edit", data=fields | rules | token)
    assert sent.status_code == 303, sent.text
    facts = server.call("olga", "GET", "/api/datasets/visits").json()
    assert facts["askers"] == ["ann", "@health"]
    assert (facts["approval_above"], facts["approval_days"]) == (0.25, 3.0)
    form = client.get("/datasets/visits/edit").text
    assert "ann\n@health</textarea>" in form
    assert 'value="0.25"' in form
    client.post("/datasets/visits/edit", data=fields | token)  # emptied
    facts = server.call("olga", "GET", "/api/datasets/visits").json()
    assert (facts["askers"], facts["approval_above"]) == (None, None)
    sent = client.post("/people/bob", data=token | {"groups": "health, ward 3", "mail": "b@x.org"})
    assert sent.status_code == 303
    assert "health, ward 3" in client.get("/people").text
    wrong = client.post("/people/bob", data=token | {"mail": "nobody"})
    assert wrong.status_code == 422
    assert problems(wrong.text) == []


def test_a_closed_data_set_takes_as_long_as_none(server: Server) -> None:
    """As many statements of the database, and no more, whatever the name."""
    open_to(server, "@surgery")
    statements: list[str] = []
    engine = server.service.store._single
    sql.event.listen(engine, "before_cursor_execute", lambda *told: statements.append(told[2]))
    counted = []
    for name in ("visits", "none"):
        statements.clear()
        told = server.call("bob", "GET", f"/api/datasets/{name}")
        assert told.status_code == 404
        asked = [line for line in statements if "_datasets" in line or "_profiles" in line]
        counted.append(asked)  # the publisher reads other tables meanwhile
    open_to(server, "*")
    assert counted[0] == counted[1] != []
