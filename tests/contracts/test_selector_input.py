"""Wrong input to any selector: refused by an InvalidInput that names the field."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from expost import (
    ZCDP,
    AboveThreshold,
    Candidate,
    DiscreteLaplace,
    Doubling,
    NoiseReduction,
    Poisson,
    PureDP,
    Query,
    RandomDropping,
    RepeatAndSelect,
    TruncatedNegativeBinomial,
)
from expost.errors import InvalidCandidate, InvalidGuarantee, InvalidInput
from expost.randomness.source import Randomness
from expost.selection.selector import Selector
from tests.contracts.doors import (
    COUNT,
    DATA,
    DOORS,
    NOISE_REDUCTION,
    OVER_QUERIES,
    every_door,
    explode,
    gaussian,
    laplace,
    plain,
    query,
)


@every_door
@pytest.mark.parametrize(
    ("given", "field"),
    [
        ([], "candidates"),
        (None, "candidates"),
        (3, "candidates"),
        ({}, "candidates"),
        ("abc", "candidates[0]"),
        ([1], "candidates[0]"),
        (plain(1.0), "candidates"),
    ],
)
def test_what_is_no_list_of_candidates_is_refused(name: str, given: Any, field: str) -> None:
    for use in (
        DOORS[name].selector.charges,
        lambda wrong: DOORS[name].selector.select(wrong, DATA),
    ):
        with pytest.raises(InvalidCandidate) as caught:
            use(given)
        assert caught.value.field == field


@every_door
def test_a_generator_is_refused(name: str) -> None:
    with pytest.raises(InvalidCandidate, match="generator"):
        DOORS[name].selector.charges(each for each in DOORS[name].candidates())  # type: ignore[arg-type]


@every_door
def test_promises_that_do_not_mix_are_refused(name: str) -> None:
    door = DOORS[name]
    mixed = [
        *door.candidates(),
        Candidate(
            explode, guarantee=ZCDP(2.0) if name != "noise-reduction-gaussian" else PureDP(2.0)
        ),
    ]
    with pytest.raises(InvalidInput):
        door.selector.charges(mixed)


@every_door
def test_neighbouring_relations_do_not_mix(name: str) -> None:
    door = DOORS[name]
    *others, last = door.candidates()
    if name in NOISE_REDUCTION:
        other = Candidate(replace(last.mechanism, neighbours="replace"))  # type: ignore[type-var]
    else:
        other = replace(last, guarantee=PureDP(1.0, "replace"))
    with pytest.raises(InvalidGuarantee, match="neighbours"):
        door.selector.charges([*others, other])


@every_door
@pytest.mark.parametrize("score", [3, "accuracy", [1]])
def test_a_score_that_is_no_function_is_refused(name: str, score: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        DOORS[name].select(1, score=score)
    assert caught.value.field == "score"


@pytest.mark.parametrize("name", OVER_QUERIES)
def test_queries_take_no_score(name: str) -> None:
    """Algorithm 1's proof needs the noisy number itself.

    See the decreasing score in ``tests/theorems/test_mutants.py``.
    """
    with pytest.raises(InvalidInput) as caught:
        DOORS[name].select(1, score=lambda value: -value)
    assert caught.value.field == "score"


@pytest.mark.parametrize(
    "make", [RandomDropping, lambda overhead: AboveThreshold(overhead, at_least=0)]
)
@pytest.mark.parametrize(
    "overhead", [0, 0.0, -1, -0.5, math.nan, math.inf, -math.inf, "0.5", None, True, [1]]
)
def test_overheads_that_cannot_be_meant_are_refused(
    make: Callable[[Any], Selector], overhead: Any
) -> None:
    with pytest.raises(InvalidInput) as caught:
        make(overhead)
    assert caught.value.field == "overhead"


@pytest.mark.parametrize(
    "make",
    [
        lambda t: RandomDropping(1, at_least=t),
        lambda t: AboveThreshold(1, at_least=t),
        Doubling,
        NoiseReduction,
    ],
)
@pytest.mark.parametrize("target", [math.nan, math.inf, "0.9", True, 10**400])
def test_targets_that_cannot_be_meant_are_refused(
    make: Callable[[Any], Selector], target: Any
) -> None:
    with pytest.raises(InvalidInput) as caught:
        make(target)
    assert caught.value.field == "at_least"


@pytest.mark.parametrize("make", [lambda: AboveThreshold(1, at_least=None), lambda: Doubling(None)])
def test_a_target_is_asked_for_where_it_is_needed(make: Callable[[], Selector]) -> None:
    with pytest.raises(InvalidInput, match="at_least"):
        make()
    with pytest.raises(InvalidInput, match="refine"):
        NoiseReduction().select([laplace(1.0)], DATA)


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: RandomDropping(1, minimum_drop_level=-1), "minimum_drop_level"),
        (lambda: RandomDropping(1, minimum_drop_level=1.5), "minimum_drop_level"),
        (lambda: RandomDropping(1, max_runs=0), "max_runs"),
        (lambda: AboveThreshold(1, at_least=0, minimum_drop_level=True), "minimum_drop_level"),
        (lambda: AboveThreshold(1, at_least=0, monotone="no"), "monotone"),
        (lambda: RepeatAndSelect(3), "runs"),
        (lambda: TruncatedNegativeBinomial(-1, 0.5), "shape"),
        (lambda: TruncatedNegativeBinomial(1, 1), "gamma"),
        (lambda: TruncatedNegativeBinomial(1, 0), "gamma"),
        (lambda: Poisson(0), "expected"),
        (lambda: Poisson(math.inf), "expected"),
        (lambda: PureDP("0.5"), "epsilon"),
        (lambda: PureDP(-0.1), "epsilon"),
        (lambda: PureDP(math.nan), "epsilon"),
        (lambda: PureDP(0.5, "add"), "neighbours"),
        (lambda: plain(1.0, repeats=0), "repeats"),
        (lambda: plain(1.0, repeats=2.0), "repeats"),
        (lambda: plain(1.0, params=[1]), "params"),
        (lambda: plain(1.0, drop_rate=0), "drop_rate"),
        (lambda: plain(1.0, priority="first"), "priority"),
        (lambda: Candidate(3, guarantee=PureDP(1)), "mechanism"),
        (lambda: Candidate(explode), "guarantee"),
        (lambda: Candidate(explode, guarantee=0.5), "guarantee"),
        (lambda: Candidate(DiscreteLaplace(COUNT, 1), guarantee=PureDP(1)), "guarantee"),
        (lambda: RandomDropping(1).charges([plain(1.0, drop_rate=0.5)]), "drop_rate"),
        (lambda: RandomDropping(1, max_runs=4).charges([plain(1.0, repeats=5)]), "max_runs"),
        (lambda: RandomDropping(1).charges([query(1.0)]), "candidates[0].mechanism"),
        (lambda: RandomDropping(1).charges([gaussian(1.0)]), "guarantee"),
        (
            lambda: RandomDropping(1, at_least=1).select(
                [plain(1.0, priority=1), plain(1.0)], DATA
            ),
            "priority",
        ),
        (lambda: RandomDropping(1e-9).select([plain(1.0)], DATA), "overhead"),
        (lambda: AboveThreshold(1, at_least=0).charges([query(1.0), plain(1.0)]), "candidates"),
        (lambda: AboveThreshold(1, at_least=0, monotone=True).charges([plain(1.0)]), "monotone"),
        (
            lambda: AboveThreshold(1, at_least=0, minimum_drop_level=1).charges([query(1.0)]),
            "minimum_drop_level",
        ),
        (lambda: AboveThreshold(1, at_least=0).charges([query(0.0)]), "guarantee"),
        (
            lambda: AboveThreshold(1, at_least=0).charges(
                [Candidate(Query(len, 2), guarantee=PureDP(1))]
            ),
            "query",
        ),
        (lambda: NoiseReduction(1).charges([laplace(0.5), gaussian(1.0)]), "guarantee"),
        (
            lambda: NoiseReduction(1).charges(
                [laplace(0.5), Candidate(DiscreteLaplace(Query(sum), 1))]
            ),
            "query",
        ),
        (lambda: NoiseReduction(1).charges([plain(0.5)]), "mechanism"),
        (lambda: RandomDropping(1).select([plain(1.0)], DATA, randomness=7), "randomness"),
    ],
)
def test_each_wrong_setting_is_refused_by_name(make: Callable[[], Any], field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        make()
    assert caught.value.field == field
    assert field in str(caught.value)


class NoCoins(Randomness):
    """A source that must not be asked."""

    def _fresh(self, count: int) -> bytes:
        raise AssertionError("a coin was drawn for a call that is refused")


@pytest.mark.parametrize(
    "call",
    [
        lambda source: RandomDropping(1, at_least=1).select(
            [plain(1.0, priority=1), plain(1.0)], DATA, randomness=source
        ),
        lambda source: RandomDropping(1).select(
            [plain(1.0), plain(1.0, drop_rate=0.5)], DATA, randomness=source
        ),
        lambda source: RandomDropping(1e-9).select([plain(1.0)], DATA, randomness=source),
        lambda source: NoiseReduction().select([laplace(1.0)], DATA, randomness=source),
        lambda source: NoiseReduction(1).select(
            [laplace(1.0), laplace(0.5)], DATA, randomness=source
        ),
        lambda source: AboveThreshold(1, at_least=1).select(
            [query(1.0)], DATA, score=float, randomness=source
        ),
    ],
)
def test_a_call_is_refused_before_any_coin_is_drawn(call: Callable[[Randomness], Any]) -> None:
    """Catches a check that comes after the budget was reserved: input errors must cost nothing."""
    with pytest.raises(InvalidInput):
        call(NoCoins())


def test_a_candidate_can_be_pickled() -> None:
    """Its settings are read-only, and come back as they were, also without a guarantee given."""
    noisy = DiscreteLaplace(Query(len), 0.5)
    for candidate in (
        Candidate(noisy, {"epsilon": 0.5}, repeats=3, priority=2),
        Candidate(len, {"rate": 0.1}, guarantee=PureDP(1), drop_rate=2),  # type: ignore[arg-type]
    ):
        again = pickle.loads(pickle.dumps(candidate))
        assert again == candidate
        with pytest.raises(TypeError):
            again.params["epsilon"] = 1
