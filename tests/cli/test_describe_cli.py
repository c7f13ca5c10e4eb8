"""``expost describe`` on the command line."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from expost.cli.main import app

pytest.importorskip("ibis")
run = CliRunner().invoke


@pytest.fixture
def table(tmp_path: Path) -> Path:
    generator = np.random.default_rng(0)
    ages, colours = generator.integers(18, 80, 3000), generator.integers(0, 2, 3000)
    lines = [
        f"{age},{'red' if colour else 'blue'}" for age, colour in zip(ages, colours, strict=True)
    ]
    path = tmp_path / "rows.csv"
    path.write_text("age,colour\n" + "\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_facts_are_shown_and_written(table: Path) -> None:
    out, plot = table.parent / "facts.toml", table.parent / "facts.png"
    files = ["--out", str(out), "--plot", str(plot)]
    result = run(app, ["describe", str(table), "--epsilon", "2", *files])
    assert result.exit_code == 0, result.output
    assert plot.stat().st_size > 1000
    assert "whole number" in result.output
    assert "colour" in result.output
    columns = tomllib.loads(out.read_text(encoding="utf-8"))["columns"]
    assert set(columns["colour"]["categories"]) == {"red", "blue"}
    again = run(app, ["describe", str(table), "--epsilon", "2", "--out", str(out)])
    assert again.exit_code != 0


@pytest.mark.parametrize(("epsilon", "rough"), [("2", False), ("0.01", True)])
def test_rough_facts_are_called_rough(table: Path, epsilon: str, rough: bool) -> None:
    """Catches bounds of noise that look like facts: by the noisy number of rows, never by rows."""
    result = run(app, ["describe", str(table), "--epsilon", epsilon])
    assert result.exit_code == 0
    assert ("These facts are rough" in result.output) == rough


def test_json_is_the_certificate_and_it_verifies(table: Path) -> None:
    result = run(app, ["describe", str(table), "--epsilon", "2", "--columns", "colour", "--json"])
    document = json.loads(result.stdout)
    assert list(document["facts"]["columns"]) == ["colour"]
    path = table.parent / "facts.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    assert run(app, ["certificate", "verify", str(path)]).exit_code == 0
    assert "colour" in run(app, ["certificate", str(path)]).output
    document["charged"]["epsilon"] = 0.1
    path.write_text(json.dumps(document), encoding="utf-8")
    assert run(app, ["certificate", "verify", str(path)]).exit_code == 1


def test_a_plan_reads_no_rows(table: Path) -> None:
    usual = run(app, ["describe", str(table), "--epsilon", "0.5", "--plan"])
    assert usual.exit_code == 0
    assert "nothing was charged" in usual.output
    table.write_text("age,colour\n", encoding="utf-8")
    assert run(app, ["describe", str(table), "--epsilon", "0.5", "--plan"]).output == usual.output


@pytest.mark.parametrize("line", ["", '"', "1,2,3", "\x00", "inf,nan", ",", "1e999,'", "\ud800,a"])
def test_no_line_changes_whether_it_succeeds(table: Path, line: str) -> None:
    with table.open("ab") as stream:
        stream.write((line + "\n").encode("utf-8", "surrogatepass"))
    result = run(app, ["describe", str(table), "--epsilon", "1", "--json"])
    assert result.exit_code == 0
    assert list(json.loads(result.stdout)["facts"]["columns"]) == ["age", "colour"]


@pytest.mark.parametrize(
    "options", [["--epsilon", "0"], ["--epsilon", "1", "--quantiles", "a"], ["--epsilon", "1",
    "--columns", "absent"], []]
)  # fmt: skip
def test_wrong_options_are_refused(table: Path, options: list[str]) -> None:
    assert run(app, ["describe", str(table), *options]).exit_code != 0


def test_tune_names_the_option_and_plans_what_it_buys(table: Path) -> None:
    job = ["tune", str(table), "--target", "colour", "--at-least", "0.5"]
    asked = run(app, job)
    assert "--learn-facts" in str(asked.exception)
    planned = run(app, [*job, "--learn-facts", "0.5", "--plan", "--json"])
    facts = json.loads(planned.stdout)["facts"]
    assert facts["names"] == ["age", "colour"]
    assert facts["max_epsilon"] == 4.0
    table.write_text(table.read_text(encoding="utf-8") + "x,y,z\n", encoding="utf-8")
    again = run(app, [*job, "--learn-facts", "0.5", "--plan", "--json"])
    assert json.loads(again.stdout)["facts"] == facts


def test_tune_buys_facts_and_shows_one_total(table: Path) -> None:
    job = ["tune", str(table), "--target", "colour", "--at-least", "0.4", "--learn-facts", "1"]
    out = table.parent / "job"
    result = run(app, [*job, "--out", str(out), "--json"])
    document = json.loads(result.stdout)
    assert document["facts"]["spent"]["epsilon"] == 1.0
    assert "Facts cost at most ε = 1.000 in addition." in result.stderr
    assert document["spent"]["epsilon"] > 1.0
    shown = run(app, ["certificate", str(out / "release.json")]).output
    assert "in all" in shown


def test_count_buys_bounds_and_names_the_option(table: Path) -> None:
    lines = table.read_text(encoding="utf-8").splitlines()
    rows = [f"{number},{line}" for number, line in enumerate(lines[1:])]
    table.write_text("\n".join(["who," + lines[0], *rows]) + "\n", encoding="utf-8")
    asked = ["count", str(table), "--mean", "age", "--user", "who", "--epsilon", "2"]
    assert "--learn-facts" in str(run(app, asked).exception)
    planned = run(app, [*asked, "--learn-facts", "1", "--plan", "--json"])
    assert json.loads(planned.stdout)["facts"]["columns"] == 1
    result = json.loads(run(app, [*asked, "--learn-facts", "1", "--json"]).stdout)
    assert result["total"]["epsilon"] == pytest.approx(2.0)
    low, high = result["facts"]["facts"]["columns"]["age"]["bounds"]
    assert 10 <= low <= 22
    assert 74 <= high <= 90
