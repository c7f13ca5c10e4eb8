"""The refinement: it never overspends, looks at nothing that is not paid for, and the sum of the m
largest group costs bounds what any transcript tells about a person with all their rows."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reproduction.counting.tables import synthetic

import expost
from expost import SimulationRandomness
from expost.analytics.columns import Measure, pair_columns
from expost.analytics.contribution import measured, run_totals, totals
from expost.analytics.intervals import StoppingRule, half_width, paper_least
from expost.analytics.noise_levels import LaplaceLevels, NoiseLevels, geometric_grid
from expost.analytics.refinement import GIVEN, RACE, Answer, Charge, Job, Refinement
from expost.analytics.sources import as_table
from expost.mechanisms.noise_paths import simulate_laplace_paths
from expost.privacy.conversions import gaussian_for
from tests.analytics import laws


def cheap_job(
    levels: NoiseLevels, total: Fraction, order: str, within: float = 0.1, most: int = 10**6
) -> Job:
    """A job whose rule needs no calibration: fit for everything but coverage."""
    widths = half_width(levels, 0.9)
    return Job(
        levels,
        StoppingRule(within, 0.9, "paper", 1.0, paper_least(levels, within), widths, widths),
        total,
        order,
        most,
        shared(levels, total, most),
    )


def shared(levels: NoiseLevels, total: Fraction, most: int) -> int:
    """The finest level that ``most`` groups can afford, at least the first."""
    return max([0, *(n for n, cost in enumerate(levels.costs) if Fraction(cost) * most <= total)])


def names(counts: list[int]) -> list[str]:
    return [f"g{place}" for place in range(len(counts))]


class Quick(NoiseLevels):
    """Levels with noise in floating point: the sampler would need a new table for every scale that hypothesis thinks of."""

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
    if order == RACE:  # every group is looked at once at least
        first = min(levels.costs[0], float(total) / most * 0.99)
        levels = Quick((first, *(cost for cost in levels.costs if cost > first)))
    return cheap_job(levels, total, order, draw(st.sampled_from([0.1, 0.5])), most), counts


@settings(max_examples=150, deadline=None)
@given(jobs(), st.integers(0, 2**32))
def test_no_job_overspends(drawn, seed):
    """Exactly, in rationals, at every answer: catches a price in floats, a level paid twice or not at all, a cap that is passed."""
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
        order=order,
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
            "order": order,
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


class Unread(Exception):
    """The job wants to see a value that has not been decided on yet."""


class Unpaid(AssertionError):
    """The job looked at a level that it has not paid for."""


class Watched:
    """Stands in for the estimates: hands out values one by one, and only those whose level has been paid for."""

    def __init__(self, values: dict[tuple[int, int], int]) -> None:
        self.values = values
        self.counting: Refinement | None = None

    def __getitem__(self, place: tuple[int, Any]) -> Any:
        if isinstance(place[1], np.ndarray):
            return np.array([self[place[0], int(group)] for group in place[1]], dtype=float)
        level, group = int(place[0]), int(place[1])
        if level > self.counting._charge.level[group] or level < 0:
            raise Unpaid(place)
        if (level, group) not in self.values:
            raise Unread(level, group)
        return self.values[level, group]


class WatchedLevels(LaplaceLevels):
    """Laplace levels whose estimates are the ones set."""

    def estimates(self, counts: Any, randomness: Any) -> Any:
        return Watched({})


Transcript = tuple[tuple[Answer, ...], tuple[Answer, ...], Fraction]
Leaf = tuple[Transcript, dict[tuple[int, int], int]]


def transcripts(job: Job, window: range) -> Iterator[Leaf]:
    """Every transcript that values from the window can lead to, each with the values that were looked at."""
    pending: list[dict[tuple[int, int], int]] = [{}]
    while pending:
        values = pending.pop()
        counting = Refinement(job, ["a", "b"], np.zeros(2, dtype=np.int64), None)
        counting._estimates.values, counting._estimates.counting = values, counting
        try:
            answers = tuple(counting)
            yield (answers, tuple(counting.unanswered), counting.spent), values
        except Unread as place:
            pending.extend({**values, place.args: value} for value in window)


def coupled(costs: tuple[float, ...], noise: list[int]) -> float:
    return laws.path(costs, noise)


def independent(costs: tuple[float, ...], noise: list[int]) -> float:
    """The mutant: fresh noise at each level, and still only the last is paid for."""
    return math.prod(
        float(laws.laplace(cost, value)) for cost, value in zip(costs, noise, strict=False)
    )


def law_of(
    leaves: list[Leaf], costs: tuple[float, ...], counts: list[int], chance: Callable[..., float]
) -> dict[Transcript, float]:
    """The chance of each transcript (of the part of it inside the window) when these are the counts."""
    law: dict[Transcript, float] = defaultdict(float)
    for transcript, values in leaves:
        product = 1.0
        for group, count in enumerate(counts):
            looks = [
                values[level, group] - count
                for level in range(len(costs))
                if (level, group) in values
            ]
            product *= chance(costs, looks) if looks else 1.0
        law[transcript] += product
    return law


def loss(
    law: dict[Transcript, float],
    other: dict[Transcript, float],
    charge: Callable[[Transcript], float] = lambda transcript: float(transcript[2]),
) -> float:
    """By how much the worst transcript exceeds what it says it cost."""
    return max(abs(math.log(law[each] / other[each])) - charge(each) for each in law)


PERSON_IN_BOTH = [
    ("ann", "a"),
    ("ann", "b"),
    ("bob", "a"),
    ("cem", "a"),
    ("dan", "b"),
    ("ann", "a"),
    ("bob", "a"),
]


def true_counts(pairs: list[tuple[str, str]]) -> list[int]:
    """Through the engine, as the job gets them."""
    table = as_table({"u": [user for user, _ in pairs], "g": [group for _, group in pairs]})
    pairs = measured(pair_columns(table, "g", "u"), Measure(), ["a", "b"], "salt")
    return run_totals(totals(pairs, None, "salt")).on(["a", "b"]).first.tolist()


JOBS = [
    (RACE, (0.5, 1.0, 2.0), 2.5),
    (GIVEN, (0.5, 1.0, 2.0), 2.5),
    (RACE, (1.0, 1.7), 2.9),
    (GIVEN, (0.3, 1.2), 1.6),
]
LEAST = np.array([6.0, 3.5, 1.5])  # of each level; values in the window lie on both sides


@pytest.fixture(scope="module", params=JOBS, ids=lambda job: f"{job[0]}-{len(job[1])}-levels")
def enumerated(request: pytest.FixtureRequest) -> tuple[list[Leaf], tuple[float, ...], float]:
    """All transcripts of a small job: two groups, values −4 … 7 at each look."""
    order, costs, total = request.param
    levels = WatchedLevels(costs)
    widths = half_width(levels, 0.5)
    job = Job(
        levels,
        StoppingRule(0.5, 0.5, "test", 1.0, LEAST[: len(costs)], widths, widths),
        Fraction(total),
        order,
        2,
        0,
    )
    leaves = list(transcripts(job, range(-4, 8)))
    levels_seen = {
        answer.spent for (answers, others, _), _ in leaves for answer in (*answers, *others)
    }
    assert levels_seen >= set(
        costs
    )  # the small job does all that a job can do: stop, go on, run out
    assert any(answers for (answers, _, _), _ in leaves)
    return leaves, costs, total


class TestGuaranteeByEnumeration:
    """Two tables that differ in one person with all their rows, and every transcript of a small job.

    A transcript is all that is released: answers in order, unanswered groups, what each cost and the total. Its chance is a sum over
    values that were looked at but not released, here over a window; as each term obeys the bound, the sum over any window does, and a
    violation inside the window is a violation. ``Watched`` fails the job if it looks at anything before paying.
    """

    @pytest.mark.parametrize("person", ["ann", "bob", "dan"])
    def test_no_transcript_tells_more_than_it_cost(self, enumerated, person):
        """Catches wrong prices, decisions by values not paid for, and counts that one person changes by more than one."""
        leaves, costs, total = enumerated
        counts = true_counts(PERSON_IN_BOTH)
        without = true_counts([pair for pair in PERSON_IN_BOTH if pair[0] != person])
        assert counts == [3, 2]
        assert max(a - b for a, b in zip(counts, without, strict=True)) == 1
        here, there = (law_of(leaves, costs, each, coupled) for each in (counts, without))
        assert loss(here, there) <= 1e-9
        assert all(each[2] <= Fraction(total) for each in here)

    def test_someone_in_both_groups_uses_it_up(self, enumerated):
        """An instance at equality: some transcript tells all that it cost, so nothing is charged in vain."""
        leaves, costs, _ = enumerated
        here, there = (law_of(leaves, costs, each, coupled) for each in ([3, 2], [2, 1]))
        assert loss(here, there) == pytest.approx(0, abs=1e-9)

    def test_fresh_noise_at_each_level_tells_more(self, enumerated):
        """The mutant must fail: the level before says something too, if its noise is fresh."""
        leaves, costs, _ = enumerated
        here, there = (law_of(leaves, costs, each, independent) for each in ([3, 2], [2, 1]))
        assert loss(here, there) > 0.01

    def test_someone_counted_twice_tells_more(self, enumerated):
        """The mutant must fail: rows instead of persons."""
        leaves, costs, _ = enumerated
        here, there = (law_of(leaves, costs, each, coupled) for each in ([4, 2], [2, 1]))
        assert loss(here, there) > 0.1


def test_the_watch_catches_a_look_at_the_future():
    """The test of the test: a job that peeks at the finest level before paying for it is stopped."""

    class Peeking(Refinement):
        def _good(self, level: int, group: int) -> bool:
            return bool(self._estimates[len(self.job.levels.costs) - 1, group] > 0)

    levels = WatchedLevels((0.5, 1.0))
    counting = Peeking(
        cheap_job(levels, Fraction(3), GIVEN), ["a", "b"], np.zeros(2, dtype=np.int64), None
    )
    counting._estimates.counting = counting
    with pytest.raises(Unpaid):
        list(counting)


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
                order=order,
                randomness=randomness,
                simulation=True,
            )
            numbers.append(len(result.answers))
    assert np.mean(answered[RACE]) > 1.5 * np.mean(answered[GIVEN])
    assert np.mean(answered[RACE]) > 10


def test_a_prior_sorts():
    """Public expectations, largest first; groups that it does not name come last, in their order."""
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
            ({"order": "random"}, "order"),
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


def small_job(order: str, costs: tuple[float, ...], total: float, most: int) -> list[Leaf]:
    """All transcripts of a job with two groups of which a user is in at most ``most``."""
    levels = WatchedLevels(costs)
    widths = half_width(levels, 0.5)
    rule = StoppingRule(0.5, 0.5, "test", 1.0, LEAST[: len(costs)], widths, widths)
    exact = Fraction(total)
    job = Job(levels, rule, exact, order, most, shared(levels, exact, most))
    return list(transcripts(job, range(-2, 6)))


CAPPED = [
    (RACE, (0.5, 1.0), 1.0),
    (GIVEN, (0.5, 1.0), 1.0),
    (RACE, (0.4, 0.9), 0.6),
    (GIVEN, (1.0, 1.7), 1.7),
]


def fewer_largest(transcript: Transcript) -> float:
    """The mutant's charge: the m − 1 largest costs, here none."""
    return 0.0


class TestTheLargestByEnumeration:
    """Users are in at most one of two groups, all groups are looked at, one is charged."""

    @pytest.fixture(scope="class", params=CAPPED, ids=lambda job: f"{job[0]}-{job[1]}")
    def capped(self, request: pytest.FixtureRequest) -> tuple[list[Leaf], tuple[float, ...]]:
        order, costs, total = request.param
        return small_job(order, costs, total, 1), costs

    @pytest.mark.parametrize("without", [[2, 2], [3, 1]])
    def test_no_transcript_tells_more_than_the_dearest_group(self, capped, without):
        """Both choices of the user's group. Catches a charge below the sum of the m largest."""
        leaves, costs = capped
        here, there = (law_of(leaves, costs, each, coupled) for each in ([3, 2], without))
        assert loss(here, there) <= 1e-9
        assert max(each[2] for each in here) <= Fraction(max(costs))

    def test_some_transcript_uses_it_up(self, capped):
        """Near equality: the user's group is the dearest one."""
        leaves, costs = capped
        laws_of = [law_of(leaves, costs, each, coupled) for each in ([3, 2], [2, 2], [3, 1])]
        closest = max(loss(laws_of[0], laws_of[1]), loss(laws_of[0], laws_of[2]))
        assert closest == pytest.approx(0, abs=1e-9)

    def test_one_fewer_is_not_enough(self, capped):
        """The mutant must fail: m − 1 largest."""
        leaves, costs = capped
        here, there = (law_of(leaves, costs, each, coupled) for each in ([3, 2], [2, 2]))
        assert loss(here, there, fewer_largest) > 0.3

    def test_a_cap_after_counting_is_not_enough(self, capped):
        """The mutant must fail: the user still counts in both groups."""
        leaves, costs = capped
        here, there = (law_of(leaves, costs, each, coupled) for each in ([3, 2], [2, 1]))
        assert loss(here, there) > 0.3

    def test_a_choice_that_depends_on_others_is_not_enough(self, capped):
        """The mutant must fail: without the user somebody else moves from one group to the other."""
        leaves, costs = capped
        here, there = (law_of(leaves, costs, each, coupled) for each in ([3, 2], [1, 3]))
        assert loss(here, there) > 0.3

    def test_all_groups_are_looked_at(self, capped):
        """Looking at every group is free up to the dearest one."""
        leaves, _ = capped
        for (answers, others, spent), _ in leaves:
            assert all(Fraction(answer.spent) == spent for answer in (*answers, *others))


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
    moved = [*levels[:place], wanted, *levels[place + 1 :]]
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
    """1,000 groups, users in at most 3: all answered, and far below ε = 1 where the error is easy."""
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
