"""What people do who look after a ledger: verify, add budgets, change limits, migrate.

A migration of a ledger of expost 0.1 (schema 1) keeps a copy of the old ledger, checks that it is
sound, and changes it in one transaction: a crash leaves either the old or the new ledger. The
entries stay as they are, so the hash chain still holds, and an entry ``upgrade`` is added to it.
Reservations that are open have no secret; they cannot be settled, only abandoned. A new limit is an
entry with its reason.

``Ledger.verify`` compares the totals and reservations with those recomputed from the entries
(:class:`Replay`). It also computes charges again: every worst case and every settled amount must
be what the recorded charges say. Amounts are exact; nothing is rounded. Entries that expost 0.1
wrote are checked with the meaning that floats had then
(:func:`expost.budget.limits.binary_amounts`).

Tests: ``tests/budget/test_ledger.py``, ``tests/budget/test_operations.py``,
``tests/budget/test_upgrade.py``, ``tests/budget/test_file_names.py``.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import Any

from expost.budget.budgets import as_budget, budget_from_dict
from expost.budget.database_file import journal_of
from expost.budget.ledger_rows import (
    ABANDON,
    ALERT,
    ALERTS,
    CAP,
    CHANGE,
    CREATE,
    GENESIS,
    OPEN_INDEX,
    RENEW,
    RESERVATIONS,
    RESERVE,
    SCHEMA_VERSION,
    SETTLE,
    TOTALS,
    UPGRADE,
    Entry,
    LedgerRows,
    broken_link,
    check_cap,
    check_ledger_name,
    check_memo,
)
from expost.budget.limits import (
    Budget,
    Coordinates,
    Filter,
    add,
    amount_texts,
    binary_amounts,
    exact_amounts,
)
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
from expost.errors import ExpostError, InvalidInput, LedgerError
from expost.files import canonical
from expost.privacy.charges import Charges
from expost.privacy.guarantees import Guarantee

_STATUS = {RESERVE: "open", SETTLE: "settled", ABANDON: "abandoned"}
_COLUMNS = (
    *("budget", "analyst", "status", "worst", "charges", "outcome"),
    *("entry", "request", "secret"),
)


@dataclass
class ReplayedRequest:
    """A reservation, recomputed from the entries."""

    budget: str
    analyst: str
    worst: Coordinates
    charges: str
    terms: Budget
    entry: int
    request: str = ""
    secret: str = ""
    period: str = ""
    binary: bool = False
    status: str = "open"
    outcome: str | None = None
    spent: Coordinates | None = None
    finished_binary: bool = False

    def columns(self) -> tuple[str | int | None, ...]:
        """Return what the table must hold, in the order of ``_COLUMNS``; charges as a digest."""
        told = vars(self) | {"worst": canonical(amount_texts(self.worst))}
        return tuple(told[name] for name in _COLUMNS)

    def wrong_charges(self, recorded: str) -> list[str]:
        """Return which amounts are not what the recorded charges say."""
        try:
            return list(self._wrong(_parsed(recorded)))
        except (ExpostError, ValueError, KeyError, TypeError, ArithmeticError) as error:
            return [f"its charge cannot be computed ({type(error).__name__})"]

    def _wrong(self, charges: Charges) -> Iterator[str]:
        with _meaning(self.binary):
            if self.terms.worst(charges) != self.worst:
                yield "its worst case is not that of its charges"
        if self.status != "settled":
            return
        index = None if self.outcome == "nothing" else int(str(self.outcome))
        if index is not None and not 0 <= index < len(charges):
            yield "it has no such outcome"
            return
        charge = charges.nothing if index is None else charges[index]
        with _meaning(self.finished_binary):
            if self.terms.coordinates(charge) != self.spent:
                yield "it was not settled at the charge of its outcome"


@dataclass
class Period:
    """The present period of a budget that renews, and what was settled before it."""

    every: str
    period: str
    past: dict[str, Coordinates] = field(default_factory=dict)


@dataclass
class Replay:
    """The filters and reservations that the entries applied so far lead to.

    ``filters``: the filter of each budget and each cap, by budget and analyst. ``jobs``: the
    reservations by id. ``periods``: the periods of budgets that renew. ``alerts``: the commands of
    alerts by budget and share. ``last``: the number and the hash of the last entry. ``binary``:
    whether the entries were written by expost 0.1.
    """

    filters: dict[tuple[str, str], Filter] = field(default_factory=dict)
    jobs: dict[str, ReplayedRequest] = field(default_factory=dict)
    periods: dict[str, Period] = field(default_factory=dict)
    alerts: dict[tuple[str, str], str] = field(default_factory=dict)
    last: tuple[int, str] = (0, GENESIS)
    binary: bool = False

    def check(self, entries: Iterable[Entry]) -> Iterator[str]:
        """Apply the entries and yield what is wrong with each of them."""
        for entry in entries:
            if not entry.well_typed:
                yield f"row {entry.sequence!r}: edited (a column holds a value of the wrong type)"
                self.last = (self.last[0] + 1, str(entry.hash))
                continue
            yield from broken_link(entry, *self.last)
            try:
                with _meaning(self.binary):
                    problem = self._apply(entry)
            except (ExpostError, ValueError, KeyError, TypeError, ArithmeticError) as error:
                problem = str(error) or type(error).__name__
            if problem:
                yield f"row {entry.sequence}: {problem}"
            self.last = (entry.sequence, entry.hash)

    def _apply(self, entry: Entry) -> str | None:
        if entry.action in (CREATE, CAP):
            return self._create(entry)
        if entry.action == UPGRADE:
            self.binary = False
            return None
        if (entry.budget, "") not in self.filters:
            return f"uses the budget {entry.budget!r}, which was never created"
        if entry.action == RESERVE:
            return self._reserve(entry)
        if entry.action in (SETTLE, ABANDON):
            return self._finish(entry)
        if entry.action == CHANGE:
            return self._change(entry)
        if entry.action == RENEW:
            return self._renew(entry)
        if entry.action == ALERT:
            self.alerts[entry.budget, entry.facts["share"]] = entry.facts["command"]
            return None
        return f"has the unknown action {entry.action!r}"

    def _create(self, entry: Entry) -> str | None:
        if (entry.budget, entry.analyst) in self.filters:
            return f"creates the budget {entry.budget!r} again"
        facts = entry.facts
        if entry.sequence == 1:
            self.binary = "schema" not in facts
        if "renews" in facts and not entry.analyst:
            self.periods[entry.budget] = Period(facts["renews"], facts["period"])
        self.filters[entry.budget, entry.analyst] = Filter.empty(
            budget_from_dict(facts["terms"]), entry.budget
        )
        return None

    def _change(self, entry: Entry) -> str | None:
        account, record = (entry.budget, entry.analyst), entry.facts["terms"]
        if record is None:
            if not entry.analyst or account not in self.filters:
                return "removes a cap that is not there"
            del self.filters[account]
            if entry.budget in self.periods:
                self.periods[entry.budget].past.pop(entry.analyst, None)
            return None
        terms = budget_from_dict(record)
        if terms.kind != self.filters[entry.budget, ""].budget.kind:
            return f"changes the kind of the budget {entry.budget!r}"
        known = self.filters.get(account)
        self.filters[account] = (
            Filter(terms, *self.charged(entry.budget, entry.analyst, len(terms.limits)))
            if known is None
            else replace(known, budget=terms)
        )
        return None

    def charged(self, budget: str, analyst: str, size: int) -> tuple[Coordinates, Coordinates]:
        """Return the sums of an analyst's settled and held charges."""
        zero: Coordinates = (Fraction(0),) * size
        settled = held = zero
        for job in self.jobs.values():
            if (job.budget, job.analyst) == (budget, analyst):
                settled = add(settled, zero if job.spent is None else job.spent)
                held = add(held, job.worst if job.spent is None else zero)
        return settled, held

    def _renew(self, entry: Entry) -> str | None:
        period = self.periods.get(entry.budget)
        first = entry.facts["period"]
        if period is None or not period.period < first <= entry.time[:10]:
            return "renews a budget before its time"
        period.period = first
        for account in [account for account in self.filters if account[0] == entry.budget]:
            state = self.filters[account]
            zero = (Fraction(0),) * len(state.settled)
            period.past[account[1]] = add(period.past.get(account[1], zero), state.settled)
            self.filters[account] = replace(state, settled=zero)
        return None

    def _reserve(self, entry: Entry) -> str | None:
        if entry.reservation in self.jobs:
            return "reserves with an id that was used before"
        worst = exact_amounts(entry.facts["worst"])
        facts = entry.facts
        self.jobs[entry.reservation] = ReplayedRequest(
            *(entry.budget, entry.analyst, worst, facts["charges"]),
            terms=self.filters[entry.budget, ""].budget,
            entry=entry.sequence,
            request=facts.get("request", ""),
            secret=facts.get("secret", ""),
            period=facts.get("period", ""),
            binary=self.binary,
        )
        # Held even if it does not fit: the table of totals holds it, too.
        accounts = self._places(entry)
        fits = all(self.filters[account].admits(worst) for account in accounts)
        for account in accounts:
            state = self.filters[account]
            self.filters[account] = replace(state, held=add(state.held, worst))
        present = self.periods.get(entry.budget, Period("", "")).period
        if facts.get("period", present) != present:
            return "reserves in another period than the present one"
        return None if fits else f"overspends the budget {entry.budget!r}"

    def _finish(self, entry: Entry) -> str | None:
        job = self.jobs.get(entry.reservation)
        if job is None or job.status != "open":
            return "finishes a reservation that is not open"
        if (job.budget, job.analyst) != (entry.budget, entry.analyst):
            return "finishes a reservation of another budget or analyst"
        spent = exact_amounts(entry.facts["spent"])
        if entry.action == ABANDON and spent != job.worst:
            return "abandons a reservation for less than its worst case"
        period = self.periods.get(entry.budget, Period("", ""))
        earlier = "" < job.period < period.period
        after = {
            account: self.filters[account].settle(job.worst, spent, earlier=earlier)
            for account in self._places(entry)
        }
        for _, who in after if earlier else ():
            zero = (Fraction(0),) * len(spent)
            period.past[who] = add(period.past.get(who, zero), spent)
        self.filters.update(after)
        job.status, job.outcome = _STATUS[entry.action], entry.facts.get("outcome")
        job.spent, job.finished_binary = spent, self.binary
        return None

    def _places(self, entry: Entry) -> list[tuple[str, str]]:
        accounts = dict.fromkeys(((entry.budget, ""), (entry.budget, entry.analyst)))
        return [account for account in accounts if account in self.filters]

    def compare_head(self, row: Sequence[Any] | None) -> Iterator[str]:
        """Yield whether the recorded end of the ledger differs from its last entry."""
        if row is None:
            yield "head: removed"
            return
        sequence, digest = row
        if isinstance(sequence, int) and sequence > self.last[0]:
            yield f"rows after {self.last[0]}: removed (the ledger had {sequence} rows)"
        elif (sequence, str(digest).strip()) != self.last:
            yield f"head: edited, or row {self.last[0]} was replaced"

    def compare_totals(self, rows: Sequence[Any]) -> Iterator[str]:
        """Yield the totals that differ from the sums of the entries."""
        stored = {(row[0], row[1]): tuple(row[2:]) for row in rows}
        for account in sorted(set(stored) | set(self.filters), key=str):
            state = self.filters.get(account)
            told = None if state is None else self._total(account, state)
            if stored.get(account) != told:
                who = f" for {account[1]!r}" if account[1] else ""
                yield f"totals of budget {account[0]!r}{who}: do not match the entries"

    def _total(self, account: tuple[str, str], state: Filter) -> tuple[str, ...]:
        """What the table of totals must hold after the names."""
        period = self.periods.get(account[0], Period("", ""))
        past = period.past.get(account[1], (Fraction(0),) * len(state.settled))
        amounts = (canonical(amount_texts(amount)) for amount in (state.settled, state.held))
        told = (canonical(state.budget.as_dict()), *amounts)
        return (*told, period.every, period.period, canonical(amount_texts(past)))

    def compare_reservations(self, rows: Sequence[Any]) -> Iterator[str]:
        """Yield the reservations that differ from what the entries record."""
        stored = {row[0]: (*row[1:5], _digest(row[5]), *row[6:]) for row in rows}
        charges = {row[0]: row[5] for row in rows}
        for identity in sorted(set(stored) | set(self.jobs), key=str):
            if identity not in stored:
                yield f"reservation {identity}: removed"
            elif identity not in self.jobs:
                yield f"reservation {identity}: no entry records it"
            else:
                job = self.jobs[identity]
                pairs = zip(_COLUMNS, stored[identity], job.columns(), strict=True)
                wrong = [name for name, recorded, told in pairs if recorded != told]
                for column in wrong:
                    yield f"reservation {identity}: its {column} does not match the entries"
                if "charges" not in wrong:
                    yield from (
                        f"reservation {identity}: {problem}"
                        for problem in job.wrong_charges(charges[identity])
                    )

    def compare_alerts(self, rows: Sequence[Any]) -> Iterator[str]:
        """Yield the alerts that differ from what the entries record."""
        told = {alert: command for alert, command in self.alerts.items() if command}
        if {(row[0], row[1]): row[2] for row in rows} != told:
            yield "alerts: do not match the entries"


@lru_cache(maxsize=8)  # few, because a table of charges may be long
def _parsed(charges: str) -> Charges:
    return Charges.from_dict(json.loads(charges))


def _meaning(binary: bool) -> AbstractContextManager[None]:
    """What floats stand for: binary fractions in entries of expost 0.1, otherwise decimals."""
    return binary_amounts() if binary else nullcontext()


def _digest(charges: Any) -> str:
    """The digest of stored charges, whose text is in canonical form already."""
    return hashlib.sha256(str(charges).encode()).hexdigest()


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
