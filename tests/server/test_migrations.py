"""Migrations: a step is taken once or not at all; newer and unreleased tables are refused."""

from __future__ import annotations

import os
import shutil
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
from expost.server.database import SCHEMA, ServerDatabase, metadata, people, schema_table
from expost.server.server_settings import ServerSettings

ROOT = Path(__file__).parents[2]
STEPS = Path(database.__file__).parent / "migrations" / "versions"
NEXT = """
import sqlalchemy as sql
from alembic import op

revision, down_revision = "0008", "0007"


def upgrade():
    op.create_table("server_moods", sql.Column("person", sql.String(64), primary_key=True))
    op.add_column("server_people", sql.Column("mood", sql.Text))
"""


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database of the present schema with a person."""
    url = f"sqlite:///{tmp_path / 'server.db'}"
    if request.param == "postgresql":
        settings = ServerSettings(tmp_path, database=request.getfixturevalue("postgres_url"))
        url = settings.database_url
    store = ServerDatabase(url)
    store.change(people.insert().values(name="olga", role="owner", created=0.0))
    store.close()
    return url


@pytest.fixture
def later(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A later version of expost, with one more step, meets the database."""
    folder = tmp_path / "migrations"
    shutil.copytree(STEPS, folder / "versions", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "versions" / "0008_moods.py").write_text(NEXT)
    monkeypatch.setattr(database, "_STEPS", folder)
    monkeypatch.setattr(database, "SCHEMA", "0008")


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


def test_a_new_database_has_the_tables_of_the_metadata(url: str) -> None:
    store = ServerDatabase(url)  # a second start has nothing to do
    assert store.row(sql.select(schema_table)) == {"version_num": SCHEMA}
    options = {"compare_type": True}
    store.read(
        lambda connection: _same(
            compare_metadata(MigrationContext.configure(connection, opts=options), metadata)
        )
    )
    store.close()


@pytest.mark.usefixtures("later")
def test_a_step_is_taken_once_and_rows_stay(url: str) -> None:
    for _ in range(2):
        store = ServerDatabase(url)
        assert store.row(sql.select(schema_table)) == {"version_num": "0008"}
        assert store.row(sql.text("SELECT name, mood FROM server_people")) == {
            "name": "olga",
            "mood": None,
        }
        store.close()
    assert "server_moods" in shape(url)


@pytest.mark.parametrize("version", [None, "0003", "0006"])
def test_tables_that_were_never_released_are_refused(url: str, version: str | None) -> None:
    store = ServerDatabase(url)
    if version is None:
        store.write(lambda connection: connection.exec_driver_sql("DROP TABLE server_schema"))
    else:
        store.change(schema_table.update().values(version_num=version))
    store.close()
    before = shape(url)
    with pytest.raises(LedgerError, match="never released"):
        ServerDatabase(url)
    assert shape(url) == before


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


@pytest.mark.usefixtures("later")
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
