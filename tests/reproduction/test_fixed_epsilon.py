"""The least fixed ε of other libraries: the search for it, its rows, and one training of Opacus."""

from __future__ import annotations

import importlib.util
import json
import math
from itertools import pairwise
from pathlib import Path

import pytest
from reproduction.fixed_epsilon import (
    GRID,
    SEEDS,
    SETTINGS,
    Accuracies,
    Setting,
    accuracy,
    complete,
    noise_for,
    reaches,
    train_missing,
)
from reproduction.least_tasks import TASKS

from expost.errors import InvalidInput
from tests.reproduction.test_least_epsilon import adult_folder


class Pretended:
    """Trainings whose accuracy grows with log ε and differs by setting and seed."""

    def __init__(self, spread: float = 0.0) -> None:
        self.spread, self.made = spread, 0

    def __call__(self, jobs: list[tuple[Setting, float, int]]) -> list[float]:
        self.made += len(jobs)
        return [
            0.7 + 0.1 * math.log10(epsilon) - 0.01 * setting.numbers[0] - self.spread * (seed % 20)
            for setting, epsilon, seed in jobs
        ]


def test_the_grid_has_ten_values_per_decade() -> None:
    assert (GRID[0], GRID[-1], len(GRID)) == (0.01, 100.0, 41)
    assert all(1.2 < high / low < 1.32 for low, high in pairwise(GRID))


@pytest.mark.parametrize("bar", [0.62, 0.7, 0.75])
def test_the_least_value_of_the_grid_is_found(bar: float) -> None:
    """Against a plain scan; the value below it was tried with every setting and missed."""
    pretended, known = Pretended(), Accuracies("adult", "opacus")
    complete(known, [bar], pretended, say=lambda line: None)
    best = min(each.numbers[0] for each in SETTINGS["adult"] if each.method == "opacus")
    scan = [e for e in GRID if 0.7 + 0.1 * math.log10(e) - 0.01 * best >= bar]
    (row,) = known.rows([bar])
    assert row["mean_epsilon"] == scan[0]
    assert row["passed"] == 1
    below = GRID[GRID.index(scan[0]) - 1]
    settings = [each for each in SETTINGS["adult"] if each.method == "opacus"]
    assert all(len(known.of(str(each), below)) >= 2 for each in settings)


def test_nineteen_of_twenty_seeds_pass_and_eighteen_do_not() -> None:
    known = Accuracies("adult", "opacus")
    for misses, passes in ((1, True), (2, False)):
        known.scores = {"one": {0.01: [0.5] * misses + [0.9] * (SEEDS - misses)}}
        assert (known.reached(0.8, 0.01) is not None) == passes
        assert bool(known.rows([0.8])) == passes
    known.scores = {"one": {0.01: [0.9] * (SEEDS - 1)}}  # too few seeds prove nothing
    assert known.reached(0.8, 0.01) is None


def test_a_row_needs_the_value_below_to_be_tried_with_every_setting() -> None:
    settings = [str(each) for each in SETTINGS["adult"] if each.method == "opacus"]
    low, least = GRID[:2]
    known = Accuracies("adult", "opacus", {settings[0]: {least: [0.9] * SEEDS}})
    assert known.rows([0.8]) == []
    known.scores |= {name: {**known.scores.get(name, {}), low: [0.5, 0.5]} for name in settings}
    assert [row["mean_epsilon"] for row in known.rows([0.8])] == [least]
    known.scores[settings[3]][low] = [0.5, 0.9]  # it may still reach 95 %
    assert known.rows([0.8]) == []


def test_settings_that_miss_twice_are_dropped() -> None:
    settings = [each for each in SETTINGS["adult"] if each.method == "opacus"]
    pretended, known = Pretended(), Accuracies("adult", "opacus")
    assert not reaches(known, 0.99, 0.1, pretended)
    assert pretended.made == 2 * len(settings)
    assert not reaches(known, 0.99, 0.1, pretended)  # known already
    assert pretended.made == 2 * len(settings)


def test_a_bar_that_is_not_reached_has_no_row() -> None:
    known = Accuracies("adult", "opacus")
    lines: list[str] = []
    complete(known, [0.99], Pretended(), say=lines.append)
    assert known.rows([0.99]) == []
    assert lines == ["adult opacus: 0.99 is not reached at ε = 100"]


def test_accuracies_are_kept_by_task_and_method(tmp_path: Path) -> None:
    path = tmp_path / "fixed.json"
    first = Accuracies("adult", "opacus", {"one": {0.1: [0.5, 0.6]}})
    first.save(path)
    Accuracies("mnist", "diffprivlib", {"two": {2.0: [0.7]}}).save(path)
    assert Accuracies.load("adult", "opacus", path) == first
    assert set(json.loads(path.read_text(encoding="utf-8"))) == {
        "adult opacus",
        "mnist diffprivlib",
    }
    assert "[0.5, 0.6]" in path.read_text(encoding="utf-8")
    assert Accuracies.load("adult", "none", path).scores == {}


@pytest.mark.parametrize("task", SETTINGS)
def test_committed_rows(task: str) -> None:
    """Every reached bar has a value of the grid, and a higher bar costs no less."""
    for method in ("diffprivlib", "opacus"):
        rows = Accuracies.load(task, method).rows(TASKS[task].bars)
        assert rows, "docs/results/fixed_epsilon.json has no rows"
        epsilons = [row["mean_epsilon"] for row in rows]
        assert epsilons == sorted(epsilons)
        assert all(row["passed"] >= 0.95 for row in rows)


def test_a_missing_library_names_the_extra(tmp_path: Path) -> None:
    if importlib.util.find_spec("diffprivlib"):
        pytest.skip("diffprivlib is installed")
    with pytest.raises(InvalidInput, match=r"expost\[baselines\]"):
        train_missing("adult", "diffprivlib", tmp_path, out=tmp_path / "none.json")


def test_noise_of_opacus_is_calibrated_to_the_whole_delta() -> None:
    """Against dp-accounting: the noise keeps ε, and hardly more noise than needed is given."""
    from dp_accounting import dp_event
    from dp_accounting.pld import PLDAccountant

    noise, rate, steps = noise_for(26_049, (4.0, 10.0, 4096.0, 1.0), 0.5)
    spent = []
    for factor in (1.0, 0.97):
        step = dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(factor * noise))
        accountant = PLDAccountant(value_discretization_interval=1e-4)
        accountant.compose(dp_event.SelfComposedDpEvent(step, steps))
        spent.append(accountant.get_epsilon(1e-6))
    assert spent[0] <= 0.5 + 1e-3
    assert spent[1] > 0.5


@pytest.mark.slow
def test_opacus_learns_a_made_up_table(tmp_path: Path) -> None:
    pytest.importorskip("opacus")
    folder = adult_folder(tmp_path, 3000)
    setting = Setting("opacus", "public", "linear", (4.0, 12.0, 512.0, 1.0))
    good = accuracy("adult", setting, 2.0, 0, folder)
    assert good > 0.75
    assert accuracy("adult", setting, 2.0, 0, folder) == good  # the seed decides
    assert accuracy("adult", setting, 0.01, 0, folder) < good - 0.05
