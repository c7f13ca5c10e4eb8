"""Released answers: intervals enclose, NULL is NULL, orders and limits are SQL's."""

from __future__ import annotations

import itertools
import math

import pytest

from expost.analytics.sql_released import Span, evaluate, order_rows, variance_of

A, B = Span(4.0, 3.0, 6.0), Span(-2.0, -3.0, -1.0)
CELLS = {"a": A, "b": B, "g": "x", "n": None, "k": 3, "z": Span(0.0, -1.0, 1.0)}


@pytest.mark.parametrize("text", ["a + b", "a - b", "a * b", "a / b", "-a", "ABS(b)", "a * a - b"])
def test_intervals_enclose_every_value_of_the_parts(text):
    span = evaluate(text, CELLS)
    for x, y in itertools.product((3.0, 4.0, 5.5, 6.0), (-3.0, -2.5, -1.0)):
        true = eval(text.replace("ABS", "abs"), {"a": x, "b": y, "abs": abs})
        assert span.low - 1e-12 <= true <= span.high + 1e-12
    assert span.low <= span.value <= span.high


def test_a_divisor_that_may_be_0_has_no_interval():
    assert evaluate("a / z", CELLS) is None
    assert evaluate("a / (z + 1)", CELLS)[1:] == (-math.inf, math.inf)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a > 3 AND g = 'x'", True),
        ("a > 3 AND n > 1", None),
        ("a > 9 AND n > 1", False),
        ("a > 3 OR n > 1", True),
        ("NOT a > 3", False),
        ("n IS NULL", True),
        ("a IN (1, 4)", True),
        ("k BETWEEN 1 AND 3", True),
        ("g = 3", None),
        ("COALESCE(n, 7) = 7", True),
        ("ROUND(a / 3, 1) = 1.3", True),
    ],
)
def test_conditions_are_those_of_sql(text, value):
    assert evaluate(text, CELLS) is value


def test_the_interval_of_a_variance_encloses_it():
    for square, shift in ((Span(5.0, 4.5, 5.5), Span(1.0, 0.5, 1.5)), (Span(1, 0.5, 2), B)):
        spread = variance_of(square, shift)
        for s, d in itertools.product(square, shift):
            assert spread.low - 1e-12 <= max(0.0, s - d * d) <= spread.high + 1e-12
        assert 0 <= spread.low <= spread.value <= spread.high


def test_order_and_limit():
    cells = [{"v": Span(v, v, v) if v is not None else None} for v in (1.0, 3.0, None, 2.0)]
    assert order_rows("abcd", cells, [("v", True)], None, 0) == ["b", "d", "a", "c"]
    assert order_rows("abcd", cells, [("v", False)], 2, 1) == ["d", "b"]
    assert order_rows("abcd", cells, [], None, 0) == list("abcd")
