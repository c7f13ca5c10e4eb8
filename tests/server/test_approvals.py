"""Questions that an owner approves: nothing is read or reserved while they wait."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from expost.errors import InvalidInput
from expost.server import service
from expost.server.client import Connection, ServerError
from expost.server.database import approvals, people
from expost.server.people.accounts import Person
from expost.server.problems import Denied
from tests.server.running_server import JOB, QUESTION, Server, open_server, visits
from tests.server.test_pages import csrf, problems, sign_in

DEAR = QUESTION | {"epsilon": 1.0}
CHEAP = QUESTION | {"epsilon": 0.4}


@pytest.fixture
def server(tmp_path: Any) -> Iterator[Server]:
    with open_server(tmp_path, threads=0, pricers=0) as server:
        facts = visits(tmp_path / "visits.csv") | {"approval_above": 0.5, "approval_days": 2.0}
        assert server.call("olga", "PUT", "/api/datasets/visits", facts).status_code == 200
        yield server


def decide(server: Server, identity: str, word: str = "approve", who: str = "olga") -> Any:
    return server.call(who, "POST", f"/api/requests/{identity}/{word}", {"reason": "why not"})


def run(server: Server) -> None:
    runner = server.service.runner
    runner.run_one(server.service._queue.claim(runner.name, "here", 60.0))


def entries(server: Server) -> int:
    return len(server.call("ada", "GET", "/api/entries").json())


def last_act(server: Server) -> dict[str, Any]:
    act: dict[str, Any] = server.call("ada", "GET", "/api/acts").json()[-1]
    return act


def test_from_waiting_to_the_answer(server: Server) -> None:
    before = entries(server)
    told = server.call("ann", "POST", "/api/price", DEAR).json()
    assert told["needs_approval"]
    assert not server.call("ann", "POST", "/api/price", CHEAP).json()["needs_approval"]
    asked = server.ask("ann", DEAR, "dear", "yearly report")
    view = asked.json()
    assert (asked.status_code, view["status"]) == (202, "waiting for approval")
    assert server.ask("ann", DEAR, "dear", "yearly report").json()["id"] == view["id"]
    # Nothing can run, nothing is reserved, and the source is not touched.
    (server.folder / "visits.csv").rename(server.folder / "away")
    assert server.service._queue.claim("worker", "here", 60.0) is None
    server.service.runner._complete_all()
    assert entries(server) == before
    assert server.call("ann", "GET", "/api/budgets/visits").json()["held"] == 0
    assert server.call("ann", "GET", f"/api/releases/{view['id']}").status_code == 404
    (server.folder / "away").rename(server.folder / "visits.csv")
    # An owner approves, once; the price is the one that was shown.
    approved = decide(server, view["id"])
    assert (approved.status_code, approved.json()["status"]) == (200, "queued")
    assert approved.json()["price"] == view["price"]
    assert last_act(server)["act"] == "approve question"
    assert last_act(server)["detail"]["reason"] == "why not"
    assert decide(server, view["id"]).status_code == 409
    assert decide(server, view["id"], "decline").status_code == 409
    run(server)
    done = server.wait(view["id"], "ann")
    assert done["status"] == "done"
    assert done["charge"]["epsilon"] <= 1.0
    assert (done["approval"]["by"], done["approval"]["reason"]) == ("olga", "why not")
    assert server.call("ada", "GET", "/api/verify").json()["valid"]


def test_what_is_cheap_needs_nobody(server: Server) -> None:
    asked = server.ask("ann", CHEAP, "cheap")
    assert (asked.status_code, asked.json()["status"]) == (201, "queued")
    assert asked.json()["approval"] is None


def test_a_decision_is_shown_to_the_asker(server: Server) -> None:
    identity = server.ask("ann", DEAR, "declined").json()["id"]
    before = entries(server)
    assert decide(server, identity, "decline").json()["status"] == "declined"
    assert (last_act(server)["person"], last_act(server)["act"]) == ("olga", "decline question")
    page = sign_in(server, "ann").get(f"/requests/{identity}").text
    assert "olga: why not" in page
    assert problems(page) == []
    assert decide(server, identity).status_code == 409
    assert entries(server) == before
    assert [view["status"] for view in server.call("ann", "GET", "/api/requests").json()] == [
        "declined"
    ]


def test_nobody_else_decides(server: Server) -> None:
    identity = server.ask("ann", DEAR, "mine").json()["id"]
    for who in ("ann", "bob", "ada"):
        assert decide(server, identity, who=who).status_code == 403
    # Not even an owner about a question of their own, asked before they became one.
    server.service.store.change(people.update().where(people.c.name == "ann").values(role="owner"))
    for word in ("approve", "decline"):
        assert decide(server, identity, word, "ann").status_code == 403
    with pytest.raises(Denied):
        server.service.approve(Person("ann", "owner"), identity, "mine")
    with pytest.raises(InvalidInput, match="reason"):
        server.service.decline(Person("olga", "owner"), identity, " ")


def test_what_nobody_decides_expires(server: Server) -> None:
    identity = server.ask("ann", DEAR, "late").json()["id"]
    late = approvals.update().values(expires=time.time() - 1)
    server.service.store.change(late)
    assert decide(server, identity).status_code == 409  # also before the server has looked
    server.service.runner._complete_all()
    assert server.call("ann", "GET", f"/api/requests/{identity}").json()["status"] == "expired"
    assert last_act(server)["act"] == "approval expired"
    assert "expired" in sign_in(server, "ann").get(f"/requests/{identity}").text
    assert decide(server, identity).status_code == 409


def test_the_budget_decides_at_the_approval(server: Server) -> None:
    """Questions that wait hold nothing; those that do not fit any more are refused."""
    waiting = [server.ask("ann", QUESTION | {"epsilon": 2.0}, str(n)).json() for n in range(3)]
    codes = [decide(server, view["id"]).status_code for view in waiting]
    assert codes == [200, 200, 402]  # the budget is 5
    view = server.call("ann", "GET", f"/api/requests/{waiting[2]['id']}").json()
    assert (view["status"], view["charge"]) == ("refused", None)
    # What cannot be paid is refused at once: no owner looks at it.
    asked = server.ask("ann", QUESTION | {"epsilon": 2.0}, "again")
    assert (asked.status_code, asked.json()["status"]) == (402, "refused")


def test_a_crash_after_the_approval(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    identity = server.ask("ann", DEAR, "crash").json()["id"]
    with monkeypatch.context() as patch:
        patch.setattr(server.service, "_reserve", lambda *_: 1 / 0)
        assert decide(server, identity).status_code == 500
    server.service.store.change(
        approvals.update().where(approvals.c.request == identity).values(expires=0.0)
    )
    server.service.runner._complete_all()  # an approval counts, however late it is carried out
    assert server.call("ann", "GET", f"/api/requests/{identity}").json()["status"] == "queued"


def test_what_changed_meanwhile(server: Server) -> None:
    first, second = (server.ask("ann", DEAR, key).json()["id"] for key in ("one", "two"))
    facts = visits(server.folder / "visits.csv") | {"askers": ["bob"]}
    server.call("olga", "PUT", "/api/datasets/visits", facts)
    assert decide(server, first).status_code == 409  # ann may not ask any more
    assert decide(server, first, "decline").status_code == 200
    facts |= {"askers": None, "values": {"spend": [0.0, 1.0]}}
    server.call("olga", "PUT", "/api/datasets/visits", facts)
    assert decide(server, second).status_code == 200  # with the facts of its time
    third = server.ask("ann", DEAR, "three").json()["id"]
    assert server.call("ann", "GET", "/api/datasets/visits").json()["approval_above"] == 0.5
    server.service.disable_person(server.person("olga"), "ann")
    assert decide(server, third).status_code == 409


def test_tuning_waits_too(server: Server) -> None:
    facts = server.call("olga", "GET", "/api/datasets/digits").json()
    stated = {name: facts[name] for name in ("name", "kind", "budget", "delta", "data")}
    server.call("olga", "PUT", "/api/datasets/digits", stated | {"approval_above": 0.0})
    view = server.ask("ann", JOB, "job").json()
    assert view["status"] == "waiting for approval"
    assert decide(server, view["id"]).json()["status"] == "queued"
    again = server.ask("ann", JOB, "again").json()
    server.service.change_budget(server.person("olga"), "models", "less", 0.1)
    assert decide(server, again["id"]).status_code == 402


def test_the_page_of_an_owner(server: Server) -> None:
    identity = server.ask("ann", DEAR, "page", "yearly").json()["id"]
    client = sign_in(server, "olga")
    assert "1 question waits for approval" in client.get("/requests").text
    found = client.get("/requests?status=waiting+for+approval").text
    assert f"/requests/{identity}" in found
    shown = client.get(f"/requests/{identity}").text
    assert "Approve or decline" in shown
    assert problems(shown) == []
    assert "Approve or decline" not in sign_in(server, "ann").get(f"/requests/{identity}").text
    token = {"csrf": csrf(client)}
    empty = client.post(f"/requests/{identity}/approve", data=token | {"reason": " "})
    assert empty.status_code == 422
    assert problems(empty.text) == []
    sent = client.post(f"/requests/{identity}/approve", data=token | {"reason": "<b>yes</b>"})
    assert sent.headers["location"] == f"/requests/{identity}"
    assert "by olga" in client.get(f"/requests/{identity}").text
    assert "<b>yes" not in client.get(f"/requests/{identity}").text
    again = client.post(f"/requests/{identity}/decline", data=token | {"reason": "no"})
    assert again.status_code == 409


def test_the_client_says_so(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    connection = Connection("http://localhost", server.tokens["ann"])

    def call(method: str, path: str, body: Any = None, headers: Any = None, *_: Any) -> Any:
        return server.call("ann", method, path, body, **(headers or {})).json()

    monkeypatch.setattr(connection, "_call", call)
    options = {"by": ["city"], "within": 0.2, "epsilon": 1.0}
    with pytest.raises(ServerError, match="waits until") as waits:
        connection.count("visits", key="client", **options)
    assert waits.value.status == 202
    identity = server.call("ann", "GET", "/api/requests").json()[0]["id"]
    decide(server, identity, "decline")
    with pytest.raises(ServerError, match="declined by olga: why not"):
        connection.count("visits", key="client", **options)


def test_who_does_not_ask_any_more_gets_no_approval(server: Server) -> None:
    identity = server.ask("ann", DEAR, "before").json()["id"]
    change = people.update().where(people.c.name == "ann")
    server.service.store.change(change.values(role="auditor"))
    before = entries(server)
    assert decide(server, identity).status_code == 409
    assert entries(server) == before
    server.service.store.change(change.values(role="analyst"))
    assert decide(server, identity).status_code == 200


def test_few_questions_wait(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Owners get a mail for each."""
    monkeypatch.setattr(service, "_MOST_WAITING", 2)
    first, _ = (server.ask("ann", DEAR, key).json()["id"] for key in ("one", "two"))
    assert server.ask("ann", DEAR, "three").status_code == 409
    assert server.ask("ann", CHEAP, "cheap").status_code == 201
    assert server.ask("bob", DEAR, "his").status_code == 202
    decide(server, first, "decline")
    assert server.ask("ann", DEAR, "three").status_code == 202
