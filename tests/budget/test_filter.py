"""The privacy filter: exact sums, refusals, and its theorems.

The theorems are tested by enumerating every transcript of adaptive analysts. The mutants at the end
are filters with mistakes that are easy to make; the same analysts break them.
"""

from __future__ import annotations

import math
import operator
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, cached_property, reduce

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from expost import ZCDP, ApproxDP, Charges, PureDP, RenyiDP
from expost.budget.budgets import (
    ApproxBudget,
    PureBudget,
    RenyiBudget,
    ZCDPBudget,
    any_weight,
    as_budget,
    budget_from_dict,
)
from expost.budget.limits import Budget, Coordinates, Filter
from expost.errors import BudgetRefused, InvalidGuarantee, InvalidInput
from expost.privacy.guarantees import Guarantee
from tests.work import lines_run

ORDERS = (2.0, 4.0, 8.0)
KINDS: dict[str, tuple[Budget, Guarantee]] = {
    "pure": (PureBudget(1.0), PureDP(0.1)),
    "approx": (ApproxBudget(1.0, 1e-6), ApproxDP(0.1, 1e-7)),
    "zcdp": (ZCDPBudget(0.5), ZCDP(0.05)),
    "one order": (RenyiBudget((4.0,), (1.0,)), RenyiDP((4.0,), (0.1,))),
    "all orders": (RenyiBudget(ORDERS, (0.5, 1.0, 2.0)), RenyiDP(ORDERS, (0.05, 0.1, 0.2))),
    "any order": (
        RenyiBudget.for_approx(8.0, 1e-3, ORDERS, "any"),
        RenyiDP(ORDERS, (0.3, 0.3, 0.35)),
    ),
}
every_kind = pytest.mark.parametrize(("budget", "charge"), KINDS.values(), ids=list(KINDS))


def spend(state: Filter, charge: Guarantee, times: int = 1) -> Filter:
    """Reserve and settle at the worst case, again and again."""
    amount = state.budget.coordinates(charge)
    for _ in range(times):
        state = state.reserve(amount).settle(amount, amount)
    return state


# Exact sums.


def test_tiny_charges_do_not_drift():
    """Catches sums of floats: 1e-7 a million times, as floats, is not a million times 1e-7."""
    tiny, steps = Fraction(1, 10**7), 5_000
    state = spend(Filter.empty(PureBudget(1.0)), PureDP(1e-7), steps)
    assert state.settled == (steps * tiny,)
    state = spend(replace(state, settled=(10**6 * tiny - steps * tiny,)), PureDP(1e-7), steps)
    assert state.settled == (10**6 * tiny,)
    added = reduce(operator.add, [1e-7] * 10**6)  # what the mutant would have summed
    assert math.fsum([1e-7] * 10**6) != added


def test_the_last_of_a_million_requests_is_the_last_that_fits():
    """Catches a filter whose rounding admits one request too many, or one too few, after a long
    history.
    """
    tiny = Fraction(1, 10**7)
    budget = PureBudget(0.1)
    fits = budget.limits[0] // tiny
    state = replace(Filter.empty(budget), settled=((fits - 300) * tiny,))
    admitted = 0
    while state.admits((tiny,)):
        state, admitted = spend(state, PureDP(1e-7)), admitted + 1
    assert admitted == 300


def test_the_smallest_float_is_not_lost_in_a_full_budget():
    """Catches 1.0 + 5e-324 == 1.0: a budget that is used up, yet admits charges that rounding
    swallows.
    """
    state = spend(Filter.empty(PureBudget(1.0)), PureDP(1.0))
    with pytest.raises(BudgetRefused):
        state.reserve((Fraction(math.ulp(0)),))
    assert state.admits((Fraction(0),))


def test_a_budget_is_rounded_down_and_its_sums_are_shown_rounded_up():
    """Catches a budget of 1/10 that is a little more than 1/10, or a display that understates what
    was spent.
    """
    budget = PureBudget(Fraction(1, 10))
    assert budget.limits[0] <= Fraction(1, 10)
    third = (Fraction(1, 3),)
    assert Fraction(budget.describe(third)) > third[0] > Fraction(budget.describe(third, up=False))


@every_kind
def test_cost_of_a_request_does_not_grow(budget, charge):
    """Catches state that grows with history (OpenDP's filter composes the whole past for each
    query).
    """
    scaled = Filter.empty(budget)
    tiny = tuple(Fraction(float(each) * 1e-6) for each in budget.coordinates(charge))

    def request(state: Filter) -> Filter:
        return state.reserve(tiny).settle(tiny, tiny)

    state, early = lines_run(lambda: request(request(scaled)), at_most=10**5)
    for _ in range(4_500):
        state = request(state)
    state, late = lines_run(lambda: request(request(state)), at_most=10**5)
    assert late <= 1.1 * early
    sizes = [each.numerator.bit_length() + each.denominator.bit_length() for each in state.settled]
    assert max(sizes) < 300


# Refusals.


@every_kind
def test_a_refusal_changes_nothing_and_says_why(budget, charge):
    """Catches a refusal that poisons the filter (OpenDP's does), or that hides how much is only
    held.
    """
    amount = budget.coordinates(charge)
    state = spend(Filter.empty(budget, "visits"), charge, 2).reserve(amount)
    before = (state.settled, state.held)
    too_much = tuple(limit for limit in budget.limits)
    with pytest.raises(BudgetRefused) as refused:
        state.reserve(too_much)
    assert (state.settled, state.held) == before
    error = refused.value
    assert (error.budget, error.requested, error.held) == (
        "visits",
        budget.describe(too_much),
        budget.describe(amount),
    )
    assert error.remaining == budget.describe(state.remaining, up=False)
    for word in ("visits", "requested", "remaining", "held", "nothing was charged"):
        assert word in str(error)
    assert state.reserve(amount).held == tuple(
        2 * each for each in amount
    )  # smaller requests still pass


@every_kind
def test_what_remains_can_be_had_and_no_more(budget, charge):
    """Catches an off-by-one-ulp between what is said to remain and what is admitted."""
    state = spend(Filter.empty(budget), charge, 3)
    assert state.admits(state.remaining)
    assert not state.admits(tuple(each + Fraction(1, 10**30) for each in state.remaining))


def test_all_orders_must_fit_but_any_order_may():
    """Catches 'all' and 'any' mixed up."""
    every = Filter.empty(RenyiBudget(ORDERS, (1.0, 1.0, 1.0)))
    some = Filter.empty(KINDS["any order"][0])
    limits = some.budget.limits
    for place in range(len(ORDERS)):
        one_over = tuple(Fraction(2) if p == place else Fraction(0) for p in range(len(ORDERS)))
        one_under = tuple(
            Fraction(0) if p == place else limit + 1 for p, limit in enumerate(limits)
        )
        assert not every.admits(one_over)
        assert some.admits(one_under)
    assert not some.admits(tuple(limit + 1 for limit in limits))


def test_any_order_may_change_from_request_to_request_but_some_order_must_survive_all():
    """Catches an 'any' filter that asks the orders afresh for each request instead of for the whole
    history.
    """
    state = Filter.empty(KINDS["any order"][0])
    first = (Fraction(0), state.budget.limits[1] + 1, state.budget.limits[2] + 1)
    second = (state.budget.limits[0] + 1, Fraction(0), Fraction(0))
    state = state.reserve(first).settle(first, first)
    assert not state.admits(second)


# Settling.


@every_kind
def test_settling_replaces_the_worst_case(budget, charge):
    """Catches a settled request that stays held, or a held one that was forgotten."""
    worst = budget.coordinates(charge)
    realised = tuple(
        each if p in budget.never_refunded else each / 2 for p, each in enumerate(worst)
    )
    state = Filter.empty(budget).reserve(worst).settle(worst, realised)
    assert state.settled == realised
    assert state.held == tuple(Fraction(0) for _ in worst)


@every_kind
def test_an_outcome_above_its_worst_case_is_refused(budget, charge):
    """Catches a table whose worst case is not the worst: its outcome would overspend."""
    worst = budget.coordinates(charge)
    state = Filter.empty(budget).reserve(worst)
    with pytest.raises(InvalidInput, match="worst case"):
        state.settle(worst, tuple(2 * each for each in worst))


@every_kind
def test_what_is_not_held_cannot_be_settled(budget, charge):
    """Catches a second settlement of the same reservation, which would free what others hold."""
    worst = budget.coordinates(charge)
    state = Filter.empty(budget).reserve(worst)
    state = state.settle(worst, worst)
    with pytest.raises(InvalidInput, match="not held"):
        state.settle(worst, worst)


def test_delta_is_never_refunded():
    """Catches δ that comes back after a harmless outcome: see the mutant at the end for what an
    analyst makes of it.
    """
    state = Filter.empty(ApproxBudget(1.0, 1e-6))
    worst = (Fraction(1, 2), Fraction(1, 10**7))
    with pytest.raises(InvalidInput, match="δ"):
        state.reserve(worst).settle(worst, (Fraction(1, 4), Fraction(0)))
    table = Charges.from_list([ApproxDP(0.5, 1e-7), ApproxDP(0.1, 1e-8)], ApproxDP(0, 1e-7))
    with pytest.raises(InvalidGuarantee, match="δ covers all outcomes"):
        state.budget.worst(table)
    free_nothing = Charges.from_list([ApproxDP(0.5, 1e-7)], ApproxDP(0, 0))
    with pytest.raises(InvalidGuarantee, match="δ covers all outcomes"):
        state.budget.worst(free_nothing)


@given(data=st.data(), kind=st.sampled_from(list(KINDS)))
@settings(max_examples=150, deadline=None)
def test_any_history_stays_within_budget(data, kind):
    """Catches any order of reserving and settling after which the state is not the exact sum, or is
    over budget.
    """
    budget = KINDS[kind][0]
    state = Filter.empty(budget)
    settled, held = [Fraction(0)] * len(budget.limits), [Fraction(0)] * len(budget.limits)
    waiting: list[tuple[Coordinates, Coordinates]] = []
    for _ in range(data.draw(st.integers(1, 12))):
        if waiting and data.draw(st.booleans()):
            worst, realised = waiting.pop(data.draw(st.integers(0, len(waiting) - 1)))
            state = state.settle(worst, realised)
            settled = [a + b for a, b in zip(settled, realised, strict=True)]
            held = [a - b for a, b in zip(held, worst, strict=True)]
        else:
            share = st.fractions(0, Fraction(3, 4), max_denominator=1000)
            worst = tuple(limit * data.draw(share) for limit in budget.limits)
            part = data.draw(st.fractions(0, 1, max_denominator=1000))
            realised = tuple(
                each if p in budget.never_refunded else each * part for p, each in enumerate(worst)
            )
            totals = [
                s + h + w <= m
                for s, h, w, m in zip(settled, held, worst, budget.limits, strict=True)
            ]
            assert state.admits(worst) == (any(totals) if budget.rule == "any" else all(totals))
            if state.admits(worst):
                state = state.reserve(worst)
                held = [a + b for a, b in zip(held, worst, strict=True)]
                waiting.append((worst, realised))
            else:
                with pytest.raises(BudgetRefused):
                    state.reserve(worst)
        assert (state.settled, state.held) == (tuple(settled), tuple(held))
        within = [s + h <= m for s, h, m in zip(settled, held, budget.limits, strict=True)]
        assert any(within) if budget.rule == "any" else all(within)


# What a budget is.


@every_kind
def test_budgets_survive_json(budget, charge):
    """Catches terms that change when they are stored: a ledger would enforce another budget."""
    assert budget_from_dict(budget.as_dict()) == budget
    assert budget_from_dict(budget.as_dict()).limits == budget.limits
    assert budget.neighbours == charge.neighbours


def numbers_of(promise):
    """The numbers of a guarantee in the order of the limits."""
    told = promise.as_dict()
    values = [told[name] for name in ("epsilon", "delta", "rho", "epsilons") if name in told]
    return values[0] if isinstance(values[0], (list, tuple)) else values


@pytest.mark.parametrize(
    "budget",
    [
        PureBudget(1),
        PureBudget(0.1),
        ApproxBudget(0.3, 1e-6),
        ZCDPBudget(0.7),
        RenyiBudget((2.0, 4.0), (0.1, 0.3)),
    ],
    ids=lambda budget: f"{budget.kind} {numbers_of(budget.guarantee())[0]}",
)
def test_the_stated_guarantee_is_not_exceeded(budget):
    """Catches a guarantee below what is admitted: charges are counted as decimals, and mechanisms
    may lose the binary value of what was typed, which is larger by up to 2⁻⁵³ of itself.
    """
    least = [limit * (1 + Fraction(1, 2**53)) for limit in budget.limits]
    assert all(
        Fraction(told) >= limit
        for told, limit in zip(numbers_of(budget.guarantee()), least, strict=True)
    )


def test_three_tenths_lose_more_than_their_decimals():
    """The case that made the statement wrong: 0.1 as a float is more than a tenth."""
    lost = 10 * Fraction(0.1)
    state = Filter.empty(PureBudget(1))
    for _ in range(10):
        state = state.reserve(state.budget.coordinates(PureDP(0.1)))
    assert lost > 1
    assert lost <= Fraction(state.budget.guarantee().epsilon)


def test_sums_at_the_edge_are_padded():
    """Catches limits for 'any' that imply the target only because a sum was rounded down."""
    epsilon, orders = 1.0, (2.0, 4.0)
    limits = (0.25, 0.75)
    exact_delta = math.fsum(
        any_weight(order) * math.exp((order - 1) * (limit - epsilon))
        for order, limit in zip(orders, limits, strict=True)
    )
    with pytest.raises(InvalidInput, match="do not imply"):
        RenyiBudget(orders, limits, "any", target=(epsilon, exact_delta))
    RenyiBudget(orders, limits, "any", target=(epsilon, exact_delta * (1 + 2.0**-30)))


def test_limits_that_are_far_too_large():
    """Catches an overflow instead of an error message."""
    with pytest.raises(InvalidInput, match="do not imply"):
        RenyiBudget((2.0,), (1e6,), "any", target=(1.0, 1e-6))


@pytest.mark.parametrize(
    ("promise", "kind"),
    [
        (PureDP(1), "pure"),
        (ApproxDP(1, 1e-6), "approx"),
        (ZCDP(1), "zcdp"),
        (RenyiDP((2,), (1,)), "renyi"),
    ],
)
def test_a_promise_names_a_budget(promise, kind):
    """Catches a budget that promises something else than the guarantee it was made from."""
    budget = as_budget(promise)
    assert budget.kind == kind
    assert promise <= budget.guarantee()
    for told, limit in zip(numbers_of(budget.guarantee()), budget.limits, strict=True):
        assert (
            limit * (1 + Fraction(1, 2**53)) <= Fraction(told) <= limit * (1 + Fraction(1, 2**51))
        )
    with pytest.raises(InvalidInput):
        as_budget(3)


@every_kind
def test_other_relations_are_refused(budget, charge):
    """Catches add-remove and replace charges summed together."""
    with pytest.raises(InvalidGuarantee, match="neighbours"):
        budget.coordinates(replace(charge, neighbours="replace"))


@pytest.mark.parametrize(
    ("kind", "strange"),
    [
        ("pure", ApproxDP(0.1, 1e-9)),
        ("pure", ZCDP(0.1)),
        ("pure", RenyiDP(ORDERS, (1, 1, 1))),
        ("approx", ZCDP(0.1)),
        ("approx", RenyiDP(ORDERS, (1, 1, 1))),
        ("zcdp", PureDP(0.1)),  # an ex-post ε̃ is not ε̃²/2-zCDP
        ("zcdp", RenyiDP(ORDERS, (1, 1, 1))),
        ("all orders", ApproxDP(0.1, 1e-9)),
        ("all orders", RenyiDP((2.0, 4.0), (0.1, 0.1))),
        ("any order", RenyiDP((3.0, 5.0, 9.0), (0.1, 0.1, 0.1))),
    ],
)
def test_charges_a_budget_cannot_add_are_refused(kind, strange):
    """Catches a conversion that is not valid ex post, or a missing order taken for 0."""
    with pytest.raises(InvalidGuarantee, match="cannot add it"):
        KINDS[kind][0].coordinates(strange)


def test_what_a_renyi_budget_makes_of_other_charges():
    """Catches a pure charge that becomes less than ε̃ at some order, or ρ that is not multiplied by
    the order.
    """
    budget = KINDS["all orders"][0]
    assert budget.coordinates(PureDP(0.3)) == (Fraction(3, 10),) * 3
    assert budget.coordinates(ZCDP(0.3)) == tuple(
        Fraction(3, 10) * Fraction(order) for order in ORDERS
    )
    longer = RenyiDP((2.0, 3.0, 4.0, 8.0), (0.1, 0.2, 0.3, 0.4))
    assert budget.coordinates(longer) == (Fraction(1, 10), Fraction(3, 10), Fraction(2, 5))


@given(
    epsilon=st.floats(0.01, 50),
    log_delta=st.floats(-30, -0.1),
    orders=st.lists(st.floats(1.01, 500), min_size=1, max_size=8, unique=True).map(sorted),
    rule=st.sampled_from(["all", "any"]),
)
@settings(max_examples=300, deadline=None)
def test_limits_for_a_target_imply_it(epsilon, log_delta, orders, rule):
    """Catches limits that rounding lets promise a little too much, and the tight conversion under
    'any'.
    """
    delta = math.exp(log_delta)
    try:
        budget = RenyiBudget.for_approx(epsilon, delta, orders, rule)
    except InvalidInput:
        return
    assert budget.guarantee() == ApproxDP(epsilon, delta)
    pairs = list(zip(budget.orders, budget.epsilons, strict=True))
    if rule == "any":
        assert (
            math.fsum(any_weight(a) * math.exp((a - 1) * (limit - epsilon)) for a, limit in pairs)
            <= delta
        )
    else:
        best = min(
            limit + math.log1p(-1 / a) - (math.log(delta) + math.log(a)) / (a - 1)
            for a, limit in pairs
        )
        assert best <= epsilon


def tight_limits(epsilon: float, delta: float, orders: Sequence[float]) -> tuple[float, ...]:
    """The limit of each order alone for (ε, δ): valid for one order, not for 'any' of several."""
    return tuple(
        epsilon - math.log1p(-1 / a) + (math.log(delta) + math.log(a)) / (a - 1) for a in orders
    )


def test_limits_that_do_not_imply_their_target_are_refused():
    """Catches an 'any' budget assembled by hand (or read from a file) with the tight conversion at
    every order.
    """
    orders = (3.0, 6.0, 12.0, 24.0, 48.0)
    with pytest.raises(InvalidInput, match="for_approx"):
        RenyiBudget(orders, tight_limits(8, 1e-6, orders), "any", target=(8, 1e-6))
    with pytest.raises(InvalidInput, match="for_approx"):
        RenyiBudget(orders, (9.0,) * 5, "all", target=(8, 1e-6))
    with pytest.raises(InvalidInput, match="for_approx"):
        RenyiBudget(orders, (1.0,) * 5, "any")


# Theorems: adaptive analysts over small finite mechanisms, every transcript.


@dataclass(frozen=True, eq=False)
class Mechanism:
    """Output laws on two neighbouring data sets, and the charge of each output."""

    laws: tuple[np.ndarray, np.ndarray]
    charges: tuple[Coordinates, ...]

    @cached_property
    def worst(self) -> Coordinates:
        return tuple(max(column) for column in zip(*self.charges, strict=True))


def random_laws(
    rng: np.random.Generator, spread: float, outcomes: int
) -> tuple[np.ndarray, np.ndarray]:
    law = rng.dirichlet(np.ones(outcomes))
    law = 0.9 * law + 0.1 / outcomes
    tilted = law * np.exp(rng.uniform(-spread, spread, outcomes))
    return law, tilted / tilted.sum()


def up(value: float) -> Fraction:
    """An amount that covers the rounding of its evaluation."""
    return Fraction(max(0.0, value) * (1 + 1e-12) + 1e-14)


def pure_mechanism(rng: np.random.Generator) -> Mechanism:
    """Charges: the log ratio of each outcome."""
    a, b = random_laws(rng, rng.uniform(0.1, 1.0), 3)
    return Mechanism((a, b), tuple((up(abs(math.log(x / y))),) for x, y in zip(a, b, strict=True)))


def approx_mechanism(rng: np.random.Generator) -> Mechanism:
    """Any ε̃ of each outcome, and the δ that makes up for it: Σ (A − e^ε̃ A′)₊, either way round."""
    a, b = random_laws(rng, rng.uniform(0.1, 1.5), 3)
    shares = rng.choice([0.5, 0.9, 1.0], 3) if rng.random() < 0.5 else 1.0
    epsilons = np.abs(np.log(a / b)) * shares
    delta = max(np.maximum(x - np.exp(epsilons) * y, 0).sum() for x, y in ((a, b), (b, a)))
    return Mechanism((a, b), tuple((up(each), up(delta)) for each in epsilons))


def renyi_charges(a: np.ndarray, b: np.ndarray, order: float, weights: np.ndarray) -> np.ndarray:
    """c(o) with A^α (e^c A′)^{1−α} ≤ w(o), both ways round, w summing to 1: an ex-post Rényi charge
    that nothing undercuts.
    """
    moments = np.maximum(
        order * np.log(a) + (1 - order) * np.log(b), order * np.log(b) + (1 - order) * np.log(a)
    )
    return np.maximum((moments - np.log(weights)) / (order - 1), 0)


def renyi_mechanism(rng: np.random.Generator, orders: Sequence[float] = ORDERS) -> Mechanism:
    a, b = random_laws(rng, rng.uniform(0.1, 1.0), 3)
    columns = []
    for order in orders:
        natural = a**order * b ** (1 - order)
        weights = natural * np.exp(rng.uniform(-0.3, 0.3, 3) * (order - 1))
        columns.append(renyi_charges(a, b, order, weights / weights.sum()))
    return Mechanism((a, b), tuple(tuple(map(up, row)) for row in zip(*columns, strict=True)))


ZCDP_GRID = np.array([1.1, 1.5, 2.0, 3.0, 5.0, 8.0, 16.0])


def zcdp_mechanism(rng: np.random.Generator) -> Mechanism:
    """The smallest multiple t of a random shape with Σ A^α (e^{αρ} A′)^{1−α} ≤ 1 at every order of
    a grid, ρ = t·shape.
    """
    a, b = random_laws(rng, rng.uniform(0.1, 0.8), 3)
    shape = rng.uniform(0.2, 1.0, 3)

    order = ZCDP_GRID[:, None]

    def private(scale: float) -> bool:
        moments = [
            x**order * (np.exp(order * scale * shape) * y) ** (1 - order)
            for x, y in ((a, b), (b, a))
        ]
        return bool(np.all(np.sum(moments, axis=-1) <= 1))

    low, high = 0.0, 4.0
    assert private(high)
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if private(middle) else (middle, high)
    return Mechanism((a, b), tuple((up(high * each),) for each in shape))


@dataclass
class Analyst:
    """Asks what the past suggests (a random but fixed function of it), several requests at once,
    and looks in any order.
    """

    pool: Sequence[Mechanism]
    seed: int
    depth: int = 3

    def transcripts(self, state: Filter) -> Iterator[tuple[float, float]]:
        """The chance of every complete transcript on the two data sets."""
        yield from self._go(state, (), (), 0, 1.0, 1.0)

    def _go(
        self,
        state: Filter,
        trail: tuple[int, ...],
        waiting: tuple[int, ...],
        asked: int,
        chance: float,
        other: float,
    ) -> Iterator[tuple[float, float]]:
        coin = random.Random(repr((self.seed, trail)))
        fits = [
            j for j, each in enumerate(self.pool) if asked < self.depth and state.admits(each.worst)
        ]
        if fits and (not waiting or coin.random() < 0.5):
            costly = max(fits, key=lambda j: self.pool[j].worst)
            choice = costly if coin.random() < 0.6 else coin.choice(fits)
            held = state.reserve(self.pool[choice].worst)
            yield from self._go(
                held, (*trail, choice), (*waiting, choice), asked + 1, chance, other
            )
        elif waiting:
            place = coin.randrange(len(waiting))
            mechanism = self.pool[waiting[place]]
            left = waiting[:place] + waiting[place + 1 :]
            for outcome, charge in enumerate(mechanism.charges):
                settled = state.settle(mechanism.worst, charge)
                a, b = (law[outcome] for law in mechanism.laws)
                yield from self._go(
                    settled, (*trail, -place - 1, outcome), left, asked, chance * a, other * b
                )
        else:
            yield chance, other


def laws_of(analyst: Analyst, state: Filter) -> tuple[np.ndarray, np.ndarray]:
    chances = np.array(list(analyst.transcripts(state)))
    assert np.allclose(chances.sum(axis=0), 1)
    return chances[:, 0], chances[:, 1]


def divergence(a: np.ndarray, b: np.ndarray, order: float) -> float:
    """Rényi divergence, the larger of the two directions."""
    return max(
        math.log(np.sum(x**order * y ** (1 - order))) / (order - 1) for x, y in ((a, b), (b, a))
    )


def hockey_stick(a: np.ndarray, b: np.ndarray, epsilon: float) -> float:
    return max(float(np.maximum(x - math.exp(epsilon) * y, 0).sum()) for x, y in ((a, b), (b, a)))


def excess(budget: Budget, a: np.ndarray, b: np.ndarray) -> float:
    """By how much the transcripts break what the budget promises; at most 0 when all is well."""
    if isinstance(budget, PureBudget):
        return float(np.max(np.abs(np.log(a / b)))) - budget.epsilon
    if isinstance(budget, ApproxBudget):
        return hockey_stick(a, b, budget.epsilon) - budget.delta
    if isinstance(budget, ZCDPBudget):
        return max(divergence(a, b, order) - order * budget.rho for order in ZCDP_GRID)
    assert isinstance(budget, RenyiBudget)
    if budget.rule == "any":
        assert budget.target is not None
        return hockey_stick(a, b, budget.target[0]) - budget.target[1]
    return max(
        divergence(a, b, order) - limit
        for order, limit in zip(budget.orders, budget.epsilons, strict=True)
    )


ANY = RenyiBudget.for_approx(1.5, 0.2, ORDERS, "any")
MAKERS = {
    "pure": (PureBudget(1.5), pure_mechanism),
    "approx": (ApproxBudget(0.5, 0.05), approx_mechanism),
    "zcdp": (ZCDPBudget(0.15), zcdp_mechanism),
    "one order": (RenyiBudget((3.0,), (1.2,)), lambda rng: renyi_mechanism(rng, (3.0,))),
    "all orders": (RenyiBudget(ORDERS, (0.9, 1.2, 1.6)), renyi_mechanism),
    "any order": (ANY, lambda rng: renyi_mechanism(rng, ANY.orders)),
}
TINY = 1e-9


@cache
def pool(kind: str, seed: int) -> list[Mechanism]:
    rng = np.random.default_rng([seed, 17])
    return [MAKERS[kind][1](rng) for _ in range(4)]


def worst_excess(kind: str, filter_class: type[Filter], analysts: int) -> tuple[float, float]:
    """The worst breach over random analysts, and the largest share of the budget that any of them
    put to use.
    """
    budget = MAKERS[kind][0]
    worst, used = -math.inf, 0.0
    for seed in range(analysts):
        a, b = laws_of(Analyst(pool(kind, seed), seed), filter_class.empty(budget))
        worst = max(worst, excess(budget, a, b))
        used = max(used, float(np.max(np.abs(np.log(a / b)))))
    return worst, used


@pytest.mark.parametrize("kind", MAKERS)
def test_no_adaptive_analyst_breaks_the_budget(kind):
    """``theorem:rdp-filter`` and its kin, by enumeration. Catches a filter that forgets a held
    request, a worst case or an order.
    """
    worst, used = worst_excess(kind, Filter, 150)
    assert worst <= TINY
    assert used > 0.5  # the analysts did something


def test_the_bound_is_reached():
    """Catches enumeration that is too timid to find anything: under pure DP some analyst comes
    close to ε.
    """
    assert worst_excess("pure", Filter, 150)[0] > -0.2


# Mutants: the same analysts break filters that are a little wrong.


class CheckedAfterwards(Filter):
    """Runs first and looks at the sum afterwards (as OpenDP's filter does)."""

    def admits(self, worst: Coordinates) -> bool:
        return super().admits(tuple(Fraction(0) for _ in worst))


class RefundsOnATimer(Filter):
    """Frees what is held before it has reported back."""

    def reserve(self, worst: Coordinates) -> Filter:
        return replace(super().reserve(worst), held=tuple(Fraction(0) for _ in worst))

    def settle(self, worst: Coordinates, realised: Coordinates) -> Filter:
        return replace(
            self, settled=tuple(a + b for a, b in zip(self.settled, realised, strict=True))
        )


class ForgetsRealisedCharges(Filter):
    """Settles everything at nothing: a refund of the whole worst case."""

    def settle(self, worst: Coordinates, realised: Coordinates) -> Filter:
        keep = self.budget.never_refunded
        return super().settle(
            worst, tuple(r if p in keep else Fraction(0) for p, r in enumerate(realised))
        )


@pytest.mark.parametrize("kind", [kind for kind in MAKERS if kind != "any order"])
@pytest.mark.parametrize("mutant", [CheckedAfterwards, RefundsOnATimer, ForgetsRealisedCharges])
def test_mutants_are_broken(kind, mutant):
    """The enumeration is no test if these pass it."""
    assert worst_excess(kind, mutant, 150)[0] > 1e-3


class RefundsDelta(Filter):
    """Gives δ back after an outcome that did not show anything."""

    def settle(self, worst: Coordinates, realised: Coordinates) -> Filter:
        return replace(
            super().settle(worst, worst),
            settled=tuple(a + b for a, b in zip(self.settled, realised, strict=True)),
        )


def test_delta_that_comes_back_is_broken():
    """One outcome says all, with chance δ; if the others cost nothing, one asks until it comes."""
    delta = 0.1
    laws = np.array([delta, 1 - delta]), np.array([0.0, 1.0])
    tenth = Fraction(1, 10)
    cheap = Mechanism(laws, ((Fraction(0), tenth), (Fraction(0), Fraction(0))))
    honest = Mechanism(laws, ((Fraction(0), tenth),) * 2)
    budget = ApproxBudget(1.0, delta)
    assert (
        excess(budget, *laws_of(Analyst([cheap], 0, depth=5), RefundsDelta.empty(budget)))
        > 2 * delta
    )
    assert excess(budget, *laws_of(Analyst([honest], 0, depth=5), Filter.empty(budget))) <= TINY


def gaussian_bins(rho: float, bins: int = 300) -> tuple[np.ndarray, np.ndarray]:
    """A Gaussian of zCDP ρ seen through bins: laws on the two data sets."""
    from scipy.stats import norm

    shift = math.sqrt(2 * rho)
    edges = np.concatenate([[-np.inf], np.linspace(-8, 14 + shift, bins), [np.inf]])

    def law(mean: float) -> np.ndarray:
        left, right = edges[:-1] - mean, edges[1:] - mean
        return np.where(left > 0, norm.sf(left) - norm.sf(right), norm.cdf(right) - norm.cdf(left))

    a, b = law(shift), law(0.0)
    kept = (a > 0) & (b > 0)
    return a[kept], b[kept]


def two_points(order: float, limit: float) -> tuple[np.ndarray, np.ndarray]:
    """Pairs (p, q): a yes with chance p or q whose divergence at the order, both ways round, is at
    most the limit.
    """
    p = np.concatenate([np.logspace(-9, -0.3, 150), 1 - np.logspace(-0.31, -6, 60)])
    low, high = np.full(len(p), -60.0), np.log(p)
    for _ in range(60):
        middle = (low + high) / 2
        fits = two_point_divergence(p, np.exp(middle), order) <= limit
        low, high = np.where(fits, low, middle), np.where(fits, middle, high)
    return p, np.exp(high)


def two_point_divergence(p: np.ndarray, q: np.ndarray, order: float) -> np.ndarray:
    logs = [(np.log(p), np.log(q)), (np.log1p(-p), np.log1p(-q))]
    ways = [
        np.logaddexp.reduce([order * x + (1 - order) * y for x, y in logs]),
        np.logaddexp.reduce([order * y + (1 - order) * x for x, y in logs]),
    ]
    return np.maximum(*ways) / (order - 1)


def attack_on_any(budget: RenyiBudget, rho: float) -> float:
    """δ reached at ε by a Gaussian first, then whichever two-point query hurts most of those the
    filter admits.
    """
    assert budget.target is not None
    state = Filter.empty(budget)
    first = budget.coordinates(ZCDP(rho))
    state = state.reserve(first).settle(first, first)
    a, b = gaussian_bins(rho)
    need = np.exp(budget.target[0]) * b / a  # e^{ε − loss so far}
    best = np.maximum(0, 1 - need)  # nothing more is asked
    for order, left in zip(budget.orders, state.remaining, strict=True):
        if left <= 0:
            continue
        p, q = two_points(order, float(left) * (1 - 1e-9))
        gain = np.maximum(p - need[:, None] * q, 0) + np.maximum(1 - p - need[:, None] * (1 - q), 0)
        chosen = set(gain.argmax(axis=1).tolist())
        for place in list(chosen)[:5]:  # these are admitted by the filter itself
            costs = [
                two_point_divergence(p[place : place + 1], q[place : place + 1], each)[0]
                for each in budget.orders
            ]
            assert state.admits(
                budget.coordinates(RenyiDP(budget.orders, tuple(max(0.0, float(c)) for c in costs)))
            )
        best = np.maximum(best, gain.max(axis=1))
    return float(np.sum(a * best))


class TightEverywhere(RenyiBudget):
    """The mutant: 'any' with the tight conversion at every order."""

    def _implies(self, epsilon: float, delta: float) -> bool:
        return True


def test_any_with_the_tight_conversion_is_broken():
    """An analyst reaches 2.1·δ where each order alone would allow δ; with Σ w_α·δ_α ≤ δ she stays
    below δ.
    """
    orders, epsilon, delta = (3.0, 6.0, 12.0, 24.0, 48.0), 8.0, 1e-6
    mutant = TightEverywhere(
        orders, tight_limits(epsilon, delta, orders), "any", target=(epsilon, delta)
    )
    valid = RenyiBudget.for_approx(epsilon, delta, orders, "any")
    rhos = (0.02, 0.06, 0.1, 0.15)
    assert max(attack_on_any(mutant, rho) for rho in rhos) > 2.05 * delta
    assert max(attack_on_any(valid, rho) for rho in rhos) <= delta
    for order, limit in zip(orders, mutant.epsilons, strict=True):  # each order alone is sound
        alone = TightEverywhere((order,), (limit,), "any", target=(epsilon, delta))
        assert max(attack_on_any(alone, rho) for rho in rhos) <= delta * (1 + 1e-6)
