"""The privacy filter (``alg:rdp-filter``), for one-shot requests that may run side by side.

A request is admitted iff settled + held + its worst case stays within the budget; it is then held at its worst case until it is
settled at what its released outcome cost. Held requests only make the test stricter than the paper's, and a delayed answer is
still an adaptive analyst, so ``theorem:rdp-filter`` (and its pure, approximate and zCDP forms) covers requests in flight.
A refusal changes nothing. Nothing is ever freed by time: a request that never reports back keeps its worst case.

State is exact (rationals), constant in size, and a request costs the same however many came before.
Tests: ``tests/budget/test_filter.py`` (adaptive adversaries by enumeration, mutants).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

from expost.budget.budgets import Budget, Coordinates
from expost.errors import BudgetRefused, InvalidInput


@dataclass(frozen=True)
class Filter:
    """A budget and what has been settled and is held against it; operations return the next state."""

    budget: Budget
    settled: Coordinates
    held: Coordinates
    name: str = "budget"

    @classmethod
    def empty(cls, budget: Budget, name: str = "budget") -> Filter:
        zero = (Fraction(0),) * len(budget.limits)
        return cls(budget, zero, zero, name)

    @property
    def remaining(self) -> Coordinates:
        """What a next worst case may be, coordinate by coordinate (never negative)."""
        return tuple(
            max(Fraction(0), limit - used)
            for limit, used in zip(self.budget.limits, self._used(), strict=True)
        )

    def admits(self, worst: Coordinates) -> bool:
        """Whether a request with this worst case may run."""
        used = zip(self._used(), worst, self.budget.limits, strict=True)
        fits = [before + more <= limit for before, more, limit in used]
        return all(fits) if self.budget.rule == "all" else any(fits)

    def reserve(self, worst: Coordinates) -> Filter:
        """Hold a worst case, or refuse."""
        if not self.admits(worst):
            describe = self.budget.describe
            raise BudgetRefused(
                self.name, describe(worst), describe(self.remaining, up=False), describe(self.held)
            )
        return replace(self, held=_add(self.held, worst))

    def settle(self, worst: Coordinates, realised: Coordinates) -> Filter:
        """Replace a held worst case by what the outcome cost."""
        if any(cost > most for cost, most in zip(realised, worst, strict=True)):
            raise InvalidInput(
                "outcome", "its charge", "an outcome cannot cost more than the reserved worst case"
            )
        if any(realised[place] != worst[place] for place in self.budget.never_refunded):
            raise InvalidInput(
                "outcome",
                "its δ",
                "δ covers all outcomes together; an outcome cannot cost less of it",
            )
        if any(less > held for less, held in zip(worst, self.held, strict=True)):
            raise InvalidInput("reservation", "its worst case", "it is not held any more")
        held = tuple(before - less for before, less in zip(self.held, worst, strict=True))
        return replace(self, settled=_add(self.settled, realised), held=held)

    def _used(self) -> Coordinates:
        return _add(self.settled, self.held)


def _add(first: Coordinates, second: Coordinates) -> Coordinates:
    return tuple(a + b for a, b in zip(first, second, strict=True))
