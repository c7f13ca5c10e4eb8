"""Views and queries as tables: which of their rows are there must not depend on other rows.

The guarantee is for the rows of a table. In a view with LIMIT, a window or an aggregate, one
person's row decides whether other rows are there, or what they hold, so that removing a person
would change more than this person's rows. Such views and queries are refused, by their definition
and before anything is charged; so are views on such views. A view that selects columns and rows,
one by one, is a table like any other. Joins and subqueries are allowed: what is joined must be
public, or belong to the same person, and nothing here can check that.

Tests: ``tests/analytics/test_views.py``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from expost.analytics.engine import ibis_module
from expost.errors import InvalidInput
from expost.execution.failure import attempt

_DEFINITIONS = {
    "duckdb": "SELECT view_name, sql FROM duckdb_views() WHERE NOT internal",
    "postgres": "SELECT relname, pg_get_viewdef(oid) FROM pg_class WHERE relkind IN ('v', 'm') AND "
    "relnamespace::regnamespace::text NOT IN ('pg_catalog', 'information_schema')",
}
_PLAN = re.compile(
    r"^[\s:+\-]*(?:GlobalLimit|LocalLimit|Offset|Tail|Window|Aggregate|Deduplicate|Distinct)\b",
    re.MULTILINE,
)


def require_rowwise(table: Any) -> Any:
    """Return an Ibis table; refuse one whose rows depend on each other, by its definition."""
    ops = ibis_module().expr.operations
    mixing = (ops.Limit, ops.WindowFunction, ops.Reduction, ops.Distinct)
    written = (ops.SQLQueryResult, ops.SQLStringView)  # SQL that the user wrote
    for node in table.op().find((*mixing, *written, ops.DatabaseTable)):
        if not isinstance(node, ops.DatabaseTable):
            raise _refused("the query")
        _check_table(node.source, node.name)
    return table


def check_view(name: str, views: Mapping[str, str], dialect: str) -> None:
    """Refuse a view, or a view that it reads, if its rows depend on each other.

    Parameters
    ----------
    name : str
        The table or view.
    views : mapping
        The definition of each view.
    dialect : str
        The dialect of the definitions.
    """
    from sqlglot import exp, parse_one

    folded = {view.lower(): text for view, text in views.items()}
    left, seen = [name.lower()], set()
    while left:
        view = left.pop()
        if view in seen or view not in folded:
            continue
        seen.add(view)
        tree = attempt(lambda text: parse_one(text, dialect=dialect), folded[view])
        mixing = (exp.Limit, exp.Fetch, exp.Offset, exp.TableSample, exp.Window, exp.AggFunc)
        if not isinstance(tree, exp.Expression) or tree.find(
            *mixing, exp.Group, exp.Distinct, exp.Qualify, exp.Command
        ):
            raise _refused(name)
        left += [each.name.lower() for each in tree.find_all(exp.Table)]


def _check_table(engine: Any, name: str) -> None:
    """Refuse a view of a database, by its definition."""
    if engine.name == "pyspark":
        check_plan(engine._session.table(name))
    elif engine.name in _DEFINITIONS:
        cursor = engine.raw_sql(_DEFINITIONS[engine.name])
        check_view(name, dict(cursor.fetchall()), engine.name)


def check_plan(frame: Any) -> None:
    """Refuse a Spark data frame whose rows depend on each other, by its plan."""
    plan = attempt(lambda: frame._jdf.queryExecution().analyzed().toString())
    if isinstance(plan, str) and _PLAN.search(plan):
        raise _refused("the data frame")


def _refused(name: str) -> InvalidInput:
    return InvalidInput(
        "table",
        name,
        "it is a view or a query with LIMIT, a window, a sample, DISTINCT or an aggregate, or "
        "written in SQL that is not read: one person's row could change the rows of others. Give "
        "the table itself, and use where for conditions",
    )
