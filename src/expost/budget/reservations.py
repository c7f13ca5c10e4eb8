"""The table of reservations: the worst case of each request, its status and its charges.

Every function works on the rows of a transaction that the caller opened.
Tests: ``tests/budget/test_ledger.py``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache

from expost.budget.base import Coordinates
from expost.budget.filter import Filter
from expost.budget.hash_chain import canonical
from expost.budget.replay import texts
from expost.budget.requests import LONGEST_IDENTITY, check_name
from expost.budget.store import LedgerRows
from expost.budget.totals import amounts, readable, update_totals
from expost.errors import InvalidInput, LedgerError
from expost.privacy.charges import Charges
from expost.privacy.guarantees import Guarantee

OPEN, SETTLED, ABANDONED = "open", "settled", "abandoned"

COLUMNS = "id, budget, analyst, status, worst, charges, outcome"


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
    """

    id: str
    budget: str
    analyst: str
    charges: Charges

    @property
    def worst_case(self) -> Guarantee:
        """The largest charge of any outcome."""
        return self.charges.worst_case


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

    def public(self) -> Reservation:
        """The part that callers see."""
        return Reservation(self.id, self.budget, self.analyst, self.charges)


def find(rows: LedgerRows, identity: str) -> StoredReservation | None:
    """The reservation with this id, or None."""
    row = rows.first(f"SELECT {COLUMNS} FROM expost_reservations WHERE id = :i", i=identity)
    if row is None:
        return None
    name, budget, analyst, status, worst, charges, outcome = row
    with readable(f"reservation {identity}"):
        return StoredReservation(
            name, budget, analyst, status, amounts(worst), _charges(charges), outcome
        )


def find_known(rows: LedgerRows, reservation: Reservation | str) -> StoredReservation:
    """The row of a reservation; refused if there is none."""
    identity = reservation.id if isinstance(reservation, Reservation) else reservation
    check_name(identity, "reservation", LONGEST_IDENTITY)
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
    found: StoredReservation, budget: str | None, analyst: str, charges: Charges
) -> Reservation:
    """The stored reservation for a repeated request; refused if the request differs."""
    if (found.budget, found.analyst, found.charges) != (budget or found.budget, analyst, charges):
        raise LedgerError(f"reservation {found.id} exists already, for another request")
    if found.status == ABANDONED:
        raise LedgerError(
            f"reservation {found.id} was abandoned: its worst case stays charged, "
            "and the request cannot be resumed"
        )
    return found.public()


def insert(
    rows: LedgerRows, identity: str, budget: str, analyst: str, worst: Coordinates, charges: str
) -> None:
    """Write a new, open reservation."""
    rows.change(
        "INSERT INTO expost_reservations VALUES (:id, :b, :a, :s, :w, :c, NULL)",
        id=identity,
        b=budget,
        a=analyst,
        s=OPEN,
        w=canonical(texts(worst)),
        c=charges,
    )


def finish(
    rows: LedgerRows,
    filters: list[Filter],
    row: StoredReservation,
    realised: Coordinates,
    status: str,
    outcome: str | None,
) -> None:
    """Replace the worst case by the realised charge in the totals, and close the reservation."""
    nexts = [each.settle(row.worst, realised) for each in filters]
    update_totals(rows, nexts, row.budget, row.analyst)
    rows.change(
        "UPDATE expost_reservations SET status = :s, outcome = :o WHERE id = :i",
        s=status,
        o=outcome,
        i=row.id,
    )


@lru_cache(maxsize=8)  # few, because a table of charges may be long
def _charges(text: str) -> Charges:
    """The charges that stored text describes."""
    return Charges.from_dict(json.loads(text))
