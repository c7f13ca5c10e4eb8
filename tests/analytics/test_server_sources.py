"""Tables on servers: PostgreSQL and Spark, for real, with injections, collations and types."""

from __future__ import annotations

import ibis
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import expost
from expost import PureDP
from expost.analytics.contribution import pair_columns
from expost.budget.ledger import Ledger
from expost.errors import InvalidInput
from expost.tables.sources import open_source
from tests.analytics.tables import (
    EXACT,
    INJECTIONS,
    ask_everything,
    counted,
    numbers,
    odd_rows,
    selected,
)


def connect(url: str) -> psycopg.Connection:
    return psycopg.connect(url, autocommit=True)


def test_postgresql_answers_like_a_file(postgres_url):
    """One salt gives one answer for every statistic; other engines: test_capped_rows."""
    rows = odd_rows()
    with connect(postgres_url) as connection:
        connection.execute("CREATE TABLE t (u text, g text, v double precision)")
        with connection.cursor() as cursor:
            cursor.executemany(
                "INSERT INTO t VALUES (%s, %s, %s)",
                list(zip(*rows.to_pydict().values(), strict=True)),
            )
    assert ask_everything(postgres_url, "t") == ask_everything(rows)


@pytest.mark.slow
def test_spark_answers_like_a_file(spark):
    rows = odd_rows()
    assert ask_everything(spark.createDataFrame(rows.to_pandas())) == ask_everything(rows)


class TestPostgreSQL:
    """A real server."""

    def test_counts(self, postgres_url):
        """Persons, not rows; users beyond 64 bits; NULLs ignored; integer groups as text."""
        with connect(postgres_url) as connection:
            connection.execute("CREATE TABLE pairs (u numeric(40), g text, n integer)")
            rows = [
                (10**30, "a", 1),
                (10**30 + 1, "a", 1),
                (10**30, "a", 2),
                (None, "b", 1),
                (5, None, None),
                (5, "日本", -3),
            ]
            with connection.cursor() as cursor:
                cursor.executemany("INSERT INTO pairs VALUES (%s, %s, %s)", rows)
        found = counted(postgres_url, ["a", "b", "日本", "None"], table="pairs")
        assert (found.counts.tolist(), found.rows_ignored) == ([2, 0, 1, 0], True)
        assert numbers(postgres_url, ["1", "2", "-3"], by="n", table="pairs") == [2, 1, 1]
        pairs = pair_columns(open_source(postgres_url, "pairs"), "g", "u", collated=True)
        assert selected(pairs, 1) == {"a": 2, "日本": 1}

    def test_the_whole_way(self, postgres_url):
        with connect(postgres_url) as connection:
            connection.execute(
                "CREATE TABLE pairs AS "
                "SELECT i AS u, 'g' || (i % 2) AS g FROM generate_series(1, 1001) i"
            )
        result = expost.count(
            postgres_url, table="pairs", by="g", user="u", keys=["g0", "g1"], epsilon=1e7, **EXACT
        )
        assert {answer.group: round(answer.estimate) for answer in result.answers} == {
            "g0": 500,
            "g1": 501,
        }

    @pytest.mark.parametrize("name", INJECTIONS)
    def test_injection(self, postgres_url, name):
        with connect(postgres_url) as connection:
            connection.execute("CREATE TABLE secrets (x INTEGER)")
            connection.execute("INSERT INTO secrets VALUES (7)")
            quoted, value = psycopg.sql.Identifier(name), psycopg.sql.Literal(name)
            connection.execute(
                psycopg.sql.SQL("CREATE TABLE {} ({} text, u integer)").format(quoted, quoted)
            )
            connection.execute(
                psycopg.sql.SQL("INSERT INTO {} VALUES ({}, 1), ({}, 2)").format(
                    quoted, value, value
                )
            )
        assert numbers(postgres_url, [name], by=name, table=name) == [2]
        with pytest.raises(InvalidInput, match="cannot be opened"):
            open_source(postgres_url, f"(SELECT x FROM secrets) {name}")
        with connect(postgres_url) as connection:
            assert connection.execute("SELECT x FROM secrets").fetchall() == [(7,)]

    def test_a_collation_does_not_name_groups(self, postgres_url):
        """A nondeterministic collation: equal is not identical."""
        with connect(postgres_url) as connection:
            try:
                connection.execute(
                    "CREATE COLLATION ci "
                    "(provider = icu, locale = 'und-u-ks-level2', deterministic = false)"
                )
            except psycopg.errors.FeatureNotSupported as reason:
                pytest.skip(f"this server has no ICU: {reason}")
            connection.execute("CREATE TABLE t (u integer, g text COLLATE ci)")
            connection.execute(
                "INSERT INTO t SELECT i, CASE i WHEN 0 THEN 'abc' ELSE 'ABC' END "
                "FROM generate_series(0, 100) i"
            )
        assert numbers(postgres_url, ["ABC", "abc"], table="t") == [100, 1]

    def test_schemas(self, postgres_url):
        """``schema.table``, and a table whose own name has a dot in it."""
        with connect(postgres_url) as connection:
            connection.execute("CREATE SCHEMA sales")
            connection.execute("CREATE TABLE sales.visits AS SELECT 1 AS u, 'a' AS g")
            connection.execute(
                'CREATE TABLE "b.c" AS SELECT i AS u, 1 AS g FROM generate_series(1, 3) i'
            )
        assert numbers(postgres_url, ["a"], table="sales.visits") == [1]
        assert numbers(postgres_url, ["1"], table="b.c") == [3]
        with pytest.raises(InvalidInput, match="cannot be opened"):
            open_source(postgres_url, "sales.nothing")

    def test_enums_are_counted_or_refused_before_anything_is_paid(self, postgres_url, tmp_path):
        """Catches a type that Ibis does not know and that fails after the reservation."""
        with connect(postgres_url) as connection:
            connection.execute("CREATE TYPE mood AS ENUM ('sad', 'ok')")
            connection.execute("CREATE TABLE t (u integer, g mood)")
            connection.execute("INSERT INTO t VALUES (1, 'sad'), (2, 'ok'), (3, 'ok')")
        ledger = Ledger.create(tmp_path / "ledger.db", PureDP(10**8))
        try:
            result = expost.count(
                postgres_url,
                table="t",
                by="g",
                user="u",
                keys=["sad", "ok"],
                epsilon=1e7,
                ledger=ledger,
                **EXACT,
            )
        except InvalidInput as refused:
            assert "type is not supported" in str(refused)  # noqa: PT017
            assert [entry.action for entry in ledger.entries()] == ["create"]
        else:
            assert [round(answer.estimate) for answer in result.answers] == [1, 2]

    @pytest.mark.parametrize("value", ["1e400", "-1e400", "1e-400", "NaN", "7", None])
    def test_no_numeric_makes_a_sum_fail(self, postgres_url, value):
        """A numeric beyond float64 made the cast fail.

        One row decided whether there is an answer.
        """
        with connect(postgres_url) as connection:
            connection.execute("CREATE TABLE t (u integer, g text, v numeric)")
            connection.execute("INSERT INTO t VALUES (1, 'a', 3), (2, 'a', %s)", [value])
        result = expost.sum(
            postgres_url,
            "v",
            bounds=(0, 10),
            table="t",
            by="g",
            user="u",
            keys=["a"],
            epsilon=1e7,
            **EXACT,
        )
        assert round(result.answers[0].estimate) == (10 if value == "7" else 3)

    def test_views_with_a_limit_are_refused(self, postgres_url):
        with connect(postgres_url) as connection:
            connection.execute("CREATE TABLE t AS SELECT 1 AS u, 'a' AS g")
            connection.execute("CREATE VIEW firsts AS SELECT * FROM t LIMIT 1")
            connection.execute("CREATE VIEW below AS SELECT u, g FROM firsts")
            connection.execute("CREATE VIEW fine AS SELECT u, g FROM t WHERE u > 0")
        for view in ("firsts", "below"):
            with pytest.raises(InvalidInput, match="LIMIT"):
                open_source(postgres_url, view)
        assert numbers(postgres_url, ["a"], table="fine") == [1]

    def test_errors_do_not_quote_values(self, postgres_url):
        """A view that trips over a value: the database's own message would show it."""
        with connect(postgres_url) as connection:
            connection.execute("CREATE TABLE raw AS SELECT 'SECRET' AS u, 'a' AS g")
            connection.execute("CREATE VIEW v AS SELECT u::integer AS u, g FROM raw")
        with pytest.raises(InvalidInput, match="cannot be counted") as caught:
            counted(postgres_url, ["a"], table="v")
        assert "SECRET" not in str(caught.value)

    def test_errors_do_not_show_the_password(self, postgres_url):
        secret = postgres_url.replace("expost@/test", "expost:hunter2@/nosuch")
        for url, table in (
            (secret, "t"),
            (postgres_url.replace("expost@", "expost:hunter2@"), "no_such_table"),
        ):
            with pytest.raises(InvalidInput, match="cannot be opened") as caught:
                open_source(url, table)
            assert "hunter2" not in str(caught.value)


@pytest.mark.slow
class TestSpark:
    """Local mode, for real."""

    def test_counts(self, spark):
        """Persons, not rows; NULLs ignored; collated columns; columns with odd names."""
        values = "(1, 'a'), (1, 'a'), (2, 'a'), (1, 'A'), (NULL, 'b'), (3, NULL)"
        spark.sql(
            "CREATE OR REPLACE TEMP VIEW pairs AS SELECT u AS `u'; --`, "
            f'g COLLATE UTF8_LCASE AS `g"` FROM VALUES {values} AS v(u, g)'
        )
        found = counted("pyspark://", ["a", "A", "b"], by='g"', user="u'; --", table="pairs")
        assert (found.counts.tolist(), found.rows_ignored) == ([2, 1, 0], True)
        pairs = pair_columns(
            ibis.pyspark.connect(spark).table("pairs"), 'g"', "u'; --", collated=True
        )
        found = selected(pairs, 1)
        assert sum(found.values()) == 2
        assert found["a"] >= 1

    def test_the_whole_way(self, spark, tmp_path):
        """A table behind a URL, as a session with a catalogue sees it."""
        pq.write_table(
            pa.table({"u": list(range(500)), "g": ["x", "y"] * 250}), tmp_path / "pairs.parquet"
        )
        spark.read.parquet(str(tmp_path / "pairs.parquet")).createOrReplaceTempView("halves")
        result = expost.count(
            "pyspark://", table="halves", by="g", user="u", keys=["x", "y"], epsilon=1e7, **EXACT
        )
        assert {answer.group: round(answer.estimate) for answer in result.answers} == {
            "x": 250,
            "y": 250,
        }

    def test_data_frames(self, spark):
        """A Spark data frame as it is, with a cap: at most one group per user."""
        frame = spark.createDataFrame([(i % 50, f"g{i % 3}") for i in range(300)], ["u", "g"])
        keys = ["g0", "g1", "g2"]
        result = expost.count(frame, by="g", user="u", keys=keys, epsilon=1e6, **EXACT)
        assert [round(answer.estimate) for answer in result.answers] == [50, 50, 50]
        capped = expost.count(
            frame, by="g", user="u", keys=keys, epsilon=1e6, max_groups_per_user=1, **EXACT
        )
        assert sum(round(answer.estimate) for answer in capped.answers) == 50

    def test_parquet_paths(self, spark, tmp_path):
        """Parquet that Spark reads itself: a table of the URL is a path."""
        path = tmp_path / "on_spark.parquet"
        pq.write_table(pa.table({"u": list(range(60)), "g": ["x", "y", "z"] * 20}), path)
        assert numbers("pyspark://", ["x", "none"], table=str(path)) == [20, 0]

    def test_sums(self, spark):
        """NaN, infinite, huge and missing values contribute nothing or the bound; nothing fails."""
        values = [1.0, float("nan"), float("inf"), float("-inf"), 1e300, None, 2.0]
        rows = [(place, "a", value) for place, value in enumerate(values)]
        frame = spark.createDataFrame(rows, "u int, g string, v double")
        result = expost.sum(
            frame, "v", bounds=(0, 10), by="g", user="u", keys=["a"], epsilon=1e7, **EXACT
        )
        assert round(result.answers[0].estimate) == 1 + 10 + 2

    @pytest.mark.parametrize("name", ["pairs; DROP VIEW pairs", "(SELECT 1)", "no_such_table"])
    def test_tables_are_names(self, spark, name):
        with pytest.raises(InvalidInput, match="cannot be opened"):
            open_source("pyspark://", name)
