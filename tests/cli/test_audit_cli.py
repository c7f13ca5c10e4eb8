"""``expost audit``: the JSON contract, exit codes, accepted subjects, and errors for bad input.

The tests use real randomness: each honest subject is reported as violated with probability at most
1e-4 (``--confidence 0.9999``). The broken ones are missed far more rarely.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from expost import plots
from expost.audit.report import AuditReport, JointFinding, OutcomeFinding
from expost.cli import main as command

ROOT = Path(__file__).parent.parent.parent
EXAMPLE = ROOT / "examples" / "audit_me.py"
MODULE = """
from expost import Candidate, DiscreteGaussian, DiscreteLaplace, PureDP, Query, RandomDropping
from expost.privacy.guarantees import ApproxDP

rows = Query(lambda data: len(data["rows"]) if isinstance(data, dict) else len(data))
one = Candidate(DiscreteLaplace(rows, 1.0))
listed = [Candidate(DiscreteLaplace(rows, e)) for e in (0.5, 1.0)]
curves = [Candidate(DiscreteGaussian(rows, rho)) for rho in (0.1, 0.2)]
pair = (RandomDropping(1.0), listed)
mechanism = DiscreteLaplace(rows, 1.0)
gaussian = DiscreteGaussian(rows, 0.5)


def made():
    return listed


def unmade():
    raise ValueError("no such grid")


def bare(data, randomness):
    return len(data)


def request(data, randomness):
    return RandomDropping(1.0).select(
        listed, data, randomness=randomness, simulation=randomness.simulated
    )


def refused(data, randomness):
    raise RuntimeError("the budget is spent")


class inside:
    mechanism = mechanism


number = 5
event = lambda answer: float(answer) > 100
score = lambda answer: -float(answer)
"""


@pytest.fixture
def expost(capsys, monkeypatch, tmp_path) -> Callable[..., tuple[int, str, str]]:
    """The command, in this process and in a folder with a module and two data sets."""
    (tmp_path / "subject_of_audit.py").write_text(MODULE, encoding="utf-8")
    (tmp_path / "broken_module.py").write_text("import no_such_module\n", encoding="utf-8")
    np.savez(tmp_path / "a.npz", rows=np.zeros(100))
    np.savez(tmp_path / "b.npz", rows=np.zeros(101))
    np.savez(tmp_path / "two.npz", rows=np.zeros(100), labels=np.ones(100))
    np.savez(tmp_path / "two_more.npz", rows=np.zeros(101), labels=np.ones(101))
    np.save(tmp_path / "b.npy", np.zeros(101))
    np.savez(tmp_path / "objects.npz", rows=np.array([{}], dtype=object))
    np.savez(tmp_path / "empty.npz")
    (tmp_path / "text.npz").write_text("not an archive", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("subject_of_audit", "broken_module"):
        monkeypatch.delitem(sys.modules, name, raising=False)  # of another test's folder

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["expost", "audit", *map(str, arguments)])
        capsys.readouterr()
        try:
            command.main()
            code = 0
        except SystemExit as end:
            code = 0 if end.code is None else int(end.code)
        return code, *capsys.readouterr()

    return run


COMMON = ("--data", "a.npz", "--neighbour", "b.npz", "--confidence", 0.9999, "--workers", 1)


@pytest.mark.parametrize(
    ("name", "options", "indices"),
    [
        ("listed", ("--overhead", 1), [0, 1]),
        ("made", ("--overhead", 1), [0, 1]),
        ("one", ("--overhead", 1), [0]),
        ("pair", (), [0, 1]),
        ("pair", ("--score", "subject_of_audit:score"), [0, 1]),
        ("listed", ("--selector", "doubling", "--at-least", 100), [0, 1, None]),
        (
            "listed",
            ("--selector", "above-threshold", "--at-least", 100, "--overhead", 1),
            [0, 1, None],
        ),
        ("curves", ("--overhead", 1, "--delta", 1e-3), [0, 1]),
        ("mechanism", (), [0]),
        ("inside.mechanism", ("--event", "subject_of_audit:event"), [0]),
        ("gaussian", (), [0]),
        ("gaussian", ("--delta", 1e-3), [0]),
        ("gaussian", ("--epsilon", 8, "--delta", 1e-3), [0]),
        ("pair", ("--epsilon", 8, "--delta", 1e-3), [0, 1]),
        ("request", (), [0, 1]),
    ],
)
def test_what_a_name_may_stand_for(expost, name, options, indices):
    code, out, err = expost(f"subject_of_audit:{name}", *COMMON, "--runs", 200, *options, "--json")
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert list(document)[:3] == ["verdict", "confidence", "outcomes"]
    assert document["verdict"] == "consistent"
    assert [each["index"] for each in document["outcomes"]] == indices
    assert all(
        list(each)[:4] == ["index", "claimed", "lower_bound", "tightness"]
        for each in document["outcomes"]
    )


def test_a_violation_is_exit_code_1_in_words_and_in_json(expost):
    """A count without noise, held to ε = 1."""
    code, out, _ = expost("subject_of_audit:bare", *COMMON, "--runs", 300, "--epsilon", 1)
    assert code == 1
    assert out.startswith("violated at 0.9999 confidence")
    assert "= 100 (on data)" in out
    code, out, _ = expost("subject_of_audit:bare", *COMMON, "--runs", 300, "--epsilon", 1, "--json")
    assert code == 1
    assert json.loads(out)["verdict"] == "violated"


def test_a_table_and_a_figure(expost, tmp_path):
    code, out, err = expost("subject_of_audit:pair", *COMMON, "--runs", 200, "--plot", "audit.png")
    assert code == 0
    assert "consistent" in out
    assert "not a proof" in out
    assert "figure: audit.png" in err
    assert (tmp_path / "audit.png").read_bytes().startswith(b"\x89PNG")


def test_the_names_of_many_outcomes_do_not_overlap(monkeypatch):
    """Forty-one outcomes, the last a word: no tick label covers its neighbour."""
    finding = [
        OutcomeFinding(index, 1.0, 0.5, "any", "data", (1, 1)) for index in [*range(40), None]
    ]
    report = AuditReport(
        0.95, tuple(finding), JointFinding(0.0, 0.0), 0.0, 100, 20, 4, (0, 0), (0, 0), True
    )
    kept = []
    monkeypatch.setattr(plots, "save", lambda drawn, path: kept.append(drawn))
    plots.draw_audit(report, Path("unused.png"))
    kept[0].canvas.draw()
    boxes = [label.get_window_extent() for label in kept[0].axes[0].get_xticklabels()]
    assert all(left.x1 < right.x0 for left, right in pairwise(boxes))
    assert kept[0].axes[0].get_xticklabels()[-1].get_text() == "nothing"


def test_arrays_come_alone_or_as_a_dict(expost):
    for data, neighbour in (("two.npz", "two_more.npz"), ("a.npz", "b.npy")):
        code, _, _ = expost(
            "subject_of_audit:mechanism",
            "--data",
            data,
            "--neighbour",
            neighbour,
            "--runs",
            100,
            "--workers",
            1,
        )
        assert code == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("subject_of_audit",), "MODULE:NAME"),
        (("subject_of_audit:",), "MODULE:NAME"),
        (("subject_of_audit:no such",), "MODULE:NAME"),
        (("subject_of_audit:nobody",), "nothing called 'nobody'"),
        (("no_such_module_here:x",), "No module named"),
        (("broken_module:x",), "no_such_module"),
        (("no_such_file.py:x",), "no such file"),
        (("subject_of_audit:number",), "a list of Candidate"),
        (("subject_of_audit:listed",), "--overhead"),
        (("subject_of_audit:listed", "--selector", "doubling"), "at_least"),
        (
            ("subject_of_audit:listed", "--selector", "best"),
            "random-dropping, above-threshold, doubling",
        ),
        (("subject_of_audit:unmade",), "calling it raised ValueError: no such grid"),
        (("subject_of_audit:mechanism", "--overhead", "1"), "a bare list of candidates only"),
        (
            ("subject_of_audit:mechanism", "--selector", "doubling"),
            "a bare list of candidates only",
        ),
        (("subject_of_audit:mechanism", "--delta", "0.01"), "converts a Rényi or zCDP guarantee"),
        (("subject_of_audit:pair", "--at-least", "1"), "a bare list of candidates only"),
        (("subject_of_audit:pair", "--delta", "0.01"), "a bare list of candidates only"),
        (("subject_of_audit:bare",), "claim"),
        (("subject_of_audit:refused",), "the budget is spent"),
        (("subject_of_audit:mechanism", "--event", "subject_of_audit:number"), "function"),
        (
            ("subject_of_audit:mechanism", "--score", "subject_of_audit:score"),
            "belongs to a selection",
        ),
        (("subject_of_audit:mechanism", "--confidence", "1.5"), "confidence"),
        (("subject_of_audit:mechanism", "--runs", "7"), "runs"),
        (("subject_of_audit:mechanism", "--plot", "figure.bmp"), ".png"),
        (("subject_of_audit:mechanism", "--neighbour", "a.npz"), "the same as the data"),
        (("subject_of_audit:mechanism", "--neighbour", "missing.npz"), "no such file"),
        (("subject_of_audit:mechanism", "--neighbour", "objects.npz"), "not a readable"),
        (("subject_of_audit:mechanism", "--neighbour", "text.npz"), "not a readable"),
        (("subject_of_audit:mechanism", "--neighbour", "empty.npz"), "no array"),
    ],
)
def test_bad_input_is_exit_code_2_and_says_what_is_valid(expost, arguments, said):
    code, out, err = expost(*COMMON, "--runs", 100, *arguments)
    assert (code, out) == (2, "")
    assert said in " ".join(err.split())
    assert "Traceback" not in err


def test_the_example_is_as_its_docstring_says(tmp_path):
    """As a user would: files written, the honest candidates pass in two processes, the careless
    count is found out.
    """
    environment = {**os.environ, "COLUMNS": "200"}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    assert run(str(EXAMPLE)).returncode == 0
    start = ("-c", "from expost.cli.main import main; main()", "audit")
    data = ("--data", "with.npz", "--neighbour", "without.npz", "--confidence", "0.9999")
    honest = run(
        *start,
        f"{EXAMPLE}:candidates",
        *data,
        "--runs",
        "400",
        "--overhead",
        "0.5",
        "--workers",
        "2",
        "--json",
    )
    assert honest.returncode == 0, honest.stderr
    assert json.loads(honest.stdout)["verdict"] == "consistent"
    careless = run(
        *start,
        f"{EXAMPLE}:careless",
        *data,
        "--runs",
        "1000",
        "--event",
        f"{EXAMPLE}:large",
        "--workers",
        "1",
    )
    assert careless.returncode == 1, careless.stderr
    assert "violated" in careless.stdout


def test_the_page_runs_as_written():
    """Catches an example in docs/audit.md that has drifted from the code."""
    page = (ROOT / "docs" / "audit.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", example], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(("consistent", "violated"))


def test_an_error_in_a_worker_arrives_in_words(expost):
    code, _, err = expost("subject_of_audit:refused", *COMMON[:-1], 2, "--runs", 400)
    assert code == 2
    assert "the budget is spent" in err
