"""Finding out privately which groups exist: exactly (ε, δ), by enumeration of all sets that could
be released.

The sampler is compared with the law at 1e-6 a check (four checks, fixed seeds).
"""

from __future__ import annotations

import math
from itertools import combinations, product
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

import expost
from expost import SimulationRandomness
from expost.analytics.contribution import Measure, measured, pair_columns, run_totals, totals
from expost.analytics.private_keys import (
    KeySelection,
    best_selection,
    gaussian_threshold,
    laplace_threshold,
)
from expost.errors import InvalidInput
from expost.tables.sources import as_table
from tests.analytics import laws

FALSE_ALARM = 1e-6
Histogram = dict[str, int]


def passing(count: int, limit: int, epsilon: float, contributions: int) -> float:
    """P(count + Z ≥ limit) for discrete Laplace noise of scale contributions/ε.

    A group nobody is in is not there at all.
    """
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
    """Every small histogram, every person in it, both ways.

    Catches a threshold too low and noise too small for many groups.
    """
    limit = laplace_threshold(epsilon, delta, contributions)
    for histogram in HISTOGRAMS:
        for size in range(1, min(contributions, len(histogram)) + 1):
            for groups in combinations(histogram, size):
                smaller = without(histogram, groups)
                for one, other in ((histogram, smaller), (smaller, histogram)):
                    assert hockey_stick(one, other, limit, epsilon, contributions) <= delta


@pytest.mark.parametrize("contributions", [1, 2, 3, 10])
@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-6), (1.0, 5e-7), (5.0, 0.01)])
def test_the_threshold_is_just_high_enough(contributions, epsilon, delta):
    """No group of one person passes but with chance δ; one step lower it would."""
    limit = laplace_threshold(epsilon, delta, contributions)

    def any_of(chance: float) -> float:
        return -math.expm1(contributions * math.log1p(-chance))

    assert any_of(passing(1, limit, epsilon, contributions)) <= delta
    assert any_of(passing(1, limit - 1, epsilon, contributions)) > delta * (1 - 1e-6)


def test_a_threshold_for_one_group_is_not_enough_for_three():
    """The mutant must fail.

    The threshold that would do if each person were in one group, with noise for three.
    """
    epsilon, delta = 1.0, 0.01
    everything = {"a": 1, "b": 1, "c": 1}
    limit = laplace_threshold(epsilon, delta, 1)
    assert hockey_stick(everything, {}, limit, epsilon, 3) > delta


def test_noise_for_one_group_is_not_enough_for_three():
    """The mutant must fail: groups that exist either way, whose noise is scaled to one group."""
    epsilon, delta = 1.0, 1e-4
    many = {"a": 9, "b": 9, "c": 9}
    limit = laplace_threshold(epsilon, delta, 1)
    assert hockey_stick(many, without(many, ("a", "b", "c")), limit, epsilon, 1) > delta


@pytest.mark.parametrize("contributions", [1, 3])
@pytest.mark.parametrize("count", [3, 12])
def test_groups_pass_as_often_as_the_law_says(contributions, count):
    """Catches noise of another scale than the threshold is made for."""
    draws, epsilon, delta = 100_000, 1.0, 0.01
    limit = laplace_threshold(epsilon, delta, contributions)
    selection = KeySelection("laplace", epsilon, delta, contributions, limit)
    passed = selection.select(np.full(draws, count), SimulationRandomness(count))
    chance = passing(
        count, laplace_threshold(epsilon, delta, contributions), epsilon, contributions
    )
    assert stats.binomtest(int(passed.sum()), draws, chance).pvalue > FALSE_ALARM


@pytest.mark.parametrize("delta", [0, 1, -0.1, 2, float("nan")])
def test_delta_lies_between_0_and_1(delta):
    with pytest.raises(InvalidInput, match="delta"):
        best_selection(1.0, delta, 1)


@pytest.mark.parametrize("contributions", [0, -1, 1.5, True, "2"])
def test_contributions_are_whole_numbers(contributions):
    with pytest.raises(InvalidInput, match="max_groups_per_user"):
        best_selection(1.0, 0.01, contributions)


def gaussian_passing(count: int, limit: int, variance: float) -> float:
    """P(count + Z ≥ limit) for discrete Gaussian noise; a group nobody is in is not there."""
    reach = np.arange(limit - count, limit - count + int(60 * variance**0.5) + 60)
    return float(laws.gaussian(variance, reach).sum()) if count else 0.0


@pytest.mark.parametrize("contributions", [1, 2, 5])
@pytest.mark.parametrize(("rho", "delta"), [(0.01, 1e-6), (0.2, 1e-3), (2.0, 0.05)])
def test_the_gaussian_threshold_hides_one_person(contributions, rho, delta):
    """Exact: m groups of one person, none may show but with chance δ; three steps lower they do."""
    limit = gaussian_threshold(rho, delta, contributions)
    chance = gaussian_passing(1, limit, contributions / (2 * rho))
    assert 1 - (1 - chance) ** contributions <= delta
    lower = gaussian_passing(1, limit - 3, contributions / (2 * rho))
    assert 1 - (1 - lower) ** contributions > delta * 0.9


@pytest.mark.parametrize("contributions", [1, 2, 3])
@pytest.mark.parametrize(("rho", "delta"), [(0.02, 1e-3), (0.5, 0.01)])
def test_gaussian_selection_is_approximately_zcdp(contributions, rho, delta):
    """Without the event that a group of one person shows, Rényi divergences are at most ρα.

    Catches noise for fewer groups than a user is in.
    """
    variance = contributions / (2 * rho)
    limit = gaussian_threshold(rho, delta, contributions)
    for order in (1.5, 2.0, 8.0, 32.0):
        moment = 0.0
        for chances in ((9, 8), (8, 9)):
            p, q = (gaussian_passing(count, limit, variance) for count in chances)
            both = p**order * q ** (1 - order) + (1 - p) ** order * (1 - q) ** (1 - order)
            moment = max(moment, contributions * math.log(both) / (order - 1))
        assert moment <= rho * order


def test_gaussian_noise_beats_laplace_for_many_groups():
    """The threshold grows with √m, not with m; the smaller of the two is taken."""
    for contributions in (1, 3, 10, 50):
        chosen = best_selection(0.008, 5e-7, contributions)
        laplace = laplace_threshold(math.sqrt(0.016), 5e-7, contributions)
        assert chosen.noise == "gaussian"
        assert chosen.threshold < laplace


def test_thresholds_are_no_larger_than_opendp_needs():
    """OpenDP's Laplace threshold: the least one whose map gives at most δ at the same noise."""
    dp = pytest.importorskip("opendp.prelude")
    dp.enable_features("contrib")
    for epsilon, delta, contributions in ((1.0, 1e-6, 1), (0.5, 1e-6, 3), (2.0, 1e-9, 10)):
        ours = laplace_threshold(epsilon, delta, contributions)
        space = (
            dp.map_domain(dp.atom_domain(T=str), dp.atom_domain(T=int)),
            dp.l01inf_distance(dp.absolute_distance(T=int)),
        )
        needed = next(
            limit
            for limit in range(max(1, ours - 60), ours + 60)
            if dp.m.make_laplace_threshold(*space, contributions / epsilon, limit).map(
                (contributions, contributions, 1)
            )[1]
            <= delta
        )
        assert ours <= needed + 1


def capped_pairs(pairs: list[tuple[str | None, str | None]], salt: str) -> Any:
    columns = {"u": [user for user, _ in pairs], "g": [group for _, group in pairs]}
    table = as_table(pa.table(columns, schema=pa.schema([("u", pa.string()), ("g", pa.string())])))
    return measured(pair_columns(table, "g", "u"), Measure(), None, salt)


def bounded(
    pairs: list[tuple[str | None, str | None]], contributions: int, salt: str = "salt"
) -> Histogram:
    found = run_totals(totals(capped_pairs(pairs, salt), contributions, salt))
    counted = dict(zip(found.groups, found.first.tolist(), strict=True))
    return {group: count for group, count in counted.items() if count}


BUSY = [("busy", f"group {place:03}") for place in range(100)]
OTHERS = [(f"user {place}", f"group {place % 7:03}") for place in range(30)]


class TestBounding:
    """In the engine each person counts in at most so many groups, whatever their rows say."""

    @pytest.mark.parametrize("most", [1, 3, 10, 100, 1000])
    def test_a_person_in_a_hundred_groups_counts_in_at_most_so_many(self, most):
        """Catches a bound on rows instead of groups: all rows are there three times."""
        found = bounded(BUSY * 3, most)
        assert len(found) == min(most, 100)
        assert set(found.values()) == {1}

    def test_every_group_has_a_chance(self):
        """Catches the first by name.

        With everybody in 20 groups only ten of them were ever found.
        """
        crowd = [(f"user {u}", f"group {g:03}") for u in range(200) for g in range(20)]
        found = bounded(crowd, 10)
        assert len(found) == 20
        spread = stats.chisquare(list(found.values())).pvalue
        assert spread > FALSE_ALARM

    def test_another_salt_is_another_choice(self):
        """Catches a salt that is not used."""
        assert bounded(BUSY, 10, "one") != bounded(BUSY, 10, "two")

    @pytest.mark.parametrize("most", [1, 3, 10])
    def test_a_person_moves_so_many_counts_by_one(self, most):
        """What the noise is scaled to; catches a choice of groups that depends on other people."""
        here, there = bounded(BUSY + OTHERS, most), bounded(OTHERS, most)
        moved = {group: here.get(group, 0) - there.get(group, 0) for group in {*here, *there}}
        assert sorted(moved.values(), reverse=True)[:most] == [1] * most
        assert sum(map(abs, moved.values())) == most

    def test_rows_of_nobody_or_nowhere_do_not_count(self):
        """Catches NULL as a user of its own, which would use up nobody's contributions, and a group
        called None.
        """
        assert bounded([(None, "a"), ("x", None), ("x", "b"), (None, None)], 1) == {"b": 1}

    def test_names_come_from_the_selection_only(self):
        """Catches the data's own distinct values.

        500 groups of one person each, none of which may appear.
        """
        table = pa.table({"u": list(range(500)), "g": [f"g{place}" for place in range(500)]})
        result = expost.count(table, by="g", user="u", private_keys=True, epsilon=1, delta=1e-9)
        assert (result.answers, result.unanswered) == ((), ())
