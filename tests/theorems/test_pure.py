"""The pure-DP theorems, by exact enumeration: no outcome's log ratio exceeds its charge.

The log ratio is between neighbouring data, and the charge is the library's: charges always come
from ``selector.charges``. There are three kinds of test for each theorem: thousands of random
instances (would catch a charge that is too small somewhere), one adversarial instance that reaches
at least 95 % of the charge (so the first kind is known to be sensitive), and mutants of the
algorithm or of the charge that the same check must reject (``test_mutants``).
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from expost import (
    Candidate,
    Poisson,
    PureDP,
    RandomDropping,
    RepeatAndSelect,
    TruncatedNegativeBinomial,
)
from expost.execution.engine import Listeners, OutcomeRule, execute
from expost.randomness.source import RunKey
from tests.theorems import finite
from tests.theorems.cases import (
    BAR,
    BATCH,
    INSTANCES,
    SELECTORS,
    TNB_SHAPES,
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
from tests.theorems.finite import SLACK, Dropping, NoisePath


@pytest.mark.parametrize("name", SELECTORS)
def test_no_random_instance_exceeds_its_charge(name: str) -> None:
    selector_of, law_of = SELECTORS[name]
    for case in random_cases(seed=len(name)):
        law, other = law_of(case.q, case), law_of(case.other, case)
        low, high = law.total()
        assert np.all(low <= 1 + SLACK)  # the law is a law: catches a wrong formula here
        assert np.all(high >= 1 - SLACK)
        assert np.all(high - low <= SLACK)
        check(law, other, *case.charges(selector_of))


def test_formula_of_random_dropping_agrees_with_listing_all_kept_sets() -> None:
    """Catches an error in the closed form that the theorem tests rest on."""
    for case in random_cases(seed=5, instances=300):
        single = replace(case.settings, copies=np.ones_like(case.settings.copies))
        law, listed = (
            finite.random_dropping(case.q, single),
            finite.by_subsets(case.q, single, lambda kept: kept),
        )
        np.testing.assert_allclose(law.low, listed.low, rtol=1e-10, atol=1e-14)
        np.testing.assert_allclose(law.nothing_low, listed.nothing_low, rtol=1e-10, atol=1e-14)


def test_copies_are_candidates_listed_several_times() -> None:
    """Catches a wrong treatment of ties among copies: T copies in one entry against T entries."""
    case = next(random_cases(seed=8, instances=BATCH))
    q, listed = case.q[:, :1], np.repeat(case.q[:, :1], 5, axis=1)
    rates = case.settings.rates[:, :1]
    folded = finite.random_dropping(
        q, Dropping(case.settings.overhead, rates, np.full((BATCH, 1), 5))
    )
    spelled = finite.random_dropping(
        listed, Dropping(case.settings.overhead, np.repeat(rates, 5, axis=1), np.ones((BATCH, 5)))
    )
    np.testing.assert_allclose(folded.low[:, 0], spelled.low.sum(1), rtol=1e-10, atol=1e-15)


# Sharpness: adversarial instances.


@pytest.mark.parametrize(
    "name",
    [
        "random dropping",
        "random dropping, drawn again",
        "random dropping, target",
        "above threshold",
    ],
)
@pytest.mark.parametrize("least", [0, 3])
def test_dropping_reaches_its_charge(name: str, least: int) -> None:
    """2ε + ε′ is attained to 1e-6, with and without a minimum drop level: it cannot be smaller."""
    selector_of, law_of = SELECTORS[name]
    case = adversary(least=least)
    law, other = law_of(case.q, case), law_of(case.other, case)
    charge, nothing = case.charges(selector_of)
    check(law, other, charge, nothing)
    assert realised(law, other, candidate=1, output=1) >= charge[0, 1] * (1 - 1e-6)


def test_a_larger_drop_rate_is_charged_because_it_costs() -> None:
    """ε + γ + ε′ is realised when the winner alone drops faster."""
    case = adversary()
    faster = replace(case.settings, rates=np.array([[1.0, 1.5]]))
    case = replace(case, settings=faster)
    law, other = (finite.random_dropping(q, faster) for q in (case.q, case.other))
    charge, _ = case.charges(SELECTORS["random dropping"][0])
    assert realised(law, other, candidate=1, output=1) >= charge[0, 1] * (1 - 1e-6)
    assert charge[0, 1] == pytest.approx(0.5 + 1.5 + 0.3)


def test_nothing_reaches_its_charge_in_above_threshold() -> None:
    """ε′ for nothing is realised to 0.1 % by Algorithm 2."""
    case = adversary()
    law, other = (finite.above_threshold(q, case.settings, BAR) for q in (case.q, case.other))
    assert np.log(law.nothing_low / other.nothing_high)[0] >= 0.3 * (1 - 1e-3)


def test_doubling_reaches_its_charge() -> None:
    """The sum of all promises up to the winner is realised to 1e-9."""
    case = doubling_adversary()
    law, other = (finite.doubling(q, case.settings.copies, BAR) for q in (case.q, case.other))
    charge, nothing = case.charges(SELECTORS["doubling"][0])
    check(law, other, charge, nothing)
    assert realised(law, other, candidate=2, output=1) >= charge[0, 2] * (1 - 1e-9)


@pytest.mark.parametrize("shape", TNB_SHAPES)
def test_truncated_negative_binomial_reaches_its_charge(shape: float) -> None:
    """(2 + η)·ε is realised to 1 % when γ ≪ chance of the top ≪ 1."""
    case, gamma = repeat_adversary(top=1e-3, own=1e-8), 1e-9
    runs = finite.truncated_negative_binomial(shape, np.array([gamma]))
    law, other = (
        finite.repeat_and_select(q, case.settings.copies, runs) for q in (case.q, case.other)
    )
    charge, nothing = case.charges(
        lambda *_: RepeatAndSelect(TruncatedNegativeBinomial(shape, gamma))
    )
    check(law, other, charge, nothing)
    assert realised(law, other, candidate=0, output=1) >= charge[0, 0] * 0.99


def test_poisson_reaches_its_charge() -> None:
    """ε + μ·tanh(ε/2) is realised to 1e-5 by randomised response."""
    case, mean = repeat_adversary(top=1 / (1 + np.e) - 1e-9, own=1e-9), np.array([6.0])
    law, other = (
        finite.repeat_and_select(q, case.settings.copies, finite.poisson(mean), np.exp(-mean))
        for q in (case.q, case.other)
    )
    charge, nothing = case.charges(lambda *_: RepeatAndSelect(Poisson(6)))
    check(law, other, charge, nothing)
    assert realised(law, other, candidate=0, output=1) >= charge[0, 0] * (1 - 1e-5)


# Algorithm 1: queries.


@pytest.mark.parametrize("monotone", [False, True])
def test_no_random_queries_exceed_their_charge(monotone: bool) -> None:
    rng = np.random.default_rng(11)
    for _ in range(INSTANCES // BATCH):
        shape = (BATCH, int(rng.integers(1, 5)))
        epsilon, overhead = rng.uniform(0.1, 3, shape), rng.uniform(0.1, 3, BATCH)
        answers = rng.integers(-4, 4, shape)
        moved = answers + rng.integers(0 if monotone else -1, 2, shape)
        bar = int(rng.integers(-1, 2))
        law, other = (
            finite.above_threshold_queries(a, epsilon, overhead, bar) for a in (answers, moved)
        )
        check(law, other, *query_charges(epsilon, overhead, monotone=monotone))


@pytest.mark.parametrize("monotone", [False, True])
def test_queries_reach_their_charge(monotone: bool) -> None:
    """2ε + ε′ (monotone: ε + ε′), and ε′ for nothing, are realised to 1e-9."""
    epsilon, overhead = np.array([[0.7, 0.4]]), np.array([0.3])
    answers, moved = np.array([[0, 0]]), np.array([[1, 0 if monotone else -1]])
    law, other = (finite.above_threshold_queries(a, epsilon, overhead) for a in (answers, moved))
    charge, nothing = query_charges(epsilon, overhead, monotone=monotone)
    check(law, other, charge, nothing)
    assert realised(law, other, candidate=1, output=3) >= charge[0, 1] * (1 - 1e-9)
    law, other = (
        finite.above_threshold_queries(a, epsilon, overhead) for a in (answers, answers + 1)
    )
    assert np.log(law.nothing_low / other.nothing_high)[0] >= nothing[0] * (1 - 1e-9)


def test_queries_that_are_not_monotone_break_the_monotone_charge() -> None:
    """Test of the test: the cheaper charge fails if the queries move in opposite directions."""
    epsilon, overhead = np.array([[0.7, 0.4]]), np.array([0.3])
    law, other = (
        finite.above_threshold_queries(np.array(a), epsilon, overhead)
        for a in ([[0, 0]], [[1, -1]])
    )
    with pytest.raises(AssertionError):
        check(law, other, *query_charges(epsilon, overhead, monotone=True))


# Noise reduction.


def test_no_stop_rule_makes_noise_reduction_exceed_its_charge() -> None:
    rng = np.random.default_rng(13)
    for _ in range(INSTANCES // BATCH):
        levels, sensitivity = int(rng.integers(1, 5)), int(rng.integers(1, 4))
        rates = 0.35 + np.cumsum(rng.exponential(0.4, levels) + 0.01)
        passes = rng.random((BATCH, levels, 31)) < rng.random((BATCH, levels, 1))
        passes[:, :, int(rng.integers(0, 31))] = (
            False  # a level that always passes leaves nothing to a later one
        )
        beyond = rng.random((BATCH, levels)) < 0.5
        moved = int(rng.integers(-sensitivity, sensitivity + 1))
        law, other = (
            finite.noise_reduction(NoisePath(rates), a, passes, beyond) for a in (0, moved)
        )
        check(law, other, *noise_charges(list(rates * sensitivity), sensitivity, BATCH))


def test_coarser_noise_made_from_finer_has_the_discrete_laplace_law() -> None:
    """The keep probability is the right one: any other would change the coarser level's law."""
    path = NoisePath([0.4, 0.9, 2.0])
    for level in (1, 2):
        np.testing.assert_allclose(
            path.noise(level) @ path.to_coarser(level), path.noise(level - 1), atol=1e-15
        )


def test_noise_reduction_reaches_its_charge() -> None:
    """The last ε is realised to 1e-9."""
    law, other = noise_adversary(coupled=True)
    charge, nothing = noise_charges([0.5, 1.0], 1, rules=1)
    check(law, other, charge, nothing)
    assert realised(law, other, candidate=1, output=20) >= charge[0, 1] * (1 - 1e-9)


# Stopping at the first pass.


def test_stopping_early_releases_what_running_everything_would() -> None:
    """Every kept list, every combination of outputs.

    The library's early stop against the maximum of (passed?, priority).
    """
    outputs: list[int] = []
    candidates = [
        Candidate(
            lambda data, randomness: outputs.pop(0),
            guarantee=PureDP(1),
            repeats=2,
            priority=priority,
        )
        for priority in (1, 2, 2)
    ]
    selector = RandomDropping(1, at_least=BAR)
    charges = selector.charges(candidates)
    for kept in ([0], [0, 0], [0, 1, 2], [0, 0, 1, 1], [1, 2, 2], [0, 1, 1, 2]):
        by_priority = sorted(kept, key=lambda index: (-candidates[index].priority, index))
        for scores in product(range(3), repeat=len(kept)):
            everything = list(zip(by_priority, scores, strict=True))
            best = max(
                everything, key=lambda run: (run[1] >= BAR, candidates[run[0]].priority, -run[0])
            )
            outputs[:] = scores
            outcome = execute(
                selector._runs(candidates, charges, {"kept": kept}),
                None,
                RunKey(bytes(32), simulated=True),
                OutcomeRule(selector._rule(candidates), None, float(BAR)),
                Listeners(),
            )
            assert (outcome.index, outcome.value) == best


def test_law_of_the_target_variant_is_that_of_running_everything() -> None:
    """The closed form above, against listing all kept sets with the score (passed?, priority)."""
    for case in random_cases(seed=34, instances=500):
        single = replace(case.settings, copies=np.ones_like(case.settings.copies))
        law = finite.random_dropping_target(case.q, single, BAR, case.order)
        place = [list(case.order).index(i) for i in range(case.q.shape[1])]
        ranked = np.zeros((len(case.q), case.q.shape[1], 2 * case.q.shape[1]))
        passing = case.q[..., BAR:].sum(-1)
        for i, rank in enumerate(
            place
        ):  # two outputs a candidate: failed or passed, each at its own rank
            ranked[:, i, len(place) - 1 - rank] = 1 - passing[:, i]
            ranked[:, i, 2 * len(place) - 1 - rank] = passing[:, i]
        listed = finite.by_subsets(ranked, single, lambda kept: kept)
        np.testing.assert_allclose(
            law.low[..., BAR:].sum(-1), listed.low[..., len(place) :].sum(-1), rtol=1e-9, atol=1e-13
        )
        np.testing.assert_allclose(
            law.low[..., :BAR].sum(-1), listed.low[..., : len(place)].sum(-1), rtol=1e-9, atol=1e-13
        )
