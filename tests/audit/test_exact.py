"""The exact audit: laws, smallest charges and refusals.

Laws are compared with those of ``tests/theorems`` (written independently), and smallest charges
with their definitions.

Mutants of selectors and filters live here only; each must be found out.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import pytest

from expost import (
    ZCDP,
    AboveThreshold,
    ApproxDP,
    Candidate,
    DiscreteGaussian,
    DiscreteLaplace,
    Doubling,
    NoiseReduction,
    Poisson,
    PureDP,
    Query,
    RandomDropping,
    RenyiDP,
    RepeatAndSelect,
    SimulationRandomness,
    TruncatedNegativeBinomial,
)
from expost.audit.empirical import audit
from expost.budget.budgets import ApproxBudget, PureBudget, RenyiBudget, ZCDPBudget
from expost.budget.limits import Filter
from expost.errors import InvalidCandidate, InvalidInput
from expost.mechanisms import NOTHING
from tests.oracle.audit import audit_claim, exact_audit
from tests.oracle.dropping_laws import (
    DropLevels,
    OutputLaw,
    above_threshold,
    first_pass_or_first,
    random_dropping,
)
from tests.oracle.finite_mechanism import FiniteMechanism
from tests.oracle.laws_without_dropping import (
    NoisePath,
    above_threshold_queries,
    doubling,
    repeat_and_select,
)
from tests.oracle.selector_laws import exact_laws
from tests.oracle.smallest_charges import ApproxMeasure, LawPair, PureMeasure, RenyiMeasure
from tests.oracle.transcripts import Request, Seen, filter_audit
from tests.theorems import finite, finite_renyi
from tests.theorems.cases import BAR, SELECTORS, random_cases


def rounded(q: np.ndarray) -> list[float]:
    return [float(each) for each in q / q.sum()]


def randomised_response(epsilon: float) -> FiniteMechanism:
    up = math.exp(epsilon) / (1 + math.exp(epsilon))
    return FiniteMechanism([up, 1 - up], [1 - up, up])


def adversary(rare: float = 0.01, beaten: float = 0.01) -> tuple[FiniteMechanism, FiniteMechanism]:
    """Competitors of ε = 1 for a winner of ε = ½.

    They beat the winner less often where its rare output is likelier.
    """
    grow, shrink = math.exp(0.5), math.exp(1.0)
    return (
        FiniteMechanism([1 - beaten, 0, beaten], [1 - beaten * shrink, 0, beaten * shrink]),
        FiniteMechanism([1 - rare * grow, rare * grow, 0], [1 - rare, rare, 0]),
    )


def crowd(copies: int = 10**6) -> list[Candidate]:
    competitor, winner = adversary()
    return [
        competitor.as_candidate(guarantee=PureDP(1), repeats=copies),
        winner.as_candidate(guarantee=PureDP(0.5)),
    ]


# Tables.


@pytest.mark.parametrize(
    ("table", "neighbour", "scores", "field"),
    [
        ([0.5, 0.4], [0.5, 0.5], None, "table"),
        ([0.5, 0.5], [1.1, -0.1], None, "neighbour"),
        ([0.5, 0.5], [1.0], None, "neighbour"),
        ([], [], None, "table"),
        ("ab", [1.0], None, "table"),
        ([math.nan, 1.0], [0.5, 0.5], None, "table"),
        ([0.5, 0.5], [0.5, 0.5], [1, 1], "scores"),
        ([0.5, 0.5], [0.5, 0.5], [1], "scores"),
    ],
)
def test_a_table_that_is_none_is_refused(table, neighbour, scores, field):
    with pytest.raises(InvalidInput) as refused:
        FiniteMechanism(table, neighbour, scores)
    assert refused.value.field == field


def test_divergences_of_randomised_response():
    """Closed forms: ε, the Rényi divergence, and the hockey stick."""
    table, p = randomised_response(0.7), math.exp(0.7) / (1 + math.exp(0.7))
    assert table.pure_epsilon() == pytest.approx(0.7, rel=1e-12)
    assert table.renyi(3) == pytest.approx(
        math.log(p**3 * (1 - p) ** -2 + (1 - p) ** 3 * p**-2) / 2, rel=1e-12
    )
    assert table.hockey_stick(0.2) == pytest.approx(p - math.exp(0.2) * (1 - p), rel=1e-12)
    assert table.hockey_stick(0.7 + 1e-12) == 0
    assert FiniteMechanism([0.5, 0.5, 0], [0.5, 0.4, 0.1]).pure_epsilon() == math.inf


def test_tables_of_noisy_queries_keep_the_promises_of_the_noise():
    """And reach them, if the neighbour's answer differs by the whole sensitivity."""
    query = Query(lambda data: data, sensitivity=2)
    laplace = DiscreteLaplace(query, 0.8)
    wide = FiniteMechanism.from_query(laplace, 0, 2, lowest=-30, highest=30)
    assert wide.pure_epsilon() == pytest.approx(0.8, rel=1e-9)
    assert FiniteMechanism.from_query(
        laplace, 0, 1, lowest=-3, highest=3
    ).pure_epsilon() == pytest.approx(0.4, rel=1e-9)
    gaussian = FiniteMechanism.from_query(
        DiscreteGaussian(query, 0.1), 0, 2, lowest=-60, highest=60
    )
    assert 0.99 * 0.4 < gaussian.renyi(4) <= 0.4 + 1e-12
    halves = Query(lambda data: data, grid=Fraction(1, 2))
    assert FiniteMechanism.from_query(
        DiscreteLaplace(halves, 1), 0, 0.5, lowest=-1, highest=1
    ).scores == (-1, -0.5, 0, 0.5, 1)


def test_draws_have_the_law_of_the_table():
    """Rational probabilities with an awkward denominator.

    Chi-square with 3 degrees of freedom, false alarm 1e-6 per row.
    """
    table = FiniteMechanism(
        [Fraction(1, 7), Fraction(2, 7), Fraction(4, 7), 0],
        [0.1, 0.2, 0.3, 0.4],
        scores=[5, -1, 0, 9],
    )
    source, runs = SimulationRandomness(3), 20_000
    for data, row in ((0, table.table), (1, table.neighbour)):
        seen = Counter(table(data, source) for _ in range(runs))
        expected = [(score, runs * chance) for score, chance in zip(table.scores, row, strict=True)]
        assert sum((seen[score] - mean) ** 2 / mean for score, mean in expected if mean) < 30.7
        assert all(seen[score] == 0 for score, mean in expected if not mean)
    with pytest.raises(InvalidInput, match="pass 0 or 1"):
        table("data", source)


# Laws, against others written independently.


def assert_agrees(law: OutputLaw, other: finite.Law, place: int) -> None:
    """Both brackets hold the truth, so they meet; and the law is one."""
    pairs = ((law.low, law.high, other.low[place], other.high[place]),)
    pairs += (
        (law.nothing_low, law.nothing_high, other.nothing_low[place], other.nothing_high[place]),
    )
    for low, high, other_low, other_high in pairs:
        assert np.all(low <= other_high * (1 + 1e-10))
        assert np.all(other_low <= high * (1 + 1e-10))
        assert np.all(high - low <= 1e-9 * high + 1e-300)
    assert law.total()[0] <= 1 <= law.total()[1]


def test_laws_agree_with_those_of_the_theorem_tests():
    for case in random_cases(seed=41, instances=500):
        settings, first = case.settings, [law_of(case.q, case) for _, law_of in SELECTORS.values()]
        listed = dict(zip(SELECTORS, first, strict=True))
        for place in range(0, len(case.q), 10):
            q, copies = case.q[place], settings.copies[place].astype(float)
            levels = DropLevels.build(
                float(settings.overhead[place]), settings.rates[place], copies, settings.least
            )
            order = list(case.order)
            assert_agrees(
                random_dropping(q, levels, conditioned=False), listed["random dropping"], place
            )
            assert_agrees(
                random_dropping(q, levels, conditioned=True),
                listed["random dropping, drawn again"],
                place,
            )
            target = first_pass_or_first(q, levels, BAR, order, conditioned=False)
            assert_agrees(target, listed["random dropping, target"], place)
            assert_agrees(above_threshold(q, levels, BAR), listed["above threshold"], place)
            assert_agrees(doubling(q, copies, BAR), listed["doubling"], place)
            for name, (selector_of, _) in SELECTORS.items():
                if name.startswith(("poisson", "truncated")):
                    assert_agrees(
                        repeat_and_select(q, copies, selector_of(case, place).runs),
                        listed[name],
                        place,
                    )


def test_laws_under_renyi_promises_agree_with_those_of_the_theorem_tests():
    """The library's own lattice; the brackets of the other side are wider, about 1e-8."""
    rng = np.random.default_rng(42)
    for _ in range(8):
        instance = finite_renyi.random_instance(rng)
        candidates = instance.candidates()
        for selector in (
            RandomDropping(0.5, order=32.0, allow_nothing=True),
            AboveThreshold(0.5, instance.bar, order=32.0),
        ):
            drop = selector.drop_law(candidates)
            mine = DropLevels.of(drop, instance.repeats)
            other = finite_renyi.Levels(drop, len(candidates))
            if isinstance(selector, RandomDropping):
                law = random_dropping(instance.here, mine, conditioned=False)
                second = finite_renyi.random_dropping(instance.here, instance.repeats, other)
            else:
                law = above_threshold(instance.here, mine, instance.bar)
                second = finite_renyi.above_threshold(
                    instance.here, instance.repeats, other, instance.bar
                )
            np.testing.assert_allclose(law.high, second.high, rtol=1e-6, atol=1e-12)
            np.testing.assert_allclose(law.low, second.low, rtol=1e-6, atol=1e-12)
            assert float(law.nothing_low) == pytest.approx(second.nothing_low, rel=1e-6)


def test_coarse_brackets_hold_the_fine_law():
    """Cells of many levels, and an endless one that begins early, still bound from both sides."""
    rng = np.random.default_rng(43)
    q, rates, copies = (
        rng.dirichlet(np.ones(4), 3),
        np.array([0.02, 0.05, 0.03]),
        np.array([1.0, 40.0, 3.0]),
    )
    fine = random_dropping(q, DropLevels.build(0.01, rates, copies, 2), conditioned=False)
    for levels in (
        DropLevels.coarse(0.01, rates, copies, 2, 0.5),
        DropLevels(0.01, rates, copies, 2, np.array([0.0, 7.0, 60.0])),
    ):
        coarse = random_dropping(q, levels, conditioned=False)
        assert np.all(coarse.low <= fine.low * (1 + 1e-10))
        assert np.all(coarse.high >= fine.high * (1 - 1e-10))
        assert coarse.nothing_low <= fine.nothing_low <= fine.nothing_high <= coarse.nothing_high
        assert np.all(
            (coarse.high - coarse.low)[:, :-1] > 1e-4 * coarse.high[:, :-1]
        )  # they are coarse


def test_cells_beyond_the_single_levels_keep_the_bracket_tight():
    rates, copies, q = np.array([0.001]), np.array([50.0]), np.array([[0.3, 0.7]])
    single = random_dropping(q, DropLevels.build(0.0003, rates, copies, 0), conditioned=True)
    grown = random_dropping(
        q, DropLevels.build(0.0003, rates, copies, 0, singles=2000), conditioned=True
    )
    assert np.all(grown.low <= single.low * (1 + 1e-10))
    assert np.all(grown.high >= single.high * (1 - 1e-10))
    assert np.all(grown.high <= grown.low * 1.01)


def test_rates_that_differ_much_leave_the_bracket_tight():
    """The fast one is gone long before the slow one stops to matter."""
    q = np.array([[0.4, 0.6], [0.7, 0.3]])
    law = random_dropping(
        q,
        DropLevels.build(0.01, np.array([0.02, 5.0]), np.array([3.0, 1000.0]), 0),
        conditioned=True,
    )
    assert np.all(law.high <= law.low * (1 + 1e-8))
    assert law.total()[0] <= 1 <= law.total()[1]


def test_a_candidate_that_is_never_dropped():
    """ε = 0 is dropped at rate 0: it is kept at every level, and the law stays exact."""
    free, other = FiniteMechanism([0.5, 0.5], [0.5, 0.5]), randomised_response(0.5)
    report = exact_audit(
        RandomDropping(0.3),
        [free.as_candidate(guarantee=PureDP(0)), other.as_candidate(guarantee=PureDP(0.5))],
    )
    assert report.consistent
    chances = [row.chances[0] for row in report.claims[0].outcomes]
    assert sum(chances) == pytest.approx(1, abs=1e-9)
    assert chances[2] == 0


def test_queries_agree_with_the_theorem_tests_and_copies_add_up():
    answers, epsilon = [0, 2, -1], np.array([0.7, 0.4, 0.9])
    law = above_threshold_queries(answers, epsilon, 0.3, 0, outputs=6)
    other = finite.above_threshold_queries(
        np.array([answers]), epsilon[None], np.array([0.3]), outputs=5
    )
    np.testing.assert_allclose(law.low[:, :5], other.low[0], rtol=1e-9)
    assert float(law.nothing_low) == pytest.approx(float(other.nothing_low[0]), rel=1e-9)
    assert law.total()[0] <= 1 <= law.total()[1]
    query = Query(lambda data: data)
    twice = exact_audit(
        AboveThreshold(0.3, 0), [Candidate(query, guarantee=PureDP(0.7), repeats=2)], data=(0, 1)
    ).claims[0]
    listed = exact_audit(
        AboveThreshold(0.3, 0), [Candidate(query, guarantee=PureDP(0.7))] * 2, data=(0, 1)
    ).claims[0]
    assert twice.outcomes[0].chances[0] == pytest.approx(
        sum(row.chances[0] for row in listed.outcomes[:2])
    )


def test_noise_reduction_agrees_with_the_theorem_tests():
    rates, rng = [0.5, 0.8, 1.7], np.random.default_rng(44)
    path = NoisePath(rates, np.arange(-200.0, 201.0), 185)
    passes = rng.random((3, 31)) < 0.4
    wide = np.zeros((3, 401), dtype=bool)
    wide[:, 185:216] = passes
    for answer in (0, 1):
        other = finite.noise_reduction(
            finite.NoisePath(rates), answer, passes[None], np.zeros((1, 3), dtype=bool)
        )
        law = path.law(answer, wide)
        np.testing.assert_allclose(law.low, other.low[0], rtol=1e-9, atol=1e-30)
        assert float(law.nothing_high) == pytest.approx(float(other.nothing_high[0]), rel=1e-9)


def test_what_is_selected_has_the_exact_law():
    """1,500 real selections per data set against the exact law.

    Chi-square with 6 cells, false alarm 1e-6.
    """
    tables = [
        FiniteMechanism([0.5, 0.2, 0.3], [0.3, 0.3, 0.4]),
        FiniteMechanism([0.6, 0.4], [0.5, 0.5], scores=[1, 1.5]),
    ]
    candidates = [tables[0].as_candidate(repeats=3), tables[1].as_candidate()]
    selector, source, runs = RandomDropping(0.2, allow_nothing=True), SimulationRandomness(8), 1_500
    pair = exact_laws(selector, candidates, None, None)
    for data, law in ((0, pair.here), (1, pair.there)):
        seen: Counter[object] = Counter()
        for _ in range(runs):
            release = selector.select(candidates, data, randomness=source, simulation=True)
            seen[None if release.value is NOTHING else (release.index, release.value)] += 1
        places = np.argwhere(law.high > 0)
        expected = {(int(i), pair.outputs[o]): float(law.high[i, o]) for i, o in places} | {
            None: float(law.nothing_high)
        }
        assert set(seen) <= set(expected)
        assert (
            sum(
                (seen[key] - runs * chance) ** 2 / (runs * chance)
                for key, chance in expected.items()
            )
            < 36.0
        )


def test_counting_finds_no_more_than_there_is():
    """The empirical audit's lower bounds (at 95 %, seeded) are below the exact smallest charges.

    One of them comes near.
    """
    tables = [
        FiniteMechanism([0.6, 0.3, 0.1], [0.4, 0.35, 0.25]),
        FiniteMechanism([0.5, 0.5], [0.4, 0.6]),
    ]
    candidates = [tables[0].as_candidate(repeats=4), tables[1].as_candidate()]
    selector = RandomDropping(0.1)
    exact = {
        row.index: row.smallest for row in exact_audit(selector, candidates).claims[0].outcomes
    }
    counted = audit(selector, 0, 1, runs=1_000, candidates=candidates, simulation_seed=1)
    assert all(row.lower_bound <= exact[row.index] for row in counted.outcomes)
    assert max(row.lower_bound / exact[row.index] for row in counted.outcomes) > 0.3


# Audits.


@pytest.mark.parametrize(
    "selector",
    [RandomDropping(0.3), RandomDropping(0.3, allow_nothing=True), AboveThreshold(0.3, at_least=1)],
)
def test_the_adversary_needs_all_of_the_pure_charge(selector):
    report = exact_audit(selector, crowd())
    assert report.consistent
    assert not report.violated
    assert report.claims[0].outcomes[1].claimed == pytest.approx(1.3)
    assert 1 - 1e-6 < report.tightness <= 1 + 1e-9
    assert report.claims[0].outcomes[1].at_least <= report.claims[0].outcomes[1].smallest
    assert report.claims[0].outcomes[1].worst_output == 1.0
    assert "consistent" in str(report)
    assert report.as_dict()["tightness"] == report.tightness


def test_a_target_is_run_by_priority():
    """The first pass by public priority, else the first kept candidate.

    This is the law of running all with the score (passed?, priority).
    """
    tables = [randomised_response(0.4), randomised_response(0.6)]
    for priorities in ((1, 2), (2, 1), (None, None)):
        candidates = [
            each.as_candidate(guarantee=PureDP(e), priority=p)
            for each, e, p in zip(tables, (0.4, 0.6), priorities, strict=True)
        ]
        selector = RandomDropping(0.3, at_least=1, allow_nothing=True)
        pair = exact_laws(selector, candidates, None, None)
        first = 1 if priorities == (1, 2) else 0
        order = [first, 1 - first]
        settings = finite.Dropping(np.array([0.3]), np.array([[0.4, 0.6]]), np.ones((1, 2)))
        q = np.array([[each.table for each in tables]])
        assert_agrees(pair.here, finite.random_dropping_target(q, settings, 1, order), 0)
        assert exact_audit(selector, candidates).consistent


def test_doubling_noise_reduction_and_queries_reach_their_charges():
    _, winner = adversary()
    query = Query(lambda data: data[0])
    fails = FiniteMechanism([0.01 * math.e, 1 - 0.01 * math.e], [0.01, 0.99])
    reports = [
        exact_audit(Doubling(1), [fails, winner]),
        exact_audit(
            NoiseReduction(at_least=1),
            [Candidate(DiscreteLaplace(query, each)) for each in (0.5, 1.0)],
            data=((1,), (0,)),
            score=lambda estimate: (float(estimate) < 1) == (estimate.scale > 1.5),
        ),
        exact_audit(
            AboveThreshold(0.3, 0),
            [
                Candidate(Query(lambda data, k=k: data[k]), guarantee=PureDP(e))
                for k, e in ((0, 0.7), (1, 0.4))
            ],
            data=((0, 0), (1, -1)),
        ),
    ]
    for report in reports:
        assert report.consistent
        assert report.claims[0].outcomes[1].tightness > 1 - 1e-6
    assert 0 < reports[1].unseen < 1e-8
    assert reports[0].unseen == 0


@pytest.mark.parametrize(
    "runs", [TruncatedNegativeBinomial(1, 0.05), TruncatedNegativeBinomial(0, 0.05), Poisson(6)]
)
def test_repeat_and_select_is_consistent(runs):
    candidates = [randomised_response(0.5).as_candidate(repeats=3), adversary()[1].as_candidate()]
    assert exact_audit(RepeatAndSelect(runs), candidates).consistent
    curves = [replace(each, guarantee=each.mechanism.curve((2.0, 8.0))) for each in candidates]
    report = exact_audit(RepeatAndSelect(runs, order=(2.0, 8.0)), curves)
    assert [claim.order for claim in report.claims] == [2.0, 8.0]
    assert report.consistent


@pytest.mark.parametrize("method", ["sharp", "closed-form", "paper"])
def test_renyi_and_approximate_claims(method):
    competitor, winner = adversary()
    curves = [each.curve((4.0, 32.0)) for each in (competitor, winner)]
    candidates = [
        competitor.as_candidate(guarantee=curves[0], repeats=592),
        winner.as_candidate(guarantee=curves[1]),
    ]
    for selector in (
        RandomDropping(0.1, order=32.0, method=method),
        RandomDropping(0.1, order=32.0, method=method, allow_nothing=True, minimum_drop_level=3),
        RandomDropping(0.1, delta=1e-4, method=method),
        AboveThreshold(0.1, at_least=1, order=32.0, method=method),
    ):
        report = exact_audit(selector, candidates)
        assert report.consistent
        assert 0.3 < report.tightness < 1
        assert report.claims[0].used < report.claims[0].allowed


def test_doubling_under_zcdp_is_looked_at_at_several_orders():
    table = FiniteMechanism.from_query(
        DiscreteGaussian(Query(lambda data: data), 0.02), 0, 1, lowest=-20, highest=20
    )
    report = exact_audit(
        Doubling(3), [table.as_candidate(guarantee=ZCDP(0.02))] * 3, orders=(2.0, 8.0)
    )
    assert [claim.order for claim in report.claims] == [2.0, 8.0]
    assert report.consistent
    assert report.tightness > 0.3


def test_doubling_under_approximate_promises():
    leaky = FiniteMechanism([0.3, 0.5, 0.2], [0.6, 0.35, 0.05])
    candidate = leaky.as_candidate(guarantee=ApproxDP(0.5, leaky.hockey_stick(0.5)))
    report = exact_audit(Doubling(1), [candidate, candidate])
    assert report.claims[0].delta == pytest.approx(2 * leaky.hockey_stick(0.5))
    assert report.consistent
    assert 0.3 < report.tightness < 1


# What "smallest" means.


def small_pair() -> LawPair:
    rng = np.random.default_rng(45)
    q = rng.dirichlet(np.full(4, 0.6), (2, 3))
    levels = DropLevels.build(0.2, np.array([0.5, 0.6, 0.7]), np.array([2.0, 1.0, 5.0]), 0)
    return LawPair(
        *(above_threshold(each, levels, 1) for each in q), tuple(range(4)), public_nothing=False
    )


@pytest.mark.parametrize(
    "measure", [RenyiMeasure(small_pair(), 6.0), ApproxMeasure(small_pair(), 1e-3)]
)
def test_smallest_charges_are_just_enough(measure):
    """At the smallest charge of a class, or at the least factor, the claim holds with equality.

    With a little less it fails.
    """
    shape = np.array([4.0, 4.0, 5.0, 3.0])
    charges = 1.05 * measure.factor(shape, worse=True) * shape
    enough = charges * measure.factor(charges, worse=True)
    assert measure.used(enough, worse=True) == pytest.approx(measure.allowed, rel=1e-8)
    assert measure.used(enough * (1 - 1e-6), worse=True) > measure.allowed
    found = 0
    for place in range(4):
        changed = charges.copy()
        changed[place] = measure.smallest(charges, place, worse=True)
        assert measure.used(changed, worse=True) <= measure.allowed * (1 + 1e-8)
        if changed[place] > 0:
            found += 1
            changed[place] *= 1 - 1e-6
            assert measure.used(changed, worse=True) > measure.allowed
    assert found > 0


def test_moments_and_hockey_sticks_are_those_of_the_definition():
    pair = small_pair()
    here, there = (np.append(law.high.ravel(), law.nothing_high) for law in (pair.here, pair.there))
    charges = np.array([0.2, 0.3, 0.1, 0.4])
    each = np.append(np.repeat(charges[:3], 4), charges[3])
    with np.errstate(divide="ignore", invalid="ignore"):
        sums = [
            np.nansum(a**3 * (np.exp(each) * b) ** -2.0) for a, b in ((here, there), (there, here))
        ]
    assert RenyiMeasure(pair, 3.0).used(charges, worse=True) == pytest.approx(max(sums), rel=1e-8)
    sticks = [np.maximum(a - np.exp(each) * b, 0).sum() for a, b in ((here, there), (there, here))]
    assert ApproxMeasure(pair, 0.1).used(charges, worse=True) == pytest.approx(
        max(sticks), rel=1e-8
    )


def test_a_claim_at_an_order_implies_it_at_smaller_orders():
    """Lyapunov's inequality, which docs/tightness.md calls elementary.

    Charges that are just enough at order 6 are enough below, not above.
    """
    pair, shape = small_pair(), np.array([1.0, 2.0, 1.5, 0.7])
    charges = RenyiMeasure(pair, 6.0).factor(shape, worse=True) * shape
    assert all(
        RenyiMeasure(pair, order).used(charges, worse=True) <= 1 for order in (1.1, 2.0, 4.0, 5.9)
    )
    assert RenyiMeasure(pair, 6.5).used(charges, worse=True) > 1


def test_no_charge_is_enough_for_an_outcome_that_happens_on_one_side_only():
    zero = np.asarray(0.0)
    here, there = (OutputLaw.exactly(np.array([row]), zero) for row in ([0.5, 0.5], [1.0, 0.0]))
    pair = LawPair(here, there, (0.0, 1.0), public_nothing=True)
    assert PureMeasure(pair).smallest(np.array([1.0, 0.0]), 0, worse=True) == math.inf
    assert audit_claim(PureMeasure(pair), np.array([600.0, 0.0]), pair).violated
    assert RenyiMeasure(pair, 2.0).factor(np.array([1.0, 0.0]), worse=True) == math.inf
    assert ApproxMeasure(pair, 0.1).factor(np.array([1.0, 0.0]), worse=True) == math.inf
    assert ApproxMeasure(pair, 0.6).factor(np.array([1.0, 0.0]), worse=True) < math.inf


def test_where_floats_end_nothing_is_called_a_violation():
    """Two rare outputs in a row: their product is no float any more, on one side only."""
    tiny = FiniteMechanism([1e-200, 1.0], [1e-201, 1.0])
    report = exact_audit(Doubling(1), [tiny, tiny])
    assert not report.violated
    assert report.claims[0].outcomes[2].at_least <= report.claims[0].outcomes[2].claimed


# Mutants.


def test_a_charge_of_one_epsilon_is_found_out():
    candidates = crowd()
    pair = exact_laws(RandomDropping(0.3), candidates, None, None)
    claim = audit_claim(PureMeasure(pair), np.array([1.3, 0.8, 0.0]), pair)
    assert claim.violated
    assert not claim.consistent
    assert claim.tightness_at_least > 1.6
    assert audit_claim(PureMeasure(pair), np.array([2.3, 1.3, 0.0]), pair).consistent


def test_a_selector_that_never_drops_is_found_out():
    rows = [np.array([each.rows()[side] for each in adversary()]) for side in (0, 1)]
    copies = np.array([1000.0, 1.0])
    for rates, violated in ((np.zeros(2), True), (np.array([1.0, 0.5]), False)):
        levels = DropLevels.build(0.3, rates, copies, 0)
        pair = LawPair(
            *(random_dropping(q, levels, conditioned=False) for q in rows),
            (0.0, 1.0, 2.0),
            public_nothing=True,
        )
        claim = audit_claim(PureMeasure(pair), np.array([2.3, 1.3, 0.0]), pair)
        assert (claim.violated, claim.consistent) == (violated, not violated)


def test_renyi_charges_that_are_too_small_are_found_out():
    """At 1/tightness of the charges the claim holds, at a little less it is violated."""
    competitor, winner = adversary()
    curves = [each.curve((32.0,)) for each in (competitor, winner)]
    candidates = [
        competitor.as_candidate(guarantee=curves[0], repeats=592),
        winner.as_candidate(guarantee=curves[1]),
    ]
    selector = RandomDropping(0.1, order=32.0)
    pair, table = exact_laws(selector, candidates, None, None), selector.charges(candidates)
    claimed = np.array([table[0].epsilons[0], table[1].epsilons[0], 0.0])
    tightness = exact_audit(selector, candidates).tightness
    assert audit_claim(RenyiMeasure(pair, 32.0), claimed * tightness * 1.001, pair).consistent
    assert audit_claim(RenyiMeasure(pair, 32.0), claimed * tightness * 0.999, pair).violated


# Refusals.


@dataclass(frozen=True)
class MyDropping(RandomDropping):
    """A selector of one's own: its law is not known."""


REFUSALS = {
    "a selector of one's own": (
        lambda: exact_audit(MyDropping(0.1), [randomised_response(1)]),
        "selector",
    ),
    "no selector": (lambda: exact_audit("dropping", [randomised_response(1)]), "selector"),
    "no list": (lambda: exact_audit(Doubling(1), randomised_response(1)), "mechanisms"),
    "a mechanism that is no table": (
        lambda: exact_audit(Doubling(1), [Candidate(lambda d, r: 0, guarantee=PureDP(1))]),
        "mechanisms[0]",
    ),
    "no ε at all": (
        lambda: exact_audit(Doubling(1), [FiniteMechanism([1, 0], [0.5, 0.5])]),
        "mechanisms[0]",
    ),
    "a broken promise": (
        lambda: exact_audit(
            Doubling(1), [randomised_response(1).as_candidate(guarantee=PureDP(0.9))]
        ),
        "mechanisms[0].guarantee",
    ),
    "a broken curve": (
        lambda: exact_audit(
            Doubling(1), [randomised_response(1).as_candidate(guarantee=RenyiDP((2.0,), (0.1,)))]
        ),
        "mechanisms[0].guarantee",
    ),
    "a broken (ε, δ)": (
        lambda: exact_audit(
            Doubling(1), [randomised_response(1).as_candidate(guarantee=ApproxDP(0.5, 1e-3))]
        ),
        "mechanisms[0].guarantee",
    ),
    "a broken ρ": (
        lambda: exact_audit(
            Doubling(1), [randomised_response(1).as_candidate(guarantee=ZCDP(0.01))]
        ),
        "mechanisms[0].guarantee",
    ),
    "a score for tables": (
        lambda: exact_audit(Doubling(1), [randomised_response(1)], score=float),
        "score, data",
    ),
    "queries without data": (
        lambda: exact_audit(AboveThreshold(0.1, 0), [Candidate(Query(len), guarantee=PureDP(1))]),
        "data",
    ),
    "Gaussian noise reduction": (
        lambda: exact_audit(
            NoiseReduction(1), [Candidate(DiscreteGaussian(Query(len), 0.1))], data=([], [1])
        ),
        "mechanisms",
    ),
    "data sets that are no neighbours": (
        lambda: exact_audit(
            NoiseReduction(1), [Candidate(DiscreteLaplace(Query(sum), 1))], data=([0], [10_000])
        ),
        "data",
    ),
    "a vector query as a table": (
        lambda: FiniteMechanism.from_query(
            DiscreteLaplace(Query(list, dimension=2), 1), [1, 2], [1, 3], lowest=0, highest=4
        ),
        "mechanism",
    ),
    "an empty range": (
        lambda: FiniteMechanism.from_query(
            DiscreteLaplace(Query(len), 1), [], [1], lowest=2, highest=1
        ),
        "highest",
    ),
    "an order of 1": (lambda: randomised_response(1).renyi(1.0), "order"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_cannot_be_audited_is_refused_by_name(name):
    call, field = REFUSALS[name]
    with pytest.raises(InvalidInput) as refused:
        call()
    assert refused.value.field == field


def test_a_promise_is_refused_as_a_candidate_error():
    with pytest.raises(InvalidCandidate, match="breaks it"):
        exact_audit(Doubling(1), [randomised_response(1).as_candidate(guarantee=PureDP(0.9))])


# The filter: whole transcripts.


def request(epsilon: float) -> Request:
    return Request(Doubling(1), [randomised_response(epsilon)])


LARGE, SMALL = request(0.6), request(0.3)


def adaptive(seen: tuple[Seen, ...]) -> Request | None:
    """Ask for more after a pass, for less after a refusal, and stop after six turns."""
    if len(seen) == 6:
        return None
    return LARGE if not seen or (seen[-1].index == 0 and not seen[-1].refused) else SMALL


def test_transcripts_of_a_pure_budget():
    report = filter_audit(PureBudget(1.501), adaptive)
    assert report.consistent
    assert report.transcripts >= 6
    assert report.tightness == pytest.approx(
        1.5 / 1.501, abs=1e-6
    )  # 0.6, 0.6, 0.3, all pointing one way
    assert report.realised[0].tightness == pytest.approx(1.0, abs=1e-6)


def test_a_filter_that_admits_everything_is_found_out(monkeypatch):
    monkeypatch.setattr(Filter, "admits", lambda self, worst: True)
    report = filter_audit(PureBudget(1.501), adaptive)
    assert report.violated
    assert report.tightness > 1.5
    assert report.realised[0].consistent  # the charges themselves are right


def test_a_filter_that_forgets_what_was_settled_is_found_out(monkeypatch):
    monkeypatch.setattr(
        Filter, "settle", lambda self, worst, realised: replace(self, held=(Fraction(0),))
    )
    report = filter_audit(PureBudget(1.501), adaptive)
    assert report.violated
    assert report.realised[0].violated


def test_transcripts_of_renyi_approximate_and_zcdp_budgets():
    orders = (2.0, 8.0)
    tables = [randomised_response(0.3), randomised_response(0.4)]
    renyi = [each.as_candidate(guarantee=each.curve(orders)) for each in tables]
    dropping = Request(RandomDropping(0.1, order=orders, allow_nothing=True), renyi)
    turns = Request(Doubling(1), renyi)

    def analyst(seen: tuple[Seen, ...]) -> Request | None:
        return None if len(seen) == 3 else dropping if seen and seen[-1].index == 0 else turns

    for budget in (
        RenyiBudget(orders, (0.4, 1.5)),
        RenyiBudget.for_approx(6.0, 1e-3, orders, "any"),
    ):
        report = filter_audit(budget, analyst)
        assert report.consistent
        assert [claim.order for claim in report.realised] == list(budget.orders)
        assert max(claim.tightness for claim in report.realised) > 0.6
    alone = Request(RandomDropping(0.1, delta=1e-5), renyi)
    report = filter_audit(ApproxBudget(3.0, 2e-5), lambda seen: alone if len(seen) < 3 else None)
    assert report.consistent
    assert report.realised == ()
    zcdp = Request(Doubling(1), [each.as_candidate(guarantee=ZCDP(0.08)) for each in tables])
    report = filter_audit(ZCDPBudget(0.2), lambda seen: zcdp if len(seen) < 3 else None)
    assert report.consistent
    assert len(report.claims) == 7


def test_an_analyst_who_never_stops_is_refused():
    with pytest.raises(InvalidInput, match="stop earlier"):
        filter_audit(PureBudget(1.0), lambda seen: LARGE)
    with pytest.raises(InvalidInput, match="stop earlier"):
        filter_audit(PureBudget(1.501), adaptive, most=3)
    with pytest.raises(InvalidInput, match="pass a function"):
        filter_audit(PureBudget(1.0), LARGE)
