"""Ledgers of expost 0.1: the file ``data/schema_1.db`` was written by that version."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
from fractions import Fraction
from pathlib import Path

import pytest
import sqlalchemy

from expost import PureDP
from expost.budget import operations
from expost.budget.ledger import Ledger
from expost.errors import BudgetRefused, LedgerError

OLD = Path(__file__).parent / "data" / "schema_1.db"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    place = tmp_path / "ledger.db"
    shutil.copyfile(OLD, place)
    return place


def old_rows(place: Path) -> dict[str, list[tuple]]:
    connection = sqlite3.connect(place)
    tables = ("meta", "head", "totals", "reservations", "entries")
    found = {
        table: connection.execute(f"SELECT * FROM expost_{table} ORDER BY 1, 2").fetchall()
        for table in tables
    }
    connection.close()
    return found


def test_an_old_ledger_asks_to_be_upgraded(path):
    """Catches an old ledger that is read in the new way, or changed by looking at it."""
    before = path.read_bytes()
    for use in (Ledger.open, lambda url: Ledger.open(url, read_only=True)):
        with pytest.raises(LedgerError, match="expost ledger upgrade"):
            use(path)
    assert path.read_bytes() == before


def test_nothing_is_lost_by_an_upgrade(path, tmp_path):
    """Catches a lost entry, a changed sum, a chain that no longer holds, or no copy."""
    before = old_rows(path)
    copy = Ledger.upgrade(path)
    assert copy == str(tmp_path / "ledger.db.schema-1")
    assert old_rows(Path(copy)) == before
    assert Path(copy).stat().st_mode & 0o777 == 0o600
    ledger = Ledger.open(path)
    assert ledger.verify() == []
    entries = [tuple(vars(entry).values()) for entry in ledger.entries()]
    assert entries[:-1] == before["entries"]
    assert entries[-1][2] == "upgrade"
    assert ledger.identity == before["entries"][0][-1]
    assert ledger.standing("visits").filter.held == (Fraction(0.2),)  # as it was recorded
    assert ledger.remaining("visits", "ann") == 0.0
    assert ledger.budgets() == ["curve", "income", "visits"]
    assert not path.with_name("ledger.db-wal").exists()


def test_an_upgraded_ledger_goes_on(path):
    """Catches old amounts that new ones cannot be added to, and an open job without an owner."""
    Ledger.upgrade(path)
    ledger = Ledger.open(path)
    ledger.settle(ledger.reserve(PureDP(0.1), budget="visits"), 0)
    with pytest.raises(BudgetRefused):
        ledger.reserve(PureDP(0.05), budget="visits", analyst="ann")
    for secret in (None, "", "guess"):
        with pytest.raises(LedgerError, match="abandon"):
            ledger.settle("four", 0, secret=secret)
    for identity in ("one", "four"):
        with pytest.raises(LedgerError):
            ledger.reserve(PureDP(0.2), budget="visits", analyst="bob", reservation_id=identity)
    ledger.abandon("four")
    ledger.change_budget(PureDP(0.5), "new caps", name="visits", analyst="bob")
    assert ledger.standing("visits", "bob").filter.settled == (Fraction(0.2),)
    assert ledger.verify() == []
    with pytest.raises(LedgerError, match="schema 2"):
        Ledger.upgrade(path)


def test_edits_of_old_entries_are_still_found(path):
    """Catches old entries that are believed because they are old."""
    Ledger.upgrade(path)
    connection = sqlite3.connect(path)
    connection.execute("UPDATE expost_reservations SET outcome = '0' WHERE id = 'two'")
    connection.commit()
    connection.close()
    assert any("two" in problem for problem in Ledger.open(path).verify())


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE expost_entries SET memo = 'x' WHERE sequence = 3",
        "UPDATE expost_totals SET settled = '[\"0\"]' WHERE budget = 'visits' AND analyst = ''",
        "DELETE FROM expost_reservations WHERE id = 'one'",
    ],
)
def test_an_unsound_ledger_is_not_upgraded(path, damage):
    """Catches a forgery that a migration makes respectable."""
    connection = sqlite3.connect(path)
    connection.execute(damage)
    connection.commit()
    connection.close()
    with pytest.raises(LedgerError, match="not sound"):
        Ledger.upgrade(path)
    with pytest.raises(LedgerError, match="upgrade"):
        Ledger.open(path)


def test_a_ledger_in_use_is_not_upgraded(path):
    """Catches a migration under the feet of a running job of the old version."""
    user = sqlite3.connect(path)
    user.execute("BEGIN")
    user.execute("SELECT COUNT(*) FROM expost_entries").fetchone()
    with pytest.raises(LedgerError, match="stop all its users"):
        Ledger.upgrade(path)
    user.rollback()
    user.close()
    Ledger.upgrade(path)
    assert Ledger.open(path).verify() == []


def test_an_upgrade_that_is_killed_can_be_repeated(path, monkeypatch):
    """Catches half a migration."""
    before = old_rows(path)

    def die(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if child == 0:
        operations._move_reservations = die
        Ledger.upgrade(path)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    copy = Ledger.upgrade(path)
    assert copy.endswith(".schema-1.2")
    assert old_rows(Path(copy)) == before
    assert Ledger.open(path).verify() == []


def test_a_server_is_upgraded_too(postgres_url, path):
    """The same ledger, row by row, in PostgreSQL."""
    old = old_rows(path)
    engine = sqlalchemy.create_engine(postgres_url.replace("postgresql:", "postgresql+psycopg:"))
    source = sqlite3.connect(path)
    with engine.begin() as connection:
        for (statement,) in source.execute("SELECT sql FROM sqlite_master WHERE type = 'table'"):
            connection.execute(
                sqlalchemy.text(statement.replace("INTEGER PRIMARY", "BIGINT PRIMARY"))
            )
        for table, rows in old.items():
            marks = ", ".join(f":c{place}" for place in range(len(rows[0])))
            for row in rows:
                values = {f"c{place}": value for place, value in enumerate(row)}
                connection.execute(
                    sqlalchemy.text(f"INSERT INTO expost_{table} VALUES ({marks})"), values
                )
    source.close()
    with pytest.raises(LedgerError, match="expost ledger upgrade"):
        Ledger.open(postgres_url)
    Ledger.upgrade(postgres_url)
    ledger = Ledger.open(postgres_url)
    assert ledger.verify() == []
    assert ledger.remaining("visits", "ann") == 0.0
    with engine.begin() as connection:
        count = connection.execute(sqlalchemy.text("SELECT COUNT(*) FROM expost_schema_1_entries"))
        assert count.scalar() == len(old["entries"])
    engine.dispose()
