"""Budgets of a server: opening, capping, showing, checking. The ledger is :mod:`expost.budget`.

A tuning job reserves and settles each of its attempts. Nobody sees them before the job has ended:
how many there are, when, and what they cost is its progress, and their times tell how many models
were trained, which is secret. So whatever is shown is the state without the attempts of running
jobs, at ticks. What is admitted or refused depends on the whole ledger.
Tests: ``tests/server/test_service.py``.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime
from fractions import Fraction
from itertools import islice, takewhile
from typing import Any, TypeVar

from expost.budget.budgets import ApproxBudget, PureBudget, RenyiBudget, ZCDPBudget
from expost.budget.ledger import Ledger, Reservation
from expost.budget.ledger_rows import ABANDON, SETTLE, Entry
from expost.budget.limits import Budget, Filter
from expost.errors import BudgetRefused, InvalidInput, LedgerError
from expost.privacy.charges import Charges, ShareCharges
from expost.privacy.guarantees import ADD_REMOVE
from expost.server.jobs.states import iso_time, last_tick
from expost.server.people.accounts import check_name
from expost.server.problems import Conflict, NotFound
from expost.server.server_settings import ServerSettings

Result = TypeVar("Result")
_OLDER = (
    "the ledger lacks charges that the server's tables know: it is older than they are, or another "
    "one. Put the newest ledger back; without one, restore a backup into a new folder "
    "(expost server restore --charged-since unknown)"
)
ORDERS = (2.0, 4.0, 8.0, 16.0, 32.0, 64.0)


def make_budget(
    kind: str,
    epsilon: float | str,
    delta: float | None = None,
    orders: tuple[float, ...] | None = None,
    neighbours: str = ADD_REMOVE,
) -> Budget:
    """Return a budget of a kind from (ε, δ)."""
    if kind == "pure":
        if delta is not None:
            raise InvalidInput("delta", delta, "a pure budget has none: leave it out")
        return PureBudget(epsilon, neighbours)  # type: ignore[arg-type]
    if delta is None:
        raise InvalidInput("delta", None, f"a budget of kind {kind} needs a δ")
    if kind == "approx":
        return ApproxBudget(epsilon, delta, neighbours)  # type: ignore[arg-type]
    if kind == "zcdp":
        return ZCDPBudget.for_approx(float(epsilon), delta, neighbours)
    if kind == "renyi":
        listed = list(orders or ORDERS)
        return RenyiBudget.for_approx(float(epsilon), delta, listed, neighbours=neighbours)
    raise InvalidInput("kind", kind, "give pure, approx, zcdp or renyi")


class Ledgers:
    """The ledger of a server, which comes into being with its first budget."""

    def __init__(self, settings: ServerSettings, running: Callable[[], list[str]]) -> None:
        self._url, self._tick, self._running = settings.ledger_url, settings.tick, running
        self._ledger: Ledger | None = None
        self._lock = threading.Lock()

    def find(self) -> Ledger | None:
        """Return the ledger, or None if no budget has been opened."""
        if self._ledger is None:
            with self._lock:
                if self._ledger is None:
                    try:
                        self._ledger = Ledger.open(self._url)
                    except LedgerError as error:
                        if "there is no ledger" not in str(error):
                            raise
        return self._ledger

    def require_reserved(self, identities: Sequence[str]) -> None:
        """Refuse a ledger without reservations that the tables know: it would be overspent."""
        ledger = self.find()
        if any(ledger is None or ledger.reservation(identity) is None for identity in identities):
            raise LedgerError(_OLDER)

    @property
    def ledger(self) -> Ledger:
        """The ledger; refused if no budget has been opened."""
        ledger = self.find()
        if ledger is None:
            raise NotFound("no budget has been opened yet", "budget")
        return ledger

    def open_budget(
        self,
        name: str,
        terms: Budget,
        caps: Mapping[str, Budget] | None = None,
        renews: str | None = None,
    ) -> None:
        """Open a budget, and with the first one the ledger."""
        check_name(name, "name")
        if self.find() is None:
            try:
                with self._lock:
                    self._ledger = Ledger.create(self._url, terms, name, caps=caps, renews=renews)
                return
            except LedgerError:
                if self.find() is None:  # another process was faster, or there is a real problem
                    raise
        if name in self.names():
            raise Conflict("there is a budget with this name already", "name", "another name")
        self.ledger.add_budget(name, terms, caps=caps, renews=renews)

    def names(self) -> list[str]:
        """Return the names of the budgets."""
        ledger = self.find()
        return [] if ledger is None else ledger.budgets()

    def check(self, name: str) -> str:
        """Return the name of a budget that exists."""
        if name not in self.names():
            raise NotFound("there is no such budget", "budget")
        return name

    def shown(self, read: Callable[[list[str]], Result]) -> Result:
        """Return what ``read`` returns for the reservations that nobody may see yet."""
        while True:
            hidden = self._running()
            view = read(hidden)
            if self._running() == hidden:  # else an attempt began or ended meanwhile
                return view

    def at_tick(self, time: str) -> str:
        """Return the last tick before the time of an entry."""
        return str(iso_time(last_tick(self._tick, datetime.fromisoformat(time).timestamp())))

    def filters(self, budget: str, analyst: str) -> list[Filter]:
        """Return the state of a budget and of the analyst's cap in it, if there is one."""
        return self.shown(lambda hidden: self.ledger.filters(budget, analyst, without=hidden))

    def refusal(self, error: BudgetRefused, budget: str, analyst: str) -> dict[str, Any]:
        """Return what people see of a refusal: the amounts that are shown elsewhere, too."""
        filters = self.filters(budget, analyst)
        state = next((limit for limit in filters if limit.name == error.budget), filters[0])
        return {
            "requested": error.requested,
            "remaining": state.budget.describe(state.remaining, up=False),
            "held": state.budget.describe(state.held),
            "budget": error.budget,
        }

    def refuses(self, budget: str, analyst: str, charges: Charges) -> dict[str, Any] | None:
        """Return the refusal that charges would meet by what is shown; None if they fit."""
        filters = self.filters(budget, analyst)
        amount = filters[0].budget.worst(charges)
        for state in filters:
            if not state.admits(amount):
                describe = state.budget.describe
                requested = describe(amount)
                error = BudgetRefused(state.name, requested, describe(state.remaining, up=False), 0)
                return self.refusal(error, budget, analyst)
        return None

    def worst(self, budget: str, analyst: str, charges: Charges) -> dict[str, Any]:
        """Return what charges would hold, what remains, and whether the request fits."""
        filters = self.filters(budget, analyst)
        terms = filters[0].budget
        amount = terms.worst(charges)
        tightest = filters[-1]
        return {
            "worst_case": terms.describe(amount),
            "remaining": [state.budget.describe(state.remaining, up=False) for state in filters],
            "held": terms.describe(tightest.held),
            "fits": all(state.admits(amount) for state in filters),
        }

    def standing(self, name: str) -> dict[str, Any]:
        """Return the state of a budget with its caps."""
        self.check(name)

        def read(hidden: list[str]) -> dict[str, Any]:
            caps = [cap.as_dict() for cap in self.ledger.caps(name, without=hidden)]
            return self.ledger.standing(name, without=hidden).as_dict() | {"caps": caps}

        return self.shown(read)

    def own_standing(self, name: str, analyst: str) -> dict[str, Any]:
        """Return the state of a budget as an analyst sees it: with their own cap only."""
        whole = self.standing(name)
        mine = [cap for cap in whole["caps"] if cap.get("analyst") == analyst]
        return whole | {"caps": mine}

    def waiting(self, name: str) -> list[dict[str, Any]]:
        """Return the open reservations of a budget."""
        self.check(name)
        terms = self.ledger.standing(name).filter.budget
        return [
            {
                "reservation": held.reservation.id,
                "analyst": held.reservation.analyst,
                "time": self.at_tick(held.time),
                "memo": held.memo,
                "worst_case": terms.describe(terms.worst(held.reservation.charges)),
            }
            for held in self.shown(
                lambda hidden: [
                    held for held in self.ledger.waiting(name) if held.reservation.id not in hidden
                ]
            )
        ]

    def entries(
        self, after: int = 0, limit: int = 500, budget: str | None = None
    ) -> list[dict[str, Any]]:
        """Return entries of the ledger, oldest first, up to the first one of a running job."""
        if self.find() is None:
            return []

        def read(hidden: list[str]) -> list[Entry]:
            end = self.ledger.first_of(hidden) or math.inf
            before = takewhile(lambda entry: entry.sequence < end, self.ledger.entries(after))
            wanted = (entry for entry in before if budget in (None, entry.budget))
            return list(islice(wanted, limit))

        return [entry_document(entry) for entry in self.shown(read)]

    def charged(self, facts: Mapping[str, Any], reservations: list[str]) -> Any:
        """Return what some closed reservations cost together."""
        terms = self.ledger.standing(facts["budget"]).filter.budget
        total = tuple(Fraction(0) for _ in terms.limits)
        for entry in self.ledger.entries():
            if entry.reservation in reservations and entry.action in (SETTLE, ABANDON):
                amounts = map(Fraction, entry.facts["spent"])
                total = tuple(a + b for a, b in zip(total, amounts, strict=True))
        return terms.describe(total)

    def entry_count(self) -> int:
        """Return how many entries people see."""
        if self.find() is None:
            return 0

        return self.shown(self._last)

    def _last(self, hidden: list[str]) -> int:
        """The number of the last entry before the first that is hidden."""
        first = self.ledger.first_of(hidden)
        return self.ledger.head()[0] if first is None else first - 1

    def head(self) -> str | None:
        """Return the hash of the last entry that people see; None without one."""
        if self.find() is None:
            return None

        def read(hidden: list[str]) -> str | None:
            entry = self.ledger.entry(self._last(hidden))
            return None if entry is None else entry.hash

        return self.shown(read)

    def problems(self, identities: Sequence[str]) -> list[str]:
        """Return what is wrong with the ledger, which has reservations of these requests."""
        ledger = self.find()
        older = bool({*identities} - {*({} if ledger is None else ledger.statuses())})
        return [*([] if ledger is None else ledger.verify()), *([_OLDER] if older else [])]


def find_reservation(
    ledger: Ledger, identity: str, secret: str, reserved: str
) -> Reservation | None:
    """Return the reservation of a request with its time, or None if there is none."""
    reservation = ledger.reservation(identity)
    if reservation is None:
        return None
    if not reserved:
        waiting = ledger.waiting(reservation.budget)
        reserved = next((held.time for held in waiting if held.reservation.id == identity), "")
    return replace(reservation, secret=secret, time=reserved)


def nothing_of(charges: Charges) -> int | None:
    """Return the outcome of a request that looked at nothing."""
    return charges.outcome_for(0) if isinstance(charges, ShareCharges) else None


def entry_document(entry: Entry) -> dict[str, Any]:
    """Return an entry as JSON."""
    record = asdict(entry)
    return record | {"detail": json.loads(entry.detail)}
