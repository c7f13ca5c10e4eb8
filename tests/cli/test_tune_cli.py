"""``expost tune``: one document on stdout, exit codes, and nothing trained that was not paid."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import expost
from expost.budget.budgets import ApproxBudget
from expost.budget.ledger import Ledger
from expost.certificates.words import bound_text
from expost.cli.certificate import show_certificate
from expost.cli.main import main
from expost.cli.plans import render
from expost.cli.tune import _resumable
from expost.randomness.source import SimulationRandomness
from expost.tuning import EXAMPLE
from expost.tuning.runs.run_attempts import has_begun
from tests.tuning.jobs import TOML, clouds, job, write


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


Run = Callable[..., Done]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Run the command in this process, to save imports, and return all that it writes."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["expost", "tune", *arguments])
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capfd.readouterr()
        return Done(int(ended.value.code or 0), out, err)

    return call


def test_from_bar_to_certificate(tmp_path: Path, run: Run) -> None:
    config = write(tmp_path)
    ledger = Ledger.create(tmp_path / "ledger.db", ApproxBudget(100, 0.01, "zero-out"), "people")
    done = run(str(config), "--ledger", "ledger.db", "--budget", "people", "--out", "out", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert list(document)[:9] == [
        "params",
        "score",
        "passed",
        "certified",
        "confidence",
        "spent",
        "worst_case",
        "theorem",
        "model",
    ]
    assert document["model"] == "out/model.npz"
    assert (tmp_path / "out" / "release.json").exists()
    assert "The job costs at most" in done.stderr
    assert "remains" in done.stderr
    assert ledger.standing().as_dict()["settled"] == document["spent"]
    again = run(str(config), "--out", "out")
    assert again.returncode == 2
    assert "finished job" in again.stderr
    bound = document["confidence"]["bound_on_scoring_rows"]
    with redirect_stdout(StringIO()) as shown:
        show_certificate(tmp_path / "out" / "release.json")
    assert f"at least {bound_text(bound, True)} on the scoring rows" in shown.getvalue()


def test_a_missed_bar_ends_with_5_and_says_what_was_paid(tmp_path: Path, run: Run) -> None:
    config = write(tmp_path)
    X, y = clouds(noise=20.0)  # no model is much better than guessing
    np.savez(tmp_path / "rows.npz", X=X, y=y)
    # A model below the goal passes with a chance of at most 1 − confidence.
    bar = "at_least = 0.9\nconfidence = 0.999999"
    config.write_text(config.read_text().replace("at_least = 0.7", bar))
    done = run(str(config), "--out", "out", "--json")
    assert done.returncode == 5, done.stderr
    document = json.loads(done.stdout)
    assert document["passed"] is False
    assert document["model"] is None
    assert document["spent"]["epsilon"] > 0
    assert len(document["attempts"]) == document["attempts_allowed"] == 3
    shown = run(str(config), "--out", "again")
    assert shown.returncode == 5
    assert shown.stdout.startswith("The goal was missed (accuracy ≥ 0.9): no model was released.")
    said = " ".join(shown.stdout.split())
    assert "what to try - a lower goal (at_least)" in said
    assert "likely if a tenth of the settings were good enough at ε = " in said
    assert "--plan is free; another run is charged" in said


def test_a_table_and_a_folder_of_its_own(tmp_path: Path, run: Run) -> None:
    config = write(tmp_path)
    done = run(str(config), "--verbose")
    assert done.returncode == 0, done.stderr
    words = (
        "charge",
        "was possible",
        "Papernot–Steinke",
        "every setting",
        "Certificate",
        "zero-out",
    )
    for word in words:
        assert word in done.stdout
    assert (tmp_path / "tuned-job" / "release.json").exists()
    assert "further release" not in done.stderr
    again = run(str(config))
    assert again.returncode in (0, 5), again.stderr
    said = " ".join(again.stderr.split())
    assert "tuned-job holds a finished job. This is a further release, into tuned-job-2" in said
    assert (tmp_path / "tuned-job-2" / "release.json").exists()


def test_a_confidence_that_ways_share_is_the_one_asked_for() -> None:
    """With several ways, the bound holds with more confidence than was asked for the job."""
    result = expost.tune(
        job(model={"training": "auto"}, privacy={"delta": 1e-4}),
        *clouds(2000),
        randomness=SimulationRandomness(1),
        simulation=True,
    )
    assert result.passed
    assert result.bounds.confidence > 0.9
    console = Console(file=StringIO(), width=80)
    render(console, result, Path("out"), verbose=True)
    said = " ".join(console.file.getvalue().replace("│", " ").split())
    assert "(90 % confidence each)" in said  # what was asked; each bound has no less
    shown = [float(each) for each in re.findall(r"at least ([0-9.]+) on", said)]
    certified = [result.bounds.on_scoring_rows, result.bounds.on_population]
    for stated, bound in zip(shown, certified, strict=True):
        assert bound - 1e-3 < stated <= bound  # never rounded to more than was certified
    assert "continued until the score passes" in said


def test_a_budget_that_refuses_ends_with_3_and_trains_nothing(tmp_path: Path, run: Run) -> None:
    config = write(tmp_path)
    ledger = Ledger.create(tmp_path / "ledger.db", ApproxBudget(0.01, 0.01, "zero-out"))
    done = run(str(config), "--ledger", "ledger.db", "--json")
    assert done.returncode == 3
    assert json.loads(done.stdout)["error"]["kind"] == "BudgetRefused"
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
def test_mistakes_end_with_2(tmp_path: Path, run: Run, line: str, instead: str, named: str) -> None:
    config = write(tmp_path, TOML.replace(line, instead))
    done = run(str(config), "--json")
    assert done.returncode == 2
    assert named in json.loads(done.stdout)["error"]["message"]
    assert named in done.stderr


def test_init(tmp_path: Path, run: Run) -> None:
    assert run("--init").stdout == EXAMPLE
    assert run("new.toml", "--init").returncode == 0
    assert (tmp_path / "new.toml").read_text(encoding="utf-8") == EXAMPLE
    assert run("new.toml", "--init").returncode == 2


def test_processes_of_this_machine(tmp_path: Path, run: Run) -> None:
    config = write(tmp_path)
    done = run(str(config), "--executor", "processes", "--no-stop-early", "--out", "out", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["passed"] in (True, False)
    assert (tmp_path / "out" / "release.json").exists()
    assert run(str(config), "--executor", "moon").returncode == 2


def test_an_interrupted_job_says_how_to_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "folder [1]"
    folder.mkdir()
    (folder / "checkpoint-1").touch()
    with pytest.raises(KeyboardInterrupt), _resumable(folder):
        raise KeyboardInterrupt
    out, err = capsys.readouterr()
    assert not out
    assert f"--out {folder}: same draws, one charge" in err


def test_an_interrupted_plan_was_not_charged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither while the plan is made nor after it, before the first reservation."""

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    for name in ("expost.tuning.job.plan_rows", "expost.tuning.job.make_attempts"):
        monkeypatch.setattr(name, stop)
        with pytest.raises(KeyboardInterrupt), _resumable(tmp_path / "out"):
            expost.tune(job(), *clouds(), out=tmp_path / "out")
        monkeypatch.undo()
        assert "nothing was charged" in capsys.readouterr().err


def test_a_reservation_is_made_after_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the message after Ctrl-C relies on."""
    ledger = Ledger.create(tmp_path / "ledger.db", ApproxBudget(100, 0.01, "zero-out"))
    begun = []

    def stop(*_: object, **__: object) -> None:
        begun.append(has_begun(tmp_path / "out"))
        raise KeyboardInterrupt

    monkeypatch.setattr(Ledger, "reserve", stop)
    with pytest.raises(KeyboardInterrupt):
        expost.tune(job(), *clouds(), out=tmp_path / "out", ledger=ledger)
    assert begun == [True]


def test_what_a_module_prints_is_not_in_the_document(tmp_path: Path, run: Run) -> None:
    (tmp_path / "loud.py").write_text(
        "from torch import nn\n\n\nclass Loud(nn.Linear):\n"
        "    def __init__(self):\n        super().__init__(2, 2)\n        print('made')\n",
        encoding="utf-8",
    )
    config = write(tmp_path, TOML.replace('kind = "logistic"', 'kind = "loud.py:Loud"'))
    assert "loud.py" in config.read_text()
    done = run(str(config), "--plan", "--json")
    assert done.returncode == 0, done.stderr
    assert "made" in done.stderr
    json.loads(done.stdout)
