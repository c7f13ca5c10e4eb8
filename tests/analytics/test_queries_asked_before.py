"""The same query, or the same quantiles, on the same version of a table is paid once."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("ibis", reason="needs the analytics extra")

import expost
from expost import Ledger, PureDP
from expost.analytics import asked_before, sql_tables
from expost.analytics.quantile_request import QuantileRequest
from expost.analytics.quantiles import quantile_question
from expost.analytics.request import CountRequest
from expost.analytics.sql_parser import normal_form, parse_question
from expost.analytics.sql_request import SqlRequest, query_question
from expost.budget import totals
from expost.certificates.verify import verify_certificate
from expost.errors import InvalidInput
from expost.files import canonical
from tests.cli.counting import expost as command

__all__ = ["command"]  # a fixture

SQL = "SELECT g, COUNT(*) AS n, AVG(x) AS mean FROM t GROUP BY g"
Ask = Callable[..., Any]


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger.create(tmp_path / "ledger.db", PureDP(100))


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "t.csv"
    path.write_text(
        "u,g,x,k\n" + "".join(f"{n},{'ab'[n > 300]},{n % 9},{n % 2}\n" for n in range(900))
    )
    return path


def ask_query(ledger: Any, table: Any, **options: Any) -> Any:
    usual = {"source": table, "user": "u", "keys": ["a", "b"], "bounds": {"x": (0, 9)}}
    usual |= {"epsilon": 2, "within": 0.3, "table_version": "v1", "one_row_per_user": True}
    return expost.query(options.pop("sql", SQL), ledger=ledger, **usual | options)


def ask_quantile(ledger: Any, table: Any, **options: Any) -> Any:
    usual = {"by": "g", "user": "u", "keys": ["a", "b"], "bounds": (0, 9), "grid": 1}
    usual |= {"epsilon": 2, "within_rank": 0.2, "table_version": "v1", "max_groups_per_user": 1}
    return expost.quantile(table, options.pop("column", "x"), ledger=ledger, **usual | options)


DOORS = pytest.mark.parametrize("ask", [ask_query, ask_quantile])


def paid(ledger: Ledger) -> Any:
    return ledger.standing().filter.settled


@DOORS
def test_a_paid_answer_is_given_again(ledger, table, ask, tmp_path):
    first = ask(ledger, table)
    charged = paid(ledger)
    assert charged > (0,)
    again = ask(ledger, table)
    assert again.asked_before
    assert not first.asked_before
    assert again.certificate() == first.certificate()
    assert again.as_dict() == first.as_dict() | {"asked_before": True}
    assert again == first  # all fields, charge and charges too
    assert again.charged == first.charged
    assert verify_certificate(again.certificate(), ledger=ledger.path) == []
    assert paid(ledger) == charged
    assert len(list(ledger.entries())) == 3
    name = "rows.csv" if ask is ask_query else "answers.csv"
    texts = []
    for number, result in enumerate((first, again)):
        path = tmp_path / f"{number}{name}"
        (result.table() if ask is ask_query else result).save(path)
        texts.append(path.read_text())
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT COUNT(*) AS n, COUNT(DISTINCT u) AS p FROM t",
        "SELECT COUNT(*) AS n FROM t WHERE x > 100",
        "SELECT g, SUM(x) / COUNT(*) AS ratio, 3 AS three FROM t GROUP BY g ORDER BY ratio",
        "SELECT g, COUNT(*) AS n, SUM(x) AS s FROM t GROUP BY g HAVING COUNT(*) > 400",
        "SELECT g, MEDIAN(x) AS m, MAX(x) AS top, STDDEV(x) AS s FROM t GROUP BY g",
        "SELECT CASE WHEN x > 4 THEN 1 ELSE 0 END AS h, COUNT(*) AS n FROM t GROUP BY h",
        "SELECT g, k, COUNT(*) AS n FROM t WHERE g IN ('a', 'b') AND k IN (0, 1) GROUP BY g, k",
    ],
)
def test_answers_of_every_shape(ledger, table, sql):
    """What is kept is all of the answer; also which column of a row missed its error."""
    keys = ["a", "b"] if "GROUP BY g" in sql and "k, " not in sql else None
    first = ask_query(ledger, table, sql=sql, keys=keys, epsilon=1, within=0.08)
    again = ask_query(ledger, table, sql=sql, keys=keys, epsilon=1, within=0.08)
    assert again.asked_before
    assert again.certificate() == first.certificate()
    assert again.reached() == first.reached()
    assert again.table().rows() == first.table().rows()
    assert again.as_dict() == first.as_dict() | {"asked_before": True}


def test_which_column_missed_its_error_is_kept(ledger, table):
    sql = "SELECT COUNT(*) AS n, COUNT(*) FILTER (WHERE x > 7) AS few FROM t"
    options: dict[str, Any] = {"sql": sql, "keys": None, "epsilon": 1, "within": 0.02}
    first = ask_query(ledger, table, **options)
    assert first.reached() == [[True, False]]
    assert ask_query(ledger, table, **options).reached() == first.reached()


OTHER_QUERIES: list[dict[str, Any]] = [
    {"table_version": "v2"},
    {"keys": ["a"]},
    {"keys": ["a", "b", "c"]},
    {"bounds": {"x": (0, 10)}},
    {"epsilon": 3},
    {"within": 0.2},
    {"within": None, "plus_minus": 50},
    {"confidence": 0.8},
    {"one_row_per_user": False, "max_groups_per_user": 1, "max_rows_per_user": 1},
    {"one_row_per_user": False, "max_groups_per_user": 2, "max_rows_per_user": 1},
    {"user": "k", "one_row_per_user": False},
    {"delimiter": ","},
    {"analyst": "ana"},
    {"sql": SQL.replace(" GROUP", " WHERE x < 5 GROUP")},
    {"sql": SQL.replace("AVG(x)", "AVG(x + 1)")},
    {"sql": SQL + " HAVING COUNT(*) > 10"},
    {"sql": SQL + " ORDER BY n"},
    {"sql": SQL + " ORDER BY n LIMIT 1"},
    {"sql": SQL.replace(" AS n", " AS number")},
    {"sql": SQL.replace("g, COUNT(*) AS n", "COUNT(*) AS n, g")},
    {"sql": SQL.replace("COUNT(*)", "COUNT(*) FILTER (WHERE x > 3)")},
]
OTHER_QUANTILES: list[dict[str, Any]] = [
    {"table_version": "v2"},
    {"column": "k"},
    {"at": 0.25},
    {"at": [0.25, 0.5]},
    {"at": None, "bins": 3},
    {"at": 0.5, "bins": 3},
    {"at": None, "bins": [0, 4, 9]},
    {"within_rank": 0},  # a value, and not what is absent
    {"within_rank": None},
    {"bounds": (0, 10)},
    {"grid": 3},
    {"value_intervals": True},
    {"epsilon": 3},
    {"keys": ["a"]},
    {"by": None, "keys": None, "max_groups_per_user": None},
    {"where": ["k=1"]},
    {"confidence": 0.8},
    {"max_rows_per_user": 2},
    {"max_groups_per_user": 2},
    {"analyst": "ana"},
]


@pytest.mark.parametrize(
    ("ask", "others"), [(ask_query, OTHER_QUERIES), (ask_quantile, OTHER_QUANTILES)]
)
def test_another_question_is_another(ledger, table, ask, others):
    """Catches a digest that leaves a setting out: all are paid, and asked before from then on."""
    for other in ({}, *others):
        charged = paid(ledger)
        result = ask(ledger, table, **other)
        assert not result.asked_before, other
        # A coarser query may have been paid for with the path that it continues.
        assert paid(ledger) > charged or result.public.get("paid_before"), other
    charged = paid(ledger)
    for other in ({}, *others):
        assert ask(ledger, table, **other).asked_before, other
    assert paid(ledger) == charged


def questions_of(kind: type, base: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """What makes a question the same, for one more option at a time."""
    sql = "SELECT COUNT(*) AS n FROM t"
    for name in ("", *kind.__annotations__):
        if name in ("private", "public"):  # whose tables must be in the query
            continue
        asked = base | ({name: "other"} if name else {})
        source = asked.pop("source", "t.csv")
        if kind is SqlRequest:
            yield name, query_question(sql, asked | {"source": source})
        elif kind is QuantileRequest:
            yield name, quantile_question(source, asked)
        else:
            yield name, asked_before.count_question(source, asked)


@pytest.mark.parametrize("kind", [SqlRequest, QuantileRequest, CountRequest])
def test_every_option_is_part_of_the_question(kind):
    """Also one that is added later."""
    asked = questions_of(kind, {"epsilon": 1, "user": "u"})
    documents = {name: canonical(question) for name, (question, _) in asked}
    assert len(documents) == len(set(documents.values())) > 10


def test_0_is_a_value():
    """An error of ranks of 0 asks for no goal; it is not the usual one."""
    one, other = (
        quantile_question("t.csv", {"column": "x", "within_rank": error}) for error in (0, None)
    )
    assert one != other
    assert other == quantile_question("t.csv", {"column": "x", "within_rank": 0.02})


def test_no_two_questions_share_a_file(ledger, table, tmp_path):
    """Counts, queries and quantiles are in one folder."""
    expost.count(
        table, by="g", user="u", keys=["a", "b"], epsilon=2, ledger=ledger, table_version="v1"
    )
    ask_query(ledger, table)
    ask_quantile(ledger, table)
    kinds = [
        json.loads(path.read_text())["certificate"]["kind"]
        for path in (tmp_path / "ledger.db.answers").glob("*.json")
    ]
    assert sorted(kinds) == ["count", "quantile", "query"]


SPELLINGS = [
    "select g, count(*) as n, avg(x) as mean from t group by g",
    'SELECT "g", COUNT( * ) AS n,\n  AVG("x") AS "mean" FROM "t" GROUP BY 1 -- a remark',
    "SELECT g, COUNT(*) n, AVG(x) mean FROM t GROUP BY ALL;",
    "SELECT t.g, COUNT(*) AS n, AVG(x) AS mean FROM t GROUP BY t.g",
]


@pytest.mark.parametrize("sql", SPELLINGS[:3])
def test_spelling_does_not_count(ledger, table, sql):
    first = ask_query(ledger, table)
    charged = paid(ledger)
    again = ask_query(ledger, table, sql=sql)
    assert again.asked_before
    assert again.records() == first.records()
    assert paid(ledger) == charged


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("SELECT COUNT(*) AS n FROM t WHERE x = 'A'", "SELECT COUNT(*) AS n FROM t WHERE x = 'a'"),
        ("SELECT SUM(x) AS n FROM t", "SELECT SUM(X) AS n FROM t"),  # there may be both
        ("SELECT SUM(x) AS n FROM t", "SELECT SUM('x') AS n FROM t"),
        ("SELECT COUNT(*) AS n FROM t", "SELECT COUNT(1) AS n FROM t"),
        ("SELECT COUNT(*) AS n FROM t", "SELECT COUNT(*) AS n FROM s"),
        ("SELECT SUM(a - b - c) AS n FROM t", "SELECT SUM(a - (b - c)) AS n FROM t"),
        ("SELECT SUM(a + b * c) AS n FROM t", "SELECT SUM((a + b) * c) AS n FROM t"),
        (
            "SELECT COUNT(*) AS n FROM t WHERE NOT a AND b",
            "SELECT COUNT(*) AS n FROM t WHERE NOT (a AND b)",
        ),
        (
            "SELECT COUNT(*) AS n FROM t WHERE a.b = 1",
            'SELECT COUNT(*) AS n FROM t WHERE "a.b" = 1',
        ),
        (
            "SELECT COUNT(*) AS n FROM t WHERE x = true",
            'SELECT COUNT(*) AS n FROM t WHERE x = "true"',
        ),
        (
            "SELECT COUNT(*) AS n FROM t JOIN p ON t.k = p.k",
            "SELECT COUNT(*) AS n FROM t LEFT JOIN p ON t.k = p.k",
        ),
        ("SELECT MEDIAN(x) AS n FROM t", "SELECT QUANTILE(x, 0.4) AS n FROM t"),
        ("SELECT MIN(x) AS n FROM t", "SELECT MAX(x) AS n FROM t"),
    ],
)
def test_meaning_counts(one, other):
    """The normal form keeps what questions differ in; texts of constants and names too."""
    assert normal_form(parse_question(one)) != normal_form(parse_question(other))


def test_the_normal_form_is_its_own():
    """A question that is written from its normal form has the same one: nothing is lost there."""
    for sql in (SQL, *SPELLINGS):
        form = normal_form(parse_question(sql))
        groups = ", ".join(text for _, text in form["groups"])
        assert groups in ('"g"', '"t"."g"')
        assert [aggregate["value"] for aggregate in form["aggregates"]] == [None, '"x"']


def test_quotes_do_not_change_which_groups_are_implied(ledger, table):
    """Two spellings of one question must have the same groups, as they share an answer."""
    for sql in ("SELECT {}, COUNT(*) AS n FROM t WHERE {} IN ('b') GROUP BY {}",):
        for names in (("g", "g", "g"), ("g", '"g"', "g"), ('"g"', "g", '"g"')):
            records = ask_query(ledger, table, sql=sql.format(*names), keys=None).records()
            assert [record["g"] for record in records] == ["b"]


def test_equal_numbers_are_the_same(ledger, table):
    ask_query(ledger, table)
    again = ask_query(ledger, table, epsilon=2.0, bounds={"x": [0.0, 9.0]}, private_keys=False)
    assert again.asked_before
    ask_quantile(ledger, table)
    again = ask_quantile(ledger, table, epsilon=2.0, at=[0.5], by=["g"], confidence=0.9)
    assert again.asked_before


@DOORS
def test_rows_do_not_decide(ledger, table, ask, tmp_path):
    """Whether an answer is found must not depend on a row: the file may change or be gone."""
    first = ask(ledger, table)
    for text in (table.read_text() + "new,a,1,1\n", "u,g,x,k\n", "\x00", ""):
        table.write_text(text)
        again = ask(ledger, table)
        assert again.asked_before
        assert again == first
    table.unlink()
    assert ask(ledger, table) == first
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "t.csv").write_text("u,g,x,k\n1,a,1,1\n")
    assert not ask(ledger, tmp_path / "other" / "t.csv").asked_before


@DOORS
def test_the_private_table_is_not_opened_to_look(ledger, table, ask, monkeypatch):
    """Neither its rows nor its columns: a look-up is the same for all tables."""
    ask(ledger, table)

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("opened")

    for module in ("analytics.sql_tables.open_source", "analytics.request.open_source"):
        monkeypatch.setattr(f"expost.{module}", refuse)
    assert ask(ledger, table).asked_before


def joined(ledger: Ledger, table: Path, places: Any, **options: Any) -> Any:
    usual: dict[str, Any] = {"source": {"t": table, "p": places}, "public": ["p"], "keys": None}
    sql = "SELECT p.name, COUNT(*) AS n FROM t JOIN p ON t.k = p.k GROUP BY p.name"
    return ask_query(ledger, table, sql=sql, **usual | options)


def test_public_tables_are_part_of_the_question(ledger, table, tmp_path):
    """By what they hold; the order of the rows, and columns that are not used, do not count."""
    places = tmp_path / "p.csv"

    def write(*lines: str) -> Path:
        places.write_text("\n".join(("k,name,more", *lines)) + "\n")
        return places

    first = joined(ledger, table, write("0,even,1", "1,odd,2"))
    charged = paid(ledger)
    assert joined(ledger, table, write("1,odd,2", "0,even,1")) == first
    assert joined(ledger, table, write("1,odd,3", "0,even,4")) == first
    assert paid(ledger) == charged
    for lines in (("0,even,1", "1,ODD,2"), ("0,even,1",), ("0,even,1", "1,odd,2", "2,x,2")):
        charged = paid(ledger)
        assert not joined(ledger, table, write(*lines)).asked_before
        assert paid(ledger) > charged
    assert joined(ledger, table, write("0,even,1", "1,odd,2")).asked_before


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"k": ["0", "1"], "name": ["a", "b"]}, {"k": ["0", "1"], "name": ["b", "a"]}),
        ({"k": ["0", "1"], "name": ["a", None]}, {"k": ["0", "1"], "name": ["a", "None"]}),
        ({"k": [0, 1], "name": ["a", "b"]}, {"k": [0.0, 1.0], "name": ["a", "b"]}),
        ({"k": ["0,1"], "name": ["2"]}, {"k": ["0"], "name": ["1,2"]}),
        (
            {"k": ["0"], "name": [date(2024, 1, 1)]},
            {"k": ["0"], "name": ["2024-01-01"]},
        ),
    ],
)
def test_what_a_public_table_holds(one, other):
    """Cells keep their types and their columns."""
    digests = set()
    (join,) = parse_question("SELECT COUNT(*) AS n FROM t JOIN p ON t.k = p.k").joins
    for content in (one, other):
        tables = sql_tables.Tables({"t": {"k": ["0"]}, "p": pa.table(content)})
        digests.add(sql_tables.public_digest(join, tables, "t", {"k", "name"}))
    assert len(digests) == 2


def test_only_public_tables_are_read_for_a_digest(ledger, table, tmp_path):
    """One that is not declared, or is the private table, is refused, and not read first."""
    places = tmp_path / "p.csv"
    places.write_text("k,name\n0,even\n")

    with pytest.MonkeyPatch.context() as patched:

        def read(*_: Any) -> Any:
            raise AssertionError("read")

        patched.setattr(sql_tables, "_fetched", read)
        with pytest.raises(InvalidInput, match="is it public"):
            joined(ledger, table, places, public=[])
        with pytest.raises(InvalidInput, match="source is that of the private table"):
            joined(ledger, table, table)
    assert len(list(ledger.entries())) == 1


def test_a_second_private_table_is_a_name_and_a_version(ledger, table, tmp_path):
    """Its rows are private, so its version is stated as well."""
    visits = tmp_path / "v.csv"
    visits.write_text("u,page\n" + "".join(f"{n},{n % 2}\n" for n in range(900)))
    sql = "SELECT page, COUNT(*) AS n FROM t JOIN v ON t.u = v.u GROUP BY page"
    options: dict[str, Any] = {"source": [str(table), str(visits)], "keys": ["0", "1"]}
    options |= {"private": {"t": 1, "v": 1}, "sql": sql, "one_row_per_user": False}
    options |= {"max_groups_per_user": 1, "max_rows_per_user": 1}
    first = ask_query(ledger, table, **options)
    visits.write_text("u,page\n")
    assert ask_query(ledger, table, **options) == first
    assert not ask_query(ledger, table, **options | {"private": {"t": 1, "v": 2}}).asked_before
    assert not ask_query(ledger, table, **options | {"table_version": "v2"}).asked_before


def test_an_expression_of_ibis(ledger, table):
    import ibis
    from ibis import _

    rows = ibis.table({"u": "string", "g": "string", "x": "string", "k": "string"}, name="t")

    def asked(least: int) -> Any:
        few = rows.filter(_.k.cast("float64") >= least).group_by("g").aggregate(n=_.count())
        return ask_query(ledger, table, sql=few)

    first = asked(0)
    assert asked(0) == first
    assert asked(0).asked_before
    assert not asked(1).asked_before


def test_tables_of_one_database_are_told_apart(ledger, tmp_path):
    import duckdb
    import ibis

    path = tmp_path / "data.duckdb"
    with duckdb.connect(str(path)) as database:
        for name, size in (("t", 500), ("s", 900)):
            database.execute(
                f"CREATE TABLE {name} AS SELECT range AS u, 'a' AS g FROM range({size})"
            )
    options: dict[str, Any] = {"sql": "SELECT COUNT(*) AS n FROM t", "keys": None, "bounds": None}
    options |= {"epsilon": 9, "within": 0.02}
    first = ask_query(ledger, str(path), **options)
    assert ask_query(ledger, str(path), **options).asked_before
    again = ask_query(ledger, f"duckdb://{path}", **options)
    assert not again.asked_before  # another name of the same place is paid
    options["sql"] = "SELECT COUNT(*) AS n FROM s AS t"
    assert not ask_query(ledger, str(path), **options).asked_before
    assert first.records()[0]["n"] == pytest.approx(500, abs=60)
    opened = ibis.duckdb.connect(path, read_only=True)
    for name in ("t", "s"):
        ask = {"user": "u", "one_row_per_user": True, "epsilon": 2, "ledger": ledger}
        result = expost.count(opened.table(name), **ask, table_version="v1")
        assert not result.asked_before
        assert expost.count(opened.table(name), **ask, table_version="v1").asked_before


@pytest.mark.parametrize("suffix", ["duckdb", "sqlite"])
def test_a_public_table_beside_the_private_one(ledger, tmp_path, suffix):
    """It is read for the digest although it is joined inside of the database."""
    import sqlite3

    import duckdb

    path = tmp_path / f"data.{suffix}"

    def run(*statements: str) -> None:
        database: Any = duckdb.connect(path) if suffix == "duckdb" else sqlite3.connect(path)
        for statement in statements:
            database.execute(statement)
        database.commit()
        database.close()

    rows = ", ".join(f"({n}, {n % 2})" for n in range(300))
    run("CREATE TABLE t (u INTEGER, k INTEGER)", f"INSERT INTO t VALUES {rows}")
    run("CREATE TABLE p (k INTEGER, name TEXT)", "INSERT INTO p VALUES (0, 'even'), (1, 'odd')")
    first = joined(ledger, str(path), None, source=str(path))
    assert joined(ledger, str(path), None, source=str(path)) == first
    assert joined(ledger, str(path), None, source=str(path)).asked_before
    run("DELETE FROM t")
    assert joined(ledger, str(path), None, source=str(path)).asked_before
    run("UPDATE p SET name = 'more' WHERE k = 1")
    assert not joined(ledger, str(path), None, source=str(path)).asked_before


@DOORS
def test_only_while_the_ledger_says_it_was_settled(ledger, table, ask, tmp_path):
    """An older copy of the ledger that is put back does not know the charge: it is paid again."""
    copy = tmp_path / "copy.db"
    shutil.copy(ledger.path, copy)
    first = ask(ledger, table)
    charged = paid(ledger)
    for end in ("", "-wal", "-shm", ".head"):
        Path(f"{ledger.path}{end}").unlink(missing_ok=True)
    shutil.copy(copy, ledger.path)
    reopened = Ledger.open(ledger.path)
    assert paid(reopened) == (0,)
    again = ask(reopened, table)
    assert not again.asked_before
    assert paid(reopened) > (0,)
    assert charged > (0,)
    assert first.ledger["reservation"] != again.ledger["reservation"]


@DOORS
@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_an_unfinished_question_is_no_answer(ledger, table, ask, error, monkeypatch):
    """It stops after its looks: what was looked at is charged, and nothing is kept."""
    with monkeypatch.context() as patched:

        def stop(*_: Any, **__: Any) -> Any:
            raise error

        patched.setattr("expost.analytics.sql_run._result", stop)
        patched.setattr("expost.analytics.quantiles._result", stop)
        with pytest.raises(error):
            ask(ledger, table)
    charged = paid(ledger)
    assert charged > (0,)
    assert not ask(ledger, table).asked_before
    assert paid(ledger) > charged


@DOORS
def test_a_refused_or_wrong_question_is_no_answer(ledger, table, ask):
    for _ in range(2):
        with pytest.raises(expost.BudgetRefused):
            ask(ledger, table, epsilon=1000)
        with pytest.raises(InvalidInput):
            ask(ledger, table, confidence=2)
    assert len(list(ledger.entries())) == 1
    with pytest.raises(TypeError):
        ask(ledger, table, unknown=1)


@DOORS
def test_a_broken_answer_is_paid_again(ledger, table, ask, tmp_path):
    first = ask(ledger, table)
    (path,) = (tmp_path / "ledger.db.answers").glob("*.json")
    kept = path.read_text()
    for text in ("[1, 2", "{}", "[]", "null", kept.replace('"spent"', '"other"')):
        path.write_text(text)
        assert not ask(ledger, table).asked_before
    path.write_text(kept)
    assert ask(ledger, table) == first
    path.chmod(0o640)
    with pytest.raises(InvalidInput, match="others can read"):
        ask(ledger, table)


@DOORS
def test_another_analyst_pays(table, tmp_path, ask):
    """The cap of each counts what they were told; nobody reads what another one paid."""
    ledger = Ledger.create(tmp_path / "caps.db", PureDP(20), caps={"eve": PureDP(2)})
    ask(ledger, table, analyst="ana")
    second = ask(ledger, table, analyst="eve")
    assert not second.asked_before
    assert ask(ledger, table, analyst="eve").asked_before
    with pytest.raises(expost.BudgetRefused):
        ask(ledger, table, analyst="eve", table_version="v2")


@DOORS
def test_versions_that_do_not_fit(ledger, table, ask):
    for options in ({"ledger": None}, {"table_version": " "}, {"table_version": 3}):
        with pytest.raises(InvalidInput, match="table_version"):
            ask(options.pop("ledger", ledger), table, **options)
    with pytest.raises(InvalidInput, match="read twice"):
        ask(ledger, table, keys=iter("ab"))
    assert len(list(ledger.entries())) == 1


@DOORS
def test_without_a_version_nothing_is_kept(ledger, table, ask, tmp_path):
    ask(ledger, table, table_version=None)
    assert not ask(ledger, table, table_version=None).asked_before
    assert len(list(ledger.entries())) == 5
    assert not (tmp_path / "ledger.db.answers").exists()


@DOORS
def test_one_at_a_time(ledger, table, ask):
    """Four ask the same question at once: one of them pays."""
    place = str(ledger.path)
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: ask(place, table), range(4)))
    assert sum(result.asked_before for result in results) == 3
    assert len({json.dumps(result.certificate()) for result in results}) == 1


def ask_count(ledger: Any, table: Any, **options: Any) -> Any:
    usual = {"by": "g", "user": "u", "keys": ["a", "b"], "epsilon": 2, "table_version": "v1"}
    return expost.count(table, ledger=ledger, one_row_per_user=True, **usual | options)


@pytest.mark.parametrize("ask", [ask_count, ask_query, ask_quantile])
def test_a_budget_that_renews_in_between(table, tmp_path, ask, monkeypatch):
    """The period begins after the look-up, and before the reservation: nothing is looked at.

    Catches an answer, or a path, of the old period that is told or continued in the new one.
    """
    ledger = Ledger.create(tmp_path / "renews.db", PureDP(20), renews="month")
    ask(ledger, table, epsilon=1)
    now = ["", "2099-01-01"]

    def clock(*_: Any) -> str:
        return now[1]

    reserve = Ledger.reserve

    def late(self: Ledger, *arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(totals, "period_at", clock)
        monkeypatch.setattr(asked_before, "period_at", clock)
        return reserve(self, *arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "reserve", late)
        result = ask(ledger, table)
    assert not result.asked_before
    assert "paid_before" not in result.public
    standing = ledger.standing()
    assert standing.renewal is not None
    assert standing.renewal.period == "2099-01-01"
    alone = Ledger.create(tmp_path / "alone.db", PureDP(20))
    assert float(ask(alone, table).spent) > 0
    (settled,) = standing.filter.settled
    assert float(settled) == pytest.approx(result.spent, abs=1e-11)  # all of it, and only it
    actions = [entry.action for entry in ledger.entries()]
    assert actions.count("reserve") == actions.count("settle") == 3  # one looked at nothing
    assert verify_certificate(result.certificate(), ledger=ledger.path) == []
    assert ask(ledger, table).asked_before
    assert ask(ledger, table, epsilon=1).asked_before is False


@pytest.mark.parametrize("ask", [ask_count, ask_query])
def test_whoever_waits_for_another_is_told_in_their_period(table, tmp_path, ask, monkeypatch):
    """The same question ran until the budget renewed: its answer belongs to the old period."""
    ledger = Ledger.create(tmp_path / "renews.db", PureDP(20), renews="month")
    ask(ledger, table)
    alone, waits = asked_before.KeptAnswer.alone, [True]

    def late(self: Any) -> Any:
        if waits:
            waits.clear()
            for module in (totals, asked_before):
                monkeypatch.setattr(module, "period_at", lambda *_: "2099-01-01")
        return alone(self)

    monkeypatch.setattr(asked_before.KeptAnswer, "alone", late)
    assert not ask(ledger, table).asked_before
    assert ask(ledger, table).asked_before


def test_the_commands(ledger, table, command, tmp_path):
    (tmp_path / "k.txt").write_text("a\nb\n")
    usual: list[Any] = ["--user", "u", "--epsilon", 2, "--ledger", ledger.path]
    usual += ["--keys", tmp_path / "k.txt", "--table-version", "monday"]
    query = ["query", SQL, "--source", table, "--bounds", "x=0:9", "--within", 0.3, *usual]
    quantile = ["quantile", table, "--column", "x", "--bounds", "0:9", "--by", "g", *usual]
    for words in (query, quantile):
        first = command(*words, "--json", "--out", tmp_path / f"1{words[0]}.csv")
        charged = paid(ledger)
        files = ["--out", tmp_path / f"2{words[0]}.csv", "--certificate", tmp_path / words[0]]
        again = command(*words, "--json", *files)
        assert (first.code, again.code) == (0, 0), again.err
        assert "Asked before: this is the answer that was paid for" in again.err
        assert "Asked before" not in first.err
        assert again.document == first.document | {"asked_before": True}
        texts = [(tmp_path / f"{number}{words[0]}.csv").read_text() for number in (1, 2)]
        assert texts[0] == texts[1]
        assert paid(ledger) == charged
        verified = command("certificate", "verify", tmp_path / words[0], "--ledger", ledger.path)
        assert verified.code == 0
        screen = command(*words)
        assert screen.code == 0
        assert "Asked before" in screen.err
        other = command(*words, "--table-version", "tuesday")
        assert other.code == 0
        assert "Asked before" not in other.err
        assert paid(ledger) > charged
    lower = [SQL.lower() if word == SQL else word for word in query]
    assert command(*lower, "--json").document["asked_before"] is True
    without = [word for word in query if word not in ("--ledger", ledger.path)]
    assert "table_version" in command(*without).err
