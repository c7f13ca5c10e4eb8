"""Facts that an owner buys when a data set is registered."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from expost.certificates.verify import verify_certificate
from expost.server.people.accounts import Person
from tests.server.running_server import Server, open_server, write_rows
from tests.server.test_pages import csrf, sign_in

OLGA = Person("olga", "owner")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with open_server(tmp_path, threads=0) as running:
        running.service.open_budget(OLGA, "facts", "approx", 3.0, 1e-5)
        write_rows(tmp_path / "visits.csv", persons=3000)
        yield running


def table(server: Server, **more: Any) -> dict[str, Any]:
    facts = {
        "name": "shop",
        "budget": "facts",
        "source": str(server.folder / "visits.csv"),
        "user": "person",
        "groups": {"city": None},
        "values": {"spend": None, "age": [0.0, 100.0]},
    }
    return facts | more


def entries(server: Server) -> list[dict[str, Any]]:
    return [e for e in server.service.entries(OLGA, budget="facts") if e["action"] != "create"]


def test_an_owner_buys_groups_bounds_and_the_cap(server: Server) -> None:
    """Fails with probability < 1e-6: noise of 30 persons against cities of 1,000."""
    answer = server.call("olga", "POST", "/api/datasets", table(server, learn_facts=1.0))
    assert answer.status_code == 201, answer.text
    facts = server.call("ann", "GET", "/api/datasets/shop").json()
    assert set(facts["groups"]["city"]) == {"Bern", "Graz", "Ulm"}
    low, high = facts["values"]["spend"]
    assert low < 40 < 60 < high
    assert facts["values"]["age"] == [0.0, 100.0]
    assert facts["max_rows_per_user"] == 2
    assert facts["bought"]["charged"]["epsilon"] == 1.0
    assert [entry["action"] for entry in entries(server)] == ["reserve", "settle"]
    assert verify_certificate(facts["bought"]) == []
    acts = [a for a in server.service.acts(OLGA) if a["detail"].get("name") == "shop"]
    assert acts[0]["detail"]["bought"]["epsilon"] == 1.0
    assert "bought them privately" in sign_in(server, "ann").get("/datasets/shop").text


def test_the_form_buys_facts_or_reads_a_file(server: Server) -> None:
    client = sign_in(server, "olga")
    form = table(server) | {"groups": "city", "values": "spend", "csrf": csrf(client)}
    shown = client.post("/register", data=form | {"learn_facts": "0.5", "preview": "1"})
    assert "bought privately when this is registered" in shown.text
    refused = client.post("/register", data=form)
    assert "lower and an upper bound" in refused.text
    assert entries(server) == []
    facts = '[columns.spend]\nkind = "number"\nbounds = [0, 90]'
    sent = client.post("/register", data=form | {"facts": facts, "learn_facts": "0.5"})
    assert sent.headers["location"] == "/datasets/shop"
    stored = server.call("ann", "GET", "/api/datasets/shop").json()
    assert stored["values"] == {"spend": [0.0, 90.0]}
    assert list(stored["bought"]["facts"]["columns"]) == ["city"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "visits"},
        {"groups": {"absent": None}},
        {"budget": "visits"},
        {"groups": {}, "values": {}},
        {"learn_facts": 4.0},
        {"user": None},
        {"max_groups_per_user": 0},
    ],
)
def test_what_is_refused_costs_nothing(server: Server, wrong: dict[str, Any]) -> None:
    answer = server.call("olga", "POST", "/api/datasets", table(server, learn_facts=1.0) | wrong)
    assert answer.status_code >= 400
    assert entries(server) == []
    assert server.call("olga", "GET", "/api/datasets/shop").status_code == 404


def test_analysts_buy_nothing(server: Server) -> None:
    answer = server.call("ann", "POST", "/api/datasets", table(server, learn_facts=1.0))
    assert answer.status_code == 403
    assert entries(server) == []


def test_a_file_of_facts_is_read_and_costs_nothing(server: Server) -> None:
    stated = {
        "facts": {"user": "person", "max_rows_per_user": 4},
        "columns": {
            "city": {"kind": "category", "categories": ["Bern", "Ulm"]},
            "spend": {"kind": "number", "bounds": [0, 90.5]},
        },
    }
    answer = server.call("olga", "POST", "/api/datasets", table(server, facts=stated))
    assert answer.status_code == 201, answer.text
    facts = answer.json()
    assert facts["groups"] == {"city": ["Bern", "Ulm"]}
    assert facts["values"] == {"spend": [0.0, 90.5], "age": [0.0, 100.0]}
    assert facts["max_rows_per_user"] == 4
    assert entries(server) == []


def test_rows_for_tuning_get_their_facts(server: Server) -> None:
    source = server.folder / "rows.csv"
    lines = [f"{18 + n % 60},{'red' if n % 3 else 'blue'},{n % 2}" for n in range(4000)]
    source.write_text("age,colour,label\n" + "\n".join(lines) + "\n", encoding="utf-8")
    rows = {
        "name": "people",
        "kind": "rows",
        "budget": "facts",
        "source": str(source),
        "data": {"target": "label", "rows": 4000},
        "learn_facts": 2.0,
    }
    answer = server.call("olga", "POST", "/api/datasets", rows)
    assert answer.status_code == 201, answer.text
    data = answer.json()["tuning"]
    assert set(data["categories"]["colour"]) == {"red", "blue"}
    assert data["classes"] == ["0", "1"]
    assert len(entries(server)) == 2


@pytest.mark.parametrize("line", ["", "p9999,Atlantis,1e308,x", "\x00,,,", "solo,Bern,,nan"])
def test_no_row_changes_whether_it_succeeds(server: Server, line: str) -> None:
    with (server.folder / "visits.csv").open("a", encoding="utf-8") as stream:
        stream.write(line + "\n")
    answer = server.call("olga", "POST", "/api/datasets", table(server, learn_facts=0.01))
    assert answer.status_code == 201
    assert "Atlantis" not in answer.text
