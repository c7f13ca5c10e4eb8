"""The ledger: reserve before data is read, settle when the outcome is known, keep every entry.

The ledger guarantees the following:

* A request that is admitted is recorded durably before it may run.
* At no time do the settled and held charges exceed a budget. This holds after any crash, and for
  any number of processes and hosts that ask at once.
* A request that never reports back stays charged at its worst case.
* A reservation belongs to one request: its id cannot be used for a second run, and only the one who
  made it can settle it.
* A changed row is detected, and every settled amount is the charge of the recorded outcome
  (:meth:`Ledger.verify`).

``docs/ledger.md`` lists what the ledger does not guarantee. It rests on the filter of
:mod:`expost.budget.limits` (``theorem:rdp-filter``) and assumes that the charges of a request are
valid for the mechanism that runs. Sums are exact. Tests: ``tests/budget/``.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from hashlib import sha256
from os import PathLike
from pathlib import Path
from typing import Any

from expost.budget import reservation_rows, totals
from expost.budget.budgets import as_budget
from expost.budget.ledger_rows import (
    ABANDON,
    LONGEST_IDENTITY,
    RESERVE,
    SETTLE,
    Entry,
    LedgerRows,
    charge_of,
    check_ledger_name,
    check_memo,
    document_digest,
    outcome_text,
)
from expost.budget.limits import Budget, Filter, amount_texts
from expost.budget.operations import (
    change_limit,
    checked_terms,
    problems_of,
    recover_ledger,
    upgrade_ledger,
)
from expost.budget.reservation_rows import (
    ABANDONED,
    OPEN,
    SETTLED,
    OpenReservation,
    Reservation,
    StoredReservation,
    request_digest,
    secret_digest,
)
from expost.budget.store import Store
from expost.budget.totals import NO_ANALYST, Alert, Standing, check_renewal
from expost.errors import InvalidInput, LedgerError
from expost.files import canonical
from expost.privacy.charges import Charges, ShareCharges
from expost.privacy.guarantees import Guarantee
from expost.rationals import Number

__all__ = ["ABANDONED", "OPEN", "SETTLED", "Ledger", "OpenReservation", "Reservation", "Standing"]


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

    _before_entry: Callable[[str], None] | None = None
    upgrade = staticmethod(upgrade_ledger)
    recover = staticmethod(recover_ledger)

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
        return f"Ledger({self._store.location.address!r})"

    def _repr_html_(self) -> str:
        """Return the state of every budget for a notebook."""
        from expost.html_tables import HtmlTable, html_summary

        states = [self.standing(name).as_dict() for name in self.budgets()]
        columns = ["name", "kind", "settled", "held", "remaining", "entries"]
        rows = [[state[column] for column in columns] for state in states]
        return html_summary("Ledger", {"budgets": len(rows)}, HtmlTable("Budgets", columns, rows))

    def calling(self, before_entry: Callable[[str], None]) -> Ledger:
        """Return this ledger, with a function that is called before it reserves or settles.

        It is called with the id of the reservation, for example to note it, or to wait: the time of
        an entry may tell how long a request took.
        """
        ledger = copy(self)
        ledger._before_entry = before_entry
        return ledger

    @classmethod
    def create(
        cls,
        url: str | PathLike[str],
        budget: Budget | Guarantee,
        name: str = "default",
        *,
        caps: Mapping[str, Budget | Guarantee] | None = None,
        renews: str | None = None,
    ) -> Ledger:
        """Make a new ledger with one budget.

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
        renews : {"day", "week", "month", "quarter", "year"}, optional
            The limits hold for each period, and begin anew with the next one. Over several periods
            only the sum of their limits is guaranteed (:mod:`expost.budget.totals`).

        Raises
        ------
        LedgerError
            There is a ledger already, or the database cannot be used.
        InvalidInput
            A name or a limit is not valid.
        """
        terms, limits = checked_terms(name, budget, caps)
        every = check_renewal(renews)
        store = Store(url)
        if store.exists():
            raise LedgerError(
                "there is a ledger already; use it, or add a budget to it (create --add)"
            )
        store.create(lambda rows: totals.add_budget(rows, name, terms, limits, every))
        return cls(store)

    @classmethod
    def open(cls, url: str | PathLike[str], *, read_only: bool = False) -> Ledger:
        """Open an existing ledger.

        Parameters
        ----------
        url : str or Path
            A file name, ``sqlite:///file`` or ``postgresql://user@host/database``.
        read_only : bool, default False
            Whether every attempt to write is refused. A file is then never written.

        Raises
        ------
        LedgerError
            There is no ledger, its schema is not the one of this version, or the database cannot
            be used.
        """
        store = Store(url, read_only=read_only)
        try:
            store.check_schema()
        except LedgerError:
            store.close()  # an idle connection would keep others from migrating the file
            raise
        return cls(store)

    def reserve(
        self,
        charges: Charges | Guarantee,
        memo: str = "",
        *,
        budget: str | None = None,
        analyst: str = NO_ANALYST,
        reservation_id: str | None = None,
        secret: str | None = None,
        request: object = None,
        source: object = None,
        resume: bool = False,
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
            An id of your own. With its secret, the call may be repeated while the request is open:
            it returns the same reservation and holds nothing more.
        secret : str, optional
            A secret of your own that settling needs. Without it, one is drawn.
        request : object, optional
            A public description of what is asked, as a JSON document or its digest. Only the
            digest is stored. Under one id, only the same request is accepted.
        source : object, optional
            A public description of the data source, as a JSON document or its digest.
        resume : bool, default False
            Return a reservation that is settled already, for reading. The caller must not run
            anything for it.

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
            The id belongs to another request, or to one that is settled or abandoned; the secret is
            wrong; or the database cannot be used.
        """
        table = charges if isinstance(charges, Charges) else Charges.from_list([charges], charges)
        identity = secrets.token_hex(16) if reservation_id is None else reservation_id
        check_ledger_name(identity, "reservation_id", LONGEST_IDENTITY)
        if self._before_entry is not None:
            self._before_entry(identity)
        if secret is not None:
            check_ledger_name(secret, "secret")
        recorded = canonical(table.as_dict())
        if type(table) not in (Charges, ShareCharges):
            table = Charges.from_dict(json.loads(recorded))  # what is stored is what counts
        described = (sha256(recorded.encode()).hexdigest(), document_digest(request, "request"))
        origin = document_digest(source, "source")

        def work(rows: LedgerRows) -> tuple[Reservation, list[Alert]]:
            head = rows.lock_head()
            earlier = None if reservation_id is None else reservation_rows.find(rows, identity)
            if earlier is not None:
                again = reservation_rows.repeat_request(
                    earlier, budget, analyst, described, secret, resume=resume
                )
                return again, []
            check_memo(memo)
            check_ledger_name(analyst or "everybody", "analyst")
            name, _ = totals.find_budget(rows, budget, analyst)
            head, period, time = totals.renew(rows, head, name)
            # The budget and the cap must both admit it; one transaction decides for both.
            filters = totals.filters_of(rows, name, analyst)
            worst = filters[0].budget.worst(table)
            nexts = [state.reserve(worst) for state in filters]
            known = secrets.token_hex(16) if secret is None else secret
            new = StoredReservation(
                *(identity, name, analyst, OPEN, worst, table, None, head[0] + 1),
                request=request_digest(name, analyst, *described),
                secret=secret_digest(known),
            )
            detail = {
                "worst": amount_texts(worst),
                "charges": described[0],
                "request": new.request,
                "secret": new.secret,
            }
            detail |= {"source": origin} if origin is not None else {}
            detail |= {"period": period} if period else {}
            totals.append(rows, head, RESERVE, (name, analyst, identity), detail, memo, time)
            totals.update_totals(rows, nexts, name, analyst)
            reservation_rows.insert(rows, new, recorded)
            return new.public(known, time), totals.reached_alerts(rows, name, filters[0], nexts[0])

        reservation, reached = self._store.write(work)
        totals.start_alerts(reached, self._store.location.file)
        return reservation

    def settle(
        self,
        reservation: Reservation | str,
        outcome: object,
        *,
        secret: str | None = None,
        release: object = None,
    ) -> Guarantee:
        """Replace a held worst case by the charge of the outcome.

        Settling again with the same outcome changes nothing.

        Parameters
        ----------
        reservation : Reservation or str
            The reservation that :meth:`reserve` returned, or its id together with its secret.
        outcome : int, Release or NOTHING
            The index of the released candidate, the release, or NOTHING (None).
        secret : str, optional
            The secret of the reservation, if ``reservation`` does not hold it.
        release : object, optional
            The certificate of the release, as a JSON document or its digest. Only the digest is
            stored.

        Returns
        -------
        Guarantee
            The charge of the outcome.

        Raises
        ------
        InvalidInput
            There is no such reservation or no such outcome, or the release states another charge.
        LedgerError
            The secret is missing or wrong; the reservation was settled with another outcome, or
            abandoned; or the database cannot be used.
        """
        if self._before_entry is not None:
            self._before_entry(reservation if isinstance(reservation, str) else reservation.id)
        text = outcome_text(outcome)
        certificate = document_digest(release, "release")
        if secret is None and isinstance(reservation, Reservation):
            secret = reservation.secret

        def work(rows: LedgerRows) -> Guarantee:
            head = rows.lock_head()
            row = reservation_rows.find_known(rows, reservation)
            row.require(secret)
            charge = charge_of(row.charges, outcome, text)
            if row.status == SETTLED and row.outcome == text:
                return charge
            if row.status != OPEN:
                raise LedgerError(
                    f"reservation {row.id} is {row.status} already; "
                    "it cannot be settled with another outcome"
                )
            filters = totals.filters_of(rows, row.budget, row.analyst)
            amount = filters[0].budget.coordinates(charge)
            detail: dict[str, Any] = {"spent": amount_texts(amount), "outcome": text}
            detail |= {} if certificate is None else {"release": certificate}
            totals.append(rows, head, SETTLE, (row.budget, row.analyst, row.id), detail)
            reservation_rows.finish(rows, filters, row, amount, SETTLED, text)
            return charge

        return self._store.write(work)

    def abandon(self, reservation: Reservation | str) -> Guarantee:
        """Close a request, or its id, that will not report back; return its worst case.

        The worst case stays charged for good. Nothing is refunded, because nobody can prove that no
        output was seen. Raises LedgerError if the reservation is settled already.
        """

        def work(rows: LedgerRows) -> Guarantee:
            head = rows.lock_head()
            row = reservation_rows.find_known(rows, reservation)
            if row.status == ABANDONED:
                return row.charges.worst_case
            if row.status != OPEN:
                raise LedgerError(
                    f"reservation {row.id} is {row.status} already; it cannot be abandoned"
                )
            filters = totals.filters_of(rows, row.budget, row.analyst)
            detail = {"spent": amount_texts(row.worst)}
            totals.append(rows, head, ABANDON, (row.budget, row.analyst, row.id), detail)
            reservation_rows.finish(rows, filters, row, row.worst, ABANDONED, None)
            return row.charges.worst_case

        return self._store.write(work)

    def add_budget(
        self,
        name: str,
        budget: Budget | Guarantee,
        *,
        caps: Mapping[str, Budget | Guarantee] | None = None,
        renews: str | None = None,
    ) -> None:
        """Add another budget, one per data set; the arguments are those of :meth:`create`."""
        terms, limits = checked_terms(name, budget, caps)
        every = check_renewal(renews)
        self._store.write(lambda rows: totals.add_budget(rows, name, terms, limits, every))

    def change_budget(
        self,
        budget: Budget | Guarantee | None,
        reason: str,
        *,
        name: str | None = None,
        analyst: str = NO_ANALYST,
    ) -> None:
        """Change the limit of a budget, or set, change or remove an analyst's cap.

        The change is an entry of the ledger. A limit may be set below what is used; then nothing
        more is admitted. What the budget guarantees is the largest limit it ever had.

        Parameters
        ----------
        budget : Budget or Guarantee or None
            The new limit, of the same kind. None removes a cap.
        reason : str
            Why it is changed; stored with the entry.
        name : str, optional
            Name of the budget. It may be omitted if the ledger has only one.
        analyst : str, optional
            The analyst whose cap is changed.

        Raises
        ------
        InvalidInput
            The reason is missing, the limit is of another kind, or there is no such cap.
        """
        terms = None if budget is None else as_budget(budget)
        self._store.write(lambda rows: change_limit(rows, terms, reason, name, analyst))

    def set_alert(self, share: Number | str, command: str, *, budget: str | None = None) -> None:
        """Store a command that runs when a budget is used up to a share, for this user and file.

        Parameters
        ----------
        share : number or str
            The share of the limit, for example 0.8.
        command : str
            The command, run by the shell (:mod:`expost.budget.totals`). An empty text removes the
            alert at this share.
        budget : str, optional
            Name of the budget. It may be omitted if the ledger has only one.
        """
        alert = self._store.write(lambda rows: totals.set_alert(rows, budget, share, command))
        totals.allow_command(alert, self._store.location.file)

    @property
    def path(self) -> Path | None:
        """The file of the ledger; None if it is in a database server."""
        return self._store.location.path

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
        self, budget: str | None = None, analyst: str = NO_ANALYST, *, without: Iterable[str] = ()
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
            return reservation_rows.standing_of(rows, budget, analyst, without)

    def filters(
        self, budget: str | None = None, analyst: str = NO_ANALYST, *, without: Iterable[str] = ()
    ) -> list[Filter]:
        """Return the filter of a budget and, if the analyst has one, that of their cap.

        Unlike :meth:`standing`, this does not count entries.
        """
        with self._store.reading() as rows:
            return reservation_rows.filters_without(rows, budget, analyst, without)

    def caps(self, budget: str | None = None, *, without: Iterable[str] = ()) -> list[Standing]:
        """Return the state of every analyst's cap in a budget, sorted by name."""
        with self._store.reading() as rows:
            name, _ = totals.find_budget(rows, budget, NO_ANALYST)
            analysts = totals.capped_analysts(rows, name)
            return [reservation_rows.standing_of(rows, name, who, without) for who in analysts]

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
            return totals.stored_alerts(rows, name)

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
