"""Groups that are refined for free: published at the level of the m-th dearest group, with the
interval of a single look, because other groups alone decide on that level.

The argument is in ``refinement``. Simulations have fixed seeds and reject at 1e-8 a check.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

import expost
from expost import SimulationRandomness
from expost.analytics.refinement import Job, Refinement, make_job
from expost.analytics.refinement_goals import GIVEN, RACE, Wanted
from expost.analytics.refinement_noise import LaplaceLevels, half_width
from tests.analytics.jobs import cheap_job

FALSE_ALARM = 1e-8
CITIES = {"Berlin": 1372, "Hamburg": 944, "Munich": 774, "Cologne": 527, "Leipzig": 272}


def test_free_groups_have_the_noise_and_the_interval_of_their_level():
    """Five cities, every person in one.

    All are paid for at the price of the dearest one. Catches large groups that stay at their coarse
    look (Hamburg had a deviation of 34 instead of 14), and intervals made for all levels at once
    (± 72 instead of ± 23).
    """
    errors = []
    for seed in range(40):
        result = expost.count(
            CITIES,
            keys=list(CITIES),
            epsilon=1,
            max_groups_per_user=1,
            randomness=SimulationRandomness(seed),
            simulation=True,
        )
        assert {answer.spent for answer in result.answers} == {result.answers[0].spent}
        level = LaplaceLevels((result.answers[0].spent,))
        dearest = max(result.answers, key=lambda answer: answer.high - answer.low)
        for answer in result.answers:
            if answer is not dearest:
                width = (answer.high - answer.low) / 2
                assert width <= half_width(level, 0.9)[0] * 1.001
                errors.append((answer.estimate - CITIES[answer.group]) * answer.spent)
    # Laplace noise of scale 1: |error| has mean 1 and deviation 1
    assert np.mean(np.abs(errors)) == pytest.approx(1, abs=6 / math.sqrt(len(errors)))


NOBODY = np.zeros(0, dtype=np.int64)


def refined(job: Job, groups: list[int], noisy: np.ndarray) -> Refinement:
    """A refinement of these estimates that has ended."""
    counting = Refinement(job, groups, NOBODY, SimulationRandomness(0))
    counting._estimates = noisy
    list(counting)
    return counting


def misses(job: Job, sizes: np.ndarray, runs: int) -> tuple[np.ndarray, np.ndarray]:
    """How often each group was free, and was free and missed."""
    free, missed = np.zeros(len(sizes)), np.zeros(len(sizes))
    drawn = job.levels.estimates(np.tile(sizes, runs), SimulationRandomness(8))
    for run in range(runs):
        noisy = drawn[:, run * len(sizes) : (run + 1) * len(sizes)]
        counting = refined(job, list(range(len(sizes))), noisy)
        for group in np.flatnonzero(counting._free):
            answer = counting._answer(group)
            free[group] += 1
            missed[group] += not answer.low - 1e-9 <= sizes[group] <= answer.high + 1e-9
    return free, missed


@pytest.mark.parametrize("law", ["laplace", "gaussian"])
@pytest.mark.parametrize("order", [RACE, GIVEN])
def test_free_intervals_cover(law, order):
    """Groups of all sizes, users in two of them, and a total that not all groups can have.

    P(free and missed) ≤ 10 % for each group.
    """
    sizes = np.array([2000, 900, 500, 300, 120, 40, 0])
    total = Fraction(1, 4) if law == "laplace" else Fraction(1, 100)
    job = make_job(
        len(sizes), Wanted(), law=law, total=total, most_groups=2, order=order, max_group=total / 3
    )
    runs = 200
    free, missed = misses(job, sizes, runs)
    assert free.sum() > 0.5 * runs * len(sizes)
    assert (missed <= stats.binom.isf(FALSE_ALARM, runs, 0.1)).all()
    assert missed.sum() > 0.04 * free.sum()  # else the intervals would be far too wide


class Fixed(LaplaceLevels):
    """Levels whose estimates are the values themselves."""

    def estimates(self, counts, randomness):
        return np.repeat(np.asarray(counts, dtype=float)[None], len(self.costs), axis=0)


def free_groups(costs: tuple[float, ...], total: float, most: int, sizes: list[int]) -> list[bool]:
    job = cheap_job(Fixed(costs), Fraction(total), RACE, 0.5, most)
    counting = Refinement(job, list(range(len(sizes))), np.array(sizes), SimulationRandomness(1))
    list(counting)
    return counting._free.tolist()


def test_which_groups_are_free():
    """The paper's rule at 50 % asks for 5 standard deviations: 50, 10 and 5 here."""
    costs = (0.1, 0.5, 1.0)
    assert free_groups(costs, 1.0, 1, [60, 60, 6]) == [True, True, False]
    assert free_groups(costs, 1.0, 1, [60, 6, 6]) == [True, True, True]  # either pays
    assert free_groups(costs, 9.0, 2, [60, 60, 6]) == [True, True, False]
    assert free_groups(costs, 9.0, 3, [60, 60, 6]) == [False, False, False]  # all are charged


def test_no_group_is_free_before_m_groups_were_looked_at():
    """One look uses up the total: catches a group that is published without a look."""
    job = make_job(3, Wanted(None, Fraction(5)), law="laplace", total=Fraction(3, 5), most_groups=2)
    counting = Refinement(job, [0, 1, 2], np.array([9, 9, 9]), SimulationRandomness(1))
    assert [answer.group for answer in counting] == [0]
    assert all(math.isnan(answer.estimate) for answer in counting.unanswered)
    assert not counting._free.any()


@pytest.mark.parametrize("seed", range(4))
def test_the_others_decide(seed):
    """The level of a free group is the one that the other groups reach without it.

    Catches a group that is called free although it changed what the others may look at.
    """
    generator = np.random.default_rng(seed)
    checked = 0
    for trial in range(100):
        sizes = generator.integers(0, 80, 7)
        costs = tuple(np.cumsum(generator.uniform(0.05, 0.4, 5)).tolist())
        most = int(generator.integers(1, 5))
        order = [RACE, GIVEN][trial % 2]
        total = Fraction(float(generator.uniform(costs[0] * most, costs[-1] * most * 1.1)))
        levels = LaplaceLevels(costs)
        noisy = levels.estimates(sizes, SimulationRandomness(trial))
        job = cheap_job(levels, total, order, 0.5, most)
        everyone = refined(job, list(range(len(sizes))), noisy)
        for group in np.flatnonzero(everyone._free):
            others = refined(job, list(range(len(sizes) - 1)), np.delete(noisy, group, axis=1))
            assert others._charge.free_level == everyone._charge.free_level
            checked += 1
    assert checked > 40
