"""Ibis expressions: the answers of the same SELECT, and the same refusals."""

from __future__ import annotations

from typing import Any

import duckdb
import ibis
import pyarrow as pa
import pytest
from ibis import _

import expost
from expost import InvalidInput, Ledger, SimulationRandomness
from expost.analytics.sql_request import plan_query
from tests.analytics.test_sql_run import PRODUCTS, REGIONS, SURE, orders, table


def engine() -> Any:
    """A database in memory with the orders and the products."""
    connection = duckdb.connect()
    for name, rows in (("orders", orders()), ("products", PRODUCTS)):
        connection.register("rows", rows)
        connection.execute(f"CREATE TABLE {name} AS SELECT * FROM rows")
    return ibis.duckdb.from_connection(connection)


ENGINE = engine()
ORDERS, GOODS = ENGINE.table("orders"), ENGINE.table("products")
JOINED = ORDERS.join(GOODS, ORDERS.product == GOODS.id)
SAME: dict[str, tuple[Any, str]] = {
    "rows are filtered": (
        ORDERS.filter(_.amount > 3, _.region.isin(["north", "south"]))
        .group_by("region")
        .aggregate(n=_.count(), people=_.customer.nunique())
        .order_by("region"),
        "SELECT region, COUNT(*) AS n, COUNT(DISTINCT customer) AS people FROM orders "
        "WHERE amount > 3 AND region IN ('north', 'south') GROUP BY region ORDER BY region",
    ),
    "columns are computed": (
        ORDERS.mutate(big=(_.amount > 4).ifelse("x", "y"), double=_.amount * 2)
        .group_by("big")
        .aggregate(s=_.double.sum(), part=_.count(where=_.product > 2))
        .order_by("big"),
        "SELECT CASE WHEN amount > 4 THEN 'x' ELSE 'y' END AS big, SUM(amount * 2) AS s, "
        "COUNT(*) FILTER (WHERE product > 2) AS part FROM orders GROUP BY big ORDER BY big",
    ),
    "public tables are joined": (
        JOINED.filter(_.amount > 1)
        .mutate(more=_.amount + 1)
        .group_by("category")
        .aggregate(s=_.more.sum())
        .filter(_.s > 100)
        .mutate(half=_.s / 2)
        .order_by(ibis.desc("s"))
        .limit(1),
        "SELECT category, SUM(amount + 1) AS s, SUM(amount + 1) / 2 AS half FROM orders JOIN "
        "products ON product = id WHERE amount > 1 GROUP BY category HAVING s > 100 "
        "ORDER BY s DESC LIMIT 1",
    ),
    "a single number": (
        ORDERS.filter(_.amount < 7).count(),
        "SELECT COUNT(*) FROM orders WHERE amount < 7",
    ),
}
OPTIONS: dict[str, Any] = {"user": "customer", "bounds": {"amount": (0, 10)}}


def ask(question: Any, **options: Any) -> Any:
    given = {**SURE, **OPTIONS, "randomness": SimulationRandomness(1), "simulation": True}
    return expost.query(question, **(given | options))


@pytest.mark.parametrize("name", SAME)
def test_an_expression_is_answered_like_its_select(name: str) -> None:
    expression, sql = SAME[name]
    one = ask(expression, public=[GOODS])
    other = ask(sql, source={"orders": orders(), "products": PRODUCTS}, public=["products"])
    assert table(one) == table(other)
    assert one.spent == other.spent
    assert expost.verify_certificate(one.certificate()) == []


REFUSED = {
    "LIMIT": ORDERS.limit(10).count(),
    "DISTINCT": ORDERS.distinct().count(),
    "rows": ORDERS.filter(_.amount > 3),
    "an order of rows": ORDERS.order_by("amount").count(),
    "a window": ORDERS.mutate(r=ibis.row_number().over(order_by="amount")).aggregate(n=_.r.max()),
    "an aggregate of aggregates": ORDERS.group_by("region").aggregate(n=_.count()).n.mean(),
    "a count of groups": ORDERS.group_by("region").aggregate(n=_.count()).count(),
    "a self join": ORDERS.join(ORDERS.view(), "customer").count(),
    "a union": ORDERS.union(ORDERS).count(),
    "chance": ORDERS.filter(ibis.random() < 0.5).count(),
    "a private table that is not public": JOINED.count(),
    "an answer joined with rows": ORDERS.join(
        ORDERS.group_by("region").aggregate(n=_.count()), "region"
    ).count(),
    "a condition below and above": ORDERS.group_by("region")
    .aggregate(n=_.count())
    .limit(1)
    .filter(_.n > 3),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_sql_refuses_is_refused(name: str, tmp_path: Any) -> None:
    ledger = Ledger.create(tmp_path / "ledger.db", expost.PureBudget(10))
    before = len(list(ledger.entries()))
    with pytest.raises(InvalidInput):
        expost.query(REFUSED[name], **OPTIONS, keys=list(REGIONS), epsilon=1.0, ledger=ledger)
    assert len(list(ledger.entries())) == before


def test_tables_without_data_need_a_source() -> None:
    named = ibis.table(ORDERS.schema(), name="orders")
    with pytest.raises(InvalidInput, match="where the table 'orders' is"):
        ask(named.count())
    assert table(ask(named.count(), source={"orders": orders()})) == [(600,)]
    assert plan_query(named.count(), source=orders(), user="customer", epsilon=1.0).parts
    for wrong in (None, 3, pa.table({"a": [1]})):
        with pytest.raises(InvalidInput, match="query"):
            ask(wrong, source=orders())
