"""Exact numbers: what a user typed as a rational, and rationals rounded towards more privacy loss."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from numbers import Rational

import numpy as np

from expost.errors import InvalidInput

Number = int | float | Fraction | Decimal
"""What users may write for a privacy parameter."""


def exact(value: Number, field: str, *, error: type[InvalidInput] = InvalidInput) -> Fraction:
    """The rational that ``value`` is: a float means the binary fraction it holds, nothing near it."""
    if isinstance(value, np.integer):
        return Fraction(int(value))
    if isinstance(value, np.floating):
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, (int, float, Rational, Decimal)):
        raise error(field, value, "give a finite real number")
    try:
        return Fraction(value)
    except (ValueError, OverflowError):
        raise error(field, value, "give a finite real number") from None


def exact_positive(
    value: Number, field: str, *, error: type[InvalidInput] = InvalidInput
) -> Fraction:
    """The rational that ``value`` is, refused unless it is positive."""
    result = exact(value, field, error=error)
    if result <= 0:
        raise error(field, value, "give a number > 0")
    return result


def round_up(value: Fraction) -> float:
    """The smallest float that is at least ``value``."""
    try:
        nearest = float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.nextafter(math.inf, 0)
    return nearest if Fraction(nearest) >= value else math.nextafter(nearest, math.inf)


def round_down(value: Fraction) -> float:
    """The largest float that is at most ``value``."""
    return -round_up(-value)


def pad_up(value: float, magnitude: float | None = None) -> float:
    """An upper bound of a real number from its floating-point evaluation ``value``.

    ``magnitude`` is the sum of the absolute values of the terms that were added to get ``value`` (default: |value|).
    The margin, 2**-44 of it, is more than a hundred times what a dozen roundings and calls of exp or log can lose.
    """
    scale = abs(value) if magnitude is None else magnitude
    return math.nextafter(value + scale * 2.0**-44, math.inf)


def count_of(
    value: object, field: str, *, at_least: int, error: type[InvalidInput] = InvalidInput
) -> int:
    """``value`` as a Python int, refused unless it is a whole number of at least ``at_least``."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < at_least:
        raise error(field, value, f"give a whole number ≥ {at_least}")
    return int(value)
