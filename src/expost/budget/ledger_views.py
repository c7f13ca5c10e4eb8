"""What can be read from a ledger: amounts, reservations, entries, and the check of all of it.

These methods never write. Tests: ``tests/budget/test_ledger.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from expost.budget import reservation_rows, totals
from expost.budget.ledger_rows import Entry, LedgerRows
from expost.budget.limits import Coordinates
from expost.budget.replay import Replay
from expost.budget.reservation_rows import Reservation
from expost.budget.store import Store
from expost.budget.totals import NO_ANALYST, Alert, Standing, stored_alerts
from expost.errors import InvalidInput


@dataclass(frozen=True)
class OpenReservation:
    """A request that has not reported back: reservation without secret, time and memo."""

    reservation: Reservation
    time: str
    memo: str


class LedgerViews:
    """The part of a ledger that only reads. Use :class:`expost.budget.ledger.Ledger`."""

    def __init__(self, store: Store) -> None:
        if not isinstance(store, Store):
            raise InvalidInput(
                "store",
                type(store).__name__,  # a URL may hold a password
                "use Ledger.open(…) for an existing ledger or Ledger.create(…) for a new one",
            )
        self._store = store
        self._identity: str | None = None

    def __repr__(self) -> str:
        return f"Ledger({self._store.address!r})"

    def _repr_html_(self) -> str:
        """Return the state of every budget for a notebook."""
        from expost.html_tables import HtmlTable, html_summary

        states = [self.standing(name).as_dict() for name in self.budgets()]
        columns = ["name", "kind", "settled", "held", "remaining", "entries"]
        rows = [[state[column] for column in columns] for state in states]
        return html_summary("Ledger", {"budgets": len(rows)}, HtmlTable("Budgets", columns, rows))

    @property
    def path(self) -> Path | None:
        """The file of the ledger; None if it is in a database server."""
        return None if self._store.location.path is None else Path(self._store.location.path)

    @property
    def identity(self) -> str:
        """A fingerprint of the ledger: the hash of its first entry."""
        if self._identity is None:
            with self._store.reading() as rows:
                self._identity = str(
                    rows.one("SELECT hash FROM expost_entries WHERE sequence = 1")[0]
                )
        return self._identity

    def budgets(self) -> list[str]:
        """Return the names of the budgets, sorted."""
        with self._store.reading() as rows:
            return totals.budget_names(rows)

    def reservation(self, identity: str) -> Reservation | None:
        """Return the reservation with this id in any state, or None if there is none."""
        with self._store.reading() as rows:
            row = reservation_rows.find(rows, identity)
        return None if row is None else row.public()

    def status_of(self, reservation: Reservation | str) -> str:
        """Return ``"open"``, ``"settled"`` or ``"abandoned"``."""
        with self._store.reading() as rows:
            return reservation_rows.find_known(rows, reservation).status

    def standing(
        self,
        budget: str | None = None,
        analyst: str = NO_ANALYST,
        *,
        without: Iterable[str] = (),
    ) -> Standing:
        """Return the settled, held and remaining amounts of a budget, or of an analyst's cap.

        Parameters
        ----------
        budget : str, optional
            Name of the budget. It may be omitted if the ledger has only one.
        analyst : str, optional
            Name of an analyst who has a cap.
        without : iterable of str, optional
            Ids of reservations that are left out, as if nobody had made them.
        """
        with self._store.reading() as rows:
            return _standing(rows, budget, analyst, without)

    def caps(self, budget: str | None = None, *, without: Iterable[str] = ()) -> list[Standing]:
        """Return the state of every analyst's cap in a budget, sorted by name."""
        with self._store.reading() as rows:
            name, _ = totals.find_budget(rows, budget, NO_ANALYST)
            analysts = totals.capped_analysts(rows, name)
            return [_standing(rows, name, who, without) for who in analysts]

    def kind_of(self, budget: str | None = None) -> str:
        """Return the kind of a budget: ``"pure"``, ``"approx"``, ``"zcdp"`` or ``"renyi"``."""
        with self._store.reading() as rows:
            return totals.find_budget(rows, budget, NO_ANALYST)[1][0].budget.kind

    def remaining(
        self, budget: str | None = None, analyst: str = NO_ANALYST
    ) -> float | dict[str, Any]:
        """Return the largest worst case that still fits, rounded down (:meth:`Budget.describe`)."""
        with self._store.reading() as rows:
            _, filter_ = totals.find_filter(rows, budget, analyst)
        return filter_.budget.describe(filter_.remaining, up=False)

    def open_reservations(self, budget: str | None = None) -> list[Reservation]:
        """Return the reservations of a budget that have not been settled or abandoned."""
        with self._store.reading() as rows:
            name, _ = totals.find_budget(rows, budget, NO_ANALYST)
            return [row.public() for row in reservation_rows.find_open(rows, name)]

    def waiting(self, budget: str | None = None) -> list[OpenReservation]:
        """Return the open reservations of a budget with their time and memo, oldest first."""
        with self._store.reading() as rows:
            name, _ = totals.find_budget(rows, budget, NO_ANALYST)
            waiting = []
            for row in sorted(reservation_rows.find_open(rows, name), key=lambda row: row.entry):
                entry = rows.entry(row.entry)
                time, memo = ("", "") if entry is None else (entry.time, entry.memo)
                waiting.append(OpenReservation(row.public(time=time), time, memo))
        return waiting

    def alerts(self, budget: str | None = None) -> list[Alert]:
        """Return the alerts of a budget."""
        with self._store.reading() as rows:
            name, _ = totals.find_budget(rows, budget, NO_ANALYST)
            return stored_alerts(rows, name)

    def statuses(self) -> dict[str, str]:
        """Return the status of every reservation by its id."""
        with self._store.reading() as rows:
            return {
                str(row[0]): str(row[1])
                for row in rows.all("SELECT id, status FROM expost_reservations")
            }

    def entries(self, after: int | None = None) -> Iterator[Entry]:
        """Yield all entries, or those after a number, oldest first."""
        last = after
        while True:
            with self._store.reading() as rows:
                page = rows.entries(last)
            if not page:
                return
            yield from page
            last = page[-1].sequence

    def head(self) -> tuple[int, str]:
        """Return the number and the hash of the last entry."""
        with self._store.reading() as rows:
            return rows.lock_head(read_only=True)

    def first_of(self, reservations: Iterable[str]) -> int | None:
        """Return the number of the first entry of some reservations; None if they have none."""
        with self._store.reading() as rows:
            known = [reservation_rows.find(rows, identity) for identity in reservations]
        return min((row.entry for row in known if row is not None), default=None)

    def entry(self, sequence: int) -> Entry | None:
        """Return the entry with this number, or None."""
        with self._store.reading() as rows:
            return rows.entry(sequence)

    def verify(self) -> list[str]:
        """Check the hash chain, all sums and charges, and that no budget was ever overspent.

        Returns one line per problem; an empty list if the ledger is sound.
        """
        with self._store.reading(continued=False) as rows:
            rolled_back = self._store.rolled_back(rows)
            return problems_of(rows) + ([] if rolled_back is None else [f"head: {rolled_back}"])


def problems_of(rows: LedgerRows) -> list[str]:
    """Return what is wrong with a ledger, one line per problem."""
    replay = Replay()
    problems = list(replay.check(totals.all_entries(rows)))
    problems += replay.compare_head(
        rows.first("SELECT sequence, hash FROM expost_head WHERE place = 1")
    )
    problems += replay.compare_totals(
        rows.all(
            "SELECT budget, analyst, terms, settled, held, renews, period, past FROM expost_totals"
        )
    )
    problems += replay.compare_reservations(
        rows.all(f"SELECT {reservation_rows.COLUMNS} FROM expost_reservations")
    )
    problems += replay.compare_alerts(rows.all("SELECT budget, share, command FROM expost_alerts"))
    problems += rows.damage()
    return problems


def _standing(
    rows: LedgerRows, budget: str | None, analyst: str, without: Iterable[str] = ()
) -> Standing:
    """The state of a budget or a cap, without some reservations."""
    name, filter_ = totals.find_filter(rows, budget, analyst)
    count = int(rows.one("SELECT COUNT(*) FROM expost_entries WHERE budget = :b", b=name)[0])
    renewal = totals.renewal_of(rows, name, analyst)
    settled, held = filter_.settled, filter_.held
    past = () if renewal is None else renewal.past
    for identity in without:
        row = reservation_rows.find(rows, identity)
        if row is None or row.budget != name or analyst not in (NO_ANALYST, row.analyst):
            continue
        count -= 1 if row.status == reservation_rows.OPEN else 2
        spent = row.spent(filter_.budget)
        if spent is None:
            held = _less(held, row.worst)
        elif reservation_rows.admitted_earlier(rows, row):
            past = _less(past, spent)
        else:
            settled = _less(settled, spent)
    filter_ = replace(filter_, settled=settled, held=held)
    renewal = None if renewal is None else replace(renewal, past=past)
    return Standing(name, analyst, filter_, count, renewal)


def _less(total: Coordinates, part: Coordinates) -> Coordinates:
    # A charge of an earlier period may have left the sums of this one.
    return tuple(max(a - b, Fraction(0)) for a, b in zip(total, part, strict=True))
