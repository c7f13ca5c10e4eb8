"""The SQL behind the ledger: one file of SQLite, or one PostgreSQL schema. Knows rows, not privacy.

Every write happens inside :meth:`Store.writing`: one transaction that first takes the ledger's only lock (SQLite: BEGIN IMMEDIATE;
PostgreSQL: the head row FOR UPDATE), so writers follow one another and each sees all that came before. Commits are durable before they
return (SQLite: WAL with synchronous=FULL; PostgreSQL: synchronous_commit=on).
"""

from __future__ import annotations

import os
import re
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

from expost.budget.hash_chain import GENESIS, Entry
from expost.errors import LedgerError, MissingExtra

SCHEMA_VERSION = 1
_BUSY_SECONDS = 120

_TABLES = (
    "CREATE TABLE expost_meta (name VARCHAR(40) PRIMARY KEY, value TEXT NOT NULL)",
    "CREATE TABLE expost_head (place INTEGER PRIMARY KEY, sequence BIGINT NOT NULL, hash CHAR(64) NOT NULL)",
    "CREATE TABLE expost_totals (budget VARCHAR(200) NOT NULL, analyst VARCHAR(200) NOT NULL, terms TEXT NOT NULL, "
    "settled TEXT NOT NULL, held TEXT NOT NULL, PRIMARY KEY (budget, analyst))",
    "CREATE TABLE expost_reservations (id VARCHAR(64) PRIMARY KEY, budget VARCHAR(200) NOT NULL, analyst VARCHAR(200) NOT NULL, "
    "status VARCHAR(20) NOT NULL, worst TEXT NOT NULL, charges TEXT NOT NULL, outcome TEXT)",
    "CREATE TABLE expost_entries (sequence BIGINT PRIMARY KEY, time VARCHAR(40) NOT NULL, action VARCHAR(20) NOT NULL, "
    "budget VARCHAR(200) NOT NULL, analyst VARCHAR(200) NOT NULL, reservation VARCHAR(64) NOT NULL, detail TEXT NOT NULL, "
    "memo TEXT NOT NULL, previous CHAR(64) NOT NULL, hash CHAR(64) NOT NULL)",
)
_NAMES = tuple(field.name for field in fields(Entry))
_COLUMNS = ", ".join(_NAMES)
_APPEND = (
    f"INSERT INTO expost_entries ({_COLUMNS}) VALUES ({', '.join(f':{name}' for name in _NAMES)})"
)
_SCHEME = re.compile(r"(postgres|sqlite)\w*(\+\w+)?:|[^/]*:.*@", re.IGNORECASE | re.DOTALL)
_DRIVERS = ("sqlite", "sqlite+pysqlite", "postgresql", "postgresql+psycopg")
_MARK = re.compile(r":(\w+)")


def _sqlalchemy() -> Any:
    try:
        import sqlalchemy
    except ImportError:
        raise MissingExtra("sqlalchemy", "sql") from None
    return sqlalchemy


def _parse(sql: Any, url: str | Path) -> Any:
    """A database URL; a bare path means a SQLite file, unless it looks like a URL that was mistyped: that may hold a password."""
    text = os.fspath(url)
    if "\x00" in text or (
        _SCHEME.match(text) and "://" not in text
    ):  # what is meant for a URL is not taken for a file
        raise ValueError
    if "://" not in text:
        return sql.engine.URL.create("sqlite", database=text)
    if not text.isprintable() or text.partition("://")[2].partition("/")[0].count("@") > 1:
        raise ValueError  # an @ in a password is %40, or its second half would pass for the host, and be shown
    text = text.replace("postgresql://", "postgresql+psycopg://", 1).replace(
        "postgres://", "postgresql+psycopg://", 1
    )
    return sql.engine.make_url(text)


_STORES: weakref.WeakSet[Store] = weakref.WeakSet()


def _before_fork() -> None:
    """A child inherits what SQLite's library remembers of its locks, but not the locks: let no connection be open across a fork."""
    for store in list(_STORES):
        store.close()


os.register_at_fork(before=_before_fork)


class Store:
    """A connection to the ledger's tables. Safe after a fork: a child opens connections of its own."""

    def __init__(self, url: str | Path) -> None:
        self.sql = _sqlalchemy()
        try:
            self.url = _parse(self.sql, url)
        except (
            self.sql.exc.ArgumentError,
            ValueError,
        ):  # the text may hold a password: it is not repeated
            raise LedgerError(
                "this is not a database URL; give a file name, sqlite:///file or postgresql://…"
            ) from None
        self.backend = self.url.get_backend_name()
        if self.backend not in ("sqlite", "postgresql"):
            raise LedgerError(
                f"{self.backend} databases are not supported; give a file name, sqlite:///file or postgresql://…"
            )
        if self.url.drivername not in _DRIVERS:
            raise LedgerError(
                f"{self.url.drivername} is not supported; give sqlite:///file or postgresql://…, without a driver"
            )
        if self.backend == "sqlite" and (self.url.query or self.url.host or self.url.username):
            # uri=true would open another file than the one that is looked at
            raise LedgerError(
                "a SQLite ledger takes no host and no options after ?; give a file name or sqlite:///file"
            )
        self._engine: Any = None
        self._owner = 0
        _STORES.add(self)

    @property
    def file(self) -> Path | None:
        """The SQLite file, if it is one."""
        if self.backend != "sqlite":
            return None
        if not self.url.database or self.url.database == ":memory:":
            raise LedgerError("a ledger in memory would not survive its process; give a file name")
        return Path(self.url.database)

    @property
    def place(self) -> str:
        """Where the ledger is, without passwords (an option after ? may hold one, too)."""
        return str(self.url.set(query={}).render_as_string(hide_password=True))

    def _connect(self) -> Any:
        """A connection of the pool, with the driver's own methods; close it to give it back."""
        if self._engine is None or self._owner != os.getpid():
            if self._engine is not None:
                self._engine.dispose(close=False)
            self._engine, self._owner = self._make_engine(), os.getpid()
        return self._engine.raw_connection()

    def close(self) -> None:
        """Close idle connections; the next use opens others."""
        if self._engine is not None and self._owner == os.getpid():
            self._engine.dispose()

    def _make_engine(self) -> Any:
        """Connections without a limit: a thread waits for the ledger's lock, never for the pool."""
        try:
            if self.backend == "sqlite":
                waiting = {"timeout": _BUSY_SECONDS, "isolation_level": None}
                engine = self.sql.create_engine(self.url, connect_args=waiting, max_overflow=-1)
                self.sql.event.listen(engine, "connect", _prepare_sqlite)
                return engine
            return self.sql.create_engine(
                self.url, pool_pre_ping=True, isolation_level="READ COMMITTED", max_overflow=-1
            )
        except ImportError:
            raise MissingExtra("psycopg", "postgres") from None

    def exists(self) -> bool:
        """Whether a ledger is there; never creates a file."""
        if self.file is not None and (not self.file.exists() or self.file.stat().st_size == 0):
            return False
        with self.reading() as rows:
            return rows.has_tables()

    def create(self, fill: Callable[[LedgerRows], None]) -> None:
        """Make the tables and ``fill`` them, all or nothing; a SQLite file is created readable by its owner only."""
        if self.file is not None and not self.file.exists():
            try:
                os.close(os.open(self.file, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
            except OSError as error:
                raise LedgerError(f"cannot create {self.file}: {error.strerror}") from None
        with self.writing() as rows:
            if rows.has_tables():
                raise LedgerError("there is a ledger already; open it, or add a budget to it")
            for statement in _TABLES:
                number = (
                    "INTEGER" if self.backend == "sqlite" else "BIGINT"
                )  # SQLite: the row's own number, no second index
                rows.run(statement.replace("BIGINT PRIMARY", f"{number} PRIMARY"))
            rows.change(
                "INSERT INTO expost_meta VALUES ('schema', :version)", version=str(SCHEMA_VERSION)
            )
            rows.change("INSERT INTO expost_head VALUES (1, 0, :hash)", hash=GENESIS)
            fill(rows)

    def check_schema(self) -> None:
        """Refuse what is not a ledger of this version."""
        if not self.exists():
            raise LedgerError(
                f"there is no ledger at {ascii(str(self.file)) if self.file else self.place}; make one with: expost ledger create"
            )
        with self.reading() as rows:
            found = str(rows.one("SELECT value FROM expost_meta WHERE name = 'schema'")[0])
        if not found.isdecimal():
            raise LedgerError(f"the ledger is damaged: its schema is {found!r}")
        if int(found) > SCHEMA_VERSION:
            raise LedgerError(
                f"the ledger has schema {found}, this expost knows {SCHEMA_VERSION}; install a newer expost"
            )
        if int(found) < SCHEMA_VERSION:
            raise LedgerError(
                f"the ledger has schema {found}; migrate it to {SCHEMA_VERSION} first"
            )

    @contextmanager
    def reading(self) -> Iterator[LedgerRows]:
        """A consistent view for reading."""
        with (
            self._guard(),
            closing(self._connect()) as connection,
        ):  # giving it back ends the transaction
            rows = LedgerRows(self.backend, connection)
            rows.run(
                "BEGIN"
                if self.backend == "sqlite"
                else "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"
            )
            yield rows

    @contextmanager
    def writing(self) -> Iterator[LedgerRows]:
        """One transaction, alone in the ledger; committed durably at the end, or not at all."""
        with self._guard(), closing(self._connect()) as connection:
            rows = LedgerRows(self.backend, connection)
            rows.run(
                "BEGIN IMMEDIATE"
                if self.backend == "sqlite"
                else "SET LOCAL synchronous_commit = on"
            )
            try:
                yield rows
            except BaseException:
                connection.rollback()
                raise
            self._commit(connection)

    def _commit(self, connection: Any) -> None:
        """Durable when this returns; an error says whether it can be known that nothing was recorded."""
        try:
            connection.commit()
        except self._driver_errors() as error:
            if not getattr(connection.dbapi_connection, "closed", False):
                raise
            raise LedgerError(
                f"the connection to the ledger was lost while it was written ({_first_line(error)}): "
                "ask again with the same reservation id, or look whether it was recorded"
            ) from error

    def _driver_errors(self) -> tuple[type[Exception], ...]:
        return () if self._engine is None else (self._engine.dialect.loaded_dbapi.Error,)

    @contextmanager
    def _guard(self) -> Iterator[None]:
        """Database errors as LedgerError: what happened, and that nothing was charged."""
        try:
            yield
        except self._driver_errors() as error:
            raise LedgerError(
                f"the ledger could not be used: {_first_line(error)}; the request was not recorded"
            ) from error
        except UnicodeDecodeError as error:  # SQLite quotes what it cannot read
            raise LedgerError(
                "the ledger is damaged: the database file holds bytes that are no text"
            ) from error


def _first_line(error: object) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


class LedgerRows:
    """Reading and writing rows inside one transaction. Statements have ``:name`` marks and go straight to the driver."""

    def __init__(self, backend: str, connection: Any) -> None:
        self._backend = backend
        self._cursor = connection.cursor()

    def run(self, statement: str, **values: Any) -> Any:
        self._cursor.execute(
            statement if self._backend == "sqlite" else _MARK.sub(r"%(\1)s", statement), values
        )
        return self._cursor

    def all(self, statement: str, **values: Any) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = self.run(statement, **values).fetchall()
        return found

    def first(self, statement: str, **values: Any) -> tuple[Any, ...] | None:
        found = self.all(statement, **values)
        return found[0] if found else None

    def one(self, statement: str, **values: Any) -> tuple[Any, ...]:
        found = self.first(statement, **values)
        if found is None:
            raise LedgerError("the ledger is damaged: a row is missing; run: expost ledger verify")
        return found

    def change(self, statement: str, **values: Any) -> None:
        """Write exactly one row; a row that is not found (a damaged index, say) must not pass for a charge that was written."""
        if self.run(statement, **values).rowcount != 1:
            raise LedgerError(
                "the ledger is damaged: a row could not be written; run: expost ledger verify"
            )

    def has_tables(self) -> bool:
        """Whether there is a ledger, of whatever schema."""
        look = "SELECT name FROM sqlite_master WHERE name = 'expost_meta'"
        return (
            self.one(
                f"SELECT ({look})"
                if self._backend == "sqlite"
                else "SELECT to_regclass('expost_meta')"
            )[0]
            is not None
        )

    def damage(self) -> Iterator[str]:
        """What the database itself finds wrong with its file (SQLite: pages and indexes)."""
        if self._backend == "sqlite":
            found = [str(row[0]) for row in self.all("PRAGMA integrity_check")]
            yield from (f"file: {problem}" for problem in found if problem != "ok")

    def lock_head(self) -> tuple[int, str]:
        """The last entry's number and hash; from here on no other writer can move it."""
        lock = " FOR UPDATE" if self._backend == "postgresql" else ""
        sequence, last = self.one(f"SELECT sequence, hash FROM expost_head WHERE place = 1{lock}")
        return int(sequence), str(last)

    def append(self, entry: Entry) -> None:
        """Write an entry behind the head."""
        self.change(_APPEND, **vars(entry))
        self.change(
            "UPDATE expost_head SET sequence = :s, hash = :h WHERE place = 1",
            s=entry.sequence,
            h=entry.hash,
        )

    def entries(self, after: int | None = None, limit: int = 10_000) -> list[Entry]:
        """Entries in order, a page at a time: those behind ``after``, or the first."""
        where, values = (
            ("", {}) if after is None else ("WHERE sequence > :after ", {"after": after})
        )
        statement = f"SELECT {_COLUMNS} FROM expost_entries {where}ORDER BY sequence LIMIT :limit"
        return [Entry(*row) for row in self.all(statement, limit=limit, **values)]


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}")
