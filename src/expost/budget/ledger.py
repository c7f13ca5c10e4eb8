"""The ledger: reserve before data is read, settle when the outcome is known, remember everything.

What it promises: a request that was admitted is recorded durably before it may run; at no instant do settled and held charges exceed a
budget, whatever crashes and however many processes and hosts ask at once; a request that never reports back stays charged at its
worst case; no row can be changed unnoticed (``verify``). See docs/ledger.md for what it does not promise. Tests: ``tests/budget/``.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from expost.budget.budgets import Budget, Coordinates, as_budget, budget_from_dict
from expost.budget.filter import Filter
from expost.budget.hash_chain import ABANDON, CAP, CREATE, RESERVE, SETTLE, Entry, canonical
from expost.budget.replay import Replay, numbers, texts
from expost.budget.requests import (
    LONGEST_IDENTITY,
    charge_of,
    check_cap,
    check_memo,
    check_name,
    outcome_text,
)
from expost.budget.store import LedgerRows, Store
from expost.errors import InvalidInput, LedgerError
from expost.privacy.charges import Charges
from expost.privacy.guarantees import Guarantee

OPEN, SETTLED, ABANDONED = "open", "settled", "abandoned"
_EVERYBODY = ""
_RESERVATION = "id, budget, analyst, status, worst, charges, outcome"
_BUDGETS = "SELECT budget FROM expost_totals WHERE analyst = '' ORDER BY budget"


@dataclass(frozen=True)
class Reservation:
    """A worst case that is held for a job until it settles."""

    id: str
    budget: str
    analyst: str
    charges: Charges

    @property
    def worst_case(self) -> Guarantee:
        return self.charges.worst_case


@dataclass(frozen=True)
class Standing:
    """Where a budget (or an analyst's cap inside it) stands."""

    name: str
    analyst: str
    filter: Filter
    entries: int

    def as_dict(self) -> dict[str, Any]:
        """The JSON form of ``expost ledger show``."""
        budget = self.filter.budget
        return {
            "name": self.name,
            "kind": budget.kind,
            "budget": budget.as_dict(),
            "settled": budget.describe(self.filter.settled),
            "held": budget.describe(self.filter.held),
            "remaining": budget.describe(self.filter.remaining, up=False),
            "entries": self.entries,
        } | ({"analyst": self.analyst} if self.analyst else {})


class Ledger:
    """Named budgets in a database; open it as often as you like, from as many processes as you like."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __repr__(self) -> str:
        return f"Ledger({self._store.place!r})"

    @property
    def identity(self) -> str:
        """A fingerprint of the ledger: the hash of its first entry."""
        with self._store.reading() as rows:
            return str(rows.one("SELECT hash FROM expost_entries WHERE sequence = 1")[0])

    @classmethod
    def create(
        cls,
        url: str | Path,
        budget: Budget | Guarantee,
        name: str = "default",
        *,
        caps: Mapping[str, Budget | Guarantee] | None = None,
    ) -> Ledger:
        """Make a new ledger with one budget; refused if there is one already. The terms can never be changed."""
        terms, limits = (
            as_budget(budget),
            {who: as_budget(cap) for who, cap in (caps or {}).items()},
        )
        check_name(name, "name")
        for who, cap in limits.items():
            check_cap(terms, who, cap)
        store = Store(url)
        if store.exists():
            raise LedgerError("there is a ledger already; open it, or add a budget to it")
        store.create(lambda rows: _add_budget(rows, name, terms, limits))
        return cls(store)

    @classmethod
    def open(cls, url: str | Path) -> Ledger:
        """Open an existing ledger of a schema that this version knows."""
        store = Store(url)
        store.check_schema()
        return cls(store)

    def add_budget(
        self,
        name: str,
        budget: Budget | Guarantee,
        *,
        caps: Mapping[str, Budget | Guarantee] | None = None,
    ) -> None:
        """Add another named budget (one per data set), with an optional cap for each analyst inside it."""
        terms, limits = (
            as_budget(budget),
            {who: as_budget(cap) for who, cap in (caps or {}).items()},
        )
        check_name(name, "name")
        for who, cap in limits.items():
            check_cap(terms, who, cap)
        with self._store.writing() as rows:
            _add_budget(rows, name, terms, limits)

    def budgets(self) -> list[str]:
        """The names of the budgets."""
        with self._store.reading() as rows:
            return [str(row[0]) for row in rows.all(_BUDGETS)]

    def reserve(
        self,
        charges: Charges | Guarantee,
        memo: str = "",
        *,
        budget: str | None = None,
        analyst: str = _EVERYBODY,
        reservation_id: str | None = None,
    ) -> Reservation:
        """Hold the worst case of a job, durably, or refuse (``BudgetRefused``, nothing changed).

        The budget and the analyst's cap are checked in the same transaction. With a ``reservation_id`` of your own the call may be
        repeated: the second time it returns the same reservation and holds nothing more.
        """
        table = charges if isinstance(charges, Charges) else Charges.from_list([charges], charges)
        identity = secrets.token_hex(16) if reservation_id is None else reservation_id
        check_name(identity, "reservation_id", LONGEST_IDENTITY)
        with self._store.writing() as rows:
            head = rows.lock_head()
            found = None if reservation_id is None else _reservation(rows, identity)
            if found is not None:
                return _same_request(found, budget, analyst, table)
            check_memo(memo)
            check_name(analyst or "everybody", "analyst")
            name, filters = _open_budget(rows, budget, analyst)
            worst = filters[0].budget.worst(table)
            nexts = [each.reserve(worst) for each in filters]
            recorded = canonical(table.as_dict())
            detail = {"worst": texts(worst), "charges": sha256(recorded.encode()).hexdigest()}
            _append(rows, head, RESERVE, name, analyst, identity, detail, memo)
            _update_totals(rows, nexts, name, analyst)
            rows.change(
                "INSERT INTO expost_reservations VALUES (:id, :b, :a, :s, :w, :c, NULL)",
                id=identity,
                b=name,
                a=analyst,
                s=OPEN,
                w=canonical(texts(worst)),
                c=recorded,
            )
        return Reservation(identity, name, analyst, table)

    def settle(self, reservation: Reservation | str, outcome: object) -> Guarantee:
        """Replace a held worst case by what the outcome costs, and say what that is.

        ``outcome`` is a candidate's index, a Release, or NOTHING (None). Settling again with the same outcome changes nothing; with
        another one it is refused.
        """
        text = outcome_text(outcome)
        with self._store.writing() as rows:
            head = rows.lock_head()
            row = _known_reservation(rows, reservation)
            charge = charge_of(row.charges, outcome)
            if row.status == SETTLED and row.outcome == text:
                return charge
            if row.status != OPEN:
                raise LedgerError(
                    f"reservation {row.id} is {row.status} already; it cannot be settled with another outcome"
                )
            filters = _filters(rows, row.budget, row.analyst)
            realised = filters[0].budget.coordinates(charge)
            detail = {"spent": texts(realised), "outcome": text}
            _append(rows, head, SETTLE, row.budget, row.analyst, row.id, detail, "")
            _finish(rows, filters, row, realised, SETTLED, text)
        return charge

    def abandon(self, reservation: Reservation | str) -> Guarantee:
        """Give a job up: its worst case is charged for good, because nobody can prove that nothing was seen."""
        with self._store.writing() as rows:
            head = rows.lock_head()
            row = _known_reservation(rows, reservation)
            if row.status == ABANDONED:
                return row.charges.worst_case
            if row.status != OPEN:
                raise LedgerError(
                    f"reservation {row.id} is {row.status} already; it cannot be abandoned"
                )
            filters = _filters(rows, row.budget, row.analyst)
            _append(
                rows,
                head,
                ABANDON,
                row.budget,
                row.analyst,
                row.id,
                {"spent": texts(row.worst)},
                "",
            )
            _finish(rows, filters, row, row.worst, ABANDONED, None)
        return row.charges.worst_case

    def reservation(self, identity: str) -> Reservation | None:
        """A reservation by its id, whatever its state."""
        with self._store.reading() as rows:
            row = _reservation(rows, identity)
        return None if row is None else Reservation(row.id, row.budget, row.analyst, row.charges)

    def status_of(self, reservation: Reservation | str) -> str:
        """``open``, ``settled`` or ``abandoned``."""
        with self._store.reading() as rows:
            return _known_reservation(rows, reservation).status

    def standing(self, budget: str | None = None, analyst: str = _EVERYBODY) -> Standing:
        """Settled, held and remaining of a budget, or of an analyst's cap."""
        with self._store.reading() as rows:
            name, filter_ = _standing(rows, budget, analyst)
            count = rows.one("SELECT COUNT(*) FROM expost_entries WHERE budget = :b", b=name)[0]
        return Standing(name, analyst, filter_, int(count))

    def kind_of(self, budget: str | None = None) -> str:
        """The kind of a budget: pure, approx, zcdp or renyi."""
        with self._store.reading() as rows:
            return _open_budget(rows, budget, _EVERYBODY)[1][0].budget.kind

    def remaining(
        self, budget: str | None = None, analyst: str = _EVERYBODY
    ) -> float | dict[str, Any]:
        """What the next worst case may be; rounded down."""
        with self._store.reading() as rows:
            _, filter_ = _standing(rows, budget, analyst)
        return filter_.budget.describe(filter_.remaining, up=False)

    def open_reservations(self, budget: str | None = None) -> list[Reservation]:
        """Jobs that have not reported back."""
        with self._store.reading() as rows:
            name, _ = _open_budget(rows, budget, _EVERYBODY)
            ids = rows.all(
                "SELECT id FROM expost_reservations WHERE budget = :b AND status = :s",
                b=name,
                s=OPEN,
            )
            found = [_known_reservation(rows, str(row[0])) for row in ids]
        return [Reservation(row.id, row.budget, row.analyst, row.charges) for row in found]

    def entries(self) -> Iterator[Entry]:
        """All entries, oldest first."""
        last = None
        while True:
            with self._store.reading() as rows:
                page = rows.entries(last)
            if not page:
                return
            yield from page
            last = page[-1].sequence

    def verify(self) -> list[str]:
        """What is wrong with the ledger: broken links, sums that do not add up, an overspent instant. Empty if all is well."""
        replay = Replay()
        with self._store.reading() as rows:
            problems = list(replay.check(_all_entries(rows)))
            problems += replay.compare_head(
                rows.first("SELECT sequence, hash FROM expost_head WHERE place = 1")
            )
            problems += replay.compare_totals(
                rows.all("SELECT budget, analyst, terms, settled, held FROM expost_totals")
            )
            problems += replay.compare_reservations(
                rows.all(f"SELECT {_RESERVATION} FROM expost_reservations")
            )
            problems += rows.damage()
        return problems


@dataclass(frozen=True)
class _Row:
    """A reservation as stored."""

    id: str
    budget: str
    analyst: str
    status: str
    worst: Coordinates
    charges: Charges
    outcome: str | None


def _reservation(rows: LedgerRows, identity: str) -> _Row | None:
    row = rows.first(f"SELECT {_RESERVATION} FROM expost_reservations WHERE id = :i", i=identity)
    if row is None:
        return None
    name, budget, analyst, status, worst, charges, outcome = row
    with _sound(f"reservation {identity}"):
        return _Row(name, budget, analyst, status, _amounts(worst), _charges(charges), outcome)


def _known_reservation(rows: LedgerRows, reservation: Reservation | str) -> _Row:
    identity = reservation.id if isinstance(reservation, Reservation) else reservation
    check_name(identity, "reservation", LONGEST_IDENTITY)
    row = _reservation(rows, identity)
    if row is None:
        raise InvalidInput("reservation", identity, "no such reservation in this ledger")
    return row


def _same_request(found: _Row, budget: str | None, analyst: str, charges: Charges) -> Reservation:
    if (found.budget, found.analyst, found.charges) != (budget or found.budget, analyst, charges):
        raise LedgerError(f"reservation {found.id} exists already, for another request")
    if found.status == ABANDONED:
        raise LedgerError(
            f"reservation {found.id} was abandoned; its worst case is charged and the job cannot go on"
        )
    return Reservation(found.id, found.budget, analyst, charges)


def _open_budget(rows: LedgerRows, budget: str | None, analyst: str) -> tuple[str, list[Filter]]:
    """The budget's name (the only one, if none is named) and its filters."""
    names = [] if budget is not None else [str(row[0]) for row in rows.all(_BUDGETS)]
    if budget is None and len(names) > 1:
        raise InvalidInput(
            "budget", None, "the ledger holds several budgets; name one of " + ", ".join(names)
        )
    if budget is None and not names:
        raise LedgerError("the ledger is damaged: it holds no budget; run: expost ledger verify")
    name = budget if budget is not None else names[0]
    check_name(name, "budget")
    filters = _filters(rows, name, analyst)
    if not filters:
        raise InvalidInput(
            "budget",
            name,
            "the ledger holds " + ", ".join(str(row[0]) for row in rows.all(_BUDGETS)),
        )
    return name, filters


def _standing(rows: LedgerRows, budget: str | None, analyst: str) -> tuple[str, Filter]:
    """The filter of a budget, or of an analyst's cap inside it."""
    name, found = _open_budget(rows, budget, analyst)
    if analyst and len(found) == 1:
        raise InvalidInput("analyst", analyst, f"no cap is set for them in budget {name!r}")
    return name, found[-1]


def _filters(rows: LedgerRows, budget: str, analyst: str) -> list[Filter]:
    """The budget's filter and, if there is one, that of the analyst's cap."""
    statement = "SELECT analyst, terms, settled, held FROM expost_totals WHERE budget = :b AND analyst IN ('', :a) ORDER BY analyst"
    with _sound(f"the totals of budget {budget!r}"):
        return [
            Filter(
                _terms(terms),
                _amounts(settled),
                _amounts(held),
                f"{budget}, cap of {who}" if who else budget,
            )
            for who, terms, settled, held in rows.all(statement, b=budget, a=analyst)
        ]


@lru_cache(maxsize=64)
def _amounts(text: str) -> Coordinates:
    return numbers(json.loads(text))


@lru_cache(maxsize=64)
def _terms(text: str) -> Budget:
    return budget_from_dict(json.loads(text))


@lru_cache(maxsize=8)  # a table may be long
def _charges(text: str) -> Charges:
    return Charges.from_dict(json.loads(text))


@contextmanager
def _sound(what: str) -> Iterator[None]:
    """Rows that cannot be read as what they should be, as a LedgerError."""
    try:
        yield
    except (ValueError, KeyError, TypeError, ArithmeticError):
        raise LedgerError(f"the ledger is damaged at {what}; run: expost ledger verify") from None


def _add_budget(rows: LedgerRows, name: str, terms: Budget, caps: Mapping[str, Budget]) -> None:
    head = rows.lock_head()
    if rows.first("SELECT 1 FROM expost_totals WHERE budget = :b", b=name):
        raise LedgerError(f"there is a budget {name!r} already; its terms cannot be changed")
    for who, cap in {_EVERYBODY: terms, **caps}.items():
        head = _append(
            rows, head, CAP if who else CREATE, name, who, "", {"terms": cap.as_dict()}, ""
        )
        _insert_total(rows, Filter.empty(cap), name, who)


def _insert_total(rows: LedgerRows, state: Filter, budget: str, analyst: str) -> None:
    rows.change(
        "INSERT INTO expost_totals VALUES (:b, :a, :t, :s, :h)",
        b=budget,
        a=analyst,
        t=canonical(state.budget.as_dict()),
        s=canonical(texts(state.settled)),
        h=canonical(texts(state.held)),
    )


def _update_totals(rows: LedgerRows, states: list[Filter], budget: str, analyst: str) -> None:
    for who, state in zip((_EVERYBODY, analyst), states, strict=False):
        rows.change(
            "UPDATE expost_totals SET settled = :s, held = :h WHERE budget = :b AND analyst = :a",
            s=canonical(texts(state.settled)),
            h=canonical(texts(state.held)),
            b=budget,
            a=who,
        )


def _finish(
    rows: LedgerRows,
    filters: list[Filter],
    row: _Row,
    realised: Coordinates,
    status: str,
    outcome: str | None,
) -> None:
    nexts = [each.settle(row.worst, realised) for each in filters]
    _update_totals(rows, nexts, row.budget, row.analyst)
    rows.change(
        "UPDATE expost_reservations SET status = :s, outcome = :o WHERE id = :i",
        s=status,
        o=outcome,
        i=row.id,
    )


def _append(
    rows: LedgerRows,
    head: tuple[int, str],
    action: str,
    budget: str,
    analyst: str,
    reservation: str,
    detail: dict[str, Any],
    memo: str,
) -> tuple[int, str]:
    entry = Entry.after(
        head,
        time=datetime.now(UTC).isoformat(timespec="milliseconds"),
        action=action,
        budget=budget,
        analyst=analyst,
        reservation=reservation,
        detail=canonical(detail),
        memo=memo,
    )
    rows.append(entry)
    return entry.sequence, entry.hash


def _all_entries(rows: LedgerRows) -> Iterator[Entry]:
    last = None
    while page := rows.entries(last):
        yield from page
        last = page[-1].sequence
