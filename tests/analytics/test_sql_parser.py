"""SQL that is understood, and SQL that is refused with the name of the clause."""

from __future__ import annotations

import json

import pytest

from expost.analytics.sql_parser import Aggregate, JoinedTable, parse_question
from expost.errors import InvalidInput


def test_a_question_is_read_clause_by_clause():
    question = parse_question(
        "SELECT o.region, EXTRACT(MONTH FROM day) AS month, COUNT(*) AS n, "
        "SUM(amount) FILTER (WHERE paid) / COUNT(*) AS each_one FROM orders AS o "
        "LEFT JOIN products p ON o.product = p.id WHERE amount > 0 AND region <> 'x' "
        "GROUP BY o.region, 2 HAVING n > 10 ORDER BY n DESC, region LIMIT 5 OFFSET 1"
    )
    assert (question.table, question.alias) == ("orders", "o")
    assert question.joins == (JoinedTable("products", "p", "left", (("o.product", "p.id"),)),)
    assert question.groups == (("region", "o.region"), ("month", "EXTRACT(MONTH FROM day)"))
    assert question.aggregates == (Aggregate("rows"), Aggregate("sum", "amount", "paid"))
    assert question.columns == (
        ("region", "expost_group_0"),
        ("month", "expost_group_1"),
        ("n", "expost_value_0"),
        ("each_one", "expost_value_1 / expost_value_0"),
    )
    assert question.having == "expost_value_0 > 10"
    assert question.order == (("expost_value_0", True), ("expost_group_0", False))
    assert (question.limit, question.offset) == (5, 1)
    json.dumps(question.as_dict())


@pytest.mark.parametrize(
    ("text", "aggregate"),
    [
        ("COUNT(*)", Aggregate("rows")),
        ("COUNT(x)", Aggregate("rows", None, "NOT (x) IS NULL")),
        ("COUNT_IF(x > 1)", Aggregate("rows", None, "x > 1")),
        ("COUNT(DISTINCT u)", Aggregate("distinct", "u")),
        ("AVG(x + 1)", Aggregate("avg", "x + 1")),
        ("STDDEV(x)", Aggregate("stddev", "x")),
        ("VAR_POP(x)", Aggregate("var", "x")),
        ("MEDIAN(x)", Aggregate("quantile", "x", None, 0.5)),
        ("MAX(x)", Aggregate("quantile", "x", None, 1.0)),
        ("QUANTILE_CONT(x, 0.9)", Aggregate("quantile", "x", None, 0.9)),
        (
            "PERCENTILE_CONT(0.25) WITHIN GROUP (ORDER BY x)",
            Aggregate("quantile", "x", None, 0.25),
        ),
        (
            "COUNT(x) FILTER (WHERE y)",
            Aggregate("rows", None, "(NOT (x) IS NULL) AND (y)"),
        ),
    ],
)
def test_aggregates(text, aggregate):
    assert parse_question(f"SELECT {text} FROM t").aggregates == (aggregate,)


def test_equal_aggregates_are_measured_once():
    question = parse_question("SELECT COUNT(*), COUNT(*) * 2 AS twice FROM t HAVING COUNT(*) > 1")
    assert question.aggregates == (Aggregate("rows"),)


REFUSED = {
    "SELECT * FROM t": "SELECT *",
    "SELECT a FROM t": "neither in GROUP BY",
    "SELECT a FROM t GROUP BY a": "without an aggregate",
    "SELECT DISTINCT a, COUNT(*) FROM t GROUP BY a": "DISTINCT",
    "SELECT COUNT(*) FROM t LIMIT 3": "LIMIT",
    "SELECT COUNT(*) FROM t ORDER BY 1 LIMIT 3 + 4": "LIMIT",
    "SELECT SUM(x) OVER () FROM t": "OVER",
    "SELECT COUNT(*) FROM (SELECT * FROM t LIMIT 1)": "subquer",
    "SELECT COUNT(*) FROM t WHERE x IN (SELECT y FROM s)": "subquer",
    "SELECT COUNT(*) FROM t WHERE EXISTS (SELECT 1 FROM s)": "subquer",
    "WITH s AS (SELECT 1) SELECT COUNT(*) FROM t": "WITH",
    "SELECT COUNT(*) FROM t UNION SELECT COUNT(*) FROM t": "UNION",
    "SELECT COUNT(*) FROM t WHERE RANDOM() < 0.5": "RANDOM",
    "SELECT COUNT(*) FROM t WHERE d < CURRENT_DATE": "CurrentDate",
    "SELECT COUNT(*) FROM t USING SAMPLE 10": "SAMPLE",
    "SELECT COUNT(*) FROM t TABLESAMPLE (10 PERCENT)": "SAMPLE",
    "SELECT COUNT(*) FROM t QUALIFY ROW_NUMBER() OVER () = 1": "QUALIFY",
    "SELECT a, COUNT(*) FROM t GROUP BY ROLLUP (a)": "ROLLUP",
    "SELECT a, COUNT(*) FROM t GROUP BY GROUPING SETS ((a), ())": "GROUPING",
    "SELECT COUNT(*) FROM t, s": "JOIN",
    "SELECT COUNT(*) FROM t CROSS JOIN s": "CROSS",
    "SELECT COUNT(*) FROM t FULL JOIN s ON t.a = s.a": "FULL",
    "SELECT COUNT(*) FROM t RIGHT JOIN s ON t.a = s.a": "RIGHT",
    "SELECT COUNT(*) FROM t NATURAL JOIN s": "JOIN",
    "SELECT COUNT(*) FROM t JOIN s ON t.a < s.a": "=",
    "SELECT COUNT(*) FROM t JOIN s ON t.a = s.a OR t.b = s.b": "AND",
    "SELECT SUM(COUNT(*)) FROM t": "inside another",
    "SELECT COUNT(*) FROM t WHERE COUNT(*) > 1": "HAVING",
    "SELECT SUM(DISTINCT x) FROM t": "DISTINCT",
    "SELECT COUNT(DISTINCT x, y) FROM t": "one expression",
    "SELECT STRING_AGG(x) FROM t": "not answered",
    "SELECT ARG_MAX(x, y) FROM t": "not answered",
    "SELECT PERCENTILE_CONT(x) WITHIN GROUP (ORDER BY y) FROM t": "PERCENTILE",
    "SELECT COUNT(*) AS n, COUNT(*) AS n FROM t": "same name",
    "SELECT 1": "FROM",
    "SELECT COUNT(*) FROM t; SELECT 1": "2 statements",
    "DELETE FROM t": "DELETE",
    "SELECT COUNT(*) FROM read_csv('x')": "names of tables",
    "SELECT UPPER(a), COUNT(*) FROM t GROUP BY a": "released answers",
    "SELECT COUNT(*) FROM t GROUP BY 3": "there are 1 columns",
    "not sql at all (": "cannot be parsed",
    "": "give a SELECT",
    "SELECT " + "(" * 5000 + "1" + ")" * 5000: "",
    "SELECT COUNT(*) FROM t WHERE x = ?": "write the value",
    "SELECT COUNT(*) * 1e FROM t": "",
    "SELECT ROUND(COUNT(*), COUNT(*)) FROM t": "ROUND",
}


@pytest.mark.parametrize("text", REFUSED)
def test_everything_else_is_refused_with_its_clause(text):
    with pytest.raises(InvalidInput, match="(?i)" + REFUSED[text].replace("*", r"\*")):
        parse_question(text)
