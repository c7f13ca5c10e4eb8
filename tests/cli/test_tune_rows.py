"""``expost tune rows.csv``: a job from options, its defaults, and the TOML they amount to."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import numpy as np
import pytest

from expost.budget.budgets import ApproxBudget
from expost.budget.ledger import Ledger
from expost.cli.tune import as_options, reminders
from expost.tuning import read_settings
from expost.tuning.request.defaults import NeededFacts
from tests.cli.test_tune_cli import Run, run  # noqa: F401
from tests.tuning.jobs import clouds

FACTS = [
    *("--target", "label", "--classes", "no,yes", "--bounds", "age=0:40", "--bounds", "b=0:1"),
    *("--categories", "city=Bern,Zug", "--missing", "age=20"),
]
GOAL = ["--at-least", "0.7", "--attempts", "4"]


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """A table with strings, gaps and a blank line."""
    X, y = clouds(1000)
    lines = ["age;city;b;label"]
    for number, (row, label) in enumerate(zip(X, y, strict=True)):
        age = "" if number == 5 else f"{40 * row[0]:.3f}"
        lines.append(
            f"{age};{('Bern', 'Zug', 'Basel')[number % 3]};{row[1]:.4f};{['no', 'yes'][label]}"
        )
    lines[8] = ""
    path = tmp_path / "rows.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_from_a_table_to_a_certificate(tmp_path: Path, rows: Path, run: Run) -> None:  # noqa: F811
    ledger = Ledger.create(tmp_path / "ledger.db", ApproxBudget(100, 0.01, "zero-out"))
    goal = (*GOAL, "--ledger", "ledger.db", "--out", "out", "--json", "--verbose")
    done = run("rows.csv", *FACTS, *goal)
    assert done.returncode in (0, 5), done.stderr
    document = json.loads(done.stdout)
    assert document["neighbours"] == "zero-out"
    assert document["spent"]["delta"] == 1e-4
    for word in ("The job", "logistic", "default", "holdout", "--init writes"):
        assert word in done.stderr
    said = " ".join(done.stderr.split())
    assert "empty or unreadable cell in b is not used" in said  # age has a fill, city "other"
    assert "Progressive training" in said
    assert "attempts with DP-SGD" in said  # GOAL asks for a grid
    assert "Ledger: epsilon = 100" in said
    record = json.loads((tmp_path / "out" / "release.json").read_text(encoding="utf-8"))
    assert record["tuning"]["neighbours"] == "zero-out"
    assert record["tuning"]["neighbours"] == "zero-out"
    assert ledger.standing().as_dict()["settled"] == document["spent"]


def test_init_writes_the_same_job(tmp_path: Path, rows: Path, run: Run) -> None:  # noqa: F811
    shown = run("rows.csv", *FACTS, *GOAL, "--init")
    assert shown.returncode == 0, shown.stderr
    assert tomllib.loads(shown.stdout)["data"]["path"] == "rows.csv"
    (tmp_path / "jobs").mkdir()
    assert run("rows.csv", *FACTS, *GOAL, "--init", "--out", "jobs/job.toml").returncode == 0
    settings = read_settings(tmp_path / "jobs" / "job.toml")
    assert settings.data.path.resolve() == rows.resolve()
    written = tmp_path / "here.toml"
    written.write_text(shown.stdout, encoding="utf-8")
    assert settings.public() == read_settings(written).public()
    assert run("rows.csv", *FACTS, *GOAL, "--init", "--out", "jobs/job.toml").returncode == 2
    done = run("here.toml", "--out", "out", "--json")
    assert done.returncode in (0, 5), done.stderr
    terms = json.loads((tmp_path / "out" / "release.json").read_text(encoding="utf-8"))["tuning"]
    assert terms["privacy"]["attempts"] == 4
    assert terms["data"]["classes"] == ["no", "yes"]


def test_what_is_missing_is_asked_for_in_one_message(rows: Path, run: Run) -> None:  # noqa: F811
    done = run("rows.csv", "--target", "label", "--at-least", "0.8", "--out", "out")
    assert done.returncode == 2
    every = "--bounds|--categories|--dates|--booleans"  # the file does not say what a column holds
    for word in ("--classes LABEL,LABEL", f"{every} age=", f"{every} city=", f"{every} b="):
        assert word in done.stderr
    assert "The job" not in done.stderr
    assert "[data]" not in done.stderr
    number = run("rows.csv", "--target", "b", "--metric", "mae", "--at-most", "200")
    assert number.returncode == 2
    assert "--target-bounds LOW:HIGH" in number.stderr
    assert f"{every} age" in number.stderr
    assert not (rows.parent / "out").exists()
    started = run("rows.csv", "--target", "label", "--at-least", "0.8", "--init")
    assert started.returncode == 0
    assert "# classes = " in started.stdout
    assert "# feature_bounds.city = [LOW, HIGH]  # or categories, dates, booleans" in started.stdout
    for form in ("categories.COLUMN", "booleans = ", "dates.COLUMN", "missing.COLUMN", "features"):
        assert form in started.stdout
    assert tomllib.loads(started.stdout)["data"]["target"] == "label"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["rows.csv", *FACTS], "--at-least is required: say what the model must reach: --at-least"),
        (["rows.csv", *FACTS, "--init"], "--at-least 0.8 (accuracy)"),
        (["rows.csv", "--target", "lable", "--at-least", "0.7"], "did you mean 'label'"),
        (["rows.csv", "--at-least", "0.7", "--bounds", "age"], "COLUMN="),
        (["rows.csv", "--at-least", "0.7", "--feature-bounds", "0-1"], "LOW:HIGH"),
        (["rows.csv", *FACTS, *GOAL, "--feature-bounds", "0:1"], "--bounds each"),
        (["rows.csv", *FACTS, *GOAL, "--bounds", "age=0:1"], "give it once"),
        (["rows.csv", *FACTS, *GOAL, "--epsilons", "2,1"], "ascending"),
        (["rows.csv", *FACTS, *GOAL, "--input-shape", "1x2"], "for example 1,28,28"),
        (["rows.csv", *FACTS, *GOAL, "--input-shape", "1,2"], "flat rows"),
        (["rows.csv", *FACTS, *GOAL, "--integers"], "whole numbers"),
        (["rows.csv", *FACTS, *GOAL, "--training", "fast"], "noise-reduction"),
        (["missing.csv", *FACTS, *GOAL], "no such file"),
        (["empty.csv", *FACTS, *GOAL], "the first line must name the columns"),
        (["header.csv", *FACTS, *GOAL], "at least two rows"),
        (
            ["job.toml", "--at-least", "0.8", "--bounds", "a=0:1"],
            "--bounds, --at-least cannot be given with job.toml, which has settings of its own",
        ),
        (["--init", "--at-least", "0.8"], "file of rows that --at-least belongs to"),
        (["--at-least", "0.8"], "file of rows"),
    ],
)
def test_mistakes_end_with_2(rows: Path, run: Run, arguments: list[str], said: str) -> None:  # noqa: F811
    (rows.parent / "empty.csv").touch()
    (rows.parent / "header.csv").write_text("age;city;b;label\n", encoding="utf-8")
    done = run(*arguments)
    assert done.returncode == 2
    assert said in done.stderr.replace("\n", " ")
    assert "The job" not in done.stderr  # defaults of a job that cannot run mean nothing
    assert "Traceback" not in done.stderr


def test_an_add_remove_budget_needs_the_number_of_rows(
    tmp_path: Path,
    rows: Path,
    run: Run,  # noqa: F811
) -> None:
    """Refused before anything is charged, with both remedies; with --rows the budget pays."""
    ledger = Ledger.create(tmp_path / "ledger.db", ApproxBudget(100, 0.01))
    arguments = ["rows.csv", *FACTS, *GOAL, "--ledger", "ledger.db", "--json"]
    done = run(*arguments, "--out", "one")
    assert done.returncode == 2
    assert "--neighbours zero-out" in done.stderr
    assert "rows" in done.stderr
    assert [entry.action for entry in ledger.entries()] == ["create"]
    assert not (tmp_path / "one").exists()
    done = run(*arguments, "--rows", "1000", "--out", "two")
    assert done.returncode in (0, 5), done.stderr
    document = json.loads(done.stdout)
    assert document["neighbours"] == "add-remove"
    assert ledger.standing().as_dict()["settled"] == document["spent"]


def test_npz_and_regression(tmp_path: Path, run: Run) -> None:  # noqa: F811
    generator = np.random.default_rng(6)
    X = generator.random((1500, 2))
    np.savez(tmp_path / "line.npz", X=X, y=10 * X[:, 0] + 0.3 * generator.normal(size=1500))
    done = run(
        "line.npz", "--feature-bounds", "0:1", "--target-bounds", "0:10", "--at-most", "5",
        "--epsilons", "2,4", "--out", "out", "--json",
    )  # fmt: skip
    assert done.returncode in (0, 5), done.stderr
    record = json.loads((tmp_path / "out" / "release.json").read_text(encoding="utf-8"))
    assert record["tuning"]["goal"]["loss_bound"] == 25
    assert record["tuning"]["search"]["epsilons"] == [2, 4]


def test_reminders_depend_on_the_settings_alone(rows: Path, run: Run) -> None:  # noqa: F811
    """The same lines whether all labels match the classes or none does."""
    facts = ["No,Yes" if each == "no,yes" else each for each in FACTS]
    done = run("rows.csv", *facts, *GOAL, "--epsilons", "1,4", "--plan")
    said = " ".join(done.stdout.split())
    assert (
        "A row whose label is not exactly 'No' or 'Yes' is not used and lowers the score; upper "
        "and lower case matter." in said
    )
    assert 'A value of city that is not listed counts as "other"' in said


def test_booleans_are_given_together_or_one_by_one(rows: Path, run: Run) -> None:  # noqa: F811
    facts = ["--target", "label", "--classes", "no,yes", "--at-least", "0.8", "--init"]
    for booleans in (["--booleans", "age,b"], ["--booleans", "age", "--booleans", "b"]):
        done = run("rows.csv", *facts, *booleans, "--categories", "city=Bern")
        assert tomllib.loads(done.stdout)["data"]["booleans"] == ["age", "b"]


def test_options_of_progressive_training(rows: Path, run: Run) -> None:  # noqa: F811
    """Catches an option that does not reach its table: --features names columns or a map."""
    facts = ["rows.csv", "--target", "label", "--classes", "no,yes", "--at-least", "0.8", "--init"]
    usual = tomllib.loads(run(*facts).stdout)
    assert usual["model"] == {"kind": "logistic", "training": "auto", "features": "auto"}
    assert usual["privacy"]["max_epsilon"] == 4.0
    given = run(
        *(*facts, "--max-epsilon", "1.5", "--training", "progressive", "--features", "plain")
    )
    tables = tomllib.loads(given.stdout)
    assert tables["model"]["training"] == "progressive"
    assert tables["model"]["features"] == "plain"
    assert tables["privacy"]["max_epsilon"] == 1.5
    assert "features" not in tables["data"]
    columns = tomllib.loads(run(*facts, "--features", "age,b").stdout)
    assert columns["data"]["features"] == ["age", "b"]
    wrong = run(*facts[:-1], "--max-epsilon", "0")
    assert wrong.returncode == 2
    assert "max_epsilon" in wrong.stderr


def test_reminders_of_other_labels() -> None:
    assert reminders({"classes": 10}, True) == [
        "A row whose label is not a whole number from 0 to 9 is not used and lowers the score."
    ]
    (said,) = reminders({"classes": [-1, 1]}, True)
    assert said == "A row whose label is not exactly '-1' or '1' is not used and lowers the score."
    (said,) = reminders({"classes": list("abcdefgh")}, False)
    assert "'a', 'b', 'c', 'd', … or 'h' is" in said
    (said,) = reminders({"feature_bounds": {"age": [0, 1]}, "target_bounds": [0, 1]}, False)
    assert "missing.COLUMN = VALUE" in said
    assert reminders({"name": "digits", "classes": 10}, False) == []


def test_a_question_as_options() -> None:
    columns = {"age": None, "a b": None, "city": "categories", "x": "booleans", "born": "dates"}
    missing = NeededFacts(True, False, True, False, columns)
    said, _, others = as_options(missing).partition("\nOne option per column")
    assert said.splitlines() == [
        "  --target COLUMN",
        "  --classes LABEL,LABEL",
        "  --bounds|--categories|--dates|--booleans age=…",
        "  --bounds|--categories|--dates|--booleans 'a b=…'",
        "  --categories city=VALUE,VALUE",
        "  --booleans x",
        "  --dates born=FIRST:LAST",
    ]
    assert "--categories COLUMN=Bern,Zug" in others
    assert "--missing COLUMN=40" in others
    assert as_options(NeededFacts(False, True, False, True, {})) == (
        "  --target-bounds LOW:HIGH\n  --feature-bounds LOW:HIGH"
    )
    assert max(map(len, as_options(missing).splitlines())) <= 80
