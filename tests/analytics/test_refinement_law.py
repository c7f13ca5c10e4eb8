"""What all transcripts of small jobs tell: at most the sum of the m largest group costs."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from expost.analytics.contribution import Measure, measured, pair_columns, run_totals, totals
from expost.analytics.refinement import Answer, Job, Refinement
from expost.analytics.refinement_goals import GIVEN, RACE
from expost.analytics.refinement_noise import LaplaceLevels, StoppingRule, half_width
from expost.tables.sources import as_table
from tests.analytics import laws
from tests.analytics.jobs import cheap_job, shared


class Unread(Exception):
    """The job wants to see a value that has not been decided on yet."""


class Unpaid(AssertionError):
    """The job looked at a level that it has not paid for."""


class Watched:
    """Stands in for the estimates.

    Hands out values one by one, and only those whose level has been paid for.
    """

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
    """Every transcript that values from the window can lead to, each with the values that were
    looked at.
    """
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
    """The chance of each transcript (of the part of it inside the window) when these are the
    counts.
    """
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
    """Two tables that differ in one person with all their rows, and every transcript of a small
    job.

    A transcript is all that is released: answers in order, unanswered groups, what each cost and
    the total. Its chance is a sum over values that were looked at but not released, here over a
    window; as each term obeys the bound, the sum over any window does, and a violation inside the
    window is a violation. ``Watched`` fails the job if it looks at anything before paying.
    """

    @pytest.mark.parametrize("person", ["ann", "bob", "dan"])
    def test_no_transcript_tells_more_than_it_cost(self, enumerated, person):
        """Catches wrong prices, decisions by values not paid for, and counts that one person
        changes by more than one.
        """
        leaves, costs, total = enumerated
        counts = true_counts(PERSON_IN_BOTH)
        without = true_counts([pair for pair in PERSON_IN_BOTH if pair[0] != person])
        assert counts == [3, 2]
        assert max(a - b for a, b in zip(counts, without, strict=True)) == 1
        here, there = (law_of(leaves, costs, each, coupled) for each in (counts, without))
        assert loss(here, there) <= 1e-9
        assert all(each[2] <= Fraction(total) for each in here)

    def test_someone_in_both_groups_uses_it_up(self, enumerated):
        """An instance at equality.

        Some transcript tells all that it cost, so nothing is charged in vain.
        """
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
    """The test of the test.

    A job that peeks at the finest level before paying for it is stopped.
    """

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


@pytest.fixture(scope="module", params=CAPPED, ids=lambda job: f"{job[0]}-{job[1]}")
def capped(request: pytest.FixtureRequest) -> tuple[list[Leaf], tuple[float, ...]]:
    order, costs, total = request.param
    return small_job(order, costs, total, 1), costs


class TestTheLargestByEnumeration:
    """Users are in at most one of two groups, all groups are looked at, one is charged."""

    @pytest.mark.parametrize("without", [[2, 2], [3, 1]])
    def test_no_transcript_tells_more_than_the_dearest_group(self, capped, without):
        """Both choices of the user's group. Catches a charge below the sum of the m largest."""
        leaves, costs = capped
        here, there = (law_of(leaves, costs, each, coupled) for each in ([3, 2], without))
        assert loss(here, there) <= 1e-9
        assert max(each[2] for each in here) <= Fraction(max(costs))

    def test_some_transcript_uses_it_up(self, capped):
        """Near equality: the user's group is the most expensive one."""
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
        """The mutant must fail.

        Without the user somebody else moves from one group to the other.
        """
        leaves, costs = capped
        here, there = (law_of(leaves, costs, each, coupled) for each in ([3, 2], [1, 3]))
        assert loss(here, there) > 0.3

    def test_all_groups_are_looked_at(self, capped):
        """Looking at every group is free up to the most expensive one."""
        leaves, _ = capped
        for (answers, others, spent), _ in leaves:
            assert all(Fraction(answer.spent) == spent for answer in (*answers, *others))
