"""Planned attempts on a bank: what a trial costs, the row of Table 3, and ``reproduction reach``.

Simulations have fixed seeds.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from reproduction.reach import reach_table
from reproduction.table3.bank import Bank
from reproduction.table3.planned import (
    PlannedAttempts,
    PricedRequest,
    cheapest_first,
    reach,
    scores_of,
)
from reproduction.table3.problem import TableProblem
from reproduction.table3.tasks import DELTA, TASKS, GridSetting

from expost.errors import InvalidInput
from expost.selection.attempts import Attempt, Schedule

SETTINGS = tuple(GridSetting(0.1, epochs, 512, 1.0) for epochs in (5, 10, 20))
LEVELS = (0.1, 0.4)


def bank_of(scores: dict[float, list[list[float]]]) -> Bank:
    details = {"exactness": TASKS["mnist"].exactness, "target_variance": None}
    return Bank("mnist", 60_000, DELTA, SETTINGS, scores, details)


def problem_of(first: float, second: float) -> TableProblem:
    """Every setting has one score per level."""
    scores = {0.1: [[first]] * 3, 0.4: [[second]] * 3}
    return cheapest_first(TableProblem.of(TASKS["mnist"], bank_of(scores), 0.6, LEVELS))


@pytest.fixture(scope="module")
def planned() -> PlannedAttempts:
    return PlannedAttempts.of(problem_of(0.2, 0.9))


def test_requests_have_the_charges_of_the_schedule(planned: PlannedAttempts) -> None:
    problem = problem_of(0.2, 0.9)
    assert sum(each.delta_share for each in planned.schedule.attempts) <= 1
    for attempt, request in zip(planned.schedule.attempts, planned.requests, strict=True):
        assert request.overhead == attempt.overhead
        taking_part = [problem.candidates[place] for place in request.cells]
        assert {each.params["epsilon"] for each in taking_part} == set(LEVELS[attempt.first :])
        assert list(request.rates) == [each.params["epsilon"] for each in taking_part]
        assert 0 < request.nothing < request.charges.min()
    assert planned.worst_case == sum(each.worst_case for each in planned.requests)


def simple(charges: tuple[float, ...] = (1.0, 2.0)) -> PlannedAttempts:
    """Two attempts in which every copy is kept."""
    request = PricedRequest(1e9, np.array([0.1, 0.4]), 1, np.array(charges), 0.25, (0, 1))
    schedule = Schedule((Attempt(1.0, 0, 1, 0.5), Attempt(1.0, 0, 1, 0.5)))
    return PlannedAttempts(schedule, (request, request))


def test_a_trial_pays_its_misses_and_its_winner() -> None:
    generator = np.random.default_rng(1)
    first = simple().trial([(0.9,), (0.9,)], 0.6, generator)
    assert first == (1.0, True, 1.0, 1)
    second = simple().trial([(0.1,), (0.9,)], 0.6, generator)
    assert second == (2.0, True, 2.0, 1)
    missed = simple().trial([(0.1,), (0.1,)], 0.6, generator)
    assert missed == (0.5, False, 4.0, 2)


def test_a_winner_of_a_later_attempt_pays_the_misses_before_it() -> None:
    """One score of two passes: the cost is the winner's charge and 0.25 for every miss."""
    generator = np.random.default_rng(2)
    seen = set()
    for _ in range(200):
        trial = simple().trial([(0.1, 0.9), (0.1,)], 0.6, generator)
        misses = trial.attempts - 1 if trial.passed else 2
        assert trial.epsilon == pytest.approx(0.25 * misses + (1.0 if trial.passed else 0.0))
        seen.add((trial.passed, trial.attempts))
    assert seen == {(True, 1), (True, 2), (False, 2)}


def test_the_row_of_table_3() -> None:
    """Only the second level passes: a pass costs at least its cheapest charge."""
    problem = problem_of(0.2, 0.9)
    made = reach(problem, 60, seed=3)
    again = PlannedAttempts.of(problem)
    least = min(float(each.charges[each.rates == 0.4].min()) for each in again.requests)
    assert made.mechanism == "reach"
    assert np.mean([trial.passed for trial in made.trials]) > 0.9
    assert all(trial.epsilon >= least for trial in made.trials if trial.passed)
    assert all(trial.epsilon <= made.worst_case for trial in made.trials)
    assert made.trials == reach(problem, 60, seed=3).trials


def test_candidates_of_a_level_are_ordered_by_cost() -> None:
    problem = problem_of(0.2, 0.9)
    assert [each.params["epsilon"] for each in problem.candidates] == [0.1] * 3 + [0.4] * 3
    assert scores_of(problem) == [(0.2,)] * 3 + [(0.9,)] * 3


@pytest.mark.parametrize("curves", ["gaussian", "dpsgd"])
def test_the_reach_table(curves: str) -> None:
    bank = bank_of({0.1: [[0.2], [0.7], [0.2]], 0.4: [[0.9]] * 3})
    document = reach_table(bank, LEVELS, [0.6, 0.8], 40, curves=curves)
    rows = {(row["bar"], row["method"]): row for row in document["rows"]}
    assert set(rows) == {
        (bar, method)
        for bar in (0.6, 0.8)
        for method in ("reach", "auto", "random-dropping", "doubling")
    }
    assert set(document["rows"][0]) == {
        "bar",
        "method",
        "mean_epsilon",
        "standard_error",
        "passed",
        "runs",
    }
    assert document["delta"] == DELTA
    for row in document["rows"]:
        assert math.isfinite(row["mean_epsilon"])
        assert 0 <= row["passed"] <= 1
    assert rows[0.6, "reach"]["mean_epsilon"] < rows[0.8, "reach"]["mean_epsilon"]
    for bar in (0.6, 0.8):
        more = rows[bar, "auto"]["mean_epsilon"] - rows[bar, "reach"]["mean_epsilon"]
        spread = math.hypot(*(rows[bar, each]["standard_error"] for each in ("auto", "reach")))
        assert more <= 0.1 * rows[bar, "reach"]["mean_epsilon"] + 3 * spread


def test_unknown_curves_are_refused() -> None:
    with pytest.raises(InvalidInput, match="curves"):
        reach_table(bank_of({0.1: [[0.2]] * 3, 0.4: [[0.9]] * 3}), LEVELS, [0.6], 1, curves="x")
