"""``reproduction least-epsilon``: the requests are those of a job, costs, passes and the rows.

Statistical tests have fixed seeds.
"""

from __future__ import annotations

import csv
import io
import json
import sys
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from reproduction.least_epsilon import one_run, runs_of, searches_of
from reproduction.least_tasks import (
    ADULT_BOUNDS,
    ADULT_CATEGORIES,
    TASKS,
    Problem,
    problem_named,
    problem_of,
)
from scripts import least_epsilon as script

import expost
from expost.cli import main as command
from expost.errors import InvalidInput
from expost.randomness.source import SimulationRandomness
from expost.selection.noise_path import path_levels
from reproduction import cli as experiment
from reproduction import least_epsilon as least

BARS = (0.7, 0.8, 0.999)
FACTS = {"feature_bounds": [-3, 3], "classes": 2, "delta": 1e-6, "max_epsilon": 1.0}


def table(rows: int = 3000) -> tuple[np.ndarray, np.ndarray]:
    """Two classes that a line tells apart, for nine rows of ten."""
    generator = np.random.default_rng(5)
    X = np.clip(generator.standard_normal((rows, 4)), -3, 3)
    y = (X[:, 0] + X[:, 1] > 0).astype(int)
    return X, np.where(generator.random(rows) < 0.1, 1 - y, y)


@pytest.fixture(scope="module")
def private() -> Problem:
    return problem_of(*table(), at_least=BARS[0], **FACTS)


@pytest.fixture(scope="module")
def public(private: Problem) -> Problem:
    return replace(private, rows=replace(private.rows, public=True))


@pytest.mark.parametrize("bar", BARS[:2])
def test_looks_and_thresholds_are_those_of_a_job(private: Problem, bar: float) -> None:
    """Catches a search that looks elsewhere, or that asks for another margin than jobs do."""
    searches = searches_of(private, BARS[:2])
    steps = expost.plan_job(*table(), at_least=bar, **FACTS).steps
    assert len(steps) == len(searches.trainings) == 2
    for place, step in enumerate(steps):
        levels = path_levels(step.candidates)
        epsilons = tuple(float(level.guarantee.size) for level in levels)
        assert searches.looks[bar][place] == epsilons
        rule, wanted = searches.rules[bar][place], step.selector.held_out
        assert rule is not None
        assert (rule.thresholds, rule.rates) == (
            wanted.thresholds,
            wanted.rates,
        )
        shared = searches.trainings[place]
        assert set(epsilons) <= set(shared.epsilons)
        own = {float(level.guarantee.size): level.square() for level in levels}
        for level in shared.levels:  # the shared training never spends more than the job's
            square = own.get(float(level.guarantee.size))
            assert square is None or level.square() <= square


def test_a_run_pays_the_level_that_passed(public: Problem) -> None:
    searches = searches_of(public, BARS)
    run = one_run(searches, [1, 0])
    assert 0 < run[0.7].epsilon <= run[0.8].epsilon < run[0.999].epsilon
    assert run[0.7].passed
    assert run[0.7].epsilon in searches.trainings[0].epsilons
    missed = run[0.999]  # nothing reaches it: both ways are paid to their ends
    assert not missed.passed
    assert missed.epsilon == sum(training.epsilons[-1] for training in searches.trainings)
    assert missed.epsilon <= FACTS["max_epsilon"]


def test_private_runs_cost_what_whole_jobs_cost(private: Problem) -> None:
    """The same law up to the share of δ of a look: means of 12 within 4.5 standard errors."""
    bar = 0.8
    runs = runs_of(searches_of(private, (0.7, bar)), 12, 3, jobs=2)
    assert all(run[bar].passed for run in runs)
    jobs = [
        expost.tune(
            *table(), at_least=bar, randomness=SimulationRandomness(seed), simulation=True, **FACTS
        ).spent.epsilon
        for seed in range(12)
    ]
    ours = [run[bar].epsilon for run in runs]
    error = np.sqrt((np.var(ours, ddof=1) + np.var(jobs, ddof=1)) / 12)
    assert abs(np.mean(ours) - np.mean(jobs)) <= 4.5 * error + 0.12 * np.mean(jobs)


def test_runs_do_not_depend_on_processes(private: Problem) -> None:
    searches = searches_of(private, BARS[:2])
    assert runs_of(searches, 3, 9, jobs=1) == runs_of(searches, 3, 9, jobs=2)


def test_what_reached_says_is_true(private: Problem) -> None:
    """Catches a "reached" that repeats "passed": at a goal that no model has, none is reached."""
    searches = searches_of(private, (0.8,))
    hard = {0.8: 10**6}
    run = one_run(replace(searches, goals=hard), [1, 1])[0.8]
    assert run.passed
    assert not run.reached


def adult_folder(folder: Path, rows: int = 4000) -> Path:
    """Write a made-up table with Adult's columns."""
    generator = np.random.default_rng(2)
    names = [*ADULT_BOUNDS, *ADULT_CATEGORIES, "income"]
    with (folder / "adult.csv").open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(names)
        for _ in range(rows):
            numbers = [generator.integers(*pair) for pair in ADULT_BOUNDS.values()]
            words = [generator.choice(listed) for listed in ADULT_CATEGORIES.values()]
            income = ">50K" if numbers[2] > 8 else "<=50K"
            writer.writerow([*numbers, *words, income])
    return folder


def shown(*arguments: str) -> dict:
    """Run the command and return its document."""
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(io.StringIO()) as out:
        patch.setattr(sys, "argv", ["reproduction", *arguments])
        with pytest.raises(SystemExit) as end:
            command.run_command(experiment.app)
    assert end.value.code == 0
    return json.loads(out.getvalue())


@pytest.mark.parametrize("scoring", ["public", "private"])
def test_the_command(tmp_path: Path, scoring: str) -> None:
    folder = adult_folder(tmp_path)
    document = shown(
        *("least-epsilon", "--task", "adult", "--scoring", scoring, "--runs", "3", "--json"),
        *("--methods", "expost,reach", "--bars", "0.6,0.7", "--data", str(folder)),
    )
    assert [(row["bar"], row["method"]) for row in document["rows"]] == [
        (0.6, "expost"),
        (0.7, "expost"),
    ]
    for row in document["rows"]:
        assert {"bar", "method", "mean_epsilon", "standard_error", "passed"} <= set(row)
        assert ("reached" in row) == (scoring == "private")
        assert row["passed"] == 1
        assert 0 < row["mean_epsilon"] < 4
    assert any(note.startswith("reach: left out") for note in document["notes"])
    assert "seed" in document["randomness"]


def test_every_fifth_row_is_public(tmp_path: Path) -> None:
    problem, _ = problem_named("adult", "public", adult_folder(tmp_path, 50))
    assert problem.rows.public
    assert (problem.rows.places, problem.rows.score_places) == (40, 10)


def flights_folder(folder: Path, rows: int = 20_000) -> Path:
    """Write a made-up table with the columns of flights: delays that follow the departure."""
    generator = np.random.default_rng(4)
    X = np.zeros((rows, 77))
    X[:, 0] = generator.uniform(-60, 300, rows)
    np.savez(folder / "flights_100k.npz", X=X, y=X[:, 0] + generator.normal(0, 20, rows))
    return folder


@pytest.mark.parametrize("scoring", ["public", "private"])
def test_a_regression_has_bars_in_units_of_the_variance(tmp_path: Path, scoring: str) -> None:
    """Catches bars that are read as accuracies, and errors that pass by being large."""
    folder = flights_folder(tmp_path)
    rows = least.least_epsilon(
        "flights", scoring, folder, methods=["expost"], bars=[0.9, 0.1], runs=2, jobs=1
    )["rows"]
    assert [row["passed"] for row in rows] == [1, 1]
    assert rows[0]["mean_epsilon"] < rows[1]["mean_epsilon"]
    assert TASKS["flights"].origin.endswith("a substitute for the paper's Twitter")


@pytest.mark.parametrize(
    ("task", "scoring", "changes"),
    [
        ("iris", "public", {}),
        ("mnist", "secret", {}),
        ("mnist", "public", {"methods": ["best"]}),
        ("mnist", "public", {"bars": [1.5]}),
        ("mnist", "public", {}),  # no file
    ],
)
def test_refusals(tmp_path: Path, task: str, scoring: str, changes: dict) -> None:
    with pytest.raises(InvalidInput):
        least.least_epsilon(task, scoring, tmp_path, **changes)


def test_committed_rows_need_no_data() -> None:
    document = least.least_epsilon(
        "mnist", "public", Path("none"), methods=["reach", "opacus"], bars=[0.6, 0.999]
    )
    assert [(row["bar"], row["method"]) for row in document["rows"]] == [
        (0.6, "reach"),
        (0.6, "opacus"),
    ]
    assert [note.split(":")[0] for note in document["notes"]] == ["reach", "opacus"]
    assert "0.999: not reached" in document["notes"][1]


def test_the_script_keeps_rows_of_other_methods(tmp_path: Path) -> None:
    """Catches an update that forgets rows or notes, or that mixes up tables."""
    results = tmp_path / "results.json"
    old = {"bar": 0.7, "method": "opacus", "mean_epsilon": 9.0, "standard_error": 0.0, "passed": 1}
    stale = {**old, "method": "expost"}
    table = {"rows": [stale, old], "notes": ["opacus: as it was", "expost: old"]}
    results.write_text(json.dumps({"adult-private": table, "mnist-public": table}), "utf-8")
    script.main(
        [
            *("adult-private", "--methods", "expost", "--runs", "2", "--jobs", "1"),
            *("--data", str(adult_folder(tmp_path)), "--results", str(results)),
            *("--figure", str(tmp_path / "figure.png")),
        ]
    )
    known = json.loads(results.read_text("utf-8"))
    assert known["mnist-public"] == table
    rows = known["adult-private"]["rows"]
    assert [row["bar"] for row in rows if row["method"] == "expost"] == [*TASKS["adult"].bars]
    assert [row for row in rows if row["method"] == "opacus"] == [old]
    assert known["adult-private"]["notes"] == ["opacus: as it was"]
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
