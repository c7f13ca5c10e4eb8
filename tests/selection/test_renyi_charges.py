"""Rényi pricing: known values, equal prices for equal lists, bad input, and the lattice."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from expost import ZCDP, AboveThreshold, ApproxDP, Candidate, PureDP, RandomDropping, RenyiDP
from expost.errors import InvalidCandidate, InvalidInput
from expost.privacy.charges import Charges
from expost.privacy.dpsgd import gaussian_for
from expost.privacy.guarantees import Guarantee
from expost.selection.drop_law import (
    METHODS,
    LevelLattice,
    log_cell_masses,
    log_keep_probability,
    probability_nothing,
)
from expost.selection.random_dropping import DroppingSelector
from tests.work import lines_run, peak_bytes

DELTA = 1e-6
LEVELS = [round(0.1 * step, 1) for step in range(1, 11)]


def unused(data: object, randomness: object) -> object:
    raise AssertionError("pricing never runs a candidate")


def candidate(guarantee: Guarantee, repeats: int = 1, drop_rate: float | None = None) -> Candidate:
    return Candidate(unused, guarantee=guarantee, repeats=repeats, drop_rate=drop_rate)


def gaussians(*epsilons: float, repeats: int = 1) -> list[Candidate]:
    return [candidate(gaussian_for(epsilon, DELTA), repeats) for epsilon in epsilons]


def first_rate(candidates: list[Candidate]) -> float:
    """The drop rate of the first candidate per unit of x.

    The drop law of ε′ = 1 is in steps of the lattice.
    """
    law = RandomDropping(1, delta=DELTA).drop_law(candidates)
    return float(law.rates[0] / law.overhead)


def epsilons(table: Charges) -> list[float]:
    return [table[place].epsilon for place in range(len(table))]


# Known values: ten levels, 162 configurations each.


@pytest.fixture(scope="module")
def ten_levels() -> dict[str, dict[float, float]]:
    candidates = gaussians(*LEVELS, repeats=162)
    overhead = 0.05 * first_rate(candidates)
    return {
        method: dict(
            zip(
                LEVELS,
                epsilons(RandomDropping(overhead, delta=DELTA, method=method).charges(candidates)),
                strict=True,
            )
        )
        for method in METHODS
    }


@pytest.mark.parametrize(
    ("level", "charge"), [(0.1, 0.202), (0.2, 0.461), (0.4, 1.126), (1.0, 3.80)]
)
def test_closed_form_charges_have_their_known_values(
    ten_levels: dict[str, dict[float, float]], level: float, charge: float
) -> None:
    assert ten_levels["closed-form"][level] == pytest.approx(charge, rel=0.01)


@pytest.mark.parametrize(
    ("level", "charge"), [(0.1, 0.197), (0.2, 0.457), (0.4, 0.994), (1.0, 2.63)]
)
def test_sharp_charges_have_their_known_values(
    ten_levels: dict[str, dict[float, float]], level: float, charge: float
) -> None:
    assert ten_levels["sharp"][level] == pytest.approx(charge, rel=0.01)


def test_sharp_is_cheaper_than_closed_form_and_that_than_the_paper(
    ten_levels: dict[str, dict[float, float]],
) -> None:
    for level in LEVELS:
        assert (
            level
            < ten_levels["sharp"][level]
            < ten_levels["closed-form"][level]
            < ten_levels["paper"][level]
        )
    assert ten_levels["sharp"][1.0] == pytest.approx(0.7 * ten_levels["closed-form"][1.0], rel=0.05)


def test_the_papers_method_is_the_papers_formula() -> None:
    """theorem:max-score-rdp with γ = ε(α).

    Minimum over ℓ of (2+ℓ)ε_i + (1+ℓ)ε′ + (ln(τ+1) + Σ_{j≠i} e^{−ε_j(1+αℓ)})/(α−1).
    """
    order, overhead, repeats = 16.0, 0.1, np.array([3, 4])
    candidates = [
        candidate(gaussian_for(epsilon, DELTA), int(copies))
        for epsilon, copies in zip((0.5, 1.0), repeats, strict=True)
    ]
    losses = np.array([each.guarantee.to_renyi([order]).epsilons[0] for each in candidates])
    more = np.linspace(0, 5, 2001)[:, None]
    tau = float(repeats @ (overhead / (overhead + losses)))
    crowd = np.exp(-losses[None, :] * (1 + order * more))
    others = (crowd @ repeats)[:, None] - crowd
    papers = (
        (2 + more) * losses + (1 + more) * overhead + (math.log(tau + 1) + others) / (order - 1)
    ).min(axis=0)
    table = RandomDropping(overhead, order=order, method="paper", allow_nothing=True).charges(
        candidates
    )
    assert [table[i].epsilons[0] for i in range(2)] == pytest.approx(
        papers, rel=0.02
    )  # x on a lattice, shifts on a grid
    assert (
        0 < table.nothing.epsilons[0] < math.log(tau + 1) / (order - 1)
    )  # P_⊥ is known, so nothing costs less than there


def test_pricing_a_large_list_takes_no_more_work() -> None:
    """Catches a loop over the repeats, or an array of them."""

    def price(repeats: int) -> Charges:
        return RandomDropping(0.01, delta=DELTA).charges(gaussians(*LEVELS, repeats=repeats))

    _, few = lines_run(lambda: price(10), at_most=2 * 10**7)
    _, many = lines_run(lambda: price(10**9), at_most=2 * 10**7)
    assert many <= 3 * few
    assert peak_bytes(lambda: price(10**9)) <= 3 * peak_bytes(lambda: price(10))


# What must not matter, and what must.


@pytest.mark.parametrize(
    "selector", [RandomDropping(0.05, delta=DELTA), AboveThreshold(0.05, at_least=0, delta=DELTA)]
)
def test_copies_cost_the_same_however_they_are_written(selector: DroppingSelector) -> None:
    """Repeats, and equal candidates one by one; a sum over candidates, not copies, would differ."""
    written = selector.charges(gaussians(0.2, 0.4, repeats=7))
    listed = selector.charges([each for each in gaussians(0.2, 0.4) for _ in range(7)])
    assert epsilons(listed) == [charge for charge in epsilons(written) for _ in range(7)]
    assert listed.nothing == written.nothing
    assert epsilons(selector.charges(gaussians(0.2, 0.4)))[0] < epsilons(written)[0]


def test_in_algorithm_2_only_earlier_candidates_compete() -> None:
    """Many candidates after a candidate cost it only the price of its weight.

    The same candidates before it must be paid for.
    """
    lone, crowd = gaussians(0.2), gaussians(0.4, repeats=1000)
    selector = AboveThreshold(0.05, at_least=0, delta=DELTA, weights=(0.25, 0.5))
    first = selector.charges(lone + crowd)[0].epsilon
    last = (
        AboveThreshold(0.05, at_least=0, delta=DELTA, weights=(0.5, 0.25))
        .charges(crowd + lone)[1]
        .epsilon
    )
    assert first < last
    small = AboveThreshold(0.05, at_least=0, delta=DELTA, weights=(0.25, 0.5)).charges(
        lone + gaussians(0.4, repeats=2)
    )
    assert first == pytest.approx(small[0].epsilon, rel=0.01)


@pytest.mark.parametrize(
    "make", [RandomDropping, lambda *a, **k: AboveThreshold(*a, at_least=0, **k)]
)
def test_more_weight_means_a_smaller_charge(make: Callable[..., DroppingSelector]) -> None:
    candidates = gaussians(0.3, 0.5, repeats=2)
    charges = [
        epsilons(make(0.05, delta=DELTA, weights=(share, 0.9 - share)).charges(candidates))
        for share in (0.1, 0.4, 0.8)
    ]
    assert charges[0][0] > charges[1][0] > charges[2][0]
    assert charges[0][1] < charges[1][1] < charges[2][1]


def test_nothing_costs_what_it_reveals() -> None:
    """Algorithm 3's nothing is the same on all data; Algorithm 2's is charged.

    It is free in a claim, and costs its weight at an order.
    """
    candidates = gaussians(0.3, repeats=3)
    assert RandomDropping(0.05, delta=DELTA, allow_nothing=True).charges(
        candidates
    ).nothing == ApproxDP(0, DELTA)
    assert (
        RandomDropping(0.05, order=8, allow_nothing=True).charges(candidates).nothing.epsilons[0]
        > 0
    )
    assert RandomDropping(0.05, order=8).charges(candidates).nothing.epsilons == (0,)
    assert AboveThreshold(0.05, at_least=0, delta=DELTA).charges(candidates).nothing.epsilon > 0
    assert AboveThreshold(0.05, at_least=0, order=8).charges(candidates).nothing.epsilons[0] > 0


def test_the_analysis_shows_where_a_charge_comes_from() -> None:
    """Evaluating the problem at the reported order and shift gives the charge.

    Shifts are integer steps, as the lattice needs.
    """
    table = RandomDropping(0.05, delta=DELTA).analyse(gaussians(0.2, 0.6, repeats=5))
    (priced,), problem = table.priced, table.problem
    for place in range(2):
        order = int(np.flatnonzero(problem.orders == priced.orders[place])[0])
        again = problem.evaluate(order, priced.shifts[place])[place]
        assert again == priced.charges[place] <= table.charges[place].epsilon
        assert Fraction(priced.shifts[place]) % problem.step == 0


def test_all_promises_that_imply_a_curve_are_priced() -> None:
    orders = (1.5, 2, 4, 8, 16, 32, 64)
    for promise in (
        PureDP(0.3),
        ZCDP(0.01),
        RenyiDP(orders, tuple(0.01 * order for order in orders)),
    ):
        table = RandomDropping(0.05, delta=1e-3).charges([candidate(promise, repeats=3)])
        assert 0 < table[0].epsilon < 2
    several = RandomDropping(0.05, order=(2, 3.5, 8)).charges([candidate(ZCDP(0.01), repeats=3)])
    assert several[0].orders == (2, 3.5, 8)
    assert all(
        0.01 * order < loss < 1
        for order, loss in zip(several[0].orders, several[0].epsilons, strict=True)
    )


def test_drop_rates_are_positive_rationals() -> None:
    law = RandomDropping(Fraction(1, 3), delta=DELTA).drop_law(gaussians(0.2, 0.6))
    assert all(isinstance(rate, Fraction) and rate > 0 for rate in (*law.rates, law.overhead))
    own = RandomDropping(Fraction(1, 3), delta=DELTA).drop_law(
        [candidate(ZCDP(0.01), drop_rate=Fraction(1, 7))]
    )
    assert own.rates[0] / own.overhead == Fraction(3, 7)  # exactly what was asked for


def test_neighbouring_relation_is_kept() -> None:
    table = RandomDropping(0.05, delta=DELTA).charges([candidate(ZCDP(0.01, "replace"))])
    assert table[0].neighbours == table.nothing.neighbours == "replace"


# Curves on different orders.


def test_curves_on_different_orders_are_joined_with_a_warning() -> None:
    coarse, fine = (2, 8, 32), (2, 4, 8, 16, 32, 64)
    promises = [
        RenyiDP(orders, tuple(0.02 * order for order in orders)) for orders in (coarse, fine)
    ]
    with pytest.warns(UserWarning, match="next larger") as caught:
        mixed = RandomDropping(0.05, delta=1e-3).charges(
            [candidate(promise) for promise in promises]
        )
    assert all("different orders" in str(warning.message) for warning in caught)
    joined = (2, 4, 8, 16, 32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        by_hand = RandomDropping(0.05, delta=1e-3).charges(
            [candidate(promise.on(joined)) for promise in promises]
        )
    assert epsilons(mixed) == epsilons(
        by_hand
    )  # the coarse curve's ε(4) is its ε(8): larger, hence valid


def test_an_order_between_two_tabulated_ones_is_charged_like_the_larger() -> None:
    promise = RenyiDP((2, 8, 32), (0.04, 0.16, 0.64))
    with pytest.warns(UserWarning, match="next larger"):
        between = RandomDropping(0.05, order=5, allow_nothing=True).charges([candidate(promise)])
    assert between[0].orders == (5,)
    assert between[0].epsilons[0] >= 0.16


# Bad input.


def _one() -> list[Candidate]:
    return [candidate(ZCDP(0.01))]


BAD: dict[str, Callable[[], object]] = {
    "order 1": lambda: RandomDropping(0.1, order=1),
    "order below 1": lambda: AboveThreshold(0.1, at_least=0, order=(0.5, 2)),
    "orders not ascending": lambda: RandomDropping(0.1, order=(3, 2)),
    "order above the curve": lambda: RandomDropping(0.1, order=9).charges(
        [candidate(RenyiDP((2, 8), (0.1, 0.2)))]
    ),
    "delta 0": lambda: RandomDropping(0.1, delta=0),
    "delta 1": lambda: RandomDropping(0.1, delta=1),
    "delta above 1": lambda: AboveThreshold(0.1, at_least=0, delta=1.5),
    "delta not a number": lambda: RandomDropping(0.1, delta=math.nan),
    "delta and order": lambda: RandomDropping(0.1, delta=DELTA, order=8),
    "neither, but weights": lambda: RandomDropping(0.1, weights=(1,)),
    "overhead 0": lambda: RandomDropping(0, delta=DELTA),
    "overhead negative": lambda: AboveThreshold(-1, at_least=0, delta=DELTA),
    "unknown method": lambda: RandomDropping(0.1, delta=DELTA, method="sharper"),
    "weights above 1": lambda: RandomDropping(0.1, delta=DELTA, weights=(0.6, 0.6)).charges(
        _one() * 2
    ),
    "weights just above 1": lambda: RandomDropping(
        0.1, delta=DELTA, weights=(0.5, math.nextafter(0.5, 1))
    ).charges(_one() * 2),
    "too few weights": lambda: RandomDropping(0.1, delta=DELTA, weights=(0.6,)).charges(_one() * 2),
    "a negative weight": lambda: RandomDropping(0.1, delta=DELTA, weights=(0.6, -0.1)).charges(
        _one() * 2
    ),
    "a weight of 0": lambda: RandomDropping(0.1, delta=DELTA, weights=(0.6, 0)).charges(_one() * 2),
    "no weight left for nothing": lambda: AboveThreshold(
        0.1, at_least=0, order=8, weights=(1,)
    ).charges(_one()),
    "almost surely nothing": lambda: RandomDropping(1e-13, delta=DELTA).charges(_one()),
    "a level beyond all keeping": lambda: RandomDropping(
        0.1, delta=DELTA, minimum_drop_level=10**8
    ).charges(_one()),
    "negative level": lambda: RandomDropping(0.1, delta=DELTA, minimum_drop_level=-1),
}
BAD_LISTS: dict[str, list[Candidate]] = {
    "empty": [],
    "approximate promises": [candidate(ApproxDP(0.1, 1e-6))],
    "mixed kinds": [candidate(ZCDP(0.1)), candidate(PureDP(0.1))],
    "mixed relations": [candidate(ZCDP(0.1)), candidate(ZCDP(0.1, "replace"))],
    "a guarantee of 0 without a drop rate": [candidate(ZCDP(0))],
}


@pytest.mark.parametrize("name", BAD)
def test_bad_settings_are_refused(name: str) -> None:
    with pytest.raises(InvalidInput):
        BAD[name]()


@pytest.mark.parametrize("name", BAD_LISTS)
def test_bad_lists_are_refused_by_every_door(name: str) -> None:
    selector = RandomDropping(0.1, delta=DELTA)
    for door in (selector.charges, selector.analyse, selector.drop_law):
        with pytest.raises((InvalidCandidate, InvalidInput)):
            door(BAD_LISTS[name])


def test_a_promise_of_zero_with_a_drop_rate_is_priced() -> None:
    table = RandomDropping(0.1, delta=DELTA).charges(
        [candidate(ZCDP(0), drop_rate=1), *gaussians(0.2)]
    )
    assert table[0].epsilon < table[1].epsilon


# The lattice.


@pytest.mark.parametrize("overhead", [1e-5, 0.003, 0.7])
@pytest.mark.parametrize("rate", [1e-4, 0.02, 1.5])
@pytest.mark.parametrize("minimum", [0, 40])
def test_cell_masses_sum_to_the_keep_probability(
    overhead: float, rate: float, minimum: int
) -> None:
    lattice = LevelLattice.build(overhead, [rate], [1], minimum)
    plain = sum_over_levels(overhead, lambda k: np.exp(-rate * (minimum + k)), overhead + rate)
    assert np.exp(lattice.log_masses[0]).sum() == pytest.approx(plain, rel=1e-9)
    assert np.exp(lattice.log_keep[0]) == pytest.approx(plain, rel=1e-9)
    assert np.exp(lattice.log_masses_nothing).sum() == pytest.approx(1, rel=1e-12)
    assert log_keep_probability(overhead, rate, minimum) == lattice.log_keep[0]


def sum_over_levels(
    overhead: float, function: Callable[[np.ndarray], np.ndarray], slowest: float
) -> float:
    """Σ_k P(k)·f(k), one by one, in blocks, up to where e^{−slowest·k} is 1e-23."""
    total, last = 0.0, int(53 / slowest) + 2
    for start in range(0, last, 10**6):
        k = np.arange(start, min(start + 10**6, last), dtype=float)
        total += float(-np.expm1(-overhead) * np.exp(-overhead * k) @ function(k))
    return total


def test_a_cell_holds_the_levels_between_its_edges() -> None:
    edges, overhead, rate = np.array([0.0, 1.0, 2.0, 5.0, 9.0]), 0.3, 0.2
    masses = np.exp(log_cell_masses(edges, overhead, rate, 2))
    k = np.arange(400.0)
    each = -np.expm1(-overhead) * np.exp(-overhead * k - rate * (k + 2))
    plain = [each[int(a) : int(b)].sum() for a, b in zip(edges, [*edges[1:], 400], strict=True)]
    assert masses == pytest.approx(plain, rel=1e-12)


@pytest.mark.parametrize("minimum", [0, 25])
@pytest.mark.parametrize(
    ("overhead", "rates", "copies"),
    [
        (0.001, [0.01], [1]),
        (0.01, [0.1, 0.02], [5, 300]),
        (0.0005, [0.004, 0.02, 0.001], [1, 10, 162]),
        (0.5, [0.5], [10**9]),
    ],
)
def test_the_chance_of_nothing_is_bracketed_narrowly(
    overhead: float, rates: list[float], copies: list[int], minimum: int
) -> None:
    def none_kept(k: np.ndarray) -> np.ndarray:
        with np.errstate(divide="ignore"):
            logs = [
                n * np.log1p(-np.exp(-rate * (minimum + k)))
                for rate, n in zip(rates, copies, strict=True)
            ]
        return np.exp(sum(logs))

    low, high = probability_nothing(overhead, rates, copies, minimum)
    plain = sum_over_levels(overhead, none_kept, overhead)
    assert low <= plain * (1 + 1e-9)
    assert plain * (1 - 1e-9) <= high
    assert high - low <= 0.01 * plain
    assert LevelLattice.build(overhead, rates, copies, minimum).nothing == high
