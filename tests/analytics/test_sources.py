"""Tables from files and databases: hostile ones give the right counts or a clear error, and no name
or value is ever run as SQL.

Above all: how rows are read must not depend on rows. The counts of two files that differ in one
person's rows differ by at most one.
"""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import duckdb
import ibis
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import expost
from expost.analytics.contribution import Measure, measured, pair_columns, run_totals, totals
from expost.errors import InvalidInput
from expost.tables import typed_columns
from expost.tables.sources import as_table, open_source
from tests.analytics.tables import EXACT, INJECTIONS, counted, numbers, selected


@pytest.fixture
def csv(tmp_path: Path) -> Any:
    """A CSV file with this content."""

    def write(content: str | bytes, name: str = "pairs.csv") -> Path:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


class TestContents:
    """Odd files that are right: right counts."""

    @pytest.mark.parametrize(
        ("content", "keys", "expected"),
        [
            ("u,g\n", ["a"], [0]),
            ("u,g", ["a"], [0]),
            ("u,g\n1,a\n2,a\n1,b\n", ["a", "b", "c"], [2, 1, 0]),
            ("u,g\n" + "1,a\n" * 50, ["a"], [1]),
            ("u,g\r\n1,a\r\n2,a\r\n", ["a", "a\r"], [2, 0]),
            ("\ufeffu,g\n1,a\n", ["a"], [1]),
            (
                "u,g\n1,é\n2,日本\n3,日本\n4,🦆\n5,e\u0301\n",
                ["é", "日本", "🦆", "e\u0301"],
                [1, 2, 1, 1],
            ),
            (
                'u,g\n1,"a""b"\n2,"x\ny"\n3,"x,y"\n',  # a cell cannot have a line break
                ['a"b', "x\ny", "x", "x,y"],
                [1, 0, 0, 1],
            ),
            (f"u,g\n{2**64},a\n{2**64 + 1},a\n{10**40},a\n{10**40},a\n", ["a"], [3]),
            ("u,g\n01,a\n1,a\n1.0,a\n1e0,a\n", ["a"], [4]),
            ("u,g\n 1,a\n1,a\n1, a\n", ["a", " a"], [2, 1]),
            ("u,g\n#1,a\n2,#a\n'3','a'\n", ["a", "#a", "'a'"], [1, 1, 1]),
            ("u,g\nNULL,a\nnan,a\n1,NULL\n", ["a", "NULL"], [2, 1]),
            ("u;g\n1;a,b\n2;a,b\n", ["a,b"], [2]),
            ("u\tg\n1\ta\n", ["a"], [1]),
            ("u|g\n1|a\n", ["a"], [1]),
            ("u,,g\n1,,a\n", ["a"], [1]),
            (b"u,g\n1,a\x00b\n", ["a\x00b", "a"], [1, 0]),
        ],
    )
    def test_csv(self, csv, content, keys, expected):
        assert numbers(csv(content), keys) == expected

    def test_one_user_in_every_group(self, csv):
        """Catches a user who is counted once overall."""
        content = "u,g\n" + "".join(f"7,g{place}\n" for place in range(1000))
        assert numbers(csv(content), [f"g{place}" for place in range(1000)]) == [1] * 1000

    @pytest.mark.parametrize("row", [",a", "1,", ",", '"",a', '1,""'])
    def test_rows_of_nobody_or_nowhere_are_ignored(self, csv, row):
        """Catches a person called '' who stands for many, and a group called '' or None."""
        found = counted(csv(f"u,g\n2,a\n{row}\n3,a\n"), ["a", "", "None"])
        assert found.counts.tolist() == [2, 0, 0]
        assert found.rows_ignored
        assert not counted(csv("u,g\n2,a\n", "whole.csv"), ["a"]).rows_ignored

    def test_compressed(self, csv):
        content = gzip.compress(b"u,g\n1,a\n2,a\n")
        assert numbers(csv(content, "pairs.csv.gz"), ["a"]) == [2]

    def test_tab_separated(self, csv):
        """The suffix decides: catches a comma in a header of one column."""
        assert numbers(csv("u\tg,h\n1\ta\n", "pairs.tsv"), ["a"], by="g,h") == [1]

    @pytest.mark.parametrize(
        "name", ["p[1].csv", "p*.csv", "p?.csv", "x=1.csv", "p;'\"--.csv", "ü.CSV"]
    )
    def test_file_names_are_names(self, csv, name):
        """Catches wildcards: 'p[1].csv' was once read as p1.csv, which is another file."""
        for other in ("p1.csv", "pa.csv"):
            csv("u,g\n1,a\n2,a\n3,a\n", other)
        assert numbers(csv("u,g\n1,a\n", name), ["a"]) == [1]


class TestReadingDoesNotDependOnRows:
    """One person's row must not change what other rows mean.

    That would be a count of any sensitivity, for free.
    """

    PLAIN = "u,g\n" + "".join(f"{place},'a'\n" for place in range(1000))
    HASHED = "u,g\n" + "".join(f"#{place},a\n" for place in range(1000))

    @pytest.mark.parametrize(
        "row",
        [
            "x,'a",
            "x,'a'b",
            "x,a'",
            'x,""',
            "x,x;y",
            "x,x|y",
            "x,x\ty",
            "x,\\",
            "x,#a",
            "#,#",
            "x,1",
            "x,2020-01-01",
        ],
    )
    @pytest.mark.parametrize("content", [PLAIN, HASHED])
    def test_a_row_moves_each_count_by_at_most_one(self, csv, content, row):
        """With a guessed dialect, one person's ``'a`` took the group ``a`` from 1,000 to 0 and
        ``'a'`` from 0 to 1,000.
        """
        keys = ["a", "'a'", "'a", "a'", "#a"]
        here, there = (
            numbers(csv(content), keys),
            numbers(csv(content + row + "\n", "more.csv"), keys),
        )
        assert max(abs(a - b) for a, b in zip(here, there, strict=True)) <= 1
        assert max(here) == 1000

    @pytest.mark.parametrize("order", [1, -1])
    def test_a_collation_does_not_name_groups(self, tmp_path, order):
        """Where 'abc' and 'ABC' are equal, the name of both would be that of whichever row comes
        first.
        """
        connection = duckdb.connect(str(tmp_path / "c.duckdb"))
        connection.execute("CREATE TABLE t (u VARCHAR COLLATE NOCASE, g VARCHAR COLLATE NOCASE)")
        rows = [("zoe", "abc"), *((f"user {place}", "ABC") for place in range(100))][::order]
        connection.executemany("INSERT INTO t VALUES (?, ?)", rows)
        connection.close()
        url = f"duckdb://{tmp_path}/c.duckdb"
        assert numbers(url, ["ABC", "abc"], table="t") == [100, 1]
        pairs = pair_columns(open_source(url, "t"), "g", "u", collated=True)
        assert set(selected(pairs, 5)) == {"ABC", "abc"}


class TestErrors:
    """Files that are wrong: a clear error, and no traceback, data or password in it."""

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ("", "first line must name the columns"),
            ("\n\nu,g\n", "first line must name the columns"),
            (",\n1,a\n", "first line must name the columns"),
            ("1,a\n2,b\n", "the table has the columns '1', 'a'"),
            ("u,h\n1,a\n", "the table has the columns 'u', 'h'"),
            ("u g\n1 a\n", "the table has the columns 'u g'"),
            ("u,g,g\n1,a,b\n", "two columns have the same name"),
            ("u,g,G\n1,a,b\n", "two columns have the same name"),
            (b"u,g\xff\n1,a\n", "cannot be read"),
        ],
    )
    def test_headers(self, csv, content, message):
        with pytest.raises(InvalidInput, match=message):
            counted(csv(content), ["a"])

    @pytest.mark.parametrize(
        "row", ["1,a,SECRET", "SECRET", '1,"SECRET', '1,"SECRET"x', "1,SECRET\udcff"]
    )
    def test_broken_rows(self, csv, row):
        """They are ignored, and change nothing of the rows around them."""
        path = csv(b"u,g\n" + b"1,a\n" * 5000 + row.encode("utf-8", "surrogateescape") + b"\n2,b\n")
        assert numbers(path, ["a", "b"]) == [1, 1]

    @pytest.mark.parametrize(
        "name", ["missing.csv", "empty", "pairs.dat", "pairs", "pairs.csv.zip"]
    )
    def test_no_such_file(self, csv, tmp_path, name):
        (tmp_path / "empty").mkdir()
        for present in ("pairs.dat", "pairs", "pairs.csv.zip"):
            csv("u,g\n1,a\n", present)
        with pytest.raises(InvalidInput, match=r"no such file|ending in \.csv"):
            open_source(tmp_path / name)

    def test_a_parquet_file_that_is_none(self, csv):
        with pytest.raises(InvalidInput, match="cannot be read"):
            open_source(csv("u,g\n1,a\n", "pairs.parquet"))

    def test_a_url_needs_a_table(self):
        with pytest.raises(InvalidInput, match="--table"):
            open_source("postgresql://localhost/db")

    @pytest.mark.parametrize(
        "url",
        [
            "postgresql://ann:hunter2@localhost:1/db",
            "postgresql://ann:hun/ter2@localhost/db",
            "postgresql://ann:hun#ter2@localhost/db",
            "postgresql://ann:hunter2@localhost:port/db",
            "postgresql://localhost:1/db?user=ann&password=hunter2",
            "postgresql://ann:%68unter2@localhost:1/db",
            "nosuch://ann:hunter2@localhost/db",
            "nosuch://localhost/db?access_token=hunter2",
            "duckdb://ann:hunter2@nowhere/x.db",
            "mysql://ann:hunter2@localhost:1/db",
        ],
    )
    def test_passwords_are_not_shown(self, url):
        """Whatever part of the URL the driver complains about."""
        with pytest.raises(InvalidInput, match="cannot be opened") as caught:
            open_source(url, "t")
        assert "hun" not in str(caught.value)
        assert "ter2" not in str(caught.value)

    def test_capitals(self):
        """DuckDB takes g and G for one column: catches the other one being counted."""
        with pytest.raises(InvalidInput, match="capitals"):
            counted(pa.table({"u": [1], "g": ["x"], "G": ["y"]}), ["x"], by="G")

    @pytest.mark.parametrize("data", [42, object(), "text", 1.5])
    def test_what_is_no_table(self, data):
        with pytest.raises(InvalidInput, match="give an Ibis, pandas, polars or pyarrow table"):
            as_table(data)


class TestNothingLeaks:
    """Counts and rows stay inside."""

    def test_true_counts_have_no_repr(self, csv):
        """Catches them in a log or a traceback with locals."""
        found = counted(csv("u,g\n" + "".join(f"{user},a\n" for user in range(12345))), ["a"])
        assert found.counts.tolist() == [12345]
        assert "12345" not in repr(found)

    def test_what_does_not_fit_into_memory_is_not_for_others_to_read(self, tmp_path, monkeypatch):
        """Three million pairs in 60 MB.

        The engine writes rows to disk, in a folder of its own, not in the current one.
        """
        monkeypatch.chdir(tmp_path)
        duckdb.execute(
            "COPY (SELECT hash(range) AS u, range % 7 AS g FROM range(3000000)) "
            "TO 'pairs.parquet' (FORMAT parquet)"
        )
        table = open_source("pairs.parquet")
        connection = ibis.get_backend(table).con
        connection.execute("SET memory_limit = '60MB'")
        ((folder,),) = connection.execute("SELECT current_setting('temp_directory')").fetchall()
        assert Path(folder).stat().st_mode & 0o777 == 0o700
        pairs = measured(pair_columns(table, "g", "u"), Measure(), ["3"], "s")
        assert run_totals(totals(pairs, 10, "s")).first[0] == 428571
        assert [path.name for path in tmp_path.iterdir()] == ["pairs.parquet"]


class TestParquet:
    """Columns of other types than text."""

    def file(self, tmp_path: Path, **columns: Any) -> Path:
        pq.write_table(pa.table(columns), tmp_path / "pairs.parquet")
        return tmp_path / "pairs.parquet"

    def test_whole_numbers(self, tmp_path):
        path = self.file(
            tmp_path,
            u=pa.array([2**63, 2**63 + 1, 5], pa.uint64()),
            g=pa.array([-1, -1, None], pa.int32()),
        )
        found = counted(path, ["-1", "None", ""])
        assert (found.counts.tolist(), found.rows_ignored) == ([2, 0, 0], True)

    def test_categories(self, tmp_path):
        groups = pa.array(["x", "y", "x", None]).dictionary_encode()
        assert numbers(self.file(tmp_path, u=[1, 2, 3, 4], g=groups), ["x", "y"]) == [2, 1]

    def test_nothing_but_nulls(self, tmp_path):
        found = counted(self.file(tmp_path, u=pa.nulls(3), g=pa.nulls(3)), ["a"])
        assert (found.counts.tolist(), found.rows_ignored) == ([0], True)

    def test_dates_and_truth_values(self, tmp_path):
        """As the engine writes them; documented, because Python would write True."""
        import datetime

        path = self.file(tmp_path, u=[1, 2], day=[datetime.date(2020, 1, 2)] * 2, yes=[True, False])
        assert numbers(path, ["2020-01-02"], by="day") == [2]
        assert numbers(path, ["true", "false"], by="yes") == [1, 1]

    def test_an_empty_table(self, tmp_path):
        empty = pa.array([], pa.string())
        found = counted(self.file(tmp_path, u=empty, g=empty), ["a"])
        assert (found.counts.tolist(), found.rows_ignored) == ([0], False)


@pytest.mark.slow
def test_a_million_groups(tmp_path, monkeypatch):
    """A few keys in a file of a million groups: one query, where one per key would take hours."""
    path = tmp_path / "many.csv"
    duckdb.connect().execute(
        f"COPY (SELECT range AS u, 'g' || range // 1 AS g FROM range(1000000)) TO '{path}' (HEADER)"
    )
    assert numbers(path, ["g0", "g999999", "g1000000"]) == [1, 1, 0]
    reads, run = set(), typed_columns._run

    def noted(expression, job):
        """Run a query, and note it if it reads the file."""
        if isinstance(expression, typed_columns.KnownQuery):
            expression = expression.write()
        tables = expression.op().find(ibis.expr.operations.DatabaseTable)
        if any(not table.name.startswith("expost_held_") for table in tables):
            reads.add(expression.op())
        return run(expression, job)

    monkeypatch.setattr(typed_columns, "_run", noted)
    for cap in (None, 1):
        result = expost.count(
            path,
            by="g",
            user="u",
            keys=["g5", "none"],
            epsilon=1e6,
            max_groups_per_user=cap,
            **EXACT,
        )
        found = {answer.group: round(answer.estimate) for answer in result.answers}
        assert found == {"g5": 1, "none": 0}
    assert len(reads) == 2  # one scan per request, also with a cap


class TestInjection:
    """Names and values with quotes in them are names and values."""

    def secret(self, execute: Any) -> None:
        execute("CREATE TABLE secrets (x INTEGER)")
        execute("INSERT INTO secrets VALUES (7)")

    @pytest.mark.parametrize("name", INJECTIONS)
    def test_csv(self, csv, name):
        quoted = '"' + name.replace('"', '""') + '"'
        path = csv(f'{quoted},"u""--"\n{quoted},1\n{quoted},2\n')
        assert numbers(path, [name], by=name, user='u"--') == [2]

    @pytest.mark.parametrize("name", INJECTIONS)
    def test_duckdb(self, tmp_path, name):
        connection = duckdb.connect(str(tmp_path / "x.duckdb"))
        self.secret(connection.execute)
        quoted = '"' + name.replace('"', '""') + '"'
        connection.execute(f"CREATE TABLE {quoted} ({quoted} VARCHAR, u INTEGER)")
        connection.execute(f"INSERT INTO {quoted} VALUES (?, 1), (?, 2)", [name, name])
        connection.close()
        url = f"duckdb://{tmp_path}/x.duckdb"
        assert numbers(url, [name], by=name, table=name) == [2]
        with pytest.raises(InvalidInput, match="cannot be opened"):
            open_source(url, f"(SELECT x FROM secrets) {name}")
        with pytest.raises(InvalidInput, match="the table has the columns"):
            counted(url, [name], by="(SELECT max(x) FROM secrets)", table=name)
        assert duckdb.connect(str(tmp_path / "x.duckdb")).execute(
            "SELECT x FROM secrets"
        ).fetchall() == [(7,)]
