"""Charge a budget: reserve the worst case, run, settle at the actual charge.

``select``, ``count`` and ``tune`` all use :meth:`Account.reserve`::

    with account.reserve(charges) as reserved:
        outcome = run()
        reserved.settle(outcome.index)

Every function with a parameter ``ledger`` accepts what :func:`open_ledger` accepts.

Leaving the block without ``settle``, for example by an exception or a crash, leaves the worst case
charged. The caller must not read the data before the block is entered.
Tests: ``tests/budget/test_charging.py``, ``tests/budget/test_ledger_doors.py``,
``tests/budget/test_crashes.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from typing import Any, Protocol

from expost.budget.ledger import Ledger
from expost.errors import BudgetRefused, InvalidInput
from expost.privacy.charges import Charges
from expost.privacy.guarantees import Guarantee


class LedgerLike(Protocol):
    """What charging uses of a :class:`Ledger`; any other object that has it works too.

    Arguments of ``reserve`` and ``settle`` that are not set are not passed.
    """

    @property
    def identity(self) -> str:
        """A fingerprint of the ledger."""

    @property
    def reserve(self) -> Callable[..., Any]:
        """Record the worst case durably and return the reservation, or raise BudgetRefused."""

    @property
    def settle(self) -> Callable[..., Guarantee]:
        """Replace the worst case by the charge of an outcome and return that charge."""

    def status_of(self, reservation: Any) -> str:
        """Return ``"open"``, ``"settled"`` or ``"abandoned"``."""

    def kind_of(self, budget: str | None = ...) -> str:
        """Return the kind of a budget: ``"pure"``, ``"approx"``, ``"zcdp"`` or ``"renyi"``."""


LedgerOrPlace = LedgerLike | str | PathLike[str] | None
"""What every parameter ``ledger`` accepts: a ledger, its file name or database URL, or None."""


def open_ledger(ledger: LedgerOrPlace) -> LedgerLike | None:
    """Return a ledger as it is, and open one that is given by its file name or URL."""
    if ledger is None:
        return None
    if isinstance(ledger, (str, PathLike)):
        return Ledger.open(ledger)
    if not callable(getattr(ledger, "reserve", None)) or isinstance(ledger, type):
        raise InvalidInput(
            "ledger",
            getattr(ledger, "__name__", type(ledger).__name__),
            "pass a Ledger, a file name or a database URL",
        )
    return ledger


class Reserved:
    """A reservation in progress, made by :meth:`Account.reserve`; nothing without a ledger."""

    def __init__(self, ledger: LedgerLike | None, reservation: Any) -> None:
        self._ledger, self._reservation = ledger, reservation

    @property
    def reservation_id(self) -> str | None:
        """The name of the reservation in the ledger, None without a ledger."""
        return getattr(self._reservation, "id", None)

    @property
    def already_settled(self) -> bool:
        """Whether an earlier call settled this reservation, as in a resumed selection."""
        return self._ledger is not None and self._ledger.status_of(self._reservation) == "settled"

    def evidence(self) -> dict[str, Any] | None:
        """Return what a certificate says about the ledger; None without a ledger."""
        if self._ledger is None:
            return None
        reservation = self._reservation
        return {
            "ledger": self._ledger.identity,
            "budget": getattr(reservation, "budget", ""),
            "analyst": getattr(reservation, "analyst", ""),
            "reservation": getattr(reservation, "id", str(reservation)),
            "date": str(getattr(reservation, "time", ""))[:10],
        }

    def settle(self, outcome: object, release: object = None) -> None:
        """Replace the worst case by the charge of an outcome; None: nothing was released.

        ``release``: the certificate as a JSON document, or its digest, which the entry stores.
        """
        if self._ledger is not None:
            more: dict[str, Any] = {} if release is None else {"release": release}
            self._ledger.settle(self._reservation, outcome, **more)


@dataclass(frozen=True, init=False)
class Account:
    """The ledger and budget that a request is charged to, and what is recorded about it.

    Parameters
    ----------
    ledger : Ledger, str or Path, optional
        A ledger, or its file name or URL, which is opened. Without a ledger nothing is recorded.
    budget : str, optional
        Name of the budget. It may be omitted if the ledger has only one.
    analyst : str, optional
        Name of the person for whom the request is made.
    memo : str, optional
        A note that is stored with the entry.
    """

    ledger: LedgerLike | None
    budget: str | None
    analyst: str
    memo: str

    def __init__(
        self,
        ledger: LedgerOrPlace = None,
        budget: str | None = None,
        analyst: str = "",
        memo: str = "",
    ) -> None:
        given = {"ledger": open_ledger(ledger), "budget": budget, "analyst": analyst, "memo": memo}
        for name, value in given.items():
            object.__setattr__(self, name, value)

    @property
    def identity(self) -> list[Any] | None:
        """What distinguishes two accounts in a checkpoint; None without a ledger."""
        return None if self.ledger is None else [self.ledger.identity, self.budget, self.analyst]

    def check_simulation(self, simulated: bool) -> None:
        """Refuse to charge a simulation, whose release has no privacy guarantee."""
        if self.ledger is not None and simulated:
            raise InvalidInput(
                "ledger", self.ledger, "a simulation is not charged; call without a ledger"
            )

    @contextmanager
    def reserve(
        self,
        charges: Charges,
        *,
        reservation_id: str | None = None,
        secret: str | None = None,
        request: object = None,
        source: object = None,
        on_refusal: Callable[[], None] | None = None,
    ) -> Iterator[Reserved]:
        """Reserve the worst case of ``charges`` for the duration of the block.

        Parameters
        ----------
        charges : Charges
            The charge of every outcome.
        reservation_id, secret, request, source : optional
            As in :meth:`Ledger.reserve`. A reservation that is settled already is returned for
            reading (:attr:`Reserved.already_settled`); the caller must not run anything then.
        on_refusal : callable, optional
            Called if the request was refused, so that it was certainly not recorded. It is not
            called after other errors, which may leave this open.

        Yields
        ------
        Reserved
            The reservation. Call its ``settle`` method when the outcome is known.

        Raises
        ------
        BudgetRefused, InvalidInput
            The worst case does not fit, or the ledger does not accept the request. Nothing was
            changed.
        """
        reservation = None
        told = {"secret": secret, "request": request, "source": source}
        more: dict[str, Any] = {name: value for name, value in told.items() if value is not None}
        if secret is not None and reservation_id is not None:
            more["resume"] = True
        if self.ledger is not None:
            try:
                reservation = self.ledger.reserve(
                    charges,
                    self.memo,
                    budget=self.budget,
                    analyst=self.analyst,
                    reservation_id=reservation_id,
                    **more,
                )
            except (BudgetRefused, InvalidInput):
                if on_refusal is not None:
                    on_refusal()
                raise
        yield Reserved(self.ledger, reservation)
