"""Queries end to end: right answers, one charge, nothing charged for a refusal."""

from __future__ import annotations

import json
import sqlite3
from fractions import Fraction
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import expost
from expost import (
    InvalidInput,
    Ledger,
    PureDP,
    SimulationRandomness,
    certificate_words,
    verify_certificate,
)
from expost.analytics.cap_ladder import MOST_SHARE, ChosenCap
from expost.analytics.sql_request import check_query, plan_query
from expost.analytics.sql_run import QueryRun

REGIONS = ("north", "south", "east")
SURE: dict[str, Any] = {"epsilon": 4000.0, "plus_minus": 0.4, "one_row_per_user": True}
SURE |= {"confidence": 0.999999}
EXACT: dict[str, Any] = {"max_groups_per_user": 1, "max_rows_per_user": 4, "epsilon": 40.0}
EXACT |= {"within": 0.02, "plus_minus": None, "one_row_per_user": False, "confidence": 0.9}


def orders(count: int = 600) -> pa.Table:
    """One row per person; amounts 0 … 9, products 0 … 4."""
    return pa.table(
        {
            "customer": list(range(count)),
            "region": [REGIONS[(row * row) % 3] for row in range(count)],
            "amount": [float(row % 10) for row in range(count)],
            "product": [row % 5 for row in range(count)],
            "day": [f"2024-{row % 12 + 1:02}-03" for row in range(count)],
        }
    )


PRODUCTS = pa.table({"id": [0, 1, 2, 3], "category": ["toys", "toys", "food", "food"]})


def ask(sql: str, source: Any = None, **options: Any) -> expost.analytics.sql_result.QueryResult:
    """Ask with seeded noise that is next to nothing."""
    given = {"user": "customer", **SURE, "randomness": SimulationRandomness(1), "simulation": True}
    return expost.query(sql, source=orders() if source is None else source, **(given | options))


def table(result: Any) -> list[tuple[Any, ...]]:
    """The rows, rounded: with this ε the noise is below a half."""
    rows = []
    for record in result.records():
        rows.append(tuple(record[name] for name in result.columns))
    return [tuple(round(c) if isinstance(c, float) else c for c in row) for row in rows]


def truth(sql: str) -> list[tuple[Any, ...]]:
    connection = duckdb.connect()
    connection.register("orders", orders())
    connection.register("products", PRODUCTS)
    rows = connection.execute(sql).fetchall()
    return [tuple(round(float(c)) if isinstance(c, float) else c for c in row) for row in rows]


BOUNDS = {"amount": (0, 10)}


@pytest.mark.parametrize(
    ("sql", "options"),
    [
        ("SELECT COUNT(*) AS n, COUNT(DISTINCT customer) AS people FROM orders", {}),
        (
            "SELECT region, COUNT(*) AS n, SUM(amount) AS total FROM orders "
            "WHERE region IN ('north', 'south', 'east') AND amount BETWEEN 2 AND 8 "
            "GROUP BY region HAVING COUNT(*) > 20 ORDER BY n DESC LIMIT 2",
            {"bounds": BOUNDS},
        ),
        (
            "SELECT EXTRACT(MONTH FROM CAST(day AS DATE)) AS month, COUNT(*) AS n FROM orders "
            "GROUP BY 1 ORDER BY month",
            {},
        ),
        (
            "SELECT p.category, COUNT(*) AS n FROM orders o JOIN products p ON o.product = p.id "
            "GROUP BY p.category ORDER BY p.category",
            {"public": ["products"]},
        ),
        (
            "SELECT COALESCE(p.category, 'none') AS c, COUNT(*) AS n FROM orders o LEFT JOIN "
            "products p ON p.id = o.product GROUP BY c ORDER BY c",
            {"public": ["products"], "keys": ["food", "none", "toys"]},
        ),
        (
            "SELECT CASE WHEN amount > 5 THEN 'large' ELSE 'small' END AS size, amount > 8 AS top, "
            "COUNT(*) FILTER (WHERE region = 'north') AS n FROM orders GROUP BY size, top "
            "HAVING n > 0 ORDER BY n, size",
            {},
        ),
        (
            "SELECT amount > 4 AS top, COUNT(DISTINCT product) AS n, "
            "COUNT(DISTINCT UPPER(day)) AS d FROM orders WHERE amount > 2 "
            "GROUP BY top ORDER BY n, d",
            {},
        ),
        (
            "SELECT COUNT(product) AS n, 10 * AVG(amount) AS mean, 100 * AVG(CASE WHEN amount >= 5 "
            "THEN 1.0 ELSE 0.0 END) AS share FROM orders",
            {"bounds": BOUNDS, "plus_minus": 0.004, "epsilon": 40000.0},
        ),
        (
            "SELECT 11 * VAR_POP(amount) AS v, 10 * STDDEV_POP(amount) AS s FROM orders",
            {"bounds": BOUNDS, "plus_minus": 0.004, "epsilon": 40000.0},
        ),
        (
            "SELECT amount > 4 AS top, COUNT(*) AS n, MIN(product) AS least, MAX(product) AS most, "
            "QUANTILE_DISC(product, 0.3) AS low, PERCENTILE_DISC(0.3) WITHIN GROUP (ORDER BY "
            "product DESC) AS upper, MEDIAN(product) FILTER (WHERE product > 1) AS middle, "
            "MAX(product) - MIN(product) AS spread FROM orders GROUP BY top ORDER BY top",
            {"bounds": {"product": (0, 5)}, "confidence": 0.99, "within_rank": 0.003},
        ),
    ],
)
def test_answers_are_those_of_the_engine(sql, options):
    result = ask(sql, {"orders": orders(), "products": PRODUCTS}, **options)
    said = [tuple(str(c).lower() if isinstance(c, bool) else c for c in row) for row in truth(sql)]
    assert table(result) == said
    assert verify_certificate(result.certificate()) == []


def written(folder: Path) -> dict[str, Any]:
    """The same orders in files and databases."""
    rows = orders()
    lines = list(zip(*rows.to_pydict().values(), strict=True))
    names = ",".join(rows.column_names)
    text = "\n".join([names, *(",".join(map(str, line)) for line in lines)])
    (folder / "orders.csv").write_text(text + "\n")
    with sqlite3.connect(folder / "base.sqlite") as connection:
        connection.execute(f"CREATE TABLE orders ({names})")
        connection.executemany("INSERT INTO orders VALUES (?, ?, ?, ?, ?)", lines)
    connection.close()
    engine = duckdb.connect(str(folder / "base.duckdb"))
    engine.register("rows", rows)
    engine.execute("CREATE TABLE orders AS SELECT * FROM rows")
    engine.execute("CREATE TABLE products AS SELECT 1 AS id, 'toys' AS category")
    engine.close()
    return {name: str(folder / name) for name in ("orders.csv", "base.sqlite", "base.duckdb")}


QUESTION = (
    "SELECT region, COUNT(*) AS n, SUM(amount + 1) AS s, MEDIAN(amount) AS m, MAX(amount) AS x, "
    "COUNT(DISTINCT day) AS d FROM orders WHERE amount < 7 AND region IN ('north', 'south') "
    "GROUP BY region"
)


def test_engines_agree(tmp_path, postgres_url):
    import psycopg

    sources = written(tmp_path)
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE orders (customer bigint, region text, amount double precision, "
            "product int, day text)"
        )
        with connection.cursor() as cursor:
            lines = list(zip(*orders().to_pydict().values(), strict=True))
            cursor.executemany("INSERT INTO orders VALUES (%s, %s, %s, %s, %s)", lines)
    asked = [
        ask(QUESTION, source, bounds=BOUNDS, **EXACT)
        for source in [*sources.values(), postgres_url, orders()]
    ]
    first = asked[0].as_dict()
    assert all(result.as_dict() == first for result in asked[1:])


RANKED = "SELECT COUNT(*) AS n, MEDIAN(amount) AS m, MAX(amount) AS x FROM orders"


@pytest.mark.parametrize("delta", [None, 1e-6])
def test_quantiles_beside_counts_are_one_charge(tmp_path, delta):
    """One reservation and one certificate; MAX says what it means; shares by what is needed."""
    budget = expost.PureBudget(30) if delta is None else expost.ZCDPBudget(30)
    ledger = Ledger.create(tmp_path / "ledger.db", budget)
    options = {"source": orders(), "user": "customer", "bounds": BOUNDS, "one_row_per_user": True}
    result = expost.query(RANKED, **options, epsilon=20.0, delta=delta, ledger=ledger)
    entries = [entry.action for entry in ledger.entries()]
    assert entries.count("reserve") == entries.count("settle") == 1
    document = json.loads(json.dumps(result.certificate()))
    assert verify_certificate(document, ledger=ledger) == []
    assert [part.kind for part in result.parts] == ["rows", "quantile"]
    ((told, *_),) = [part.answers for part in result.parts if part.kind == "quantile"]
    assert told.rank_high - told.rank_low <= 0.04
    words = dict(certificate_words(document))
    assert "0.995 for MAX" in str(words["parts"])
    assert "0.02 of their rank" in str(words["error"])
    assert "answered by the quantile at 0.995" in str(result.warnings)
    checked = check_query(RANKED, options | {"epsilon": 20.0, "delta": delta})
    assert checked.weights[1] > 10 * checked.weights[0]
    for change in (
        lambda d: d["parts"][1]["answers"][0].__setitem__("spent", 1e-3),
        lambda d: [a.__setitem__("spent", 1e-3) for a in d["parts"][1]["answers"]],
        lambda d: d["parts"][1].__setitem__("spent", 1e-3),
        lambda d: d["parts"][1]["answers"][0].pop("at"),
    ):
        changed = json.loads(json.dumps(document))
        change(changed)
        assert verify_certificate(changed)


def test_every_quantile_of_a_column_of_the_answer_may_miss():
    """MAX − MIN has two intervals of one part, so each misses half as often."""
    options = {"source": orders(), "user": "customer", "bounds": BOUNDS, "epsilon": 9.0}
    for sql, intervals in (("MAX(amount) - MIN(amount)", 2), ("MAX(amount), MIN(amount)", 1)):
        checked = check_query(f"SELECT {sql} FROM orders", options)
        inner = checked.requests[0].wanted.confidence
        assert inner == pytest.approx(1 - 0.1 / intervals)


def test_an_error_of_ranks_belongs_to_quantiles():
    for sql, error in (("SELECT COUNT(*) FROM orders", 0.1), (RANKED, 0), (RANKED, 0.7)):
        with pytest.raises(InvalidInput, match="within_rank"):
            ask(sql, bounds=BOUNDS, within_rank=error, confidence=0.9)
    with pytest.raises(InvalidInput, match="quantiles need"):
        ask(RANKED, bounds=BOUNDS)


def test_medians_of_groups_that_are_found_privately():
    result = ask(
        "SELECT region, MEDIAN(product) AS m FROM orders GROUP BY region ORDER BY region",
        bounds={"product": (0, 5)},
        private_keys=True,
        delta=1e-6,
        epsilon=60.0,
        plus_minus=None,
        confidence=0.9,
    )
    assert table(result) == [("north", 2), ("south", 2)]
    assert verify_certificate(result.certificate()) == []


def test_a_public_table_beside_the_private_one_in_a_database(tmp_path):
    sql = "SELECT category, COUNT(*) AS n FROM orders JOIN products ON product = id GROUP BY 1"
    result = ask(sql, written(tmp_path)["base.duckdb"], public=["products"])
    assert table(result) == [("toys", 120)]


def test_one_reservation_one_charge_and_a_certificate(tmp_path):
    ledger = Ledger.create(tmp_path / "ledger.db", expost.PureBudget(10))
    sql = "SELECT COUNT(*) AS n, AVG(amount) AS m FROM orders"
    result = expost.query(
        sql, source=orders(), user="customer", bounds=BOUNDS, epsilon=2.0, within=0.2, ledger=ledger
    )
    entries = [entry.action for entry in ledger.entries()]
    assert entries.count("reserve") == entries.count("settle") == 1
    document = result.certificate()
    assert verify_certificate(json.loads(json.dumps(document)), ledger=ledger) == []
    spent = Fraction(result.spent)
    parts = sum((Fraction(part.spent) for part in result.parts), Fraction(0))
    shares = sum(map(Fraction, result.public["shares"].values()), Fraction(0))
    assert (
        parts + shares <= spent <= (parts + shares) * (1 + Fraction(1, 10**9)) + Fraction(1, 10**11)
    )
    assert spent < 2
    assert 0 <= spent - ledger.standing().filter.settled[0] <= Fraction(1, 10**12)
    for change in (
        lambda d: d["parts"][0].__setitem__("spent", d["parts"][0]["spent"] / 2),
        lambda d: d["spent"].__setitem__("epsilon", d["spent"]["epsilon"] / 2),
        lambda d: d["parts"].pop(),
        lambda d: d["parts"][0].__setitem__("share_of_dropped", 0.0),
    ):
        changed = json.loads(json.dumps(document))
        change(changed)
        assert verify_certificate(changed)


REFUSALS = {
    "SELECT region, COUNT(*) FROM orders GROUP BY region": "keys",
    "SELECT SUM(amount) FROM orders": "bounds",
    "SELECT COUNT(*) FROM orders WHERE nothing = 1": "nothing",
    "SELECT COUNT(*) FROM orders JOIN products ON product = id": "public",
    "SELECT COUNT(*) FROM orders JOIN shops ON product = id": "JOIN shops",
    "SELECT COUNT(*) FROM orders a JOIN orders b ON a.customer = b.customer": "self join",
    "SELECT MEDIAN(amount) FROM orders": "bounds",
    "SELECT QUANTILE(product, 2) FROM orders": "PERCENTILE",
    "SELECT QUANTILE(product, [0.1, 0.2]) FROM orders": "PERCENTILE",
    "SELECT MAX(product, 3) FROM orders": "MAX",
    "SELECT MIN(DATE '2024-01-01') FROM orders": "number",
    "SELECT MEDIAN(AVG(product)) FROM orders": "MEDIAN",
    "SELECT COUNT(*) FROM orders LIMIT 1": "LIMIT",
    "SELECT amount + 1 AS region, COUNT(*) FROM orders GROUP BY region": "alias",
}


@pytest.mark.parametrize("sql", REFUSALS)
def test_a_refusal_charges_nothing(tmp_path, sql):
    ledger = Ledger.create(tmp_path / "ledger.db", expost.PureBudget(10))
    before = len(list(ledger.entries()))
    with pytest.raises(InvalidInput, match=REFUSALS[sql]):
        expost.query(
            sql,
            source={"orders": orders(), "products": PRODUCTS},
            user="customer",
            epsilon=1.0,
            ledger=ledger,
        )
    assert len(list(ledger.entries())) == before


def test_a_public_table_must_be_unique_in_the_joined_columns():
    twice = pa.table({"id": [1, 1], "category": ["a", "b"]})
    sql = "SELECT COUNT(*) AS n FROM orders JOIN products ON product = id"
    with pytest.raises(InvalidInput, match="not unique"):
        ask(sql, {"orders": orders(), "products": twice}, public=["products"])


def test_groups_are_found_privately():
    result = ask(
        "SELECT region, COUNT(*) AS n FROM orders GROUP BY region ORDER BY region",
        private_keys=True,
        delta=1e-6,
        epsilon=20.0,
        plus_minus=None,
        within=0.1,
    )
    assert [row[0] for row in table(result)] == ["north", "south"]
    assert verify_certificate(result.certificate()) == []
    assert result.unit == "rho"


def test_what_a_part_does_not_use_is_for_those_after_it():
    """The totals of the parts, as they run: never less than planned, at most what is left."""
    options = {
        "source": orders(),
        "user": "customer",
        "epsilon": 3.0,
        "within": 0.3,
        "bounds": BOUNDS,
        "max_groups_per_user": 1,
        "max_rows_per_user": 2,
    }
    sql = "SELECT COUNT(DISTINCT customer), SUM(amount), COUNT(*) FROM orders"
    checked = check_query(sql, options)
    assert sum(request.total for request in checked.requests) == checked.for_parts()
    run = QueryRun(checked, SimulationRandomness(3))
    run.measure()
    # Those of which the caps removed too much are before all others.
    hopeless = [run._is_hopeless(part, checked.requests[part]) for part in run.parts]
    assert sorted(hopeless, reverse=True) == hopeless
    for which in (True, False):
        own = [part for part, one in zip(run.parts, hopeless, strict=True) if one is which]
        assert own == [part for part in checked.order() if part in own]
    left = checked.base.total - run.side
    for part in run.parts:
        request, progress, _ = run.parts[part]
        assert checked.requests[part].total <= request.total <= left
        assert progress.spent <= request.total
        left -= progress.spent
    assert run.spent + left == checked.base.total


def test_what_the_caps_spoil_is_for_the_others(monkeypatch):
    """An aggregate of which four fifths are removed comes first, and leaves what it has."""
    small = ChosenCap(1, 4.0, 0.1, 5.0, clear=False)
    monkeypatch.setattr("expost.analytics.cap_ladder.CapSearch.run", lambda search: small)
    people = [person for person in range(2000) for _ in range(5)]
    rows = pa.table({"customer": people, "amount": [person % 7 for person in people]})
    options = {"source": {"orders": rows}, "user": "customer", "epsilon": 20, "within": 0.05}
    options |= {"bounds": {"amount": (0, 6)}}
    checked = check_query("SELECT AVG(amount) AS mean, COUNT(*) AS n FROM orders", options)
    run = QueryRun(checked, SimulationRandomness(3))
    run.measure()
    parts = {checked.compiled.parts[part].kind: part for part in run.parts}
    assert list(parts) == ["rows", "mean"]
    planned, (request, _, _) = checked.requests[parts["mean"]].total, run.parts[parts["mean"]]
    assert request.total > planned + checked.requests[parts["rows"]].total / 2
    spent = run.side + run.parts[parts["rows"]][1].spent
    assert request.total <= checked.base.total - spent


def test_plan_reads_no_row():
    class Watched(dict):
        """A source that is asked for its columns only."""

    planned = plan_query(
        "SELECT COUNT(*) AS n, AVG(amount) AS m FROM orders",
        source=Watched(orders=orders()),
        user="customer",
        epsilon=1.0,
        bounds=BOUNDS,
    ).as_dict()
    shares = sum(planned["shares"].values()) + sum(part["share"] for part in planned["parts"])
    assert shares == pytest.approx(1.0)
    assert [part["of"] for part in planned["parts"]] == ["COUNT(*)", "AVG(amount)"]
    costs = [size["cost"] for size in planned["parts"][0]["sizes"] if size["cost"] is not None]
    assert costs == sorted(costs, reverse=True)


def test_caps_are_chosen_privately_and_paid():
    result = ask(
        "SELECT region, COUNT(*) AS n FROM orders GROUP BY region",
        keys=list(REGIONS),
        one_row_per_user=False,
        plus_minus=None,
        within=0.2,
        epsilon=10.0,
    )
    shares = result.public["shares"]
    assert shares["max_groups_per_user"] == shares["max_rows_per_user"] == 0
    (part,) = result.parts
    assert 0 < part.share_of_dropped <= 10 * float(MOST_SHARE)
    assert part.dropped_share["in_all_groups"] >= 1
    assert result.max_groups_per_user is None
    assert verify_certificate(result.certificate()) == []


def test_a_guarantee_is_for_the_whole_query():
    """Also in words."""
    result = ask("SELECT COUNT(*) AS a, COUNT(DISTINCT customer) AS b FROM orders", epsilon=900.0)
    assert result.guarantee == PureDP(900.0)
    assert result.as_dict()["guarantee"]["epsilon"] == 900.0
    words = dict(certificate_words(result.certificate()))
    assert words["answers"] == ("1 of 1 rows reached this error in every column",)
    assert [line.partition(":")[0] for line in words["parts"]] == [
        "COUNT(*)",
        "COUNT(DISTINCT person)",
    ]
    assert "this part cannot be read" not in str(words)


def test_bounds_of_a_column_that_is_computed_from_answers_bound_no_aggregate():
    """They are for names of aggregates; a quotient has none, and is no reason to stop."""
    sql = "SELECT SUM(amount) / COUNT(*) AS mean, AVG(amount) AS plain FROM orders"
    limits = {"mean": (0, 10), "plain": (0, 10)}
    with pytest.raises(InvalidInput, match="SUM"):
        ask("SELECT SUM(amount) / COUNT(*) AS mean FROM orders", bounds={"mean": (0, 10)})
    result = ask(sql, bounds=limits | {"amount": (0, 10)}, within=0.1, plus_minus=None)
    assert result.records()[0]["mean"] == pytest.approx(4.5, rel=0.1)


@pytest.mark.parametrize("keys", ["north", {"region": "north"}])
def test_a_text_is_no_list_of_groups(keys):
    with pytest.raises(InvalidInput, match="list of groups"):
        ask("SELECT region, COUNT(*) FROM orders GROUP BY region", keys=keys)


def test_what_the_caps_remove_is_told_if_few_groups_are_found():
    """Pairs of groups that were not found use up the cap, too: the share is not 0 by definition."""
    rows = pa.table(
        {
            "customer": [person for person in range(4000) for _ in range(4)],
            "region": [
                "north" if number == 0 else f"{person}-{number}"
                for person in range(4000)
                for number in range(4)
            ],
        }
    )
    result = expost.query(
        "SELECT region, COUNT(DISTINCT customer) AS n FROM t GROUP BY region",
        source={"t": rows},
        user="customer",
        private_keys=True,
        delta=1e-6,
        epsilon=5.0,
        max_groups_per_user=2,
    )
    assert [row["region"] for row in result.records()] == ["north"]
    told = result.parts[0].dropped_share
    assert told is not None
    assert told["estimate"] == pytest.approx(0.5, abs=0.05)
    assert not result.records()[0]["answered"]


@pytest.mark.parametrize(
    ("unit", "where", "groups"),
    [
        ("month", "day >= '2024-02-01' AND day < '2024-05-01'", ["02", "03", "04"]),
        ("month", "day > DATE '2024-02-01' AND day <= '2024-05-01'", ["02", "03", "04", "05"]),
        (
            "quarter",
            "amount >= 0 AND day BETWEEN '2024-03-15' AND '2024-07-01'",
            ["01", "04", "07"],
        ),
        ("year", "day BETWEEN '2024-03-15' AND '2024-07-01'", ["01"]),
    ],
)
def test_dates_between_two_dates_imply_their_groups(unit, where, groups):
    result = ask(
        f"SELECT DATE_TRUNC('{unit}', day) AS d, COUNT(*) AS n FROM orders WHERE {where} GROUP BY d"
    )
    assert [row["d"] for row in result.records()] == [f"2024-{month}-01" for month in groups]
    rows = [int(day[5:7]) for day in orders().column("day").to_pylist()]
    if unit == "month":
        told = [round(row["n"]) for row in result.records()]
        last = 3 if "<= '2024-05-01'" in where else 99  # orders are of the third day of a month
        assert told[:3] == [rows.count(int(month)) for month in groups[:3]]
        assert told[last:] == [0] * len(told[last:])


@pytest.mark.parametrize(
    "where",
    [
        "day >= '2024-02-01'",
        "day >= '2024-02-01' OR day < '2024-05-01'",
        "day > amount AND day < 'x'",
    ],
)
def test_dates_without_two_ends_imply_nothing(where):
    with pytest.raises(InvalidInput):
        ask(f"SELECT DATE_TRUNC('month', day) AS d, COUNT(*) FROM orders WHERE {where} GROUP BY d")


def test_weeks_begin_on_monday():
    sql = (
        "SELECT DATE_TRUNC('week', day) AS d, COUNT(*) AS n FROM orders WHERE day BETWEEN "
        "'2024-01-01' AND '2024-02-04' GROUP BY d HAVING n > 5"
    )
    assert [row["d"] for row in ask(sql).records()] == ["2024-01-01", "2024-01-29"]


def test_a_cap_of_nearly_all_months_is_all_of_them():
    """Half of the persons have a row in each month: no share of what a cap drops is bought then."""
    users = [person for person in range(4000) for _ in range(12 if person % 2 else 2)]
    counted: dict[int, int] = {}
    days = []
    for person in users:
        counted[person] = counted.get(person, 0) + 1
        days.append(f"2024-{counted[person]:02}-03")
    visits = pa.table({"customer": users, "day": days})
    result = expost.query(
        "SELECT MONTH(CAST(day AS DATE)) AS month, COUNT(DISTINCT customer) AS people "
        "FROM visits GROUP BY month",
        source={"visits": visits},
        user="customer",
        within=0.05,
        epsilon=1.0,
        randomness=SimulationRandomness(1),
        simulation=True,
    )
    assert result.max_groups_per_user == 12
    assert all(row.answered for row in result.rows)
    assert result.parts[0].dropped_share is None
    assert verify_certificate(result.certificate()) == []
