"""Backups of a server: its tables and its ledger at one moment, while it runs; and the way back.

A backup is a folder of two SQLite files and a manifest with their digests, whatever database the
server uses. A restored ledger knows nothing of what was charged after the backup, so a restore
takes the newest ledger where there is one, and otherwise must be told what was charged since:
*nothing*, or *unknown*. Then every budget is charged with all that it could have admitted, and
nothing that was open at the backup runs again: the lost server may have answered it.

Everything is written beside its place, checked, and put there by one rename or in one transaction,
so that an interrupted backup or restore leaves nothing. Sources, files of tuning jobs and keys are
not part of a backup. Tests: ``tests/server/test_backup.py``.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sql

from expost._version import __version__
from expost.budget.budgets import RenyiBudget
from expost.budget.ledger import OPEN, Ledger
from expost.budget.ledger_rows import LedgerRows
from expost.budget.limits import Budget, Coordinates, float_below
from expost.budget.signing import SigningKey, load_document, signature_problem
from expost.budget.store import Store
from expost.budget.totals import timestamp
from expost.errors import InvalidInput, LedgerError
from expost.files import canonical
from expost.privacy.guarantees import Guarantee, RenyiDP
from expost.server import audit_log
from expost.server.database import (
    ServerDatabase,
    create_tables,
    links,
    metadata,
    requests,
    sessions,
)
from expost.server.jobs import states
from expost.server.server_settings import ServerSettings

MANIFEST, SERVER, LEDGER = "manifest.json", "server.db", "ledger.db"
NOTHING_SINCE, UNKNOWN_SINCE = "nothing", "unknown"
_KIND, _FORMAT = "expost server backup", 1
_LEDGER_TABLES = ("meta", "head", "totals", "reservations", "entries", "alerts")
_ENDED = "the server was restored from a backup"


def back_up(settings: ServerSettings, folder: Path, key: SigningKey | None = None) -> Any:
    """Copy a server, which may be running, into a new folder; return the manifest.

    ``key`` signs the manifest. A server whose ledger or acts do not verify is refused.
    """
    if settings.database is None and not (settings.home / SERVER).exists():
        raise InvalidInput("home", str(settings.home), "there is no server in this folder")
    with _draft(folder, "out") as draft:
        copy = _copy_files if settings.database is None else _copy_database
        copy(settings, draft)
        _clean(draft)
        document = {
            "kind": _KIND,
            "format": _FORMAT,
            "expost": __version__,
            "time": timestamp(),
            "files": {path.name: _digest(path) for path in _files(draft)},
            "ledger": _head(draft / LEDGER),
            "acts": len(_acts(draft / SERVER)),
        }
        problems = _problems(draft, document)
        if problems:
            raise LedgerError(f"no backup was made: {problems[0]}; see GET /api/verify")
        if key is not None:
            document = key.sign(document)
        (draft / MANIFEST).touch(mode=0o600)
        (draft / MANIFEST).write_text(canonical(document) + "\n", encoding="utf-8")
    return document


def check_backup(folder: Path, public: str | None = None) -> Any:
    """Return the manifest of a backup whose files are whole; ``public``: who must have signed."""
    if not (folder / MANIFEST).exists():
        raise InvalidInput("backup", str(folder), "give a folder that expost server backup made")
    document = load_document(folder / MANIFEST, "backup")
    wrong = signature_problem(document, public) if public or "signature" in document else None
    if wrong is not None:
        raise InvalidInput("backup", str(folder), f"its manifest is not valid: {wrong}")
    if (document.get("kind"), document.get("format")) != (_KIND, _FORMAT):
        raise InvalidInput("backup", str(folder), "this version of expost cannot read it")
    problems = _problems(folder, document)
    if problems:
        raise InvalidInput("backup", str(folder), f"it is damaged: {problems[0]}")
    return document


def restore(
    folder: Path,
    settings: ServerSettings,
    *,
    charged_since: str | None = None,
    ledger: Path | None = None,
    public: str | None = None,
) -> dict[str, Any]:
    """Restore a backup into a new home, or a database without a server; return what was done.

    ``ledger`` is the newest ledger file, if it was saved; on PostgreSQL it is the one in place.
    Without one, ``charged_since`` says what was charged after the backup.
    """
    manifest = check_backup(folder, public)
    home, target = settings.home, _Target(settings)
    if home.exists() and any(home.iterdir()):
        raise InvalidInput("home", str(home), _occupied(home / LEDGER, manifest))
    target.require_free()
    with _draft(home, "home") as draft:
        for path in _files(folder):
            shutil.copyfile(path, draft / path.name)
            (draft / path.name).chmod(0o600)
        newest = ledger or target.ledger
        if newest is not None:
            _require_continued(str(newest), manifest)
            (draft / LEDGER).unlink(missing_ok=True)
            _copy_ledger(str(newest), draft / LEDGER)
        elif manifest["ledger"] is None:
            charged_since = NOTHING_SINCE  # no budget had been opened
        elif charged_since not in (NOTHING_SINCE, UNKNOWN_SINCE):
            raise InvalidInput("charged-since", charged_since, _choices(manifest))
        report = _adjust(draft, manifest, None if newest is not None else charged_since)
        if settings.database is not None:
            target.fill(draft)
            for path in _files(draft):
                path.unlink()
    return report


def _choices(manifest: Mapping[str, Any]) -> str:
    return (
        f"the backup knows no charge after {manifest['time']}. Give the newest ledger (--ledger) "
        "if there is one. Otherwise say 'nothing' if no question was asked since, or 'unknown': "
        "all that the budgets had left counts as spent, and what was open is not run again"
    )


def _occupied(path: Path, manifest: Mapping[str, Any]) -> str:
    """Why a home cannot be used; says how many entries of its ledger the backup does not have."""
    later = 0
    if path.exists():
        sequence, last = manifest["ledger"] or (0, "")
        mine = Ledger.open(path, read_only=True)
        entry = mine.entry(sequence)
        same = sequence == 0 or (entry is not None and entry.hash == last)
        later = mine.head()[0] - sequence if same else mine.head()[0]
    if not later:
        return "it is not empty; restore into a new folder"
    return (
        f"its ledger has {later} entries that the backup does not have, and a restore would forget "
        f"them; nothing was changed. Restore into a new folder with --ledger {path}"
    )


def _require_continued(url: str, manifest: Mapping[str, Any]) -> None:
    """Refuse a ledger that is damaged, older than the backup, or another one."""
    newest = Ledger.open(url, read_only=True)
    sequence, last = manifest["ledger"] or (0, "")
    entry = newest.entry(sequence) if sequence else None
    if sequence and (entry is None or entry.hash != last):
        raise InvalidInput("ledger", "this one", "it does not continue the ledger of the backup")
    problems = newest.verify()
    if problems:
        raise InvalidInput("ledger", "this one", f"it is damaged: {problems[0]}")


def _adjust(draft: Path, manifest: Mapping[str, Any], since: str | None) -> dict[str, Any]:
    """Make a copied server safe to start: nothing that may have been answered runs again."""
    store = ServerDatabase(f"sqlite:///{draft / SERVER}")
    ledger = Ledger.open(draft / LEDGER) if (draft / LEDGER).exists() else None
    status = {} if ledger is None else ledger.statuses()
    columns = (requests.c.id, requests.c.kind, requests.c.state, requests.c.started)
    query = sql.select(*columns).where(requests.c.state.not_in(states.FINAL))
    ended: list[str] = []
    again: list[str] = []
    for row in store.rows(query):
        answered = status.get(row["id"], OPEN) != OPEN and row["state"] != states.COMPUTED
        begun = row["kind"] == "tune" and row["started"] is not None  # its files are lost
        may_run = since != UNKNOWN_SINCE and not begun and not answered
        (again if may_run else ended).append(row["id"])
    report = {
        "backup": manifest["time"],
        "charged_since": since or "in the newest ledger",
        "ended": len(ended),
        "entries": 0 if ledger is None else ledger.head()[0],
    }

    def work(connection: sql.Connection) -> None:
        changes: dict[str, Any] = {"worker": None, "lease": 0.0, "home": None}
        running = requests.c.id.in_(again) & (requests.c.state == states.RUNNING)
        connection.execute(requests.update().where(running).values(state=states.QUEUED, **changes))
        failed = {"state": states.FAILED, "failure": _ENDED, "published": time.time()}
        connection.execute(requests.update().where(requests.c.id.in_(ended)).values(**failed))
        for table in (sessions, links):  # whoever was signed in signs in again
            connection.execute(table.delete())
        audit_log.record(connection, "restore", "restore backup", report)

    store.write(work)
    if ledger is not None and since is not None:
        _charge_since(ledger, since, manifest["time"], set(again))
        problems = ledger.verify()
        assert not problems, problems
    store.close()
    _clean(draft)
    if ledger is not None:  # a file that was never open under another name
        shutil.copyfile(draft / LEDGER, draft / "new.db")
        (draft / "new.db").chmod(0o600)
        (draft / "new.db").replace(draft / LEDGER)
    return report


def _charge_since(ledger: Ledger, since: str, moment: str, again: set[str]) -> None:
    """Close what is not run again; of unknown charges, everything that a budget could admit."""
    for budget in ledger.budgets():
        for held in ledger.open_reservations(budget):
            if held.id not in again:
                ledger.abandon(held)
        memo = f"restored from a backup of {moment}; what was charged later is not known"
        for _ in range(3 if since == UNKNOWN_SINCE else 0):  # rounding leaves 2⁻⁵³ each time
            state = ledger.standing(budget).filter
            whole = _guarantee(state.budget, state.remaining)
            if whole is None:
                break
            ledger.abandon(ledger.reserve(whole, memo, budget=budget))


def _guarantee(terms: Budget, amount: Coordinates) -> Guarantee | None:
    """The charge of all that remains, as a budget of these terms counts it; None of nothing."""
    numbers = [float_below(part) for part in amount]
    if not any(numbers):
        return None
    if isinstance(terms, RenyiBudget):
        return RenyiDP(terms.orders, tuple(numbers), terms.neighbours)
    return terms._guarantee(*numbers, terms.neighbours)


class _Target:
    """Where a server is restored: a new folder, or tables of a PostgreSQL database."""

    def __init__(self, settings: ServerSettings) -> None:
        self._url = settings.database_url
        self._here = settings.database is None
        self.ledger: str | None = None
        if settings.database is not None and Store(settings.database).exists():
            self.ledger = settings.database

    def require_free(self) -> None:
        """Refuse a database that has a server already."""
        if self._here:
            return
        engine = sql.create_engine(self._url)
        with _closing_engine(engine), engine.connect() as connection:
            names = [name for name in sql.inspect(connection).get_table_names() if _own(name)]
        if names:
            raise InvalidInput(
                "database", names[0], "it has a server already: drop its tables server_* first"
            )

    def fill(self, draft: Path) -> None:
        """Write all tables in one transaction; a ledger that is in place stays as it is."""
        source = sql.create_engine(f"sqlite:///{draft / SERVER}")
        engine = sql.create_engine(self._url)
        with (
            _closing_engine(engine),
            _closing_engine(source),
            source.connect() as old,
            engine.begin() as new,
        ):
            create_tables(new)
            _copy_rows(old, new)
            if self.ledger is None and (draft / LEDGER).exists():
                with Store(draft / LEDGER).reading() as rows:
                    into = LedgerRows("postgresql", new.connection)
                    into.create_tables()
                    _copy_ledger_rows(rows, into)


def _own(name: str) -> bool:
    return name.startswith("server_")


@contextmanager
def _closing_engine(engine: sql.Engine) -> Iterator[None]:
    """Close the connections of an engine at the end."""
    try:
        yield
    finally:
        engine.dispose()


def _copy_files(settings: ServerSettings, draft: Path) -> None:
    """Copy the two files of a server as they are at one moment."""
    store, path = ServerDatabase(settings.database_url), settings.home / LEDGER
    with store.writing():  # nobody writes to the tables until both views are taken
        tables = _view(settings.home / SERVER)
        if path.exists():
            _copy_ledger(str(path), draft / LEDGER)  # nor to the ledger, while it is copied
    with closing(tables):
        _copy_into(tables, draft / SERVER)
    store.close()


def _view(path: Path) -> sqlite3.Connection:
    """A connection that sees the file as it is now."""
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
    connection.isolation_level = None
    connection.execute("BEGIN")
    connection.execute("SELECT COUNT(*) FROM sqlite_master").fetchall()
    return connection


def _copy_view(path: Path, copy: Path) -> None:
    with closing(_view(path)) as view:
        _copy_into(view, copy)


def _copy_into(view: sqlite3.Connection, copy: Path) -> None:
    """Write what a connection sees into a new file."""
    os.close(os.open(copy, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    with closing(sqlite3.connect(copy)) as target:
        view.backup(target)
        target.execute("PRAGMA journal_mode = DELETE")  # one file, without a log beside it


def _copy_database(settings: ServerSettings, draft: Path) -> None:
    """Copy the tables of a PostgreSQL database in one transaction that sees one moment."""
    engine = sql.create_engine(settings.database_url, isolation_level="REPEATABLE READ")
    store = ServerDatabase(f"sqlite:///{draft / SERVER}")
    ServerDatabase(settings.database_url).close()  # its schema is the one of this version
    with _closing_engine(engine), engine.begin() as connection:
        store.write(lambda target: _copy_rows(connection, target))
        rows = LedgerRows("postgresql", connection.connection)
        if rows.has_tables():
            Store(draft / LEDGER).create(lambda into: _copy_ledger_rows(rows, into))
    store.close()


def _copy_rows(source: sql.Connection, target: sql.Connection) -> None:
    for table in metadata.sorted_tables:
        target.execute(table.delete())
        for part in source.execute(sql.select(table)).mappings().partitions(1000):
            target.execute(table.insert(), [dict(row) for row in part])
        if target.dialect.name == "postgresql":
            _continue_numbers(target, table)


def _continue_numbers(target: sql.Connection, table: sql.Table) -> None:
    """Let a column that counts by itself go on after the copied rows."""
    column = table.autoincrement_column
    if column is not None:
        name = f"pg_get_serial_sequence('{table.name}', '{column.name}')"
        target.execute(
            sql.text(
                f"SELECT setval({name}, 1 + COALESCE(MAX({column.name}), 0)) FROM {table.name}"
            )
        )


def _copy_ledger(url: str, copy: Path) -> None:
    """Copy a ledger from any database into a file."""
    store = Store(url, read_only=True)
    with store.reading() as rows:
        if store.location.path is not None:
            _copy_view(Path(store.location.path), copy)
        else:
            Store(copy).create(lambda into: _copy_ledger_rows(rows, into))


def _copy_ledger_rows(source: LedgerRows, target: LedgerRows) -> None:
    for name in (f"expost_{table}" for table in _LEDGER_TABLES):
        target.run(f"DELETE FROM {name}")
        cursor = source.run(f"SELECT * FROM {name}")
        columns = [column[0] for column in cursor.description]
        statement = f"INSERT INTO {name} ({', '.join(columns)}) VALUES "
        statement += f"({', '.join(f':{column}' for column in columns)})"
        for row in cursor.fetchall():
            target.change(statement, **dict(zip(columns, row, strict=True)))


@contextmanager
def _draft(folder: Path, field: str) -> Iterator[Path]:
    """A new folder beside the wanted one, whose name it gets when everything is on the disk."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InvalidInput(field, str(folder), "it exists already; give a new folder")
    draft = folder.with_name(f".{folder.name}.{secrets.token_hex(8)}")
    draft.mkdir(mode=0o700, parents=True)
    try:
        yield draft
        for path in (*draft.iterdir(), draft):
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)
        draft.rename(folder)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def _clean(draft: Path) -> None:
    """Leave the two databases only: no locks and no empty logs."""
    for path in (draft / SERVER, draft / LEDGER):
        if path.exists():
            with closing(sqlite3.connect(path)) as connection:
                connection.execute("PRAGMA journal_mode = DELETE")
    for path in draft.iterdir():
        if path.name not in (SERVER, LEDGER):
            path.unlink()


def _files(folder: Path) -> list[Path]:
    return [folder / name for name in (SERVER, LEDGER) if (folder / name).exists()]


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _head(path: Path) -> list[Any] | None:
    """The number and the hash of the last entry; None without a ledger."""
    return list(Ledger.open(path, read_only=True).head()) if path.exists() else None


def _problems(folder: Path, manifest: Mapping[str, Any]) -> list[str]:
    """What is wrong with the files of a backup; the tables are looked at in a copy of their own."""
    if {path.name: _digest(path) for path in _files(folder)} != manifest.get("files"):
        return ["a file is missing or was changed"]
    if _head(folder / LEDGER) != manifest.get("ledger"):
        return ["the ledger does not end with the entry that the manifest names"]
    problems = []
    if (folder / LEDGER).exists():
        problems += Ledger.open(folder / LEDGER, read_only=True).verify()
    with closing(_view(folder / SERVER)) as connection:
        lines = [line for (line,) in connection.execute("PRAGMA integrity_check")]
    problems += [f"{SERVER}: {line}" for line in lines if line != "ok"]
    acts = _acts(folder / SERVER)
    if len(acts) != manifest.get("acts"):
        problems.append("acts are missing")
    return problems + list(audit_log.breaks(acts))


def _acts(path: Path) -> list[dict[str, Any]]:
    """The administrative acts in a file."""
    with closing(_view(path)) as connection:
        connection.row_factory = sqlite3.Row
        rows = connection.execute("SELECT * FROM server_acts ORDER BY number").fetchall()
    return [dict(row) for row in rows]
