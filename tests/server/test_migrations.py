"""Migrations: a migrated database and a new one are the same; a newer one is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sql
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from expost.errors import LedgerError
from expost.server import database
from expost.server.database import SCHEMA, ServerDatabase, facts, metadata, people, schema_table
from expost.server.server_settings import ServerSettings

ROOT = Path(__file__).parents[2]
OLD = (Path(__file__).parent / "data" / "schema_3.sql").read_text(encoding="utf-8")
STEPS = Path(database.__file__).parent / "migrations" / "versions"


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database with the tables of schema 3."""
    if request.param == "sqlite":
        url, text = f"sqlite:///{tmp_path / 'server.db'}", OLD
    else:
        settings = ServerSettings(tmp_path, database=request.getfixturevalue("postgres_url"))
        url = settings.database_url
        text = OLD.replace("BLOB", "BYTEA").replace(
            "number INTEGER NOT NULL,\n    place", "number SERIAL NOT NULL,\n    place"
        )
    engine = sql.create_engine(url)
    with engine.begin() as connection:
        for statement in text.split(";\n"):
            if statement.strip():
                connection.exec_driver_sql(statement)
    engine.dispose()
    return url


def shape(url: str) -> Any:
    """Everything that a database says about its tables."""
    engine = sql.create_engine(url)
    look = sql.inspect(engine)
    told = {
        name: (
            [{**column, "type": str(column["type"])} for column in look.get_columns(name)],
            look.get_pk_constraint(name)["constrained_columns"],
            sorted((i["name"], i["column_names"], i["unique"]) for i in look.get_indexes(name)),
            sorted(u["name"] for u in look.get_unique_constraints(name)),
        )
        for name in look.get_table_names()
    }
    engine.dispose()
    return told


def test_a_migrated_database_is_like_a_new_one(url: str, tmp_path: Path) -> None:
    ServerDatabase(url).close()
    store = ServerDatabase(url)  # a second start has nothing to do
    assert store.row(sql.select(schema_table)) == {"version_num": SCHEMA}
    assert store.row(sql.select(people.c.name)) == {"name": "olga"}  # rows stay
    assert store.row(sql.select(facts).where(facts.c.name == "schema")) is None
    options = {"compare_type": True}
    store.read(
        lambda connection: _same(
            compare_metadata(MigrationContext.configure(connection, opts=options), metadata)
        )
    )
    store.close()
    if url.startswith("sqlite"):
        new = f"sqlite:///{tmp_path / 'new.db'}"
        ServerDatabase(new).close()
        assert shape(url) == shape(new)


def _same(differences: list[Any]) -> None:
    assert differences == []


def test_a_missing_column_would_be_noticed(url: str) -> None:
    """The comparison can fail."""
    store = ServerDatabase(url)
    store.write(lambda c: c.exec_driver_sql("ALTER TABLE server_people DROP COLUMN disabled"))
    with pytest.raises(AssertionError):
        store.read(lambda c: _same(compare_metadata(MigrationContext.configure(c), metadata)))
    store.close()


def test_a_newer_schema_is_refused(url: str) -> None:
    store = ServerDatabase(url)
    store.change(schema_table.update().values(version_num="0999"))
    store.close()
    with pytest.raises(LedgerError, match=r"schema 0999.*newer expost"):
        ServerDatabase(url)


def test_a_step_that_fails_changes_nothing(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = shape(url)

    def fail(connection: sql.Connection, version: str) -> None:
        original(connection, version)
        raise sql.exc.OperationalError("", {}, Exception("the disk is full"))

    original = database._migrate
    monkeypatch.setattr(database, "_migrate", fail)
    with pytest.raises(LedgerError, match="could not be used"):
        ServerDatabase(url)
    assert shape(url) == before
    monkeypatch.undo()
    ServerDatabase(url).close()


def test_the_newest_step_is_the_schema() -> None:
    assert sorted(path.name[:4] for path in STEPS.glob("[0-9]*.py"))[-1] == SCHEMA


def test_a_new_database_needs_no_alembic(tmp_path: Path) -> None:
    """Nor does a start: alembic is imported when there is something to migrate."""
    program = (
        "import sys; from expost.server.database import ServerDatabase; "
        f"ServerDatabase('sqlite:///{tmp_path / 'server.db'}'); "
        "assert 'alembic' not in sys.modules"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment, cwd=ROOT)
