"""``expost tune --plan``: the job and its plan; nothing runs and nothing is charged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import expost
from expost.budget.budgets import ApproxBudget
from expost.budget.ledger import Ledger
from expost.cli.output import shown_up
from expost.cli.plans import few_digits
from tests.cli.test_tune_cli import Run, run  # noqa: F401
from tests.cli.test_tune_rows import FACTS, GOAL, rows  # noqa: F401
from tests.tuning.jobs import clouds, job, write

GRID = ("--epsilons", "1,4", "--training", "dp-sgd", "--max-epsilon", "30")


@pytest.fixture(autouse=True)
def no_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail if anything is reserved or run."""

    def made(*_: Any, **__: Any) -> None:
        raise AssertionError("an attempt was made")

    monkeypatch.setattr("expost.tuning.job.make_attempts", made)


def test_the_plan_of_a_toml_file(tmp_path: Path, run: Run) -> None:  # noqa: F811
    ledger = Ledger.create(tmp_path / "ledger.db", ApproxBudget(3, 0.01, "zero-out"))
    before = sorted(path.name for path in tmp_path.iterdir())
    done = run(str(write(tmp_path)), "--plan", "--ledger", "ledger.db")
    assert done.returncode == 0, done.stderr
    headings = ("level ε", "share", "chance of passing", "mean total ε", "ε (90 %)", "runs", "time")
    assert any(all(each in line for each in headings) for line in done.stdout.splitlines())
    for word in (
        "The job",
        "rows.npz",
        "If the settings are good enough",
        "Plan",
        "Ledger: epsilon = 3",
        "nothing",
    ):
        assert word in done.stdout
    assert [entry.action for entry in ledger.entries()] == ["create"]
    assert {path.name for path in tmp_path.iterdir()} == {*before, "job.toml", "rows.npz"}


def test_the_plan_as_a_document(tmp_path: Path, rows: Path, run: Run) -> None:  # noqa: F811
    done = run("rows.csv", *FACTS, *GOAL, *GRID, "--plan", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["job"]["data"]["path"] == "rows.csv"
    assert document["job"]["search"]["epsilons"] == [1, 4]
    plan = document["plan"]
    assert plan["attempts"] == 4
    assert plan["cheapest"] < plan["needed_to_start"]["epsilon"] <= plan["worst_case"]["epsilon"]
    assert plan["reach"]
    assert "The job" not in done.stderr
    assert not list(tmp_path.glob("tuned-*"))


def test_the_plan_in_python_is_that_of_the_job() -> None:
    plan = expost.plan_job(job(), *clouds())
    assert plan.needed_to_start == plan.steps[0].charges.worst_case
    assert plan.as_dict()["attempts"] == 3
    with pytest.raises(expost.InvalidInput, match="classes"):
        expost.plan_job(*clouds(), at_least=0.8)


def test_the_holdout_can_be_chosen(rows: Path, run: Run) -> None:  # noqa: F811
    """The hint about the margin names the option."""
    facts = ["rows.csv", *FACTS, *GOAL, *GRID, "--plan"]
    said = " ".join(run(*facts).stdout.split())
    assert "400 scoring rows instead of 200 (--holdout 0.4) would halve that" in said
    done = run(*facts, "--holdout", "0.4", "--json")
    assert json.loads(done.stdout)["plan"]["scoring_rows"] == 400
    said = " ".join(run(*facts, "--holdout", "0.4").stdout.split())
    assert "800 scoring rows instead of 400 would halve that" in said
    wrong = run(*facts, "--holdout", "1.5")
    assert wrong.returncode == 2
    assert "0 < holdout < 1" in wrong.stderr


def test_one_attempt_and_several_in_words(rows: Path, run: Run) -> None:  # noqa: F811
    facts = ["rows.csv", *FACTS, "--at-least", "0.7", *GRID, "--plan"]
    several = run(*facts, "--attempts", "4", "--json")
    plan = json.loads(several.stdout)["plan"]
    said = " ".join(run(*facts, "--attempts", "4").stdout.split())
    needed = shown_up(plan["needed_to_start"]["epsilon"])
    assert "Plan: up to 4 attempts, until one passes, over 12 candidates." in said
    assert f"Needed to start: ε = {needed}, the worst case of the first one" in said
    assert f"The job costs at most ε = {shown_up(plan['worst_case']['epsilon'])} (δ" in said
    assert said.index("The job costs at most") < said.index("Plan:")
    said = " ".join(run(*facts, "--attempts", "1").stdout.split())
    assert "Plan: one attempt, over 12 candidates." in said
    said = " ".join(run(*facts, "--attempts", "4", "--training", "auto").stdout.split())
    assert "Plan: up to 5 requests, until one passes." in said
    assert "Then 4 attempts with DP-SGD: a pass costs" in said
    reduced = ["rows.csv", *FACTS, "--at-least", "0.7", "--training", "progressive", "--plan"]
    said = " ".join(run(*reduced).stdout.split())
    assert "The job costs at most ε = 4.000 (δ" in said
    assert "Plan: up to 2 requests, until one passes. Needed to start: ε = 2.400" in said


@pytest.mark.parametrize(
    ("number", "text"), [(0.1234, "0.123"), (49.66, "49.7"), (188.9, "189"), (1289.6, "1,290")]
)
def test_numbers_of_runs(number: float, text: str) -> None:
    assert few_digits(number) == text
