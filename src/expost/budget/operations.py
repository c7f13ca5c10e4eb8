"""What people do who look after a ledger: add budgets, change limits, set alerts, migrate.

A migration of a ledger of expost 0.1 (schema 1) keeps a copy of the old ledger, checks that it is
sound, and changes it in one transaction: a crash leaves either the old or the new ledger. The
entries stay as they are, so the hash chain still holds, and an entry ``upgrade`` is added to it.
Reservations that are open have no secret; they cannot be settled, only abandoned. A new limit is an
entry with its reason.

Tests: ``tests/budget/test_operations.py``, ``tests/budget/test_upgrade.py``,
``tests/budget/test_file_names.py``.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from expost.budget.budgets import as_budget
from expost.budget.database_file import journal_of
from expost.budget.ledger_rows import (
    ALERTS,
    CHANGE,
    OPEN_INDEX,
    RESERVATIONS,
    RESERVE,
    SCHEMA_VERSION,
    TOTALS,
    UPGRADE,
    LedgerRows,
    check_cap,
    check_ledger_name,
    check_memo,
)
from expost.budget.limits import Budget, Filter
from expost.budget.replay import Replay
from expost.budget.reservation_rows import COLUMNS, INSERT
from expost.budget.store import Store
from expost.budget.totals import (
    all_entries,
    append,
    filters_of,
    find_budget,
    insert_total,
    renewal_of,
)
from expost.errors import InvalidInput, LedgerError
from expost.files import canonical
from expost.privacy.guarantees import Guarantee

_OLD = ("meta", "head", "totals", "reservations", "entries")
_OLD_TOTALS = "SELECT budget, analyst, terms, settled, held FROM expost_totals"
_OLD_RESERVATIONS = (
    "SELECT id, budget, analyst, status, worst, charges, outcome FROM expost_reservations"
)


def problems_of(rows: LedgerRows, *, old: bool = False) -> list[str]:
    """Return what is wrong with a ledger, one line per problem; ``old``: of schema 1."""
    replay = Replay()
    problems = list(replay.check(all_entries(rows)))
    problems += replay.compare_head(
        rows.first("SELECT sequence, hash FROM expost_head WHERE place = 1")
    )
    if old:  # it has no periods, and reservations without entry, request and secret
        sums = [(*row, "", "", _zeros(row[3])) for row in rows.all(_OLD_TOTALS)]
        entry_of = {identity: job.entry for identity, job in replay.jobs.items()}
        requests = [
            (*row, entry_of.get(str(row[0]), 0), "", "") for row in rows.all(_OLD_RESERVATIONS)
        ]
    else:
        sums = rows.all(
            "SELECT budget, analyst, terms, settled, held, renews, period, past FROM expost_totals"
        )
        requests = rows.all(f"SELECT {COLUMNS} FROM expost_reservations")
        problems += replay.compare_alerts(
            rows.all("SELECT budget, share, command FROM expost_alerts")
        )
    problems += replay.compare_totals(sums)
    problems += replay.compare_reservations(requests)
    return problems + list(rows.damage())


def _zeros(amounts: str) -> str:
    """As many zeros as there are stored amounts."""
    return canonical(["0"] * len(json.loads(amounts)))


def upgrade_ledger(url: str | Path) -> str:
    """Migrate a ledger of expost 0.1 to the schema of this version; see ``docs/ledger.md``.

    Returns where the copy of the old ledger is. Raises LedgerError if there is nothing to
    migrate, the ledger is not sound, or it is in use.
    """
    store = Store(url)
    if not store.exists():
        raise LedgerError("there is no ledger to migrate")
    with store.reading(any_journal=True) as rows:
        schema = rows.schema()
        if schema != 1:
            raise LedgerError(f"the ledger has schema {schema}; only schema 1 can be migrated")
        _require_sound(rows)
    path = store.location.path
    store.close()  # an idle connection would keep the write-ahead log in use
    copy = _copy_file(path) if path is not None else "expost_schema_1_* (tables)"
    with store.writing() as rows:
        head = rows.lock_head()
        if rows.schema() != 1:
            raise LedgerError("the ledger was migrated by another process")
        _require_sound(rows)
        if path is None:
            for table in _OLD:
                rows.run(f"CREATE TABLE expost_schema_1_{table} AS SELECT * FROM expost_{table}")
        _move_totals(rows)
        _move_reservations(rows)
        rows.run(ALERTS)
        rows.run(OPEN_INDEX)
        rows.change(
            "UPDATE expost_meta SET value = :v WHERE name = 'schema'", v=str(SCHEMA_VERSION)
        )
        append(rows, head, UPGRADE, ("", "", ""), {"from": 1, "to": SCHEMA_VERSION})
    return copy


def _require_sound(rows: LedgerRows) -> None:
    """Refuse a ledger of schema 1 whose entries or sums are wrong."""
    problems = problems_of(rows, old=True)
    if problems:
        raise LedgerError(
            f"the ledger is not sound and was not migrated ({problems[0]}"
            + (f"; {len(problems) - 1} more" if len(problems) > 1 else "")
            + ")"
        )


def _copy_file(path: Path) -> str:
    """Copy a SQLite file and leave its write-ahead log; return the name of the copy."""
    copy = path.with_name(path.name + ".schema-1")
    number = 1
    while copy.exists():
        number += 1
        copy = path.with_name(f"{path.name}.schema-1.{number}")
    try:
        os.close(os.open(copy, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        with (
            closing(sqlite3.connect(f"{path.as_uri()}?mode=rw", uri=True)) as old,
            closing(sqlite3.connect(copy)) as new,
        ):
            new.execute("PRAGMA synchronous=EXTRA")
            old.backup(new)
            # Fails if another process uses the file.
            mode = old.execute("PRAGMA journal_mode=DELETE").fetchone()[0]
        if mode != "delete":
            raise LedgerError("the ledger is in use; stop all its users and try again")
    except sqlite3.Error as error:
        copy.unlink(missing_ok=True)
        raise LedgerError(
            f"the ledger could not be migrated ({error}); stop all its users and try again"
        ) from None
    except OSError as error:
        raise LedgerError(f"cannot write {copy}: {error.strerror}") from None
    return str(copy)


def _move_totals(rows: LedgerRows) -> None:
    """Give the table of totals its new columns."""
    old = rows.all(_OLD_TOTALS)
    rows.run("DROP TABLE expost_totals")
    rows.run(TOTALS)
    for budget, analyst, terms, settled, held in old:
        rows.change(
            "INSERT INTO expost_totals VALUES (:b, :a, :t, :s, :h, '', '', :z)",
            b=budget,
            a=analyst,
            t=terms,
            s=settled,
            h=held,
            z=_zeros(settled),
        )


def _move_reservations(rows: LedgerRows) -> None:
    """Give the table of reservations its new columns."""
    at = {
        entry.reservation: entry.sequence for entry in all_entries(rows) if entry.action == RESERVE
    }
    old = rows.all(_OLD_RESERVATIONS)
    rows.run("DROP TABLE expost_reservations")
    rows.run(RESERVATIONS)
    for row in old:
        known = dict(zip(COLUMNS.split(", "), row, strict=False))
        rows.change(INSERT, **known, entry=at[row[0]], request="", secret="")


def recover_ledger(url: str | Path) -> None:
    """Take a SQLite ledger into use again after a crash under another name.

    This is possible only if the file is sound as it is; otherwise it must be opened once under the
    name that was used. A journal beside this name that does not belong to the last write is
    removed.
    """
    store = Store(url)
    path = store.location.path
    if path is None:
        raise LedgerError("only SQLite files can be recovered; PostgreSQL recovers by itself")
    if not path.exists():
        raise LedgerError("there is no ledger to recover")
    store.recover(path, journal_of(path), problems_of)


def checked_terms(
    name: str, budget: Budget | Guarantee, caps: Mapping[str, Budget | Guarantee] | None
) -> tuple[Budget, dict[str, Budget]]:
    """The terms of a new budget and of its caps, checked."""
    terms = as_budget(budget)
    limits = {who: as_budget(cap) for who, cap in (caps or {}).items()}
    check_ledger_name(name, "name")
    for who, cap in limits.items():
        check_cap(terms, who, cap)
    return terms, limits


def change_limit(
    rows: LedgerRows, terms: Budget | None, reason: str, budget: str | None, analyst: str
) -> None:
    """Change a limit; ``terms`` None removes a cap."""
    check_memo(reason)
    if not reason.strip():
        raise InvalidInput("reason", None, "say why the limit is changed")
    head = rows.lock_head()
    name, filters = find_budget(rows, budget, analyst)
    whole = filters[0].budget
    if analyst:
        check_ledger_name(analyst, "analyst")
    if terms is None and not analyst:
        raise InvalidInput("budget", None, "a budget cannot be removed; give a new limit")
    if terms is None and len(filters) == 1:
        raise InvalidInput("analyst", analyst, f"budget {name!r} has no cap for this analyst")
    if terms is not None:
        check_cap(whole, analyst or "everybody", terms)
    detail = {"terms": None if terms is None else terms.as_dict()}
    append(rows, head, CHANGE, (name, analyst, ""), detail, reason)
    if terms is None:
        rows.change(
            "DELETE FROM expost_totals WHERE budget = :b AND analyst = :a", b=name, a=analyst
        )
    elif analyst and len(filters) == 1:
        _add_cap(rows, terms, name, analyst)
    else:
        rows.change(
            "UPDATE expost_totals SET terms = :t WHERE budget = :b AND analyst = :a",
            t=canonical(terms.as_dict()),
            b=name,
            a=analyst,
        )


def _add_cap(rows: LedgerRows, terms: Budget, budget: str, analyst: str) -> None:
    """Write a cap for an analyst who had none. What was charged before counts in full."""
    replay = Replay()
    if any(replay.check(all_entries(rows))):
        raise LedgerError("the ledger is damaged at its entries; run: expost ledger verify")
    settled, held = replay.charged(budget, analyst, len(terms.limits))
    renewal = renewal_of(rows, budget)
    every, period = ("", "") if renewal is None else (renewal.every, renewal.period)
    insert_total(rows, Filter(terms, settled, held), budget, analyst, every, period)
    assert filters_of(rows, budget, analyst)
