"""The refinement: it never overspends, looks at nothing that is not paid for, and the sum of the m
largest group costs bounds what any transcript tells about a person with all their rows."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reproduction.counting.tables import synthetic
from reproduction.simulated_paths import simulate_laplace_paths

import expost
from expost import SimulationRandomness
from expost.analytics.refinement import Charge, Job, Refinement
from expost.analytics.refinement_goals import GIVEN, RACE
from expost.analytics.refinement_noise import NoiseLevels, geometric_grid
from expost.privacy.dpsgd import gaussian_for
from tests.analytics.jobs import cheap_job, names


class Quick(NoiseLevels):
    """Levels with noise in floating point.

    The sampler would need a new table for every scale that hypothesis thinks of.
    """

    @property
    def scales(self) -> np.ndarray:
        return 1 / np.array(self.costs)

    def estimates(self, counts: Any, randomness: Any) -> Any:
        generator = np.random.default_rng(randomness.bits(32))
        return counts + simulate_laplace_paths(list(self.scales), len(counts), generator)


@st.composite
def jobs(draw: Any) -> tuple[Job, list[int]]:
    counts = draw(st.lists(st.integers(0, 5000), min_size=1, max_size=12))
    total = Fraction(draw(st.floats(0.01, 50)))
    cap = float(total * draw(st.fractions(Fraction(1, 100), 1)))
    first = cap * draw(st.floats(0.001, 1))
    levels = Quick(geometric_grid(first, cap, draw(st.sampled_from([1.1, math.sqrt(2), 2, 5]))))
    most = draw(st.integers(1, len(counts)))
    order = draw(st.sampled_from([RACE, GIVEN]))
    return cheap_job(levels, total, order, draw(st.sampled_from([0.1, 0.5])), most), counts


@settings(max_examples=150, deadline=None)
@given(jobs(), st.integers(0, 2**32))
def test_no_job_overspends(drawn, seed):
    """Exactly, in rationals, at every answer.

    Catches a price in floats, a level paid twice or not at all, a cap that is passed.
    """
    job, counts = drawn
    counting = Refinement(job, names(counts), np.array(counts), SimulationRandomness(seed))
    answers = []
    for answer in counting:
        assert counting.spent <= job.total
        answers.append(answer)
    published = [*answers, *counting.unanswered]
    assert sorted(answer.group for answer in published) == sorted(names(counts))
    dearest = sorted((Fraction(answer.spent) for answer in published), reverse=True)
    assert counting.spent == sum(dearest[: job.most_groups]) <= job.total
    assert counting.remaining == job.total - counting.spent
    costs = list(job.levels.costs)
    assert all(answer.spent in (0.0, *costs) for answer in published)
    for group, level in counting._stopped.items():
        assert counting._estimates[level, group] >= job.rule.least[level]


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.integers(0, 3000), min_size=1, max_size=8),
    st.floats(0.05, 20),
    st.sampled_from([None, 1e-6]),
    st.sampled_from([None, 0.01, 0.5, 100]),
    st.sampled_from([RACE, GIVEN]),
    st.sampled_from([None, 1, 3]),
)
def test_no_count_overspends(counts, epsilon, delta, cap, order, most):
    """The same through the front door, where the grid is chosen and the results are rounded."""
    data = dict(zip(names(counts), counts, strict=True))
    result = expost.count(
        data,
        keys=list(data),
        epsilon=epsilon,
        delta=delta,
        max_group_epsilon=cap,
        group_order=order,
        ratio=2,
        max_groups_per_user=most,
        randomness=SimulationRandomness(1),
        simulation=True,
    )
    total = epsilon if delta is None else make_total(epsilon, delta)
    published = (*result.answers, *result.unanswered)
    dearest = sorted((Fraction(answer.spent) for answer in published), reverse=True)
    assert sum(dearest[: most or len(counts)]) <= Fraction(result.spent) <= Fraction(total)
    assert result.spent <= total
    assert 0 <= result.remaining <= total
    if cap is not None and delta is None:
        assert all(answer.spent <= cap for answer in (*result.answers, *result.unanswered))


def make_total(epsilon: float, delta: float) -> float:
    return gaussian_for(epsilon, delta).rho


@pytest.mark.parametrize("order", [RACE, GIVEN])
@pytest.mark.parametrize("delta", [None, 1e-6])
def test_a_seed_decides_everything(order, delta):
    """Catches randomness from anywhere else, and an order that depends on hashes."""

    def run(seed: int) -> expost.analytics.query.CountResult:
        data = {f"g{size}": size for size in (3000, 900, 500, 40, 0)}
        options = {
            "group_order": order,
            "delta": delta,
            "randomness": SimulationRandomness(seed),
            "simulation": True,
        }
        return expost.count(data, keys=list(data), epsilon=3, **options)

    assert run(7) == run(7)
    assert run(7) != run(8)


def test_an_absent_group_counts_nothing():
    """Keys are public: catches a key that is left out because the data has no such group."""
    result = expost.count(
        {"a": 10**6},
        keys=["a", "no such"],
        epsilon=1000,
        randomness=SimulationRandomness(1),
        simulation=True,
    )
    assert [answer.group for answer in result.answers] == ["a"]
    assert [(answer.group, answer.estimate) for answer in result.unanswered] == [("no such", 0.0)]


def test_racing_beats_a_random_order():
    """Shuffled synthetic groups: catches a race that refines the wrong group first."""
    generator = np.random.default_rng(3)
    answered: dict[str, list[int]] = {RACE: [], GIVEN: []}
    for trial in range(4):
        sizes = generator.permutation(synthetic("S8000", 1, generator)[0]).astype(int)
        data = {f"g{place}": int(size) for place, size in enumerate(sizes)}
        for order, numbers in answered.items():
            randomness = SimulationRandomness(trial)
            result = expost.count(
                data,
                keys=list(data),
                epsilon=10,
                group_order=order,
                randomness=randomness,
                simulation=True,
            )
            numbers.append(len(result.answers))
    assert np.mean(answered[RACE]) > 1.5 * np.mean(answered[GIVEN])
    assert np.mean(answered[RACE]) > 10


def test_a_prior_sorts():
    """Public expectations, largest first.

    Groups that it does not name come last, in their order.
    """
    data = {"small": 2000, "large": 9000, "unknown": 5000}
    result = expost.count(
        data,
        keys=list(data),
        prior={"large": 9000, "small": 10},
        epsilon=50,
        randomness=SimulationRandomness(1),
        simulation=True,
    )
    assert [answer.group for answer in result.answers] == ["large", "small", "unknown"]


class TestInput:
    """What is refused, with a message that says what would do."""

    @pytest.mark.parametrize("number", [-1, 1.5, "3", True, None, 2**53, 10**30, float("nan")])
    def test_counts_are_whole_numbers(self, number):
        """10^30 used to end in an OverflowError, 2^63 − 1 in a count that wrapped around."""
        with pytest.raises(expost.ExpostError, match="whole numbers"):
            expost.count({"a": number}, keys=["a"], epsilon=1)

    @pytest.mark.parametrize(
        ("options", "field"),
        [
            ({"keys": None}, "keys"),
            ({"keys": []}, "keys"),
            ({"keys": "a"}, "keys"),
            ({"keys": ["a", "a"]}, "keys"),
            ({"keys": ["a"], "private_keys": True, "delta": 1e-6}, "keys"),
            ({"keys": None, "private_keys": True}, "delta"),
            ({"keys": None, "private_keys": True, "delta": 1e-6}, "private_keys"),
            ({"epsilon": 0}, "epsilon"),
            ({"epsilon": float("nan")}, "epsilon"),
            ({"epsilon": float("inf")}, "epsilon"),
            ({"delta": 0}, "delta"),
            ({"delta": 1}, "delta"),
            ({"delta": -1e-9}, "delta"),
            ({"group_order": "random"}, "group_order"),
            ({"rule": "none"}, "rule"),
            ({"within": 0}, "within"),
            ({"confidence": 1}, "confidence"),
            ({"ratio": 1}, "ratio"),
            ({"max_group_epsilon": 0}, "max_group_epsilon"),
            ({"max_groups_per_user": 0}, "max_groups_per_user"),
            ({"prior": {"a": "many"}}, "prior"),
            ({"prior": {"a": float("nan")}}, "prior"),
        ],
    )
    def test_options(self, options, field):
        with pytest.raises(expost.ExpostError, match=field):
            expost.count({"a": 5}, **({"keys": ["a"], "epsilon": 1} | options))

    def test_columns_are_needed_with_a_table(self):
        with pytest.raises(expost.ExpostError, match="by, user"):
            expost.count([{"u": 1, "g": 2}], keys=["a"], epsilon=1)

    def test_seeded_randomness_is_refused(self):
        with pytest.raises(expost.errors.SimulationOnly):
            expost.count({"a": 5}, keys=["a"], epsilon=1, randomness=SimulationRandomness(1))


@given(
    st.lists(st.integers(-1, 3), min_size=1, max_size=9),
    st.integers(1, 9),
    st.integers(0, 8),
    st.integers(0, 3),
)
def test_the_charge_is_the_sum_of_the_largest(levels, most, group, wanted):
    """Against sorting. Catches a group counted twice, and a preview that differs from paying."""
    costs = (0.1, 0.3, 0.7, 1.5)
    charge = Charge(costs, len(levels), most)
    for place, level in enumerate(levels):
        if level >= 0:
            charge.pay(np.array([place]), level)

    def largest(levels: list[int]) -> Fraction:
        paid = sorted((Fraction(costs[level]) for level in levels if level >= 0), reverse=True)
        return sum(paid[:most], Fraction(0))

    assert charge.spent == largest(levels)
    place = group % len(levels)
    moved = [*levels[:place], max(wanted, levels[place]), *levels[place + 1 :]]
    assert charge.after(place, wanted) == largest(moved)
    before = charge.free_level
    if before >= 0:
        charge.pay(np.flatnonzero(charge.level < before), before)
        assert charge.spent == largest(levels)


def test_the_first_look_costs_next_to_nothing():
    """One group of 100,000 at ε = 10."""
    result = expost.count({"a": 100_000}, keys=["a"], epsilon=10)
    assert len(result.answers) == 1
    assert result.spent <= 0.002


@pytest.mark.parametrize(("within", "most"), [(0.1, 0.95), (0.2, 0.5)])
def test_easy_errors_leave_most_of_the_budget(within, most):
    """1,000 groups, users in at most 3.

    All answered, and far below ε = 1 where the error is easy.
    """
    sizes = np.arange(1, 1001) ** -0.8
    counts = (600_000 * sizes / sizes.sum()).astype(int)
    data = {f"g{place}": int(size) for place, size in enumerate(counts)}
    result = expost.count(
        data,
        keys=list(data),
        epsilon=1,
        within=within,
        max_groups_per_user=3,
        randomness=SimulationRandomness(4),
        simulation=True,
    )
    assert len(result.answers) == 1000
    assert result.spent <= most
