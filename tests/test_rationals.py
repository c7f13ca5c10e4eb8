"""Exact numbers: input is read without rounding; results are rounded in the stated direction."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from expost.errors import InvalidGuarantee, InvalidInput
from expost.rationals import (
    charge_text,
    count_of,
    exact,
    exact_normal,
    exact_positive,
    pad_up,
    product_up,
    round_down,
    round_up,
)


@pytest.mark.parametrize(
    ("value", "rational"),
    [
        (3, Fraction(3)),
        (0.1, Fraction(3602879701896397, 2**55)),
        (Fraction(1, 3), Fraction(1, 3)),
        (Decimal("0.1"), Fraction(1, 10)),
        (np.int32(-4), Fraction(-4)),
        (np.float32(0.5), Fraction(1, 2)),
    ],
)
def test_numbers_are_read_exactly(value: Any, rational: Fraction) -> None:
    """Would catch a float that is taken for the decimal near it."""
    assert exact(value, "x") == rational


@pytest.mark.parametrize("value", [math.nan, math.inf, Decimal("Infinity"), True, "1", 1j, [1]])
def test_what_is_no_number_is_refused(value: Any) -> None:
    for read in (exact, exact_positive):
        with pytest.raises(InvalidInput, match="give a finite real number"):
            read(value, "x")


def test_a_missing_number_is_required() -> None:
    with pytest.raises(InvalidInput, match=r"^x is required: give a finite real number$"):
        exact(None, "x")  # type: ignore[arg-type]
    with pytest.raises(InvalidGuarantee, match=r"^x is required: give a number > 0$"):
        exact_positive(None, "x", error=InvalidGuarantee)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=r"^x is required: give a whole number ≥ 1$"):
        count_of(None, "x", at_least=1)


@pytest.mark.parametrize("value", [0, -1, -0.0, Fraction(-1, 2)])
def test_positive_means_positive(value: Any) -> None:
    with pytest.raises(InvalidInput, match="give a number > 0"):
        exact_positive(value, "x")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1e-5, "1e-05"),
        (0.1, "0.1"),
        (79.52, "79.52"),
        (0.5713612, "0.571362"),
        (4, "4"),
        (0, "0"),
        (math.inf, "inf"),
        (10**400, "inf"),
        (0.9999999, "1"),
    ],
)
def test_charges_as_text(value: float, text: str) -> None:
    """Catches a charge that is shown too small, and a short decimal that gets further digits."""
    assert charge_text(value) == text
    assert float(charge_text(0.5714, 3)) == 0.572


@given(st.floats(0, 1e300), st.integers(1, 12))
def test_a_charge_is_never_shown_too_small(value: float, digits: int) -> None:
    """Catches rounding to the nearest, and rounding up by more than the last digit."""
    shown = float(charge_text(value, digits))
    assert shown >= value
    assert shown <= value * (1 + 10.0 ** (1 - digits)) * (1 + 1e-12) or value < 1e-300


@given(st.fractions())
def test_directed_rounding_is_tight(value: Fraction) -> None:
    """Would catch a rounding to nearest: the result is the next float in the stated direction."""
    up, down = round_up(value), round_down(value)
    assert Fraction(down) <= value <= Fraction(up)
    assert up == down or up == math.nextafter(down, math.inf)


def test_rounding_of_numbers_beyond_the_floats() -> None:
    huge = Fraction(10) ** 400
    assert (round_up(huge), round_down(-huge)) == (math.inf, -math.inf)
    largest = math.nextafter(math.inf, 0)
    assert (round_down(huge), round_up(-huge)) == (largest, -largest)
    assert round_up(1 / huge) == math.ulp(0)


_FLOATS = st.floats(allow_nan=False, allow_infinity=False)


@given(_FLOATS, _FLOATS)
def test_products_are_rounded_up_and_no_further(first: float, second: float) -> None:
    """Also where they overflow or are subnormal."""
    assert product_up(first, second) == round_up(Fraction(first) * Fraction(second))


@given(st.floats(-1e300, 1e300), st.floats(0, 1e300))
def test_padding_only_raises(value: float, magnitude: float) -> None:
    assert pad_up(value) > value
    assert pad_up(value, magnitude) > value


@pytest.mark.parametrize("value", [True, 1.0, "1", 0, np.float64(2)])
def test_counts_are_whole_numbers(value: Any) -> None:
    with pytest.raises(InvalidInput, match="give a whole number ≥ 1"):
        count_of(value, "x", at_least=1)
    assert count_of(np.int64(2), "x", at_least=1) == 2


@pytest.mark.skipif(np.finfo(np.longdouble).nmant <= 52, reason="a longdouble is a float here")
def test_a_longdouble_is_refused() -> None:
    """Catches a number that is rounded without notice."""
    for read in (exact, exact_positive, exact_normal):
        with pytest.raises(InvalidInput, match="longdouble"):
            read(np.longdouble(1) / 3, "x")


def test_numbers_outside_the_normal_floats_are_refused() -> None:
    """Catches a division by zero, or a lost digit, deep inside a formula."""
    smallest = 2.0**-1022
    for value in (math.ulp(0), smallest / 2, Fraction(1, 10**400), 10**400):
        with pytest.raises(InvalidInput, match="as floats hold them"):
            exact_normal(value, "x")  # type: ignore[arg-type]
    for value in (smallest, 1, Fraction(1, 3), 1.7e308):
        assert exact_normal(value, "x") == Fraction(value)


def test_the_margin_follows_the_terms_of_a_sum() -> None:
    """Catches a sum of large terms that cancel and is padded by almost nothing."""
    assert pad_up(0.0, 1.0) >= 2.0**-44
    assert pad_up(-1.0, 8.0) >= -1 + 8 * 2.0**-44
