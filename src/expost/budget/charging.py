"""The one way to charge a budget: reserve the worst case, run, settle at the realised charge.

``select``, ``count`` and ``tune`` all use :meth:`Account.reserve`::

    with account.reserve(charges) as reserved:
        outcome = run()
        reserved.settle(outcome.index)

Leaving the block without ``settle`` (an exception, a crash) leaves the worst case charged.
Tests: ``tests/budget/test_charging.py``, ``tests/budget/test_crashes.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from expost.errors import BudgetRefused, InvalidInput
from expost.privacy.charges import Charges
from expost.privacy.guarantees import Guarantee


class LedgerLike(Protocol):
    """What charging needs of a ledger; :class:`expost.budget.ledger.Ledger` is the one we ship."""

    @property
    def identity(self) -> str: ...

    def reserve(
        self,
        charges: Charges,
        memo: str = ...,
        *,
        budget: str | None = ...,
        analyst: str = ...,
        reservation_id: str | None = ...,
    ) -> Any: ...

    def settle(self, reservation: Any, outcome: object) -> Guarantee: ...

    def status_of(self, reservation: Any) -> str: ...

    def kind_of(self, budget: str | None = ...) -> str: ...


class Reserved:
    """A reservation in progress; without a ledger every method does nothing."""

    def __init__(self, ledger: LedgerLike | None, reservation: Any) -> None:
        self._ledger, self._reservation = ledger, reservation

    @property
    def reservation_id(self) -> str | None:
        """The name of the reservation in the ledger, None without a ledger."""
        return getattr(self._reservation, "id", None)

    @property
    def already_settled(self) -> bool:
        """Whether an earlier process settled this reservation (a resumed selection)."""
        return self._ledger is not None and self._ledger.status_of(self._reservation) == "settled"

    def settle(self, outcome: object) -> None:
        """Replace the worst case by the charge of ``outcome`` (an index, or None for nothing)."""
        if self._ledger is not None:
            self._ledger.settle(self._reservation, outcome)


@dataclass(frozen=True)
class Account:
    """Who pays for a request, and what the ledger writes down about it.

    Parameters
    ----------
    ledger : Ledger, optional
        Without one nothing is recorded.
    budget : str, optional
        Name of the budget; may be left out if the ledger has only one.
    analyst : str
        The person on whose behalf the request is made.
    memo : str
        A note for the ledger's readers.
    """

    ledger: LedgerLike | None = None
    budget: str | None = None
    analyst: str = ""
    memo: str = ""

    @property
    def identity(self) -> list[Any] | None:
        """What tells two accounts apart in a checkpoint."""
        return None if self.ledger is None else [self.ledger.identity, self.budget, self.analyst]

    def check_simulation(self, simulated: bool) -> None:
        """Refuse to charge a simulation: its release protects nobody."""
        if self.ledger is not None and simulated:
            raise InvalidInput(
                "ledger", self.ledger, "a simulation is not charged; leave out the ledger"
            )

    @contextmanager
    def reserve(
        self,
        charges: Charges,
        *,
        reservation_id: str | None = None,
        on_refusal: Callable[[], None] | None = None,
    ) -> Iterator[Reserved]:
        """Reserve the worst case of ``charges`` for the length of the block.

        Parameters
        ----------
        charges : Charges
            The charge of every outcome.
        reservation_id : str, optional
            Makes the request idempotent, for selections that are resumed.
        on_refusal : callable, optional
            Called if the request was certainly not recorded.

        Raises
        ------
        BudgetRefused
            The budget cannot pay the worst case. Nothing was changed.
        """
        reservation = None
        if self.ledger is not None:
            try:
                reservation = self.ledger.reserve(
                    charges,
                    self.memo,
                    budget=self.budget,
                    analyst=self.analyst,
                    reservation_id=reservation_id,
                )
            except (BudgetRefused, InvalidInput):
                if on_refusal is not None:
                    on_refusal()
                raise
        yield Reserved(self.ledger, reservation)
