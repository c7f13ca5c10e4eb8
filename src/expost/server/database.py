"""The tables of a server, and transactions on them, on SQLite or PostgreSQL.

Times are seconds since 1970 (UTC); documents are JSON text.

Commits are durable before they return (SQLite: write-ahead log with synchronous=FULL; PostgreSQL:
synchronous_commit=on). On SQLite, writers of one process that wait together are committed
together, and writers of several processes follow one another in the order of a lock on a file
beside the database: SQLite itself lets a writer sleep up to 0.1 s between two looks at its lock.
The write-ahead log is copied into the database by :meth:`ServerDatabase.tidy`, outside of requests.
Changes that must happen once are conditional updates; their row counts say who made them.

A new database gets the tables of ``metadata``; an older one is migrated by alembic when a server
starts, in one transaction, by the steps in ``migrations/versions``. Whoever changes a table adds a
step there and raises ``SCHEMA``.
Tests: ``tests/server/test_store.py``, ``tests/server/test_migrations.py``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

from expost.budget.database_file import DatabaseFile
from expost.budget.store import GroupCommit
from expost.errors import LedgerError, MissingExtra

try:
    import sqlalchemy as sql
except ImportError:
    raise MissingExtra("SQLAlchemy", "sql") from None

from sqlalchemy import (
    Boolean,
    Column,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

BUSY_SECONDS = 60
_LOG_PAGES = 1000  # of the write-ahead log, from which on it is copied into the database
_LONGEST_LOG = 50_000  # from which on a request copies it, if nobody calls tidy

Result = TypeVar("Result")
Work = Callable[[sql.Connection], Result]


SCHEMA = "0007"
_STEPS = Path(__file__).parent / "migrations"
_OLD_SERVER = (
    "this server was set up by expost 0.2: finish its questions with that version, then move "
    "desk.db away (PostgreSQL: drop the tables desk_*) and add people and data sets again; budgets "
    "and charges stay in the ledger"
)

_UNRELEASED = (
    "this server was set up by a version after expost 0.2 that was never released: make a new one; "
    "budgets and charges stay in the ledger"
)

metadata = MetaData()

schema_table = Table("server_schema", metadata, Column("version_num", String(32), primary_key=True))

facts = Table(
    "server_facts",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("value", Text, nullable=False),
)

people = Table(
    "server_people",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("role", String(16), nullable=False),
    Column("created", Float, nullable=False),
    Column("disabled", Boolean, nullable=False, default=False),
)

profiles = Table(
    "server_profiles",
    metadata,
    Column("person", String(64), primary_key=True),
    Column("mail", String(254), nullable=False, default=""),
    Column("groups", Text, nullable=False, default="[]"),
    Column("subject", String(600), nullable=True, unique=True),
)

tokens = Table(
    "server_tokens",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("person", String(64), nullable=False, index=True),
    Column("made_by", String(64), nullable=False),
    Column("salt", LargeBinary, nullable=False),
    Column("hash", LargeBinary, nullable=False),
    Column("note", String(200), nullable=False),
    Column("created", Float, nullable=False),
    Column("expires", Float, nullable=False),
    Column("revoked", Boolean, nullable=False, default=False),
)

sessions = Table(
    "server_sessions",
    metadata,
    Column("hash", String(64), primary_key=True),
    Column("person", String(64), nullable=False, index=True),
    Column("token", String(32), nullable=True),
    Column("created", Float, nullable=False),
    Column("expires", Float, nullable=False),
)

links = Table(
    "server_links",
    metadata,
    Column("hash", String(64), primary_key=True),
    Column("expires", Float, nullable=False),
    Column("used", Boolean, nullable=False, default=False),
)

failures = Table(
    "server_failures",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=True),
    Column("place", String(200), nullable=False),
    Column("time", Float, nullable=False),
    Index("server_failures_place", "place", "time"),
)

datasets = Table(
    "server_datasets",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("document", Text, nullable=False),
    Column("created", Float, nullable=False),
    Column("retired", Boolean, nullable=False, default=False),
)

dataset_versions = Table(
    "server_dataset_versions",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("document", Text, nullable=False),
)

requests = Table(
    "server_requests",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("person", String(64), nullable=False),
    Column("dataset", String(64), nullable=False),
    Column("version", Integer, nullable=False, default=1),
    Column("kind", String(16), nullable=False),
    Column("key", String(128), nullable=False),
    Column("digest", String(64), nullable=False),
    Column("question", Text, nullable=False),
    Column("price", Text, nullable=False),
    Column("memo", Text, nullable=False),
    Column("secret", String(64), nullable=False),
    Column("state", String(16), nullable=False),
    Column("created", Float, nullable=False),
    Column("started", Float, nullable=True),
    Column("finished", Float, nullable=True),
    Column("published", Float, nullable=True),
    Column("worker", String(64), nullable=True),
    Column("lease", Float, nullable=False, default=0.0),
    Column("home", String(64), nullable=True),
    Column("tries", Integer, nullable=False, default=0),
    Column("deaths", Integer, nullable=False, default=0),
    Column("outcome", Text, nullable=True),
    Column("result", Text, nullable=True),
    Column("charge", Text, nullable=True),
    Column("refusal", Text, nullable=True),
    Column("failure", String(200), nullable=True),
    Column("reserved", String(40), nullable=False, default=""),
    UniqueConstraint("person", "key", name="server_requests_key"),
    Index("server_requests_state", "state", "lease"),
    Index("server_requests_person", "person", "created"),
    Index("server_requests_created", "created"),
)

approvals = Table(
    "server_approvals",
    metadata,
    Column("request", String(32), primary_key=True),
    Column("expires", Float, nullable=False),
    Column("approved", Boolean, nullable=True),
    Column("by", String(64), nullable=True),
    Column("reason", Text, nullable=True),
    Column("decided", Float, nullable=True),
)

notices = Table(
    "server_notices",
    metadata,
    Column("request", String(32), primary_key=True),
    Column("event", String(32), primary_key=True),
    Column("channel", String(16), primary_key=True),
    Column("due", Float, nullable=False),
    Column("tries", Integer, nullable=False),
    Column("sent", Boolean, nullable=False),
    Index("server_notices_due", "sent", "due"),
)

attempts = Table(
    "server_attempts",
    metadata,
    Column("reservation", String(64), primary_key=True),
    Column("request", String(32), nullable=False, index=True),
)

models = Table(
    "server_models",
    metadata,
    Column("request", String(32), primary_key=True),
    Column("content", LargeBinary, nullable=False),
)

acts = Table(
    "server_acts",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("time", Float, nullable=False),
    Column("person", String(64), nullable=False),
    Column("act", String(64), nullable=False),
    Column("detail", Text, nullable=False),
    Column("previous", String(64), nullable=False),
    Column("hash", String(64), nullable=False),
)


class ServerDatabase:
    """The database of a server."""

    def __init__(self, url: str) -> None:
        self.backend = "sqlite" if url.startswith("sqlite") else "postgresql"
        self._commits = GroupCommit(sql.Connection.begin_nested, Exception)
        self._turns: DatabaseFile | None = None
        self._log: Path | None = None
        self._readers, self._writers, self._single = self._engines(url)
        self._create()

    def _engines(self, url: str) -> tuple[sql.Engine, sql.Engine, sql.Engine]:
        """Engines for readers, for writers, who take the lock when they begin, and for queries.

        A query alone sees one state of the tables; it needs no transaction around it.
        """
        if self.backend == "postgresql":
            # With those of the ledger, four processes stay below PostgreSQL's hundred connections.
            pool = {"pool_size": 6, "max_overflow": 6, "pool_timeout": 60, "pool_pre_ping": True}
            engine = sql.create_engine(url, **pool)
            return engine, engine, engine.execution_options(isolation_level="AUTOCOMMIT")
        path = Path(sql.make_url(url).database or "")
        if path.with_name("desk.db").exists():
            raise LedgerError(_OLD_SERVER)
        turns = path.with_name(f"{path.name}.lock")
        for file in (path, turns):
            if not file.exists():
                os.close(os.open(file, os.O_CREAT | os.O_RDWR, 0o600))
        self._turns, self._log = DatabaseFile.open(turns), path.with_name(f"{path.name}-wal")
        engines = []
        for begin, size in (("BEGIN", 16), ("BEGIN IMMEDIATE", 1), (None, 16)):
            engine = sql.create_engine(
                url, pool_size=size, max_overflow=64, connect_args={"timeout": BUSY_SECONDS}
            )
            sql.event.listen(engine, "connect", _configure)
            if begin is not None:
                sql.event.listen(engine, "begin", _beginning(begin))
            engines.append(engine)
        return engines[0], engines[1], engines[2]

    def _create(self) -> None:
        """Make the tables if they are missing, migrate older ones, and refuse newer ones."""

        def work(connection: sql.Connection) -> None:
            if self.backend == "postgresql":
                connection.execute(sql.text("SELECT pg_advisory_xact_lock(7228401)"))
            version = _schema_of(connection)
            if version is None:
                create_tables(connection)
            elif version > SCHEMA:
                raise LedgerError(
                    f"the server's database has schema {version}, but this version of expost uses "
                    f"{SCHEMA}: install a newer expost"
                )
            elif version < SCHEMA:
                _migrate(connection, version)

        try:
            self.write(work)
        except sql.exc.SQLAlchemyError as error:
            raise LedgerError(
                f"the server's database could not be used ({type(error).__name__})"
            ) from None

    def read(self, work: Work[Result]) -> Result:
        """Run ``work`` in a transaction that only reads."""
        with self._readers.begin() as connection:
            return work(connection)

    def rows(self, statement: Any, **values: Any) -> list[dict[str, Any]]:
        """Return the rows of a query, with these values of its parameters, as dicts."""
        with self._single.connect() as connection:
            return [dict(row) for row in connection.execute(statement, values).mappings()]

    def row(self, statement: Any, **values: Any) -> dict[str, Any] | None:
        """Return the first row of a query, or None."""
        rows = self.rows(statement, **values)
        return rows[0] if rows else None

    def write(self, work: Work[Result]) -> Result:
        """Run ``work`` in a transaction and return its result when it is durable.

        A piece of work that raises an error changes nothing, and its error is raised here.
        """
        if self.backend == "postgresql":
            with self._writers.begin() as connection:
                return work(connection)
        return self._commits.write(work, self.writing)

    def change(self, statement: Any) -> int:
        """Run one statement that writes, and return how many rows it changed."""
        return self.write(lambda connection: int(connection.execute(statement).rowcount))

    def _turn(self) -> AbstractContextManager[None]:
        """The place in the queue of processes that write."""
        if self._turns is None:
            return nullcontext()
        return self._turns.locked(alone=True, seconds=BUSY_SECONDS)

    @contextmanager
    def writing(self) -> Iterator[sql.Connection]:
        """A transaction of this process, in its turn among the processes."""
        with self._turn(), self._writers.begin() as connection:
            yield connection

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
        for engine in (self._readers, self._writers, self._single):
            engine.dispose()


def create_tables(connection: sql.Connection) -> None:
    """Make all tables in an empty database."""
    metadata.create_all(connection)
    connection.execute(schema_table.insert().values(version_num=SCHEMA))


def _schema_of(connection: sql.Connection) -> str | None:
    """The schema of a database; None if it has no tables of a server."""
    names = set(sql.inspect(connection).get_table_names())
    if "desk_facts" in names:
        raise LedgerError(_OLD_SERVER)
    if schema_table.name in names:
        return str(connection.scalar(sql.select(schema_table.c.version_num)))
    return "" if facts.name in names else None


def _migrate(connection: sql.Connection, version: str) -> None:
    """Bring older tables to the present schema, in the transaction of the connection."""
    try:
        from alembic.config import Config
        from alembic.runtime.environment import EnvironmentContext
        from alembic.script import ScriptDirectory
    except ImportError:
        raise MissingExtra("alembic", "server") from None
    config = Config()
    config.set_main_option("script_location", str(_STEPS))
    steps = ScriptDirectory.from_config(config)
    if version not in {step.revision for step in steps.walk_revisions()}:
        raise LedgerError(_UNRELEASED)
    with EnvironmentContext(
        config, steps, fn=lambda revision, _: steps._upgrade_revs(SCHEMA, revision)
    ) as environment:
        environment.configure(connection=connection, version_table=schema_table.name)
        environment.run_migrations()


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
