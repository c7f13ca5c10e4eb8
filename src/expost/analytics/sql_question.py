"""From a :class:`.SqlQuestion` and its tables to rows of persons, groups and values.

Neighbouring tables differ in all rows of one person. Every step keeps each person's rows a function
of this person's rows alone, so the contribution bounds (:mod:`.contribution`) apply to the result:

* expressions and conditions are row-wise and total (:mod:`.sql_expressions`);
* a public table is joined on columns that are unique in it, which is checked on the public table,
  so that a private row meets at most one public row: JOIN drops rows without one, LEFT JOIN keeps
  them. (Uniqueness is for the meaning of the answer; the caps would hold without it.)
* groups are listed: given, or implied by the query or by a public table, or found privately.

Nothing here reads a private row. Tests: ``tests/analytics/test_sql_run.py``,
``tests/hostile/test_sql.py``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

from expost.analytics.sql_cells import NUMBER, TypedCell
from expost.analytics.sql_expressions import Translator
from expost.analytics.sql_parser import (
    Aggregate,
    JoinedTable,
    SqlQuestion,
    column_names,
    number_of,
    parsed_expression,
    refused,
    sql_text,
)
from expost.errors import InvalidInput
from expost.files import is_database
from expost.tables.sources import as_table, may_collate, open_source, without_password
from expost.tables.typed_columns import check_column, engine_of, fetch, ibis_module

PERSON, VALUE = "person", "value"
_MOST_KEYS = 100_000
_MOST_PUBLIC = 5_000_000  # rows of a public table that is brought to the engine of the private one
_WIDEST = 1e12  # bounds beyond this are no bounds


@dataclass(frozen=True)
class SqlPart:
    """One measurement: ``kind`` is users, rows, distinct, sum or mean."""

    label: str
    kind: str
    rows: Any = field(repr=False, compare=False)
    bounds: tuple[float, float] | None = None
    finer: bool = False  # a part of a variance


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


class Tables:
    """The sources of a question: names of tables → files, databases, tables in memory."""

    def __init__(self, source: Any) -> None:
        self._named: dict[str, tuple[Any, str | None]] = {}
        self._databases: list[str] = []
        self._only: tuple[Any, str | None] | None = None
        entries = (
            source.items()
            if isinstance(source, Mapping)
            else [(None, part) for part in _listed(source)]
        )
        for name, entry in entries:
            self._add(None if name is None else str(name), entry)
        if len(self._named) == 1 and not self._databases:
            (self._only,) = self._named.values()

    def _add(self, name: str | None, entry: Any) -> None:
        if isinstance(entry, (str, Path)):
            text = str(entry)
            match = re.fullmatch(r"([A-Za-z_]\w*)=(.+)", text) if name is None else None
            if match and not Path(text).exists():
                name, text = match[1], match[2]
            if is_database(text):
                if name is not None:
                    self._named[name.lower()] = (text, name)
                else:
                    self._databases.append(text)
                return
            entry, name = text, name or Path(text).name.partition(".")[0]
        self._named[(name or "").lower()] = (entry, None)

    def find(self, name: str) -> tuple[Any, str | None]:
        """Return the source of a table and its name in a database (None for other sources)."""
        entry = self._named.get(name.lower())
        if entry is None and len(self._databases) == 1:
            return self._databases[0], name
        if entry is None and self._only is not None:
            entry = self._only
        if entry is None:
            known = ", ".join(repr(known) for known in self._named) or "none"
            raise InvalidInput("source", name, f"no source has this table; there are: {known}")
        return entry


def _listed(source: Any) -> list[Any]:
    if source is None:
        raise InvalidInput("source", None, "give a file, a URL or a table")
    return list(source) if isinstance(source, (list, tuple)) else [source]


def private_source_name(data: Any, table: str | None) -> str:
    """Return what a certificate says about the private source."""
    if isinstance(data, (str, Path)):
        text = str(data)
        shown = without_password(text) if "://" in text else Path(text).name
        return shown if table is None else f"{shown}, table {table}"
    return f"{type(data).__module__.split('.')[0]} table"


class _Scope:
    """The joined table so far, and where each column of each table is in it."""

    def __init__(self) -> None:
        self.table: Any = None
        self._columns: dict[str, dict[str, str]] = {}
        self.public: dict[str, Any] = {}  # names in the joined table → columns of a public table

    def renamed(self, alias: str, table: Any, wanted: set[str]) -> Any:
        """The mentioned columns of a table under names of their own."""
        number = len(self._columns)
        if alias.lower() in self._columns:
            raise refused(
                f"JOIN {alias}", "a table is joined twice: a self join mixes rows of persons"
            )
        names = {name: f"t{number}_{index}" for index, name in enumerate(table.columns)}
        kept = {name: new for name, new in names.items() if name.lower() in wanted}
        self._columns[alias.lower()] = kept
        if not kept:
            raise refused(alias, "no column of this table is used")
        return table.select(**{new: table[name] for name, new in kept.items()})

    def names(self, alias: str) -> dict[str, str]:
        """The columns of a table, and their names in the joined table."""
        return self._columns[alias.lower()]

    def name_of(self, alias: str, name: str) -> str:
        """The name of a column in the joined table."""
        if alias and alias.lower() not in self._columns:
            raise refused(f"{alias}.{name}", f"there is no table {alias!r} in FROM or JOIN")
        tables = [alias.lower()] if alias else list(self._columns)
        matches = []
        for table in tables:
            own = self._columns[table]
            exact = [own[name]] if name in own else []
            matches += exact or [new for old, new in own.items() if old.lower() == name.lower()]
        if len(matches) > 1:
            raise refused(name, "several columns have this name: write table.column")
        if not matches:
            known = sorted({old for own in self._columns.values() for old in own})
            raise refused(name, f"no table has this column; mentioned are {', '.join(known[:30])}")
        return matches[0]

    def column(self, alias: str, name: str) -> Any:
        """A column of the joined table."""
        return self.table[self.name_of(alias, name)]


def compile_question(
    question: SqlQuestion,
    source: Any,
    *,
    user: str | None,
    public: Sequence[str] = (),
    bounds: Mapping[str, tuple[float, float]] | None = None,
    keys: Any = None,
    private_keys: bool = False,
) -> CompiledQuestion:
    """Open the tables and write the rows of each part; reads no private row."""
    if user is None:
        raise InvalidInput("user", None, "name the column of the person")
    wanted = {name.lower() for name in column_names(question.sql)} | {
        user.rpartition(".")[2].lower()
    }
    wanted |= {_bare(side) for join in question.joins for pair in join.on for side in pair}
    tables, scope = Tables(source), _Scope()
    named = {name.lower() for name in public}
    _check_roles(question, named)
    data, table_name = tables.find(question.table)
    private = _opened(data, table_name, question.sql, user)
    engine, collated = engine_of(private), may_collate(data)
    for name in private.columns:
        if name.lower() in wanted:
            check_column(private, "query", name, engine)
    scope.table = scope.renamed(question.alias, private, wanted)
    limits = {name.lower(): _pair(name, ends) for name, ends in (bounds or {}).items()}
    translator = Translator(scope.column, engine, bounds=limits, collated=collated)
    for join in question.joins:
        _join_public(scope, join, tables, translator, wanted, (data, table_name, private))
    base = scope.table
    if question.where is not None:
        base = scope.table = base.filter(translator.condition(question.where))
    person = _person(scope, user, question)
    groups = [translator.cell(text) for _, text in question.groups]
    _check_aliases(question, scope)
    parts, sources, centres = _Parts(
        question, translator, scope, person, groups, limits, user
    ).all()
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
        scope.table.select(**{PERSON: person}, **_key_columns(groups)),
        private_source_name(data, table_name),
        tuple(join.name for join in question.joins),
        engine,
    )


def _bare(text: str) -> str:
    """The name of a column without its table."""
    return text.rpartition(".")[2].strip('"').lower()


def _pair(name: str, ends: Any) -> tuple[float, float]:
    """Public bounds of a column."""
    try:
        low, high = (float(end) for end in ends)
    except (TypeError, ValueError):
        raise InvalidInput("bounds", name, "give COLUMN=LOW:HIGH, two numbers") from None
    if not low < high or max(abs(low), abs(high)) > _WIDEST:
        raise InvalidInput("bounds", name, f"give LOW below HIGH, at most {_WIDEST:g} in size")
    return low, high


def _check_roles(question: SqlQuestion, public: set[str]) -> None:
    """One private table; every joined one is declared public."""
    if question.table.lower() in public:
        raise refused(
            f"FROM {question.table}", "put the private table first: FROM private JOIN public"
        )
    for join in question.joins:
        if join.name.lower() == question.table.lower():
            raise refused(f"JOIN {join.name}", "a self join mixes rows of persons")
        if join.name.lower() not in public:
            raise refused(
                f"JOIN {join.name}",
                f"only public tables are joined: declare it by --public {join.name}",
            )


def _opened(data: Any, table: str | None, sql: str, user: str) -> Any:
    """The private table; of files only the columns that are mentioned are read."""
    used = [*column_names(sql), user.rpartition(".")[2]]
    if isinstance(data, (str, Path)):
        return open_source(data, table, columns=list(dict.fromkeys(used)))
    return as_table(data, ())


def _person(scope: _Scope, user: str, question: SqlQuestion) -> Any:
    alias, _, name = user.rpartition(".")
    try:
        return scope.column(alias or question.alias, name)
    except InvalidInput:
        raise InvalidInput(
            "user", user, f"the table {question.table!r} has no such column"
        ) from None


def _join_public(
    scope: _Scope,
    join: JoinedTable,
    tables: Tables,
    translator: Translator,
    wanted: set[str],
    private: tuple[Any, str | None, Any],
) -> None:
    """Join a public table on columns that are unique in it."""
    public = _public_table(join, tables, wanted, private)
    lookup, before = _Scope(), scope.table
    lookup.table = lookup.renamed(join.alias, public, wanted)
    own = Translator(lookup.column, translator.engine, collated=False)
    left, right = {}, {}
    for index, pair in enumerate(join.on):
        inner, outer = _sides(pair, join, lookup)
        node = parsed_expression(f"{inner} = {outer}")
        cells = own.comparable(own.cell(inner), translator.cell(outer), node)
        right[f"r{index}"], left[f"l{index}"] = (cell.expression for cell in cells)
    _check_unique(lookup.table.select(**right), join)
    renamed = scope.renamed(join.alias, public, wanted)
    columns = {new: lookup.column(join.alias, old) for old, new in scope.names(join.alias).items()}
    side = lookup.table.select(**columns, **right)
    main = before.mutate(**left)
    predicates = [main[f"l{index}"] == side[f"r{index}"] for index in range(len(join.on))]
    joined = main.join(side, predicates, how=join.how)
    scope.table = joined.select([*before.columns, *columns])
    scope.public |= {new: renamed[new] for new in columns}


def _public_table(
    join: JoinedTable, tables: Tables, wanted: set[str], private: tuple[Any, str | None, Any]
) -> Any:
    """A public table where the private one is: the same database, or its rows in memory."""
    data, name = tables.find(join.name)
    own, own_name, opened = private
    beside = (
        isinstance(data, str) and data == own and own_name is not None and not _is_local(opened)
    )
    if beside:
        public = _beside(opened, name)
    elif isinstance(data, (str, Path)):
        public = open_source(data, name, columns=sorted(wanted))
    else:
        public = as_table(data, ())
    used = [column for column in public.columns if column.lower() in wanted]
    if not used:
        raise refused(f"JOIN {join.name}", "no column of this table is used")
    public = public.select(used)
    return public if beside else ibis_module().memtable(_fetched(public, join.name))


def _sides(pair: tuple[str, str], join: JoinedTable, lookup: _Scope) -> tuple[str, str]:
    """The side of the public table, a column of it, and the other one."""
    from expost.analytics.sql_parser import sqlglot_module

    exp = sqlglot_module().exp
    sides = [parsed_expression(text) for text in pair]
    for inner, outer in (sides, sides[::-1]):
        if not isinstance(inner, exp.Column) or (
            inner.table and inner.table.lower() != join.alias.lower()
        ):
            continue
        others = [column.table.lower() for column in outer.find_all(exp.Column)]
        if join.alias.lower() in others or not (inner.table or all(others) or inner is sides[1]):
            continue
        try:
            lookup.name_of(join.alias, inner.name)
        except InvalidInput:
            continue
        return sql_text(inner), sql_text(outer)
    raise refused(
        f"{pair[0]} = {pair[1]}", f"compare a column of {join.name} with the tables before it"
    )


def _is_local(table: Any) -> bool:
    """Whether a table was brought into memory (SQLite, data frames)."""
    ops = ibis_module().expr.operations
    return bool(table.op().find(ops.InMemoryTable))


def _beside(private: Any, name: str | None) -> Any:
    """A table of the same database, on the same connection."""
    schema, _, bare = (name or "").rpartition(".")
    backend = private.get_backend()
    return backend.table(bare, database=schema) if schema else backend.table(bare)


def _fetched(public: Any, name: str) -> Any:
    """The rows of a public table."""
    try:
        rows = public.limit(_MOST_PUBLIC + 1).to_pyarrow()
    except Exception as error:
        raise InvalidInput("public", name, f"cannot be read: {type(error).__name__}") from None
    if rows.num_rows > _MOST_PUBLIC:
        raise InvalidInput("public", name, f"it has more than {_MOST_PUBLIC} rows")
    return rows


def _check_unique(keys: Any, join: JoinedTable) -> None:
    """Refuse a public table in which the joined columns are not unique; NULL meets nothing."""
    ibis = ibis_module()
    for name in keys.columns:
        keys = keys.filter(keys[name].notnull())
    repeated = keys.group_by(keys.columns).aggregate(n=ibis._.count())
    if fetch(repeated.filter(repeated.n > 1).limit(1))["n"]:
        raise refused(f"JOIN {join.name}", "the columns of ON are not unique in the public table")


def _check_aliases(question: SqlQuestion, scope: _Scope) -> None:
    """Refuse a group that is named like another column: GROUP BY could mean either."""
    for name, text in question.groups:
        if _bare(text) == name.lower():
            continue
        try:
            scope.name_of("", name)
        except InvalidInput:
            continue
        raise refused(f"GROUP BY {name}", "a column and an alias have this name: use another alias")


def _key_columns(groups: Sequence[TypedCell]) -> dict[str, Any]:
    """The columns of the groups; a column that is a group is taken as it is."""
    return {
        f"k{index}": cell.expression if cell.raw is None else cell.raw
        for index, cell in enumerate(groups)
    }


class _Parts:
    """Collects what is to be measured; equal measurements are made once."""

    def __init__(
        self,
        question: SqlQuestion,
        translator: Translator,
        scope: _Scope,
        person: Any,
        groups: Sequence[TypedCell],
        limits: Mapping[str, tuple[float, float]],
        user: str,
    ) -> None:
        self._question, self._translator, self._limits = question, translator, limits
        self._scope = scope
        self._keys = _key_columns(groups)
        self._person, self._user = person, user
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
            same = _bare(text) == _bare(self._user) and re.fullmatch(r'[\w."]+', text) is not None
            if same:
                return (self._part(aggregate, "users", None, None),), 0.0
            cell = self._translator.cell(text)
            value = cell.expression if cell.raw is None else cell.raw
            return (self._part(aggregate, "distinct", value, None),), 0.0
        if function == "quantile":
            raise refused(f"a quantile of {text}", "use expost quantile")
        cell = self._translator.number(self._translator.cell(text), text)
        low, high = self._bounds(cell, text, function)
        if function in ("sum", "avg"):
            kind = {"sum": "sum", "avg": "mean"}[function]
            return (self._part(aggregate, kind, cell.expression, (low, high)),), 0.0
        centre = (low + high) / 2
        first = self._part(aggregate, "mean", cell.expression, (low, high), finer=True)
        moved = cell.expression - centre
        most = ((high - low) / 2) ** 2
        label = replace(aggregate, value=f"({text} - {centre:g})²")
        return (first, self._part(label, "mean", moved * moved, (0.0, most), finer=True)), centre

    def _bounds(self, cell: TypedCell, text: str, function: str) -> tuple[float, float]:
        """The public bounds of a value."""
        named = {name.lower() for name, _ in self._question.columns} & set(self._limits)
        low, high = cell.low, cell.high
        for name, released in self._question.columns:
            if name.lower() in named and released.startswith("expost_value_"):
                index = int(released.removeprefix("expost_value_"))
                if self._question.aggregates[index].value == text:
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
            columns: dict[str, Any] = {PERSON: self._person, **self._keys}
            if value is not None:
                columns[VALUE] = value
            if aggregate.where is not None:
                condition = self._translator.condition(aggregate.where)
                table = table.filter(condition)
            self._parts[known] = len(self._list)
            label, rows = _label(aggregate, kind), table.select(**columns)
            self._list.append(SqlPart(label, kind, rows, bounds, finer))
        elif finer:
            number = self._parts[known]
            self._list[number] = replace(self._list[number], finer=True)
        return self._parts[known]


def _label(aggregate: Aggregate, kind: str) -> str:
    """A measurement in words of SQL."""
    inner = {"rows": "COUNT(*)", "users": "COUNT(DISTINCT person)"}.get(kind)
    name = {"sum": "SUM", "mean": "AVG", "distinct": "COUNT DISTINCT"}.get(kind, "")
    text = inner or f"{name}({aggregate.value})"
    return text if aggregate.where is None else f"{text} where {aggregate.where}"


def _keys(
    question: SqlQuestion, groups: Sequence[TypedCell], keys: Any, scope: _Scope
) -> tuple[Any, ...] | None:
    """The groups: given for all columns together, for single columns, or implied."""
    if not groups:
        if keys is not None:
            raise InvalidInput("keys", "a list", "the query has no GROUP BY")
        return None
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


def _implied(question: SqlQuestion, text: str, cell: TypedCell, scope: _Scope) -> list[Any] | None:
    """The values that a group can have, as far as the query or a public table says so."""
    listed = _where_lists(question, text)
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


def _where_lists(question: SqlQuestion, text: str) -> list[Any] | None:
    """The constants that WHERE allows for a group: x = 'a', or x IN ('a', 'b')."""
    if question.where is None:
        return None
    from expost.analytics.sql_parser import sqlglot_module

    exp = sqlglot_module().exp
    tree = parsed_expression(question.where)
    for part in tree.flatten() if isinstance(tree, exp.And) else [tree]:
        part = part.unnest()
        nodes = (
            [part.expression]
            if isinstance(part, exp.EQ)
            else part.expressions
            if isinstance(part, exp.In)
            else []
        )
        if not nodes or sql_text(part.this).lower() != text.lower():
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
