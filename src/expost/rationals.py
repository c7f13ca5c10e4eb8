"""Exact numbers: read user input as rationals, and round rationals towards more privacy loss.

A float is taken as the binary fraction that it stores, not as a nearby decimal. :func:`round_up`
and :func:`round_down` are exact directed roundings. :func:`pad_up` adds a margin to a result of
floating point arithmetic, so that it bounds the real number from above.

Tests: ``tests/test_rationals.py``; ``tests/privacy/test_guarantees.py`` checks the rounding of
every operation on guarantees.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from decimal import ROUND_CEILING, Context, Decimal
from fractions import Fraction
from itertools import pairwise
from numbers import Rational
from typing import Any

import numpy as np

from expost.errors import InvalidGuarantee, InvalidInput

Number = int | float | Fraction | Decimal
"""The types that users may pass for a privacy parameter."""

_REAL = "give a finite real number"
_SMALLEST_NORMAL = Fraction(sys.float_info.min)
_LARGEST = Fraction(sys.float_info.max)


def exact(value: Number, field: str, *, error: type[InvalidInput] = InvalidInput) -> Fraction:
    """Return a number as an exact rational; a float is the binary fraction that it stores.

    Booleans are refused, and ``np.longdouble``, which has more digits than a float.
    """
    if isinstance(value, np.integer):
        return Fraction(int(value))
    if isinstance(value, np.floating):
        if np.finfo(type(value)).nmant > 52:
            raise error(
                field,
                str(value),
                "an np.longdouble would be rounded without notice; pass a float or a Fraction",
            )
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, (int, float, Rational, Decimal)):
        raise error(field, value, _REAL)
    try:
        return Fraction(value)
    except (ValueError, OverflowError):
        raise error(field, value, _REAL) from None


def exact_positive(
    value: Number, field: str, *, error: type[InvalidInput] = InvalidInput
) -> Fraction:
    """Return a number as an exact rational and require that it is positive."""
    if value is None:
        raise error(field, value, "give a number > 0")
    result = exact(value, field, error=error)
    if result <= 0:
        raise error(field, value, "give a number > 0")
    return result


def exact_normal(
    value: Number, field: str, *, error: type[InvalidInput] = InvalidInput
) -> Fraction:
    """Return a number as an exact rational that a float holds with full precision."""
    result = exact_positive(value, field, error=error)
    if not _SMALLEST_NORMAL <= result <= _LARGEST:
        raise error(
            field, _short(value), "give a number between 2.3e-308 and 1.7e308, as floats hold them"
        )
    return result


def _short(value: object) -> str:
    """Return a number as text that is never long."""
    return (
        f"{value:.3g}" if isinstance(value, float) else f"a number of type {type(value).__name__}"
    )


def round_up(value: Fraction) -> float:
    """Return the smallest float that is at least ``value`` (infinity if there is no finite one)."""
    try:
        nearest = float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.nextafter(math.inf, 0)
    numerator, denominator = nearest.as_integer_ratio()
    enough = numerator * value.denominator >= value.numerator * denominator
    return nearest if enough else math.nextafter(nearest, math.inf)


def product_up(first: float, second: float) -> float:
    """Return the smallest float that is at least the product of two finite floats."""
    nearest = first * second
    if math.isinf(nearest):
        return round_up(Fraction(first) * Fraction(second))
    (a, b), (c, d), (e, f) = map(float.as_integer_ratio, (nearest, first, second))
    return nearest if a * d * f >= c * e * b else math.nextafter(nearest, math.inf)


def round_down(value: Fraction) -> float:
    """Return the largest float that is at most ``value``."""
    return -round_up(-value)


def root_up(value: Fraction) -> float:
    """Return a float whose square is at least ``value`` ≥ 0, and hardly more."""
    root = math.sqrt(value)
    while Fraction(root) ** 2 < value:
        root = math.nextafter(root, math.inf)
    return root


def decimal_up(value: float, digits: int) -> Decimal:
    """Return the smallest decimal with so many digits that reads as at least ``value``.

    A float is taken as its shortest decimal, so 0.1 and 1e-05 stay as they are.
    """
    text = str(value) if isinstance(value, int) else repr(float(value))
    return Context(prec=digits, rounding=ROUND_CEILING).create_decimal(text)


def charge_text(value: float, digits: int = 6) -> str:
    """Return a privacy loss as text: never below ``value``, with at most so many digits."""
    if not isinstance(value, int) and not math.isfinite(value):
        return str(float(value))
    return f"{float(decimal_up(value, digits)):.{digits}g}"


def pad_up(value: float, magnitude: float | None = None) -> float:
    """Return an upper bound of a real number that was evaluated in floating point.

    ``magnitude``: sum of the absolute values of the terms that were added. The margin, 2**-44 of
    it, is more than a hundred times the error of a dozen roundings and calls of exp or log.
    """
    scale = abs(value) if magnitude is None else magnitude
    return math.nextafter(value + scale * 2.0**-44, math.inf)


def count_of(
    value: object, field: str, *, at_least: int, error: type[InvalidInput] = InvalidInput
) -> int:
    """Return a Python or NumPy integer as an int ≥ ``at_least``; refuse booleans and floats."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < at_least:
        raise error(field, value, f"give a whole number ≥ {at_least}")
    return int(value)


def as_json(value: Any) -> Any:
    """Return a field of a guarantee or of a profile as JSON holds it."""
    if isinstance(value, tuple):
        return [as_json(part) for part in value]
    return value.as_dict() if hasattr(value, "as_dict") else value


def read_kind(record: Mapping[str, Any], kinds: Mapping[str, Callable[..., Any]], what: str) -> Any:
    """Read a record that ``as_dict`` wrote; refuse a kind or fields that it would not write."""
    values = dict(record)
    kind = values.pop("kind", None)
    if not isinstance(kind, str) or kind not in kinds:
        raise InvalidGuarantee("kind", kind, f"give a {what} of kind " + ", ".join(kinds))
    try:
        return kinds[kind](**values)
    except TypeError:
        expected = ", ".join(field.name for field in fields(kinds[kind]))  # type: ignore[arg-type]
        raise InvalidGuarantee(
            what, sorted(values), f"a {what} of kind {kind!r} has the fields {expected}"
        ) from None


def set_fields(instance: object, **values: object) -> None:
    """Set fields of a frozen record while it is created."""
    for name, value in values.items():
        object.__setattr__(instance, name, value)


def check_loss(value: Number, field: str) -> float:
    """Return a privacy loss as a float, rounded up; require 0 ≤ loss < infinity."""
    if type(value) is float and 0 < value < math.inf:
        return value  # what the exact number would be rounded to
    result = round_up(exact(value, field, error=InvalidGuarantee))
    if not 0 <= result < math.inf:
        raise InvalidGuarantee(field, value, "give a finite number ≥ 0")
    return result


def check_list(values: object, field: str) -> Sequence[Any]:
    """Return a list, tuple or array as a sequence; require at least one element."""
    if isinstance(values, np.ndarray):
        values = values.tolist()
    if not isinstance(values, (list, tuple)) or not values:
        raise InvalidGuarantee(field, values, "give a non-empty list of numbers")
    return values


def check_orders(values: object) -> tuple[float, ...]:
    """Return Rényi orders as floats, rounded down; require finite orders > 1 that ascend."""
    listed = check_list(values, "orders")
    orders = tuple(
        value
        if type(value) is float and 1 < value < math.inf
        else round_down(exact(value, "orders", error=InvalidGuarantee))
        for value in listed
    )  # a curve at a lower order claims less
    if any(not 1 < order < math.inf for order in orders):
        raise InvalidGuarantee("orders", values, "give finite orders > 1")
    if any(a >= b for a, b in pairwise(orders)):
        raise InvalidGuarantee(
            "orders", values, "give the orders in ascending order, without repetition"
        )
    return orders


def apply_up(function: Callable[[Fraction, Fraction], Fraction], a: float, b: float) -> float:
    """Apply ``function`` to the exact values of two floats and round the result up."""
    if function is max:
        return max(a, b)
    return round_up(function(Fraction(a), Fraction(b)))
