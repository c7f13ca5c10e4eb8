"""Finding out privately which groups exist: exactly (ε, δ), by enumeration of all sets that could be released.

The sampler is compared with the law at 1e-6 a check (four checks, fixed seeds).
"""

from __future__ import annotations

import math
from itertools import combinations, product

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

import expost
from expost import SimulationRandomness
from expost.analytics.private_keys import select_groups, threshold
from expost.analytics.sources import as_table, count_bounded, pair_columns
from expost.errors import InvalidInput

FALSE_ALARM = 1e-6
Histogram = dict[str, int]


def passing(count: int, limit: int, epsilon: float, contributions: int) -> float:
    """P(count + Z ≥ limit) for discrete Laplace noise of scale contributions/ε; a group nobody is in is not there at all."""
    if count == 0:
        return 0.0
    p = math.exp(-epsilon / contributions)
    least = limit - count
    return p**least / (1 + p) if least > 0 else 1 - p ** (1 - least) / (1 + p)


def released_sets(
    histogram: Histogram, names: list[str], limit: int, epsilon: float, contributions: int
) -> list[float]:
    """The chance of each set of groups."""
    chances = [passing(histogram.get(name, 0), limit, epsilon, contributions) for name in names]
    sets = product((False, True), repeat=len(names))
    return [
        math.prod(c if inside else 1 - c for c, inside in zip(chances, each, strict=True))
        for each in sets
    ]


def hockey_stick(
    one: Histogram, other: Histogram, limit: int, epsilon: float, contributions: int
) -> float:
    """Σ over sets of (A(S) − e^ε·A′(S))₊: the smallest δ for this pair."""
    names = sorted({*one, *other})
    laws = [released_sets(each, names, limit, epsilon, contributions) for each in (one, other)]
    return math.fsum(max(a - math.exp(epsilon) * b, 0.0) for a, b in zip(*laws, strict=True))


def without(histogram: Histogram, groups: tuple[str, ...]) -> Histogram:
    """The histogram when a person who is in these groups goes."""
    return {
        name: count - (name in groups)
        for name, count in histogram.items()
        if count > (name in groups)
    }


HISTOGRAMS = [
    {"a": 1},
    {"a": 1, "b": 1, "c": 1},
    {"a": 2, "b": 1, "c": 9, "d": 1},
    {"a": 5, "b": 6, "c": 7},
]


@pytest.mark.parametrize("contributions", [1, 2, 3])
@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 1e-6), (1.0, 0.01), (3.0, 0.2), (0.05, 1e-3)])
def test_the_selection_is_private(contributions, epsilon, delta):
    """Every small histogram, every person in it, both ways. Catches a threshold too low and noise too small for many groups."""
    limit = threshold(epsilon, delta, contributions)
    for histogram in HISTOGRAMS:
        for size in range(1, min(contributions, len(histogram)) + 1):
            for groups in combinations(histogram, size):
                smaller = without(histogram, groups)
                for one, other in ((histogram, smaller), (smaller, histogram)):
                    assert hockey_stick(one, other, limit, epsilon, contributions) <= delta


@pytest.mark.parametrize("contributions", [1, 2, 3, 10])
@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-6), (1.0, 5e-7), (5.0, 0.01)])
def test_the_threshold_is_just_high_enough(contributions, epsilon, delta):
    """One person alone passes with at most δ/contributions; two steps lower they would not (one step is left for rounding)."""
    limit = threshold(epsilon, delta, contributions)
    assert passing(1, limit, epsilon, contributions) <= delta / contributions
    assert passing(1, limit - 2, epsilon, contributions) > delta / contributions


def test_a_threshold_for_one_group_is_not_enough_for_three():
    """The mutant must fail: the threshold that would do if each person were in one group, with noise for three."""
    epsilon, delta = 1.0, 0.01
    everything = {"a": 1, "b": 1, "c": 1}
    limit = threshold(epsilon, delta, 1)
    assert hockey_stick(everything, {}, limit, epsilon, 3) > delta


def test_noise_for_one_group_is_not_enough_for_three():
    """The mutant must fail: groups that exist either way, whose noise is scaled to one group."""
    epsilon, delta = 1.0, 1e-4
    many = {"a": 9, "b": 9, "c": 9}
    limit = threshold(epsilon, delta, 1)
    assert hockey_stick(many, without(many, ("a", "b", "c")), limit, epsilon, 1) > delta


@pytest.mark.parametrize("contributions", [1, 3])
@pytest.mark.parametrize("count", [3, 12])
def test_groups_pass_as_often_as_the_law_says(contributions, count):
    """Catches noise of another scale than the threshold is made for."""
    draws, epsilon, delta = 100_000, 1.0, 0.01
    passed = select_groups(
        np.full(draws, count), epsilon, delta, contributions, SimulationRandomness(count)
    )
    chance = passing(count, threshold(epsilon, delta, contributions), epsilon, contributions)
    assert stats.binomtest(int(passed.sum()), draws, chance).pvalue > FALSE_ALARM


@pytest.mark.parametrize("delta", [0, 1, -0.1, 2, float("nan")])
def test_delta_lies_between_0_and_1(delta):
    with pytest.raises(InvalidInput, match="delta"):
        select_groups(np.array([5]), 1.0, delta, 1, SimulationRandomness(1))


@pytest.mark.parametrize("contributions", [0, -1, 1.5, True, "2"])
def test_contributions_are_whole_numbers(contributions):
    with pytest.raises(InvalidInput, match="max_groups_per_user"):
        select_groups(np.array([5]), 1.0, 0.01, contributions, SimulationRandomness(1))


def bounded(pairs: list[tuple[str | None, str | None]], contributions: int) -> Histogram:
    table = as_table(
        pa.table({"u": [user for user, _ in pairs], "g": [group for _, group in pairs]})
    )
    found = count_bounded(pair_columns(table, "g", "u"), contributions)
    return dict(zip(found.groups, found.counts.tolist(), strict=True))


BUSY = [("busy", f"group {place:03}") for place in range(100)]
OTHERS = [(f"user {place}", f"group {place % 7:03}") for place in range(30)]


class TestBounding:
    """In the engine each person counts in at most so many groups, whatever their rows say."""

    @pytest.mark.parametrize("most", [1, 3, 10, 100, 1000])
    def test_a_person_in_a_hundred_groups_counts_in_at_most_so_many(self, most):
        """Catches a bound on rows instead of groups: all rows are there three times."""
        assert bounded(BUSY * 3, most) == {
            f"group {place:03}": 1 for place in range(min(most, 100))
        }

    @pytest.mark.parametrize("most", [1, 3, 10])
    def test_a_person_moves_so_many_counts_by_one(self, most):
        """What the noise is scaled to; catches a choice of groups that depends on other people."""
        here, there = bounded(BUSY + OTHERS, most), bounded(OTHERS, most)
        moved = {group: here.get(group, 0) - there.get(group, 0) for group in {*here, *there}}
        assert sorted(moved.values(), reverse=True)[:most] == [1] * most
        assert sum(map(abs, moved.values())) == most

    def test_rows_of_nobody_or_nowhere_do_not_count(self):
        """Catches NULL as a user of its own, which would use up nobody's contributions, and a group called None."""
        assert bounded([(None, "a"), ("x", None), ("x", "b"), (None, None)], 1) == {"b": 1}

    def test_names_come_from_the_selection_only(self):
        """Catches the data's own distinct values: 500 groups of one person each, none of which may appear."""
        table = pa.table({"u": list(range(500)), "g": [f"g{place}" for place in range(500)]})
        result = expost.count(table, by="g", user="u", private_keys=True, epsilon=1, delta=1e-9)
        assert (result.answers, result.unanswered) == ((), ())
