"""Algorithms 2 and 3 under Rényi DP, by exact enumeration, and mutants.

The moments (T1, T2), ex-post RDP and ex-post (ε̃, δ)-DP are checked.
(T1) Σ_o A(o,i)^α·A′(o,i)^{1−α} ≤ I_i·exp((α−1)(s(ε′+γ_i) + ε_i(α))) is checked at random orders and
shifts through ``Problem.evaluate``, which returns c_i with w_i·e^{(α−1)c_i} equal to the right-hand
side. The whole chain is checked on fewer instances, through ``selector.charges``.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from expost import AboveThreshold, Charges, RandomDropping
from expost.errors import InvalidInput
from expost.selection.candidate import group_equal
from expost.selection.drop_law import DropLaw
from expost.selection.random_dropping import DroppingSelector
from expost.selection.renyi_charges import Competitors, Problem, highest
from tests.theorems.finite_renyi import (
    ORDERS,
    SLACK,
    Array,
    Instance,
    Law,
    Levels,
    above_threshold,
    hockey_stick,
    log_moments,
    random_dropping,
    random_instance,
    random_order,
)

METHODS = ("sharp", "closed-form", "paper")
STATEMENTS = ("drawn again", "or nothing", "above threshold")
POINTS = {
    "sharp": 3,
    "closed-form": 10,
    "paper": 10,
}  # orders and shifts tried an instance; the sharp factors take longer


@dataclass(frozen=True)
class Case:
    """An instance with the settings of the selectors."""

    instance: Instance
    overhead: float
    least: int = 0
    method: str = "sharp"
    weights: tuple[float, ...] | None = None

    def selector(self, statement: str, **claim: object) -> DroppingSelector:
        settings = {
            "minimum_drop_level": self.least,
            "method": self.method,
            "weights": self.weights,
        } | claim
        if statement == "above threshold":
            return AboveThreshold(self.overhead, at_least=self.instance.bar, **settings)
        return RandomDropping(self.overhead, allow_nothing=statement == "or nothing", **settings)

    def laws(self, selector: DroppingSelector) -> tuple[Law, Law]:
        """The exact law on D and on D′ of what this selector releases, under its own drop law."""
        instance = self.instance
        levels = Levels(selector.drop_law(instance.candidates()), len(instance.repeats))
        if isinstance(selector, AboveThreshold):
            pair = (
                above_threshold(q, instance.repeats, levels, instance.bar)
                for q in (instance.here, instance.there)
            )
        else:
            pair = (
                random_dropping(q, instance.repeats, levels)
                for q in (instance.here, instance.there)
            )
            if not selector.allow_nothing:
                pair = (law.given_something() for law in pair)
        law, other = pair
        return law, other


def random_case(
    rng: np.random.Generator, method: str, delta: float | None = None
) -> tuple[Case, float]:
    """A case, and an order at which its drop rates are read off."""
    instance = random_instance(rng, delta)
    order = random_order(rng, instance)
    count = len(instance.repeats)
    natural = (
        instance.curves[:, ORDERS.index(order)].min() if instance.drop_rates[0] is None else 1.0
    )
    overhead = float(natural * np.exp(rng.uniform(np.log(0.05), np.log(2))))
    weights = tuple((rng.dirichlet(np.ones(count)) * 0.9).tolist()) if rng.random() < 0.3 else None
    if weights is not None and min(weights) < 1e-6:
        weights = None
    return Case(instance, overhead, int(rng.choice([0, 0, 0, 10, 40])), method, weights), order


def with_twin(case: Case) -> Case:
    """The first candidate once more at the end of the list.

    Equal candidates are priced together, if their order allows.
    """
    old = case.instance
    twice = [np.vstack([q, q[:1]]) for q in (old.here, old.there)]
    instance = replace(
        old,
        here=twice[0],
        there=twice[1],
        repeats=[*old.repeats, 2],
        drop_rates=[*old.drop_rates, old.drop_rates[0]],
    )
    return replace(case, instance=instance, weights=None)


# (T1) and (T2), and what follows from them, at random orders and shifts.


def excesses(
    problem: Problem, case: Case, law: Law, other: Law, place: int, charges: Array
) -> Array:
    """ln(exact moment) − ln(w·e^{(α−1)c}) of each outcome: positive is a violation."""
    order = ORDERS[place]
    moments, nothing = log_moments(law, other, order)
    allowed = problem.log_weights[groups_of(problem, case)] + np.log(case.instance.repeats)
    if problem.earlier_only:
        moments, allowed = (
            np.append(moments, nothing),
            np.append(allowed, problem.log_weight_nothing),
        )
    return moments - allowed - (order - 1) * charges


def groups_of(problem: Problem, case: Case) -> list[int]:
    """Every candidate of these instances has a curve of its own, so groups are candidates."""
    assert len(problem.rates) == len(case.instance.repeats)
    return list(range(len(problem.rates)))


def points(problem: Problem, count: int, rng: np.random.Generator) -> Iterator[tuple[int, float]]:
    for _ in range(count):
        shift = (
            problem.shift(int(rng.integers(0, 96))) if rng.random() < 0.9 else float(problem.step)
        )
        yield int(rng.integers(0, len(ORDERS))), shift


def converted(charge: Array, order: float, delta: float) -> Array:
    """A charge at an order as the ε̃ of a stand-alone claim (written down a second time)."""
    return (
        charge + math.log((order - 1) / order) - (math.log(delta) + math.log(order)) / (order - 1)
    )


class Worst(defaultdict[str, float]):
    """The largest value of each kind, for the report and to detect an insensitive check."""

    def __init__(self) -> None:
        super().__init__(lambda: -math.inf)

    def see(self, name: str, value: float) -> None:
        self[name] = max(self[name], value)


def check_at_random_points(
    case: Case, statement: str, order: float, delta: float, rng: np.random.Generator, worst: Worst
) -> int:
    """(T1) and (T2) at some points, and the two claims that follow.

    Returns how many finite bounds were checked.
    """
    selector = case.selector(statement, order=order)
    problem = selector.renyi_problem(case.instance.candidates())
    pair = case.laws(selector)
    best = np.full(problem.outcomes, 100.0)
    looked_at = 0
    for place, shift in points(problem, POINTS[case.method], rng):
        charges = problem.evaluate(place, shift)
        if not np.isfinite(charges).all():
            continue
        looked_at += 1
        best = np.minimum(best, converted(charges, ORDERS[place], delta))
        for law, other in (pair, pair[::-1]):
            over = excesses(problem, case, law, other, place, charges)
            if sum(case.instance.repeats) > 1:  # alone, a candidate meets the bound easily
                worst.see(statement, float(over.max()))
            assert over.max() <= SLACK, (statement, case, ORDERS[place], shift)
    losses = np.maximum(best, 0.0)
    nothing = losses[-1] if problem.earlier_only else 0.0
    for law, other in (pair, pair[::-1]):
        ratio = hockey_stick(law, other, losses[: len(case.instance.repeats)], nothing) / delta
        worst.see(f"{statement}, of δ", ratio)
        assert ratio <= 1, (statement, case)
    weights = np.exp(problem.log_weights) @ problem.copies + np.exp(problem.log_weight_nothing)
    assert weights <= 1
    return looked_at


@pytest.mark.parametrize(
    "batch", [0, *(pytest.param(batch, marks=pytest.mark.long) for batch in (1, 2, 3))]
)
def test_moments_and_claims_hold_at_random_orders_and_shifts(batch: int) -> None:
    """500 instances per batch, each under all three statements.

    Repeats, weights, drop rates and least levels vary.
    """
    rng, worst, looked_at = np.random.default_rng([15183, batch]), Worst(), 0
    for number in range(500):
        delta = float(rng.choice([0.1, 1e-2, 1e-3]))
        case, order = random_case(rng, METHODS[number % 3], delta if number % 4 == 0 else None)
        looked_at += sum(
            check_at_random_points(case, statement, order, delta, rng, worst)
            for statement in STATEMENTS
        )
    assert looked_at > 4000
    assert (
        min(worst[statement] for statement in STATEMENTS) > -0.5
    )  # ln(moment/bound): nearly met somewhere
    assert min(worst[f"{statement}, of δ"] for statement in STATEMENTS) > 0.1


# The whole chain: selector.charges.


def expost_moment(law: Law, other: Law, order: float, charges: Array, nothing: float) -> float:
    """Σ A^α·A′^{1−α}·e^{−(α−1)c} over all outcomes."""
    moments, empty = log_moments(law, other, order)
    return float(
        np.exp(moments - (order - 1) * charges).sum() + np.exp(empty - (order - 1) * nothing)
    )


def charges(selector: DroppingSelector, case: Case) -> Charges | None:
    """What the library charges; None where a closed form gives no bound at any order and shift.

    This never happens with sharp factors.
    """
    if case.method == "sharp":
        return selector.charges(case.instance.candidates())
    try:
        return selector.charges(case.instance.candidates())
    except InvalidInput as error:
        if error.field != "method":
            raise
        return None


def check_fixed_orders(case: Case, statement: str, orders: tuple[float, ...]) -> float:
    """Ex-post RDP at every order of the claim; the largest sum."""
    selector = case.selector(statement, order=orders)
    table, pair, worst = charges(selector, case), case.laws(selector), 0.0
    if table is None:
        return worst
    for place, order in enumerate(orders):
        losses = np.array([table[i].epsilons[place] for i in range(len(table))])
        for law, other in (pair, pair[::-1]):
            worst = max(
                worst, expost_moment(law, other, order, losses, table.nothing.epsilons[place])
            )
    assert worst <= 1 + SLACK, (statement, case, orders)
    return worst


def check_standalone(case: Case, statement: str, delta: float) -> float:
    """Ex-post (ε̃, δ)-DP; the largest part of δ that is used."""
    selector = case.selector(statement, delta=delta)
    table = charges(selector, case)
    if table is None:
        return 0.0
    assert {table[i].delta for i in range(len(table))} | {table.nothing.delta} == {delta}
    losses = np.array([table[i].epsilon for i in range(len(table))])
    pair = case.laws(selector)
    nothing = table.nothing.epsilon
    worst = max(
        hockey_stick(law, other, losses, nothing) / delta for law, other in (pair, pair[::-1])
    )
    assert worst <= 1, (statement, case)
    return worst


@pytest.mark.parametrize("statement", STATEMENTS)
def test_charges_at_fixed_orders_are_expost_rdp(statement: str) -> None:
    """The sum with the library's own choice of shift, one order or several, all methods."""
    rng, worst = np.random.default_rng([656, STATEMENTS.index(statement)]), Worst()
    for number in range(60):
        case, order = random_case(rng, METHODS[number % 3])
        case = with_twin(case) if number % 5 == 0 else case
        orders = tuple(sorted({order, 64.0})) if number % 4 == 0 else (order,)
        worst.see(case.method, check_fixed_orders(case, statement, orders))
    assert min(worst[method] for method in METHODS) > 0.05


@pytest.mark.parametrize("statement", STATEMENTS)
def test_standalone_charges_are_expost_approximate_dp(statement: str) -> None:
    """Half the instances leak about δ, so that the claim is put to the test."""
    rng, worst = np.random.default_rng([657, STATEMENTS.index(statement)]), Worst()
    for number in range(40):
        delta = float(rng.choice([0.1, 1e-2, 1e-3]))
        case, _ = random_case(rng, METHODS[number % 3], delta if number % 2 else None)
        worst.see(
            case.method,
            check_standalone(with_twin(case) if number % 5 == 0 else case, statement, delta),
        )
    assert worst["sharp"] > 0.1


# How close the bound is, and mutants of it.


def adversary(winners: int = 1, overhead: float = 0.543) -> Case:
    """592 competitors that beat the winner's rare output more often on D′.

    That output is rarer on D′ too: all changes have the same direction.
    """
    beaten, beaten_there, rare, grown = 0.01114, 0.05198, 0.002771, 0.00813
    here = np.array([[1 - beaten, 0, beaten], [1 - grown, grown, 0]])
    there = np.array([[1 - beaten_there, 0, beaten_there], [1 - rare, rare, 0]])
    return Case(Instance(here, there, [592, winners], [None, None]), overhead)


ADVERSARY_ORDER = 32.0
PLACE = ORDERS.index(ADVERSARY_ORDER)


@pytest.mark.parametrize("statement", STATEMENTS)
def test_the_sharp_bound_is_within_three_percent_of_an_attack(statement: str) -> None:
    """The adversary attains, at the winner, the charge that its weight forces on any theorem."""
    case = adversary()
    selector = case.selector(statement, order=ADVERSARY_ORDER)
    law, other = case.laws(selector)
    moments, _ = log_moments(law, other, ADVERSARY_ORDER)
    weights = selector.renyi_problem(case.instance.candidates()).log_weights
    forced = (moments[1] - weights[1]) / (ADVERSARY_ORDER - 1)
    charge = selector.charges(case.instance.candidates())[1].epsilons[0]
    assert 0.97 < forced / charge <= 1
    assert (
        charge > 2.5 * case.instance.curves[1, PLACE]
    )  # most of it is the price of the competition


def best_point(case: Case, statement: str) -> tuple[Problem, float]:
    """The problem at the adversary's order, and the shift that the library finds for the winner."""
    table = case.selector(statement, order=ADVERSARY_ORDER).analyse(case.instance.candidates())
    return table.problem, float(table.priced[0].shifts[1])


def violated(case: Case, statement: str, problem: Problem, charge_of_winner: float) -> bool:
    """Whether the winner's exact moment exceeds w·e^{(α−1)c} at the adversary's order."""
    law, other = case.laws(case.selector(statement, order=ADVERSARY_ORDER))
    charges = np.array([math.inf, charge_of_winner] + [math.inf] * (problem.outcomes - 2))
    return bool(excesses(problem, case, law, other, PLACE, charges).max() > SLACK)


@pytest.mark.parametrize("statement", STATEMENTS)
def test_mutant_without_the_shift_term_is_rejected(statement: str) -> None:
    case = adversary()
    problem, shift = best_point(case, statement)
    charge = problem.evaluate(PLACE, shift)[1]
    assert not violated(case, statement, problem, charge)
    assert violated(
        case, statement, problem, charge - shift * (problem.overhead + problem.rates[1])
    )


@pytest.mark.parametrize("statement", STATEMENTS)
def test_mutant_without_competitors_is_rejected(statement: str) -> None:
    """J_i empty: I_i = τ_i, so that the least shift is the best."""
    case = adversary()
    problem, _ = best_point(case, statement)
    shift, lattice = float(problem.step), problem.lattice
    log_moment = lattice.log_keep[1] - (
        math.log1p(-lattice.nothing) if problem.conditioned else 0.0
    )
    alone = shift * (problem.overhead + problem.rates[1]) + (
        log_moment - problem.log_weights[1]
    ) / (ADVERSARY_ORDER - 1)
    assert not violated(case, statement, problem, problem.evaluate(PLACE, shift)[1])
    assert violated(case, statement, problem, alone + case.instance.curves[1, PLACE])


def test_mutant_of_algorithm_2_with_the_later_candidates_is_rejected() -> None:
    """J_i = {j > i}: what the library charges when the list is reversed."""
    case, statement = adversary(), "above threshold"
    problem, shift = best_point(case, statement)
    backwards = case.selector(statement, order=ADVERSARY_ORDER).renyi_problem(
        case.instance.candidates()[::-1]
    )
    for place in (shift, float(problem.step)):
        assert not violated(case, statement, problem, problem.evaluate(PLACE, place)[1])
    assert violated(case, statement, problem, backwards.evaluate(PLACE, float(problem.step))[0])


def test_mutant_that_forgets_the_redraw_is_rejected() -> None:
    """Conditioning on something kept multiplies every moment by 1/(1−P_⊥)."""
    case = adversary(overhead=0.01)
    problem, best = best_point(case, "drawn again")
    law, other = case.laws(case.selector("drawn again", order=ADVERSARY_ORDER))
    forgetful = replace(problem, conditioned=False)
    worst = {True: -math.inf, False: -math.inf}
    step = float(problem.step)
    near = [best + step * by for by in range(-8, 9)]
    for shift in (*near, *(problem.shift(place) for place in range(0, 100, 4))):
        for version in (problem, forgetful):
            over = excesses(problem, case, law, other, PLACE, version.evaluate(PLACE, shift))
            worst[version.conditioned] = max(worst[version.conditioned], over.max())
    assert worst[True] <= SLACK < worst[False]


def test_mutant_with_weights_that_sum_to_more_than_one_is_rejected() -> None:
    """All weights 1: each outcome satisfies its moment, but the sum over outcomes exceeds 1."""
    case = adversary(winners=20)
    for statement in STATEMENTS:
        problem, shift = best_point(case, statement)
        law, other = case.laws(case.selector(statement, order=ADVERSARY_ORDER))
        sums = []
        for version in (problem, replace(problem, log_weights=np.zeros(2))):
            charges = version.evaluate(PLACE, shift)
            nothing = charges[-1] if problem.earlier_only else math.inf
            sums.append(expost_moment(law, other, ADVERSARY_ORDER, charges[:2], nothing))
        assert sums[0] <= 1 < sums[1]


# The factor of one competitor.


@dataclass(frozen=True)
class Factors:
    """Random arguments of ``highest``: order α, order β of the curve, ε_j(β), γ_j·s, and −ln u."""

    order: Array
    beta: Array
    divergence: Array
    gap: Array
    level: Array

    @classmethod
    def regular(cls, seed: int, count: int) -> Factors:
        rng = np.random.default_rng(seed)
        order, beta = (1 + 10 ** rng.uniform(-1, 2, count) for _ in range(2))
        divergence = 10 ** rng.uniform(-2, 1, count)
        gap = divergence * 10 ** rng.uniform(-1, 1, count)
        return cls(
            order,
            beta,
            divergence,
            gap,
            np.where(rng.random(count) < 0.5, 0.0, 10 ** rng.uniform(-4, 1, count)),
        )

    @classmethod
    def extreme(cls, seed: int, count: int) -> Factors:
        """u → 1, β near 1 and at 1e3, tiny and large gaps, each at all sizes."""
        rng = np.random.default_rng(seed)
        order = 1 + 10 ** rng.uniform(-3, 4, count)
        beta = np.select(
            [rng.random(count) < 0.3, rng.random(count) < 0.3],
            [1 + 10 ** rng.uniform(-5, -2, count), np.full(count, 1e3)],
            1 + 10 ** rng.uniform(-2, 4, count),
        )
        level = np.where(rng.random(count) < 0.3, 0.0, 10 ** rng.uniform(-9, 2, count))
        return cls(
            order, beta, 10 ** rng.uniform(-9, 1.5, count), 10 ** rng.uniform(-9, 1.5, count), level
        )

    def bound(self) -> Array:
        return highest(self.order, self.beta, self.divergence, self.gap, np.exp(-self.level))

    def at(self, log_b: Array) -> Array:
        """α·ln(1−A·b^p) − (α−1)·ln(1−C·b) at each row's points, without cancellation."""
        order, power = self.order[:, None], (self.beta / (self.beta - 1))[:, None]
        gain = order * _log_one_minus_exp(-(self.level + self.divergence)[:, None] + power * log_b)
        return gain - (order - 1) * _log_one_minus_exp(-(self.level + self.gap)[:, None] + log_b)

    def scanned(self) -> Array:
        """The maximum over a fine grid of b, refined around its best point seven times."""
        grid = np.append(-np.geomspace(700, 1e-9, 500), 0.0) * np.ones((len(self.order), 1))
        best = np.zeros(len(self.order))
        for _ in range(8):
            values = self.at(grid)
            place = np.clip(values.argmax(axis=1), 1, grid.shape[1] - 2)
            best = np.maximum(best, values.max(axis=1))
            rows = np.arange(len(place))
            grid = np.linspace(grid[rows, place - 1], grid[rows, place + 1], 33, axis=1)
        return best


def _log_one_minus_exp(y: Array) -> Array:
    """ln(1 − e^y) for y ≤ 0."""
    with np.errstate(divide="ignore", under="ignore"):
        return np.where(y > -0.7, np.log(-np.expm1(np.minimum(y, 0.0))), np.log1p(-np.exp(y)))


def test_highest_is_the_maximum_to_a_millionth() -> None:
    """Never below the minimum of a grid, and above it only by what the certificate needs.

    An inexact root would exceed it by more.
    """
    cases = Factors.regular(1, 4000)
    bound, scanned = cases.bound(), cases.scanned()
    assert np.all(bound >= scanned * (1 - 1e-13))
    assert np.all(bound <= scanned * (1 + 1e-6) + 1e-12)
    assert np.mean(scanned > 1e-3) > 0.3


def test_highest_is_never_too_low_at_the_extremes() -> None:
    """Rounding must not show even where 1 − u·e^{−γs} is 1e-9: the pads are for that."""
    cases = Factors.extreme(2, 6000)
    bound, scanned = cases.bound(), cases.scanned()
    assert not np.isnan(bound).any()
    assert np.all(bound >= scanned * (1 - 1e-15) - 1e-300)
    assert np.mean(scanned > 1e-3) > 0.3


def test_highest_falls_with_the_level() -> None:
    """A cell of levels is bounded by its first: that needs F non-decreasing in u."""
    cases = Factors.regular(3, 2000)
    higher = replace(cases, level=cases.level + 0.1)
    assert np.all(higher.bound() <= cases.bound() * (1 + 1e-6) + 1e-12)


def test_methods_are_ordered() -> None:
    """sharp at β = α ≤ closed form ≤ paper, the last where K ≤ 0.99.

    Near 1 the logarithm of the closed form exceeds K.
    """
    cases = Factors.regular(4, 6000)
    order, divergence, gap = cases.order, cases.divergence, cases.gap
    sharp = highest(order, order, divergence, gap, np.exp(-cases.level))
    seen = defaultdict(int)
    for i in np.flatnonzero((order - 1) * divergence - order * gap < -1e-9):
        kept = np.exp(-cases.level[i : i + 1])[:, None]
        group = Competitors(order[i : i + 1], divergence[i, None, None], np.array([1.0]), kept)
        closed, paper = (
            group.factors(method, 0, float(gap[i])) for method in ("closed-form", "paper")
        )
        assert sharp[i] <= closed[0, 0] * (1 + 1e-6) + 1e-12
        seen["closed-form"] += 1
        if paper is not None and paper[0, 0] <= 0.99:
            assert closed[0, 0] <= paper[0, 0]
            seen["paper"] += 1
        assert (paper is not None) == (gap[i] >= divergence[i] * (1 - 1e-12))
    assert min(seen["closed-form"], seen["paper"]) > 1000


def test_mutant_without_the_logarithm_is_rejected() -> None:
    """exp(m_α·K) is not a bound; the paper's exp(K) is one.

    At ε → 0, α = 2 the factor reaches 32/27 > e^{1/8}.
    """
    epsilon, order = 1e-6, 2.0
    m, b = 0.125, 1 / 3
    k = math.exp((order - 1) * epsilon - order * epsilon)
    factor = (1 - math.exp(-epsilon) * b**2) ** 2 / (1 - math.exp(-epsilon) * b)
    assert math.exp(m * k) < factor <= math.exp(k)
    assert factor <= (1 - k) ** -m
    bound = highest(
        order, np.array([order]), np.array([epsilon]), np.array([epsilon]), np.array([1.0])
    )[0]
    assert math.log(factor) <= bound <= math.log(32 / 27) + 1e-5


# The enumeration itself.


def test_the_enumeration_lists_every_set_of_kept_candidates() -> None:
    """Against a plain list of all kept sets and all outputs, for both algorithms."""
    rng = np.random.default_rng(5)
    q = rng.dirichlet(np.ones(3), 3)
    candidates = Instance(q, q[::-1].copy(), [1, 1, 1], [1.0, 0.5, 0.8]).candidates()
    levels = Levels(
        DropLaw(
            tuple(group_equal(candidates)),
            (Fraction(1), Fraction(1, 2), Fraction(4, 5)),
            Fraction(1, 3),
            1,
        ),
        3,
    )
    best, first = np.zeros((3, 3)), np.zeros((3, 3))
    for kept in product((False, True), repeat=3):
        weight = levels.chance @ np.prod(
            np.where(np.array(kept)[:, None], levels.keep, 1 - levels.keep), axis=0
        )
        for outputs in product(range(3), repeat=3):
            chance = weight * np.prod([q[i, o] for i, o in enumerate(outputs)])
            runs = [i for i in range(3) if kept[i]]
            passing = [i for i in runs if outputs[i] >= 1]
            if runs:
                winner = max(runs, key=lambda i: (outputs[i], -i))
                best[winner, outputs[winner]] += chance
            if passing:
                first[passing[0], outputs[passing[0]]] += chance
    for law, plain in (
        (random_dropping(q, [1, 1, 1], levels), best),
        (above_threshold(q, [1, 1, 1], levels, 1), first),
    ):
        assert np.all(law.low <= law.high)
        assert np.allclose(law.high, law.low, rtol=1e-9, atol=0)
        assert np.allclose(
            law.low, plain, rtol=1e-3, atol=1e-5
        )  # the plain list forgets the levels beyond the last
        assert law.high.sum() + law.nothing_high == pytest.approx(1, abs=1e-9)
