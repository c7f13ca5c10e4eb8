"""The table of reservations: the worst case of each request, its status and its charges.

Every function works on the rows of a transaction that the caller opened.
Tests: ``tests/budget/test_ledger.py``.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from hashlib import sha256

from expost.budget.ledger_rows import LONGEST_IDENTITY, LedgerRows, check_ledger_name, digest
from expost.budget.limits import Budget, Coordinates, Filter, amount_texts
from expost.budget.totals import (
    NO_ANALYST,
    Standing,
    amounts,
    book_earlier,
    find_budget,
    find_filter,
    readable,
    renewal_of,
    update_totals,
)
from expost.errors import InvalidInput, LedgerError
from expost.files import canonical
from expost.privacy.charges import Charges
from expost.privacy.guarantees import Guarantee

OPEN, SETTLED, ABANDONED = "open", "settled", "abandoned"

COLUMNS = "id, budget, analyst, status, worst, charges, outcome, entry, request, secret"
INSERT = f"INSERT INTO expost_reservations VALUES (:{COLUMNS.replace(', ', ', :')})"


@dataclass(frozen=True)
class Reservation:
    """A worst case that is held for a request until the request is settled.

    Parameters
    ----------
    id : str
        The id of the reservation, unique in its ledger.
    budget : str
        Name of the budget.
    analyst : str
        Name of the analyst; empty if none was named.
    charges : Charges
        The charge of every outcome.
    secret : str, optional
        What settling needs. The ledger keeps only its digest, so that only the one who reserved
        knows it; it is None in a reservation that was looked up.
    time : str
        When it was reserved, as ISO 8601 text in UTC.
    """

    id: str
    budget: str
    analyst: str
    charges: Charges
    secret: str | None = field(default=None, repr=False, compare=False)
    time: str = field(default="", compare=False)

    @property
    def worst_case(self) -> Guarantee:
        """The largest charge of any outcome."""
        return self.charges.worst_case


@dataclass(frozen=True)
class OpenReservation:
    """A request that has not reported back: reservation without secret, time and memo."""

    reservation: Reservation
    time: str
    memo: str


@dataclass(frozen=True)
class StoredReservation:
    """One row of the table of reservations, parsed."""

    id: str
    budget: str
    analyst: str
    status: str
    worst: Coordinates
    charges: Charges
    outcome: str | None
    entry: int
    request: str
    secret: str

    def public(self, secret: str | None = None, time: str = "") -> Reservation:
        """The part that callers see."""
        return Reservation(self.id, self.budget, self.analyst, self.charges, secret, time)

    def spent(self, terms: Budget) -> Coordinates | None:
        """What was charged, measured by a budget; None while the reservation is open."""
        if self.status == OPEN:
            return None
        if self.status == ABANDONED or self.outcome is None:
            return self.worst
        nothing = self.outcome == "nothing"
        return terms.coordinates(
            self.charges.nothing if nothing else self.charges[int(self.outcome)]
        )

    def accepts(self, secret: str | None) -> bool:
        """Whether this is the secret of the reservation."""
        if secret is None or not self.secret:
            return False
        return hmac.compare_digest(self.secret, secret_digest(secret))

    def require(self, secret: str | None) -> None:
        """Refuse a secret that is missing or wrong."""
        if not self.secret:
            raise LedgerError(
                f"reservation {self.id} was made by expost 0.1 and has no secret; it cannot be "
                "settled: close it with: expost ledger abandon (its worst case stays charged)"
            )
        if not self.accepts(secret):
            raise LedgerError(
                f"reservation {self.id} belongs to whoever made it: pass the Reservation that "
                "reserve returned, or its secret"
            )


def secret_digest(secret: str) -> str:
    """What the ledger stores of a secret."""
    return sha256(b"expost reservation " + secret.encode()).hexdigest()


def request_digest(budget: str, analyst: str, charges: str, request: str | None) -> str:
    """The digest by which a request is recognised; ``charges`` and ``request`` are digests."""
    told = {"budget": budget, "analyst": analyst, "charges": charges, "request": request or ""}
    return digest(told)


def find(rows: LedgerRows, identity: str) -> StoredReservation | None:
    """The reservation with this id, or None."""
    row = rows.first(f"SELECT {COLUMNS} FROM expost_reservations WHERE id = :i", i=identity)
    if row is None:
        return None
    name, budget, analyst, status, worst, charges, *rest = row
    with readable(f"reservation {identity}"):
        return StoredReservation(
            name, budget, analyst, status, amounts(worst), _charges(charges), *rest
        )


def find_known(rows: LedgerRows, reservation: Reservation | str) -> StoredReservation:
    """The row of a reservation; refused if there is none."""
    identity = reservation.id if isinstance(reservation, Reservation) else reservation
    check_ledger_name(identity, "reservation", LONGEST_IDENTITY)
    row = find(rows, identity)
    if row is None:
        raise InvalidInput(
            "reservation",
            identity,
            "there is no such reservation in this ledger; list them with: expost ledger entries",
        )
    return row


def find_open(rows: LedgerRows, budget: str) -> list[StoredReservation]:
    """The reservations of a budget that are still open."""
    ids = rows.all(
        "SELECT id FROM expost_reservations WHERE budget = :b AND status = :s", b=budget, s=OPEN
    )
    return [find_known(rows, str(row[0])) for row in ids]


def repeat_request(
    stored: StoredReservation,
    budget: str | None,
    analyst: str,
    request: tuple[str, str | None],
    secret: str | None,
    *,
    resume: bool,
) -> Reservation:
    """The stored reservation for a repeated request; refused if the request differs.

    ``request`` holds the digests of the charges and of the description.
    """
    same = request_digest(budget or stored.budget, analyst, *request)
    if stored.request != same or (budget or stored.budget) != stored.budget:
        raise LedgerError(f"reservation {stored.id} exists already, for another request")
    if stored.status == ABANDONED:
        raise LedgerError(
            f"reservation {stored.id} was abandoned: its worst case stays charged, "
            "and the request cannot be resumed"
        )
    if stored.status == SETTLED and not resume:
        raise LedgerError(
            f"reservation {stored.id} is settled: it can be read, but a second run needs a "
            "reservation of its own"
        )
    stored.require(secret)
    return stored.public(secret)


def insert(rows: LedgerRows, new: StoredReservation, charges: str) -> None:
    """Write a new reservation; ``charges``: its charges as text."""
    texts = {"worst": canonical(amount_texts(new.worst)), "charges": charges}
    rows.change(INSERT, **(vars(new) | texts))


def finish(
    rows: LedgerRows,
    filters: list[Filter],
    row: StoredReservation,
    charge: Coordinates,
    status: str,
    outcome: str | None,
) -> None:
    """Replace the worst case by the actual charge in the totals, and close the reservation.

    The charge is booked in the period in which the request was admitted.
    """
    earlier = admitted_earlier(rows, row)
    nexts = [state.settle(row.worst, charge, earlier=earlier) for state in filters]
    update_totals(rows, nexts, row.budget, row.analyst)
    if earlier:
        book_earlier(rows, charge, row.budget, row.analyst)
    rows.change(
        "UPDATE expost_reservations SET status = :s, outcome = :o WHERE id = :i",
        s=status,
        o=outcome,
        i=row.id,
    )


def admitted_earlier(rows: LedgerRows, row: StoredReservation) -> bool:
    """Whether a request was admitted before the present period of its budget.

    The entry of the reservation says in which one. Entries of expost 0.2 do not; their charges are
    booked in the period in which they are settled.
    """
    renewal = renewal_of(rows, row.budget)
    entry = None if renewal is None else rows.entry(row.entry)
    if renewal is None or entry is None:
        return False
    return "" < str(entry.facts.get("period", "")) < renewal.period


def standing_of(
    rows: LedgerRows, budget: str | None, analyst: str, without: Iterable[str] = ()
) -> Standing:
    """The state of a budget or a cap, without some reservations."""
    name, filter_ = find_filter(rows, budget, analyst)
    count = int(rows.one("SELECT COUNT(*) FROM expost_entries WHERE budget = :b", b=name)[0])
    renewal = renewal_of(rows, name, analyst)
    left_out = _left_out(rows, name, analyst, without)
    count -= sum(1 if row.status == OPEN else 2 for row in left_out)
    filter_, past = _without(rows, filter_, () if renewal is None else renewal.past, left_out)
    renewal = None if renewal is None else replace(renewal, past=past)
    return Standing(name, analyst, filter_, count, renewal)


def filters_without(
    rows: LedgerRows, budget: str | None, analyst: str, without: Iterable[str] = ()
) -> list[Filter]:
    """The filter of a budget and, if there is one, of a cap, without some reservations."""
    name, filters = find_budget(rows, budget, analyst)
    return [
        _without(rows, filter_, (), _left_out(rows, name, who, without))[0]
        for who, filter_ in zip((NO_ANALYST, analyst), filters, strict=False)
    ]


def _left_out(
    rows: LedgerRows, budget: str, analyst: str, without: Iterable[str]
) -> list[StoredReservation]:
    """The reservations to be left out of a budget or a cap."""
    known = (find(rows, identity) for identity in without)
    return [
        row
        for row in known
        if row is not None and row.budget == budget and analyst in (NO_ANALYST, row.analyst)
    ]


def _without(
    rows: LedgerRows, filter_: Filter, past: Coordinates, left_out: Iterable[StoredReservation]
) -> tuple[Filter, Coordinates]:
    """A filter, and what was settled in earlier periods, as if nobody had made some requests."""
    settled, held = filter_.settled, filter_.held
    for row in left_out:
        spent = row.spent(filter_.budget)
        if spent is None:
            held = _less(held, row.worst)
        elif not admitted_earlier(rows, row):
            settled = _less(settled, spent)
        elif past:
            past = _less(past, spent)
    return replace(filter_, settled=settled, held=held), past


def _less(total: Coordinates, part: Coordinates) -> Coordinates:
    # A charge of an earlier period may have left the sums of this one.
    return tuple(max(a - b, Fraction(0)) for a, b in zip(total, part, strict=True))


@lru_cache(maxsize=8)  # few, because a table of charges may be long
def _charges(text: str) -> Charges:
    """The charges that stored text describes."""
    return Charges.from_dict(json.loads(text))
