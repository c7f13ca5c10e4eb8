"""What every selector must satisfy: prices, releases, certificates, ranking."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest

from expost import (
    FAILED,
    NOTHING,
    AboveThreshold,
    Candidate,
    DiscreteGaussian,
    DiscreteLaplace,
    Doubling,
    Poisson,
    PureDP,
    Query,
    RandomDropping,
    Release,
    RepeatAndSelect,
    SimulationRandomness,
)
from expost.errors import InvalidCandidate, InvalidRelease, SimulationOnly
from expost.selection.selector import Selector
from tests.contracts.doors import (
    DATA,
    DOORS,
    NOISE_REDUCTION,
    Door,
    every_door,
    every_door_with_repeats,
    explode,
    never_dropped,
    plain,
    returning,
)

# Prices.


@every_door_with_repeats
@pytest.mark.parametrize("copies", [2, 3, 7])
def test_copies_cost_what_listing_them_costs(name: str, copies: int) -> None:
    """Catches a price that forgets to count copies, dp_accounting's old mistake."""
    door = DOORS[name]
    first, middle, last = door.candidates()
    folded = door.selector.charges([first, replace_repeats(door, middle, copies), last])
    listed = door.selector.charges([first, *[middle] * copies, last])
    assert folded.nothing == listed.nothing
    assert folded.worst_case == listed.worst_case
    assert [folded[0], folded[1], folded[2]] == [listed[0], listed[copies], listed[copies + 1]]
    if (
        name != "doubling"
    ):  # in doubling a copy pays for those before it; the folded price is that of the last
        assert all(listed[1 + copy] == folded[1] for copy in range(copies))


def replace_repeats(door: Door, candidate: Candidate, repeats: int) -> Candidate:
    return door.make(candidate.params["size"], params=candidate.params, repeats=repeats)


@pytest.mark.parametrize("name", NOISE_REDUCTION)
def test_noise_reduction_looks_at_a_level_once(name: str) -> None:
    with pytest.raises(InvalidCandidate, match="repeats"):
        DOORS[name].selector.charges(DOORS[name].candidates(repeats=2))


@pytest.mark.parametrize(
    "name", [name for name in DOORS if name not in (*NOISE_REDUCTION, "doubling")]
)
def test_prices_follow_candidates_when_the_order_changes(name: str) -> None:
    """The order decides ties (in AboveThreshold also who comes first), never a pure price."""
    selector, candidates = DOORS[name].selector, DOORS[name].candidates()
    base = selector.charges(candidates)
    for order in permutations(range(3)):
        moved = selector.charges([candidates[i] for i in order])
        assert [moved[place] for place in range(3)] == [base[i] for i in order]
        assert (moved.nothing, moved.worst_case) == (base.nothing, base.worst_case)


def test_doubling_prices_depend_on_the_order() -> None:
    """Said aloud: it pays for what ran before. Its total does not depend on the order."""
    door = DOORS["doubling"]
    forwards, backwards = (
        door.selector.charges(door.candidates(sizes))
        for sizes in ((0.25, 0.5, 1.0), (1.0, 0.5, 0.25))
    )
    assert [forwards[i].epsilon for i in range(3)] == [0.25, 0.75, 1.75]
    assert [backwards[i].epsilon for i in range(3)] == [1.0, 1.5, 1.75]
    assert forwards.nothing == backwards.nothing


@pytest.mark.parametrize("name", NOISE_REDUCTION)
def test_noise_reduction_takes_one_order_only(name: str) -> None:
    with pytest.raises(InvalidCandidate, match="increasing"):
        DOORS[name].selector.charges(DOORS[name].candidates((1.0, 0.5)))


@every_door
def test_pricing_and_checking_run_no_candidate(name: str) -> None:
    """Catches a price that depends on data: here any look at it raises."""
    door = DOORS[name]
    silent = [_with_mechanism(candidate) for candidate in door.candidates()]
    charges = door.selector.charges(silent)
    assert charges == door.selector.charges(door.candidates())
    assert door.selector.verify(door.select(1), door.candidates()) is True


def _with_mechanism(candidate: Candidate) -> Candidate:
    mechanism = candidate.mechanism
    if isinstance(mechanism, Query):
        return replace(candidate, mechanism=Query(explode))
    if isinstance(mechanism, (DiscreteLaplace, DiscreteGaussian)):
        return Candidate(replace(mechanism, query=_EXPLODING), params=candidate.params)
    return replace(candidate, mechanism=explode)


_EXPLODING = Query(explode)


# What is released.


@every_door
def test_a_release_says_what_it_must(name: str) -> None:
    door = DOORS[name]
    charges = door.selector.charges(door.candidates())
    for seed in range(30):
        release = door.select(seed)
        assert release.theorem
        assert release.selector["name"] == door.selector.name
        assert release.simulated is True
        assert release.worst_case == charges.worst_case
        assert release.spent <= release.worst_case
        if release.index is None:
            assert (release.value, release.params, release.score) == (NOTHING, {}, None)
            assert release.spent == charges.nothing
        else:
            assert release.params == {"size": (0.25, 0.5, 1.0)[release.index]}
            assert release.score == float(release.value)
            assert release.spent == charges[release.index]


@every_door
def test_the_order_of_rows_changes_nothing(name: str) -> None:
    """Catches a selector that looks into the data itself."""
    door = DOORS[name]
    for seed in range(10):
        assert door.select(seed, data=DATA) == door.select(seed, data=DATA[::-1])


@every_door
def test_the_data_reaches_candidates_as_it_is(name: str) -> None:
    """The very object, not a copy: nothing else in the selector holds on to it."""
    door, seen = DOORS[name], []
    looking = Query(lambda data: seen.append(data) or 0)
    swap = {
        Query: lambda c: replace(c, mechanism=looking),
        DiscreteLaplace: lambda c: Candidate(replace(c.mechanism, query=looking)),
    }
    swap[DiscreteGaussian] = swap[DiscreteLaplace]
    listening = [
        swap.get(
            type(c.mechanism), lambda c: replace(c, mechanism=lambda d, r: seen.append(d) or 0.0)
        )(c)
        for c in door.candidates()
    ]
    data = object()
    for seed in range(5):
        door.select(seed, listening, data=data)
    assert seen
    assert all(each is data for each in seen)


@every_door
def test_seeded_randomness_is_refused_where_people_are_protected(name: str) -> None:
    door = DOORS[name]
    with pytest.raises(SimulationOnly):
        door.selector.select(door.candidates(), DATA, randomness=SimulationRandomness(1))
    assert door.selector.select(door.candidates(), DATA).simulated is False


# Certificates.


@every_door
def test_a_certificate_survives_json(name: str) -> None:
    door = DOORS[name]
    for seed in range(20):
        release = door.select(seed)
        again = Release.from_json(release.to_json(), decode=lambda value, kept=release.value: kept)
        assert again == release
        assert door.selector.verify(again, door.candidates()) is True


def test_outcomes_without_a_value_survive_json() -> None:
    """NOTHING and FAILED come back as themselves, not as text or null."""
    nothing = AboveThreshold(1, at_least=10**9).select([plain(1.0)], DATA)
    failed = Release.from_json(RandomDropping(1).select([never_dropped(explode)], DATA).to_json())
    assert Release.from_json(nothing.to_json()).value is NOTHING
    assert failed.value is FAILED
    assert failed.index == 0


@pytest.mark.parametrize("score", [math.inf, -math.inf, 0.5, None])
def test_every_score_survives_json(score: float | None) -> None:
    """JSON has no infinity, but a certificate that was paid for must be saved all the same."""
    release = replace(DOORS["doubling"].select(1), score=score)
    json.loads(release.to_json(), parse_constant=pytest.fail)
    assert Release.from_json(release.to_json()).score == score


def test_values_of_ones_own_need_encode_and_decode() -> None:
    release = RandomDropping(1).select(
        [never_dropped(lambda data, randomness: 1 + 2j)], DATA, score=abs
    )
    with pytest.raises(InvalidRelease, match="encode"):
        release.to_json()
    text = release.to_json(encode=lambda z: [z.real, z.imag])
    assert Release.from_json(text, decode=lambda parts: complex(*parts)) == release


@every_door
def test_a_tampered_certificate_does_not_verify(name: str) -> None:
    door = DOORS[name]
    release, candidates = door.select(3), door.candidates()
    assert door.selector.verify(release, candidates)
    forged = [
        replace(release, spent=release.spent * 2),
        replace(release, worst_case=release.worst_case * 2),
        replace(release, theorem="theorem:wishful"),
        replace(release, selector={**release.selector, "name": "other"}),
        replace(release, index=99),
        replace(release, index=-1),
    ]
    assert not any(door.selector.verify(each, candidates) for each in forged)
    assert not door.selector.verify(release, door.candidates((0.3, 0.6, 1.2)))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"schema": 1}',
        '{"schema": 2}',
        '{"schema": 1, "outcome": []}',
        '{"schema": 1, "outcome": "else"}',
    ],
)
def test_text_that_is_no_certificate_is_refused(text: str) -> None:
    with pytest.raises(InvalidRelease):
        Release.from_json(text)


# Ranking: failures, NaN, ties (theory, section 3).


RANKING = {
    "random-dropping": RandomDropping(1),
    "repeat-and-select": RepeatAndSelect(Poisson(60)),  # with these seeds every candidate runs
}
every_ranking = pytest.mark.parametrize("name", RANKING)


def ranked(name: str, candidates: Sequence[Candidate], **options: Any) -> Release:
    return RANKING[name].select(
        candidates, DATA, randomness=SimulationRandomness(5), simulation=True, **options
    )


@every_ranking
@pytest.mark.parametrize(
    "values", [(1, 3, 2), (3, 1, 2), (math.nan, 3, -math.inf), (3.0, math.nan, 2)]
)
def test_the_highest_score_wins(name: str, values: tuple[float, ...]) -> None:
    release = ranked(name, [returning(value) for value in values])
    assert (release.value, release.score) == (3, 3.0)
    assert release.index == values.index(3)


@every_ranking
def test_order_matters_through_ties_only(name: str) -> None:
    for order in permutations((1, 2, 3)):
        assert ranked(name, [returning(value) for value in order]).value == 3


@pytest.mark.parametrize("selector", [Doubling(0), AboveThreshold(1, at_least=0)])
def test_order_decides_who_is_looked_at_first(selector: Selector) -> None:
    """Said aloud for the selectors that stop at a pass: all of these would."""
    for order in permutations((1, 2, 3)):
        assert selector.select([returning(value) for value in order], DATA).index == 0


@every_ranking
def test_ties_go_to_the_lower_index(name: str) -> None:
    candidates = [returning("low"), returning("a"), returning("b")]
    assert ranked(name, candidates, score=lambda value: float(value != "low")).index == 1


@every_ranking
@pytest.mark.parametrize("worst", [-math.inf, -1e308])
def test_a_candidate_that_raises_ranks_below_every_score(name: str, worst: float) -> None:
    release = ranked(name, [never_dropped(explode), returning(worst)])
    assert (release.index, release.score) == (1, worst)


@every_ranking
def test_nan_ranks_below_every_score_and_is_no_score(name: str) -> None:
    assert ranked(name, [returning(math.nan), returning(-math.inf)]).index == 1
    only = ranked(name, [returning(math.nan)])
    assert only.score is None
    assert math.isnan(only.value)


@every_ranking
def test_a_score_that_raises_counts_as_a_failure(name: str) -> None:
    release = ranked(name, [returning("no number"), returning("4")])
    assert (release.index, release.value) == (1, "4")


@every_ranking
def test_if_all_raise_the_release_says_so_and_is_charged(name: str) -> None:
    release = ranked(name, [never_dropped(explode), never_dropped(explode)])
    assert release.value is FAILED
    assert release.index == 0
    assert release.score is None
    assert release.spent == RANKING[name].charges([returning(0)])[0]


def test_a_candidate_that_raises_is_not_tried_again() -> None:
    """Catches a retry, which would be another mechanism; the curator hears of each failure once."""
    calls, heard = [], []
    failing = never_dropped(lambda data, randomness: calls.append(1) or 1 / 0, repeats=5)
    release = RandomDropping(1).select(
        [failing, returning(0)],
        DATA,
        on_failure=lambda index, error: heard.append((index, type(error))),
    )
    assert len(calls) == 5
    assert heard == [(0, ZeroDivisionError)] * 5
    assert release.index == 1


@pytest.mark.parametrize("selector", [Doubling(0), AboveThreshold(1, at_least=0)])
def test_a_failure_or_nan_never_passes_a_target(selector: Selector) -> None:
    candidates = [never_dropped(explode), returning(math.nan), returning(1)]
    assert selector.select(candidates, DATA).index == 2
    assert selector.select(candidates[:2], DATA).value is NOTHING


def test_a_candidate_of_epsilon_zero_is_welcome() -> None:
    """A public baseline: never dropped, and costs what the overhead costs."""
    release = RandomDropping(0.5).select([returning(7), plain(1.0)], DATA)
    assert release.spent <= RandomDropping(0.5).charges([returning(7), plain(1.0)]).worst_case
    assert RandomDropping(0.5).charges([returning(7)])[0] == PureDP(0.5)


def test_copies_cost_time_only_when_they_run() -> None:
    """A million copies at a level that keeps about one of them need only a few calls.

    10^30 copies are priced like one.
    """
    calls: list[int] = []
    many = Candidate(
        lambda data, randomness: calls.append(1) or 1, guarantee=PureDP(1), repeats=10**6
    )
    release = RandomDropping(1, minimum_drop_level=14).select([many], DATA)
    assert 1 <= len(calls) < 200
    assert (
        release.spent == RandomDropping(1).charges([replace(many, repeats=10**30)])[0] == PureDP(3)
    )
