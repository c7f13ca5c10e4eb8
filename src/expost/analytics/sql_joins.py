"""Joins of two private tables on the person, with a cap on each side.

Neighbours differ in all rows of one person, in every private table. A person may enter the join
with at most so many rows of each table as its owner says: those with the smallest hash of the
person and the row, which is a function of this person's rows alone. Two rows are joined only if
both belong to the same person: the texts of the two columns of the person are equal, byte by byte
(whole numbers as decimals), so that no rounding, collation or cast makes two persons one. What a
person has in the joined table is thus a function of what this person has in both tables, and of
nothing else. The caps of groups and rows that follow (:mod:`.contribution`) bound it as they bound
the rows of one table: **the guarantee and the price are those of one table.** With a rows of a
person in one table and b in the other, at most a·b (LEFT JOIN: at most a·max(b, 1)) enter; what the
caps leave out is not part of the intervals, and the answer says so.

Nothing here reads a row. Tests: ``tests/analytics/test_sql_joins.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from expost.analytics.contribution import salted_hash
from expost.analytics.sql_expressions import Translator
from expost.analytics.sql_parser import (
    JoinedTable,
    SqlQuestion,
    parsed_expression,
    refused,
)
from expost.analytics.sql_tables import PrivateTable, Scope, Tables, beside, one_table, sides_of
from expost.errors import InvalidInput
from expost.files import is_database
from expost.rationals import count_of
from expost.tables.sources import as_table, may_collate, open_source, require_rowwise
from expost.tables.typed_columns import check_column, column_text, columns_words, ibis_module

PrivateCaps = Mapping[str, tuple[str | None, int]]
"""Private tables of a join, in small letters → column of the person (None: as in FROM), cap."""
_SALT = "expost join"  # which rows a person enters with; the argument above holds for every salt
_WHO, _RANK = "expost_join_person", "expost_join_rank"


def private_caps(question: SqlQuestion, private: Any, public: set[str]) -> PrivateCaps:
    """Return the caps of the private tables; refuse a query whose tables they do not fit."""
    if not isinstance(private, Mapping):
        raise InvalidInput("private", private, "give caps by table: {'orders': 20, 'visits': 5}")
    tables = [name.lower() for name in (question.table, *(join.name for join in question.joins))]
    caps: dict[str, tuple[str | None, int]] = {}
    for key, cap in private.items():
        table, _, column = (str(key), "", "") if key.lower() in tables else key.rpartition(".")
        if table.lower() not in tables or table.lower() in caps:
            raise InvalidInput("private", key, "name each table of the query once: TABLE=ROWS")
        if table.lower() in public:
            raise InvalidInput("private", key, "it is declared public, too")
        caps[table.lower()] = (column or None, count_of(cap, "private", at_least=1))
    if caps and not set(tables[1:]) & set(caps):
        raise InvalidInput("private", list(private), "it belongs to a JOIN of two private tables")
    if caps and tables[0] not in caps:
        raise refused(
            f"FROM {question.table}",
            f"both private tables of a JOIN need a cap: --private {question.table}=ROWS, too",
        )
    return caps


def capped_rows(table: Any, person: str, most: int, engine: str, collated: bool) -> Any:
    """Return at most ``most`` rows per person, and the text of the person as another column."""
    ibis = ibis_module()
    who = column_text(table[person], engine, collated)
    shown = {
        f"expost_join_{index}": ibis.literal("=") + column_text(table[name], engine, collated)
        for index, name in enumerate(table.columns)
    }
    rows = table.mutate(**{_WHO: who}, **{name: text.fill_null("") for name, text in shown.items()})
    rows = rows.filter(rows[_WHO].notnull())
    # Rows of equal texts cannot be told apart, so any of them will do.
    order = [salted_hash(rows, [_WHO, *shown], _SALT), *(rows[name] for name in shown)]
    inside = ibis.window(group_by=_WHO, order_by=order)
    rows = rows.mutate(**{_RANK: ibis.row_number().over(inside)})
    return rows.filter(rows[_RANK] < most).select([*table.columns, _WHO])


def cap_private(scope: Scope, person: str, most: int, engine: str, collated: bool) -> None:
    """Cap the rows of the table in FROM before anything is joined."""
    _check_person(scope.table[person], "FROM")
    scope.table = capped_rows(scope.table, person, most, engine, collated)


def join_private(
    scope: Scope,
    join: JoinedTable,
    tables: Tables,
    translator: Translator,
    wanted: set[str],
    private: PrivateTable,
    persons: tuple[str, str, int],
) -> None:
    """Join a private table on the person; ``persons``: both columns, and the cap of this table."""
    outer_person, column, most = persons
    opened = _opened(join, tables, private, column)
    exact = [name for name in opened.columns if name == column]
    known = exact or [name for name in opened.columns if name.lower() == column.lower()]
    if len(known) != 1:
        raise InvalidInput("private", join.name, columns_words(list(opened.columns), column))
    engine, collated, wanted = (
        translator.engine,
        may_collate(private.data),
        {*wanted, column.lower()},
    )
    for name in opened.columns:
        if name.lower() in wanted:
            check_column(opened, "query", name, engine)
    lookup, before = Scope(), scope.table
    lookup.table = lookup.renamed(join.alias, opened, wanted)
    person = lookup.name_of(join.alias, known[0])
    _check_person(lookup.table[person], f"JOIN {join.name}")
    own = Translator(lookup.column, engine, collated=collated)
    left: dict[str, Any] = {}
    right: dict[str, Any] = {}
    on_person = False
    for index, pair in enumerate(join.on):
        inner, outer = sides_of(pair, join, lookup)
        if _is_person(inner, lookup, person) and _is_person(outer, scope, outer_person):
            on_person = True
            continue
        cells = own.comparable(own.cell(inner), translator.cell(outer), parsed_expression(inner))
        right[f"r{index}"], left[f"l{index}"] = (cell.expression for cell in cells)
    if not on_person:
        raise refused(
            f"JOIN {join.name}",
            f"private tables are joined on the person: ON … = {join.alias}.{known[0]}",
        )
    renamed, names = scope.renamed(join.alias, opened, wanted), scope.names(join.alias)
    columns = {new: lookup.column(join.alias, old) for old, new in names.items()}
    side = lookup.table.select(**columns, **right)
    side = capped_rows(side, names[known[0]], most, engine, collated)
    side = side.rename({f"{_WHO}_2": _WHO})
    main = before.mutate(**left)
    predicates = [main[_WHO] == side[f"{_WHO}_2"], *(main[f"l{i[1:]}"] == side[i] for i in right)]
    joined = main.join(side, predicates, how=join.how)
    scope.table = joined.select([*before.columns, *renamed.columns])
    _check_one_engine(scope.table, join)


def _opened(join: JoinedTable, tables: Tables, private: PrivateTable, column: str) -> Any:
    """The private table of a JOIN; its rows stay where they are."""
    data, name = tables.find(join.name)
    if one_table((data, name), private[:2]):
        raise refused(f"JOIN {join.name}", "its source is that of the other table")
    if may_collate(data) != may_collate(private.data):
        raise _apart(join)
    if (near := beside((data, name), private)) is not None:
        return require_rowwise(near)
    if not isinstance(data, (str, Path)):
        return as_table(data, ())
    both = (data, private.data)
    files = all(isinstance(part, (str, Path)) and not is_database(part) for part in both)
    return open_source(
        data,
        name,
        delimiter=private.delimiter,
        columns=[*private.used, column],
        beside=private.table if files else None,
    )


def _apart(join: JoinedTable) -> InvalidInput:
    return refused(
        f"JOIN {join.name}", "both private tables must be in one database, or both in files"
    )


def _check_one_engine(table: Any, join: JoinedTable) -> None:
    """Refuse tables of two databases."""
    try:
        ibis_module().get_backend(table)
    except Exception:
        raise _apart(join) from None


def _check_person(column: Any, clause: str) -> None:
    """Refuse persons whose texts may be the same for two of them."""
    if not (column.type().is_string() or column.type().is_integer()):
        raise refused(clause, "in a JOIN of private tables a person is a text or a whole number")


def _is_person(text: str, scope: Scope, person: str) -> bool:
    """Whether an expression is the column of the person."""
    node = parsed_expression(text)
    return type(node).__name__ == "Column" and scope.name_of(node.table, node.name) == person
