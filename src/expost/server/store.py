"""Transactions on the tables of a desk, on SQLite or PostgreSQL.

Commits are durable before they return (SQLite: write-ahead log with synchronous=FULL; PostgreSQL:
synchronous_commit=on). On SQLite, writers of one process that wait together are committed
together, and writers of several processes follow one another in the order of a lock on a file
beside the database: SQLite itself lets a writer sleep up to 0.1 s between two looks at its lock.
The write-ahead log is copied into the database by :meth:`DeskStore.tidy`, outside of requests.
Changes that must happen once are conditional updates; their row counts say who made them.
Tests: ``tests/server/test_store.py``.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path
from typing import Any, Generic, TypeVar

from expost.budget.database_file import DatabaseFile
from expost.errors import LedgerError, MissingExtra

try:
    import sqlalchemy as sql
except ImportError:
    raise MissingExtra("SQLAlchemy", "sql") from None

from expost.server import tables

BUSY_SECONDS = 60
_LARGEST_BATCH = 128
_LOG_PAGES = 1000  # of the write-ahead log, from which on it is copied into the database
_LONGEST_LOG = 50_000  # from which on a request copies it, if nobody calls tidy

Result = TypeVar("Result")
Work = Callable[[sql.Connection], Result]


class _Waiting(Generic[Result]):
    """One piece of work in the queue of writers."""

    def __init__(self, work: Work[Result]) -> None:
        self.work = work
        self.done = False
        self.result: Result | None = None
        self.error: BaseException | None = None


class DeskStore:
    """The database of a desk.

    Parameters
    ----------
    url : str
        An SQLAlchemy URL of SQLite or PostgreSQL.
    """

    def __init__(self, url: str) -> None:
        self.backend = "sqlite" if url.startswith("sqlite") else "postgresql"
        self._queue: deque[_Waiting[Any]] = deque()
        self._leading = threading.RLock()
        self._turns: DatabaseFile | None = None
        self._log: Path | None = None
        self._readers, self._writers = self._engines(url)
        self._create()

    def _engines(self, url: str) -> tuple[sql.Engine, sql.Engine]:
        """One engine for readers and one for writers, who take the lock when they begin."""
        if self.backend == "postgresql":
            engine = sql.create_engine(url, pool_size=8, max_overflow=24, pool_pre_ping=True)
            return engine, engine
        path = Path(sql.make_url(url).database or "")
        turns = path.with_name(f"{path.name}.lock")
        for each in (path, turns):
            if not each.exists():
                os.close(os.open(each, os.O_CREAT | os.O_RDWR, 0o600))
        self._turns, self._log = DatabaseFile.open(turns), path.with_name(f"{path.name}-wal")
        made = []
        for begin, size in (("BEGIN", 16), ("BEGIN IMMEDIATE", 1)):
            engine = sql.create_engine(
                url, pool_size=size, max_overflow=64, connect_args={"timeout": BUSY_SECONDS}
            )
            sql.event.listen(engine, "connect", _configure)
            sql.event.listen(engine, "begin", _beginning(begin))
            made.append(engine)
        return made[0], made[1]

    def _create(self) -> None:
        """Make the tables if they are missing; refuse those of another version."""

        def work(connection: sql.Connection) -> str:
            if self.backend == "postgresql":
                connection.execute(sql.text("SELECT pg_advisory_xact_lock(7228401)"))
            tables.metadata.create_all(connection)
            kept = tables.facts
            found = connection.scalar(sql.select(kept.c.value).where(kept.c.name == "schema"))
            if found is None:
                connection.execute(kept.insert().values(name="schema", value=str(tables.SCHEMA)))
            return found or str(tables.SCHEMA)

        try:
            found = self.write(work)
        except sql.exc.SQLAlchemyError as error:
            raise LedgerError(
                f"the desk's database could not be used ({type(error).__name__})"
            ) from None
        if found != str(tables.SCHEMA):
            raise LedgerError(
                f"the desk has schema {found}, but this version of expost uses {tables.SCHEMA}"
            )

    def read(self, work: Work[Result]) -> Result:
        """Run ``work`` in a transaction that only reads."""
        with self._readers.begin() as connection:
            return work(connection)

    def rows(self, statement: Any) -> list[dict[str, Any]]:
        """Return the rows of a query as dicts."""
        return self.read(
            lambda connection: [dict(row) for row in connection.execute(statement).mappings()]
        )

    def row(self, statement: Any) -> dict[str, Any] | None:
        """Return the first row of a query, or None."""
        found = self.rows(statement)
        return found[0] if found else None

    def write(self, work: Work[Result]) -> Result:
        """Run ``work`` in a transaction and return its result when it is durable.

        A piece of work that raises an error changes nothing, and its error is raised here.
        """
        if self.backend == "postgresql":
            with self._writers.begin() as connection:
                return work(connection)
        waiting = _Waiting(work)
        self._queue.append(waiting)
        with self._leading:
            while not waiting.done:
                self._together()
        if waiting.error is not None:
            raise waiting.error
        return waiting.result  # type: ignore[return-value]

    def change(self, statement: Any) -> int:
        """Run one statement that writes, and return how many rows it changed."""
        return self.write(lambda connection: int(connection.execute(statement).rowcount))

    def _turn(self) -> AbstractContextManager[None]:
        """The place in the queue of processes that write."""
        if self._turns is None:
            return nullcontext()
        return self._turns.locked(alone=True, seconds=BUSY_SECONDS)

    def _waiting(self) -> list[_Waiting[Any]]:
        """Take the work that waits, in the order in which it came."""
        count = min(len(self._queue), _LARGEST_BATCH)
        return [self._queue.popleft() for _ in range(count)]

    def _together(self) -> None:
        """Run the waiting work in one transaction; an error of the commit is an error of it all."""
        batch: list[_Waiting[Any]] = []
        try:
            with self._turn(), self._writers.begin() as connection:
                batch = self._waiting()  # after the lock: those who came meanwhile take part
                if len(batch) == 1:
                    batch[0].result = batch[0].work(connection)
                    return
                for each in batch:
                    try:
                        with connection.begin_nested():
                            each.result = each.work(connection)
                    except Exception as error:
                        each.error = error
        except BaseException as error:
            batch = batch or self._waiting()
            for each in batch:
                each.error = each.error or error
            if not isinstance(error, Exception):
                raise
        finally:
            for each in batch:
                each.done = True

    def tidy(self) -> None:
        """Copy a long write-ahead log into the database, while others read and write (SQLite)."""
        try:
            if self._log is None or self._log.stat().st_size < _LOG_PAGES * 4096:
                return
        except FileNotFoundError:
            return
        with closing(self._readers.raw_connection()) as connection:  # outside of a transaction
            connection.cursor().execute("PRAGMA wal_checkpoint(PASSIVE)")

    def close(self) -> None:
        """Close idle connections."""
        self._readers.dispose()
        self._writers.dispose()


def _configure(connection: Any, _: Any) -> None:
    """Durable commits; transactions begin when we say so."""
    connection.isolation_level = None
    cursor = connection.cursor()
    for setting in (
        "journal_mode = WAL",
        "synchronous = FULL",
        f"wal_autocheckpoint = {_LONGEST_LOG}",
        f"busy_timeout = {BUSY_SECONDS * 1000}",
        "foreign_keys = ON",
        "trusted_schema = OFF",
    ):
        cursor.execute(f"PRAGMA {setting}")
    cursor.close()


def _beginning(statement: str) -> Callable[[sql.Connection], None]:
    """The listener that begins a transaction on SQLite."""

    def begin(connection: sql.Connection) -> None:
        connection.exec_driver_sql(statement)

    return begin
