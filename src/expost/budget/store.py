"""The transactions of a ledger, on SQLite or PostgreSQL. Nothing here knows privacy.

Every write first takes the only lock of the ledger (SQLite: the lock of
:mod:`expost.budget.database_file`, then BEGIN IMMEDIATE; PostgreSQL: the head row FOR UPDATE, with
a time limit). Writers therefore follow one another, and each sees everything written before it.
Commits are durable before they return (SQLite: rollback journal with synchronous=EXTRA;
PostgreSQL: synchronous_commit=on). Writers of one process that wait together are committed together
(:class:`GroupCommit`): the first of them takes the lock, and then runs the work of all who came
until then, in their order, in one transaction.

A child that is forked inherits the memory of its parent, but neither its threads nor its locks: a
transaction that another thread had begun would stay half finished, and closing its connection could
disturb the parent's. So a fork waits (:class:`ForkGuard`).

A store remembers the last entry that it read or wrote, and refuses a database in which that entry
is not there any more: an older copy took its place.

Tests: ``tests/budget/test_ledger.py``, ``tests/budget/test_concurrency.py``,
``tests/budget/test_crashes.py``, ``tests/budget/test_restored_copies.py``.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, Generic, TypeVar

from expost.budget.database_file import DatabaseFile, Location, token
from expost.budget.ledger_rows import SCHEMA_VERSION, LedgerRows
from expost.errors import ExpostError, LedgerError, MissingExtra
from expost.files import on_fork

_LARGEST_BATCH = 128
_LONGEST_WAIT = 150.0  # seconds; longer than any transaction waits for its lock

Connection = TypeVar("Connection")
Result = TypeVar("Result")
Begin = Callable[[], AbstractContextManager[Connection]]


class PendingWrite(Generic[Connection]):
    """A piece of a transaction, and what became of it."""

    def __init__(self, work: Callable[[Connection], Any]) -> None:
        self.work = work
        self.done = False
        self.error: BaseException | None = None
        self.result: Any = None


class GroupCommit(Generic[Connection]):
    """A queue of writers whose work is committed together.

    ``savepoint`` opens a part of a transaction that can be undone. An error of the type
    ``own_errors`` undoes its own piece of work only.
    """

    def __init__(
        self,
        savepoint: Callable[[Connection], AbstractContextManager[object]],
        own_errors: type[Exception],
    ) -> None:
        self._savepoint, self._own_errors = savepoint, own_errors
        self.queue: deque[PendingWrite[Connection]] = deque()
        self.leading = threading.RLock()

    def write(self, work: Callable[[Connection], Result], begin: Begin[Connection]) -> Result:
        """Run ``work`` in a transaction and return its result when it is durable.

        ``begin`` opens a transaction that excludes other writers. Each piece of work sees the
        changes of those before it. A piece that raises an error changes nothing, and its error is
        raised in its own thread, after the others are durable.
        """
        pending = PendingWrite(work)
        self.queue.append(pending)
        with self.leading:
            while not pending.done:
                self._run_together(begin)
        if pending.error is not None:
            raise pending.error
        result: Result = pending.result
        return result

    def _run_together(self, begin: Begin[Connection]) -> None:
        """Run the waiting work in one transaction; an error of it is an error of them all."""
        batch: list[PendingWrite[Connection]] = []
        try:
            with begin() as connection:
                batch = self._waiting()  # after the lock: those who came meanwhile take part
                for pending in batch:
                    self.run_one(connection, pending, alone=len(batch) == 1)
        except Exception as error:
            # Nothing was recorded, so that even a refusal may have rested on a state that is gone.
            batch = batch or self._waiting()
            for pending in batch:
                shared = len(batch) > 1 and isinstance(error, ExpostError)
                pending.error = LedgerError(str(error)) if shared else error
        except BaseException:
            # The others cannot know whether an interrupted commit was recorded.
            batch = batch or self._waiting()
            for pending in batch:
                pending.error = LedgerError(
                    "the write was interrupted: repeat the request with the same reservation id "
                    "and secret, or look whether it was recorded"
                )
            raise
        finally:
            for pending in batch:
                pending.done = True

    def run_one(
        self, connection: Connection, pending: PendingWrite[Connection], *, alone: bool
    ) -> None:
        """Run one piece of a transaction; if it fails, undo this piece only."""
        if alone:
            pending.result = pending.work(connection)
            return
        try:
            with self._savepoint(connection):
                pending.result = pending.work(connection)
        except self._own_errors as error:
            pending.error = error

    def _waiting(self) -> list[PendingWrite[Connection]]:
        """Take the work that waits, in the order in which it came."""
        count = min(len(self.queue), _LARGEST_BATCH)
        return [self.queue.popleft() for _ in range(count)]


class ForkGuard:
    """Counts the transactions of each thread of this process; a fork waits for them."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._running: Counter[int] = Counter()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Count a transaction while the block runs."""
        me = threading.get_ident()
        with self._changed:
            self._running[me] += 1
        try:
            yield
        finally:
            with self._changed:
                self._running[me] -= 1
                if not self._running[me]:
                    del self._running[me]
                self._changed.notify_all()

    def before_fork(self) -> None:
        """Wait for the transactions of other threads, and let no new one begin."""
        self._changed.acquire()
        me = threading.get_ident()
        self._changed.wait_for(lambda: set(self._running) <= {me}, _LONGEST_WAIT)

    def after_in_parent(self) -> None:
        """Let transactions begin again."""
        self._changed.release()

    def after_in_child(self) -> None:
        """Start anew: the other threads do not exist here."""
        self._changed = threading.Condition()
        self._running = Counter()


BUSY_SECONDS = 120.0
"""How long a request waits for other writers before it gives up (SQLite)."""
SERVER_SECONDS = 30.0
"""The same for PostgreSQL, where a writer holds its lock for milliseconds."""

_STORES: weakref.WeakSet[Store] = weakref.WeakSet()
_FORK_GUARD = ForkGuard()


def _before_fork() -> None:
    """Wait for transactions, then close all connections: a child must not inherit them."""
    _FORK_GUARD.before_fork()
    for store in list(_STORES):
        store.close()


def _after_fork_in_child() -> None:
    """Start anew in the child: it has no connections, locks or other threads."""
    _FORK_GUARD.after_in_child()
    DatabaseFile.forget_all()
    for store in list(_STORES):
        store.start_anew()


on_fork(
    before=_before_fork,
    after_in_parent=_FORK_GUARD.after_in_parent,
    after_in_child=_after_fork_in_child,
)


class Store:
    """A connection to the tables of a ledger; safe after a fork: a child opens its own.

    No message repeats the URL, which may hold a password.
    """

    def __init__(self, url: str | os.PathLike[str], *, read_only: bool = False) -> None:
        self.location = Location(url)
        self.backend = self.location.backend
        self.read_only = read_only
        self._engine: Any = None
        self._file: DatabaseFile | None = None
        self._seen: tuple[int, str] = (0, "")  # number and hash of the last entry that was seen
        self._stamp = (0, 0)
        self.start_anew()
        _STORES.add(self)

    def start_anew(self) -> None:
        """Forget all connections without closing them (in a child that was forked)."""
        if self._engine is not None:
            self._engine.dispose(close=False)
        self._engine = self._file = None
        self._commits = GroupCommit(LedgerRows.savepoint, ExpostError)

    def close(self) -> None:
        """Close idle connections. The next use opens new ones."""
        if self._engine is not None:
            self._engine.dispose()

    def exists(self) -> bool:
        """Return whether there is a ledger. This never creates a file."""
        path = self.location.path
        if path is not None and (not path.exists() or path.stat().st_size == 0):
            return False
        with self.reading(any_journal=True) as rows:
            return rows.has_tables()

    def create(self, fill: Callable[[LedgerRows], None]) -> None:
        """Make the tables and call ``fill`` on them in one transaction.

        A SQLite file is created with access for its owner only.
        """
        self.location.touch()
        with self.writing() as rows:
            if rows.has_tables():
                raise LedgerError(
                    "there is a ledger already; use it, or add a budget to it (create --add)"
                )
            rows.create_tables()
            fill(rows)

    def check_schema(self) -> None:
        """Raise LedgerError unless there is a ledger with the schema of this version."""
        if not self.exists():
            file, address = self.location.file, self.location.address
            where = ascii(str(file)) if file else address
            raise LedgerError(f"there is no ledger at {where}; make one with: expost ledger create")
        with self.reading(any_journal=True) as rows:
            schema = rows.schema()
            self._seen = max(self._seen, rows.read_last())
        if schema > SCHEMA_VERSION:
            raise LedgerError(
                f"the ledger has schema {schema}, but this version of expost reads schema "
                f"{SCHEMA_VERSION}; install a newer expost"
            )
        if schema < SCHEMA_VERSION:
            raise LedgerError(
                f"the ledger has schema {schema}; migrate it to schema {SCHEMA_VERSION} with: "
                "expost ledger upgrade (a copy is kept)"
            )
        self.check_writable()

    def check_writable(self) -> None:
        """Finish what a crash under this name left behind, so that other names can be used."""
        file, path = self._database_file(), self.location.path
        if file is None or path is None or self.read_only or file.marker() != token(path):
            return
        if not os.access(path, os.W_OK):
            return
        with self.writing():
            pass

    def recover(
        self, path: Path, journal: Path, problems_of: Callable[[LedgerRows], list[str]]
    ) -> None:
        """Accept the file as it is, without any journal, if ``problems_of`` finds nothing."""
        file = self._database_file()
        assert file is not None
        with (
            _FORK_GUARD.transaction(),
            self._guard(),
            file.locked(alone=True, seconds=BUSY_SECONDS),
        ):
            file.check_name(path)
            # An immutable file is read without looking for a journal.
            uri = f"{path.as_uri()}?mode=ro&immutable=1"
            with closing(sqlite3.connect(uri, uri=True)) as connection:
                problems = problems_of(LedgerRows(self.backend, connection))
            if problems:
                raise LedgerError(
                    "the last write left the file unfinished; open the ledger once under the name "
                    f"that was used then ({problems[0]})"
                )
            # The file holds every entry that was acknowledged, so that no journal is needed.
            file.sync()
            journal.unlink(missing_ok=True)
            file.clear()
            file.sync()

    @contextmanager
    def reading(self, *, any_journal: bool = False, continued: bool = True) -> Iterator[LedgerRows]:
        """Open a transaction with a consistent view for reading.

        ``any_journal`` accepts a file of any schema, and ``continued`` False one that does not
        continue what was seen before.
        """
        seen = self._seen  # before the view is taken, which cannot be older
        # Closing returns the connection to the pool, which ends the transaction.
        with _FORK_GUARD.transaction(), self._guard(), ExitStack() as stack:
            if self.backend != "sqlite":
                connection = stack.enter_context(closing(self._connect()))
                rows = LedgerRows(self.backend, connection)
                rows.run("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            else:
                with self._locked_file(alone=False, any_journal=any_journal):
                    connection = stack.enter_context(closing(self._connect()))
                    rows = LedgerRows(self.backend, connection)
                    rows.run("BEGIN")
                    # SQLite takes its lock for reading at the first read, not at BEGIN.
                    rows.run("SELECT COUNT(*) FROM sqlite_master").fetchall()
            if continued and not any_journal:
                self._require_continued(rows, seen)
                self._seen = max(self._seen, rows.read_last())
            yield rows

    @contextmanager
    def writing(self) -> Iterator[LedgerRows]:
        """Open a transaction that excludes other writers; it commits durably or not at all."""
        if self.read_only:
            raise LedgerError("the ledger was opened for reading only")
        seen = self._seen
        with _FORK_GUARD.transaction(), self._guard():
            begin = self._writing_file if self.backend == "sqlite" else self._writing_server
            with begin() as rows:
                self._require_continued(rows, seen)
                yield rows
            self._seen = max(self._seen, rows.last)

    def write(self, work: Callable[[LedgerRows], Result]) -> Result:
        """Run ``work`` in a transaction and return its result when it is durable."""
        return self._commits.write(work, self._writing_at_head)

    @contextmanager
    def _writing_at_head(self) -> Iterator[LedgerRows]:
        """Open a transaction that already holds the lock of the ledger."""
        with self.writing() as rows:
            rows.lock_head()
            yield rows

    @contextmanager
    def _writing_file(self) -> Iterator[LedgerRows]:
        """A write transaction on a SQLite file."""
        path = self.location.path
        assert path is not None
        with self._locked_file(alone=True) as file, closing(self._connect()) as connection:

            def mark() -> None:
                file.mark(path)
                # The commit writes the header, too; the marker must still be in it.
                connection.cursor().execute(f"PRAGMA user_version = {token(path)}")

            unfinished = file.marker() != 0
            rows = LedgerRows(self.backend, connection, mark)
            rows.run("BEGIN IMMEDIATE")  # rolls back what a crash under this name left behind
            try:
                yield rows
            except BaseException:
                connection.rollback()
                if rows.changed:
                    file.clear()
                raise
            # After a failed commit the marker stays: a journal may be left beside this name.
            connection.commit()
            if rows.changed or unfinished:
                file.clear()

    @contextmanager
    def _locked_file(self, *, alone: bool, any_journal: bool = False) -> Iterator[DatabaseFile]:
        """Hold the lock of the SQLite file, and check that the file may be used."""
        file, path = self._database_file(), self.location.path
        assert file is not None
        assert path is not None
        with file.locked(alone=alone, seconds=BUSY_SECONDS):
            file.check_name(path)
            if file.in_wal_mode():
                if not any_journal:
                    raise LedgerError(
                        "the ledger could not be used: its file uses a write-ahead log, as ledgers "
                        "of expost 0.1 do; run: expost ledger upgrade"
                    )
            else:
                file.check_journal(path)
            # SQLite keeps pages while a counter in the file is the one it knows. If the counter
            # went back, a connection may know it from another history: use new connections.
            stamp = file.stamp()
            if stamp[0] <= self._stamp[0] and stamp != self._stamp:
                self.close()
            try:
                yield file
            finally:
                self._stamp = file.stamp()

    def rolled_back(self, rows: LedgerRows, seen: tuple[int, str] | None = None) -> str | None:
        """Say that an entry that was seen is gone: an older copy took the ledger's place."""
        sequence, last = self._seen if seen is None else seen
        if sequence == 0 or rows.hash_of(sequence) == last:
            return None
        return (
            f"it no longer has entry {sequence}, which was in it before (an older copy was put in "
            "its place while it was open)"
        )

    def _require_continued(self, rows: LedgerRows, seen: tuple[int, str]) -> None:
        """Refuse a ledger that does not continue what was seen in it."""
        problem = self.rolled_back(rows, seen)
        if problem is not None:
            raise LedgerError(
                f"the ledger could not be used: {problem}; put the newest copy back, because what "
                "was charged later is not in this one. The request was not recorded"
            )

    def _database_file(self) -> DatabaseFile | None:
        """The open SQLite file; None for other databases."""
        if self._file is None and self.location.path is not None:
            self._file = DatabaseFile.open(self.location.path)
        return self._file

    @contextmanager
    def _writing_server(self) -> Iterator[LedgerRows]:
        """A write transaction on a PostgreSQL server."""
        with closing(self._connect()) as connection:
            rows = LedgerRows(self.backend, connection)
            rows.run("SET LOCAL synchronous_commit = on")
            rows.run(f"SET LOCAL lock_timeout = {int(SERVER_SECONDS * 1000)}")
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
                "repeat the request with the same reservation id and secret, or look whether it "
                "was recorded"
            ) from error

    def _connect(self) -> Any:
        """A connection of the pool, with the methods of the driver; closing it returns it."""
        if self._engine is None:
            self._engine = self._make_engine()
        return self._engine.raw_connection()

    def _make_engine(self) -> Any:
        """An engine whose pool has no limit: threads wait for the lock of the ledger only."""
        sql = self.location.sql
        try:
            if self.backend == "sqlite":
                return sql.create_engine(
                    self.location.url, creator=self._connect_file, max_overflow=-1
                )
            return sql.create_engine(
                self.location.url,
                pool_pre_ping=True,
                isolation_level="READ COMMITTED",
                pool_size=4,  # a server grants a hundred connections in all
                max_overflow=4,
                pool_timeout=60,
            )
        except ImportError:
            raise MissingExtra("psycopg", "postgres") from None

    def _connect_file(self) -> sqlite3.Connection:
        """A new connection to the SQLite file; it never creates or converts a file."""
        path = self.location.path
        assert path is not None
        mode = "ro" if self.read_only else "rw"
        connection = sqlite3.connect(
            f"{path.as_uri()}?mode={mode}",
            uri=True,
            timeout=BUSY_SECONDS,
            isolation_level=None,
            check_same_thread=False,
        )
        file = self._database_file()
        pragmas = ["synchronous=EXTRA", "foreign_keys=ON", "cache_spill=OFF"]
        if self.read_only:
            pragmas.append("query_only=ON")
        elif file is None or not file.in_wal_mode():  # only a connection's setting, not the file's
            pragmas.append("journal_mode=TRUNCATE")
        for pragma in pragmas:
            connection.execute(f"PRAGMA {pragma}")
        return connection

    def _driver_errors(self) -> tuple[type[Exception], ...]:
        """The errors of the database driver that is in use, and of SQLAlchemy."""
        errors: tuple[type[Exception], ...] = (self.location.sql.exc.SQLAlchemyError, sqlite3.Error)
        return (
            errors if self._engine is None else (*errors, self._engine.dialect.loaded_dbapi.Error)
        )

    @contextmanager
    def _guard(self) -> Iterator[None]:
        """Turn database errors into LedgerError, which states that nothing was recorded."""
        try:
            yield
        except self._driver_errors() as error:
            reason = _first_line(getattr(error, "orig", None) or error)
            if getattr(error, "sqlstate", None) == "55P03":
                reason = (
                    f"another transaction has locked it for {SERVER_SECONDS:.0f} s; if it is "
                    "stuck, find it in pg_stat_activity and end it"
                )
            raise LedgerError(
                f"the ledger could not be used: {reason}; the request was not recorded"
            ) from error
        except OSError as error:
            raise LedgerError(
                f"the ledger could not be used: {error.strerror}; the request was not recorded"
            ) from error
        except UnicodeDecodeError as error:  # SQLite's message quoted bytes that are not text
            raise LedgerError(
                "the ledger is damaged: the database file holds bytes that are not text"
            ) from error


def _first_line(error: object) -> str:
    """The first line of an error message, or the name of its type."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
