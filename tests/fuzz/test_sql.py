"""2,000 SQL texts: each is understood or refused with a sentence; a refusal charges nothing.

The texts are the same every time: clauses put together at random, then damaged at random.
"""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

import expost
from expost import InvalidInput, Ledger
from expost.analytics.sql_parser import parse_question
from expost.analytics.sql_question import compile_question

COUNT, PARTS = 2000, 8
ROWS = pa.table({"u": ["p"], "g": ["a"], "x": [1.0], "n": [2], "b": [True], "d": ["2024-01-01"]})
PUBLIC = pa.table({"id": [1, 2], "kind": ["a", "b"]})
ATOMS = [
    "x",
    "n",
    "g",
    "b",
    "d",
    "u",
    "t.x",
    "p.kind",
    "1",
    "0",
    "-2.5",
    "'a'",
    "''",
    "NULL",
    "TRUE",
]
ATOMS += ["'2024-01-01'", "nope", '"x"', "1e40", "*", "?", "RANDOM()", "CURRENT_DATE", "(SELECT 1)"]
FUNCTIONS = [
    "ABS",
    "SQRT",
    "LN",
    "ROUND",
    "LOWER",
    "MONTH",
    "LENGTH",
    "COALESCE",
    "GREATEST",
    "FOO",
]
SIGNS = ["+", "-", "*", "/", "%", "=", "<", ">=", "<>", "AND", "OR", "||", "LIKE", "IS"]
AGGREGATES = ["COUNT", "SUM", "AVG", "STDDEV", "MEDIAN", "MAX", "STRING_AGG", "COUNT_IF", "VAR_POP"]
RANKS = [
    "0.5",
    "0",
    "1",
    "0.25",
    "1e-9",
    "-1",
    "2",
    "NULL",
    "x",
    "'0.5'",
    "[0.1, 0.2]",
    "1e",
    "0.5, 3",
]
TAILS = ["HAVING COUNT(*) > 1", "ORDER BY 1", "ORDER BY 2 DESC LIMIT 3", "LIMIT 1", "GROUP BY ALL"]
TAILS += ["QUALIFY x", "UNION SELECT 1", "OFFSET 2", "ORDER BY v, COUNT(*)", "USING SAMPLE 3", ";"]
FROMS = ["t", "t AS o", "t JOIN p ON x = id", "t LEFT JOIN p ON p.id = t.n", "t, p", "t JOIN t s"]
FROMS += [
    "t JOIN p USING (id)",
    "(SELECT * FROM t)",
    "p",
    "nowhere",
    "t CROSS JOIN p",
    "read_csv('y')",
]
OPTIONS: dict[str, Any] = {"source": {"t": ROWS, "p": PUBLIC}, "user": "u", "public": ["p"]}
OPTIONS |= {"bounds": {"x": (0, 1), "n": (0, 5)}, "epsilon": 0.5, "delta": 1e-6}
LETTERS = "()'\",.;*-+/%<>=\\\x00\n\té日ab12"


def sensible(dice: random.Random, depth: int = 0) -> str:
    """A number of a row."""
    if depth > 2 or dice.random() < 0.3:
        return dice.choice(["x", "n", "t.x", "2", "0.5"])
    one, other = (sensible(dice, depth + 1) for _ in range(2))
    return dice.choice(
        [
            f"({one} {dice.choice('+-*/')} {other})",
            f"{dice.choice(['ABS', 'SQRT', 'LN', 'FLOOR', 'ROUND'])}({one})",
            f"CASE WHEN {one} > {other} THEN {one} ELSE 0 END",
            f"LEAST(GREATEST({one}, 0), 9)",
        ]
    )


def expression(dice: random.Random, depth: int = 0) -> str:
    if depth > 3 or dice.random() < 0.35:
        return dice.choice(ATOMS)
    inner = [expression(dice, depth + 1) for _ in range(3)]
    return dice.choice(
        [
            f"{inner[0]} {dice.choice(SIGNS)} {inner[1]}",
            f"{dice.choice(FUNCTIONS)}({inner[0]})",
            f"({inner[0]})",
            f"CASE WHEN {inner[0]} THEN {inner[1]} ELSE {inner[2]} END",
            f"CAST({inner[0]} AS {dice.choice(['INT', 'DOUBLE', 'TEXT', 'DATE', 'BLOB'])})",
            f"{inner[0]} IN ({inner[1]}, {inner[2]})",
            f"{inner[0]} BETWEEN {inner[1]} AND {inner[2]}",
            f"{inner[0]} IS NULL",
            f"EXTRACT({dice.choice(['YEAR', 'MONTH', 'EPOCH', 'DOW'])} FROM {inner[0]})",
        ]
    )


def ranked(dice: random.Random, inside: str) -> str:
    """A quantile in one of its forms."""
    rank = dice.choice(RANKS)
    return dice.choice(
        [
            f"{dice.choice(['QUANTILE', 'QUANTILE_DISC', 'PERCENTILE_CONT'])}({inside}, {rank})",
            f"PERCENTILE_DISC({rank}) WITHIN GROUP (ORDER BY {inside}{dice.choice(['', ' DESC'])})",
            f"MIN(x) FILTER (WHERE {inside} > {rank})",
            f"MAX(x) - QUANTILE(n, {rank})",
        ]
    )


def statement(dice: random.Random) -> str:
    if dice.random() < 0.2:
        return (
            f"SELECT g, COUNT(*) AS n, {dice.choice(['SUM', 'AVG', 'MEDIAN'])}(LEAST(GREATEST("
            f"{sensible(dice)}, 0), 9)) AS s FROM t WHERE {sensible(dice)} > {sensible(dice)} "
            "GROUP BY g HAVING s > 1 ORDER BY n DESC LIMIT 3"
        )
    inside = dice.choice(["*", "DISTINCT u", "x", expression(dice)])
    text = f"SELECT {dice.choice(AGGREGATES)}({inside}) AS v"
    if dice.random() < 0.2:
        text = f"SELECT {ranked(dice, inside)} AS v"
    group = expression(dice) if dice.random() < 0.5 else None
    text += f", {group} AS w" if group else ""
    text += f" FROM {dice.choice(FROMS) if dice.random() < 0.5 else 't'}"
    text += f" WHERE {expression(dice)}" if dice.random() < 0.5 else ""
    text += f" GROUP BY {dice.choice([group, 'w', '2'])}" if group else ""
    text += f" {dice.choice(TAILS)}" if dice.random() < 0.4 else ""
    for _ in range(dice.choice([0, 0, 0, 1, 3])):
        place = dice.randrange(len(text) + 1)
        text = text[:place] + dice.choice(LETTERS) + text[place + dice.randrange(2) :]
    return text


def understood(text: str) -> bool:
    """Whether a text is answered; any error but a refusal leaves."""
    try:
        asked = {
            "source": {"t": ROWS, "p": PUBLIC},
            "user": "u",
            "public": ["p"],
            "bounds": {"x": (0, 1), "n": (0, 5)},
            "private_keys": " GROUP BY " in text,
        }
        compile_question(parse_question(text), asked)
    except InvalidInput:
        return False
    return True


@pytest.mark.parametrize("part", range(PARTS))
def test_every_text_is_understood_or_refused(part: int, tmp_path: Any) -> None:
    dice = random.Random(part)
    texts = [statement(dice) for _ in range(COUNT // PARTS)]
    verdicts = [understood(text) for text in texts]
    assert 5 < sum(verdicts) < len(texts) - 50  # both kinds are met
    ledger = Ledger.create(tmp_path / "ledger.db", expost.ApproxBudget(1, 1e-5))
    before = [entry.action for entry in ledger.entries()]
    refused = [text for text, fine in zip(texts, verdicts, strict=True) if not fine]
    for text in refused[:15]:
        with pytest.raises(InvalidInput):
            expost.query(text, **OPTIONS, private_keys=" GROUP BY " in text, ledger=ledger)
    assert [entry.action for entry in ledger.entries()] == before
