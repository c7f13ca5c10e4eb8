"""The privacy filter (``alg:rdp-filter``), for one-shot requests that may run side by side.

A request is admitted if and only if settled + held + its worst case stays within the budget. It is
then held at its worst case until it is settled at the charge of its released outcome.

Held requests only make the test stricter than the one in the paper, and an analyst who receives an
answer late is still an adaptive analyst. So ``theorem:rdp-filter`` (and its pure, approximate and
zCDP forms) also covers requests that are still running. A refusal changes nothing. Time never frees
anything: a request that never reports back keeps its worst case.

The caller must reserve before it reads data, and must state charges that are valid for the
mechanism. The state consists of exact rationals and has constant size, and the cost of a request
does not depend on how many came before.
Tests: ``tests/budget/test_filter.py`` (adaptive adversaries by enumeration, mutants).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

from expost.budget.limits import Budget, Coordinates
from expost.errors import BudgetRefused, InvalidInput


@dataclass(frozen=True)
class Filter:
    """A budget with the amounts settled and held against it. Every operation returns a new state.

    Parameters
    ----------
    budget : Budget
        The limits, and the rule that compares amounts with them.
    settled : tuple of Fraction
        The sum of the charges of finished requests, one number per limit.
    held : tuple of Fraction
        The sum of the worst cases of running requests, one number per limit.
    name : str, default "budget"
        The name shown in refusals.
    """

    budget: Budget
    settled: Coordinates
    held: Coordinates
    name: str = "budget"

    @classmethod
    def empty(cls, budget: Budget, name: str = "budget") -> Filter:
        """Return the state of a new budget: nothing settled, nothing held."""
        zero = (Fraction(0),) * len(budget.limits)
        return cls(budget, zero, zero, name)

    @property
    def remaining(self) -> Coordinates:
        """The largest worst case that fits in each coordinate; never negative."""
        return tuple(
            max(Fraction(0), limit - used)
            for limit, used in zip(self.budget.limits, self._used(), strict=True)
        )

    def admits(self, worst: Coordinates) -> bool:
        """Return whether a request with this worst case may run."""
        used = zip(self._used(), worst, self.budget.limits, strict=True)
        fits = [before + more <= limit for before, more, limit in used]
        return all(fits) if self.budget.rule == "all" else any(fits)

    def reserve(self, worst: Coordinates) -> Filter:
        """Hold a worst case.

        Parameters
        ----------
        worst : tuple of Fraction
            The worst case of the request, as returned by :meth:`Budget.worst`.

        Returns
        -------
        Filter
            The next state.

        Raises
        ------
        BudgetRefused
            The worst case does not fit. This state is unchanged.
        """
        if not self.admits(worst):
            describe = self.budget.describe
            raise BudgetRefused(
                self.name, describe(worst), describe(self.remaining, up=False), describe(self.held)
            )
        return replace(self, held=_add(self.held, worst))

    def settle(self, worst: Coordinates, realised: Coordinates, *, earlier: bool = False) -> Filter:
        """Replace a held worst case by the charge of the outcome.

        Parameters
        ----------
        worst : tuple of Fraction
            The worst case that was reserved.
        realised : tuple of Fraction
            The charge of the released outcome.
        earlier : bool, default False
            Whether the request was admitted in an earlier period, whose limit it was held against.
            Its charge belongs to that period, so that it ends to be held and nothing more.

        Returns
        -------
        Filter
            The next state.

        Raises
        ------
        InvalidInput
            The charge exceeds the worst case, has less of a coordinate that is never refunded, or
            the worst case is not held.
        """
        if any(cost > most for cost, most in zip(realised, worst, strict=True)):
            raise InvalidInput(
                "realised",
                self.budget.describe(realised),
                "the charge of an outcome cannot exceed the reserved worst case",
            )
        if any(realised[number] != worst[number] for number in self.budget.never_refunded):
            raise InvalidInput(
                "realised",
                self.budget.describe(realised),
                "δ covers all outcomes together; settling cannot lower it",
            )
        if any(less > held for less, held in zip(worst, self.held, strict=True)):
            raise InvalidInput(
                "worst", self.budget.describe(worst), "this amount is not held; reserve it first"
            )
        held = tuple(before - less for before, less in zip(self.held, worst, strict=True))
        settled = self.settled if earlier else _add(self.settled, realised)
        return replace(self, settled=settled, held=held)

    def _used(self) -> Coordinates:
        return _add(self.settled, self.held)


def _add(first: Coordinates, second: Coordinates) -> Coordinates:
    return tuple(a + b for a, b in zip(first, second, strict=True))
