"""No file for a spreadsheet holds a formula, whatever groups, columns and people are called."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from expost import PureDP
from expost.budget.ledger import Ledger
from expost.files import spreadsheet_cell
from tests.fuzz.command import expost

NAMES = ("=1+1", "+A1", "-A1", "@SUM(A1)", "\tx", "-3", "Bern")
SQL = 'SELECT "=group", COUNT(*) AS n FROM visits GROUP BY "=group"'
SAFE = [f"'{name}" for name in NAMES[:5]] + ["-3", "Bern"]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "visits.csv"
    with path.open("w", newline="", encoding="utf-8") as stream:
        rows = csv.writer(stream)
        rows.writerow(["person", "=group", "amount"])
        people = [(name, number) for name in NAMES for number in range(200)]
        rows.writerows([f"{name} {number}", name, number % 50] for name, number in people)
    (tmp_path / "keys.txt").write_text("".join(f"{name}\n" for name in NAMES))
    return path


def test_cells() -> None:
    assert [spreadsheet_cell(name) for name in NAMES] == SAFE
    numbers = ("-1", "+2.5", "-.5", "-1e-9", 3, -3.5, None)
    assert [spreadsheet_cell(number) for number in numbers] == list(numbers)


@pytest.mark.parametrize(
    "words",
    [
        ["count", "--by", "=group", "--within", "0.3"],
        ["quantile", "--column", "amount", "--at", "0.5", "--by", "=group", "--bounds", "0:50"],
        ["query", SQL, "--within", "0.3"],
    ],
    ids=lambda words: words[0],
)
def test_files_of_answers(table: Path, words: list[str]) -> None:
    given = [words[0], str(table), *words[1:], "--keys", str(table.parent / "keys.txt")]
    if words[0] == "query":
        given = [*words, "--source", str(table), "--keys", str(table.parent / "keys.txt")]
    out = table.parent / "answers.csv"
    done = expost(*given, "--user", "person", "--epsilon", "20", "--out", str(out))
    assert done.code == 0, done.text
    with out.open(newline="", encoding="utf-8") as stream:
        header, *rows = csv.reader(stream)
    assert header[0] == "'=group"
    assert {row[0] for row in rows} <= set(SAFE)
    assert len({row[0] for row in rows}) >= 5


def test_the_export_of_a_ledger(tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path / "ledger.db", PureDP(1))
    ledger.reserve(PureDP(0.1), '=HYPERLINK("http://x")')
    done = expost("ledger", "export", str(tmp_path / "ledger.db"), "--csv")
    assert done.code == 0, done.text
    assert "\"'=HYPERLINK(" in done.out
