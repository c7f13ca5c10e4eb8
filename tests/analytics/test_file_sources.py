"""Files people have.

Other delimiters, gzip, JSON lines, folders, globs, DuckDB and SQLite files.
"""

from __future__ import annotations

import gzip
import json
import sqlite3
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import expost
from expost.errors import InvalidInput
from expost.tables.sources import open_source
from tests.analytics.tables import EXACT, counted, numbers

ROWS = [("1", "a"), ("2", "a"), ("2", "a"), ("1", "b")]


def text(delimiter: str) -> str:
    return "\n".join(delimiter.join(row) for row in [("u", "g"), *ROWS]) + "\n"


def total(path: Path | str, **options: object) -> list[int]:
    """The counts of a and b through the whole command."""
    result = expost.count(path, by="g", user="u", keys=["a", "b"], epsilon=1e7, **EXACT, **options)
    return [round(answer.estimate) for answer in result.answers]


class TestText:
    """Delimited text."""

    @pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
    @pytest.mark.parametrize("packed", [False, True])
    def test_known_delimiters(self, tmp_path, delimiter, packed):
        """The header tells which one; gzipped files too."""
        content = text(delimiter).encode()
        path = tmp_path / ("t.csv.gz" if packed else "t.csv")
        path.write_bytes(gzip.compress(content) if packed else content)
        assert total(path) == [2, 1]

    @pytest.mark.parametrize("delimiter", ["~", ":", "^"])
    def test_any_delimiter_that_is_given(self, tmp_path, delimiter):
        (tmp_path / "t.txt").write_text(text(delimiter))
        assert total(tmp_path / "t.txt", delimiter=delimiter) == [2, 1]
        with pytest.raises(InvalidInput, match="the table has the columns"):
            total(tmp_path / "t.txt")

    def test_gzip_that_is_none(self, tmp_path):
        (tmp_path / "t.csv.gz").write_text(text(","))
        with pytest.raises(InvalidInput, match="cannot be read"):
            total(tmp_path / "t.csv.gz")


class TestJsonLines:
    """One object per line; the columns that are used, as text."""

    def test_counts(self, tmp_path):
        lines = [json.dumps({"u": int(u), "g": g, "more": [1, {"x": 2}]}) for u, g in ROWS]
        (tmp_path / "t.jsonl").write_text("\n".join(lines) + "\n")
        assert total(tmp_path / "t.jsonl") == [2, 1]
        (tmp_path / "t.ndjson.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
        assert total(tmp_path / "t.ndjson.gz") == [2, 1]

    @pytest.mark.parametrize(
        "line",
        [
            "",
            "no json",
            "{",
            "[]",
            "7",
            "null",
            '{"u": 9}',
            '{"g": "a"}',
            '{"u": null, "g": "a"}',
            '{"u": 9, "g": null}',
            '{"u": 9, "g": ["a"]}',
            '{"u": 9, "g": {"a": 1}}',
            '{"x": 1}',
            '{"u": 9, "g": "a"} trailing',
            '{"u": 1e999, "g": 1e999}',
        ],
    )
    @pytest.mark.parametrize("place", [0, 2, 4])
    def test_no_line_fails_or_changes_others(self, tmp_path, line, place):
        """A line that is no row is ignored: each count moves by at most one, wherever it stands."""
        lines = [json.dumps({"u": u, "g": g}) for u, g in ROWS]
        lines.insert(place, line)
        (tmp_path / "t.jsonl").write_text("\n".join(lines) + "\n")
        found = numbers(tmp_path / "t.jsonl", ["a", "b"])
        assert found in ([2, 1], [3, 1])


class TestFoldersAndGlobs:
    """Several files of one kind are one table."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        made = tmp_path / "parts"
        made.mkdir()
        for place, (user, group) in enumerate(ROWS):
            pq.write_table(pa.table({"u": [user], "g": [group]}), made / f"{place}.parquet")
        (made / "README").write_text("not a table")
        return made

    def test_a_folder(self, folder):
        assert total(folder) == [2, 1]

    def test_a_glob(self, folder):
        assert total(f"{folder}/[01].parquet") == [2, 0]
        with pytest.raises(InvalidInput, match="no such file"):
            total(f"{folder}/x*.parquet")

    def test_columns_from_the_names_of_folders(self, tmp_path):
        for group in ("a", "b"):
            (tmp_path / f"g={group}").mkdir()
            users = [int(user) for user, found in ROWS if found == group]
            pq.write_table(pa.table({"u": users}), tmp_path / f"g={group}" / "part.parquet")
        assert total(f"{tmp_path}/*/*.parquet") == [2, 1]

    def test_types_of_a_column(self, folder):
        """A part without values may have no type; types that differ are refused as such."""
        pq.write_table(pa.table({"u": pa.nulls(2), "g": ["a", "b"]}), folder / "none.parquet")
        assert total(folder) == [2, 1]
        pq.write_table(pa.table({"u": [1.5], "g": ["a"]}), folder / "other.parquet")
        with pytest.raises(InvalidInput, match="different columns"):
            total(folder)

    def test_text_files_need_one_header(self, tmp_path):
        (tmp_path / "1.csv").write_text("u,g\n1,a\n")
        (tmp_path / "2.csv").write_text("u,g\n2,a\n1,b\n")
        assert total(tmp_path) == [2, 1]
        (tmp_path / "3.csv").write_text("g,u\na,3\n")
        with pytest.raises(InvalidInput, match="different headers"):
            total(tmp_path)

    def test_one_kind(self, folder):
        (folder / "more.csv").write_text(text(","))
        with pytest.raises(InvalidInput, match="different kinds"):
            total(folder)

    def test_an_empty_folder(self, tmp_path):
        with pytest.raises(InvalidInput, match="no such file"):
            total(tmp_path)


class TestDatabaseFiles:
    """DuckDB and SQLite: read-only, and never created."""

    @pytest.fixture(params=["t.duckdb", "t.ddb", "t.sqlite", "t.db", "duck.db"])
    def database(self, request: pytest.FixtureRequest, tmp_path: Path) -> Path:
        path = tmp_path / request.param
        duck = "duck" in path.name or path.suffix == ".ddb"
        connection = duckdb.connect(str(path)) if duck else sqlite3.connect(path)
        connection.execute("CREATE TABLE visits (u INTEGER, g TEXT)")
        connection.executemany("INSERT INTO visits VALUES (?, ?)", ROWS)
        if not duck:
            connection.commit()
        connection.close()
        return path

    def test_counts_and_writes_nothing(self, database):
        before = database.read_bytes()
        assert total(database, table="visits") == [2, 1]
        assert database.read_bytes() == before
        assert [each.name for each in database.parent.iterdir()] == [database.name]

    def test_a_folder_that_cannot_be_written(self, database):
        database.chmod(0o400)
        assert total(database, table="visits") == [2, 1]

    def test_tables_are_named(self, database):
        with pytest.raises(InvalidInput, match="--table"):
            total(database)
        with pytest.raises(InvalidInput, match=r"no such table|cannot be opened"):
            total(database, table="nothing")

    @pytest.mark.parametrize("name", ["x.duckdb", "x.sqlite", "x.db"])
    @pytest.mark.parametrize("scheme", ["", "duckdb://", "sqlite://"])
    def test_a_missing_file_is_not_created(self, tmp_path, name, scheme):
        with pytest.raises(InvalidInput, match="no such file"):
            open_source(f"{scheme}{tmp_path / name}", "t")
        assert list(tmp_path.iterdir()) == []

    def test_urls(self, database):
        scheme = "duckdb" if "duck" in database.name or database.suffix == ".ddb" else "sqlite"
        assert total(f"{scheme}://{database}", table="visits") == [2, 1]

    def test_a_file_that_is_no_database(self, tmp_path):
        for name in ("x.duckdb", "x.sqlite"):
            (tmp_path / name).write_text("hello " * 1000)
            with pytest.raises(InvalidInput, match="cannot be opened"):
                total(tmp_path / name, table="t")

    def test_sqlite_cells_of_any_type(self, tmp_path):
        """SQLite columns have no fixed type; a blob or a text among numbers must not fail."""
        connection = sqlite3.connect(tmp_path / "t.sqlite")
        connection.execute("CREATE TABLE t (u, g INTEGER, v REAL)")
        rows = [(1, "a", 2.5), (b"\xff\x00", "a", "x"), (2, "a", None), (3.5, "a", b"\x01")]
        connection.executemany("INSERT INTO t VALUES (?, ?, ?)", rows)
        connection.commit()
        connection.close()
        assert counted(tmp_path / "t.sqlite", ["a"], table="t").counts.tolist() == [4]
        result = expost.sum(
            tmp_path / "t.sqlite",
            "v",
            bounds=(0, 4),
            grid=0.5,
            table="t",
            by="g",
            user="u",
            keys=["a"],
            epsilon=1e7,
            plus_minus=0.2,
            confidence=1 - 1e-9,
        )
        assert round(2 * result.answers[0].estimate) == 5
