"""SQL text → :class:`SqlQuestion`: what is asked, clause by clause, or a refusal that names one.

sqlglot parses one SELECT in DuckDB's dialect, which is close to PostgreSQL's. Only what is listed
here is read, so a clause that a later version of the parser knows is refused until it is listed.
Private tables are touched by row-wise expressions and aggregates only; HAVING, ORDER BY and LIMIT
speak of released answers, and so does arithmetic outside of aggregates
(:mod:`.sql_released`). The record holds texts, nothing of the data, and is part of the certificate.
Tests: ``tests/analytics/test_sql_parser.py``, ``tests/fuzz/test_sql.py``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from expost.errors import InvalidInput, MissingExtra

DIALECT = "duckdb"
GROUP_MARK, VALUE_MARK = "expost_group_", "expost_value_"  # in expressions over released answers
_LONGEST, _MOST_NODES = 20_000, 2_000
_CLAUSES = ("expressions", "from_", "joins", "where", "group", "having", "order", "limit", "offset")
_CLAUSE_NAMES = {
    "distinct": "SELECT DISTINCT",
    "qualify": "QUALIFY",
    "sample": "USING SAMPLE",
    "into": "INTO",
    "windows": "WINDOW",
    "laterals": "LATERAL",
    "pivots": "PIVOT",
    "locks": "FOR UPDATE",
    "with_": "WITH",
}


@dataclass(frozen=True)
class JoinedTable:
    """A table of a JOIN: ``how`` is inner or left, ``on`` are the pairs that must be equal."""

    name: str
    alias: str
    how: str
    on: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Aggregate:
    """What is measured in each group: ``function`` of ``value`` in the rows ``where``.

    ``function`` is rows, distinct, sum, avg, var, stddev or quantile, whose rank is ``at``: 0 is
    MIN, 1 is MAX.
    """

    function: str
    value: str | None = None
    where: str | None = None
    at: float | None = None


@dataclass(frozen=True)
class SqlQuestion:
    """One SELECT as it is understood. Public: it holds no data."""

    sql: str
    table: str
    alias: str
    joins: tuple[JoinedTable, ...]
    where: str | None
    groups: tuple[tuple[str, str], ...]
    aggregates: tuple[Aggregate, ...]
    columns: tuple[tuple[str, str], ...]
    having: str | None = None
    order: tuple[tuple[str, bool], ...] = ()
    limit: int | None = None
    offset: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Return the question for JSON."""
        record = asdict(self)
        record["joins"] = [
            join | {"on": [list(pair) for pair in join["on"]]} for join in record["joins"]
        ]
        for name in ("groups", "columns", "order"):
            record[name] = [list(pair) for pair in record[name]]
        return record | {"aggregates": list(record["aggregates"])}


def sqlglot_module() -> Any:
    """Return the ``sqlglot`` module, or say how to install it."""
    try:
        import sqlglot
    except ImportError:
        raise MissingExtra("sqlglot", "analytics") from None
    return sqlglot


def refused(clause: str, why: str) -> InvalidInput:
    """Return the error of a question that is not answered; it names the clause."""
    return InvalidInput("query", clause, why)


def parse_question(text: Any) -> SqlQuestion:
    """Return what a SELECT asks; refuse everything that is not understood."""
    if not isinstance(text, str) or not text.strip():
        raise InvalidInput("query", None, "give a SELECT as text")
    if len(text) > _LONGEST:
        raise refused(f"{len(text)} characters", f"give at most {_LONGEST}")
    return _Reader(_parsed(text), text).question()


def parsed_expression(text: str) -> Any:
    """Return the tree of an expression that :func:`parse_question` wrote."""
    return sqlglot_module().parse_one(text, read=DIALECT)


def sql_text(node: Any) -> str:
    """Return a tree as text; capitals of names that are not quoted do not count."""
    return str(node.sql(dialect=DIALECT, comments=False))


def spelled_alike(text: str) -> str:
    """Return an expression with all names in quotes: they are matched in the same way without."""
    return str(parsed_expression(text).sql(dialect=DIALECT, comments=False, identify=True))


def normal_form(question: SqlQuestion) -> dict[str, Any]:
    """Return what a SELECT asks without its spelling: spaces, quotes, capitals of keywords.

    Names keep their capitals: a table may have two columns that differ in nothing else.
    """

    def alike(text: str | None) -> str | None:
        return None if text is None else spelled_alike(text)

    record = question.as_dict()
    del record["sql"]
    for name in ("where", "having"):
        record[name] = alike(record[name])
    for name in ("groups", "columns"):
        record[name] = [[known, alike(text)] for known, text in record[name]]
    record["order"] = [[alike(text), falls] for text, falls in record["order"]]
    for join in record["joins"]:
        join["on"] = [list(map(alike, pair)) for pair in join["on"]]
    for aggregate in record["aggregates"]:
        aggregate |= {name: alike(aggregate[name]) for name in ("value", "where")}
    return record


def number_of(node: Any) -> float:
    """Return the number that a literal writes; refuse one that is none, such as 1e."""
    try:
        return float(node.this)
    except ValueError:
        raise refused(sql_text(node), "this is no number") from None


def column_names(text: str) -> list[str]:
    """Return the names of all columns that a statement mentions."""
    tree = _parsed(text)
    exp = sqlglot_module().exp
    return list(dict.fromkeys(node.name for node in tree.find_all(exp.Column) if node.name))


@contextmanager
def _silent() -> Iterator[None]:
    """Keep the parser's warnings, which may quote the query, out of the log."""
    logger = logging.getLogger("sqlglot")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def _parsed(text: str) -> Any:
    """The tree of one SELECT."""
    sqlglot = sqlglot_module()
    problem = "it is nested too deeply"
    try:
        with _silent():
            statements = [tree for tree in sqlglot.parse(text, read=DIALECT) if tree is not None]
    except RecursionError:
        statements = None
    except Exception as error:
        details = getattr(error, "errors", None) or [{}]
        where = f" near {details[0].get('highlight')!r}" if details[0].get("highlight") else ""
        problem, statements = f"it cannot be parsed{where}: give one SELECT", None
    if statements is None:
        raise refused(text, problem)
    if len(statements) != 1:
        raise refused(f"{len(statements)} statements", "give one SELECT")
    tree = statements[0]
    if not isinstance(tree, sqlglot.exp.Select):
        kind = type(tree).__name__.upper()
        raise refused(kind, "only a single SELECT is answered: no UNION, no statement that writes")
    for count, _ in enumerate(tree.walk()):
        if count >= _MOST_NODES:
            raise refused(text, f"it has more than {_MOST_NODES} parts: ask in several questions")
    return tree


class _Reader:
    """Reads one SELECT; aggregates are numbered as they are met."""

    def __init__(self, tree: Any, text: str) -> None:
        self._exp = sqlglot_module().exp
        self._tree, self._text = tree, text
        self._aggregates: dict[Aggregate, int] = {}
        self._groups: list[tuple[str, Any]] = []
        self._items: list[tuple[str, Any]] = []

    def question(self) -> SqlQuestion:
        """Return the question."""
        exp, args = self._exp, self._tree.args
        self._check_clauses()
        self._check_functions()
        if args.get("from_") is None:
            raise refused("SELECT without FROM", "name the private table: FROM table")
        table, alias = self._table(args["from_"].this)
        joins = tuple(self._join(join) for join in args.get("joins") or ())
        self._items = [self._item(item) for item in self._tree.expressions]
        names = [name.lower() for name, _ in self._items]
        if len(set(names)) != len(names):
            raise refused(names[0], "two columns of the answer have the same name: use AS")
        self._groups = self._group_by(args.get("group"))
        columns = tuple((name, sql_text(self._released(node))) for name, node in self._items)
        having = args.get("having")
        order = tuple(
            self._ordered(item) for item in (args["order"].expressions if args.get("order") else ())
        )
        if not self._aggregates and not (having or order):
            raise refused(
                "SELECT without an aggregate", "rows are private: ask for COUNT, SUM, AVG"
            )
        limit, offset = self._number("limit"), self._number("offset")
        if limit is not None and not order:
            raise refused(
                "LIMIT", "without ORDER BY it would choose answers at random: add ORDER BY"
            )
        where = args.get("where")
        after = None if having is None else sql_text(self._released(having.this))
        if not self._aggregates:
            raise refused(
                "SELECT without an aggregate", "rows are private: ask for COUNT, SUM, AVG"
            )
        if where is not None and where.find(exp.AggFunc):
            raise refused("WHERE", "conditions on aggregates belong to HAVING")
        return SqlQuestion(
            self._text.strip(),
            table,
            alias,
            joins,
            None if where is None else sql_text(where.this),
            tuple((name, sql_text(node)) for name, node in self._groups),
            tuple(self._aggregates),
            columns,
            after,
            order,
            limit,
            offset or 0,
        )

    def _check_clauses(self) -> None:
        """Refuse clauses that are not listed."""
        for name, value in self._tree.args.items():
            if value and name not in _CLAUSES:
                clause = _CLAUSE_NAMES.get(name, name.strip("_").upper())
                raise refused(clause, "this clause is not answered on private rows: leave it out")

    def _check_functions(self) -> None:
        """Refuse what must not touch private rows, by its name."""
        exp = self._exp
        reasons = {
            exp.Window: ("OVER", "window functions mix the rows of persons"),
            exp.Subquery: ("subquery", "subqueries on private rows are not answered"),
            exp.Select: ("subquery", "subqueries on private rows are not answered"),
            exp.Rand: ("RANDOM()", "functions of chance are not answered"),
            exp.Placeholder: ("?", "write the value into the query"),
            exp.Parameter: ("$", "write the value into the query"),
        }
        for name in ("CurrentDate", "CurrentTime", "CurrentTimestamp", "CurrentDatetime"):
            if hasattr(exp, name):
                reasons[getattr(exp, name)] = (
                    name,
                    "give a date: the answer must not change by itself",
                )
        for node in self._tree.walk():
            reason = reasons.get(type(node))
            if reason is not None and node is not self._tree:
                raise refused(*reason)

    def _table(self, node: Any) -> tuple[str, str]:
        """The name of a table and its alias."""
        exp = self._exp
        if not isinstance(node, exp.Table) or not isinstance(node.this, exp.Identifier):
            raise refused(sql_text(node), "FROM and JOIN take names of tables")
        extra = [
            name
            for name, value in node.args.items()
            if value and name not in ("this", "alias", "db")
        ]
        if extra:
            raise refused(_CLAUSE_NAMES.get(extra[0], extra[0].upper()), "give the name of a table")
        if node.alias and node.args["alias"].args.get("columns"):
            raise refused("aliases of columns", "name the table only")
        name = f"{node.db}.{node.name}" if node.db else node.name
        return name, node.alias or node.name

    def _join(self, node: Any) -> JoinedTable:
        """A join on equal columns."""
        exp = self._exp
        side, kind = (node.side or "").upper(), (node.kind or "").upper()
        words = f"{side} {kind} JOIN".strip()
        known = {"this", "side", "kind", "on", "using", "expressions"}
        extra = [name for name, value in node.args.items() if value and name not in known]
        if side not in ("", "LEFT") or kind not in ("", "INNER", "OUTER") or extra:
            raise refused(words, "only JOIN … ON and LEFT JOIN … ON are answered")
        name, alias = self._table(node.this)
        how = "left" if side == "LEFT" else "inner"
        if node.args.get("using"):
            names = [column.name for column in node.args["using"]]
            quoted = [sql_text(exp.column(exp.to_identifier(name, quoted=True))) for name in names]
            there = [
                sql_text(
                    exp.column(
                        exp.to_identifier(name, quoted=True),
                        table=exp.to_identifier(alias, quoted=True),
                    )
                )
                for name in names
            ]
            return JoinedTable(name, alias, how, tuple(zip(quoted, there, strict=True)))
        on = node.args.get("on")
        if on is None:
            raise refused(words, "say on which columns: JOIN … ON a.x = b.y")
        pairs = []
        for part in on.flatten() if isinstance(on, exp.And) else [on]:
            part = part.unnest()
            if not isinstance(part, exp.EQ):
                raise refused(sql_text(part), "a JOIN compares columns by =, joined by AND")
            pairs.append((sql_text(part.this), sql_text(part.expression)))
        return JoinedTable(name, alias, how, tuple(pairs))

    def _item(self, node: Any) -> tuple[str, Any]:
        """The name and the expression of a column of the answer."""
        exp = self._exp
        if isinstance(node, exp.Star) or (
            node.find(exp.Star) is not None and node.find(exp.Count) is None
        ):
            raise refused("SELECT *", "rows are private: ask for COUNT(*), SUM(…), AVG(…)")
        if isinstance(node, exp.Alias):
            return node.alias, node.this
        return node.name if isinstance(node, exp.Column) else sql_text(node).lower(), node

    def _group_by(self, clause: Any) -> list[tuple[str, Any]]:
        """The groups: expressions, aliases or numbers of columns."""
        exp = self._exp
        if clause is None:
            return []
        extra = [
            name
            for name, value in clause.args.items()
            if value and name not in ("expressions", "all")
        ]
        if extra:
            raise refused(f"GROUP BY {extra[0].upper()}", "give a list of expressions")
        if clause.args.get("all"):
            return [(name, node) for name, node in self._items if not self._is_aggregate(node)]
        groups: list[tuple[str, Any]] = []
        for node in clause.expressions:
            node = self._meant(node.unnest(), "GROUP BY")
            if self._is_aggregate(node):
                raise refused("GROUP BY", "an aggregate is no group")
            if isinstance(node, exp.Literal):
                raise refused("GROUP BY", "a constant is no group")
            if isinstance(node, (exp.Rollup, exp.Cube, exp.GroupingSets, exp.Tuple)):
                raise refused(f"GROUP BY {sql_text(node)}", "give a list of expressions")
            named = [name for name, item in self._items if _same(item, node)]
            name = (
                named[0]
                if named
                else node.name
                if isinstance(node, exp.Column)
                else sql_text(node).lower()
            )
            if not any(_same(other, node) for _, other in groups):
                groups.append((name, node))
        return groups

    def _meant(self, node: Any, clause: str) -> Any:
        """The expression that an alias or a number of a column means."""
        exp = self._exp
        if isinstance(node, exp.Literal) and not node.is_string:
            index = int(node.this) if str(node.this).isdigit() else 0
            if not 1 <= index <= len(self._items):
                raise refused(f"{clause} {node.this}", f"there are {len(self._items)} columns")
            return self._items[index - 1][1]
        if isinstance(node, exp.Column) and not node.table:
            for name, item in self._items:
                if name.lower() == node.name.lower():
                    return item
        return node

    def _is_aggregate(self, node: Any) -> bool:
        return node.find(self._exp.AggFunc) is not None

    def _ordered(self, node: Any) -> tuple[str, bool]:
        """What the answers are ordered by, and whether it falls."""
        extra = [
            name
            for name, value in node.args.items()
            if value and name not in ("this", "desc", "nulls_first")
        ]
        if extra:
            raise refused(f"ORDER BY … {extra[0].upper()}", "give expressions, with ASC or DESC")
        return sql_text(self._released(self._meant(node.this, "ORDER BY"))), bool(
            node.args.get("desc")
        )

    def _number(self, clause: str) -> int | None:
        """The number of a LIMIT or an OFFSET."""
        node = self._tree.args.get(clause)
        if node is None:
            return None
        number = node.args.get("expression")
        others = [name for name, value in node.args.items() if value and name != "expression"]
        if others or not isinstance(number, self._exp.Literal) or not str(number.this).isdigit():
            raise refused(clause.upper(), "give a whole number")
        return int(number.this)

    def _released(self, node: Any) -> Any:
        """An expression with marks for groups and aggregates; nothing else may stay in it."""
        exp = self._exp
        for index, (_, group) in enumerate(self._groups):
            if _same(group, node):
                return exp.column(f"{GROUP_MARK}{index}")
        aggregate = self._aggregate(node)
        if aggregate is not None:
            index = self._aggregates.setdefault(aggregate, len(self._aggregates))
            return exp.column(f"{VALUE_MARK}{index}")
        if isinstance(node, exp.Column):
            meant = self._meant(node, "HAVING")
            if meant is node:
                raise refused(sql_text(node), "it is neither in GROUP BY nor inside an aggregate")
            return self._released(meant)
        copy = node.copy()
        for name, value in node.args.items():
            if isinstance(value, exp.Expression):
                copy.set(name, self._released(value))
            elif isinstance(value, list):
                copy.set(
                    name,
                    [
                        self._released(part) if isinstance(part, exp.Expression) else part
                        for part in value
                    ],
                )
        from expost.analytics.sql_released import check_released

        check_released(node)
        return copy

    def _aggregate(self, node: Any) -> Aggregate | None:
        """The aggregate that a node is; None if it is none."""
        exp = self._exp
        if isinstance(node, exp.Filter):
            inner = self._aggregate(node.this)
            if inner is None:
                raise refused("FILTER", "it belongs to an aggregate")
            condition = node.expression.this
            return self._made(inner.function, inner.value, condition, inner.at, inner.where)
        if isinstance(node, exp.WithinGroup):
            return self._within_group(node)
        maker = _FUNCTIONS.get(type(node).__name__)
        if maker is None:
            if isinstance(node, exp.AggFunc):
                answered = (
                    "this aggregate is not answered; choose COUNT, SUM, AVG, VAR, STDDEV, MEDIAN, "
                    "QUANTILE, MIN or MAX"
                )
                raise refused(type(node).__name__.upper(), answered)
            return None
        return maker(self, node)

    def _made(
        self,
        function: str,
        value: str | None,
        where: Any = None,
        at: float | None = None,
        also: str | None = None,
    ) -> Aggregate:
        """An aggregate; its parts must not have aggregates themselves."""
        condition = None
        if where is not None:
            if self._is_aggregate(where):
                raise refused("FILTER", "an aggregate inside another one is not answered")
            condition = sql_text(where)
        if also is not None:
            condition = also if condition is None else f"({also}) AND ({condition})"
        return Aggregate(function, value, condition, at)

    def _argument(self, node: Any) -> str:
        """The expression inside an aggregate."""
        exp, inner = self._exp, node.this
        if isinstance(inner, exp.Distinct):
            raise refused(f"{type(node).__name__.upper()}(DISTINCT …)", "use COUNT(DISTINCT …)")
        extra = [
            name
            for name, value in node.args.items()
            if value and name not in ("this", "big_int", "expression", "quantile")
        ]
        if inner is None or extra:
            raise refused(type(node).__name__.upper(), "give one expression inside the brackets")
        if self._is_aggregate(inner):
            raise refused(
                type(node).__name__.upper(), "an aggregate inside another one is not answered"
            )
        return sql_text(inner)

    def _count(self, node: Any) -> Aggregate:
        exp, inner = self._exp, node.this
        if node.expressions:
            raise refused("COUNT", "give one expression inside the brackets")
        if isinstance(inner, exp.Star):
            return Aggregate("rows")
        if isinstance(inner, exp.Distinct):
            if len(inner.expressions) != 1:
                raise refused("COUNT(DISTINCT …)", "give one expression")
            if self._is_aggregate(inner):
                raise refused("COUNT", "an aggregate inside another one is not answered")
            return Aggregate("distinct", sql_text(inner.expressions[0]))
        return self._made(
            "rows",
            None,
            exp.Not(
                this=exp.Is(
                    this=exp.Paren(this=parsed_expression(self._argument(node))),
                    expression=exp.Null(),
                )
            ),
        )

    def _count_if(self, node: Any) -> Aggregate:
        return self._made("rows", None, parsed_expression(self._argument(node)))

    def _quantile(self, node: Any) -> Aggregate:
        rank = node.args.get("quantile") or node.args.get("expression")
        return Aggregate("quantile", self._argument(node), None, self._share(rank))

    def _within_group(self, node: Any) -> Aggregate:
        exp, inner = self._exp, node.this
        inside = node.expression
        order: list[Any] = inside.expressions if isinstance(inside, exp.Order) else []
        if type(inner).__name__ not in ("PercentileCont", "PercentileDisc") or len(order) != 1:
            raise refused("WITHIN GROUP", "give PERCENTILE_CONT(0.5) WITHIN GROUP (ORDER BY x)")
        share = self._share(inner.this)
        if self._is_aggregate(order[0]):
            raise refused("WITHIN GROUP", "an aggregate inside another one is not answered")
        at = round(1 - share, 12) if order[0].args.get("desc") else share
        return Aggregate("quantile", sql_text(order[0].this), None, at)

    def _share(self, node: Any) -> float:
        """The rank of a quantile: a number between 0 and 1."""
        try:
            share = float(node.this) if isinstance(node, self._exp.Literal) else -1.0
        except ValueError:
            share = -1.0
        if not 0 <= share <= 1:
            raise refused("PERCENTILE", "give one rank between 0 and 1, as a number")
        if 0 < min(share, 1 - share) < 1e-6:
            raise refused("PERCENTILE", "give a rank from 0.000001 to 0.999999, or MIN and MAX")
        return share


def _same(one: Any, other: Any) -> bool:
    """Whether two expressions are the same; names of tables may be left out."""
    if type(one) is type(other) and type(one).__name__ == "Column":
        tables = one.table.lower(), other.table.lower()
        return one.name.lower() == other.name.lower() and (
            not all(tables) or tables[0] == tables[1]
        )
    return bool(one == other) or (
        sql_text(one).lower() == sql_text(other).lower()
        and not one.find(sqlglot_module().exp.Literal)
    )


def _simple(function: str, at: float | None = None) -> Callable[[_Reader, Any], Aggregate]:
    """A reader of an aggregate with one argument."""
    return lambda reader, node: Aggregate(function, reader._argument(node), None, at)


_FUNCTIONS: Mapping[str, Callable[[_Reader, Any], Aggregate]] = {
    "Count": _Reader._count,
    "CountIf": _Reader._count_if,
    "Sum": _simple("sum"),
    "Avg": _simple("avg"),
    "Variance": _simple("var"),
    "VariancePop": _simple("var"),
    "Stddev": _simple("stddev"),
    "StddevPop": _simple("stddev"),
    "StddevSamp": _simple("stddev"),
    "Median": _simple("quantile", 0.5),
    "Min": _simple("quantile", 0.0),
    "Max": _simple("quantile", 1.0),
    "PercentileCont": _Reader._quantile,
    "PercentileDisc": _Reader._quantile,
    "Quantile": _Reader._quantile,
    "ApproxQuantile": _Reader._quantile,
}
