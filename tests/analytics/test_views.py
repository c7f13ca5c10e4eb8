"""Views and queries whose rows depend on each other are refused, before anything is charged."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any

import pytest

pytest.importorskip("ibis", reason="needs the analytics extra")
pytest.importorskip("duckdb", reason="needs the analytics extra")

import duckdb
import ibis

import expost
from expost import Ledger, PureDP
from expost.errors import InvalidInput
from tests.analytics.tables import EXACT

ROWS = "SELECT 1 AS u, 'a' AS g UNION ALL SELECT 2, 'a' UNION ALL SELECT 3, 'b'"
MIXING = {
    "limit": "SELECT * FROM t LIMIT 2",
    "offset": "SELECT * FROM t ORDER BY u LIMIT -1 OFFSET 1",
    "window": "SELECT u, g, row_number() OVER (ORDER BY u) AS n FROM t",
    "aggregate": "SELECT max(u) AS u, g FROM t GROUP BY g",
    "distinct": "SELECT DISTINCT u, g FROM t",
    "inside": "SELECT u, g FROM (SELECT * FROM t LIMIT 1) AS s",
    "with": "WITH s AS (SELECT * FROM t LIMIT 1) SELECT u, g FROM s",
    "below": "SELECT u, g FROM first WHERE u > 0",
}
PLAIN = {
    "columns": "SELECT u, g FROM t",
    "condition": "SELECT u, upper(g) AS g FROM t WHERE u > 0 ORDER BY u",
    "word": "SELECT u, g FROM t WHERE g <> 'LIMIT 5'",
    "above": 'SELECT u, g FROM "columns"',
}


@pytest.fixture(params=["duckdb", "sqlite"])
def database(request, tmp_path):
    connect: Any = duckdb.connect if request.param == "duckdb" else sqlite3.connect
    path = tmp_path / f"rows.{request.param}"
    with closing(connect(str(path))) as made:
        made.execute(f"CREATE TABLE t AS {ROWS}")
        made.execute("CREATE VIEW first AS SELECT * FROM t LIMIT 1")
        for name, text in (MIXING | PLAIN).items():
            text = text if request.param == "sqlite" else text.replace("LIMIT -1 ", "")
            made.execute(f'CREATE VIEW "{name}" AS {text}')
        made.commit()
    return path


def count(data: Any, **options: Any) -> int:
    (answer,) = expost.count(data, user="u", epsilon=1e7, **EXACT, **options).answers
    return round(answer.estimate)


@pytest.mark.parametrize("view", MIXING)
def test_views_that_mix_rows_are_refused(database, tmp_path, view):
    ledger = Ledger.create(tmp_path / "ledger.db", PureDP(1e9))
    with pytest.raises(InvalidInput, match="LIMIT"):
        count(database, table=view, ledger=ledger)
    assert len(list(ledger.entries())) == 1  # that of its creation


def test_views_of_single_rows_are_tables(database):
    for name in ("t", *PLAIN):
        assert count(database, table=name) == 3, name


def test_queries_of_ibis():
    connection = ibis.duckdb.connect()
    connection.raw_sql(f"CREATE TABLE t AS {ROWS}")
    connection.raw_sql("CREATE VIEW v AS SELECT * FROM t LIMIT 1")
    table = connection.table("t")
    for query in (table, table.filter(table.u > 0), table.mutate(h=table.g.upper()).order_by("u")):
        assert count(query) == 3
    written = ibis.expr.operations.SQLQueryResult("SELECT * FROM t", table.schema(), connection)
    for query in (
        table.limit(2),
        table.limit(2).filter(lambda rows: rows.u > 0),
        table.mutate(n=ibis.row_number()),
        table.filter(table.u < table.u.max()),
        table.group_by("g").aggregate(u=table.u.max()),
        table.distinct(),
        connection.table("v"),
        written.to_expr(),
    ):
        with pytest.raises(InvalidInput, match="LIMIT"):
            count(query)
