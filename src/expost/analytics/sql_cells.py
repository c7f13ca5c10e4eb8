"""Expressions of one row: their kinds, their arithmetic, and ranges known without the data.

Every operation computes the range of its result from the ranges of its parts, so that nothing
overflows; :mod:`.sql_expressions` says why. Tests: ``tests/analytics/test_sql_expressions.py``.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from typing import Any

from expost.analytics.sql_parser import refused, sql_text
from expost.tables.typed_columns import ibis_module

NUMBER, TEXT, TRUTH, DAY, MOMENT, NULL = "number", "text", "truth", "day", "moment", "null"
LEAST_SIZE, MOST_SIZE = 1e-30, 1e30  # of a column's number, in size
SMALLEST, LARGEST = 1e-290, 1e290  # of any number on the way
ULP = 2.0**-53
LISTED = 400  # an expression with at most so many values is a public list of groups
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


class RowArithmetic(ABC):
    """The rules of numbers."""

    @abstractmethod
    def translate(self, node: Any) -> TypedCell:
        """Return the cell of a tree."""

    @abstractmethod
    def number(self, cell: TypedCell, text: str) -> TypedCell:
        """Return a cell as a number."""

    def _numbers(self, node: Any) -> tuple[TypedCell, TypedCell]:
        return (self._as_number(node.this), self._as_number(node.expression))

    def _as_number(self, node: Any) -> TypedCell:
        return self.number(self.translate(node), sql_text(node))

    def _add(self, node: Any) -> TypedCell:
        a, b = self._numbers(node)
        return sum_cell(a, b, a.expression + b.expression)

    def _subtract(self, node: Any) -> TypedCell:
        a, b = self._numbers(node)
        return sum_cell(a, replace(b, low=-b.high, high=-b.low), a.expression - b.expression)

    def _multiply(self, node: Any) -> TypedCell:
        a, b = self._numbers(node)
        return product_cell(a, b)

    def _divide(self, node: Any) -> TypedCell:
        a, b = self._numbers(node)
        quotient = a.expression / b.expression.nullif(0.0)
        # The divisor is not 0, so where it has one sign it is at least ``least`` in size.
        divisors = [b.low, b.high, b.least, -b.least]
        if b.low >= 0 or b.high <= 0:
            near = b.least if b.low >= 0 else -b.least
            divisors = [end if abs(end) > b.least else near for end in (b.low, b.high)]
        ends = [x / (y or b.least) for x in (a.low, a.high) for y in divisors]
        least = a.least / max(b.size, b.least)
        return number_cell(quotient, min(ends), max(ends), least, mentions=a.mentions + b.mentions)

    def _negative(self, node: Any) -> TypedCell:
        a = self._as_number(node.this)
        if a.literal is not None:
            return constant_cell(-a.literal)
        return number_cell(-a.expression, -a.high, -a.low, a.least, mentions=a.mentions)

    def _absolute(self, node: Any) -> TypedCell:
        a = self._as_number(node.this)
        low = 0.0 if a.low <= 0 <= a.high else min(abs(a.low), abs(a.high))
        return number_cell(a.expression.abs(), low, a.size, a.least, mentions=a.mentions)

    def _floor(self, node: Any) -> TypedCell:
        if node.args.get("decimals") is not None or node.args.get("to") is not None:
            raise refused(sql_text(node), "give one number")
        a = self._as_number(node.this)
        a, up = holdable(a), type(node).__name__ == "Ceil"
        whole = a.expression.ceil() if up else a.expression.floor()
        return number_cell(
            whole.cast("float64"), math.floor(a.low), math.ceil(a.high), 1.0, mentions=a.mentions
        )

    def _round(self, node: Any) -> TypedCell:
        a = self._as_number(node.this)
        digits = node.args.get("decimals")
        places = 0 if digits is None else self._whole_literal(digits, -15, 15)
        return rounded_cell(a, 10.0**places)

    def _whole_literal(self, node: Any, least: int, most: int) -> int:
        cell = self.translate(node)
        if (
            cell.literal is None
            or cell.kind != NUMBER
            or cell.literal % 1
            or not least <= cell.literal <= most
        ):
            raise refused(sql_text(node), f"give a whole number from {least} to {most}")
        return int(cell.literal)

    def _root(self, node: Any) -> TypedCell:
        a = self._as_number(node.this)
        # The inner value is never negative, whichever branch an engine computes first.
        known = (a.expression >= 0).ifelse(a.expression, ibis_module().null("float64"))
        low, high = (math.sqrt(max(0.0, end)) for end in (a.low, a.high))
        return number_cell(known.sqrt(), low, high, math.sqrt(a.least) / 2, mentions=2 * a.mentions)

    def _logarithm(self, node: Any) -> TypedCell:
        if node.args.get("expression") is not None:
            raise refused(sql_text(node), "use LN(x)")
        a = self._as_number(node.this)
        known = (a.expression > 0).ifelse(a.expression, ibis_module().null("float64"))
        low = math.log(max(a.least, a.low) if a.low > 0 else a.least)
        high = math.log(max(a.high, a.least))
        scale = math.log(10) if type(node).__name__ == "Log" else 1.0
        return number_cell(
            known.ln() / scale, low / scale - 1, high / scale + 1, ULP / 4, mentions=2 * a.mentions
        )

    def _power(self, node: Any) -> TypedCell:
        a = self._as_number(node.this)
        times = self._whole_literal(node.expression, 0, 6)
        power = constant_cell(1.0)
        for _ in range(times):
            power = product_cell(power, a)
        if times and times % 2 == 0:
            power = replace(power, low=0.0)
        return power

    def _remainder(self, node: Any) -> TypedCell:
        a = self._as_number(node.this)
        divisor = self._whole_literal(node.expression, 1, 10**9)
        ibis = ibis_module()
        a = holdable(a)
        quotient = a.expression / float(divisor)
        whole = (quotient < 0).ifelse(
            quotient.ceil().cast("float64"), quotient.floor().cast("float64")
        )
        rest = a.expression - whole * float(divisor)
        limit = ibis.cases(
            (rest >= divisor, float(divisor)), (rest <= -divisor, -float(divisor)), else_=rest
        )
        low = 0 if a.low >= 0 else -divisor
        listed = tuple(range(divisor)) if a.low >= 0 and divisor <= LISTED else None
        return number_cell(
            limit, low, divisor, a.least * ULP, values=listed, mentions=16 * a.mentions
        )

    def _largest(self, node: Any) -> TypedCell:
        """GREATEST and LEAST; NULL counts as absent, as in DuckDB and PostgreSQL."""
        greatest = type(node).__name__ == "Greatest"
        cells = [self._as_number(part) for part in (node.this, *node.expressions)]
        result = cells[0]
        for other in cells[1:]:
            result = extreme(result, other, greatest)
        return result
