"""What SQL does with released answers: arithmetic, HAVING, ORDER BY, LIMIT. No data is touched.

Everything here is post-processing of released numbers, so it costs nothing. A number carries its
interval; arithmetic on intervals encloses every value that its parts can have, so if each of the
j intervals that enter holds with probability 1 − β/j, the result holds with probability 1 − β.
Conditions and orders use the estimates. An answer that was never looked at is NULL.
Tests: ``tests/analytics/test_sql_released.py``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cmp_to_key
from typing import Any, NamedTuple

from expost.analytics.sql_parser import (
    VALUE_MARK,
    number_of,
    parsed_expression,
    refused,
    sql_text,
)

Cell = Any
"""A :class:`Span`, the name of a group (text or number), a truth value, or None for NULL."""


class Span(NamedTuple):
    """A released number with its interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class ReleasedRow:
    """One row of the answer: values by their names, and which reached the wanted error."""

    values: Mapping[str, Cell]
    reached: Mapping[str, bool]

    @property
    def answered(self) -> bool:
        """Whether all values reached the wanted error."""
        return all(self.reached.values())


def constant(number: float) -> Span:
    """Return a number that is known exactly."""
    return Span(number, number, number)


def spanned(value: float, ends: Sequence[float]) -> Span | None:
    """Return a number and the smallest interval with these ends; None if it is no number."""
    if any(math.isnan(end) for end in (value, *ends)):
        return None
    return Span(value, min(*ends, value), max(*ends, value))


def _products(a: Span, b: Span) -> list[float]:
    """Ends of the interval of a product; 0·∞ is 0."""
    pairs = [(x, y) for x in a[1:] for y in b[1:]]
    return [0.0 if x == 0 or y == 0 else x * y for x, y in pairs]


def _add(a: Span, b: Span) -> Span | None:
    return spanned(a.value + b.value, (a.low + b.low, a.high + b.high))


def _subtract(a: Span, b: Span) -> Span | None:
    return spanned(a.value - b.value, (a.low - b.high, a.high - b.low))


def _multiply(a: Span, b: Span) -> Span | None:
    return spanned(a.value * b.value, _products(a, b))


def _divide(a: Span, b: Span) -> Span | None:
    if b.value == 0:
        return None
    if b.low <= 0 <= b.high:
        return spanned(a.value / b.value, (-math.inf, math.inf))
    return spanned(a.value / b.value, _products(a, Span(1 / b.value, 1 / b.high, 1 / b.low)))


def _square_root(a: Span) -> Span | None:
    roots = [math.sqrt(max(0.0, number)) for number in a]
    return spanned(roots[0], roots[1:])


def _absolute(a: Span) -> Span | None:
    least = 0.0 if a.low <= 0 <= a.high else min(abs(a.low), abs(a.high))
    return spanned(abs(a.value), (least, max(abs(a.low), abs(a.high))))


def variance_of(square: Span, shift: Span) -> Span | None:
    """Return E[(x − c)²] − (E[x] − c)² with its interval; a variance is never negative."""
    distance = _absolute(shift)
    if distance is None:
        return None
    whole = _subtract(square, Span(*(number * number for number in distance)))
    return whole and spanned(max(0.0, whole.value), (max(0.0, whole.low), max(0.0, whole.high)))


def root_of_variance(variance: Span) -> Span | None:
    """Return the square root of a variance."""
    return _square_root(variance)


_ARITHMETIC: dict[str, Callable[[Span, Span], Span | None]] = {
    "Add": _add,
    "Sub": _subtract,
    "Mul": _multiply,
    "Div": _divide,
}
_COMPARED: dict[str, Callable[[Any, Any], bool]] = {
    "EQ": lambda a, b: a == b,
    "NEQ": lambda a, b: a != b,
    "GT": lambda a, b: a > b,
    "GTE": lambda a, b: a >= b,
    "LT": lambda a, b: a < b,
    "LTE": lambda a, b: a <= b,
}
_OTHERS = (
    *("Paren", "Neg", "Literal", "Boolean", "Null", "Column", "Identifier", "And", "Or", "Not"),
    *("Between", "In", "Is", "Round", "Abs", "Sqrt", "Coalesce", "Cast", "DataType"),
)


def check_released(node: Any) -> None:
    """Refuse what cannot be done with released answers."""
    name = type(node).__name__
    if name not in (*_ARITHMETIC, *_COMPARED, *_OTHERS):
        raise refused(
            sql_text(node),
            "released answers take + - * /, ROUND, ABS, SQRT, COALESCE, comparisons, IN, BETWEEN, "
            "IS NULL, AND, OR and NOT",
        )
    if name == "In" and not node.expressions:
        raise refused("IN", "give a list of values")
    if name == "Literal" and not node.is_string:
        number_of(node)
    digits = node.args.get("decimals") if name == "Round" else None
    if digits is not None and not re.fullmatch(r"-?\d{1,3}", sql_text(digits)):
        raise refused(sql_text(node), "ROUND takes a whole number of digits")


def evaluate(text: str, cells: Mapping[str, Cell]) -> Cell:
    """Return the value of an expression; ``cells`` are the groups and values by their marks."""
    return _value(parsed_expression(text), cells)


def marks_of(text: str) -> set[int]:
    """Return the numbers of the aggregates that an expression uses."""
    from expost.analytics.sql_parser import sqlglot_module

    columns = parsed_expression(text).find_all(sqlglot_module().exp.Column)
    names = [column.name for column in columns]
    return {int(name.removeprefix(VALUE_MARK)) for name in names if name.startswith(VALUE_MARK)}


def _value(node: Any, cells: Mapping[str, Cell]) -> Cell:
    name = type(node).__name__
    if name == "Column":
        return cells[node.name]
    if name == "Literal":
        return node.this if node.is_string else constant(number_of(node))
    if name == "Boolean":
        return bool(node.this)
    if name == "Null":
        return None
    if name in ("And", "Or"):
        return _both(name, _value(node.this, cells), _value(node.expression, cells))
    if name == "Coalesce":
        parts = (_value(part, cells) for part in (node.this, *node.expressions))
        return next((part for part in parts if part is not None), None)
    if name == "Is":
        left = _value(node.this, cells)
        return (
            (left is None)
            if type(node.expression).__name__ == "Null"
            else left is bool(node.expression.this)
        )
    left = _value(node.this, cells)
    if left is None:
        return None
    return _of_one(name, node, left, cells)


def _of_one(name: str, node: Any, left: Cell, cells: Mapping[str, Cell]) -> Cell:
    """The value of a node whose first part is not NULL."""
    if name in ("Paren", "Cast"):
        return left
    if name == "Not":
        return not left if isinstance(left, bool) else None
    if name == "In":
        listed = [_value(part, cells) for part in node.expressions]
        return any(_compare("EQ", left, part) is True for part in listed)
    if name == "Between":
        ends = [_value(node.args[end], cells) for end in ("low", "high")]
        return _both("And", _compare("GTE", left, ends[0]), _compare("LTE", left, ends[1]))
    if name in _COMPARED:
        return _compare(name, left, _value(node.expression, cells))
    numbers = _span(left)
    if numbers is None:
        return None
    if name == "Neg":
        return _subtract(constant(0.0), numbers)
    if name == "Abs":
        return _absolute(numbers)
    if name == "Sqrt":
        return _square_root(numbers)
    if name == "Round":
        digits = node.args.get("decimals")
        places = 0 if digits is None else int(float(sql_text(digits)))
        return Span(round(numbers.value, max(-300, min(300, places))), numbers.low, numbers.high)
    right = _span(_value(node.expression, cells))
    return None if right is None else _ARITHMETIC[name](numbers, right)


def _span(cell: Cell) -> Span | None:
    """A number with its interval; None for what is no number."""
    if isinstance(cell, Span):
        return cell
    if isinstance(cell, (int, float)) and not isinstance(cell, bool):
        return constant(float(cell))
    return None


def _plain(cell: Cell) -> Any:
    """What is compared: the estimate of a number, else the cell itself."""
    return cell.value if isinstance(cell, Span) else cell


def _both(name: str, left: Cell, right: Cell) -> bool | None:
    """AND and OR with NULL, as in SQL."""
    decisive = name == "Or"
    if left is decisive or right is decisive:
        return bool(decisive)
    known = isinstance(left, bool) and isinstance(right, bool)
    return not decisive if known else None


def _compare(name: str, left: Cell, right: Cell) -> bool | None:
    """A comparison; NULL if a side is, and of a text with a number."""
    one, other = _plain(left), _plain(right)
    if one is None or other is None:
        return None
    numbers = [isinstance(side, (int, float)) for side in (one, other)]
    if numbers[0] != numbers[1]:
        return None
    return bool(_COMPARED[name](one, other))


def order_rows(
    rows: Sequence[Any],
    cells: Sequence[Mapping[str, Cell]],
    order: Sequence[tuple[str, bool]],
    limit: int | None,
    offset: int,
) -> list[Any]:
    """Return the rows in their order, NULL last, and as many as the limit says."""
    keys = [[_plain(evaluate(text, row)) for text, _ in order] for row in cells]

    def compare(a: int, b: int) -> int:
        for (_, falls), one, other in zip(order, keys[a], keys[b], strict=True):
            if one is None or other is None:
                if (one is None) != (other is None):
                    return 1 if one is None else -1
                continue
            one, other = (one, other) if type(one) is type(other) else (str(one), str(other))
            if one != other:
                return (1 if one > other else -1) * (-1 if falls else 1)
        return a - b

    chosen = sorted(range(len(rows)), key=cmp_to_key(compare)) if order else list(range(len(rows)))
    end = None if limit is None else offset + limit
    return [rows[index] for index in chosen[offset:end]]
