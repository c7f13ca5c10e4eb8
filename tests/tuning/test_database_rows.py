"""Tables of databases: the same model as from a file, and no row makes reading fail."""

from __future__ import annotations

import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ibis", reason="Ibis is not installed")
pytest.importorskip("duckdb", reason="DuckDB is not installed")

import duckdb

import expost
from expost.errors import InvalidInput
from expost.randomness.source import SimulationRandomness
from expost.tuning.request.settings import read_settings
from expost.tuning.rows.job_rows import load_rows
from expost.tuning.runs.run_attempts import CERTIFICATE
from tests.budget.conftest import postgres_server, postgres_url
from tests.cli.test_tune_cli import Run, run
from tests.tuning.large_tables import CITIES, cells, write

__all__ = ["postgres_server", "postgres_url", "run"]

FACTS: dict[str, Any] = {
    "target": "label",
    "classes": ["no", "yes"],
    "feature_bounds": {"age": [10, 100], "gain": [0, 9000]},
    "categories": {"city": CITIES},
    "rows": 700,
    "at_least": 0.7,
}
ENGINES = ("duckdb", "sqlite", "postgresql")


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    if request.param == "postgresql":
        request.getfixturevalue("postgres_server")
    return str(request.param)


@pytest.fixture
def place(engine: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    if engine == "postgresql":
        yield request.getfixturevalue("postgres_url")
    else:
        yield str(tmp_path / f"people.{engine}")


def store(place: str, table: dict[str, list[Any]]) -> None:
    """Write a table to a database."""
    rows = list(zip(*table.values(), strict=True))
    columns = "age DOUBLE PRECISION, gain BIGINT, city TEXT, label TEXT"
    if place.endswith(".duckdb"):
        with duckdb.connect(place) as connection:
            connection.execute(f"CREATE TABLE people ({columns})")
            connection.executemany("INSERT INTO people VALUES (?, ?, ?, ?)", rows)
    elif place.endswith(".sqlite"):
        connection = sqlite3.connect(place)
        with connection:
            connection.execute(f"CREATE TABLE people ({columns})")
            connection.executemany("INSERT INTO people VALUES (?, ?, ?, ?)", rows)
        connection.close()
    else:
        import psycopg

        with psycopg.connect(place) as connection:
            connection.execute(f"CREATE TABLE people ({columns})")
            with connection.cursor() as cursor:
                cursor.executemany("INSERT INTO people VALUES (%s, %s, %s, %s)", rows)


def tuned(rows: Any, **more: Any) -> Any:
    return expost.tune(
        rows, **FACTS, **more, randomness=SimulationRandomness(3), simulation=True
    ).model.parameters["weight"]


def test_the_model_of_a_table_is_that_of_a_file(place: str, tmp_path: Path) -> None:
    table = cells()
    store(place, table)
    there = tuned(place, table="people")
    assert np.array_equal(there, tuned(write(tmp_path / "people.parquet", table)))


def test_no_row_makes_reading_fail(place: str, engine: str, tmp_path: Path) -> None:
    """Rows that an engine, its driver or a cast might stumble over are empty places."""
    odd: dict[str, list[Any]] = {
        "age": [1e308, -1e308, float("nan"), float("inf"), None, 5e-324],
        "gain": [2**63 - 1, -(2**63), None, 0, 1, 2],
        "city": ["\ud7ff", "", None, "Bern" * 1000, "'", "Bern\n"],
        "label": ["yes", None, "", "no", "YES", "no"],
    }
    table = {name: [*cells(60)[name], *odd[name]] for name in odd}
    store(place, table)
    job = {
        "data": {"path": place, "table": "people", **_data_facts()},
        "model": {"kind": "logistic"},
        "goal": {"at_least": 0.7},
        "privacy": {"delta": 1e-6},
    }
    read = load_rows(read_settings(job).data, lazy=False)
    assert len(read.X) + len(read.score_X) == 66
    assert np.isfinite(read.X).all()


def _data_facts() -> dict[str, Any]:
    return {name: value for name, value in FACTS.items() if name != "at_least"}


def test_mixed_cells_of_sqlite_are_empty_places(tmp_path: Path) -> None:
    place = str(tmp_path / "people.sqlite")
    table = cells(80)
    table["age"][7] = "forty"
    table["gain"][9] = b"\xff\x00"
    store(place, table)
    job = {
        "data": {"path": place, "table": "people", **_data_facts()},
        "goal": {"at_least": 0.7},
        "privacy": {"delta": 1e-6},
        "model": {"kind": "logistic"},
    }
    rows = load_rows(read_settings(job).data)
    assert len(rows.X) + len(rows.score_X) == 80


def test_command_on_a_database_file(tmp_path: Path, run: Run) -> None:
    store("people.duckdb", cells())
    options = ["people.duckdb", "--table", "people", "--rows", "700", "--target", "label"]
    options += ["--at-least", "0.7"]
    asked = run(*options)
    assert asked.returncode == 2
    assert "--categories city" in asked.stderr
    facts = ["--classes", "no,yes", "--categories", "city=Bern,Zug,Chur"]
    bounds = ["--bounds", "age=10:100", "--bounds", "gain=0:9000"]
    written = run(*options, *facts, *bounds, "--init", "--out", "job.toml")
    assert written.returncode == 0, written.stderr
    assert 'table = "people"' in Path("job.toml").read_text(encoding="utf-8")
    for described in ([*options, *facts, *bounds], ["job.toml"]):
        done = run(*described, "--out", f"of-{described[0]}")
        assert done.returncode == 0, done.stderr
        certificate = (tmp_path / f"of-{described[0]}" / CERTIFICATE).read_text("utf-8")
        assert '"people"' in certificate
        assert str(tmp_path) not in certificate


def test_what_a_database_needs_is_said_before_it_is_opened() -> None:
    url = "postgresql://nobody:secret@nowhere/db"
    with pytest.raises(InvalidInput, match="leave the password out") as refused:
        tuned(url, table="people")
    assert "secret" not in str(refused.value)
    with pytest.raises(InvalidInput, match="which table"):
        tuned("postgresql://nobody@nowhere/db")
    with pytest.raises(InvalidInput, match="public number"):
        expost.tune("people.duckdb", **{**FACTS, "rows": None}, table="people")
    with pytest.raises(InvalidInput, match="only a database"):
        tuned("people.csv", table="people")


def test_the_copy_is_secret_and_goes(tmp_path: Path) -> None:
    place = str(tmp_path / "people.duckdb")
    store(place, cells(50))
    job = {
        "data": {"path": place, "table": "people", **_data_facts()},
        "goal": {"at_least": 0.7},
        "privacy": {"delta": 1e-6},
        "model": {"kind": "logistic"},
    }
    rows = load_rows(read_settings(job).data, lazy=True)
    assert rows.file is not None
    path = rows.file.path
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    del rows
    assert not path.exists()
