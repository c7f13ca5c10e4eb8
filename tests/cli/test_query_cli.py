"""``expost query`` on the command line: answers, files, plans, refusals."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import expost
from expost.budget.ledger import Ledger
from expost.cli.main import app
from expost.errors import InvalidInput

SQL = "SELECT g, COUNT(*) AS n, AVG(x) AS m FROM rows WHERE g IN ('a', 'b') GROUP BY g ORDER BY g"
OPTIONS = ["--user", "u", "--epsilon", "50", "--within", "0.5", "--bounds", "x=0:10"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    lines = [f"p{n},{'ab'[n % 2]},{n % 10}" for n in range(400)]
    (tmp_path / "rows.csv").write_text("u,g,x\n" + "\n".join(lines) + "\n")
    (tmp_path / "keys.txt").write_text("a\nb\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["query", *arguments])


def test_answers_files_and_a_ledger(folder):
    ledger = Ledger.create(folder / "ledger.db", expost.PureBudget(100))
    more = ["--out", "answer.csv", "--certificate", "c.json", "--ledger", "ledger.db", "--json"]
    more += ["--confidence", "0.99999"]  # of an error below a half
    done = run(SQL, "--source", "rows.csv", *OPTIONS, *more)
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert [row["g"] for row in document["rows"]] == ["a", "b"]
    assert all(abs(row["n"] - 200) < 100 for row in document["rows"])
    header = (folder / "answer.csv").read_text().splitlines()[0]
    assert header == "g,n,n_low,n_high,n_answered,m,m_low,m_high,m_answered"
    certificate = json.loads((folder / "c.json").read_text())
    assert expost.verify_certificate(certificate, ledger=folder / "ledger.db") == []
    assert [entry.action for entry in ledger.entries()].count("settle") == 1
    shown = CliRunner().invoke(app, ["certificate", "show", "c.json"])
    assert "COUNT(*)" in shown.output


def test_the_screen_and_keys_by_column(folder):
    sql = "SELECT g, COUNT(DISTINCT u) AS people FROM rows GROUP BY g"
    done = run(sql, "--source", "rows.csv", "--keys", "g=keys.txt", *OPTIONS[:6])
    assert done.exit_code == 0, done.output
    assert re.search(r"people.*90% interval", done.output)
    assert re.search(r"ε = \d.*Meaning: someone undecided", done.output, re.DOTALL)


def test_a_plan_reads_nothing_and_a_query_comes_from_a_file(folder):
    (folder / "question.sql").write_text(SQL)
    done = run("@question.sql", "--source", "rows.csv", *OPTIONS, "--plan", "--json")
    assert done.exit_code == 0, done.output
    assert [part["of"] for part in json.loads(done.stdout)["parts"]] == ["COUNT(*)", "AVG(x)"]
    assert "AVG(x)" in run(SQL, "--source", "rows.csv", *OPTIONS, "--plan").output


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([SQL.replace("ORDER BY g", "LIMIT 1"), *OPTIONS], "LIMIT"),
        ([SQL.replace("AVG(x)", "AVG(xx)"), *OPTIONS], "did you mean 'x'?"),
        ([SQL, *OPTIONS[:6]], "bounds"),
        ([SQL, *OPTIONS[:6], "--bounds", "x"], "COLUMN=LOW:HIGH"),
        ([SQL, *OPTIONS, "--out", "answer.doc"], "ending in"),
        ([SQL, *OPTIONS, "--budget", "b"], "ledger"),
        (["@nothing.sql", *OPTIONS], "no such file"),
    ],
)
def test_refusals(folder, arguments, named):
    done = run(*arguments, "--source", "rows.csv")
    assert isinstance(done.exception, InvalidInput)
    assert named in str(done.exception)
    assert not (folder / "answer.doc").exists()


def test_the_title_names_the_errors_that_were_asked_for(folder):
    ask = ["--source", "rows.csv", "--keys", "keys.txt", "--user", "u", "--epsilon", "50"]
    ask += ["--bounds", "x=0:10"]
    alone = run("SELECT g, MEDIAN(x) AS m FROM rows GROUP BY g", *ask)
    assert "2 of 2 rows answered within 0.02 of the rank" in " ".join(alone.output.split())
    both = run("SELECT g, COUNT(*) AS n, MEDIAN(x) AS m FROM rows GROUP BY g", *ask)
    assert "rows answered within 10% and 0.02 of the rank" in " ".join(both.output.split())
    none = run("SELECT g, COUNT(*) AS n FROM rows GROUP BY g HAVING n > 9000", *ask[:-2])
    assert "There is no row: HAVING keeps none." in none.output


def test_an_average_of_few_rows_of_everybody_is_no_reason_to_warn(folder):
    """Nine of ten rows of a person are not used, and the mean is the same."""
    lines = [f"p{n // 10},{n % 10}" for n in range(9000)]
    (folder / "often.csv").write_text("u,x\n" + "\n".join(lines) + "\n")
    ask = ["--source", "often.csv", "--user", "u", "--epsilon", "50", "--bounds", "x=0:10"]
    done = run("SELECT AVG(x) AS m FROM often", *ask)
    assert done.exit_code == 0, done.output
    assert "Capping" not in done.output
    moved = [f"p{n},1" for n in range(900)] + ["p7,9"] * 5 + [f"p{n % 90},9" for n in range(5000)]
    (folder / "often.csv").write_text("u,x\n" + "\n".join(moved) + "\n")
    done = run("SELECT AVG(x) AS m FROM often", *ask)
    assert "Capping" in done.output
