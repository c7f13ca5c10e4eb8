"""An Ibis expression → the text of one SELECT, which :mod:`.sql_parser` reads like any other.

Ibis compiles the expression; what it nests (a filter, new columns or a join below an aggregate,
conditions and orders above it) is written as one SELECT again. Only these two shapes are merged:
row-wise below, released answers above. All else stays a subquery, and is refused as one.
Tests: ``tests/analytics/test_sql_ibis.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from expost.analytics.sql_parser import DIALECT, refused, sql_text, sqlglot_module
from expost.errors import InvalidInput
from expost.tables.typed_columns import ibis_module

_ROWS = {"expressions", "from_", "joins", "where"}  # clauses of a query of rows
_ANSWERS = {*_ROWS, "group", "having"}
_ABOVE = {"expressions", "from_", "where", "order", "limit"}  # clauses on released answers
_MOST_NESTED = 50


def text_of_expression(expression: Any, asked: dict[str, Any]) -> str:
    """Return an Ibis expression as SQL; its tables become the source, if none is given."""
    ibis = ibis_module()
    if not isinstance(expression, ibis.Expr):
        raise InvalidInput(
            "query", type(expression).__name__, "give a SELECT or an Ibis expression"
        )
    try:
        text = str(ibis.to_sql(expression, dialect=DIALECT))
    except Exception as error:
        raise refused("the expression", f"Ibis cannot write it: {type(error).__name__}") from None
    if asked.get("source") is None:
        asked["source"] = _tables_of(expression)
    asked["public"] = [
        name if isinstance(name, str) else name.get_name() for name in asked.get("public") or ()
    ]
    return sql_text(_merged(sqlglot_module().parse_one(text, read=DIALECT), 0))


def _tables_of(expression: Any) -> dict[str, Any]:
    """The tables that an expression is made of, by their names."""
    ops = ibis_module().expr.operations
    tables = {op.name: op.to_expr() for op in expression.op().find(ops.PhysicalTable)}
    free = [name for name, table in tables.items() if isinstance(table.op(), ops.UnboundTable)]
    if free:
        raise InvalidInput(
            "source", None, f"say where the table {free[0]!r} is: source={{name: …}}"
        )
    return tables


def _merged(tree: Any, depth: int) -> Any:
    """A SELECT whose FROM is merged into it where that is row-wise, or above an aggregate."""
    exp = sqlglot_module().exp
    start = tree.args.get("from_") if isinstance(tree, exp.Select) else None
    inner = None if start is None else start.this
    if not isinstance(inner, exp.Subquery) or depth > _MOST_NESTED:
        return tree
    below = _merged(inner.this, depth + 1)
    if not isinstance(below, exp.Select) or below.find(exp.Window):
        return tree
    used, above = ({name for name, value in part.args.items() if value} for part in (below, tree))
    if used <= _ROWS and not below.find(exp.AggFunc):
        return _with_rows(tree, below, inner.alias)
    if used <= _ANSWERS and above <= _ABOVE and not _own_aggregate(tree):
        return _above_answers(tree, below, inner.alias)
    return tree


def _own_aggregate(tree: Any) -> bool:
    """Whether a SELECT has aggregates outside of its FROM."""
    exp = sqlglot_module().exp
    clauses = [*tree.expressions, tree.args.get("where"), tree.args.get("order")]
    return any(clause is not None and clause.find(exp.AggFunc) for clause in clauses)


def _with_rows(tree: Any, below: Any, alias: str) -> Any:
    """An aggregate over filtered, computed or joined rows as one SELECT."""
    exp, columns = sqlglot_module().exp, _columns(below)
    source = below.args["from_"].this
    wheres = [part.args["where"].this for part in (below, tree) if part.args.get("where")]
    result = tree.copy()
    result.set("where", None)
    result.set("from_", None)
    joins = [
        join.copy() for join in (*(below.args.get("joins") or ()), *(tree.args.get("joins") or ()))
    ]
    if wheres:
        own = [where.copy() for where in wheres]
        if below.args.get("where") and len(own) == 2:
            own = [exp.Paren(this=where) for where in own]
        result.set("where", exp.Where(this=exp.and_(*own, dialect=DIALECT, copy=False)))
    result.set("joins", joins)
    if columns is not None and any(isinstance(item, exp.Star) for item in tree.expressions):
        result.set("expressions", [item.copy() for item in below.expressions])
    result = _replaced(result, columns, alias, source.alias_or_name)
    result.set("from_", exp.From(this=source.copy()))
    return result


def _above_answers(tree: Any, below: Any, alias: str) -> Any:
    """Conditions, orders and arithmetic on released answers as clauses of the aggregate."""
    exp, columns = sqlglot_module().exp, _columns(below)
    result = below.copy()
    groups = [
        _resolved(node, below) for node in (below.args.get("group") or exp.Group()).expressions
    ]
    if groups:
        result.set("group", exp.Group(expressions=groups))
    outer = tree.copy()
    outer.set("from_", None)
    outer = _replaced(outer, columns, alias, None)
    if not any(isinstance(item, exp.Star) for item in outer.expressions):
        result.set("expressions", outer.expressions)
    conditions = [part.this for part in (below.args.get("having"), outer.args.get("where")) if part]
    if conditions:
        joined = exp.and_(*[exp.Paren(this=part.copy()) for part in conditions], copy=False)
        result.set("having", exp.Having(this=joined))
    for name in ("order", "limit"):
        result.set(name, outer.args.get(name))
    return result


def _resolved(node: Any, below: Any) -> Any:
    """What a number in GROUP BY means."""
    exp = sqlglot_module().exp
    if not isinstance(node, exp.Literal):
        return node.copy()
    item = below.expressions[int(node.this) - 1]
    return (item.this if isinstance(item, exp.Alias) else item).copy()


def _columns(below: Any) -> dict[str, Any] | None:
    """The expressions of the columns of a SELECT; None if they are those of its table."""
    exp = sqlglot_module().exp
    if any(isinstance(item, exp.Star) for item in below.expressions):
        if len(below.expressions) > 1 or below.args.get("joins"):
            raise refused("SELECT *", "name the columns of a join")
        return None
    return {
        item.alias_or_name: item.this if isinstance(item, exp.Alias) else item
        for item in below.expressions
    }


def _replaced(tree: Any, columns: Mapping[str, Any] | None, alias: str, table: str | None) -> Any:
    """A tree in which columns of a subquery are what they stand for."""
    exp = sqlglot_module().exp

    def meant(node: Any) -> Any:
        if not isinstance(node, exp.Column) or node.table != alias:
            return node
        if columns is None:
            return exp.column(node.this.copy(), table=exp.to_identifier(table, quoted=True))
        if node.name not in columns:
            return node
        new = columns[node.name].copy()
        wrapped = new if isinstance(new, exp.Column) else exp.Paren(this=new)
        if isinstance(node.parent, exp.Select) and node.arg_key == "expressions":
            return exp.Alias(this=wrapped, alias=exp.to_identifier(node.name, quoted=True))
        return wrapped

    return tree.transform(meant)
