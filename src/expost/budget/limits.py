"""Amounts as exact rationals, the interface of every budget, and the filter that admits requests.

**Amounts.** What a number stands for:

* Text, ``Decimal``, ``int`` and ``Fraction``: exactly that number.
* A float whose shortest decimal has at most 15 significant digits: that decimal, which is the
  number that was typed. So ten charges of 0.1 fit into a budget of 1.
* Any other float: the binary fraction that it stores. Such floats come from computations, which
  round up or are padded upwards (:mod:`expost.rationals`), and are never lowered here.

This is sound: a float differs from its decimal by at most 2⁻⁵³ of itself, and a computed charge has
a margin of 2⁻⁴⁴ (:func:`expost.rationals.pad_up`). A mechanism that calibrates its noise to the
binary value of a typed ε loses at most ε(1 + 2⁻⁵³), and so does what a budget of ε admits in all.

**Budgets.** Each kind (:mod:`expost.budget.budgets`) turns a charge into *coordinates* (ε; ε and δ;
ρ; or ε at each order). Limits are rounded down when a budget is made. Sums are exact. For display,
charged amounts are rounded up and remaining amounts down.

**The filter** (``alg:rdp-filter``). A request is admitted if and only if settled + held + its worst
case stays within the budget. It is then held at its worst case until it is settled at the charge of
its released outcome. Held requests only make the test stricter than the one in the paper, and an
analyst who receives an answer late is still an adaptive analyst. So ``theorem:rdp-filter`` (and its
pure, approximate and zCDP forms) also covers requests that are still running. A refusal changes
nothing, and time frees nothing. The caller must reserve before it reads data, and must state
charges that are valid for the mechanism.

Tests: ``tests/budget/test_amounts.py``, ``tests/budget/test_filter.py`` (adaptive adversaries by
enumeration, mutants).
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields, replace
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache, partial
from typing import Any, ClassVar

from expost.errors import BudgetRefused, InvalidGuarantee, InvalidInput
from expost.privacy.charges import Charges
from expost.privacy.guarantees import ADD_REMOVE, ZERO_OUT, Guarantee, check_relation
from expost.rationals import Number, as_json, exact, round_up, set_fields

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
    # At most 15 digits: the decimal that was typed. More: a computed float, taken exactly.
    digits = text.lower().partition("e")[0].replace(".", "").lstrip("-0").rstrip("0")
    return Fraction(text) if len(digits) <= DIGITS else Fraction(value)


def amount_from(value: Number | str, field: str) -> Fraction:
    """Return the exact amount that a number, or a text such as ``"1e-6"``, stands for; −0 is 0."""
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
    """Return an amount ≥ 0 as a decimal for people: exact with at most 15 digits, else 12 digits.

    ``up`` rounds up; pass False for amounts that remain.
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

    _counted: ClassVar[tuple[str, ...]]
    _guarantee: ClassVar[Callable[..., Guarantee]]
    _accepted: ClassVar[str]

    def __post_init__(self) -> None:
        for name in self._counted:
            check = check_delta_limit if name == "delta" else partial(check_limit, field=name)
            set_fields(self, **{name: check(getattr(self, name))})
        set_fields(self, neighbours=check_relation(self.neighbours))

    @property
    def limits(self) -> Coordinates:
        """The largest value that each coordinate may reach."""
        return tuple(amount_of(getattr(self, name)) for name in self._counted)

    @abstractmethod
    def _coordinates(self, charge: Guarantee) -> Coordinates | None:
        """A charge in coordinates, or None if this kind of budget does not accept it."""

    def guarantee(self) -> Guarantee:
        """Return the guarantee that holds for everything this budget ever admits.

        Its numbers are the limits times 1 + 2⁻⁵³, rounded up: a mechanism may be calibrated to the
        binary value of a charge that is counted as a decimal (:mod:`expost.budget.limits`).
        """
        return self._guarantee(*(guaranteed(limit) for limit in self.limits), self.neighbours)

    def describe(self, amount: Coordinates, *, up: bool = True) -> float | dict[str, Any]:
        """Return an amount as floats, for display and for JSON: one, or a dict of several.

        ``up`` rounds up, as charged amounts need; pass False for amounts that remain.
        """
        shown = [displayed(number, up) for number in amount]
        return shown[0] if len(shown) == 1 else dict(zip(self._counted, shown, strict=True))

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON form, read back by :func:`expost.budget.budgets.budget_from_dict`."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        return {"kind": self.kind} | {name: as_json(value) for name, value in values.items()}

    def coordinates(self, charge: Guarantee) -> Coordinates:
        """Return the charge of one outcome in coordinates: one exact number per limit.

        A charge for add-remove neighbours is converted if the budget is for zero-out neighbours.
        Raises InvalidGuarantee for a charge that this budget cannot add.
        """
        if (self.neighbours, charge.neighbours) == (ZERO_OUT, ADD_REMOVE):
            charge = charge.as_zero_out()
        if charge.neighbours != self.neighbours:
            raise InvalidGuarantee(
                "neighbours",
                charge.neighbours,
                f"the budget is for {self.neighbours!r} neighbours, and charges must be, too"
                + _remedy(self.neighbours, charge.neighbours),
            )
        measured = self._coordinates(charge)
        if measured is None:
            raise InvalidGuarantee(
                "charge", charge, f"a {self.kind} budget cannot add it; {self._accepts()}"
            )
        return measured

    def worst(self, charges: Charges) -> Coordinates:
        """Return what a request must reserve: the largest charge in each coordinate."""
        outcomes = dict.fromkeys((*charges.levels, charges.nothing))
        return tuple(
            max(column)
            for column in zip(*(self.coordinates(charge) for charge in outcomes), strict=True)
        )

    def _accepts(self) -> str:
        """Which charges this budget accepts, for error messages."""
        return self._accepted


def _remedy(budget: str, charge: str) -> str:
    """What to do if a request with a public number of places meets an add-remove budget."""
    if (budget, charge) != (ADD_REMOVE, ZERO_OUT):
        return ""
    return (
        ". Create a budget for 'zero-out' (expost ledger create --neighbours zero-out), or give a "
        "public number of rows (--rows, data.rows, rows=): the charge is then for 'add-remove'"
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


def add(first: Coordinates, second: Coordinates) -> Coordinates:
    """Return the sum of two amounts."""
    return tuple(a + b for a, b in zip(first, second, strict=True))


def exact_amounts(amounts: Sequence[str]) -> Coordinates:
    """Return the exact amounts that :func:`amount_texts` wrote."""
    parts = (text.partition("/") for text in amounts)
    return tuple(Fraction(int(above), int(below or 1)) for above, _, below in parts)


def amount_texts(amounts: Coordinates) -> list[str]:
    """Return exact amounts as texts such as ``"1/4"``."""
    return [str(amount) for amount in amounts]


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
        """Return the state that holds a worst case, or raise BudgetRefused."""
        if not self.admits(worst):
            describe = self.budget.describe
            raise BudgetRefused(
                self.name, describe(worst), describe(self.remaining, up=False), describe(self.held)
            )
        return replace(self, held=add(self.held, worst))

    def settle(self, worst: Coordinates, charge: Coordinates, *, earlier: bool = False) -> Filter:
        """Return the state in which a held worst case is replaced by the charge of the outcome.

        ``earlier``: the request was admitted in an earlier period, whose limit it was held against.
        Its charge belongs to that period, so that it ends to be held and nothing more.
        """
        if any(part > most for part, most in zip(charge, worst, strict=True)):
            raise InvalidInput(
                "charge",
                self.budget.describe(charge),
                "the charge of an outcome cannot exceed the reserved worst case",
            )
        # One δ covers all outcomes: refunding it would let an analyst repeat until a failure.
        if any(charge[number] != worst[number] for number in self.budget.never_refunded):
            raise InvalidInput(
                "charge",
                self.budget.describe(charge),
                "δ covers all outcomes together; settling cannot lower it",
            )
        if any(less > held for less, held in zip(worst, self.held, strict=True)):
            raise InvalidInput(
                "worst", self.budget.describe(worst), "this amount is not held; reserve it first"
            )
        held = tuple(before - less for before, less in zip(self.held, worst, strict=True))
        settled = self.settled if earlier else add(self.settled, charge)
        return replace(self, settled=settled, held=held)

    def _used(self) -> Coordinates:
        return add(self.settled, self.held)
