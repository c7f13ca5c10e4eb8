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
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache

from expost.errors import InvalidInput
from expost.rationals import Number, exact

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

    Parameters
    ----------
    value : int, float, Fraction, Decimal or str
        The number. A text is a decimal such as ``"0.1"`` or ``"1e-6"``.
    field : str
        Name of the argument, for the error message.

    Returns
    -------
    Fraction
        The amount; −0 is 0.

    Raises
    ------
    InvalidInput
        The value is not a finite real number.
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

    Parameters
    ----------
    value : Fraction
        The amount, not negative.
    up : bool, default True
        Round up if the amount has no short decimal. Pass False for amounts that remain.

    Returns
    -------
    str
        The exact decimal if it has at most 15 significant digits, otherwise 12 digits.
    """
    if value == 0:
        return "0"
    places = DIGITS - 1 - math.floor(_log10(value))
    scaled = value * Fraction(10) ** places
    if scaled.denominator != 1:
        places = _SHOWN - 1 - math.floor(_log10(value))
        scaled = value * Fraction(10) ** places
    number = Decimal(math.ceil(scaled) if up else math.floor(scaled)).scaleb(-places)
    number = number.normalize()
    if -5 < number.adjusted() < DIGITS:
        return f"{number:f}"
    digits, _, exponent = f"{number:e}".partition("e")
    return f"{digits}e{int(exponent)}"


def _log10(value: Fraction) -> float:
    """The decimal logarithm of a positive amount of any size, slightly below whole numbers."""
    return math.log10(value.numerator) - math.log10(value.denominator)
