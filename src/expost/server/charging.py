"""The ledger as one request of the desk sees it: priced and reserved before, settled after.

A request is reserved when it is asked. It runs later, perhaps in another process, and its outcome
must be in the desk's database before the ledger is settled; otherwise a crash between the two would
lose an answer that was paid. So the executors of :mod:`expost.analytics` and
:mod:`expost.tuning` get one of these ledgers instead of the real one.
Tests: ``tests/server/test_charging.py``, ``tests/server/test_crashes.py``.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from expost.analytics.execution import run
from expost.analytics.request import Request
from expost.budget.charging import Account
from expost.budget.ledger import Ledger, Reservation
from expost.errors import LedgerError
from expost.privacy.charges import Charges, ShareCharges
from expost.privacy.guarantees import Guarantee
from expost.randomness.source import require_protection


class _Priced(Exception):
    """Ends a request at the moment when it would reserve."""

    def __init__(self, charges: Charges, described: dict[str, Any]) -> None:
        self.charges, self.described = charges, described
        super().__init__("priced")


class _PriceOnly:
    """A ledger that learns what a request would reserve, and stops it there."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    @property
    def identity(self) -> str:
        return self._ledger.identity

    def kind_of(self, budget: str | None = None) -> str:
        return self._ledger.kind_of(budget)

    def reserve(self, charges: Charges, memo: str = "", **more: Any) -> Any:
        described = {name: each for name, each in more.items() if name in ("request", "source")}
        raise _Priced(charges, described)

    def settle(self, reservation: Any, outcome: object, *, release: object = None) -> Guarantee:
        raise LedgerError("nothing was reserved")

    def status_of(self, reservation: Any) -> str:
        raise LedgerError("nothing was reserved")


@dataclass(frozen=True)
class Priced:
    """What a request would reserve.

    Parameters
    ----------
    charges : Charges
        The charge of every outcome.
    described : dict
        The public descriptions of request and source that its entry refers to.
    """

    charges: Charges
    described: dict[str, Any]


def price_of(request: Request, ledger: Ledger, budget: str, analyst: str) -> Priced:
    """Return what a request may cost. It is stopped before it reads anything."""
    account = Account(_PriceOnly(ledger), budget, analyst)
    try:
        run(request, account, require_protection(None, simulation=False), None, None)
    except _Priced as priced:
        return Priced(priced.charges, priced.described)
    raise AssertionError("a request ran without reserving")


class Deferred:
    """A ledger whose reservation exists already, and whose settling is left to the desk.

    Parameters
    ----------
    ledger : Ledger
        The real ledger.
    reservation : Reservation
        What was reserved when the request was asked.
    """

    def __init__(self, ledger: Ledger, reservation: Reservation) -> None:
        self._ledger, self._reservation = ledger, reservation
        self.settled = False
        self.outcome: Any = None
        self.release: object = None

    @property
    def identity(self) -> str:
        """A fingerprint of the ledger."""
        return self._ledger.identity

    def kind_of(self, budget: str | None = None) -> str:
        """Return the kind of a budget."""
        return self._ledger.kind_of(budget)

    def reserve(self, charges: Charges, memo: str = "", **_: Any) -> Reservation:
        """Return the reservation, if it is for these charges."""
        if charges != self._reservation.charges:
            raise LedgerError("the request was reserved at other charges")
        return self._reservation

    def settle(self, reservation: Any, outcome: object, *, release: object = None) -> Guarantee:
        """Remember the outcome; :mod:`expost.server.runner` settles it at the next tick."""
        self.settled, self.outcome, self.release = True, outcome, release
        charges = self._reservation.charges
        if isinstance(outcome, int):
            return charges[outcome]
        return charges.nothing

    def status_of(self, reservation: Any) -> str:
        """Return ``"open"``."""
        return "open"


class AtTicks:
    """The real ledger, whose entries are written at ticks only (tuning).

    Parameters
    ----------
    ledger : Ledger
        The real ledger.
    wait : callable
        Returns at the next tick.
    note : callable
        Called with the id of every reservation, before it is made.
    """

    def __init__(
        self, ledger: Ledger, wait: Callable[[], None], note: Callable[[str], None]
    ) -> None:
        self._ledger, self._wait, self._note = ledger, wait, note

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    def reserve(
        self, charges: Charges, memo: str = "", *, reservation_id: str | None = None, **more: Any
    ) -> Reservation:
        """Reserve at the next tick, and remember to which job the reservation belongs."""
        self._wait()
        identity = secrets.token_hex(16) if reservation_id is None else reservation_id
        self._note(identity)
        return self._ledger.reserve(charges, memo, reservation_id=identity, **more)

    def settle(self, reservation: Any, outcome: object, **more: Any) -> Guarantee:
        """Settle at the next tick, so that the moment does not tell how long the attempt took."""
        self._wait()
        return self._ledger.settle(reservation, outcome, **more)


def find_reservation(
    ledger: Ledger, identity: str, secret: str, reserved: str
) -> Reservation | None:
    """Return the reservation of a request with its time, or None if there is none."""
    found = ledger.reservation(identity)
    if found is None:
        return None
    if not reserved:
        waiting = ledger.waiting(found.budget)
        reserved = next((each.time for each in waiting if each.reservation.id == identity), "")
    return replace(found, secret=secret, time=reserved)


def nothing_of(charges: Charges) -> int | None:
    """Return the outcome of a request that looked at nothing."""
    return charges.outcome_for(0) if isinstance(charges, ShareCharges) else None


def next_tick(tick: float, now: float | None = None) -> float:
    """Return the first multiple of ``tick`` that is not before ``now``."""
    moment = time.time() if now is None else now
    return moment if tick <= 0 else -(-moment // tick) * tick


def last_tick(tick: float, now: float | None = None) -> float:
    """Return the last multiple of ``tick`` that is not after ``now``."""
    moment = time.time() if now is None else now
    return moment if tick <= 0 else moment // tick * tick
