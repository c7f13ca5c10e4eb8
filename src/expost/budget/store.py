"""The SQL behind the ledger: a SQLite file or a PostgreSQL schema. Nothing here knows privacy.

Every write happens inside :meth:`Store.writing`: one transaction that first takes the only lock of
the ledger (SQLite: BEGIN IMMEDIATE; PostgreSQL: the head row FOR UPDATE). Writers therefore follow
one another, and each sees everything written before it. Commits are durable before they return
(SQLite: WAL with synchronous=FULL; PostgreSQL: synchronous_commit=on).
Tests: ``tests/budget/test_ledger.py``, ``tests/budget/test_concurrency.py``,
``tests/budget/test_crashes.py``, ``tests/fuzz/test_ledger_urls.py``.
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
    "CREATE TABLE expost_head (place INTEGER PRIMARY KEY, sequence BIGINT NOT NULL, "
    "hash CHAR(64) NOT NULL)",
    "CREATE TABLE expost_totals (budget VARCHAR(200) NOT NULL, analyst VARCHAR(200) NOT NULL, "
    "terms TEXT NOT NULL, settled TEXT NOT NULL, held TEXT NOT NULL, "
    "PRIMARY KEY (budget, analyst))",
    "CREATE TABLE expost_reservations (id VARCHAR(64) PRIMARY KEY, budget VARCHAR(200) NOT NULL, "
    "analyst VARCHAR(200) NOT NULL, status VARCHAR(20) NOT NULL, worst TEXT NOT NULL, "
    "charges TEXT NOT NULL, outcome TEXT)",
    "CREATE TABLE expost_entries (sequence BIGINT PRIMARY KEY, time VARCHAR(40) NOT NULL, "
    "action VARCHAR(20) NOT NULL, budget VARCHAR(200) NOT NULL, analyst VARCHAR(200) NOT NULL, "
    "reservation VARCHAR(64) NOT NULL, detail TEXT NOT NULL, memo TEXT NOT NULL, "
    "previous CHAR(64) NOT NULL, hash CHAR(64) NOT NULL)",
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
    """The sqlalchemy package, imported at first use."""
    try:
        import sqlalchemy
    except ImportError:
        raise MissingExtra("sqlalchemy", "sql") from None
    return sqlalchemy


def _parse(sql: Any, url: str | Path) -> Any:
    """A parsed database URL. A bare path means a SQLite file."""
    text = os.fspath(url)
    # A mistyped URL may hold a password, so it is not treated as a file name.
    if "\x00" in text or (_SCHEME.match(text) and "://" not in text):
        raise ValueError
    if "://" not in text:
        return sql.engine.URL.create("sqlite", database=text)
    # An unescaped @ in a password would make its second part the host, which messages show.
    if not text.isprintable() or text.partition("://")[2].partition("/")[0].count("@") > 1:
        raise ValueError
    text = text.replace("postgresql://", "postgresql+psycopg://", 1).replace(
        "postgres://", "postgresql+psycopg://", 1
    )
    return sql.engine.make_url(text)


_STORES: weakref.WeakSet[Store] = weakref.WeakSet()


def _before_fork() -> None:
    """Close all connections: a child inherits SQLite's record of its locks but not the locks."""
    for store in list(_STORES):
        store.close()


os.register_at_fork(before=_before_fork)


class Store:
    """A connection to the tables of a ledger.

    It is safe to use after a fork, because a child process opens its own connections.

    Parameters
    ----------
    url : str or Path
        A file name, ``sqlite:///file`` or ``postgresql://user@host/database``.

    Raises
    ------
    LedgerError
        The URL is not valid or names an unsupported database. The message does not repeat the URL,
        which may hold a password.
    """

    def __init__(self, url: str | Path) -> None:
        self.sql = _sqlalchemy()
        try:
            self.url = _parse(self.sql, url)
        except (self.sql.exc.ArgumentError, ValueError):
            # The URL may hold a password, so the message does not repeat it.
            raise LedgerError(
                "this is not a database URL; give a file name, sqlite:///file or postgresql://…"
            ) from None
        self.backend = self.url.get_backend_name()
        if self.backend not in ("sqlite", "postgresql"):
            raise LedgerError(
                f"{self.backend} databases are not supported; "
                "give a file name, sqlite:///file or postgresql://…"
            )
        if self.url.drivername not in _DRIVERS:
            raise LedgerError(
                f"{self.url.drivername} is not supported; "
                "give sqlite:///file or postgresql://…, without a driver"
            )
        if self.backend == "sqlite" and (self.url.query or self.url.host or self.url.username):
            # With uri=true SQLite would open another file than the one that was checked.
            raise LedgerError(
                "a SQLite ledger takes no host and no options after ?; "
                "give a file name or sqlite:///file"
            )
        self._engine: Any = None
        self._owner = 0
        _STORES.add(self)

    @property
    def file(self) -> Path | None:
        """The SQLite file, or None for other databases."""
        if self.backend != "sqlite":
            return None
        if not self.url.database or self.url.database == ":memory:":
            raise LedgerError("a ledger in memory would not survive its process; give a file name")
        return Path(self.url.database)

    @property
    def place(self) -> str:
        """The location of the ledger, without passwords and without options, which may hold one."""
        return str(self.url.set(query={}).render_as_string(hide_password=True))

    def _connect(self) -> Any:
        """A connection of the pool, with the methods of the driver; closing it returns it."""
        if self._engine is None or self._owner != os.getpid():
            if self._engine is not None:
                self._engine.dispose(close=False)
            self._engine, self._owner = self._make_engine(), os.getpid()
        return self._engine.raw_connection()

    def close(self) -> None:
        """Close idle connections. The next use opens new ones."""
        if self._engine is not None and self._owner == os.getpid():
            self._engine.dispose()

    def _make_engine(self) -> Any:
        """An engine whose pool has no limit: threads wait for the lock of the ledger only."""
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
        """Return whether there is a ledger. This never creates a file."""
        if self.file is not None and (not self.file.exists() or self.file.stat().st_size == 0):
            return False
        with self.reading() as rows:
            return rows.has_tables()

    def create(self, fill: Callable[[LedgerRows], None]) -> None:
        """Make the tables and call ``fill`` on them in one transaction.

        A SQLite file is created with access for its owner only.
        """
        if self.file is not None and not self.file.exists():
            try:
                os.close(os.open(self.file, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
            except OSError as error:
                raise LedgerError(f"cannot create {self.file}: {error.strerror}") from None
        with self.writing() as rows:
            if rows.has_tables():
                raise LedgerError("there is a ledger already; open it, or add a budget to it")
            # In SQLite an INTEGER key is the row number itself and needs no second index.
            number = "INTEGER" if self.backend == "sqlite" else "BIGINT"
            for statement in _TABLES:
                rows.run(statement.replace("BIGINT PRIMARY", f"{number} PRIMARY"))
            rows.change(
                "INSERT INTO expost_meta VALUES ('schema', :version)", version=str(SCHEMA_VERSION)
            )
            rows.change("INSERT INTO expost_head VALUES (1, 0, :hash)", hash=GENESIS)
            fill(rows)

    def check_schema(self) -> None:
        """Raise LedgerError unless there is a ledger with the schema of this version."""
        if not self.exists():
            place = ascii(str(self.file)) if self.file else self.place
            raise LedgerError(f"there is no ledger at {place}; make one with: expost ledger create")
        with self.reading() as rows:
            found = str(rows.one("SELECT value FROM expost_meta WHERE name = 'schema'")[0])
        if not found.isdecimal():
            raise LedgerError(
                f"the ledger is damaged: its schema is {found!r}, which is not a number"
            )
        if int(found) > SCHEMA_VERSION:
            raise LedgerError(
                f"the ledger has schema {found}, but this version of expost reads schema "
                f"{SCHEMA_VERSION}; install a newer expost"
            )
        if int(found) < SCHEMA_VERSION:
            raise LedgerError(
                f"the ledger has schema {found}; migrate it to {SCHEMA_VERSION} first"
            )

    @contextmanager
    def reading(self) -> Iterator[LedgerRows]:
        """Open a transaction with a consistent view for reading."""
        # Closing returns the connection to the pool, which ends the transaction.
        with self._guard(), closing(self._connect()) as connection:
            rows = LedgerRows(self.backend, connection)
            rows.run(
                "BEGIN"
                if self.backend == "sqlite"
                else "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"
            )
            yield rows

    @contextmanager
    def writing(self) -> Iterator[LedgerRows]:
        """Open a transaction that excludes other writers; it commits durably or not at all."""
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
        """Commit durably; an error states whether the transaction is known not to be recorded."""
        try:
            connection.commit()
        except self._driver_errors() as error:
            if not getattr(connection.dbapi_connection, "closed", False):
                raise
            raise LedgerError(
                f"the connection to the ledger was lost during a commit ({_first_line(error)}): "
                "repeat the request with the same reservation id, or look whether it was recorded"
            ) from error

    def _driver_errors(self) -> tuple[type[Exception], ...]:
        """The errors of the database driver that is in use."""
        return () if self._engine is None else (self._engine.dialect.loaded_dbapi.Error,)

    @contextmanager
    def _guard(self) -> Iterator[None]:
        """Turn database errors into LedgerError, which states that nothing was recorded."""
        try:
            yield
        except self._driver_errors() as error:
            raise LedgerError(
                f"the ledger could not be used: {_first_line(error)}; the request was not recorded"
            ) from error
        except UnicodeDecodeError as error:  # SQLite's message quoted bytes that are not text
            raise LedgerError(
                "the ledger is damaged: the database file holds bytes that are not text"
            ) from error


def _first_line(error: object) -> str:
    """The first line of an error message, or the name of its type."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


class LedgerRows:
    """Read and write rows inside one transaction.

    Statements name their parameters as ``:name`` and go directly to the driver.
    """

    def __init__(self, backend: str, connection: Any) -> None:
        self._backend = backend
        self._cursor = connection.cursor()

    def run(self, statement: str, **values: Any) -> Any:
        """Execute a statement and return the cursor."""
        self._cursor.execute(
            statement if self._backend == "sqlite" else _MARK.sub(r"%(\1)s", statement), values
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

    def has_tables(self) -> bool:
        """Return whether there is a ledger of any schema."""
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
        """Yield what the database itself finds wrong with its file (SQLite: pages and indexes)."""
        if self._backend == "sqlite":
            found = [str(row[0]) for row in self.all("PRAGMA integrity_check")]
            yield from (f"file: {problem}" for problem in found if problem != "ok")

    def lock_head(self) -> tuple[int, str]:
        """Return the number and hash of the last entry, and lock it against other writers."""
        lock = " FOR UPDATE" if self._backend == "postgresql" else ""
        sequence, last = self.one(f"SELECT sequence, hash FROM expost_head WHERE place = 1{lock}")
        return int(sequence), str(last)

    def append(self, entry: Entry) -> None:
        """Write an entry after the last one and make it the last one."""
        self.change(_APPEND, **vars(entry))
        self.change(
            "UPDATE expost_head SET sequence = :s, hash = :h WHERE place = 1",
            s=entry.sequence,
            h=entry.hash,
        )

    def entries(self, after: int | None = None, limit: int = 10_000) -> list[Entry]:
        """Return up to ``limit`` entries in order: those after number ``after``, or the first."""
        where, values = (
            ("", {}) if after is None else ("WHERE sequence > :after ", {"after": after})
        )
        statement = f"SELECT {_COLUMNS} FROM expost_entries {where}ORDER BY sequence LIMIT :limit"
        return [Entry(*row) for row in self.all(statement, limit=limit, **values)]


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    """Make a new SQLite connection durable."""
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}")
