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
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from expost.budget.chain import ABANDON, CAP, CREATE, RESERVE, SETTLE, Entry, canonical, digest
from expost.budget.filter import Filter
from expost.budget.replay import Replay, numbers, texts
from expost.budget.store import Rows, Store
from expost.budget.terms import Budget, Coordinates, as_budget, budget_from_dict
from expost.errors import InvalidInput, LedgerError
from expost.privacy.charges import Charges
from expost.privacy.guarantees import Guarantee
from expost.selection.release import NOTHING, Release

OPEN, SETTLED, ABANDONED = "open", "settled", "abandoned"
_EVERYBODY = ""
_RESERVATION = "id, budget, analyst, status, worst, charges, outcome"
_BUDGETS = "SELECT budget FROM expost_totals WHERE analyst = '' ORDER BY budget"
_LONGEST_NAME, _LONGEST_IDENTITY, _LONGEST_MEMO = 200, 64, 10_000


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
        return f"Ledger({self._store.url.render_as_string(hide_password=True)!r})"

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
        terms, limits = as_budget(budget), {who: as_budget(cap) for who, cap in (caps or {}).items()}
        _check_name(name, "name")
        for who, cap in limits.items():
            _check_cap(terms, who, cap)
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
        self, name: str, budget: Budget | Guarantee, *, caps: Mapping[str, Budget | Guarantee] | None = None
    ) -> None:
        """Add another named budget (one per data set), with an optional cap for each analyst inside it."""
        terms, limits = as_budget(budget), {who: as_budget(cap) for who, cap in (caps or {}).items()}
        _check_name(name, "name")
        for who, cap in limits.items():
            _check_cap(terms, who, cap)
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
        _check_memo(memo)
        _check_name(analyst or "everybody", "analyst")
        identity = secrets.token_hex(16) if reservation_id is None else reservation_id
        _check_name(identity, "reservation_id", _LONGEST_IDENTITY)
        with self._store.writing() as rows:
            head = rows.lock_head()
            found = None if reservation_id is None else _reservation(rows, identity)
            if found is not None:
                return _same_request(found, budget, analyst, table)
            name, filters = _open_budget(rows, budget, analyst)
            worst = filters[0].budget.worst(table)
            nexts = [each.reserve(worst) for each in filters]
            detail = {"worst": texts(worst), "charges": digest(table.as_dict())}
            _append(rows, head, RESERVE, name, analyst, identity, detail, memo)
            _update_totals(rows, nexts, name, analyst)
            rows.change(
                "INSERT INTO expost_reservations VALUES (:id, :b, :a, :s, :w, :c, NULL)",
                id=identity,
                b=name,
                a=analyst,
                s=OPEN,
                w=canonical(texts(worst)),
                c=canonical(table.as_dict()),
            )
        return Reservation(identity, name, analyst, table)

    def settle(self, reservation: Reservation | str, outcome: object) -> Guarantee:
        """Replace a held worst case by what the outcome costs, and say what that is.

        ``outcome`` is a candidate's index, a Release, or NOTHING (None). Settling again with the same outcome changes nothing; with
        another one it is refused.
        """
        index = _outcome_index(outcome)
        with self._store.writing() as rows:
            head = rows.lock_head()
            row = _known_reservation(rows, reservation)
            charge = _charge_of(row.charges, index)
            if row.status == SETTLED and row.outcome == _outcome_text(index):
                return charge
            if row.status != OPEN:
                raise LedgerError(f"reservation {row.id} is {row.status} already; it cannot be settled with another outcome")
            filters = _filters(rows, row.budget, row.analyst)
            realised = filters[0].budget.coordinates(charge)
            detail = {"spent": texts(realised), "outcome": _outcome_text(index)}
            _append(rows, head, SETTLE, row.budget, row.analyst, row.id, detail, "")
            _finish(rows, filters, row, realised, SETTLED, _outcome_text(index))
        return charge

    def abandon(self, reservation: Reservation | str) -> Guarantee:
        """Give a job up: its worst case is charged for good, because nobody can prove that nothing was seen."""
        with self._store.writing() as rows:
            head = rows.lock_head()
            row = _known_reservation(rows, reservation)
            if row.status == ABANDONED:
                return row.charges.worst_case
            if row.status != OPEN:
                raise LedgerError(f"reservation {row.id} is {row.status} already; it cannot be abandoned")
            filters = _filters(rows, row.budget, row.analyst)
            _append(rows, head, ABANDON, row.budget, row.analyst, row.id, {"spent": texts(row.worst)}, "")
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

    def remaining(self, budget: str | None = None, analyst: str = _EVERYBODY) -> float | dict[str, Any]:
        """What the next worst case may be; rounded down."""
        with self._store.reading() as rows:
            _, filter_ = _standing(rows, budget, analyst)
        return filter_.budget.describe(filter_.remaining, up=False)

    def open_reservations(self, budget: str | None = None) -> list[Reservation]:
        """Jobs that have not reported back."""
        with self._store.reading() as rows:
            name, _ = _open_budget(rows, budget, _EVERYBODY)
            ids = rows.all("SELECT id FROM expost_reservations WHERE budget = :b AND status = :s", b=name, s=OPEN)
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
            problems += replay.compare_head(rows.first("SELECT sequence, hash FROM expost_head WHERE place = 1"))
            problems += replay.compare_totals(rows.all("SELECT budget, analyst, terms, settled, held FROM expost_totals"))
            problems += replay.compare_reservations(rows.all(f"SELECT {_RESERVATION} FROM expost_reservations"))
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


def _reservation(rows: Rows, identity: str) -> _Row | None:
    row = rows.first(f"SELECT {_RESERVATION} FROM expost_reservations WHERE id = :i", i=identity)
    if row is None:
        return None
    name, budget, analyst, status, worst, charges, outcome = row
    with _sound(f"reservation {identity}"):
        return _Row(name, budget, analyst, status, numbers(json.loads(worst)), Charges.from_dict(json.loads(charges)), outcome)


def _known_reservation(rows: Rows, reservation: Reservation | str) -> _Row:
    identity = reservation.id if isinstance(reservation, Reservation) else reservation
    row = _reservation(rows, identity)
    if row is None:
        raise InvalidInput("reservation", identity, "no such reservation in this ledger")
    return row


def _same_request(found: _Row, budget: str | None, analyst: str, charges: Charges) -> Reservation:
    if (found.budget, found.analyst, found.charges) != (budget or found.budget, analyst, charges):
        raise LedgerError(f"reservation {found.id} exists already, for another request")
    if found.status == ABANDONED:
        raise LedgerError(f"reservation {found.id} was abandoned; its worst case is charged and the job cannot go on")
    return Reservation(found.id, found.budget, analyst, charges)


def _open_budget(rows: Rows, budget: str | None, analyst: str) -> tuple[str, list[Filter]]:
    """The budget's name (the only one, if none is named) and its filters."""
    names = [] if budget is not None else [str(row[0]) for row in rows.all(_BUDGETS)]
    if budget is None and len(names) > 1:
        raise InvalidInput("budget", None, "the ledger holds several budgets; name one of " + ", ".join(names))
    if budget is None and not names:
        raise LedgerError("the ledger is damaged: it holds no budget; run: expost ledger verify")
    name = budget if budget is not None else names[0]
    filters = _filters(rows, name, analyst)
    if not filters:
        raise InvalidInput("budget", name, "the ledger holds " + ", ".join(str(row[0]) for row in rows.all(_BUDGETS)))
    return name, filters


def _standing(rows: Rows, budget: str | None, analyst: str) -> tuple[str, Filter]:
    """The filter of a budget, or of an analyst's cap inside it."""
    name, found = _open_budget(rows, budget, analyst)
    if analyst and len(found) == 1:
        raise InvalidInput("analyst", analyst, f"no cap is set for them in budget {name!r}")
    return name, found[-1]


def _filters(rows: Rows, budget: str, analyst: str) -> list[Filter]:
    """The budget's filter and, if there is one, that of the analyst's cap."""
    statement = (
        "SELECT analyst, terms, settled, held FROM expost_totals WHERE budget = :b AND analyst IN ('', :a) ORDER BY analyst"
    )
    with _sound(f"the totals of budget {budget!r}"):
        return [
            Filter(
                budget_from_dict(json.loads(terms)),
                numbers(json.loads(settled)),
                numbers(json.loads(held)),
                f"{budget}, cap of {who}" if who else budget,
            )
            for who, terms, settled, held in rows.all(statement, b=budget, a=analyst)
        ]


@contextmanager
def _sound(what: str) -> Iterator[None]:
    """Rows that cannot be read as what they should be, as a LedgerError."""
    try:
        yield
    except (ValueError, KeyError, TypeError, ArithmeticError):
        raise LedgerError(f"the ledger is damaged at {what}; run: expost ledger verify") from None


def _add_budget(rows: Rows, name: str, terms: Budget, caps: Mapping[str, Budget]) -> None:
    head = rows.lock_head()
    if rows.first("SELECT 1 FROM expost_totals WHERE budget = :b", b=name):
        raise LedgerError(f"there is a budget {name!r} already; its terms cannot be changed")
    for who, cap in {_EVERYBODY: terms, **caps}.items():
        head = _append(rows, head, CAP if who else CREATE, name, who, "", {"terms": cap.as_dict()}, "")
        _insert_total(rows, Filter.empty(cap), name, who)


def _insert_total(rows: Rows, state: Filter, budget: str, analyst: str) -> None:
    rows.change(
        "INSERT INTO expost_totals VALUES (:b, :a, :t, :s, :h)",
        b=budget,
        a=analyst,
        t=canonical(state.budget.as_dict()),
        s=canonical(texts(state.settled)),
        h=canonical(texts(state.held)),
    )


def _update_totals(rows: Rows, states: list[Filter], budget: str, analyst: str) -> None:
    for who, state in zip((_EVERYBODY, analyst), states, strict=False):
        rows.change(
            "UPDATE expost_totals SET settled = :s, held = :h WHERE budget = :b AND analyst = :a",
            s=canonical(texts(state.settled)),
            h=canonical(texts(state.held)),
            b=budget,
            a=who,
        )


def _finish(rows: Rows, filters: list[Filter], row: _Row, realised: Coordinates, status: str, outcome: str | None) -> None:
    nexts = [each.settle(row.worst, realised) for each in filters]
    _update_totals(rows, nexts, row.budget, row.analyst)
    rows.change("UPDATE expost_reservations SET status = :s, outcome = :o WHERE id = :i", s=status, o=outcome, i=row.id)


def _append(
    rows: Rows,
    head: tuple[int, str],
    action: str,
    budget: str,
    analyst: str,
    reservation: str,
    detail: dict[str, Any],
    memo: str,
) -> tuple[int, str]:
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    entry = Entry(head[0] + 1, now, action, budget, analyst, reservation, canonical(detail), memo, head[1])
    entry = replace(entry, hash=entry.computed_hash())
    rows.append(entry)
    return entry.sequence, entry.hash


def _all_entries(rows: Rows) -> Iterator[Entry]:
    last = None
    while page := rows.entries(last):
        yield from page
        last = page[-1].sequence


def _outcome_index(outcome: object) -> int | None:
    if isinstance(outcome, Release):
        return outcome.index
    if outcome is None or outcome is NOTHING:
        return None
    if isinstance(outcome, int) and not isinstance(outcome, bool):
        return outcome
    raise InvalidInput("outcome", outcome, "give a candidate's index, a Release, or NOTHING")


def _outcome_text(index: int | None) -> str:
    return "nothing" if index is None else str(index)


def _charge_of(charges: Charges, index: int | None) -> Guarantee:
    if index is None:
        return charges.nothing
    if not 0 <= index < len(charges):
        raise InvalidInput("outcome", index, f"the reservation has outcomes 0 … {len(charges) - 1}")
    return charges[index]


def _check_name(name: object, field: str, longest: int = _LONGEST_NAME) -> None:
    if not isinstance(name, str) or not 0 < len(name) <= longest or "\x00" in name:
        raise InvalidInput(field, name, f"give a text of 1 to {longest} characters")


def _check_memo(memo: object) -> None:
    if not isinstance(memo, str) or len(memo) > _LONGEST_MEMO or "\x00" in memo:
        raise InvalidInput("memo", memo, f"give a text of at most {_LONGEST_MEMO} characters")


def _check_cap(terms: Budget, analyst: str, cap: Budget) -> None:
    _check_name(analyst, "analyst")
    same_orders = getattr(terms, "orders", None) == getattr(cap, "orders", None)
    if (cap.kind, cap.neighbours, cap.rule) != (terms.kind, terms.neighbours, terms.rule) or not same_orders:
        raise InvalidInput(f"caps[{analyst!r}]", cap, "a cap has the kind, relation and orders of its budget")
