"""The tables of a ledger, and the reading and writing of rows inside one transaction.

Nothing here knows privacy. The transactions themselves are in :mod:`expost.budget.store`.
Tests: ``tests/budget/test_ledger.py``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

from expost.budget.hash_chain import GENESIS, Entry
from expost.errors import LedgerError

SCHEMA_VERSION = 2

RESERVATIONS = (
    "CREATE TABLE expost_reservations (id VARCHAR(64) PRIMARY KEY, budget VARCHAR(200) NOT NULL, "
    "analyst VARCHAR(200) NOT NULL, status VARCHAR(20) NOT NULL, worst TEXT NOT NULL, "
    "charges TEXT NOT NULL, outcome TEXT, entry BIGINT NOT NULL, request VARCHAR(64) NOT NULL, "
    "secret VARCHAR(64) NOT NULL)"
)
TOTALS = (
    "CREATE TABLE expost_totals (budget VARCHAR(200) NOT NULL, analyst VARCHAR(200) NOT NULL, "
    "terms TEXT NOT NULL, settled TEXT NOT NULL, held TEXT NOT NULL, renews VARCHAR(20) NOT NULL, "
    "period VARCHAR(40) NOT NULL, past TEXT NOT NULL, PRIMARY KEY (budget, analyst))"
)
ALERTS = (
    "CREATE TABLE expost_alerts (budget VARCHAR(200) NOT NULL, share VARCHAR(40) NOT NULL, "
    "command TEXT NOT NULL, PRIMARY KEY (budget, share))"
)
OPEN_INDEX = "CREATE INDEX expost_open ON expost_reservations (budget) WHERE status = 'open'"

_TABLES = (
    "CREATE TABLE expost_meta (name VARCHAR(40) PRIMARY KEY, value TEXT NOT NULL)",
    "CREATE TABLE expost_head (place INTEGER PRIMARY KEY, sequence BIGINT NOT NULL, "
    "hash CHAR(64) NOT NULL)",
    TOTALS,
    RESERVATIONS,
    "CREATE TABLE expost_entries (sequence BIGINT PRIMARY KEY, time VARCHAR(40) NOT NULL, "
    "action VARCHAR(20) NOT NULL, budget VARCHAR(200) NOT NULL, analyst VARCHAR(200) NOT NULL, "
    "reservation VARCHAR(64) NOT NULL, detail TEXT NOT NULL, memo TEXT NOT NULL, "
    "previous CHAR(64) NOT NULL, hash CHAR(64) NOT NULL)",
    ALERTS,
    OPEN_INDEX,
)
NAMES = tuple(field.name for field in fields(Entry))
_COLUMNS = ", ".join(NAMES)
_APPEND = (
    f"INSERT INTO expost_entries ({_COLUMNS}) VALUES ({', '.join(f':{name}' for name in NAMES)})"
)
_MARK = re.compile(r":(\w+)")
_READS = ("SELECT", "PRAGMA", "SHOW", "SET", "BEGIN", "SAVEPOINT", "RELEASE", "ROLLBACK")


class LedgerRows:
    """Read and write rows inside one transaction.

    Statements name their parameters as ``:name`` and go directly to the driver.

    Parameters
    ----------
    backend : str
        ``"sqlite"`` or ``"postgresql"``.
    connection : object
        The connection of the driver.
    before_change : callable, optional
        Called once, before the first statement that changes the database.
    """

    def __init__(
        self, backend: str, connection: Any, before_change: Callable[[], None] | None = None
    ) -> None:
        self.backend = backend
        self.changed = False
        self.last: tuple[int, str] = (0, "")  # number and hash of the entry that was last written
        self._before_change = before_change
        self._cursor = connection.cursor()

    def run(self, statement: str, **values: Any) -> Any:
        """Execute a statement and return the cursor."""
        if not self.changed and not statement.startswith(_READS):
            self.changed = True
            if self._before_change is not None:
                self._before_change()
        self._cursor.execute(
            statement if self.backend == "sqlite" else _MARK.sub(r"%(\1)s", statement), values
        )
        return self._cursor

    def all(self, statement: str, **values: Any) -> list[tuple[Any, ...]]:
        """Return all rows of a query."""
        found: list[tuple[Any, ...]] = self.run(statement, **values).fetchall()
        return found

    def first(self, statement: str, **values: Any) -> tuple[Any, ...] | None:
        """Return the first row of a query, or None."""
        found = self.all(statement, **values)
        return found[0] if found else None

    def one(self, statement: str, **values: Any) -> tuple[Any, ...]:
        """Return the first row of a query that must have one."""
        found = self.first(statement, **values)
        if found is None:
            raise LedgerError("the ledger is damaged: a row is missing; run: expost ledger verify")
        return found

    def change(self, statement: str, **values: Any) -> None:
        """Write exactly one row.

        A row that is not found, for example because of a damaged index, is an error: otherwise a
        charge would be lost silently.
        """
        if self.run(statement, **values).rowcount != 1:
            raise LedgerError(
                "the ledger is damaged: a row could not be written; run: expost ledger verify"
            )

    def create_tables(self) -> None:
        """Make the tables of an empty ledger."""
        for statement in _TABLES:
            self.run(self.typed(statement))
        self.change(
            "INSERT INTO expost_meta VALUES ('schema', :version)", version=str(SCHEMA_VERSION)
        )
        self.change("INSERT INTO expost_head VALUES (1, 0, :hash)", hash=GENESIS)

    def typed(self, statement: str) -> str:
        """Return a table definition with the key type of this database."""
        # In SQLite an INTEGER key is the row number itself and needs no second index.
        number = "INTEGER" if self.backend == "sqlite" else "BIGINT"
        return statement.replace("BIGINT PRIMARY", f"{number} PRIMARY")

    def has_tables(self) -> bool:
        """Return whether there is a ledger of any schema."""
        look = "SELECT name FROM sqlite_master WHERE name = 'expost_meta'"
        return (
            self.one(
                f"SELECT ({look})"
                if self.backend == "sqlite"
                else "SELECT to_regclass('expost_meta')"
            )[0]
            is not None
        )

    def schema(self) -> int:
        """Return the number of the ledger's schema."""
        found = str(self.one("SELECT value FROM expost_meta WHERE name = 'schema'")[0])
        if not found.isdecimal():
            raise LedgerError(
                f"the ledger is damaged: its schema is {found!r}, which is not a number"
            )
        return int(found)

    def damage(self) -> Iterator[str]:
        """Yield what the database itself finds wrong with its file (SQLite: pages and indexes)."""
        if self.backend == "sqlite":
            found = [str(row[0]) for row in self.all("PRAGMA integrity_check")]
            yield from (f"file: {problem}" for problem in found if problem != "ok")

    def lock_head(self, *, read_only: bool = False) -> tuple[int, str]:
        """Return the number and hash of the last entry, and lock it against other writers."""
        lock = " FOR UPDATE" if self.backend == "postgresql" and not read_only else ""
        sequence, last = self.one(f"SELECT sequence, hash FROM expost_head WHERE place = 1{lock}")
        if type(sequence) is not int:
            raise LedgerError("the ledger is damaged at its head; run: expost ledger verify")
        return sequence, str(last)

    def read_last(self) -> tuple[int, str]:
        """Return the number and hash of the last entry; (0, "") where the head is damaged."""
        head = self.first("SELECT sequence, hash FROM expost_head WHERE place = 1")
        return (head[0], str(head[1])) if head and type(head[0]) is int else (0, "")

    def hash_of(self, sequence: int) -> str | None:
        """Return the hash of the entry with this number, or None."""
        row = self.first("SELECT hash FROM expost_entries WHERE sequence = :s", s=sequence)
        return None if row is None else str(row[0])

    def append(self, entry: Entry) -> None:
        """Write an entry after the last one and make it the last one."""
        self.change(_APPEND, **vars(entry))
        self.change(
            "UPDATE expost_head SET sequence = :s, hash = :h WHERE place = 1",
            s=entry.sequence,
            h=entry.hash,
        )
        self.last = (entry.sequence, entry.hash)

    def entry(self, sequence: int) -> Entry | None:
        """Return the entry with this number, or None."""
        row = self.first(f"SELECT {_COLUMNS} FROM expost_entries WHERE sequence = :s", s=sequence)
        return None if row is None else Entry(*row)

    def entries(self, after: int | None = None, limit: int = 10_000) -> list[Entry]:
        """Return up to ``limit`` entries in order: those after number ``after``, or the first."""
        where, values = (
            ("", {}) if after is None else ("WHERE sequence > :after ", {"after": after})
        )
        statement = f"SELECT {_COLUMNS} FROM expost_entries {where}ORDER BY sequence LIMIT :limit"
        return [Entry(*row) for row in self.all(statement, limit=limit, **values)]
