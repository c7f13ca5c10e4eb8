"""``expost tune``: one document on stdout, telling exit codes, and nothing trained that was not paid."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from expost.budget.ledger import Ledger
from expost.budget.terms import ApproxBudget
from expost.tuning import EXAMPLE
from tests.tuning.jobs import TOML, write


def run(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from expost.cli.main import main; main()", "tune", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_from_bar_to_certificate(tmp_path: Path) -> None:
    config = write(tmp_path)
    ledger = Ledger.create(tmp_path / "ledger.db", ApproxBudget(100, 0.01), "people")
    done = run(str(config), "--ledger", "ledger.db", "--budget", "people", "--out", "out", "--json", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert list(document)[:7] == ["params", "score", "passed", "spent", "worst_case", "theorem", "model"]
    assert document["model"] == "out/model.npz"
    assert (tmp_path / "out" / "release.json").exists()
    assert "Plan" in done.stderr
    assert "remains" in done.stderr
    assert ledger.standing().as_dict()["settled"]["epsilon"] == document["spent"]["epsilon"]
    again = run(str(config), "--out", "out", folder=tmp_path)
    assert again.returncode == 2
    assert "finished job" in again.stderr


def test_a_table_and_a_folder_of_its_own(tmp_path: Path) -> None:
    config = write(tmp_path)
    done = run(str(config), folder=tmp_path)
    assert done.returncode == 0, done.stderr
    for word in ("ε spent", "ε at worst", "Papernot–Steinke", "every setting", "Certificate"):
        assert word in done.stdout
    assert (tmp_path / "tuned-job" / "release.json").exists()


def test_a_budget_that_refuses_ends_with_3_and_trains_nothing(tmp_path: Path) -> None:
    config = write(tmp_path)
    ledger = Ledger.create(tmp_path / "ledger.db", ApproxBudget(0.01, 0.01))
    done = run(str(config), "--ledger", "ledger.db", "--json", folder=tmp_path)
    assert done.returncode == 3
    assert done.stdout == ""
    assert "refuses" in done.stderr
    assert ledger.standing().as_dict()["settled"]["epsilon"] == 0
    assert not (tmp_path / "tuned-job" / "release.json").exists()
    assert not (tmp_path / "tuned-job" / "checkpoint").exists()


@pytest.mark.parametrize(
    ("line", "instead", "named"),
    [
        ("at_least = 0.7", "at_least = 1.5", "goal.at_least (line 18)"),
        ("clips = [1]", "clip = [1]", "search.clip (line 14)"),
        ('path = "rows.npz"', 'path = "other.npz"', "data.path"),
    ],
)
def test_mistakes_end_with_2(tmp_path: Path, line: str, instead: str, named: str) -> None:
    config = write(tmp_path, TOML.replace(line, instead))
    done = run(str(config), "--json", folder=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert named in done.stderr


def test_init(tmp_path: Path) -> None:
    assert run("--init", folder=tmp_path).stdout == EXAMPLE
    assert run("new.toml", "--init", folder=tmp_path).returncode == 0
    assert (tmp_path / "new.toml").read_text(encoding="utf-8") == EXAMPLE
    assert run("new.toml", "--init", folder=tmp_path).returncode == 2
