"""The tables of a query: where they are, their columns under one roof, and joins.

Nothing here reads a private row. Tests: ``tests/analytics/test_sql_run.py``,
``tests/hostile/test_sql.py``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from expost.analytics.sql_expressions import Translator
from expost.analytics.sql_parser import (
    JoinedTable,
    SqlQuestion,
    column_names,
    parsed_expression,
    refused,
    sql_text,
    sqlglot_module,
)
from expost.errors import InvalidInput
from expost.files import is_database
from expost.tables.sources import as_table, open_source, without_password
from expost.tables.typed_columns import columns_words, fetch, ibis_module

_MOST_PUBLIC = 5_000_000  # rows of a public table that is brought to the engine of the private one


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
        if isinstance(entry, tuple) and name is not None:  # a source, and its table there
            self._named[name.lower()] = entry
            return
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


class Scope:
    """The joined table so far, and where each column of each table is in it."""

    def __init__(self) -> None:
        self.table: Any = None
        self._columns: dict[str, dict[str, str]] = {}
        self._known: list[str] = []  # all columns, for messages
        self.public: dict[str, Any] = {}  # names in the joined table → columns of a public table

    def renamed(self, alias: str, table: Any, wanted: set[str]) -> Any:
        """The mentioned columns of a table under names of their own."""
        number = len(self._columns)
        self._known += table.columns
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
            raise refused(name, f"no table has this column; {columns_words(self._known, name)}")
        return matches[0]

    def column(self, alias: str, name: str) -> Any:
        """A column of the joined table."""
        return self.table[self.name_of(alias, name)]


def mentioned_columns(question: SqlQuestion) -> set[str]:
    """Return the names of all columns that a question mentions, without capitals."""
    sides = {bare_name(side) for join in question.joins for pair in join.on for side in pair}
    return {name.lower() for name in column_names(question.sql)} | sides


def bare_name(text: str) -> str:
    """The name of a column without its table."""
    return text.rpartition(".")[2].strip('"').lower()


def check_roles(question: SqlQuestion, public: set[str], private: Collection[str]) -> None:
    """Every joined table is declared public, or is a private one whose rows are capped."""
    if question.table.lower() in public:
        raise refused(
            f"FROM {question.table}", "put the private table first: FROM private JOIN public"
        )
    for join in question.joins:
        if join.name.lower() == question.table.lower():
            raise refused(f"JOIN {join.name}", "a self join mixes rows of persons")
        if join.name.lower() not in (*public, *private):
            raise refused(
                f"JOIN {join.name}",
                f"is it public? Then declare it by --public {join.name}. If it holds rows of the "
                f"same persons, cap both: --private {question.table}=ROWS --private "
                f"{join.name}=ROWS (or {join.name}.COLUMN=ROWS), and join on the person",
            )


class PrivateTable(NamedTuple):
    """The table of FROM: its source, its name there, how files are read, and itself."""

    data: Any
    name: str | None
    delimiter: str | None
    used: list[str]  # columns that are mentioned: others are not read
    table: Any


def open_private(
    data: Any, name: str | None, delimiter: str | None, sql: str, user: str
) -> PrivateTable:
    """Return the private table; only columns that are mentioned are read."""
    used = list(dict.fromkeys([*column_names(sql), user.rpartition(".")[2]]))
    if isinstance(data, (str, Path)):
        table = open_source(data, name, delimiter=delimiter, columns=used)
    else:
        table = as_table(data, ())
    return PrivateTable(data, name, delimiter, used, table)


def check_user(private: Any, user: str, question: SqlQuestion) -> str:
    """The column of the person; refuse one that the private table does not have."""
    alias, _, name = user.rpartition(".")
    if alias.lower() not in ("", question.alias.lower(), question.table.lower()):
        raise InvalidInput("user", user, f"name a column of the private table {question.table!r}")
    exact = [column for column in private.columns if column == name]
    known = exact or [column for column in private.columns if column.lower() == name.lower()]
    if len(known) != 1:
        raise InvalidInput("user", user, columns_words(list(private.columns), name))
    return str(known[0])


def join_public(
    scope: Scope,
    join: JoinedTable,
    tables: Tables,
    translator: Translator,
    wanted: set[str],
    private: PrivateTable,
) -> None:
    """Join a public table on columns that are unique in it."""
    public = _public_table(join, tables, wanted, private)
    lookup, before = Scope(), scope.table
    lookup.table = lookup.renamed(join.alias, public, wanted)
    own = Translator(lookup.column, translator.engine, collated=False)
    left, right = {}, {}
    for index, pair in enumerate(join.on):
        inner, outer = sides_of(pair, join, lookup)
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
    join: JoinedTable, tables: Tables, wanted: set[str], private: PrivateTable
) -> Any:
    """A public table where the private one is: the same database, or its rows in memory."""
    data, name = _public_source(join, tables, private[:2])
    near = beside((data, name), private)
    public = _used_columns(_opened(data, name, wanted) if near is None else near, join, wanted)
    return public if near is not None else ibis_module().memtable(_fetched(public, join.name))


def _public_source(
    join: JoinedTable, tables: Tables, private: tuple[Any, str | None]
) -> tuple[Any, str | None]:
    """Where a table is that was declared public; the private one is never read as such."""
    public = tables.find(join.name)
    if one_table(public, private):
        raise refused(f"JOIN {join.name}", "its source is that of the private table")
    return public


def _opened(data: Any, name: str | None, wanted: set[str]) -> Any:
    """A public table, wherever it is."""
    if isinstance(data, (str, Path)):
        return open_source(data, name, columns=sorted(wanted))
    return as_table(data, ())


def _used_columns(public: Any, join: JoinedTable, wanted: set[str]) -> Any:
    """The columns of a public table that are mentioned."""
    used = [column for column in public.columns if column.lower() in wanted]
    if not used:
        raise refused(f"JOIN {join.name}", "no column of this table is used")
    return public.select(used)


def public_digest(join: JoinedTable, tables: Tables, private: str, wanted: set[str]) -> str:
    """Return a digest of what a public table holds; the order of its rows does not count.

    ``private`` is the name of the private table, which is not opened.
    """
    data, name = _public_source(join, tables, tables.find(private))
    rows = _fetched(_used_columns(_opened(data, name, wanted), join, wanted), join.name)
    columns = [rows.column(number).to_pylist() for number in range(rows.num_columns)]
    lines = sorted(sha256(repr(row).encode()).digest() for row in zip(*columns, strict=True))
    total = sha256(repr([(field.name, str(field.type)) for field in rows.schema]).encode())
    for line in lines:
        total.update(line)
    return total.hexdigest()


def one_table(one: tuple[Any, str | None], other: tuple[Any, str | None]) -> bool:
    """Return whether two sources with their tables are one table, as far as their names tell."""
    ibis = ibis_module()
    if all(isinstance(data, ibis.Table) for data, _ in (one, other)):  # also derived ones
        leaves = [
            set(data.op().find(ibis.expr.operations.PhysicalTable)) for data, _ in (one, other)
        ]
        return bool(leaves[0] & leaves[1])
    if not all(isinstance(data, (str, Path)) for data, _ in (one, other)):
        return one[0] is other[0] and one[1] == other[1]
    files = [Path(re.sub(r"^(?:duckdb|sqlite)://", "", str(data))) for data, _ in (one, other)]
    if str(one[0]) != str(other[0]) and files[0].resolve() != files[1].resolve():
        return False
    (schema, _, name), (other_schema, _, other_name) = (
        (table or "").lower().rpartition(".") for _, table in (one, other)
    )
    return name == other_name and (schema == other_schema or not schema or not other_schema)


def sides_of(pair: tuple[str, str], join: JoinedTable, lookup: Scope) -> tuple[str, str]:
    """Return the side of the joined table, a column of it, and the other one."""
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


def beside(other: tuple[Any, str | None], private: PrivateTable) -> Any:
    """Return a table of the private one's database, on its connection; None if it is elsewhere."""
    (data, name), opened = other, private.table
    if not isinstance(data, str) or data != private.data or private.name is None:
        return None
    if _is_local(opened):
        return None
    schema, _, bare = (name or "").rpartition(".")
    backend = opened.get_backend()
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
