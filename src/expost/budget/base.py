"""The interface of every budget: limits as exact rationals, and charges measured against them.

Each kind of budget turns a charge into *coordinates* (ε; ε and δ; ρ; or ε at each order) and
states which charges it accepts. The kinds are in :mod:`expost.budget.budgets` and
:mod:`expost.budget.renyi`.

Rounding: see :mod:`expost.budget.amounts`. Limits are rounded down when a budget is made. Sums are
exact. For display, spent amounts are rounded up and remaining amounts are rounded down.

Relations: a budget adds charges for its own neighbouring relation. There is one exception, in
:meth:`Budget.coordinates`: a budget for zero-out neighbours also takes charges for add-remove
neighbours, which imply it (:meth:`expost.privacy.base.Guarantee.as_zero_out`).
Tests: ``tests/budget/test_filter.py``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from fractions import Fraction
from typing import Any, ClassVar

from expost.budget.amounts import amount_from, float_above, float_below
from expost.errors import InvalidGuarantee, InvalidInput
from expost.privacy.charges import Charges
from expost.privacy.guarantees import ADD_REMOVE, RELATIONS, ZERO_OUT, Guarantee
from expost.rationals import Number

Coordinates = tuple[Fraction, ...]
"""An amount of a budget: one exact number per limit."""


class Budget(ABC):
    """A limit on the total privacy loss under one neighbouring relation.

    Attributes
    ----------
    kind : str
        ``"pure"``, ``"approx"``, ``"zcdp"`` or ``"renyi"``.
    neighbours : str
        The neighbouring relation, ``"add-remove"``, ``"replace"`` or ``"zero-out"``.
    rule : str
        ``"all"`` if every coordinate must stay within its limit, ``"any"`` if one of them is
        enough. Only Rényi budgets offer ``"any"``.
    never_refunded : tuple of int
        The coordinates that settling cannot lower.
    """

    kind: ClassVar[str]
    neighbours: str
    rule: str = "all"
    never_refunded: ClassVar[tuple[int, ...]] = ()

    @property
    @abstractmethod
    def limits(self) -> Coordinates:
        """The largest value that each coordinate may reach."""

    @abstractmethod
    def _coordinates(self, charge: Guarantee) -> Coordinates | None:
        """A charge in coordinates, or None if this kind of budget does not accept it."""

    @abstractmethod
    def guarantee(self) -> Guarantee:
        """Return the guarantee that holds for everything this budget ever admits."""

    @abstractmethod
    def describe(self, amount: Coordinates, *, up: bool = True) -> float | dict[str, Any]:
        """Return an amount as floats, for display and for JSON.

        Parameters
        ----------
        amount : tuple of Fraction
            One exact number per limit.
        up : bool, default True
            Round up, as spent amounts need. Pass False for amounts that remain.

        Returns
        -------
        float or dict
            A float if the budget has one limit. Otherwise a dict with the keys ``epsilon`` and
            ``delta``, or ``orders`` and ``epsilons``.
        """

    @abstractmethod
    def as_dict(self) -> dict[str, Any]:
        """Return a JSON form, read back by :func:`expost.budget.budgets.budget_from_dict`."""

    def coordinates(self, charge: Guarantee) -> Coordinates:
        """Measure a charge against this budget.

        A charge for add-remove neighbours is converted if the budget is for zero-out neighbours.

        Parameters
        ----------
        charge : Guarantee
            The charge of one outcome.

        Returns
        -------
        tuple of Fraction
            One exact number per limit.

        Raises
        ------
        InvalidGuarantee
            The charge is for another neighbouring relation, or of a kind that this budget cannot
            add.
        """
        if (self.neighbours, charge.neighbours) == (ZERO_OUT, ADD_REMOVE):
            charge = charge.as_zero_out()
        if charge.neighbours != self.neighbours:
            raise InvalidGuarantee(
                "neighbours",
                charge.neighbours,
                f"the budget is for {self.neighbours!r} neighbours, and a charge must use the same "
                "neighbouring relation" + _remedy(self.neighbours, charge.neighbours),
            )
        measured = self._coordinates(charge)
        if measured is None:
            raise InvalidGuarantee(
                "charge", charge, f"a {self.kind} budget cannot add it; {self._accepted()}"
            )
        return measured

    def worst(self, charges: Charges) -> Coordinates:
        """Return what a request must reserve: the largest charge in each coordinate.

        Parameters
        ----------
        charges : Charges
            The charge of every outcome.

        Returns
        -------
        tuple of Fraction
            The maximum over the outcomes, taken coordinate by coordinate.

        Raises
        ------
        InvalidGuarantee
            A charge cannot be measured against this budget.
        """
        outcomes = dict.fromkeys((*charges.levels, charges.nothing))
        return tuple(
            max(column)
            for column in zip(*(self.coordinates(each) for each in outcomes), strict=True)
        )

    @abstractmethod
    def _accepted(self) -> str:
        """Which charges this budget accepts, for error messages."""


def _remedy(budget: str, charge: str) -> str:
    """What to do if a request with a public number of places meets an add-remove budget."""
    if (budget, charge) != (ADD_REMOVE, ZERO_OUT):
        return ""
    return (
        "; open the budget with neighbours 'zero-out' (--neighbours zero-out), or give the public "
        "number of rows (data.rows, or rows=), so that the request is charged for 'add-remove'"
    )


def set_fields(instance: Budget, **values: object) -> None:
    """Set fields of a frozen record while it is being made."""
    for name, value in values.items():
        object.__setattr__(instance, name, value)


def check_limit(value: Number | str, field: str) -> float:
    """A positive limit as a float whose decimal is not above the given number."""
    return float_below(_positive(value, field))


def check_delta(value: Number | str) -> float:
    """A δ between 0 and 1 as a float whose decimal is not above the given number."""
    if not 0 < _positive(value, "delta") < 1:
        raise InvalidInput("delta", value, "give 0 < delta < 1")
    return float_below(_positive(value, "delta"))


def _positive(value: Number | str, field: str) -> Fraction:
    """A number as an exact amount; refused unless it is positive."""
    if value is None:
        raise InvalidInput(field, value, "give a number > 0")
    amount = amount_from(value, field)
    if amount <= 0:
        raise InvalidInput(field, value, "give a number > 0")
    return amount


def check_relation(value: str) -> str:
    """A neighbouring relation, refused if it is unknown."""
    if value not in RELATIONS:
        raise InvalidInput("neighbours", value, "give 'add-remove', 'replace' or 'zero-out'")
    return value


def rounded(value: Fraction, up: bool) -> float:
    """An exact amount as a float whose decimal is not below it, or not above it."""
    return float_above(value) if up else float_below(value)
