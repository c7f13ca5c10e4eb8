"""Expressions of one row: their kinds, and ranges that are known without the data.

Every operation computes the range of its result from the ranges of its parts, so that nothing
overflows; :mod:`.sql_expressions` says why. Tests: ``tests/analytics/test_sql_expressions.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import date, datetime
from typing import Any

from expost.analytics.sql_parser import refused
from expost.tables.typed_columns import ibis_module

NUMBER, TEXT, TRUTH, DAY, MOMENT, NULL = "number", "text", "truth", "day", "moment", "null"
LEAST_SIZE, MOST_SIZE = 1e-30, 1e30  # of a column's number, in size
SMALLEST, LARGEST = 1e-290, 1e290  # of any number on the way
ULP = 2.0**-53
_FIRST, _LAST = datetime(1, 1, 8), datetime(9999, 12, 24)


@dataclass(frozen=True)
class TypedCell:
    """An expression of a row: its kind, and what is known of it without the data.

    A number that is not NULL is between ``low`` and ``high``, and 0 or at least ``least`` in size.
    ``values`` are all values that it can have, if the query says so; ``raw`` is the column itself.
    """

    kind: str
    expression: Any = field(repr=False)
    low: float = -MOST_SIZE
    high: float = MOST_SIZE
    least: float = LEAST_SIZE
    values: tuple[Any, ...] | None = None
    raw: Any = field(default=None, repr=False)
    literal: Any = None
    mentions: int = 1
    name: str = ""  # of the column

    @property
    def size(self) -> float:
        """The largest size of a number."""
        return max(abs(self.low), abs(self.high))


def number_cell(
    expression: Any,
    low: float,
    high: float,
    least: float = LEAST_SIZE,
    *,
    values: tuple[Any, ...] | None = None,
    mentions: int = 1,
) -> TypedCell:
    """Return a number with its range."""
    return TypedCell(NUMBER, expression, float(low), float(high), least, values, mentions=mentions)


def constant_cell(number: float) -> TypedCell:
    written = int(number) if number % 1 == 0 and abs(number) < 2**53 else number
    return replace(
        number_cell(
            ibis_module().literal(float(number), "float64"),
            number,
            number,
            abs(number) or 1.0,
            values=(written,),
        ),
        literal=number,
    )


def sizes(low: float, high: float) -> list[float]:
    return [abs(end) for end in (low, high) if end]


def sum_cell(a: TypedCell, b: TypedCell, expression: Any) -> TypedCell:
    """Of two floats of size ≥ m the sum is 0 or at least m·2⁻⁵³: they are multiples of that."""
    least = min(a.least, b.least) * ULP
    return number_cell(
        expression, a.low + b.low, a.high + b.high, least, mentions=a.mentions + b.mentions
    )


def product_cell(a: TypedCell, b: TypedCell) -> TypedCell:
    ends = [x * y for x in (a.low, a.high) for y in (b.low, b.high)]
    return number_cell(
        a.expression * b.expression,
        min(ends),
        max(ends),
        a.least * b.least,
        mentions=a.mentions + b.mentions,
    )


def rounded_cell(a: TypedCell, scale: float) -> TypedCell:
    """A multiple of 1/scale, halves up."""
    a = holdable(a, scale)
    whole = (a.expression * scale + 0.5).floor().cast("float64") / scale
    step = 1 / scale
    listed = None if a.values is None or scale != 1 else a.values
    return number_cell(
        whole, a.low - step, a.high + step, step / 2, values=listed, mentions=a.mentions
    )


def holdable(a: TypedCell, scale: float = 1.0) -> TypedCell:
    """A number whose multiple by ``scale`` fits into a whole number of 64 bits, else NULL."""
    limit = 2.0**52 / scale
    if a.size <= limit:
        return a
    inside = a.expression.abs() <= limit
    kept = inside.ifelse(a.expression, ibis_module().null("float64"))
    return replace(
        a,
        expression=kept,
        low=max(a.low, -limit),
        high=min(a.high, limit),
        raw=None,
        literal=None,
        mentions=2 * a.mentions,
    )


def extreme(a: TypedCell, b: TypedCell, greatest: bool) -> TypedCell:
    larger = a.expression >= b.expression
    wins = larger if greatest else ~larger
    expression = ibis_module().cases(
        (a.expression.isnull(), b.expression),
        (b.expression.isnull(), a.expression),
        (wins, a.expression),
        else_=b.expression,
    )
    choose = max if greatest else min
    low, high = choose(a.low, b.low), choose(a.high, b.high)
    if a.literal is None and b.literal is None:  # where one is NULL, the other may be anything
        low, high = min(a.low, b.low), max(a.high, b.high)
    elif greatest:
        low, high = max(a.low, b.low), max(a.high, b.high)
    else:
        low, high = min(a.low, b.low), min(a.high, b.high)
    return number_cell(
        expression, low, high, min(a.least, b.least), mentions=3 * (a.mentions + b.mentions)
    )


def hull(cells: list[TypedCell], expression: Any, further: int) -> TypedCell:
    """One of several cells: what is known of all of them."""
    known = [cell.values for cell in cells if cell.kind != NULL]
    listed: tuple[Any, ...] | None = None
    if all(values is not None for values in known):
        listed = tuple(dict.fromkeys(value for values in known for value in values or ()))
    return TypedCell(
        cells[0].kind,
        expression,
        min(cell.low for cell in cells),
        max(cell.high for cell in cells),
        min(cell.least for cell in cells),
        listed,
        mentions=further + sum(cell.mentions for cell in cells),
    )


def truth_cell(expression: Any, *cells: TypedCell) -> TypedCell:
    mentions = sum(cell.mentions for cell in cells)
    return TypedCell(TRUTH, expression, values=(True, False), mentions=mentions)


def exact_pair(column: TypedCell, number: TypedCell) -> tuple[Any, int] | None:
    """A column of whole numbers and a whole number, which are compared exactly."""
    if column.raw is None or not column.raw.type().is_integer() or number.literal is None:
        return None
    if number.kind != NUMBER or number.literal % 1 or abs(number.literal) >= 2**53:
        return None
    return column.raw, int(number.literal)


def in_calendar(column: Any, kind: str) -> Any:
    """A date or time between the years 1 and 9999, else NULL."""
    first, last = (_FIRST.date(), _LAST.date()) if kind == DAY else (_FIRST, _LAST)
    ibis = ibis_module()
    inside = (column >= ibis.literal(first)) & (column <= ibis.literal(last))
    return inside.ifelse(column, ibis.null(column.type()))


def as_moment(cell: TypedCell) -> TypedCell:
    if cell.kind == MOMENT:
        return cell
    return replace(
        cell, kind=MOMENT, expression=cell.expression.cast("timestamp"), raw=None, values=None
    )


def as_day(cell: TypedCell) -> TypedCell:
    if cell.kind == DAY:
        return cell
    return replace(cell, kind=DAY, expression=cell.expression.date(), raw=None, values=None)


def moment_literal(value: str, text: str) -> TypedCell:
    """A date or a time that the query writes as text."""
    ibis = ibis_module()
    try:
        if len(value) <= 10:
            day = date.fromisoformat(value)
            return TypedCell(DAY, ibis.literal(day), values=(day.isoformat(),))
        moment = datetime.fromisoformat(value)
        if moment.tzinfo is not None:
            raise ValueError
        return TypedCell(MOMENT, ibis.literal(moment))
    except ValueError:
        raise refused(text, f"{value!r} is no date: give one like 2024-02-01") from None
