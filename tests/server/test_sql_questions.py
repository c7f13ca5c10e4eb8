"""Queries and quantiles at a server: priced without data, one charge, only what is listed."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import pytest

from expost.analytics.quantiles import QuantileResult
from expost.analytics.sql_result import QueryResult
from expost.errors import InvalidInput
from expost.server.client import count_result
from expost.server.jobs import runner
from tests.server.running_server import Server, open_server, visits

SQL = (
    "SELECT city, COUNT(*) AS rows, COUNT(DISTINCT person) AS people, AVG(spend) AS mean "
    "FROM visits WHERE age >= 30 GROUP BY city ORDER BY city"
)
QUERY = {"dataset": "visits", "kind": "query", "sql": SQL, "within": 0.3}
COUNTED = QUERY | {"sql": "SELECT city, COUNT(*) AS n FROM visits GROUP BY city"}
QUANTILE = {"dataset": "visits", "kind": "quantile", "column": "spend", "by": ["city"]}
QUANTILE |= {"at": [0.5], "within_rank": 0.1}
JOINED = {"dataset": "joined", "kind": "query", "within": 0.3, "epsilon": 1.0}
JOINED["sql"] = (
    "SELECT country, COUNT(*) AS n, MEDIAN(spend) AS m, MAX(spend) AS x FROM joined "
    "JOIN places ON city = town GROUP BY country"
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("queries")
    with open_server(folder, pricers=0) as made:
        (folder / "places.csv").write_text("town,country\nBern,CH\nGraz,AT\nUlm,DE\n")
        facts = visits(folder / "visits.csv") | {"name": "joined"}
        facts["public_tables"] = {"places": str(folder / "places.csv")}
        made.service.register(made.person("olga"), facts)
        yield made


@pytest.mark.parametrize("question", [QUERY, QUANTILE, JOINED], ids=["query", "quantile", "join"])
def test_priced_without_data_asked_answered_and_verified(
    server: Server, question: dict[str, Any]
) -> None:
    source, hidden = server.folder / "visits.csv", server.folder / "hidden.csv"
    source.rename(hidden)  # a price needs no private table
    try:
        price = server.call("ann", "POST", "/api/price", question)
    finally:
        hidden.rename(source)
    assert price.status_code == 200, price.text
    told = price.json()
    assert told["worst_case"] == told["epsilon"]
    assert all(size["cost"] is None or size["cost"] > 0 for size in told["plan"]["sizes"])
    key = f"{question['kind']} {question['dataset']}"
    asked = server.ask("ann", question, key, "why")
    assert asked.status_code == 201
    view = server.wait(asked.json()["id"])
    assert view["status"] == "done", view
    assert server.ask("ann", question, key, "why").json()["id"] == view["id"]
    assert 0 < view["charge"]["epsilon"] <= told["epsilon"]
    release = server.call("ann", "GET", f"/api/releases/{view['id']}").json()
    assert release["certificate"]["kind"] == question["kind"]
    assert release["certificate"]["source"] == f"data set {question['dataset']}"
    verdict = server.call("ada", "GET", f"/api/releases/{view['id']}/verify").json()
    assert verdict["valid"], verdict
    answers = server.call("ann", "GET", f"/api/releases/{view['id']}/answers")
    rows = list(csv.DictReader(io.StringIO(answers.text)))
    assert len(rows) >= 3
    report = server.call("ann", "GET", f"/api/releases/{view['id']}/report").json()
    assert "cannot be read" not in json.dumps(report)
    assert server.call("bob", "GET", f"/api/releases/{view['id']}").status_code == 404
    result = count_result(release)
    assert isinstance(result, QuantileResult if question["kind"] == "quantile" else QueryResult)
    assert result.as_dict() == release["result"]
    assert result.certificate() == release["certificate"]


def test_what_was_asked_before_is_told(server: Server) -> None:
    """Queries in any spelling, and quantiles: one's own answer to the same question, as it was."""

    def before(who: str, question: dict[str, Any], **more: Any) -> Any:
        told = server.call(who, "POST", "/api/price", question | more)
        assert told.status_code == 200, told.text
        return told.json()["asked_before"]

    mine, small = {}, JOINED | {"epsilon": 0.2}
    for question in (COUNTED, QUANTILE, small):
        kind = f"{question['kind']} {question['dataset']}"
        view = server.wait(server.ask("bob", question, f"before {kind}").json()["id"])
        assert view["status"] == "done", view
        mine[kind] = view["id"]
    settled = server.call("bob", "GET", "/api/budgets/visits").json()["settled"]
    for sql in (
        COUNTED["sql"],
        "select city, count(*)  as n from visits group by 1",
        'SELECT "city", COUNT(*) n FROM "visits" GROUP BY ALL;',
    ):
        told = before("bob", COUNTED, sql=sql)
        assert told["id"] == mine["query visits"]
        assert before("olga", COUNTED, sql=sql) is None  # never somebody else's
        release = server.call("bob", "GET", f"/api/releases/{told['id']}")
        assert release.status_code == 200
        assert release.json()["request"]["charge"] == told["charge"]
    assert before("bob", QUANTILE)["id"] == mine["quantile visits"]
    assert before("bob", small)["id"] == mine["query joined"]
    others: list[dict[str, Any]] = [
        {"sql": COUNTED["sql"].replace("COUNT(*)", "COUNT(*) FILTER (WHERE age > 40)")},
        {"sql": COUNTED["sql"].replace(" AS n", " AS number")},
        {"sql": COUNTED["sql"] + " ORDER BY n"},
        {"sql": COUNTED["sql"].replace(" GROUP", " WHERE age > 40 GROUP")},
        {"within": 0.2},
        {"epsilon": 0.9},
        {"confidence": 0.8},
        {"keys": ["Bern"]},
    ]
    for more in others:
        assert before("bob", COUNTED, **more) is None, more
    for more in ({"at": [0.4]}, {"within_rank": 0.2}, {"by": []}, {"where": ["age>40"]}):
        assert before("bob", QUANTILE, **more) is None, more
    assert server.call("bob", "GET", "/api/budgets/visits").json()["settled"] == settled


def test_the_smallest_price_reaches_the_error(server: Server) -> None:
    """Without an ε the plan answers every group of the usual size, and no smaller ε does."""
    for question in (COUNTED, QUANTILE):
        told = server.call("ann", "POST", "/api/price", question).json()
        usual = [size for size in told["plan"]["sizes"] if size["size"] == 800]
        assert usual[0]["groups"] is None
        assert usual[0]["cost"] is not None
        finer = {"within": 0.15} if question is COUNTED else {"within_rank": 0.05}
        assert (
            server.call("ann", "POST", "/api/price", question | finer).json()["epsilon"]
            > (told["epsilon"])
        )


REFUSED: dict[str, dict[str, Any]] = {
    "a column that is not listed": {"sql": "SELECT COUNT(*) FROM visits WHERE name = 'x'"},
    "a person in a condition": {"sql": "SELECT COUNT(*) FROM visits WHERE person = 'p1'"},
    "a person in a filter": {"sql": "SELECT COUNT(*) FILTER (WHERE person = 'p1') FROM visits"},
    "persons as groups": {"sql": "SELECT person, COUNT(*) FROM visits GROUP BY person"},
    "a part of a person": {"sql": "SELECT COUNT(DISTINCT LEFT(person, 1)) FROM visits"},
    "a join on persons": {
        "sql": "SELECT COUNT(*) FROM joined JOIN places ON person = town",
        "dataset": "joined",
    },
    "a table that is not public": {"sql": "SELECT COUNT(*) FROM visits JOIN places ON city = town"},
    "another table": {
        "sql": "SELECT COUNT(*) FROM elsewhere JOIN places ON city = town",
        "dataset": "joined",
    },
    "a file": {"sql": "SELECT COUNT(*) FROM read_csv('/etc/passwd')"},
    "a window": {"sql": "SELECT SUM(spend) OVER () FROM visits"},
    "bounds that are not stated": {"sql": "SELECT SUM(age) FROM visits"},
    "no SELECT": {"sql": "DROP TABLE visits"},
    "no text": {},
    "fields of a count": {"sql": SQL, "by": ["city"]},
    "an error that cannot be": {"sql": "SELECT COUNT(*) FROM visits", "plus_minus": 1e-9},
    "a quantile of another column": {"kind": "quantile", "column": "age"},
    "a quantile without a column": {"kind": "quantile"},
    "a quantile within a value": {"kind": "quantile", "column": "spend", "within": 0.1},
    "ranks of a count": {"kind": "count", "at": [0.5]},
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_not_charged(server: Server, name: str) -> None:
    before = server.service.entries(server.person("ada"))
    question = {"dataset": "visits", "kind": "query", **REFUSED[name]}
    price = server.call("ann", "POST", "/api/price", question)
    asked = server.ask("ann", question, f"refused {name}")
    assert price.status_code == asked.status_code == 422
    told = price.json()
    assert told["valid"]
    assert str(server.folder) not in price.text
    assert server.service.entries(server.person("ada")) == before


def test_roles_and_facts(server: Server) -> None:
    for who, status in (("ada", 403), ("olga", 403), (None, 401)):
        assert server.call(who, "POST", "/api/requests", {"question": QUERY}).status_code in (
            status,
            422,  # without a key
        )
        if who is not None:
            assert server.ask(who, QUERY, "a role").status_code == 403
    facts = server.call("ann", "GET", "/api/datasets/joined").json()
    assert facts["public_columns"] == {"places": ["town", "country"]}
    assert "public_tables" not in facts
    assert str(server.folder) not in json.dumps(facts)
    clash = visits(server.folder / "visits.csv") | {"name": "clash"}
    clash["public_tables"] = {"Clash": str(server.folder / "places.csv")}
    assert server.call("olga", "POST", "/api/datasets", clash).status_code == 422


def test_a_budget_that_cannot_pay_refuses(server: Server) -> None:
    asked = server.ask("bob", QUERY | {"epsilon": 1.5}, "too much")
    assert asked.status_code == 402
    assert asked.json()["status"] == "refused"


def sign_in(server: Server) -> None:
    server.client.post("/api/session", json={"token": server.tokens["ann"]})


def test_pages(server: Server) -> None:
    """The ask page prices both kinds; the pages of a request and a release show them."""
    sign_in(server)
    for fields in (
        {"kind": "query", "sql": COUNTED["sql"], "error": "30", "unit": "percent"},
        {"kind": "quantile", "column": "spend", "at": "0.5", "error": "10", "by": "city"},
    ):
        page = server.client.get(f"/ask/visits?{urlencode(fields)}")
        assert page.status_code == 200
        assert "At most; you pay less" in page.text, page.text
    page = server.client.get("/ask/visits?kind=query&sql=SELECT+1+FROM+x")
    assert "SELECT without an aggregate" in page.text
    for question, words in ((QUERY, "Error reached"), (QUANTILE, "Rank")):
        done = server.ask(
            "ann", question, f"{question['kind']} {question['dataset']}", "why"
        ).json()
        server.wait(done["id"])
        for path in (f"/requests/{done['id']}", f"/releases/{done['id']}", "/requests"):
            shown = server.client.get(path)
            assert shown.status_code == 200
        assert words in server.client.get(f"/releases/{done['id']}").text
        again = server.client.get(f"/requests/{done['id']}").text
        assert "Ask this differently" in again
    server.client.delete("/api/session")
    server.client.cookies.clear()


def test_a_column_that_differs_in_capitals_only(
    server: Server, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner listed ``city``; the query must not read ``City``, which exists beside it."""
    psycopg = pytest.importorskip("psycopg")
    with psycopg.connect(postgres_url) as connection:
        connection.execute("CREATE TABLE beside (person TEXT, city TEXT)")
        connection.execute(
            "INSERT INTO beside SELECT 'p' || n, 'Bern' FROM generate_series(1, 9) n"
        )
    facts = {"budget": "visits", "source": postgres_url, "user": "person"}
    facts |= {"groups": {"city": ["Bern"]}, "max_groups_per_user": 1}
    olga = server.person("olga")
    server.service.register(olga, facts | {"name": "beside", "table": "beside"})
    with psycopg.connect(postgres_url) as connection:
        connection.execute("ALTER TABLE beside ADD COLUMN \"City\" TEXT DEFAULT 'secret'")
    with pytest.raises(InvalidInput, match="capitals"):
        server.service.register(olga, facts | {"name": "twins", "table": "beside"})
    monkeypatch.setattr(runner, "MOST_TRIES", 1)
    sql = "SELECT COUNT(*) AS n FROM beside WHERE \"City\" = 'secret'"
    question = {"dataset": "beside", "kind": "query", "sql": sql, "epsilon": 0.1, "plus_minus": 1e3}
    view = server.wait(server.ask("ann", question, "capitals").json()["id"])
    assert (view["status"], view["charge"]["epsilon"]) == ("no answer", 0.0)


def test_a_public_table_that_cannot_be_read(server: Server) -> None:
    """Analysts are not told where it is, and the price is computed again afterwards."""
    places, away = server.folder / "places.csv", server.folder / "away.csv"
    question = JOINED | {"epsilon": 0.9}
    places.rename(away)
    try:
        told = server.call("ann", "POST", "/api/price", question)
    finally:
        away.rename(places)
    assert told.status_code == 503
    assert "places.csv" not in told.text
    assert server.call("ann", "POST", "/api/price", question).status_code == 200


def test_the_table_is_the_data_set(server: Server) -> None:
    for name in ("elsewhere", '"/etc/passwd"', "digits"):
        question = COUNTED | {"sql": f"SELECT COUNT(*) FROM {name}"}
        told = server.call("ann", "POST", "/api/price", question)
        assert told.status_code == 422
        assert "'visits'" in told.json()["valid"]
