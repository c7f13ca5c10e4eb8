"""The law of what selectors draw, against closed forms written down here.

Frequencies over seeded draws must lie within five standard deviations of the probability.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from expost import (
    ZCDP,
    AboveThreshold,
    Candidate,
    DiscreteLaplace,
    NoiseReduction,
    PureDP,
    Query,
    RandomDropping,
    RepeatAndSelect,
    SimulationRandomness,
    TruncatedNegativeBinomial,
)
from expost.errors import InvalidInput

DRAWS = 1500


def unused(data: object, randomness: object) -> object:
    raise AssertionError("a draw never runs a candidate")


def candidates(rates: Sequence[float], repeats: int = 1, guarantee: Any = None) -> list[Candidate]:
    return [
        Candidate(unused, repeats=repeats, guarantee=guarantee or PureDP(rate), drop_rate=rate)
        for rate in rates
    ]


def draws(selector: Any, given: list[Candidate], count: int = DRAWS) -> list[list[int]]:
    source = SimulationRandomness(5)
    return [selector._draw(given, source)["kept"] for _ in range(count)]


def agrees(seen: int, count: int, chance: float) -> bool:
    return abs(seen - count * chance) <= 5 * math.sqrt(count * chance * (1 - chance)) + 1


def kept_together(overhead: float, total_rate: float, minimum: int) -> float:
    """P(all these copies are kept) = Σ_k (1−e^{−ε′})·e^{−ε′k}·e^{−(Σγ)(k+k₀)}."""
    return (
        math.exp(-total_rate * minimum)
        * -math.expm1(-overhead)
        / -math.expm1(-(overhead + total_rate))
    )


@pytest.mark.parametrize("minimum", [0, 1, 3])
@pytest.mark.parametrize("make", ["algorithm 3", "algorithm 2"])
def test_pure_draws(minimum, make):
    """Catches a level, a minimum level or a rate that is drawn otherwise than it is charged."""
    overhead, rates = 0.3, (0.2, 0.5)
    selector = (
        RandomDropping(overhead, allow_nothing=True, minimum_drop_level=minimum)
        if make == "algorithm 3"
        else AboveThreshold(overhead, at_least=1, minimum_drop_level=minimum)
    )
    kept = draws(selector, candidates(rates))
    for place, rate in enumerate(rates):
        seen = sum(place in each for each in kept)
        assert agrees(seen, DRAWS, kept_together(overhead, rate, minimum))
    both = sum(each == [0, 1] for each in kept)
    assert agrees(both, DRAWS, kept_together(overhead, sum(rates), minimum))


@pytest.mark.parametrize("units", [0, 1, 2])
@pytest.mark.parametrize("make", [RandomDropping, AboveThreshold])
def test_renyi_draws(units, make):
    """Catches a minimum level that is never drawn, and steps that are left out, under Rényi DP."""
    overhead, rates, guarantee = 0.1, (0.4, 0.8), ZCDP(0.01)
    bar = {"allow_nothing": True} if make is RandomDropping else {"at_least": 1}
    given = candidates(rates, guarantee=guarantee)
    h = float(make(overhead, delta=1e-6, **bar).renyi_problem(given).step)
    minimum = round(units / (rates[0] * h))  # so that the first copy is kept e^{−units} as often
    selector = make(overhead, delta=1e-6, minimum_drop_level=minimum, **bar)
    law, source = selector.drop_law(given), SimulationRandomness(5)
    kept = [law.draw(given, source) for _ in range(600)]
    for place, rate in enumerate(rates):
        seen = sum(place in each for each in kept)
        assert agrees(seen, 600, kept_together(overhead * h, rate * h, minimum))
    both = sum(each == [0, 1] for each in kept)
    assert agrees(both, 600, kept_together(overhead * h, sum(rates) * h, minimum))


def test_nothing_may_be_drawn_if_it_is_allowed():
    """P(nothing) of one candidate is 1 − τ; without ``allow_nothing`` it never happens."""
    given = candidates((1.0,))
    allowed = draws(RandomDropping(0.5, allow_nothing=True), given)
    nothing = sum(not each for each in allowed)
    assert agrees(nothing, DRAWS, 1 - kept_together(0.5, 1.0, 0))
    assert all(draws(RandomDropping(0.5), given, 500))


def test_every_copy_of_a_group_is_kept_equally_often():
    """Catches a subset of a group that is not uniform, with and without repeats."""
    for repeats in (1, 3):
        given = candidates((0.5, 0.5, 0.5), repeats)
        found = Counter(
            place
            for each in draws(RandomDropping(0.5, allow_nothing=True), given)
            for place in each
        )
        chance = kept_together(0.5, 0.5, 0)
        for place in range(3):
            expected = DRAWS * repeats * chance
            assert abs(found[place] - expected) < 6 * math.sqrt(DRAWS) * repeats


def test_candidates_with_other_drop_rates_are_other_groups():
    given = candidates((0.5, 0.9), guarantee=PureDP(0.5))
    law = RandomDropping(0.5).drop_law(given)
    assert [float(rate) for rate in law.rates] == [0.5, 0.9]
    kept = draws(RandomDropping(0.5, allow_nothing=True), given)
    seen = sum(1 in each for each in kept)
    assert agrees(seen, DRAWS, kept_together(0.5, 0.9, 0))


def test_runs_are_picked_uniformly_among_copies():
    """Catches a copy that is never picked, or picked too often."""
    given = [Candidate(unused, guarantee=PureDP(1), repeats=n) for n in (1, 1, 2)]
    selector, source = RepeatAndSelect(TruncatedNegativeBinomial(1, 0.1)), SimulationRandomness(3)
    found: Counter[int] = Counter()
    for _ in range(800):
        found.update(selector._draw(given, source)["kept"])
    total = sum(found.values())
    for place, chance in enumerate((0.25, 0.25, 0.5)):
        assert agrees(found[place], total, chance)
    mean = total / 800
    assert abs(mean - 10) < 5 * math.sqrt(90 / 800)


def test_the_dimensions_of_a_query_have_their_own_noise():
    """Catches one noise path that serves all dimensions: their difference would be exact."""
    query = Query(lambda data: [0, 0], sensitivity=2, dimension=2)
    given = [Candidate(DiscreteLaplace(query, epsilon)) for epsilon in (0.01, 0.02)]
    drawn = [
        NoiseReduction(at_least=0)._draw(given, SimulationRandomness(seed))["noise"]
        for seed in range(20)
    ]
    assert any(level[0] != level[1] for each in drawn for level in each)


def test_monotone_queries_need_added_rows():
    """A replaced row may raise one query and lower another: the smaller charge does not hold."""
    selector = AboveThreshold(0.5, at_least=1, monotone=True)
    for relation, allowed in (("add-remove", True), ("replace", False)):
        given = [Candidate(Query(len), guarantee=PureDP(1, relation))]
        if allowed:
            assert selector.charges(given)[0].epsilon == 1.5
        else:
            with pytest.raises(InvalidInput, match="add-remove"):
                selector.charges(given)
