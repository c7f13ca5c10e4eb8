"""Errors of a released model by subgroup at a server: priced, reserved, answered, verified."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

import expost
from expost.server.client import Connection
from expost.server.jobs import error_questions, runner
from expost.tuning.model.subgroup_errors import error_table
from tests.server.running_server import Server, open_server
from tests.server.test_pages import csrf, problems, sign_in
from tests.tuning.test_subgroup_errors import write

JOB = {"dataset": "patients", "kind": "tune", "goal": {"at_least": 0.6}}
JOB |= {"model": {"kind": "logistic"}, "privacy": {"max_epsilon": 4.0}}


class Through(Connection):
    """A client whose calls go to the application directly."""

    def __init__(self, server: Server, who: str) -> None:
        super().__init__("http://localhost", server.tokens[who])
        self._server, self._who = server, who

    def _call(
        self, method: str, path: str, body: Any = None, headers: Any = None, *_: Any, **__: Any
    ) -> Any:
        more = {name.lower(): value for name, value in (headers or {}).items()}
        answer = self._server.call(self._who, method, path, body, **more)
        assert answer.status_code < 300, answer.text
        return answer.json()


def patients(source: Path) -> dict[str, Any]:
    """Men are wrong in a quarter of the rows, women never."""
    data = {"target": "ill", "features": ["dose", "age"], "classes": 2, "user": "id"}
    data |= {"feature_bounds": {"dose": [0, 10], "age": [0, 100]}}
    facts = {"name": "patients", "kind": "rows", "budget": "models", "delta": 1e-5}
    return facts | {"source": str(source), "data": data, "groups": {"sex": ["f", "m"], "age": None}}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("errors")
    with open_server(folder, pricers=0) as made:
        made.service.register(made.person("olga"), patients(write(folder / "patients.csv")))
        view = made.wait(made.ask("ann", JOB, "model").json()["id"], seconds=60)
        assert view["status"] == "done", view
        made.model = view["id"]  # type: ignore[attr-defined]
        yield made


def question(server: Server, **more: Any) -> dict[str, Any]:
    release = server.model  # type: ignore[attr-defined]
    return {"dataset": "patients", "kind": "errors", "release": release, "by": ["sex"]} | more


def spent(server: Server) -> float:
    return float(server.call("ada", "GET", "/api/budgets/models").json()["settled"]["epsilon"])


def test_priced_without_rows_asked_answered_and_verified(server: Server) -> None:
    source, hidden = server.folder / "patients.csv", server.folder / "hidden.csv"
    header = source.read_text().split("\n", 1)[0] + "\n"
    source.rename(hidden)
    source.write_text(header)  # a price reads the header at most
    try:
        price = server.call("ann", "POST", "/api/price", question(server)).json()
    finally:
        hidden.rename(source)
    assert price["question"]["plus_minus"] == 0.05
    assert price["question"]["size"] == 2000  # the persons are public: half of them in a subgroup
    assert price["delta"] is None
    assert 0 < price["epsilon"] < 0.5
    before = spent(server)
    exact = question(server, plus_minus=0.01, epsilon=1.0)  # errors of 0 and 0.25 are far apart
    asked = server.ask("ann", exact, "errors", "why")
    assert asked.status_code == 201, asked.text
    view = server.wait(asked.json()["id"])
    assert view["status"] == "done", view
    assert 0 < view["charge"]["epsilon"] <= 1.0
    assert spent(server) - before == pytest.approx(view["charge"]["epsilon"])
    release = server.call("ann", "GET", f"/api/releases/{view['id']}").json()
    error = {answer["group"]: answer for answer in release["result"]["answers"]}
    assert error["m"]["low"] > error["f"]["high"]
    assert release["certificate"]["query"]["by"] == ["sex"]
    named = release["certificate"]["source"]
    assert named.startswith("errors by sex of the model of request ")
    assert named.endswith("data set patients")
    assert str(server.folder) not in json.dumps(release)
    verdict = server.call("ada", "GET", f"/api/releases/{view['id']}/verify").json()
    assert verdict["valid"], verdict
    rows = server.call("ann", "GET", f"/api/releases/{view['id']}/answers").text
    assert {row["sex"] for row in csv.DictReader(io.StringIO(rows))} == {"f", "m"}
    assert server.call("bob", "GET", f"/api/releases/{view['id']}").status_code == 404
    report = server.call("ann", "GET", f"/api/releases/{view['id']}/report").json()
    assert "errors of a model by subgroup from patients" in report["title"]
    assert "A person is recognised by 'id'" in json.dumps(report)
    again = server.call("ann", "POST", "/api/price", exact).json()
    assert again["asked_before"]["id"] == view["id"]
    # The release of the model leads to its errors.
    shown = server.call("ann", "GET", f"/api/releases/{server.model}").json()  # type: ignore[attr-defined]
    assert shown["request"]["errors"] == [view["id"]]


def test_what_is_refused_and_nothing_is_charged(server: Server) -> None:
    before = server.call("ada", "GET", "/api/entries").json()
    for change in (
        {"by": []},
        {"by": ["sex", "age"]},
        {"by": ["dose"]},  # the owner lists the columns of subgroups
        {"by": ["age"]},  # whose groups are not public: list them
        {"column": "dose"},
        {"where": ["age>=3"]},
        {"private_keys": True},
        {"within": 0.1},
        {"sql": "SELECT 1"},
        {"keys": ["f", "f"]},
        {"release": None},
        {"release": "x"},
        {"dataset": "digits"},  # the model is of another data set
        {"dataset": "visits"},
    ):
        asked = server.ask("ann", question(server, **change), json.dumps(change))
        assert asked.status_code in (404, 422), (change, asked.text)
        priced = server.call("ann", "POST", "/api/price", question(server, **change))
        assert priced.status_code == asked.status_code, change
    theirs = server.ask("bob", question(server), "not mine")
    absent = server.ask("bob", question(server, release="f" * 32), "not there")
    assert (
        (theirs.status_code, theirs.text) == (absent.status_code, absent.text) == (404, absent.text)
    )
    assert (
        server.ask("ann", question(server, by=["age"], keys=["50"]), "own keys").status_code == 201
    )
    table = {"dataset": "visits", "kind": "count", "release": server.model}  # type: ignore[attr-defined]
    assert server.call("ann", "POST", "/api/price", table).status_code == 422
    after = server.call("ada", "GET", "/api/entries").json()
    assert len(after) <= len(before) + 2  # that of the listed keys


def test_over_budget_and_approval(server: Server) -> None:
    """The rules of the data set hold for this question as for others."""
    dear = server.ask("ann", question(server, epsilon=60.0), "dear")
    assert dear.status_code == 402
    owner = server.person("olga")
    facts = patients(server.folder / "patients.csv")
    server.service.change_dataset(owner, "patients", facts | {"approval_above": 0.1})
    waits = server.ask("ann", question(server, epsilon=0.2), "waits")
    assert (waits.status_code, waits.json()["status"]) == (202, "waiting for approval")
    identity = waits.json()["id"]
    approved = server.call("olga", "POST", f"/api/requests/{identity}/approve", {"reason": "fine"})
    assert approved.status_code == 200, approved.text
    assert server.wait(identity)["status"] == "done"
    closed = facts | {"approval_above": None, "askers": ["bob"]}
    server.service.change_dataset(owner, "patients", closed)
    assert server.ask("ann", question(server), "closed").status_code == 404
    server.service.change_dataset(owner, "patients", facts | {"askers": None})
    for who in ("olga", "ada"):
        assert server.ask(who, question(server), "role").status_code == 403
    assert server.call("ada", "POST", "/api/price", question(server)).status_code == 403


def test_a_failure_after_rows_were_read_costs_the_worst_case(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What could depend on a row is charged; what happens before a row is read is not."""

    def fails(*_: Any) -> Any:
        raise MemoryError("row 12")

    monkeypatch.setattr(runner, "MOST_TRIES", 1)
    monkeypatch.setattr(error_questions, "error_table", fails)
    view = server.wait(server.ask("ann", question(server, epsilon=0.25), "fails").json()["id"])
    assert view["status"] == "no answer"
    assert view["charge"]["epsilon"] == 0.25
    monkeypatch.setattr(error_questions, "error_table", error_table)
    source, hidden = server.folder / "patients.csv", server.folder / "hidden.csv"
    asked = question(server, epsilon=0.26)
    server.service._check_release = lambda *_: None  # the file goes between price and run
    source.rename(hidden)
    try:
        view = server.wait(server.ask("ann", asked, "no file").json()["id"])
    finally:
        hidden.rename(source)
        del server.service._check_release
    assert view["status"] == "no answer"
    assert view["charge"]["epsilon"] == 0


@pytest.mark.parametrize("line", ["p1,broken", ",,,,", "p2,1,2,other,0", "p3,x,,m,7", '"p4,1'])
def test_no_row_changes_the_groups_of_an_answer(server: Server, line: str) -> None:
    """A neighbour's row, whatever it holds: the same groups, and an answer."""
    source = server.folder / "patients.csv"
    whole = source.read_text()
    source.write_text(whole + line + "\n")
    try:
        asked = question(server, epsilon=0.1)
        view = server.wait(server.ask("ann", asked, f"hostile {line}").json()["id"])
    finally:
        source.write_text(whole)
    assert view["status"] == "done"
    result = server.call("ann", "GET", f"/api/releases/{view['id']}").json()["result"]
    told = [answer["group"] for answer in (*result["answers"], *result["unanswered"])]
    assert sorted(told) == ["f", "m"]


def test_facts_of_subgroups_are_checked(server: Server) -> None:
    facts, owner = patients(server.folder / "patients.csv"), server.person("olga")
    for groups in ({"colour": None}, {"ill": ["0"]}, {"id": None}, {"sex": []}):
        with pytest.raises(expost.errors.InvalidInput):
            server.service.preview(owner, facts | {"name": "new", "groups": groups})
    digits = {"name": "built", "kind": "rows", "budget": "models", "groups": {"sex": ["f"]}}
    digits |= {"data": {"name": "digits", "feature_bounds": [0, 16], "classes": 10}}
    with pytest.raises(expost.errors.InvalidInput, match="named columns"):
        server.service.preview(owner, digits)


def test_the_client_and_the_evidence(server: Server) -> None:
    connection = Through(server, "ann")
    told = connection.subgroup_errors(
        "patients",
        server.model,
        by="sex",
        plus_minus=0.1,
        memo="client",  # type: ignore[attr-defined]
    )
    assert {answer.group for answer in (*told.answers, *told.unanswered)} == {"f", "m"}
    record = connection.record(server.model)  # type: ignore[attr-defined]
    assert record["subgroups"]["kind"] == "count"


def test_the_page(server: Server) -> None:
    """From the release of the model to the form, its price, the question and its answer."""
    client = sign_in(server, "ann")
    release = client.get(f"/releases/{server.model}").text  # type: ignore[attr-defined]
    link = f"/ask/patients?kind=errors&amp;release={server.model}"  # type: ignore[attr-defined]
    assert link in release
    fields = {"kind": "errors", "release": server.model, "by": "sex", "error": "0.08"}  # type: ignore[attr-defined]
    page = client.get(f"/ask/patients?{urlencode(fields)}").text
    assert problems(page) == []
    assert "Errors by subgroup" in page
    assert "server.subgroup_errors(" in page
    sent = page.split('name="question" value="')[1].split('"')[0].replace("&#34;", '"')
    asked = json.loads(sent)
    assert (asked["kind"], asked["plus_minus"], asked["by"]) == ("errors", 0.08, ["sex"])
    data = {"question": sent, "key": "page", "memo": "page", "csrf": csrf(client)}
    answer = client.post("/ask/patients", data=data)
    assert answer.status_code == 303, answer.text
    place = answer.headers["location"]
    assert server.wait(place.rpartition("/")[2])["status"] == "done"
    request = client.get(place).text
    assert problems(request) == []
    assert f"model of request {server.model[:8]}</a> by sex" in request  # type: ignore[attr-defined]
    again = client.get(place.replace("requests", "releases")).text
    assert problems(again) == []
    assert "errors of a model by subgroup" in again
    wrong = client.get(f"/ask/patients?{urlencode(fields | {'release': 'f' * 32})}")
    assert wrong.status_code == 200
    assert "there is no such request" in wrong.text
    assert "Ask at this price" not in wrong.text or "disabled" in wrong.text
    dataset = client.get("/datasets/patients").text
    assert "Subgroups of sex" in dataset
