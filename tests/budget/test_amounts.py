"""What numbers stand for: typed decimals are decimals, computed floats are never lowered."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from expost import PureDP
from expost.budget.budgets import ApproxBudget, PureBudget
from expost.budget.limits import (
    amount_from,
    amount_of,
    binary_amounts,
    decimal_text,
    float_above,
    float_below,
)
from expost.errors import InvalidInput
from expost.rationals import pad_up

FINITE = st.floats(0, 1e300, allow_subnormal=False)
DECIMALS = st.decimals(0, 10**6, allow_nan=False, allow_infinity=False, places=6)


@pytest.mark.parametrize("text", ["0.1", "0.3", "1", "10", "2.5", "1e-6", "0.123456789012345"])
def test_typed_decimals_are_decimals(text):
    """Catches 0.1 taken for 0.1000000000000000055."""
    assert amount_of(float(text)) == amount_from(text, "x") == Fraction(text)
    assert amount_from(Decimal(text), "x") == amount_from(float(text), "x") == Fraction(text)


@given(DECIMALS)
def test_decimals_survive_floats(value):
    """Catches a decimal of up to 15 digits that is another one after its way through a float."""
    assert amount_of(float(value)) == Fraction(value)
    assert float_above(Fraction(value)) == float_below(Fraction(value)) == float(value)


@given(FINITE)
def test_a_float_stands_for_itself_or_its_decimal(value):
    """Catches an amount that is more than 2⁻⁵³ away from the float, or a computed one lowered."""
    amount = amount_of(value)
    assert abs(amount - Fraction(value)) <= Fraction(value) / 2**53
    if len(repr(value).partition("e")[0].replace(".", "").strip("0")) > 15:
        assert amount == Fraction(value)


@given(FINITE.filter(lambda value: value > 1e-290))
def test_a_padded_charge_stays_above_its_price(value):
    """Catches a short decimal that takes away more than the padding of a computed charge."""
    assert amount_of(pad_up(value)) >= Fraction(value)


@given(st.fractions(0, 10**9))
def test_rounding_is_directed(value):
    """Catches a spent amount that is shown too small, or a remaining one too large."""
    assert amount_of(float_below(value)) <= value <= amount_of(float_above(value))
    assert Fraction(decimal_text(value, up=False)) <= value <= Fraction(decimal_text(value))


@given(FINITE, FINITE)
def test_amounts_have_the_order_of_floats(first, second):
    """Catches a larger float that stands for a smaller amount."""
    assert (amount_of(first) < amount_of(second)) == (first < second)


def test_minus_zero_is_zero():
    """Catches "-0" on a screen."""
    assert str(float_above(Fraction(0))) == str(float_below(Fraction(0))) == "0.0"
    assert decimal_text(amount_from("-0", "x")) == "0"
    assert amount_of(-0.0) == 0
    assert str(PureBudget(1).describe((Fraction(0),), up=False)) == "0.0"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Fraction(1, 10), "0.1"),
        (Fraction(1, 10**7), "1e-7"),
        (Fraction(1, 3), "0.333333333334"),
        (Fraction(10**20), "1e20"),
        (Fraction(1000), "1000"),
    ],
)
def test_amounts_for_people(value, text):
    """Catches fractions and long binary digits in a table."""
    assert decimal_text(value) == text


@pytest.mark.parametrize("text", ["", "x", "nan", "inf", "1/3", "1_0", "0x1", "1e99999", "1" * 61])
def test_texts_that_are_no_decimals(text):
    """Catches a text that some parser takes for a number."""
    with pytest.raises(InvalidInput):
        amount_from(text, "epsilon")


def test_limits_from_text_are_exact_or_below():
    """Catches a limit that is rounded in favour of the analyst."""
    assert PureBudget("0.3").limits == (Fraction(3, 10),)
    assert ApproxBudget("1", "1e-6").limits == (1, Fraction(1, 10**6))
    long = "0.12345678901234567890123"
    assert 0 < Fraction(long) - PureBudget(long).limits[0] < Fraction(1, 10**16)


def test_the_meaning_of_version_0_1():
    """Catches old entries that are checked with the new meaning."""
    with binary_amounts():
        assert PureBudget(0.1).coordinates(PureDP(0.1)) == (Fraction(0.1),)
    assert PureBudget(0.1).coordinates(PureDP(0.1)) == (Fraction(1, 10),)
