"""Mutants of the algorithms and of their charges: the theorems' check must reject each one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from tests.theorems import finite
from tests.theorems.cases import (
    BAR,
    SELECTORS,
    TNB_SHAPES,
    Case,
    adversary,
    check,
    doubling_adversary,
    noise_adversary,
    noise_charges,
    query_charges,
    random_cases,
    realised,
    repeat_adversary,
)
from tests.theorems.finite import Array, Dropping, Law


def assert_rejected(law: Law, other: Law, charge: Array, nothing: Array) -> None:
    with pytest.raises(AssertionError):
        check(law, other, charge, nothing)


def test_mutant_that_never_drops_is_rejected() -> None:
    case = adversary(copies=1000)
    never = replace(case.settings, rates=np.zeros((1, 2)))
    law, other = (finite.random_dropping(q, never) for q in (case.q, case.other))
    assert_rejected(law, other, *case.charges(SELECTORS["random dropping"][0]))


def test_mutant_that_drops_twice_as_fast_for_the_old_charge_is_rejected() -> None:
    """Rate 2ε costs up to 3ε + ε′.

    Violated if only the winner drops faster, and also (for large ε) if all do.
    """
    for case, rates in (
        (adversary(), np.array([[1.0, 1.0]])),
        (adversary(winner=3.0, competitor=3.0, copies=40_000), np.array([[6.0, 6.0]])),
    ):
        claimed = case.charges(SELECTORS["random dropping"][0])
        doubled = replace(case, settings=replace(case.settings, rates=rates))
        law, other = (finite.random_dropping(q, doubled.settings) for q in (case.q, case.other))
        assert_rejected(law, other, *claimed)
        check(law, other, *doubled.charges(SELECTORS["random dropping"][0]))  # 3ε + ε′ holds


def test_mutant_that_charges_one_epsilon_is_rejected() -> None:
    case = adversary()
    law, other = (finite.random_dropping(q, case.settings) for q in (case.q, case.other))
    assert_rejected(law, other, case.epsilon + 0.3, np.zeros(1))


def test_mutant_that_gives_nothing_away_free_is_rejected() -> None:
    """Algorithm 2's nothing depends on data: free, it would be a leak at every call."""
    case = adversary()
    law, other = (finite.above_threshold(q, case.settings, BAR) for q in (case.q, case.other))
    charge, nothing = case.charges(SELECTORS["above threshold"][0])
    check(law, other, charge, nothing)
    assert_rejected(law, other, charge, np.zeros(1))


def crowd() -> Case:
    """One candidate of ε = 0.1 against five of ε = 2 that stay below it e² times as often on D."""
    stay = 1 / (1 + np.exp(-2 * (1 - 1e-12)))
    q = np.array([[[0, 1, 0]] + [[stay, 0, 1 - stay]] * 5], dtype=float)
    other = np.array([[[0, 1, 0]] + [[1 - stay, 0, stay]] * 5], dtype=float)
    epsilon = np.array([[0.1] + [2.0] * 5])
    return Case(q, other, epsilon, Dropping(np.ones(1), epsilon, np.ones((1, 6))), list(range(6)))


def test_mutants_that_meddle_with_the_number_of_runs_are_rejected() -> None:
    """Stopping after three kept, or drawing again until two are kept, breaks the charges."""
    case = crowd()
    charges = case.charges(SELECTORS["random dropping"][0])
    honest = [finite.by_subsets(q, case.settings, lambda kept: kept) for q in (case.q, case.other)]
    check(*honest, *charges)
    for runs_of in (lambda kept: kept[:3], lambda kept: kept if len(kept) >= 2 else None):
        assert_rejected(
            *(finite.by_subsets(q, case.settings, runs_of) for q in (case.q, case.other)), *charges
        )


def test_drawing_again_above_a_number_of_runs_keeps_the_pure_charges() -> None:
    """A finding, kept as a test: conditioning on "at most n runs" is sound under pure DP.

    On D′ at level k+1 the state of each competitor (dropped, kept and lower, kept and higher) is
    stochastically below its state on D at level k, and "nobody higher, at most n−1 kept" is a
    decreasing event. This is *not* so for "at least n", n ≥ 2 (above).
    """
    for case in [crowd(), *random_cases(seed=21, instances=1000)]:
        single = replace(
            case, settings=replace(case.settings, copies=np.ones_like(case.settings.copies))
        )
        charges = single.charges(SELECTORS["random dropping"][0])
        for most in (1, 2, 3):
            runs_of = _at_most(most)
            check(
                *(finite.by_subsets(q, single.settings, runs_of) for q in (case.q, case.other)),
                *charges,
            )


def _at_most(most: int) -> Callable[[tuple[int, ...]], Sequence[int] | None]:
    return lambda kept: kept if len(kept) <= most else None


def test_mutant_noise_reduction_with_independent_noise_is_rejected() -> None:
    charges = noise_charges([0.5, 1.0], 1, rules=1)
    assert_rejected(*noise_adversary(coupled=False), *charges)


def test_mutant_doubling_that_charges_the_last_only_is_rejected() -> None:
    case = doubling_adversary()
    law, other = (finite.doubling(q, case.settings.copies, BAR) for q in (case.q, case.other))
    assert_rejected(law, other, case.epsilon, np.full(1, case.epsilon.sum()))


@pytest.mark.parametrize("shape", TNB_SHAPES)
def test_mutant_repeat_and_select_below_its_charge_is_rejected(shape: float) -> None:
    """(1.9 + η)·ε is not enough, e.g. 2ε for the logarithmic law taken as "between one and two"."""
    case, gamma = repeat_adversary(top=1e-3, own=1e-8), np.array([1e-9])
    runs = finite.truncated_negative_binomial(shape, gamma)
    law, other = (
        finite.repeat_and_select(q, case.settings.copies, runs) for q in (case.q, case.other)
    )
    assert_rejected(law, other, np.array([[1.9 + shape]]), np.zeros(1))


def test_mutant_that_compares_a_falling_score_of_the_noisy_number_is_rejected() -> None:
    """Algorithm 1 with the score −v: n queries that fail on D′ = D − 1 cost n·ε.

    The library therefore refuses a score over queries (``tests/contracts``).
    """
    count, epsilon, overhead = 8, 0.5, 0.3
    k = np.arange(400)
    chance = (
        -np.expm1(-overhead) * np.exp(-overhead * k) * np.exp(-epsilon * k)
    )  # of k, and of the last query's number

    def law(answer: int) -> Law:
        failed = (
            np.exp(-epsilon * (k - answer + 1)) ** count
        )  # every noisy number before it stayed above zero
        return Law.exactly((chance @ failed).reshape(1, 1, 1), np.zeros(1))

    charge, nothing = query_charges(np.full((1, 1), epsilon), np.array([overhead]), monotone=False)
    assert_rejected(law(0), law(-1), charge, nothing)
    assert realised(law(0), law(-1), 0, 0) == pytest.approx(count * epsilon)
