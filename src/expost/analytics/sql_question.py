"""From a :class:`.SqlQuestion` and its tables to rows of persons, groups and values.

Neighbouring tables differ in all rows of one person. Every step keeps each person's rows a function
of this person's rows alone, so the contribution bounds (:mod:`.contribution`) apply to the result:

* expressions and conditions are row-wise and total (:mod:`.sql_expressions`);
* a public table is joined on columns that are unique in it, which is checked on the public table,
  so that a private row meets at most one public row: JOIN drops rows without one, LEFT JOIN keeps
  them. (Uniqueness is for the meaning of the answer; the caps would hold without it.)
* two private tables are joined on the person, with a cap on each side (:mod:`.sql_joins`);
* groups are listed: given, or implied by the query or by a public table, or found privately.

Nothing here reads a private row. Tests: ``tests/analytics/test_sql_run.py``,
``tests/hostile/test_sql.py``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from fractions import Fraction
from itertools import product
from math import prod
from typing import Any

from expost.analytics.quantile_request import EXTREME, MOST_RANKS
from expost.analytics.sql_cells import NUMBER, TypedCell
from expost.analytics.sql_expressions import Translator
from expost.analytics.sql_joins import PrivateCaps, cap_private, join_private, private_caps
from expost.analytics.sql_parser import (
    VALUE_MARK,
    Aggregate,
    SqlQuestion,
    number_of,
    parsed_expression,
    refused,
    spelled_alike,
    sql_text,
    sqlglot_module,
)
from expost.analytics.sql_tables import (
    Scope,
    Tables,
    bare_name,
    check_roles,
    check_user,
    join_public,
    mentioned_columns,
    open_private,
    private_source_name,
)
from expost.errors import InvalidInput
from expost.tables.sources import may_collate
from expost.tables.typed_columns import check_column, engine_of, fetch, with_name

PERSON, VALUE = "person", "value"
_MOST_KEYS = 100_000
_WIDEST = 1e12  # bounds beyond this are no bounds


@dataclass(frozen=True)
class SqlPart:
    """One measurement: ``kind`` is users, rows, distinct, sum, mean or quantile.

    All quantiles of a value are one part, with their ``ranks``.
    """

    label: str
    kind: str
    rows: Any = field(repr=False, compare=False)
    bounds: tuple[float, float] | None = None
    finer: bool = False  # a part of a variance
    ranks: tuple[Fraction, ...] = ()
    whole: bool = False  # values are whole numbers, by their type


@dataclass(frozen=True)
class CompiledQuestion:
    """A question on its tables: parts to be measured, and how aggregates are made of them.

    ``sources[i]`` are the numbers of the parts of aggregate i, ``centres[i]`` the centre c of a
    variance. ``kinds`` are those of the groups; ``keys`` are None if groups are found privately.
    """

    question: SqlQuestion
    parts: tuple[SqlPart, ...]
    sources: tuple[tuple[int, ...], ...]
    centres: tuple[float, ...]
    kinds: tuple[str, ...]
    keys: tuple[Any, ...] | None
    data: Any = field(repr=False)
    rows: Any = field(repr=False)  # of all persons and groups
    source: str = ""
    public: tuple[str, ...] = ()
    engine: str = ""
    joined_rows: Mapping[str, int] = field(default_factory=dict)  # of a person, by private table


def compile_question(question: SqlQuestion, asked: Mapping[str, Any]) -> CompiledQuestion:
    """Open the tables of a request and write the rows of each part; reads no private row."""
    user, keys, private_keys = asked.get("user"), asked.get("keys"), bool(asked.get("private_keys"))
    if user is None:
        raise InvalidInput("user", None, "name the column of the person")
    wanted = mentioned_columns(question)
    tables, scope = Tables(asked.get("source")), Scope()
    caps = checked_caps(question, asked)
    data, table_name = tables.find(question.table)
    private = open_private(data, table_name, asked.get("delimiter"), question.sql, user)
    opened = private.table
    user = check_user(opened, user, question)
    wanted.add(user.lower())
    engine, collated = engine_of(opened), may_collate(data)
    for name in opened.columns:
        if name.lower() in wanted:
            check_column(opened, "query", name, engine)
    scope.table = scope.renamed(question.alias, opened, wanted)
    person = scope.name_of(question.alias, user)
    if caps:
        cap_private(scope, person, caps[question.table.lower()][1], engine, collated)
    limits = {name.lower(): _pair(name, ends) for name, ends in (asked.get("bounds") or {}).items()}
    translator = Translator(scope.column, engine, bounds=limits, collated=collated)
    for join in question.joins:
        to = (scope, join, tables, translator, wanted, private)
        column, most = caps.get(join.name.lower(), ("", 0))
        if most:
            join_private(*to, (person, column or user, most))
        else:
            join_public(*to)
    base = scope.table
    if question.where is not None:
        base = scope.table = base.filter(
            with_name(translator.condition(question.where), "condition")
        )
    groups = [translator.cell(text) for _, text in question.groups]
    _check_aliases(question, scope)
    parts, sources, centres = _Parts(question, translator, scope, person, groups, limits).all()
    listed = None if private_keys else _keys(question, groups, keys, scope)
    if private_keys and (keys is not None or not question.groups):
        raise InvalidInput("private_keys", True, "it needs GROUP BY, and no list of keys")
    return CompiledQuestion(
        question,
        tuple(parts),
        sources,
        centres,
        tuple(cell.kind for cell in groups),
        listed,
        data,
        scope.table.select(**{PERSON: scope.table[person]}, **_key_columns(groups)),
        private_source_name(data, table_name),
        tuple(join.name for join in question.joins if join.name.lower() not in caps),
        engine,
        {name: most for name, (_, most) in caps.items()},
    )


def checked_caps(question: SqlQuestion, asked: Mapping[str, Any]) -> PrivateCaps:
    """Return the caps of the private tables; every joined table must be public or capped."""
    public = {name.lower() for name in asked.get("public", ())}
    caps = private_caps(question, asked.get("private") or {}, public)
    check_roles(question, public, caps)
    return caps


def _pair(name: str, ends: Any) -> tuple[float, float]:
    """Public bounds of a column."""
    try:
        low, high = (float(end) for end in ends)
    except (TypeError, ValueError):
        raise InvalidInput("bounds", name, "give COLUMN=LOW:HIGH, two numbers") from None
    if not low < high or max(abs(low), abs(high)) > _WIDEST:
        raise InvalidInput("bounds", name, f"give LOW below HIGH, at most {_WIDEST:g} in size")
    return low, high


def _check_aliases(question: SqlQuestion, scope: Scope) -> None:
    """Refuse a group that is named like another column: GROUP BY could mean either."""
    for name, text in question.groups:
        if bare_name(text) == name.lower():
            continue
        try:
            scope.name_of("", name)
        except InvalidInput:
            continue
        raise refused(f"GROUP BY {name}", "a column and an alias have this name: use another alias")


def _key_columns(groups: Sequence[TypedCell]) -> dict[str, Any]:
    """The columns of the groups; a column that is a group is taken as it is."""
    return {
        f"k{index}": with_name(cell.expression if cell.raw is None else cell.raw, f"k{index}")
        for index, cell in enumerate(groups)
    }


class _Parts:
    """Collects what is to be measured; equal measurements are made once."""

    def __init__(
        self,
        question: SqlQuestion,
        translator: Translator,
        scope: Scope,
        person: str,
        groups: Sequence[TypedCell],
        limits: Mapping[str, tuple[float, float]],
    ) -> None:
        self._question, self._translator, self._limits = question, translator, limits
        self._scope = scope
        self._keys = _key_columns(groups)
        self._person = person  # its name in the joined table
        self._parts: dict[tuple[Any, ...], int] = {}
        self._list: list[SqlPart] = []

    def all(self) -> tuple[list[SqlPart], tuple[tuple[int, ...], ...], tuple[float, ...]]:
        """Return the parts, the parts of each aggregate, and the centres of variances."""
        sources, centres = [], []
        for aggregate in self._question.aggregates:
            numbers, centre = self._of(aggregate)
            sources.append(numbers)
            centres.append(centre)
        return self._list, tuple(sources), tuple(centres)

    def _of(self, aggregate: Aggregate) -> tuple[tuple[int, ...], float]:
        function, text = aggregate.function, aggregate.value
        if function == "rows":
            return (self._part(aggregate, "rows", None, None),), 0.0
        assert text is not None
        if function == "distinct":
            node = parsed_expression(text)
            if type(node).__name__ == "Column" and (
                self._scope.name_of(node.table, node.name) == self._person
            ):
                return (self._part(aggregate, "users", None, None),), 0.0
            cell = self._translator.cell(text)
            value = cell.expression if cell.raw is None else cell.raw
            return (self._part(aggregate, "distinct", value, None),), 0.0
        cell = self._translator.number(self._translator.cell(text), text)
        low, high = self._bounds(cell, text, function)
        if function == "quantile":
            return (self._quantile(aggregate, cell, (low, high)),), 0.0
        if function in ("sum", "avg"):
            kind = {"sum": "sum", "avg": "mean"}[function]
            return (self._part(aggregate, kind, cell.expression, (low, high)),), 0.0
        centre = (low + high) / 2
        first = self._part(aggregate, "mean", cell.expression, (low, high), finer=True)
        moved = cell.expression - centre
        most = ((high - low) / 2) ** 2
        label = replace(aggregate, value=f"({text} - {centre:g})²")
        return (first, self._part(label, "mean", moved * moved, (0.0, most), finer=True)), centre

    def _quantile(self, aggregate: Aggregate, cell: TypedCell, bounds: tuple[float, float]) -> int:
        """The part of all quantiles of a value, with one more rank."""
        number = self._part(aggregate, "quantile", cell.expression, bounds)
        part, rank = self._list[number], rank_of(aggregate)
        ranks = tuple(sorted({*part.ranks, rank}))
        if len(ranks) > MOST_RANKS:
            raise refused(f"quantiles of {aggregate.value}", f"ask for at most {MOST_RANKS} ranks")
        whole = cell.raw is not None and cell.raw.type().is_integer()
        alike = [
            other
            for other in self._question.aggregates
            if (other.value, other.where) == (aggregate.value, aggregate.where)
        ]
        label = _quantile_label(aggregate, ranks, {other.at for other in alike})
        self._list[number] = replace(part, ranks=ranks, whole=whole, label=label)
        return number

    def _bounds(self, cell: TypedCell, text: str, function: str) -> tuple[float, float]:
        """The public bounds of a value."""
        named = {name.lower() for name, _ in self._question.columns} & set(self._limits)
        low, high = cell.low, cell.high
        for name, released in self._question.columns:
            mark = re.fullmatch(rf"{VALUE_MARK}(\d+)", released)
            whose = mark and self._question.aggregates[int(mark[1])].value
            if name.lower() in named and whose == text:
                low, high = self._limits[name.lower()]
        if max(abs(low), abs(high)) > _WIDEST:
            raise InvalidInput(
                "bounds",
                None,
                f"{function.upper()}({text}) needs public bounds: --bounds COLUMN=LOW:HIGH for its "
                "columns, or LEAST and GREATEST in the query",
            )
        return (low, high) if low < high else (min(low, 0.0), max(low, 0.0) or 1.0)

    def _part(
        self,
        aggregate: Aggregate,
        kind: str,
        value: Any,
        bounds: tuple[float, float] | None,
        *,
        finer: bool = False,
    ) -> int:
        known = (kind, aggregate.value, aggregate.where, bounds)
        if known not in self._parts:
            table = self._scope.table
            columns: dict[str, Any] = {PERSON: table[self._person], **self._keys}
            if value is not None:
                columns[VALUE] = with_name(value, VALUE)
            if aggregate.where is not None:
                condition = self._translator.condition(aggregate.where)
                table = table.filter(with_name(condition, "condition"))
            self._parts[known] = len(self._list)
            label, rows = _label(aggregate, kind), table.select(**columns)
            self._list.append(SqlPart(label, kind, rows, bounds, finer))
        elif finer:
            number = self._parts[known]
            self._list[number] = replace(self._list[number], finer=True)
        return self._parts[known]


def rank_of(aggregate: Aggregate) -> Fraction:
    """Return the rank of a quantile; MIN and MAX depend on one row, so they are near ones."""
    assert aggregate.at is not None
    rank = Fraction(aggregate.at).limit_denominator(10**6)
    return rank if 0 < rank < 1 else abs(rank - EXTREME)


def _quantile_label(aggregate: Aggregate, ranks: Sequence[Fraction], asked: set[Any]) -> str:
    """The quantiles of a value in words of SQL; which of them stand for MIN and MAX."""
    meant = {
        EXTREME: " for MIN" if 0 in asked else "",
        1 - EXTREME: " for MAX" if 1 in asked else "",
    }
    said = ", ".join(f"{float(rank):g}{meant.get(rank, '')}" for rank in ranks)
    text = f"QUANTILE({aggregate.value}; {said})"
    return text if aggregate.where is None else f"{text} where {aggregate.where}"


def _label(aggregate: Aggregate, kind: str) -> str:
    """A measurement in words of SQL."""
    inner = {"rows": "COUNT(*)", "users": "COUNT(DISTINCT person)"}.get(kind)
    name = {"sum": "SUM", "mean": "AVG", "distinct": "COUNT DISTINCT"}.get(kind, "")
    text = inner or f"{name}({aggregate.value})"
    return text if aggregate.where is None else f"{text} where {aggregate.where}"


def _keys(
    question: SqlQuestion, groups: Sequence[TypedCell], keys: Any, scope: Scope
) -> tuple[Any, ...] | None:
    """The groups: given for all columns together, for single columns, or implied."""
    if not groups:
        if keys is not None:
            raise InvalidInput("keys", "a list", "the query has no GROUP BY")
        return None
    lists = list(keys.values()) if isinstance(keys, Mapping) else [keys]
    if any(isinstance(part, (str, bytes)) for part in lists):
        raise InvalidInput("keys", "a text", "give a list of groups, or lists by column")
    if keys is not None and not isinstance(keys, Mapping):
        return tuple(keys)
    given = {name.lower(): list(values) for name, values in (keys or {}).items()}
    unknown = set(given) - {name.lower() for name, _ in question.groups}
    if unknown:
        raise InvalidInput("keys", sorted(unknown)[0], "it is no column of GROUP BY")
    lists = []
    for (name, text), cell in zip(question.groups, groups, strict=True):
        values = given.get(name.lower()) or _implied(question, text, cell, scope)
        if values is None:
            raise InvalidInput(
                "keys",
                None,
                f"which groups {name!r} has is private: list them (keys, --keys FILE), or find "
                "them privately (private_keys, --private-keys, with a delta)",
            )
        lists.append(values)
    if prod(map(len, lists)) > _MOST_KEYS:
        raise InvalidInput("keys", prod(map(len, lists)), f"give at most {_MOST_KEYS} groups")
    return tuple(product(*lists)) if len(lists) > 1 else tuple(lists[0])


def _implied(question: SqlQuestion, text: str, cell: TypedCell, scope: Scope) -> list[Any] | None:
    """The values that a group can have, as far as the query or a public table says so."""
    listed = where_lists(question, text) or _periods(question, text)
    if listed is None and cell.values is not None:
        listed = [value for value in cell.values if value is not None]
    if listed is not None:
        return list(dict.fromkeys(listed))
    node = parsed_expression(text)
    if cell.raw is None or type(node).__name__ != "Column":
        return None
    column = scope.public.get(scope.name_of(node.table, node.name))
    if column is None:
        return None
    values = fetch(column.name("value").as_table().distinct())["value"]
    return sorted((value for value in values if value is not None), key=str)


def _conditions(question: SqlQuestion) -> list[Any]:
    """The conditions of WHERE that must all hold."""
    if question.where is None:
        return []
    tree = parsed_expression(question.where)
    both = isinstance(tree, sqlglot_module().exp.And)
    return [part.unnest() for part in (tree.flatten() if both else [tree])]


def _periods(question: SqlQuestion, text: str) -> list[Any] | None:
    """The days, weeks, months, … that DATE_TRUNC can give where WHERE limits the date."""
    node = parsed_expression(text)
    unit = node.args.get("unit")
    step = _STEPS.get("" if unit is None else unit.name.upper())
    if type(node).__name__ not in ("TimestampTrunc", "DateTrunc") or step is None:
        return None
    first, last = None, None
    for part in _conditions(question):
        name = type(part).__name__
        if name not in ("GTE", "GT", "LTE", "LT", "Between") or part.this != node.this:
            continue
        low = part.args.get("low") if name == "Between" else part.expression
        high = part.args.get("high") if name == "Between" else part.expression
        first = _day(low) if name in ("GTE", "GT", "Between") else first
        last = _day(high) if name in ("LTE", "LT", "Between") else last
        if name == "LT" and last is not None:
            last -= timedelta(days=1)
    if first is None or last is None:
        return None
    days = (
        first + timedelta(days=more) for more in range(min((last - first).days, _MOST_KEYS) + 1)
    )
    return list(dict.fromkeys(step(day).isoformat() for day in days)) or None


def _day(node: Any) -> date | None:
    """The date that a constant writes: '2024-02-01', DATE '2024-02-01' or a cast of it."""
    inner = node.this if type(node).__name__ == "Cast" else node
    try:
        return date.fromisoformat(inner.this) if inner.is_string else None
    except ValueError:
        return None


_STEPS: dict[str, Callable[[date], date]] = {
    "DAY": lambda day: day,
    "WEEK": lambda day: day - timedelta(days=day.weekday()),
    "MONTH": lambda day: day.replace(day=1),
    "QUARTER": lambda day: day.replace(month=(day.month - 1) // 3 * 3 + 1, day=1),
    "YEAR": lambda day: day.replace(month=1, day=1),
}


def where_lists(question: SqlQuestion, text: str) -> list[Any] | None:
    """Return the constants that WHERE allows for a group: x = 'a', or x IN ('a', 'b')."""
    exp, wanted = sqlglot_module().exp, spelled_alike(text).lower()
    for part in _conditions(question):
        nodes = (
            [part.expression]
            if isinstance(part, exp.EQ)
            else part.expressions
            if isinstance(part, exp.In)
            else []
        )
        if not nodes or spelled_alike(sql_text(part.this)).lower() != wanted:
            continue
        if all(isinstance(node, exp.Literal) for node in nodes):
            numbers = [None if node.is_string else number_of(node) for node in nodes]
            listed = zip(nodes, numbers, strict=True)
            return [node.this if number is None else _number(number) for node, number in listed]
    return None


def _number(text: str | float) -> Any:
    number = float(text)
    return int(number) if number % 1 == 0 else number


def typed_group(kind: str, text: str) -> Any:
    """Return the name of a group as a number where the group is one."""
    if kind != NUMBER:
        return text
    try:
        return _number(text)
    except (ValueError, OverflowError):
        return text
