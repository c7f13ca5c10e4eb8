"""What ``expost certificate`` shows a privacy officer."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from expost.budget.budgets import ApproxBudget
from expost.budget.ledger import Ledger
from expost.certificates import words as certificate_words
from expost.certificates.words import bound_text
from tests.cli.counting import expost  # noqa: F401  (a fixture)
from tests.cli.test_every_certificate import FACTS, table


@pytest.fixture
def words(expost, monkeypatch):  # noqa: F811
    """Show a document on 80 columns; lines are joined."""

    def run(document: dict[str, Any], *options: str) -> str:
        Path("shown.json").write_text(json.dumps(document), encoding="utf-8")
        monkeypatch.setenv("COLUMNS", "80")
        done = expost("certificate", "shown.json", *options)
        assert done.code == 0, done.err
        assert max(map(cell_len, done.out.splitlines())) <= 80
        return " ".join(done.out.replace("│", " ").split())

    return run


@pytest.fixture
def tuned(expost, tmp_path, monkeypatch) -> dict[str, Any]:  # noqa: F811
    """A certificate of progressive training that a ledger paid."""
    monkeypatch.chdir(tmp_path)
    table(tmp_path / "people.csv")
    Ledger.create(tmp_path / "ledger.db", ApproxBudget(100, 0.01, "zero-out"), "people")
    options = ["--at-least", "0.6", "--training", "progressive", "--ledger", "ledger.db"]
    done = expost("tune", "people.csv", *FACTS, *options, "--analyst", "ann", "--out", "out")
    assert done.code == 0, done.err
    return json.loads(Path("out/release.json").read_text(encoding="utf-8"))


def test_a_tuned_model(tuned, words):
    """Catches a fact that an officer needs and that is not shown; each part damaged in turn."""
    shown = words(tuned)
    bounds = tuned["tuning"]["confidence"]
    (entry,) = tuned["ledger"]
    for text in [
        "a model that reaches the goal",
        "accuracy ≥ 0.6, with 90 % confidence",
        f"at least {bound_text(bounds['bound_on_scoring_rows'], True)} on the scoring rows",
        f"{bounds['noisy_score']:.4g}",
        "δ = 1e-05",
        "1 of at most 2 1: passed, ε = ",
        "a person's row is present or blank",
        "people.csv",
        "age: number from 0 to 40; an empty cell counts as 20",
        "city: one of Bern, Zug",
        "day: date from 2020-01-01 to 2021-12-31; an empty cell counts as 'missing'",
        "member: true or false",
        "label, 2 classes: no, yes",
        f"{tuned['tuning']['rows']['training']:,} for training, ",
        "for scoring; these numbers are public",
        "budget people for ann",
        entry["reservation"],
        f"date {entry['date']}",
        "none: whoever can write the file can change it",
    ]:
        assert text in shown, text
    for text in ("held-out counts", "minimum_drop_level", "thresholds", "noise-path"):
        assert text not in shown
    assert "held-out counts" in words(tuned, "--verbose")
    assert tuned["value"]["sha256"] in words(tuned, "--verbose").replace(" ", "")
    assert "signed; expost certificate verify" in words({**tuned, "signature": {}})
    for key in tuned["tuning"]:
        for damage in (None, 7, "\x1b[2J", [None]):
            document = copy.deepcopy(tuned)
            document["tuning"][key] = damage
            assert "\x1b" not in words(document, "--verbose")
    assert "this part cannot be read" in words({**tuned, "tuning": {}})


def test_names_cannot_add_lines(tuned, words):
    """Catches a column whose name looks like another row of the table."""
    tuned["tuning"]["data"]["features"] = ["a\n2: passed, ε = 0", "[red]b"]
    shown = words(tuned)
    assert "a\\n2: passed" in shown
    assert "[red]b" in shown


def test_long_lists_are_cut(tuned, words):
    """Catches a certificate of a thousand columns that fills the screen."""
    names = [f"column{number}" for number in range(30)]
    tuned["tuning"]["data"]["features"] = names
    assert "… and 18 more (use --verbose for all of them)" in words(tuned)
    assert "column29" in words(tuned, "--verbose")


@pytest.mark.parametrize(
    ("value", "larger", "text"),
    [
        (0.72625, True, "0.7262"),
        (0.72625, False, "0.7263"),
        (0.5, True, "0.5"),
        (-0.1, True, "-0.1"),
    ],
)
def test_bounds_stay_true(value, larger, text):
    """Catches a bound that promises more than was certified."""
    assert bound_text(value, larger) == text


@pytest.mark.parametrize(
    ("bounds", "lines"),
    [
        ([0.0, 49.0], ["every column: number from 0 to 49"]),
        ([[0.0, 49.0]], ["every column: number from 0 to 49"]),
        ([[0, 1], [-2, 2]], ["column 0: number from 0 to 1", "column 1: number from -2 to 2"]),
        ({"age": [0, 9]}, ["age: number from 0 to 9"]),
    ],
)
def test_bounds_of_columns(bounds, lines):
    """In every form in which a job states them."""
    assert certificate_words._columns({"bounds": bounds}) == lines
