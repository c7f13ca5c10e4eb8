"""Forms: strict numbers, keys one per line, previews, edits, caps, returns, whose token it is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from expost.errors import InvalidInput
from expost.server.database import requests
from expost.server.jobs import questions
from expost.server.jobs import runner as runner_module
from expost.server.pages.ask_pages import block_text, blocks, lines
from expost.server.pages.rendering import real, reals, whole_field
from tests.server.running_server import JOB, QUESTION, Server, open_server, visits
from tests.server.test_pages import csrf, problems, sign_in


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with open_server(tmp_path, threads=0, pricers=0) as server:
        yield server


@pytest.mark.parametrize(
    "text", ["1,000", "0,5", "1_000", "1e", "٣", "nan", "inf", "1 000", "0x10"]
)
def test_numbers_are_strict(text: str) -> None:
    for read in (real, whole_field):
        with pytest.raises(InvalidInput):
            read({"n": text}, "n")


def test_numbers_that_are_numbers() -> None:
    given = {"1000": 1000.0, " 0.5 ": 0.5, "1e-6": 1e-6, ".5": 0.5, "-2": -2.0}
    assert {text: real({"n": text}, "n") for text in given} == given
    assert reals({"n": "0.5, 1, 2"}, "n") == reals({"n": "0.5,1,2"}, "n") == [0.5, 1.0, 2.0]
    with pytest.raises(InvalidInput):
        reals({"n": "0, 1,500"}, "n")  # one thousand five hundred, or three numbers
    with pytest.raises(InvalidInput):
        lines({"n": "spend: 1,500"}, "n")
    assert lines({"n": "spend: 0,500"}, "n") == {"spend": ["0", "500"]}


def test_keys_one_per_line() -> None:
    written = {"city": ["Bern", "Washington, D.C.", "a: b"], "page": None}
    assert blocks({"groups": block_text(written)}, "groups") == written
    assert blocks({"groups": "city:\r\nBern\r\n\r\npage"}, "groups") == {
        "city": ["Bern"],
        "page": None,
    }
    for text in ("city: Bern, Graz", "city\nBern\n\ncity\nUlm"):
        with pytest.raises(InvalidInput):
            blocks({"groups": text}, "groups")


def form(server: Server, **fields: str) -> dict[str, str]:
    source = str(server.folder / "visits.csv")
    usual = {"name": "fresh", "budget": "visits", "source": source, "user": "person"}
    return usual | {"groups": "city\nBern\nGraz"} | fields


def test_facts_are_previewed_and_changed(server: Server) -> None:
    client = sign_in(server, "olga")
    token = {"csrf": csrf(client)}
    shown = client.post("/register", data=form(server, preview="1") | token)
    assert shown.status_code == 200
    assert problems(shown.text) == []
    assert "Bern, Graz" in shown.text
    assert client.get("/datasets/fresh").status_code == 404  # nothing was registered
    assert client.post("/register", data=form(server) | token).status_code == 303
    edit = client.get("/datasets/fresh/edit").text
    assert problems(edit) == []
    assert "city\nBern\nGraz</textarea>" in edit
    changed = form(server, groups="city\nBern\nUlm", typical_group="90") | token
    assert client.post("/datasets/fresh/edit", data=changed).status_code == 303
    facts = server.call("olga", "GET", "/api/datasets/fresh").json()
    assert (facts["groups"], facts["typical_group"]) == ({"city": ["Bern", "Ulm"]}, 90)
    assert facts["version"] == 2
    assert server.call("ada", "GET", "/api/acts").json()[-1]["act"] == "change data set"


def test_a_question_keeps_the_facts_of_its_time(server: Server) -> None:
    asked = server.ask("ann", QUESTION, "one").json()
    facts = visits(server.folder / "visits.csv") | {"groups": {"city": ["Ulm"]}}
    answer = server.call("olga", "PUT", "/api/datasets/visits", facts)
    assert answer.status_code == 200, answer.text
    runner = server.service.runner
    runner.run_one(server.service._queue.claim(runner.name, "here", 60.0))
    release = server.call("ann", "GET", f"/api/releases/{asked['id']}").json()
    groups = [
        each["group"] for part in ("answers", "unanswered") for each in release["result"][part]
    ]
    assert sorted(groups) == ["Bern", "Graz", "Linz", "Ulm"]
    assert server.call("ann", "GET", f"/api/releases/{asked['id']}/verify").json()["valid"]
    assert server.call("ann", "GET", f"/api/releases/{asked['id']}/report").status_code == 200
    assert server.call("ann", "POST", "/api/price", QUESTION).json()["question"]["groups"] == 1


def test_a_budget_that_cannot_pay_is_refused(server: Server) -> None:
    owner = server.person("olga")
    table = visits(server.folder / "visits.csv")
    server.service.open_budget(owner, "many", "zcdp", 1.0, 1e-6)
    rows = {"name": "more", "kind": "rows", "data": {"name": "digits", "classes": 10}}
    for facts, field in (
        (table | {"name": "more", "budget": "many"}, "delta"),
        (rows | {"budget": "visits"}, "budget"),
        (rows | {"budget": "many"}, "neighbours"),
    ):
        answer = server.call("olga", "POST", "/api/datasets", facts)
        assert answer.status_code == 422, answer.text
        assert field in answer.text, answer.text
    fits = table | {"name": "more", "budget": "many", "delta": 1e-6}
    assert server.call("olga", "POST", "/api/datasets", fits).status_code == 201


def test_caps_above_the_limit_are_refused(server: Server) -> None:
    body: dict[str, Any] = {"name": "small", "epsilon": 1.0, "caps": {"ann": 2.0}}
    assert server.call("olga", "POST", "/api/budgets", body).status_code == 422
    cap = {"reason": "more", "epsilon": 6.0, "analyst": "ann"}
    assert server.call("olga", "POST", "/api/budgets/visits", cap).status_code == 422
    equal = cap | {"epsilon": 5.0}
    assert server.call("olga", "POST", "/api/budgets/visits", equal).status_code == 200


def test_disabled_people_return(server: Server) -> None:
    client = sign_in(server, "olga")
    token = {"csrf": csrf(client)}
    assert client.post("/people/ann/disable", data=token).status_code == 303
    assert server.call("ann", "GET", "/api/session").status_code == 401
    assert "Give access again" in client.get("/people").text
    assert client.post("/people/ann/enable", data=token).status_code == 303
    assert server.call("ann", "GET", "/api/session").status_code == 401  # the old token
    body = {"person": "ann"}
    server.tokens["ann"] = server.call("olga", "POST", "/api/tokens", body).json()["token"]
    assert server.call("ann", "GET", "/api/session").json()["name"] == "ann"
    assert server.call("olga", "POST", "/api/people/ann/enable").status_code == 404


def test_tokens_for_somebody_else_are_recorded(server: Server) -> None:
    for who in ("ann", "olga"):
        server.call("olga", "POST", "/api/tokens", {"person": who})
    acts = [act["act"] for act in server.call("ada", "GET", "/api/acts").json()]
    assert acts[-2:] == ["new token for somebody else", "new token"]
    mine = server.call("ann", "GET", "/api/tokens").json()
    assert {token["made_by"] for token in mine} == {"olga"}


def test_only_owners_see_the_class_of_a_failure(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> Any:
        raise MemoryError("row 7 holds 'secret'")

    monkeypatch.setattr(questions, "run_checked", broken)
    identity = server.ask("ann", QUESTION, "one").json()["id"]
    server.service.store.change(requests.update().values(tries=runner_module.MOST_TRIES - 1))
    runner = server.service.runner
    runner.run_one(server.service._queue.claim(runner.name, "here", 60.0))
    path = f"/api/requests/{identity}"
    assert server.call("olga", "GET", path).json()["failure"] == "running it failed (MemoryError)"
    for who in ("ann", "ada"):
        assert "failure" not in server.call(who, "GET", path).json()
        assert "MemoryError" not in sign_in(server, who).get(f"/requests/{identity}").text
    shown = sign_in(server, "olga").get(f"/requests/{identity}").text
    assert "MemoryError" in shown
    assert "secret" not in shown


def test_a_job_that_does_not_fit_is_refused_at_once(server: Server) -> None:
    server.service.change_budget(server.person("olga"), "models", "less", 0.5)
    answer = server.ask("ann", JOB, "job", "to plan the beds")
    assert answer.status_code == 402
    assert answer.json()["refusal"]["requested"]["epsilon"] > 0.5
    price = server.call("ann", "POST", "/api/price", JOB).json()
    assert not price["fits"]
    assert price["plan"]["all_missed"] < price["plan"]["worst_case"]
