"""Row-wise expressions are total: no cell of any engine makes them fail, and engines agree."""

from __future__ import annotations

import math
import sqlite3
from datetime import date, datetime
from typing import Any

import ibis
import pyarrow as pa
import pytest

from expost.analytics.sql_expressions import Translator
from expost.errors import InvalidInput
from expost.tables.sources import as_table, open_source
from expost.tables.typed_columns import engine_of, fetch

NUMBERS = [
    *(None, 0.0, -0.0, 1.0, -1.0, 2.5, math.nan, math.inf, -math.inf, 1e308, -1e308, 5e-324),
    *(1e-200, 1e30, 2.0**63, -(2.0**63), 1e-30, 123456789.125, 7.0),
]
TEXTS = [
    *(None, "", "x", "7", "-1e400", "1e-400", "nan", "inf", "0", "%", "\\", "é" * 50, "2024-02-30"),
    *("2024-02-29", "2024-12-31 23:59:59", "infinity", "-infinity", "292000-01-01", "' OR 1=1 --"),
]
DAYS = [None, date(1, 1, 1), date(9999, 12, 31), date(2024, 2, 29), *[date(2023, 5, 17)] * 15]
MOMENTS = [None, datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59), datetime(2024, 2, 29, 13)]
MOMENTS += [datetime(2023, 5, 17, 8, 30)] * 15
NUMERIC = [
    *("x + y", "x - y", "x * y", "x / y", "x * x * y / (x - y)", "-x", "ABS(x)", "ROUND(x, 2)"),
    *("FLOOR(x)", "CEIL(x * y)", "SQRT(x)", "LN(x)", "POWER(x, 3)", "x % 7", "GREATEST(x, y, 0)"),
    *("LEAST(x, 100)", "CAST(x AS INTEGER)", "COALESCE(x, y, 0)", "NULLIF(x, 0)", "x / 0"),
    *("CASE WHEN x > 0 THEN 1 / x ELSE 0 END", "IF(x > y, x, y)", "LENGTH(s)"),
    *("EXTRACT(MONTH FROM d)", "YEAR(m)", "DAYOFWEEK(d)", "EXTRACT(ISODOW FROM m)", "HOUR(m)"),
    *("QUARTER(d)", "WEEK(d)", "DATE_DIFF('day', d, DATE '2024-01-01')", "DATE_PART('doy', m)"),
]
CONDITIONS = [
    *("x > 1", "x BETWEEN 0 AND 10", "x IN (1, 7)", "x = y OR s = 'x'", "NOT (x > 1)", "s IS NULL"),
    *(
        "s LIKE '%x%'",
        "s ILIKE 'X_'",
        "s IN ('x', '7')",
        "x IS NOT NULL AND x <> 7",
        "b",
        "b IS TRUE",
    ),
    *("d >= '2024-01-01'", "m < '2024-02-29 13:00:00'", "CAST(m AS DATE) = DATE '2024-02-29'"),
    "DATE_TRUNC('month', m) = '2024-02-01'",
]
TEXTUAL = ["LOWER(s)", "SUBSTRING(s, 2, 3)", "LEFT(s, 2)", "s || 'y'", "CAST(b AS TEXT)"]
FROM_TEXT = [
    "s + 1",
    "CAST(s AS DOUBLE) * 2",
    "s > 3",
    "MONTH(s)",
    "CAST(s AS DATE) < '2025-01-01'",
]
COLUMNS = ("i", "x", "y", "s", "b", "d", "m")


def rows() -> pa.Table:
    count = len(NUMBERS)
    return pa.table(
        {
            "i": pa.array(range(count), pa.int64()),
            "x": pa.array(NUMBERS, pa.float64()),
            "y": pa.array(NUMBERS[::-1], pa.float64()),
            "s": pa.array(TEXTS, pa.string()),
            "b": pa.array(([None, True, False] * count)[:count], pa.bool_()),
            "d": pa.array(DAYS, pa.date32()),
            "m": pa.array(MOMENTS, pa.timestamp("us")),
        }
    )


def values(table: Any, texts: list[str]) -> dict[str, list[Any]]:
    """What each expression is, in the order of the rows."""
    translator = Translator(lambda _, name: table[name], engine_of(table))
    chosen = {f"e{n}": translator.cell(text).expression for n, text in enumerate(texts)}
    told = fetch(table.select("i", **chosen).order_by("i"))
    return {text: told[f"e{n}"] for n, text in enumerate(texts)}


def alike(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-300)
    return one == other


EVERYTHING = [*NUMERIC, *CONDITIONS, *TEXTUAL]
SPARK = EVERYTHING


def test_no_cell_fails_in_duckdb_and_ranges_hold():
    table = ibis.memtable(rows())
    translator = Translator(lambda _, name: table[name], "duckdb")
    told = values(table, [*EVERYTHING, *FROM_TEXT])
    for text in NUMERIC:
        cell = translator.cell(text)
        for value in told[text]:
            assert value is None or cell.low <= value <= cell.high, text
            assert not value or abs(value) >= cell.least, text
            assert value is None or cell.values is None or value in cell.values, text
    assert told["x / 0"] == [None] * len(NUMBERS)
    assert told["s + 1"][3] == 8.0
    assert told["MONTH(s)"][13:15] == [2.0, 12.0]


def test_values_are_those_of_sql():
    told = values(ibis.memtable(rows()), EVERYTHING)
    place = NUMBERS.index(2.5)
    y = NUMBERS[::-1][place]
    assert (y, told["x * y"][place], told["x % 7"][place]) == (2.0**63 and y, 2.5 * y, 2.5)
    assert told["ROUND(x, 2)"][NUMBERS.index(123456789.125)] == 123456789.13
    assert told["GREATEST(x, y, 0)"][NUMBERS.index(None)] == 7.0
    assert told["LEAST(x, 100)"][NUMBERS.index(None)] == 100.0
    assert told["EXTRACT(ISODOW FROM m)"][3:5] == [4.0, 3.0]  # a Thursday and a Wednesday
    assert told["DAYOFWEEK(d)"][3] == 4.0
    assert told["DATE_DIFF('day', d, DATE '2024-01-01')"][4] == 229.0


def test_postgresql_agrees(postgres_url):
    import psycopg

    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE cells (i bigint, x double precision, y double precision, s text, "
            "b boolean, d date, m timestamp)"
        )
        with connection.cursor() as cursor:
            lines = list(zip(*rows().to_pydict().values(), strict=True))
            cursor.executemany("INSERT INTO cells VALUES (%s, %s, %s, %s, %s, %s, %s)", lines)
            cursor.execute(
                "INSERT INTO cells VALUES "
                "(99, 'NaN', '-Infinity', 'x', NULL, 'infinity', '-infinity'),"
                " (100, 1e-308, 4713, 'x', true, '4713-01-01 BC', '294276-12-31')"
            )
    here = values(ibis.memtable(rows()), EVERYTHING)
    there = values(open_source(postgres_url, "cells"), EVERYTHING)
    for text in EVERYTHING:
        for row, (one, other) in enumerate(zip(here[text], there[text], strict=False)):
            assert alike(one, other), (text, row, one, other)
        assert len(there[text]) == len(NUMBERS) + 2
    with pytest.raises(InvalidInput, match="cannot read text"):
        values(open_source(postgres_url, "cells"), ["s + 1"])


@pytest.mark.slow
def test_spark_agrees(spark):
    lines = list(zip(*rows().to_pydict().values(), strict=True))
    schema = "i long, x double, y double, s string, b boolean, d date, m timestamp_ntz"
    there = values(as_table(spark.createDataFrame(lines, schema)), SPARK)
    here = values(ibis.memtable(rows()), SPARK)
    for text in SPARK:
        for row, (one, other) in enumerate(zip(here[text], there[text], strict=False)):
            assert alike(one, other), (text, row, one, other)


def test_sqlite_agrees_where_columns_are_read_as_text(tmp_path):
    connection = sqlite3.connect(tmp_path / "t.sqlite")
    connection.execute("CREATE TABLE cells (i, x, y, s, b, d, m)")
    plain = [
        [str(cell) if isinstance(cell, (date, datetime)) else cell for cell in line]
        for line in zip(*rows().to_pydict().values(), strict=True)
    ]
    connection.executemany("INSERT INTO cells VALUES (?, ?, ?, ?, ?, ?, ?)", plain)
    connection.commit()
    connection.close()
    table = open_source(tmp_path / "t.sqlite", "cells", columns=COLUMNS)
    table = table.mutate(i=table.i.cast("int64"))
    texts = [text for text in NUMERIC if "x > y" not in text]  # no order of two texts
    here, there = values(ibis.memtable(rows()), texts), values(table, texts)
    for text in texts:
        # SQLite stores NaN as NULL and writes floats in 15 digits
        for one, other in zip(here[text], there[text], strict=True):
            assert one is None or other is None or math.isclose(one, other, rel_tol=1e-6), text


@pytest.mark.parametrize("dialect", ["bigquery", "snowflake", "postgres", "duckdb"])
def test_the_same_expressions_compile_for_other_engines(dialect):
    table = ibis.table(
        {"x": "float64", "y": "float64", "s": "string", "b": "bool", "d": "date", "m": "timestamp"},
        name="cells",
    )
    translator = Translator(lambda _, name: table[name], dialect)
    for text in EVERYTHING:
        written = table.select(e=translator.cell(text).expression)
        assert "SELECT" in ibis.to_sql(written, dialect=dialect)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("x * x * x * x * x * x * x * x * x * x", "too large or too small"),
        ("EXP(x)", "not answered"),
        ("NOW()", "NOW"),
        ("s < x2", "x2"),
        ("x > 'a'", "number is needed"),
        ("x AND b", "condition"),
        ("s > s", "CAST"),
        ("d > 'yesterday'", "no date"),
        ("CASE WHEN b THEN 1 ELSE 'a' END", "different kinds"),
        ("s LIKE 'a\\'", "backslash"),
        ("s LIKE s", "pattern"),
        ("CAST(x AS BLOB)", "cast to"),
        ("REGEXP_MATCHES(s, '(a+)+$')", "not answered"),
        ("x ** 0.5", "whole number"),
        ("1e300 * x", "between"),
        ("x IN (x, y, RANDOM())", "not answered"),
        ("REPEAT(s, 1000000000)", "not answered"),
    ],
)
def test_what_cannot_be_total_is_refused_by_its_text(text, named):
    table = ibis.memtable(rows())

    def column(_: str, name: str) -> Any:
        if name not in table.columns:
            raise InvalidInput("query", name, "no such column")
        return table[name]

    with pytest.raises(InvalidInput, match=named):
        Translator(column, "duckdb").cell(text)


def test_lists_of_groups_are_implied_by_the_query_alone():
    table = ibis.memtable(rows())
    translator = Translator(lambda _, name: table[name], "duckdb", bounds={"x": (0, 10)})
    assert translator.cell("CASE WHEN x > 1 THEN 'a' ELSE 'b' END").values == ("a", "b")
    assert translator.cell("EXTRACT(MONTH FROM d)").values == tuple(range(1, 13))
    assert translator.cell("x > 1").values == (True, False)
    assert translator.cell("s").values is None
    assert (translator.cell("x * 2").low, translator.cell("x * 2").high) == (0.0, 20.0)
    assert translator.cell("LEAST(GREATEST(y, -5), 5)").low == -5.0
