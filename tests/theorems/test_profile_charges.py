"""(T3) by exact enumeration, in both directions, near equality, and mutants.

The statement is checked at random shifts and random ε_i through ``log_moments`` and ``losses``:
Σ_o (A(o,i) − e^{loss + ε_i} A′(o,i))₊ ≤ I_i·δ_i(ε_i), and A(⊥) ≤ e^{loss} A′(⊥) in Algorithm 2.
Profiles are those of the finite candidates, computed exactly. Laws come from ``finite_renyi``,
which shares no code with the pricing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from expost import AboveThreshold, RandomDropping
from expost.selection import renyi_charges
from expost.selection.random_dropping import DroppingSelector
from expost.selection.renyi_charges import (
    Problem,
    least_epsilon,
    log_moments,
    log_ratios,
    losses,
    price_by_profiles,
    tabulated,
)
from tests.theorems.finite_renyi import (
    Array,
    Instance,
    Law,
    Levels,
    above_threshold,
    hockey_stick,
    random_dropping,
    random_instance,
)

STATEMENTS = ("drawn again", "or nothing", "above threshold")
DELTA = 1e-2
SLACK = 1e-9  # of the brackets of the enumerated laws, which are about 1e-10 wide


@dataclass(frozen=True)
class FiniteProfile:
    """The exact profile of a pair of distributions, the larger of both directions."""

    here: tuple[float, ...]
    there: tuple[float, ...]
    accountant = "enumeration"

    def delta(self, epsilons: Any) -> Array:
        p, q = np.array(self.here), np.array(self.there)
        with np.errstate(invalid="ignore", over="ignore"):
            factor = np.exp(np.asarray(epsilons, dtype=float))[..., None]
            pairs = [np.where(b > 0, a - factor * b, a) for a, b in ((p, q), (q, p))]
        return np.max([np.maximum(each, 0.0).sum(axis=-1) for each in pairs], axis=0)

    def as_dict(self) -> dict[str, Any]:
        return {"kind": "finite"}


def profiles(instance: Instance) -> tuple[FiniteProfile, ...]:
    pairs = zip(instance.here.tolist(), instance.there.tolist(), strict=True)
    return tuple(FiniteProfile(tuple(p), tuple(q)) for p, q in pairs)


@dataclass(frozen=True)
class Case:
    """An instance, a selector, what it prices, and the exact laws on both data sets."""

    instance: Instance
    selector: DroppingSelector
    problem: Problem
    pair: tuple[Law, Law]

    @classmethod
    def of(cls, instance: Instance, statement: str, overhead: float, least: int = 0) -> Case:
        settings = {"minimum_drop_level": least, "delta": DELTA}
        selector: DroppingSelector = (
            AboveThreshold(overhead, at_least=instance.bar, **settings)
            if statement == "above threshold"
            else RandomDropping(overhead, allow_nothing=statement == "or nothing", **settings)
        )
        problem = replace(
            selector.renyi_problem(instance.candidates()), profiles=profiles(instance)
        )
        levels = Levels(selector.drop_law(instance.candidates()), len(instance.repeats))
        laws = []
        for q in (instance.here, instance.there):
            if statement == "above threshold":
                laws.append(above_threshold(q, instance.repeats, levels, instance.bar))
            else:
                law = random_dropping(q, instance.repeats, levels)
                laws.append(law if statement == "or nothing" else law.given_something())
        return cls(instance, selector, problem, (laws[0], laws[1]))

    def used(self, shift: float, epsilons: Array, less: Array | float = 0.0) -> Array:
        """The hockey stick of each group over what (T3) allows; both directions, the larger.

        ``less`` is taken off the losses: the mutants. For "nothing" the value is
        A/(e^{loss}A′).
        """
        moments = log_moments(self.problem, np.array([shift]))[0]
        loss = losses(self.problem, shift, moments) - less
        count = len(self.problem.rates)
        kept = -math.log1p(-self.problem.lattice.nothing) if self.problem.conditioned else 0.0
        deltas = np.array(
            [float(p.delta(e)) for p, e in zip(self.problem.profiles, epsilons, strict=True)]
        )
        allowed = np.exp(moments[:count] + kept) * deltas * self.problem.copies
        found = []
        for law, other in (self.pair, self.pair[::-1]):
            factor = np.exp(np.minimum(loss[:count] + epsilons, 600.0))[:, None]
            sticks = np.maximum(law.low - factor * other.high, 0.0).sum(axis=1)
            ratio = sticks / np.maximum(allowed, 1e-300)
            if self.problem.earlier_only:
                nothing = law.nothing_low / (math.exp(loss[count]) * other.nothing_high)
                ratio = np.append(ratio, nothing)
            found.append(ratio)
        return np.max(found, axis=0)


def random_case(rng: np.random.Generator, statement: str) -> Case:
    instance = random_instance(rng, DELTA if rng.random() < 0.5 else None)
    natural = instance.curves[:, 4].min() if instance.drop_rates[0] is None else 1.0
    overhead = float(natural * np.exp(rng.uniform(np.log(0.05), np.log(2))))
    return Case.of(instance, statement, overhead, int(rng.choice([0, 0, 0, 10])))


@pytest.mark.parametrize("cases", [100, pytest.param(300, marks=pytest.mark.long)])
@pytest.mark.parametrize("statement", STATEMENTS)
def test_the_statement_holds_at_random_shifts_and_losses(statement: str, cases: int) -> None:
    rng = np.random.default_rng([25, STATEMENTS.index(statement)])
    worst = 0.0
    for _ in range(cases):
        case = random_case(rng, statement)
        for _ in range(4):
            shift = case.problem.shift(int(rng.integers(0, 100)))
            scale = case.problem.rates * shift
            used = case.used(shift, scale * rng.uniform(0, 2, len(scale)))
            assert used.max() <= 1 + SLACK, (statement, case.instance, shift)
            worst = max(worst, float(used.max()))
    assert worst > 0.9  # the check is not insensitive


@pytest.mark.parametrize("statement", STATEMENTS)
def test_charges_by_profiles_are_expost_approximate_dp(statement: str) -> None:
    """The whole table, with the shares of δ that the weights give."""
    rng, worst = np.random.default_rng([26, STATEMENTS.index(statement)]), 0.0
    for _ in range(40):
        case = random_case(rng, statement)
        charges = np.maximum(price_by_profiles(case.problem).charges, 0.0)
        count = len(case.problem.rates)
        nothing = charges[-1] if case.problem.earlier_only else 0.0
        for law, other in (case.pair, case.pair[::-1]):
            used = hockey_stick(law, other, charges[:count], nothing) / DELTA
            assert used <= 1, (statement, case.instance)
            worst = max(worst, used)
    assert worst > 0.1


def adversary(statement: str, overhead: float = 0.02) -> Case:
    """Many competitors whose winning output is rare on D and less rare on D′, and one winner.

    The winner's output grows on D. With a small overhead and rates at the competitors' ε, what
    the proof gives away is small.
    """
    beaten, grow, rare = 1e-4, 0.5, 0.2
    here = np.array([[1 - beaten, 0, beaten], [1 - rare * math.e**grow, rare * math.e**grow, 0]])
    more = beaten * math.e**grow
    there = np.array([[1 - more, 0, more], [1 - rare, rare, 0]])
    instance = Instance(here, there, [10**6, 1], [grow, grow])
    return Case.of(instance, statement, overhead)


@pytest.mark.parametrize("statement", STATEMENTS)
def test_an_instance_comes_within_one_percent(statement: str) -> None:
    """At γs equal to the ε of both candidates δ̂ is 0: only the coupling is paid, and needed."""
    case = adversary(statement, overhead=0.2)
    shift = math.ceil(0.5 / case.problem.rates[0] / float(case.problem.step)) * float(
        case.problem.step
    )
    loss = losses(case.problem, shift, log_moments(case.problem, np.array([shift]))[0])
    law, other = case.pair
    needed = math.log(law.low[1, 1] / other.high[1, 1])
    assert 0.99 < needed / (loss[1] + 0.5) <= 1
    assert case.used(shift, np.full(2, 0.5)).max() <= 1 + SLACK


def violated(case: Case, less: Callable[[float], Array | float]) -> bool:
    """Whether some shift and losses break a mutated statement on this instance."""
    for place in range(20, 90, 3):
        shift = case.problem.shift(place)
        for times in (0.2, 0.6, 1.0):
            epsilons = case.problem.rates * shift * times
            assert case.used(shift, epsilons).max() <= 1 + SLACK
            if case.used(shift, epsilons, less(shift)).max() > 1 + SLACK:
                return True
    return False


@pytest.mark.parametrize("statement", STATEMENTS)
def test_mutant_that_does_not_charge_the_shift_is_rejected(statement: str) -> None:
    case = adversary(statement)
    rates = case.problem.rates
    if case.problem.earlier_only:
        rates = np.append(rates, 0.0)
    assert violated(case, lambda shift: shift * (case.problem.overhead + rates))


@pytest.mark.parametrize("statement", STATEMENTS)
def test_mutant_that_forgets_what_the_profile_leaves_over_is_rejected(
    statement: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """δ̂ = 0, so R = 1: with a shift that is too small the competitors are not paid for."""
    case = adversary(statement)
    shift = float(case.problem.step)
    epsilons = np.full(2, 0.5)
    assert case.used(shift, epsilons).max() <= 1 + SLACK
    monkeypatch.setattr(
        renyi_charges, "log_ratios", lambda profile, gaps, kept: np.zeros((len(gaps), len(kept)))
    )
    renyi_charges._rows.clear()
    assert case.used(shift, epsilons).max() > 1 + SLACK
    monkeypatch.undo()
    renyi_charges._rows.clear()


def test_mutant_that_forgets_the_chance_to_be_kept_is_rejected() -> None:
    """Without −ln keep_i a loss is too small by that much."""
    case = adversary("or nothing")
    less = -case.problem.lattice.log_keep
    assert violated(case, lambda shift: less)


def test_mutant_that_charges_nothing_for_a_miss_is_rejected() -> None:
    """On D the competitors pass less often, so "nothing" is likelier there."""
    case = adversary("above threshold")
    shift = case.problem.shift(60)
    loss = losses(case.problem, shift, log_moments(case.problem, np.array([shift]))[0])
    mutant = np.append(np.zeros(2), loss[-1])
    assert case.used(shift, np.full(2, 0.5)).max() <= 1 + SLACK
    assert case.used(shift, np.full(2, 0.5), mutant).max() > 1 + SLACK


def test_mutant_that_forgets_the_redraw_is_rejected() -> None:
    """Hockey sticks of the conditioned law are larger by 1/(1 − P_⊥)."""
    leak = np.array([[0.5, 0.4999, 0.0001]]), np.array([[0.5, 0.0001, 0.4999]])
    case = Case.of(Instance(*leak, [1], [1.0]), "drawn again", 0.05)
    shift, epsilons = float(case.problem.step), np.zeros(1)
    assert 0.9 < case.used(shift, epsilons).max() <= 1
    forgetful = replace(case, problem=replace(case.problem, conditioned=False))
    assert forgetful.used(shift, epsilons).max() > 1.5


# The factor of one competitor, and the inverse of a profile.


def test_the_ratio_bounds_all_events_that_a_profile_allows() -> None:
    """(1 − uQ)/(1 − ue^{−γs}Q′) over all subsets of outputs, both directions; often nearly met."""
    rng = np.random.default_rng(28)
    nearest = []
    for _ in range(400):
        p, q = rng.dirichlet(np.full(4, 0.7), 2)
        profile = FiniteProfile(tuple(p), tuple(q))
        gap = float(np.exp(rng.uniform(-3, 1.5)))
        kept = np.array([1.0, *rng.random(3)])
        bound = log_ratios(profile, np.array([gap]), kept)[0]
        subsets = np.array([[(k >> i) & 1 for i in range(4)] for k in range(16)], dtype=float)
        for a, b in ((p, q), (q, p)):
            events, others = (np.minimum(subsets @ each, 1 - 1e-12) for each in (a, b))
            ratios = np.log1p(-np.outer(kept, events)) - np.log1p(
                -np.exp(-gap) * np.outer(kept, others)
            )
            most = np.maximum(ratios.max(axis=1), 0.0)
            assert np.all(bound >= most - 1e-12)
            nearest.append(np.max(most[bound > 1e-6] / bound[bound > 1e-6], initial=0.0))
    assert max(nearest) > 0.98


def test_the_ratio_falls_with_the_level_and_the_shift() -> None:
    """A cell is bounded by its first level, and a larger shift leaves less over."""
    profile = FiniteProfile((0.7, 0.2, 0.1), (0.6, 0.25, 0.15))
    gaps, kept = np.linspace(0.01, 1.0, 40), np.linspace(1.0, 0.0, 50)
    bound = log_ratios(profile, gaps, kept)
    assert np.all(np.diff(bound, axis=1) <= 1e-15)
    assert np.all(np.diff(bound, axis=0) <= 1e-12)


def test_the_inverse_of_a_profile_is_certified() -> None:
    rng = np.random.default_rng(29)
    for _ in range(50):
        p, q = rng.dirichlet(np.ones(4), 2) * 0.98 + 0.005
        profile = FiniteProfile(tuple(p / p.sum()), tuple(q / q.sum()))
        target = float(np.exp(rng.uniform(-8, -0.5)))
        epsilon = float(least_epsilon(profile, np.array(math.log(target))))
        assert profile.delta(epsilon) <= target
        assert epsilon == 0 or profile.delta(epsilon * 0.98) > target
        points = np.sort(rng.uniform(0, 3, 20))
        exactly, bound = profile.delta(points), tabulated(profile, points)
        assert np.all(exactly <= bound)
        assert np.all(bound <= exactly + 1e-3)
