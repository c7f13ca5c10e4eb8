"""Arithmetic of one row: each rule computes the range of its result, so that nothing overflows.

:mod:`.sql_expressions` says why. Tests: ``tests/analytics/test_sql_expressions.py``.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any

from expost.analytics.sql_cells import (
    NUMBER,
    ULP,
    TypedCell,
    constant_cell,
    extreme,
    holdable,
    number_cell,
    product_cell,
    rounded_cell,
    sum_cell,
)
from expost.analytics.sql_parser import refused, sql_text
from expost.tables.typed_columns import ibis_module

LISTED = 400  # an expression with at most so many values is a public list of groups


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
