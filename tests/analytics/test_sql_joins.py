"""Joins of two private tables on the person: right answers, one person apart, the same price."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import duckdb
import ibis
import numpy as np
import pyarrow as pa
import pytest

import expost
from expost import InvalidInput, SimulationRandomness, certificate_words, verify_certificate
from expost.analytics import query, sql_tables
from expost.analytics.sql_joins import capped_rows
from expost.analytics.sql_request import check_query
from expost.analytics.sql_run import price_query
from tests.cli.counting import expost as command
from tests.hostile.judge import one_person_apart

__all__ = ["command"]  # a fixture

SQL = (
    "SELECT page, COUNT(*) AS n FROM orders o JOIN visits v ON o.customer = v.client GROUP BY page"
)
ASK: dict[str, Any] = {
    "user": "customer",
    "keys": ["home", "sale"],
    "private": {"orders": 3, "visits.client": 2},
    "epsilon": 4000.0,
    "plus_minus": 0.4,
    "confidence": 0.999999,
    "max_groups_per_user": 2,
    "max_rows_per_user": 6,
}


def orders(persons: int = 40) -> dict[str, list[str]]:
    """Person p has p % 5 orders."""
    rows = [(f"c{p}", str(k)) for p in range(persons) for k in range(p % 5)]
    return {"customer": [row[0] for row in rows], "amount": [row[1] for row in rows]}


def visits(persons: int = 40) -> dict[str, list[str]]:
    """Person p has p % 4 visits of one page."""
    rows = [(f"c{p}", ("home", "sale")[p % 2]) for p in range(persons) for _ in range(p % 4)]
    return {"client": [row[0] for row in rows], "page": [row[1] for row in rows]}


def pairs(page: str, persons: int = 40) -> int:
    """What the join has, with at most 3 orders and 2 visits of a person."""
    mine = [p for p in range(persons) if ("home", "sale")[p % 2] == page]
    return sum(min(3, p % 5) * min(2, p % 4) for p in mine)


def write(folder: Path, form: str) -> Any:
    """Both tables in a form of sources."""
    tables = {"orders": orders(), "visits": visits()}
    if form == "memory":
        return tables
    if form == "arrow":
        return {name: pa.table(rows) for name, rows in tables.items()}
    if form in ("csv", "parquet"):
        files = []
        for name, rows in tables.items():
            files.append(folder / f"{name}.{form}")
            how = ibis.memtable(pa.table(rows))
            (how.to_csv if form == "csv" else how.to_parquet)(files[-1])
        return files
    path = folder / "both.duckdb"
    with duckdb.connect(str(path)) as database:
        for name, rows in tables.items():
            shown = pa.table(rows)
            assert shown.num_rows
            database.execute(f"CREATE TABLE {name} AS SELECT * FROM shown")
    return str(path)


def ask(source: Any, sql: str = SQL, **options: Any) -> Any:
    given = ASK | {"randomness": SimulationRandomness(1), "simulation": True} | options
    return expost.query(sql, source=source, **given)


@pytest.mark.parametrize("form", ["memory", "arrow", "csv", "parquet", "duckdb"])
def test_the_answer_is_that_of_the_capped_tables(tmp_path, form):
    result = ask(write(tmp_path, form))
    told = {row["page"]: round(row["n"]) for row in result.records()}
    assert told == {page: pairs(page) for page in ("home", "sale")}
    assert any("enter the join: 3 of orders and 2 of visits" in text for text in result.warnings)
    document = result.certificate()
    assert verify_certificate(document) == []
    assert "visits (at most 2 rows of a person)" in str(certificate_words(document))


def test_left_joins_and_further_conditions():
    sql = "SELECT COUNT(*) AS n FROM orders o LEFT JOIN visits v ON o.customer = v.client"
    more = {"keys": None, "max_groups_per_user": None}
    rows = sum(min(3, p % 5) * max(1, min(2, p % 4)) for p in range(40))
    assert round(ask(write(Path(), "memory"), sql, **more).records()[0]["n"]) == rows
    same = {**visits(), "n": ["1"] * len(visits()["client"])}
    sql = "SELECT COUNT(*) AS n FROM orders o JOIN visits v ON o.customer = v.client AND amount = n"
    source = {"orders": orders(), "visits": same}
    joined = sum((p % 5 > 1) * min(2, p % 4) for p in range(40))
    caps = {"orders": 5, "visits.client": 2}
    told = ask(source, sql, private=caps, **more).records()[0]["n"]
    assert round(told) == joined


def test_the_price_is_that_of_one_table():
    joined = check_query(SQL, ASK | {"source": write(Path(), "memory")})
    plain = {name: value for name, value in ASK.items() if name != "private"}
    one = "SELECT amount, COUNT(*) AS n FROM orders GROUP BY amount"
    alone = check_query(one, plain | {"source": {"orders": orders()}})
    assert price_query(joined).charges == price_query(alone).charges
    sizes = [request.measure.sensitivity for request in (*joined.requests, *alone.requests)]
    assert sizes == [6, 6]


REFUSALS = {
    "JOIN visits.*--private orders=ROWS": {"private": None},
    "FROM orders.*need a cap": {"private": {"visits.client": 2}},
    "name each table": {"private": {"orders": 3, "shops": 2}},
    "JOIN of two private tables": {"private": {"orders": 3}},
    "declared public": {"public": ["visits"]},
    "at_least|whole number": {"private": {"orders": 3, "visits.client": 0}},
    "the table has the columns": {"private": {"orders": 3, "visits": 2}},
    "joined on the person": {"private": {"orders": 3, "visits.page": 2}},
}


@pytest.mark.parametrize("words", REFUSALS)
def test_refusals_name_the_clause(words):
    with pytest.raises(InvalidInput, match=words):
        ask(write(Path(), "memory"), **REFUSALS[words])


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT COUNT(*) FROM orders o JOIN visits v ON o.amount = v.page",
        "SELECT COUNT(*) FROM orders o JOIN visits v ON o.customer = v.page",
        "SELECT COUNT(*) FROM orders o JOIN visits v ON o.amount = v.client",
        "SELECT COUNT(*) FROM orders o JOIN visits v ON LOWER(o.customer) = v.client",
    ],
)
def test_rows_of_two_persons_do_not_meet(sql):
    """Another condition than the person's equality would join rows of two persons."""
    with pytest.raises(InvalidInput, match=r"JOIN visits.*joined on the person"):
        ask(write(Path(), "memory"), sql, keys=None)


def test_two_persons_that_a_float_cannot_tell_apart_do_not_meet():
    """2^53 and 2^53 + 1 are the same float64: rows of one must not reach the other."""
    persons = [2**53, 2**53 + 1]
    source = {
        "orders": pa.table({"customer": persons, "amount": [1, 1]}),
        "visits": pa.table({"client": persons, "page": ["home", "sale"]}),
    }
    told = {row["page"]: round(row["n"]) for row in ask(source).records()}
    assert told == {"home": 1, "sale": 1}
    floats = {**source, "orders": pa.table({"customer": [1.5, 2.5], "amount": [1, 1]})}
    with pytest.raises(InvalidInput, match="text or a whole number"):
        ask(floats)


def test_nothing_is_read_before_the_reservation(monkeypatch):
    def read(*_: Any) -> Any:
        raise AssertionError("rows were read")

    monkeypatch.setattr(sql_tables, "fetch", read)
    monkeypatch.setattr(sql_tables, "_fetched", read)
    check_query(SQL, ASK | {"source": write(Path(), "memory")})


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The private values of the parts."""
    seen: list[Any] = []
    make = query.refinement_of

    def watch(request: Any, progress: Any, groups: Any, values: Any, *rest: Any, **how: Any) -> Any:
        seen.append((request, progress.most, values))
        return make(request, progress, groups, values, *rest, **how)

    monkeypatch.setattr(query, "refinement_of", watch)
    return seen


@pytest.mark.parametrize("number", range(6))
def test_a_person_of_both_tables_changes_what_one_person_may(watched, number):
    """Any rows of one new person, in either table or in both, NULL and odd texts included."""
    bought = [[], [("new", "1")] * 30, [("new", None), ("new", "x"), (None, "1")] * 9]
    seen = [[("new", "home")] * 40 + [("new", "sale")] * 40, [("new", None), (None, "home")] * 9]
    mine, other = list(product(bought, seen))[number]
    values = []
    for extra, further in (([], []), (mine, other)):
        source = {"orders": orders(), "visits": visits()}
        for table, rows in ((source["orders"], extra), (source["visits"], further)):
            for name, cells in zip(table, zip(*rows, strict=True), strict=False):
                table[name] = [*cells, *table[name]]
        watched.clear()
        ask(source, max_groups_per_user=1, max_rows_per_user=4)
        values.append(watched[0])
    (request, most, here), (_, _, there) = values
    assert most == 1
    one_person_apart([(here.first, there.first)], request.measure.sensitivity, most)


def test_what_others_enter_with_does_not_depend_on_a_person():
    """The cap keeps the same rows of everybody else, in any order of the table."""
    generator = np.random.default_rng(3)
    rows = [(f"c{p}", str(k), None if k % 3 else "x") for p in range(9) for k in range(8)]
    more = [("new", str(k), None) for k in range(50)]

    def kept(table: list[tuple[Any, ...]]) -> set[tuple[Any, ...]]:
        order = generator.permutation(len(table))
        cells = zip(*(table[index] for index in order), strict=True)
        opened = ibis.memtable(pa.table(dict(zip("uvw", map(list, cells), strict=True))))
        records = capped_rows(opened, "u", 3, "duckdb", False).to_pyarrow().to_pylist()
        return {(row["u"], row["v"], row["w"]) for row in records}

    here, there = kept(rows), kept(rows + more)
    assert len(here) == 9 * 3
    assert {row for row in there if row[0] != "new"} == here
    assert len(there) == 10 * 3
    assert len({row[1] for row in here}) > 3  # people keep different rows


def test_the_command(tmp_path, command):
    files = write(tmp_path, "csv")
    sources = [text for file in files for text in ("--source", str(file))]
    caps = ("--private", "orders=3", "--private", "visits.client=2")
    (tmp_path / "keys.txt").write_text("home\nsale\n")
    more = ("--user", "customer", "--epsilon", "4", "--keys", str(tmp_path / "keys.txt"))
    done = command("query", SQL, *sources, *caps, *more)
    assert done.code == 0, done.err
    assert "enter the join" in done.err
    done = command("query", SQL, *sources, "--private", "orders", *more)
    assert done.code == 2
    assert "TABLE=ROWS" in done.err
