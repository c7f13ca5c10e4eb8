"""Planned attempts: beliefs, chances against simulation, estimates against charges, schedules."""

from __future__ import annotations

import math

import numpy as np
import pytest

from expost.errors import InvalidInput
from expost.privacy.dpsgd import gaussian_for
from expost.privacy.guarantees import PureDP
from expost.privacy.profiles import DEFAULT_ORDERS
from expost.selection.attempt_planner import (
    PASS,
    PureEstimates,
    RenyiEstimates,
    plan_attempts,
    plan_goal,
)
from expost.selection.attempts import (
    Attempt,
    Belief,
    Ladder,
    Scenario,
    Schedule,
    chances_of,
    reach_of,
)

LEVELS = (0.1, 0.2, 0.4, 0.8)
DELTA = 1e-6


def gaussian_ladder(copies: int = 60) -> Ladder:
    promises = [gaussian_for(each, DELTA).to_renyi(DEFAULT_ORDERS) for each in LEVELS]
    return Ladder(LEVELS, tuple(promises), (copies,) * len(LEVELS))


@pytest.fixture(scope="module")
def planned() -> tuple[Ladder, Schedule]:
    ladder = gaussian_ladder()
    return ladder, plan_attempts(ladder, delta=DELTA)


def test_the_default_belief_is_a_spread_that_a_small_grid_limits() -> None:
    belief = Belief.default(3, 1000)
    assert belief.shares.shape == (13, 3)
    assert belief.shares[-1].tolist() == [0, 0, 0.01]
    assert Belief.default(2, 5).shares[-1].tolist() == [0, 0.2]
    for scenario in (Scenario(3, 0.5), Scenario(0, 0.0), Scenario(0, 1.5)):
        with pytest.raises(InvalidInput, match="belief"):
            Belief(3, (scenario,))


def test_chances_agree_with_a_simulation() -> None:
    """Three standard errors of 20,000 draws: a false alarm about once in a hundred runs."""
    rates, copies, overhead = np.array([0.1, 0.4]), np.array([30.0, 30.0]), 0.05
    shares = np.array([[0.2, 0.5]])
    found = chances_of(rates, copies, overhead, shares)
    generator = np.random.default_rng(7)
    first, second, runs = [], [], []
    for _ in range(20_000):
        level = generator.exponential(1 / overhead)
        made, won = 0, None
        for number in range(2):
            kept = generator.binomial(30, math.exp(-rates[number] * level))
            passes = generator.random(kept) < shares[0, number]
            if passes.any():
                made, won = made + int(passes.argmax()) + 1, number
                break
            made += kept
        first.append(won == 0)
        second.append(won == 1)
        runs.append(made)
    for seen, expected in (
        (first, found.passes[0, 0]),
        (second, found.passes[0, 1]),
        (runs, found.runs[0]),
    ):
        error = np.std(seen) / math.sqrt(len(seen))
        assert abs(np.mean(seen) - expected) < 3.5 * error + 0.004 * expected
    total = found.passes.sum() + found.miss[0]
    assert total == pytest.approx(1, abs=1e-6)


def test_estimates_are_close_to_the_charges_and_never_far_below() -> None:
    ladder = gaussian_ladder()
    estimates = RenyiEstimates(ladder, DELTA, 0.01)
    for attempt in (Attempt(0.03, 0, 1, 0.3), Attempt(0.1, 1, 2, 0.1), Attempt(0.5, 3, 4, 0.01)):
        selector = Schedule((attempt,)).selector(0, 0.0, delta=DELTA)
        table = selector.charges(ladder.candidates(attempt))
        real = [*(float(table[k].size) for k in range(len(table))), float(table.nothing.size)]
        found = estimates.charges(attempt, np.array([attempt.delta_share]))[0]
        assert found[:-1] == pytest.approx(real[:-1], rel=0.03)
        assert 0.99 * real[-1] < found[-1] < 1.3 * real[-1]


def test_pure_estimates_are_exact() -> None:
    ladder = Ladder((0.5, 1.0), (PureDP(0.5), PureDP(1.0)), (10, 10))
    attempt = Attempt(0.25, 0, 3, 1.0)
    table = Schedule((attempt,)).selector(0, 0.0).charges(ladder.candidates(attempt))
    found = PureEstimates(ladder).charges(attempt, np.ones(1))[0]
    assert found == pytest.approx([1.25, 2.25, 0.25])
    assert [float(table[0].size), float(table[1].size), float(table.nothing.size)] == list(found)


def test_a_schedule_passes_in_every_scenario(planned: tuple[Ladder, Schedule]) -> None:
    ladder, schedule = planned
    shares = [each.delta_share for each in schedule.attempts]
    assert 0.999 < sum(shares) <= 1
    belief = Belief.default(len(LEVELS), 60)
    miss = np.ones(len(belief.scenarios))
    for attempt in schedule.attempts:
        first = attempt.first
        miss *= chances_of(
            np.array(LEVELS[first:]),
            np.array(ladder.copies[first:], dtype=float) * attempt.repeats,
            attempt.overhead,
            belief.shares[:, first:],
        ).miss
    assert (1 - miss).min() >= PASS - 0.002


def test_a_planned_schedule_is_cheaper_than_simple_ones(planned: tuple[Ladder, Schedule]) -> None:
    ladder, schedule = planned
    simple = [
        Schedule(tuple(Attempt(0.02 * 1.5**t, 0, 1, 1 / 16) for t in range(16))),
        Schedule(tuple(Attempt(0.1, 0, 1, 0.0999) for _ in range(10))),
    ]

    def cost(candidate: Schedule) -> float:
        charges = []
        for number, attempt in enumerate(candidate.attempts):
            table = candidate.selector(number, 0.0, delta=DELTA).charges(ladder.candidates(attempt))
            charges.append(
                np.array([*(float(table[k].size) for k in range(len(table))), table.nothing.size])
            )
        rows = reach_of(ladder, candidate, charges, (0.2, 0.05))
        return sum(row.epsilon_mean / row.level for row in rows)

    assert cost(schedule) < min(cost(each) for each in simple)


def test_reach_rows_hold_together(planned: tuple[Ladder, Schedule]) -> None:
    plan = plan_goal(planned[0], DELTA)
    rows = {(row.level, row.share): row for row in plan.reach}
    for row in plan.reach:
        assert 0 <= row.p_pass <= 1
        assert 0 < row.epsilon_mean <= plan.worst_case
        assert row.runs_mean > 0
    for share in (0.5, 0.1):
        means = [rows[level, share].epsilon_mean for level in LEVELS]
        assert means == sorted(means)  # a goal that only higher levels reach costs more
    assert rows[0.1, 0.5].epsilon_mean < rows[0.1, 0.05].epsilon_mean
    assert rows[0.1, 0.5].epsilon_p90 >= min(plan.first_charges)


def test_fewer_attempts_are_respected_and_too_many_refused() -> None:
    ladder = gaussian_ladder()
    assert len(plan_attempts(ladder, delta=DELTA, attempts=2)) == 2
    with pytest.raises(InvalidInput, match="attempts"):
        plan_attempts(ladder, delta=DELTA, attempts=1000)


def test_attempts_share_the_costly_part_of_pricing() -> None:
    """The bounds on competitors are computed once for all attempts over the same levels."""
    from expost.selection import renyi_charges

    levels = tuple(round(0.1 * k, 10) for k in range(1, 11))
    promises = [gaussian_for(each, DELTA).to_renyi(DEFAULT_ORDERS) for each in levels]
    ladder = Ladder(levels, tuple(promises), (162,) * 10)
    renyi_charges._factor_rows.clear()
    sizes = []
    for overhead in (0.03, 0.05, 0.08, 0.13):
        attempt = Attempt(overhead, 0, 1, 0.25)
        Schedule((attempt,)).selector(0, 0.0, delta=DELTA).charges(ladder.candidates(attempt))
        sizes.append(len(renyi_charges._factor_rows))
    assert sizes[-1] < 2 * sizes[0]  # the first attempt computed most of what the others need
