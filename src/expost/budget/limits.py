"""Amounts of a budget as exact rationals, read from decimals as people write them.

What a number stands for:

* Text, ``Decimal``, ``int`` and ``Fraction``: exactly that number.
* A float whose shortest decimal has at most 15 significant digits: that decimal. Every decimal with
  at most 15 digits survives the way into a float and back, so this is the number that was typed,
  and ten charges of 0.1 fit into a budget of 1.
* Any other float: the binary fraction that it stores. Such floats come from computations, which
  round up or are padded upwards (:mod:`expost.rationals`), and are never lowered here.

Why this is sound: a float differs from its decimal by at most 2⁻⁵³ of itself. A charge computed
with :func:`expost.rationals.pad_up` has a margin of 2⁻⁴⁴, and stays above the true price if it
happens to have a short decimal. A mechanism that calibrates its noise to the binary value of a
typed ε loses at most ε(1 + 2⁻⁵³). What a budget of ε admits therefore loses at most ε(1 + 2⁻⁵³) in
all: less than the last digit of a float, and nothing else is rounded in favour of the analyst.
Tests: ``tests/budget/test_amounts.py``.

The interface of every budget: limits as exact rationals, and charges measured against them.

Each kind of budget turns a charge into *coordinates* (ε; ε and δ; ρ; or ε at each order) and
states which charges it accepts. The kinds are in :mod:`expost.budget.budgets` and
:mod:`expost.budget.budgets`.

Rounding: see :mod:`expost.budget.limits`. Limits are rounded down when a budget is made. Sums are
exact. For display, spent amounts are rounded up and remaining amounts are rounded down. What a
budget guarantees is its limit times 1 + 2⁻⁵³, rounded up (:func:`guaranteed`).

Relations: a budget adds charges for its own neighbouring relation. There is one exception, in
:meth:`Budget.coordinates`: a budget for zero-out neighbours also takes charges for add-remove
neighbours, which imply it (:meth:`expost.privacy.guarantees.Guarantee.as_zero_out`).
Tests: ``tests/budget/test_filter.py``.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Any, ClassVar

from expost.errors import InvalidGuarantee, InvalidInput
from expost.privacy.charges import Charges
from expost.privacy.guarantees import ADD_REMOVE, ZERO_OUT, Guarantee
from expost.rationals import Number, exact, round_up

DIGITS = 15
"""Decimals of so many significant digits survive the way into a float and back."""
_DECIMAL = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,4})?")
_LONGEST_TEXT = 60
_SHOWN = 12  # significant digits of an amount that has no short decimal


_BINARY: ContextVar[bool] = ContextVar("expost_binary_amounts", default=False)


def amount_of(value: float) -> Fraction:
    """Return the exact amount that a finite float stands for."""
    return Fraction(value) if _BINARY.get() else _typed(value)


@contextmanager
def binary_amounts() -> Iterator[None]:
    """Take every float as the binary fraction that it stores, as ledgers of schema 1 did."""
    before = _BINARY.set(True)
    try:
        yield
    finally:
        _BINARY.reset(before)


@lru_cache(maxsize=4096)
def _typed(value: float) -> Fraction:
    text = repr(float(value))
    digits = text.lower().partition("e")[0].replace(".", "").lstrip("-0").rstrip("0")
    return Fraction(text) if len(digits) <= DIGITS else Fraction(value)


def amount_from(value: Number | str, field: str) -> Fraction:
    """Return the exact amount that a number or a text stands for.

    ``value``: the number. A text is a decimal such as ``"0.1"`` or ``"1e-6"``. ``field``: name of
    the argument, for the error message. Returns: the amount; −0 is 0. Raises InvalidInput: the
    value is not a finite real number.
    """
    if isinstance(value, str):
        text = value.strip()
        if len(text) > _LONGEST_TEXT or _DECIMAL.fullmatch(text) is None:
            raise InvalidInput(field, value, "give a decimal number, for example 0.1 or 1e-6")
        return Fraction(text)
    number = exact(value, field)
    return amount_of(float(value)) if isinstance(value, float) else number


def float_above(value: Fraction) -> float:
    """Return a float that stands for at least this amount, the closest one."""
    nearest = _nearest(value)
    while math.isfinite(nearest) and amount_of(nearest) < value:
        nearest = math.nextafter(nearest, math.inf)
    return nearest + 0.0  # −0 is 0


def float_below(value: Fraction) -> float:
    """Return a float that stands for at most this amount, the closest one."""
    nearest = min(_nearest(value), math.nextafter(math.inf, 0))
    while amount_of(nearest) > value:
        nearest = math.nextafter(nearest, -math.inf)
    return nearest + 0.0


def _nearest(value: Fraction) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def decimal_text(value: Fraction, *, up: bool = True) -> str:
    """Return an amount as a decimal for people.

    ``value``: the amount, not negative. ``up``: round up if the amount has no short decimal. Pass
    False for amounts that remain. Returns: the exact decimal if it has at most 15 significant
    digits, otherwise 12 digits.
    """
    if value == 0:
        return "0"
    decimals = DIGITS - 1 - math.floor(_log10(value))
    scaled = value * Fraction(10) ** decimals
    if scaled.denominator != 1:
        decimals = _SHOWN - 1 - math.floor(_log10(value))
        scaled = value * Fraction(10) ** decimals
    number = Decimal(math.ceil(scaled) if up else math.floor(scaled)).scaleb(-decimals)
    number = number.normalize()
    if -5 < number.adjusted() < DIGITS:
        return f"{number:f}"
    digits, _, exponent = f"{number:e}".partition("e")
    return f"{digits}e{int(exponent)}"


def _log10(value: Fraction) -> float:
    """The decimal logarithm of a positive amount of any size, slightly below whole numbers."""
    return math.log10(value.numerator) - math.log10(value.denominator)


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
        """Return the guarantee that holds for everything this budget ever admits.

        Its numbers are the limits times 1 + 2⁻⁵³, rounded up: a mechanism may be calibrated to the
        binary value of a charge that is counted as a decimal (:mod:`expost.budget.limits`).
        """

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
            for column in zip(*(self.coordinates(charge) for charge in outcomes), strict=True)
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


def check_limit(value: Number | str, field: str) -> float:
    """A positive limit as a float whose decimal is not above the given number."""
    return float_below(_positive(value, field))


def check_delta_limit(value: Number | str) -> float:
    """A δ between 0 and 1 as a float whose decimal is not above the given number."""
    amount = _positive(value, "delta")
    if guaranteed(amount) >= 1:
        raise InvalidInput("delta", value, "give 0 < delta < 1")
    return float_below(amount)


def _positive(value: Number | str, field: str) -> Fraction:
    """A number as an exact amount; refused unless it is positive."""
    if value is None:
        raise InvalidInput(field, value, "give a number > 0")
    amount = amount_from(value, field)
    if amount <= 0:
        raise InvalidInput(field, value, "give a number > 0")
    return amount


def guaranteed(limit: Fraction) -> float:
    """What holds for everything that a limit admits: the limit times 1 + 2⁻⁵³, rounded up.

    A charge is counted as a decimal and may stand for a float that is larger by 2⁻⁵³ of itself.
    """
    return round_up(limit * (1 + Fraction(1, 2**53)))


def displayed(value: Fraction, up: bool) -> float:
    """An exact amount as a float whose decimal is not below it, or not above it."""
    return float_above(value) if up else float_below(value)
