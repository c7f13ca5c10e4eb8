"""Row-wise SQL as Ibis expressions that fail at no row.

An engine that stops at one cell (a division by zero, a cast, an overflow) tells that the cell is
there, so every expression here is *total*: what has no value is NULL. Guards at run time are few,
because ranges are known beforehand. A column of numbers is 0 or between 1e-30 and 1e30 in size
(what is smaller is 0, what is larger, NaN, infinite or no number is NULL), and each operation
computes from the ranges of its parts the range of its result, so that no overflow and no underflow
can happen; an expression whose range would leave the numbers is refused by its text. Divisors that
are 0, roots and logarithms without a value are NULL. Dates lie between the years 1 and 9999.

Types are those of the columns, never those of the rows: a text where a number or a date is needed
is read as one, and NULL where it is none (engines that have TRY_CAST; else it is refused). All
arithmetic is in float64, also of whole numbers: 7 / 2 is 3.5 in every engine.

The ranges give the bounds of sums and means, and the public lists of groups: CASE with constants,
parts of dates, truth values. They are computed from the query and public bounds alone. Whatever
they say, values are clipped to the bounds before they are summed (:mod:`.contribution`).
Tests: ``tests/analytics/test_sql_expressions.py`` (hostile cells in every engine).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from expost.analytics.sql_cells import (
    DAY,
    LARGEST,
    LEAST_SIZE,
    LISTED,
    MOMENT,
    MOST_SIZE,
    NULL,
    NUMBER,
    SMALLEST,
    TEXT,
    TRUTH,
    RowArithmetic,
    TypedCell,
    as_day,
    as_moment,
    constant_cell,
    exact_pair,
    hull,
    in_calendar,
    moment_literal,
    number_cell,
    rounded_cell,
    sizes,
    truth_cell,
)
from expost.analytics.sql_parser import (
    number_of,
    parsed_expression,
    refused,
    sql_text,
    sqlglot_module,
)
from expost.tables import typed_columns
from expost.tables.typed_columns import ibis_module

_TRY_CAST = ("duckdb", "bigquery", "snowflake")
_MOST_MENTIONS = 5_000  # of columns in one expression, after guards
_WHOLE_CASTS = ("INT", "BIGINT", "SMALLINT", "TINYINT", "UINT", "UBIGINT", "INT128")
_REAL_CASTS = ("DOUBLE", "FLOAT", "DECIMAL")
_TEXT_CASTS = ("TEXT", "VARCHAR", "CHAR", "NVARCHAR")
_PARTS: dict[str, tuple[str, int, int]] = {  # of a date: method, smallest, largest value
    "YEAR": ("year", 1, 9999),
    "QUARTER": ("quarter", 1, 4),
    "MONTH": ("month", 1, 12),
    "WEEK": ("week_of_year", 1, 53),
    "DAY": ("day", 1, 31),
    "DAYOFWEEK": ("weekday", 0, 6),
    "DOW": ("weekday", 0, 6),
    "ISODOW": ("weekday", 1, 7),
    "DAYOFYEAR": ("day_of_year", 1, 366),
    "DOY": ("day_of_year", 1, 366),
    "HOUR": ("hour", 0, 23),
    "MINUTE": ("minute", 0, 59),
    "SECOND": ("second", 0, 59),
}
_UNITS = {
    "YEAR": "Y",
    "QUARTER": "Q",
    "MONTH": "M",
    "WEEK": "W",
    "DAY": "D",
    "HOUR": "h",
    "MINUTE": "m",
}


class Translator(RowArithmetic):
    """Turns expressions into cells; ``column`` finds a column by its table (or "") and name."""

    def __init__(
        self,
        column: Callable[[str, str], Any],
        engine: str,
        *,
        bounds: Mapping[str, tuple[float, float]] | None = None,
        collated: bool = True,
    ) -> None:
        self._column, self.engine = column, engine
        self._bounds, self._collated = dict(bounds or {}), collated

    def cell(self, text: str) -> TypedCell:
        """Return the cell of an expression."""
        return self.translate(parsed_expression(text))

    def condition(self, text: str) -> Any:
        """Return a condition as a truth value of the engine."""
        return self.truth(self.cell(text), text).expression

    def translate(self, node: Any) -> TypedCell:
        """Return the cell of a tree; refuse what is not listed."""
        rule = _RULES.get(type(node).__name__)
        if rule is None:
            raise refused(sql_text(node), "this is not answered on private rows")
        cell = rule(self, node)
        if cell.mentions > _MOST_MENTIONS:
            raise refused(sql_text(node), "it is too long: split the question")
        if cell.kind == NUMBER and not (cell.size <= LARGEST and cell.least >= SMALLEST):
            raise refused(
                sql_text(node),
                "its numbers could become too large or too small: use fewer factors or bounds",
            )
        return cell

    # Cells of a wanted kind.

    def number(self, cell: TypedCell, text: str) -> TypedCell:
        """Return a cell as a number."""
        if cell.kind == NUMBER:
            return cell
        if cell.kind == NULL:
            return number_cell(ibis_module().null("float64"), 0, 0)
        if cell.kind == TRUTH:
            whole = cell.expression.cast("int8").cast("float64")
            return number_cell(whole, 0, 1, 1.0, values=(0, 1), mentions=cell.mentions)
        if cell.kind == TEXT and cell.literal is None and self.engine in _TRY_CAST:
            return self._number_column(cell.expression, cell.name, cell.mentions)
        raise refused(text, f"a number is needed here, and this is {_named(cell, self.engine)}")

    def truth(self, cell: TypedCell, text: str) -> TypedCell:
        """Return a cell as a truth value."""
        if cell.kind == TRUTH:
            return cell
        if cell.kind == NULL:
            return TypedCell(TRUTH, ibis_module().null("boolean"), values=(True, False))
        if cell.kind == TEXT and cell.name and self.engine in _TRY_CAST:
            return truth_cell(typed_columns.truth_column(cell.expression), cell, cell)
        raise refused(text, "a condition is needed here: compare it with something")

    def text(self, cell: TypedCell, text: str) -> TypedCell:
        """Return a cell as text."""
        if cell.kind == TEXT:
            return cell
        if cell.kind == NULL:
            return TypedCell(TEXT, ibis_module().null("string"))
        if cell.kind == NUMBER:
            written = typed_columns.column_text(cell.expression, self.engine, False)
            return TypedCell(TEXT, written, mentions=6 * cell.mentions)
        return TypedCell(TEXT, cell.expression.cast("string"), mentions=cell.mentions)

    def moment(self, cell: TypedCell, text: str) -> TypedCell:
        """Return a cell as a date or a time."""
        if cell.kind in (DAY, MOMENT):
            return cell
        if cell.kind == NULL:
            return TypedCell(MOMENT, ibis_module().null("timestamp"))
        if cell.kind == TEXT and cell.literal is not None:
            return moment_literal(cell.literal, text)
        if cell.kind == TEXT and self.engine in _TRY_CAST:
            moment = cell.expression.try_cast("timestamp")
            return TypedCell(MOMENT, in_calendar(moment, MOMENT), mentions=3 * cell.mentions)
        raise refused(text, f"a date is needed here, and this is {_named(cell, self.engine)}")

    # Leaves.

    def _number_column(self, column: Any, name: str, mentions: int = 1) -> TypedCell:
        ibis = ibis_module()
        value = typed_columns.finite_column(column, self.engine, "query")
        size = value.abs()
        tame = (size <= MOST_SIZE).ifelse(
            (size >= LEAST_SIZE).ifelse(value, 0.0), ibis.null("float64")
        )
        low, high = self._bounds.get(name.lower(), (-MOST_SIZE, MOST_SIZE))
        if (low, high) != (-MOST_SIZE, MOST_SIZE):
            tame = ibis.cases((tame < low, low), (tame > high, high), else_=tame)
        return number_cell(
            tame, low, high, min(LEAST_SIZE, *sizes(low, high)), mentions=12 * mentions
        )

    def _leaf(self, node: Any) -> TypedCell:
        name = node.name
        if [key for key, value in node.args.items() if value and key not in ("this", "table")]:
            raise refused(sql_text(node), "write table.column")
        column = self._column(node.table, name)
        kind = column.type()
        if kind.is_boolean():
            return TypedCell(TRUTH, column, values=(True, False), raw=column)
        if kind.is_numeric():
            return replace(self._number_column(column, name), raw=column)
        if kind.is_date():
            return TypedCell(DAY, in_calendar(column, DAY), raw=column, mentions=3)
        if kind.is_timestamp():
            plain = column if kind.timezone is None else column.cast("timestamp")
            return TypedCell(MOMENT, in_calendar(plain, MOMENT), raw=column, mentions=3)
        text = typed_columns.column_text(column, self.engine, self._collated)
        return TypedCell(TEXT, text, raw=column, name=name)

    def _literal(self, node: Any) -> TypedCell:
        ibis = ibis_module()
        if node.is_string:
            return TypedCell(TEXT, ibis.literal(node.this), values=(node.this,), literal=node.this)
        number = number_of(node)
        if not (number == 0 or LEAST_SIZE <= abs(number) <= MOST_SIZE):
            raise refused(
                sql_text(node), f"numbers are 0 or between {LEAST_SIZE:g} and {MOST_SIZE:g} in size"
            )
        return constant_cell(number)

    def _boolean(self, node: Any) -> TypedCell:
        return TypedCell(TRUTH, ibis_module().literal(bool(node.this)), values=(bool(node.this),))

    def _null(self, node: Any) -> TypedCell:
        return TypedCell(NULL, ibis_module().null())

    def _paren(self, node: Any) -> TypedCell:
        return self.translate(node.this)

    # Choices.

    def _case(self, node: Any) -> TypedCell:
        subject, branches = node.args.get("this"), node.args["ifs"]
        exp_eq = sqlglot_module().exp.EQ
        conditions, results = [], []
        for branch in branches:
            test = (
                branch.this
                if subject is None
                else exp_eq(this=subject.copy(), expression=branch.this)
            )
            conditions.append(self.truth(self.translate(test), sql_text(test)))
            results.append(self.translate(branch.args["true"]))
        default = node.args.get("default")
        return self._chosen(
            conditions, results, None if default is None else self.translate(default), node
        )

    def _if(self, node: Any) -> TypedCell:
        condition = self.truth(self.translate(node.this), sql_text(node.this))
        other = node.args.get("false")
        results = [self.translate(node.args["true"])]
        return self._chosen(
            [condition], results, None if other is None else self.translate(other), node
        )

    def _chosen(
        self,
        conditions: list[TypedCell],
        results: list[TypedCell],
        default: TypedCell | None,
        node: Any,
    ) -> TypedCell:
        cells = self._alike([*results, *([default] if default else [])], sql_text(node))
        null = ibis_module().null(cells[0].expression.type())
        otherwise = cells[-1].expression if default is not None else null
        pairs = [
            (test.expression, cell.expression)
            for test, cell in zip(conditions, cells, strict=False)
        ]
        return hull(
            cells,
            ibis_module().cases(*pairs, else_=otherwise),
            sum(test.mentions for test in conditions),
        )

    def _alike(self, cells: list[TypedCell], text: str) -> list[TypedCell]:
        """Cells of one kind: NULL is of any, a date is also a time."""
        kinds = {cell.kind for cell in cells} - {NULL}
        if not kinds:
            raise refused(text, "every branch is NULL")
        if kinds == {DAY, MOMENT}:
            return [as_moment(self.moment(cell, text)) for cell in cells]
        columns = all(cell.literal is None for cell in cells if cell.kind == TEXT)
        if NUMBER in kinds and kinds <= {NUMBER, TRUTH, TEXT} and columns:
            return [self.number(cell, text) for cell in cells]
        if len(kinds) > 1:
            raise refused(text, f"its parts are of different kinds: {', '.join(sorted(kinds))}")
        (kind,) = kinds
        convert = {NUMBER: self.number, TEXT: self.text, TRUTH: self.truth}
        if kind in convert:
            return [convert[kind](cell, text) for cell in cells]
        null = ibis_module().null("date" if kind == DAY else "timestamp")
        return [TypedCell(kind, null) if cell.kind == NULL else cell for cell in cells]

    def _coalesce(self, node: Any) -> TypedCell:
        cells = self._alike(
            [self.translate(part) for part in (node.this, *node.expressions)], sql_text(node)
        )
        return hull(cells, ibis_module().coalesce(*[cell.expression for cell in cells]), 0)

    def _null_if(self, node: Any) -> TypedCell:
        left = self.translate(node.this)
        left, right = self.comparable(left, self.translate(node.expression), node)
        equal = (left.expression == right.expression).fill_null(False)
        null = ibis_module().null(left.expression.type())
        return replace(
            left,
            expression=equal.ifelse(null, left.expression),
            raw=None,
            mentions=2 * left.mentions + 1,
        )

    # Conditions.

    def comparable(
        self, left: TypedCell, right: TypedCell, node: Any
    ) -> tuple[TypedCell, TypedCell]:
        """Both sides of a comparison, of one kind."""
        text = sql_text(node)
        kinds = {left.kind, right.kind} - {NULL}
        if not kinds:
            raise refused(text, "NULL is compared by IS NULL")
        if kinds & {DAY, MOMENT}:
            left, right = self.moment(left, text), self.moment(right, text)
            if left.kind != right.kind:
                left, right = as_moment(left), as_moment(right)
            return left, right
        if left.kind == NUMBER or right.kind == NUMBER:
            texts = [
                sql_text(getattr(node, side)) if getattr(node, side) else text
                for side in ("this", "expression")
            ]
            return self.number(left, texts[0]), self.number(right, texts[-1])
        columns = all(cell.name for cell in (left, right) if cell.kind == TEXT)
        if TRUTH in kinds and columns:
            return self.truth(left, text), self.truth(right, text)
        if TRUTH in kinds:
            raise refused(text, "a condition is compared with TRUE or FALSE")
        return self.text(left, text), self.text(right, text)

    def _compare(self, node: Any) -> TypedCell:
        sign = type(node).__name__
        left, right = self.translate(node.this), self.translate(node.expression)
        exact = exact_pair(left, right) or exact_pair(right, left)
        if exact is not None and sign in ("EQ", "NEQ"):
            column, number = exact
            same = column == number
            return truth_cell(same if sign == "EQ" else ~same, left, right)
        left, right = self.comparable(left, right, node)
        return truth_cell(self._compared(sign, left, right, node), left, right)

    def _compared(self, sign: str, left: TypedCell, right: TypedCell, node: Any) -> Any:
        if sign == "EQ":
            return left.expression == right.expression
        if sign == "NEQ":
            return left.expression != right.expression
        if left.kind == TRUTH:
            raise refused(sql_text(node), "conditions have no order")
        if left.kind == TEXT:
            self._check_text_order(left, right, node)
        methods = {"GT": "__gt__", "GTE": "__ge__", "LT": "__lt__", "LTE": "__le__"}
        return getattr(left.expression, methods[sign])(right.expression)

    def _check_text_order(self, left: TypedCell, right: TypedCell, node: Any) -> None:
        """Text has an order of its own in each database, and numbers in text have another."""
        if self.engine != "duckdb" or (left.literal is None) == (right.literal is None):
            raise refused(
                sql_text(node),
                "texts are compared by = only: use CAST(… AS DOUBLE) or CAST(… AS DATE)",
            )

    def _between(self, node: Any) -> TypedCell:
        ends = []
        for sign, end in (("GTE", "low"), ("LTE", "high")):
            left, right = self.comparable(
                self.translate(node.this), self.translate(node.args[end]), node
            )
            ends.append(truth_cell(self._compared(sign, left, right, node), left, right))
        return truth_cell(ends[0].expression & ends[1].expression, *ends)

    def _in(self, node: Any) -> TypedCell:
        extra = [
            name
            for name, value in node.args.items()
            if value and name not in ("this", "expressions")
        ]
        if extra or not node.expressions:
            raise refused("IN", "give a list of constants")
        eq = sqlglot_module().exp.EQ
        tests = [self._compare(eq(this=node.this, expression=part)) for part in node.expressions]
        whole = tests[0].expression
        for test in tests[1:]:
            whole = whole | test.expression
        return truth_cell(whole, *tests)

    def _logic(self, node: Any) -> TypedCell:
        left = self.truth(self.translate(node.this), sql_text(node.this))
        right = self.truth(self.translate(node.expression), sql_text(node.expression))
        both = type(node).__name__ == "And"
        whole = left.expression & right.expression if both else left.expression | right.expression
        return truth_cell(whole, left, right)

    def _not(self, node: Any) -> TypedCell:
        cell = self.truth(self.translate(node.this), sql_text(node.this))
        return truth_cell(~cell.expression, cell)

    def _is(self, node: Any) -> TypedCell:
        cell, other = self.translate(node.this), type(node.expression).__name__
        if other == "Null":
            return truth_cell(cell.expression.isnull(), cell)
        if other != "Boolean":
            raise refused(sql_text(node), "use IS NULL, IS TRUE or IS FALSE")
        truth = self.truth(cell, sql_text(node.this)).expression
        wanted = truth if node.expression.this else ~truth
        return truth_cell(wanted.fill_null(False), cell)

    def _like(self, node: Any) -> TypedCell:
        pattern = self.translate(node.expression)
        if pattern.kind != TEXT or pattern.literal is None or "\\" in pattern.literal:
            raise refused(sql_text(node), "give a text as the pattern, without backslashes")
        cell = self.text(self.translate(node.this), sql_text(node.this))
        folded = type(node).__name__ == "ILike"
        match = (
            cell.expression.ilike(pattern.literal)
            if folded
            else cell.expression.like(pattern.literal)
        )
        return truth_cell(match, cell)

    # Text.

    def _as_text(self, node: Any) -> TypedCell:
        return self.text(self.translate(node), sql_text(node))

    def _letters(self, node: Any) -> TypedCell:
        if [name for name, value in node.args.items() if value and name != "this"]:
            raise refused(sql_text(node), "give one text")
        cell = self._as_text(node.this)
        method = {"Lower": "lower", "Upper": "upper", "Trim": "strip"}[type(node).__name__]
        return TypedCell(TEXT, getattr(cell.expression, method)(), mentions=cell.mentions)

    def _length(self, node: Any) -> TypedCell:
        cell = self._as_text(node.this)
        return number_cell(
            cell.expression.length().cast("float64"), 0, 2.0**31, 1.0, mentions=cell.mentions
        )

    def _substring(self, node: Any) -> TypedCell:
        cell, start, length = (
            self._as_text(node.this),
            node.args.get("start"),
            node.args.get("length"),
        )
        if start is None or length is None:
            raise refused(sql_text(node), "give SUBSTRING(text, start, length)")
        first, count = self._whole_literal(start, 1, 10**6), self._whole_literal(length, 0, 10**6)
        return TypedCell(TEXT, cell.expression.substr(first - 1, count), mentions=cell.mentions)

    def _end(self, node: Any) -> TypedCell:
        cell, count = self._as_text(node.this), self._whole_literal(node.expression, 0, 10**6)
        left = type(node).__name__ == "Left"
        part = cell.expression.left(count) if left else cell.expression.right(count)
        return TypedCell(TEXT, part, mentions=3 * cell.mentions)

    def _joined(self, node: Any) -> TypedCell:
        parts = [node.this, node.expression] if type(node).__name__ == "DPipe" else node.expressions
        cells = [self._as_text(part) for part in parts]
        whole = cells[0].expression
        for cell in cells[1:]:
            whole = whole + cell.expression
        return TypedCell(TEXT, whole, mentions=sum(cell.mentions for cell in cells))

    # Dates.

    def _part(self, node: Any) -> TypedCell:
        named = type(node).__name__ == "Extract"
        name = (node.this.name if named else type(node).__name__).upper()
        if name not in _PARTS:
            raise refused(sql_text(node), f"parts of a date are {', '.join(_PARTS)}")
        return self._date_part(name, node.expression if named else node.this)

    def _anonymous(self, node: Any) -> TypedCell:
        name, parts = str(node.this).upper(), node.expressions
        if (
            name == "DATE_PART"
            and len(parts) == 2
            and parts[0].is_string
            and parts[0].name.upper() in _PARTS
        ):
            return self._date_part(parts[0].name.upper(), parts[1])
        raise refused(f"{name}()", "this function is not answered on private rows")

    def _date_part(self, name: str, node: Any) -> TypedCell:
        method, low, high = _PARTS[name]
        cell = as_moment(self.moment(self.translate(node), sql_text(node)))
        if method == "weekday":  # Ibis counts from Monday; DOW counts from Sunday
            index = cell.expression.day_of_week.index().cast("float64")
            part = index + 1.0 if name == "ISODOW" else (index == 6).ifelse(0.0, index + 1.0)
        else:
            part = getattr(cell.expression, method)().cast("float64")
        listed = tuple(range(low, high + 1)) if high <= LISTED else None
        return number_cell(part, low, high, 1.0, values=listed, mentions=3 * cell.mentions)

    def _truncate(self, node: Any) -> TypedCell:
        unit = node.args.get("unit")
        name = "" if unit is None else unit.name.upper()
        if name not in _UNITS:
            raise refused(sql_text(node), f"give one of {', '.join(_UNITS)}")
        cell = as_moment(self.moment(self.translate(node.this), sql_text(node.this)))
        start = cell.expression.truncate(_UNITS[name])
        if name in ("HOUR", "MINUTE"):
            return TypedCell(MOMENT, start, mentions=cell.mentions)
        return TypedCell(DAY, start.date(), mentions=cell.mentions)

    def _days_between(self, node: Any) -> TypedCell:
        unit = node.args.get("unit")
        if unit is not None and unit.name.upper() != "DAY":
            raise refused(sql_text(node), "give 'day'")
        last, first = (
            self.moment(self.translate(part), sql_text(part))
            for part in (node.this, node.expression)
        )
        seconds = [
            as_moment(as_day(cell)).expression.epoch_seconds().cast("float64")
            for cell in (last, first)
        ]
        days = ((seconds[0] - seconds[1]) / 86400.0 + 0.5).floor().cast("float64")
        return number_cell(days, -4e6, 4e6, 1.0, mentions=last.mentions + first.mentions)

    def _cast(self, node: Any) -> TypedCell:
        cell, text = self.translate(node.this), sql_text(node.this)
        target = (
            node.args["to"].this.name
            if hasattr(node.args["to"].this, "name")
            else str(node.args["to"])
        )
        target = str(target).upper()
        if target in _WHOLE_CASTS:
            return rounded_cell(self.number(cell, text), 1.0)
        if target in _REAL_CASTS:
            return self.number(cell, text)
        if target in _TEXT_CASTS:
            return self.text(cell, text)
        if target == "DATE":
            return as_day(self.moment(cell, text))
        if target in ("TIMESTAMP", "DATETIME", "TIMESTAMPNTZ"):
            return as_moment(self.moment(cell, text))
        if target == "BOOLEAN":
            number = self.number(cell, text)
            return truth_cell(number.expression != 0, number)
        raise refused(
            sql_text(node), "cast to INTEGER, DOUBLE, DECIMAL, TEXT, BOOLEAN, DATE or TIMESTAMP"
        )


def _named(cell: TypedCell, engine: str) -> str:
    if cell.kind == TEXT:
        hint = (
            ""
            if engine in _TRY_CAST
            else f" ({engine} cannot read text as numbers or dates safely)"
        )
        return f"text{hint}"
    return {TRUTH: "a condition", DAY: "a date", MOMENT: "a time", NUMBER: "a number"}[cell.kind]


_RULES: dict[str, Callable[[Translator, Any], TypedCell]] = {
    "Column": Translator._leaf,
    "Literal": Translator._literal,
    "Boolean": Translator._boolean,
    "Null": Translator._null,
    "Paren": Translator._paren,
    "Add": Translator._add,
    "Sub": Translator._subtract,
    "Mul": Translator._multiply,
    "Div": Translator._divide,
    "Neg": Translator._negative,
    "Abs": Translator._absolute,
    "Floor": Translator._floor,
    "Ceil": Translator._floor,
    "Round": Translator._round,
    "Sqrt": Translator._root,
    "Ln": Translator._logarithm,
    "Log": Translator._logarithm,
    "Pow": Translator._power,
    "Mod": Translator._remainder,
    "Greatest": Translator._largest,
    "Least": Translator._largest,
    "Case": Translator._case,
    "If": Translator._if,
    "Coalesce": Translator._coalesce,
    "Nullif": Translator._null_if,
    **dict.fromkeys(("EQ", "NEQ", "GT", "GTE", "LT", "LTE"), Translator._compare),
    "Between": Translator._between,
    "In": Translator._in,
    "And": Translator._logic,
    "Or": Translator._logic,
    "Not": Translator._not,
    "Is": Translator._is,
    "Like": Translator._like,
    "ILike": Translator._like,
    "Lower": Translator._letters,
    "Upper": Translator._letters,
    "Trim": Translator._letters,
    "Length": Translator._length,
    "Substring": Translator._substring,
    "Left": Translator._end,
    "Right": Translator._end,
    "DPipe": Translator._joined,
    "Concat": Translator._joined,
    "Extract": Translator._part,
    **dict.fromkeys(
        (
            "Year",
            "Quarter",
            "Month",
            "Week",
            "Day",
            "DayOfWeek",
            "DayOfYear",
            "Hour",
            "Minute",
            "Second",
        ),
        Translator._part,
    ),
    "Anonymous": Translator._anonymous,
    "TimestampTrunc": Translator._truncate,
    "DateTrunc": Translator._truncate,
    "DateDiff": Translator._days_between,
    "Cast": Translator._cast,
    "TryCast": Translator._cast,
}
