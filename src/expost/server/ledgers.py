"""Budgets of a desk: opening, capping, showing, checking. The ledger is :mod:`expost.budget`.

Tests: ``tests/server/test_service.py``.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from fractions import Fraction
from typing import Any

from expost.budget.budgets import ApproxBudget, Budget, PureBudget, RenyiBudget, ZCDPBudget
from expost.budget.filter import Filter
from expost.budget.hash_chain import ABANDON, SETTLE, Entry
from expost.budget.ledger import Ledger
from expost.errors import InvalidInput, LedgerError
from expost.privacy.charges import Charges
from expost.privacy.guarantees import ADD_REMOVE
from expost.server.people import check_name
from expost.server.problems import Conflict, Missing
from expost.server.settings import Settings

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
    """The ledger of a desk, which comes into being with its first budget.

    Parameters
    ----------
    settings : Settings
        Where the ledger is.
    """

    def __init__(self, settings: Settings) -> None:
        self._url = settings.ledger_url
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

    @property
    def ledger(self) -> Ledger:
        """The ledger; refused if no budget has been opened."""
        found = self.find()
        if found is None:
            raise Missing("no budget has been opened yet", "budget")
        return found

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
        found = self.find()
        return [] if found is None else found.budgets()

    def check(self, name: str) -> str:
        """Return the name of a budget that exists."""
        if name not in self.names():
            raise Missing("there is no such budget", "budget")
        return name

    def filters(self, budget: str, analyst: str) -> list[Filter]:
        """Return the state of a budget and of the analyst's cap in it, if there is one."""
        found = [self.ledger.standing(budget).filter]
        with suppress(InvalidInput):  # there is no cap
            found.append(self.ledger.standing(budget, analyst).filter)
        return found

    def worst(self, budget: str, analyst: str, charges: Charges) -> dict[str, Any]:
        """Return what charges would hold, what remains, and whether the request fits."""
        filters = self.filters(budget, analyst)
        terms = filters[0].budget
        amount = terms.worst(charges)
        tightest = filters[-1]
        return {
            "worst_case": terms.describe(amount),
            "remaining": [each.budget.describe(each.remaining, up=False) for each in filters],
            "held": terms.describe(tightest.held),
            "fits": all(each.admits(amount) for each in filters),
        }

    def standing(self, name: str) -> dict[str, Any]:
        """Return the state of a budget with its caps."""
        self.check(name)
        caps = [each.as_dict() for each in self.ledger.caps(name)]
        return self.ledger.standing(name).as_dict() | {"caps": caps}

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
                "reservation": each.reservation.id,
                "analyst": each.reservation.analyst,
                "time": each.time,
                "memo": each.memo,
                "worst_case": terms.describe(terms.worst(each.reservation.charges)),
            }
            for each in self.ledger.waiting(name)
        ]

    def entries(
        self, after: int = 0, limit: int = 500, budget: str | None = None
    ) -> list[dict[str, Any]]:
        """Return entries of the ledger, oldest first."""
        found: list[dict[str, Any]] = []
        if self.find() is None:
            return found
        for entry in self.ledger.entries(after):
            if budget is None or entry.budget == budget:
                found.append(entry_document(entry))
            if len(found) >= limit:
                break
        return found

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
        """Return how many entries the ledger has."""
        found = self.find()
        return 0 if found is None else sum(1 for _ in found.entries())

    def problems(self) -> list[str]:
        """Return what is wrong with the ledger; empty if it is sound."""
        found = self.find()
        return [] if found is None else found.verify()


def entry_document(entry: Entry) -> dict[str, Any]:
    """Return an entry as JSON."""
    record = asdict(entry)
    return record | {"detail": json.loads(entry.detail)}
