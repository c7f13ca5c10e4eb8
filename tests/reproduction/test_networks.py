"""``reproduction networks``: the rows of jobs, a limit of time, and files that keep other rows."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch", reason="needs the torch extra")

from dataclasses import replace
from pathlib import Path

from expost.errors import InvalidInput
from reproduction import networks as experiment


def test_a_row_is_that_of_jobs(monkeypatch, tmp_path):
    """The mean is over finished runs only; misses count with what they paid."""
    outcomes = iter([{"epsilon": 1.0, "passed": True}, None, {"epsilon": 4.0, "passed": False}])
    monkeypatch.setattr(experiment, "_bounded", lambda *_: next(outcomes))
    document = experiment.networks(["ring"], tmp_path, runs=3)
    (row,) = document["rows"]
    assert (row["epsilon"], row["passed"], row["runs"], row["unfinished"]) == (2.5, 0.5, 2, 1)
    file = tmp_path / "networks.json"
    other = {"randomness": "", "rows": [{"task": "moons"}, {"task": "ring"}]}
    file.write_text(json.dumps(other), encoding="utf-8")
    experiment.write(file, document)
    assert json.loads(file.read_text(encoding="utf-8"))["rows"] == [row, {"task": "moons"}]


def test_a_run_is_a_job():
    easy = replace(experiment.TASKS["ring"], goal=0.55)
    outcome = experiment.one_run(easy, Path(), seed=1, run=0)
    assert outcome["passed"]
    assert 0 < outcome["epsilon"] < 4


def test_a_run_has_a_limit_of_time(tmp_path):
    assert experiment._bounded("ring", tmp_path, 1, 0, 0.01) is None


@pytest.mark.parametrize("name", ["squares", "cnn"])
def test_unknown_tasks_and_missing_files_are_named(name, tmp_path):
    with pytest.raises(InvalidInput, match=r"tasks|mnist\.npz"):
        experiment.networks([name], tmp_path)
