"""The ledger: reserve before data is read, settle when the outcome is known, keep every entry.

The ledger guarantees the following:

* A request that is admitted is recorded durably before it may run.
* At no time do the settled and held charges exceed a budget. This holds after any crash, and for
  any number of processes and hosts that ask at once.
* A request that never reports back stays charged at its worst case.
* A changed row is detected (:meth:`Ledger.verify`).

``docs/ledger.md`` lists what the ledger does not guarantee. It rests on the filter of
:mod:`expost.budget.filter` (``theorem:rdp-filter``) and assumes that the charges of a request are
valid for the mechanism that runs. Sums are exact. Tests: ``tests/budget/``.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from expost.budget import reservations, totals
from expost.budget.base import Budget
from expost.budget.budgets import as_budget
from expost.budget.hash_chain import ABANDON, RESERVE, SETTLE, Entry, canonical
from expost.budget.replay import Replay, texts
from expost.budget.requests import (
    LONGEST_IDENTITY,
    charge_of,
    check_cap,
    check_memo,
    check_name,
    outcome_text,
)
from expost.budget.reservations import ABANDONED, OPEN, SETTLED, Reservation
from expost.budget.store import Store
from expost.budget.totals import NO_ANALYST, Standing
from expost.errors import LedgerError
from expost.privacy.charges import Charges
from expost.privacy.guarantees import Guarantee

__all__ = ["ABANDONED", "OPEN", "SETTLED", "Ledger", "Reservation", "Standing"]


class Ledger:
    """Named budgets in a SQLite file or a PostgreSQL database.

    Use :meth:`create` for a new ledger and :meth:`open` for an existing one. Any number of
    processes may open the same ledger at once.

    Parameters
    ----------
    store : Store
        The connection to the database.

    Examples
    --------
    >>> ledger = Ledger.create("ledger.db", PureDP(10), "visits")  # doctest: +SKIP
    >>> job = ledger.reserve(PureDP(1), "weekly count")            # doctest: +SKIP
    >>> ledger.settle(job, 0)                                      # doctest: +SKIP
    PureDP(epsilon=1.0, neighbours='add-remove')
    """

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
        """Make a new ledger with one budget. The terms of the budget can never be changed.

        Parameters
        ----------
        url : str or Path
            A file name, ``sqlite:///file`` or ``postgresql://user@host/database``.
        budget : Budget or Guarantee
            The limit, for example ``PureDP(10)`` or ``ApproxBudget(10, 1e-6)``.
        name : str, default "default"
            Name of the budget, for example that of the data set.
        caps : mapping, optional
            A limit for each named analyst inside the budget. Caps have the kind of the budget.

        Returns
        -------
        Ledger
            The new ledger.

        Raises
        ------
        LedgerError
            There is a ledger already, or the database cannot be used.
        InvalidInput
            A name or a limit is not valid.
        """
        terms, limits = _checked_terms(name, budget, caps)
        store = Store(url)
        if store.exists():
            raise LedgerError("there is a ledger already; open it, or add a budget to it")
        store.create(lambda rows: totals.add_budget(rows, name, terms, limits))
        return cls(store)

    @classmethod
    def open(cls, url: str | Path) -> Ledger:
        """Open an existing ledger.

        Parameters
        ----------
        url : str or Path
            A file name, ``sqlite:///file`` or ``postgresql://user@host/database``.

        Returns
        -------
        Ledger
            The ledger.

        Raises
        ------
        LedgerError
            There is no ledger, its schema is not the one of this version, or the database cannot
            be used.
        """
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
        """Add another budget, one per data set. Its terms can never be changed.

        Parameters
        ----------
        name : str
            Name of the budget, not used in this ledger before.
        budget : Budget or Guarantee
            The limit.
        caps : mapping, optional
            A limit for each named analyst inside the budget.

        Raises
        ------
        LedgerError
            The name is in use, or the database cannot be used.
        InvalidInput
            A name or a limit is not valid.
        """
        terms, limits = _checked_terms(name, budget, caps)
        with self._store.writing() as rows:
            totals.add_budget(rows, name, terms, limits)

    def budgets(self) -> list[str]:
        """Return the names of the budgets, sorted."""
        with self._store.reading() as rows:
            return totals.budget_names(rows)

    def reserve(
        self,
        charges: Charges | Guarantee,
        memo: str = "",
        *,
        budget: str | None = None,
        analyst: str = NO_ANALYST,
        reservation_id: str | None = None,
    ) -> Reservation:
        """Hold the worst case of a request, durably. Call this before any data is read.

        The budget and the analyst's cap are checked in the same transaction.

        Parameters
        ----------
        charges : Charges or Guarantee
            The charge of every outcome, or one charge for all outcomes.
        memo : str, optional
            A note that is stored with the entry.
        budget : str, optional
            Name of the budget. It may be omitted if the ledger has only one.
        analyst : str, optional
            Name of the person for whom the request is made.
        reservation_id : str, optional
            An id of your own. The call may then be repeated: it returns the same reservation and
            holds nothing more.

        Returns
        -------
        Reservation
            The reservation, to be passed to :meth:`settle` or :meth:`abandon`.

        Raises
        ------
        BudgetRefused
            The worst case does not fit into the budget or the cap. Nothing was changed.
        InvalidInput
            An argument is not valid, or the charges cannot be measured against the budget.
        LedgerError
            The id belongs to another request or to an abandoned one, or the database cannot be
            used.
        """
        table = charges if isinstance(charges, Charges) else Charges.from_list([charges], charges)
        identity = secrets.token_hex(16) if reservation_id is None else reservation_id
        check_name(identity, "reservation_id", LONGEST_IDENTITY)
        with self._store.writing() as rows:
            head = rows.lock_head()
            found = None if reservation_id is None else reservations.find(rows, identity)
            if found is not None:
                return reservations.repeat_request(found, budget, analyst, table)
            check_memo(memo)
            check_name(analyst or "everybody", "analyst")
            name, filters = totals.find_budget(rows, budget, analyst)
            worst = filters[0].budget.worst(table)
            nexts = [each.reserve(worst) for each in filters]
            recorded = canonical(table.as_dict())
            detail = {"worst": texts(worst), "charges": sha256(recorded.encode()).hexdigest()}
            totals.append(rows, head, RESERVE, name, analyst, identity, detail, memo)
            totals.update_totals(rows, nexts, name, analyst)
            reservations.insert(rows, identity, name, analyst, worst, recorded)
        return Reservation(identity, name, analyst, table)

    def settle(self, reservation: Reservation | str, outcome: object) -> Guarantee:
        """Replace a held worst case by the charge of the outcome.

        Settling again with the same outcome changes nothing.

        Parameters
        ----------
        reservation : Reservation or str
            The reservation, or its id.
        outcome : int, Release or NOTHING
            The index of the released candidate, the release, or NOTHING (None).

        Returns
        -------
        Guarantee
            The charge of the outcome.

        Raises
        ------
        InvalidInput
            There is no such reservation or no such outcome, or the release states another charge.
        LedgerError
            The reservation was settled with another outcome, or abandoned; or the database cannot
            be used.
        """
        text = outcome_text(outcome)
        with self._store.writing() as rows:
            head = rows.lock_head()
            row = reservations.find_known(rows, reservation)
            charge = charge_of(row.charges, outcome)
            if row.status == SETTLED and row.outcome == text:
                return charge
            if row.status != OPEN:
                raise LedgerError(
                    f"reservation {row.id} is {row.status} already; "
                    "it cannot be settled with another outcome"
                )
            filters = totals.filters_of(rows, row.budget, row.analyst)
            realised = filters[0].budget.coordinates(charge)
            detail = {"spent": texts(realised), "outcome": text}
            totals.append(rows, head, SETTLE, row.budget, row.analyst, row.id, detail, "")
            reservations.finish(rows, filters, row, realised, SETTLED, text)
        return charge

    def abandon(self, reservation: Reservation | str) -> Guarantee:
        """Close a request that will not report back. Its worst case stays charged for good.

        Nothing is refunded, because nobody can prove that no output was seen.

        Parameters
        ----------
        reservation : Reservation or str
            The reservation, or its id.

        Returns
        -------
        Guarantee
            The worst case, which is now charged.

        Raises
        ------
        InvalidInput
            There is no such reservation.
        LedgerError
            The reservation is settled already, or the database cannot be used.
        """
        with self._store.writing() as rows:
            head = rows.lock_head()
            row = reservations.find_known(rows, reservation)
            if row.status == ABANDONED:
                return row.charges.worst_case
            if row.status != OPEN:
                raise LedgerError(
                    f"reservation {row.id} is {row.status} already; it cannot be abandoned"
                )
            filters = totals.filters_of(rows, row.budget, row.analyst)
            detail = {"spent": texts(row.worst)}
            totals.append(rows, head, ABANDON, row.budget, row.analyst, row.id, detail, "")
            reservations.finish(rows, filters, row, row.worst, ABANDONED, None)
        return row.charges.worst_case

    def reservation(self, identity: str) -> Reservation | None:
        """Return the reservation with this id in any state, or None if there is none."""
        with self._store.reading() as rows:
            row = reservations.find(rows, identity)
        return None if row is None else row.public()

    def status_of(self, reservation: Reservation | str) -> str:
        """Return ``"open"``, ``"settled"`` or ``"abandoned"``."""
        with self._store.reading() as rows:
            return reservations.find_known(rows, reservation).status

    def standing(self, budget: str | None = None, analyst: str = NO_ANALYST) -> Standing:
        """Return the settled, held and remaining amounts of a budget, or of an analyst's cap.

        Parameters
        ----------
        budget : str, optional
            Name of the budget. It may be omitted if the ledger has only one.
        analyst : str, optional
            Name of an analyst who has a cap.

        Returns
        -------
        Standing
            The state of the budget or the cap.

        Raises
        ------
        InvalidInput
            There is no such budget, or the analyst has no cap.
        """
        with self._store.reading() as rows:
            name, filter_ = totals.find_filter(rows, budget, analyst)
            count = rows.one("SELECT COUNT(*) FROM expost_entries WHERE budget = :b", b=name)[0]
        return Standing(name, analyst, filter_, int(count))

    def kind_of(self, budget: str | None = None) -> str:
        """Return the kind of a budget: ``"pure"``, ``"approx"``, ``"zcdp"`` or ``"renyi"``."""
        with self._store.reading() as rows:
            return totals.find_budget(rows, budget, NO_ANALYST)[1][0].budget.kind

    def remaining(
        self, budget: str | None = None, analyst: str = NO_ANALYST
    ) -> float | dict[str, Any]:
        """Return the largest worst case that still fits, rounded down.

        Parameters
        ----------
        budget : str, optional
            Name of the budget. It may be omitted if the ledger has only one.
        analyst : str, optional
            Name of an analyst who has a cap.

        Returns
        -------
        float or dict
            The amount, in the form of :meth:`Budget.describe`.
        """
        with self._store.reading() as rows:
            _, filter_ = totals.find_filter(rows, budget, analyst)
        return filter_.budget.describe(filter_.remaining, up=False)

    def open_reservations(self, budget: str | None = None) -> list[Reservation]:
        """Return the reservations of a budget that have not been settled or abandoned."""
        with self._store.reading() as rows:
            name, _ = totals.find_budget(rows, budget, NO_ANALYST)
            return [row.public() for row in reservations.find_open(rows, name)]

    def entries(self) -> Iterator[Entry]:
        """Yield all entries, oldest first."""
        last = None
        while True:
            with self._store.reading() as rows:
                page = rows.entries(last)
            if not page:
                return
            yield from page
            last = page[-1].sequence

    def verify(self) -> list[str]:
        """Check the hash chain, all sums, and that no budget was overspent at any time.

        Returns
        -------
        list of str
            One line per problem; empty if the ledger is sound.
        """
        replay = Replay()
        with self._store.reading() as rows:
            problems = list(replay.check(totals.all_entries(rows)))
            problems += replay.compare_head(
                rows.first("SELECT sequence, hash FROM expost_head WHERE place = 1")
            )
            problems += replay.compare_totals(
                rows.all("SELECT budget, analyst, terms, settled, held FROM expost_totals")
            )
            problems += replay.compare_reservations(
                rows.all(f"SELECT {reservations.COLUMNS} FROM expost_reservations")
            )
            problems += rows.damage()
        return problems


def _checked_terms(
    name: str, budget: Budget | Guarantee, caps: Mapping[str, Budget | Guarantee] | None
) -> tuple[Budget, dict[str, Budget]]:
    """The terms of a new budget and of its caps, checked."""
    terms = as_budget(budget)
    limits = {who: as_budget(cap) for who, cap in (caps or {}).items()}
    check_name(name, "name")
    for who, cap in limits.items():
        check_cap(terms, who, cap)
    return terms, limits
