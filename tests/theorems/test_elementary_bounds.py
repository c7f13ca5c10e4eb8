"""The two elementary bounds in Rényi charges: a larger common order, and plain composition.

Statements and proofs: docs/theory.md, "Two elementary bounds". Laws here are finite and sums exact
up to rounding. The charges themselves are checked by the exact audit.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from expost import AboveThreshold, RandomDropping, RenyiDP
from expost.selection.candidate import Candidate
from expost.selection.renyi_charges import Problem, sharpest_charges
from tests.oracle import FiniteMechanism, exact_audit

INSTANCES = 2_000
SLACK = 1e-9
CURVE = (2.0, 4.0, 8.0, 16.0, 32.0, 64.0)


def used(law: np.ndarray, other: np.ndarray, charges: np.ndarray, order: float) -> float:
    """Σ_o A(o)^α (e^{ε̃(o)}A′(o))^{1−α}: at most 1 for ex-post Rényi DP."""
    return float((law**order * (np.exp(charges) * other) ** (1 - order)).sum())


def charges_at(law: np.ndarray, other: np.ndarray, weights: np.ndarray, order: float) -> np.ndarray:
    """The least charges for which every outcome uses exactly its weight at an order."""
    return np.log(law / other) + np.log(law / weights) / (order - 1)


def test_charges_at_an_order_hold_at_every_smaller_one() -> None:
    generator = np.random.default_rng(21)
    for _ in range(INSTANCES):
        size = int(generator.integers(2, 6))
        law, other, weights = (generator.dirichlet(np.ones(size)) + 1e-6 for _ in range(3))
        law, other, weights = (each / each.sum() for each in (law, other, weights))
        order, smaller = 1 + np.sort(generator.exponential(5.0, 2))[::-1] + [1e-3, 1e-3]
        charges = charges_at(law, other, weights, order)
        assert used(law, other, charges, order) == pytest.approx(1)
        assert used(law, other, charges, smaller) <= 1 + SLACK


def test_the_mutant_that_takes_each_charge_from_an_order_of_its_own_is_rejected() -> None:
    """The weights add up to 1 at one order only: the least charge of each outcome is too little."""
    law, other = np.array([0.5, 0.5]), np.array([0.4, 0.6])
    weights = np.array([0.9, 0.1])
    each = [charges_at(law, other, weights, order) for order in (2.0, 64.0)]
    assert all(used(law, other, charges, 2.0) <= 1 + SLACK for charges in each)
    assert used(law, other, np.minimum(*each), 2.0) > 1.2


def composed(law: np.ndarray, other: np.ndarray, weight: float, order: float) -> float:
    """The charge of all outcomes but the last, by composition, if the last has ``weight``."""
    total = math.log(float((law**order * other ** (1 - order)).sum())) / (order - 1)
    return total - math.log1p(-weight) / (order - 1)


def test_composition_holds_beside_nothing_at_the_same_order_only() -> None:
    """ "Nothing" (the last outcome) at order 2 is right; from order 64 it is the mutant."""
    law = np.array([0.49, 0.01, 0.5])
    other = np.array([0.49 - 1e-6, 1e-6, 0.51])
    weight, order = 0.2, 2.0
    sums = {}
    for taken in (order, 64.0):
        nothing = math.log(law[-1] / other[-1]) + math.log(law[-1] / weight) / (taken - 1)
        charges = np.array([*[composed(law, other, weight, order)] * 2, nothing])
        sums[taken] = used(law, other, charges, order)
    assert 0.95 < sums[order] <= 1 + SLACK
    assert sums[64.0] > 1.2


def few(order: float, copies: int) -> list[Candidate]:
    """A mechanism that promises little at one order."""
    p, q = np.array([0.5, 0.5]), np.array([0.47, 0.53])
    both = [
        math.log(float((a**order * b ** (1 - order)).sum())) / (order - 1)
        for a, b in ((p, q), (q, p))
    ]
    promise = RenyiDP((order,), (max(both) * (1 + 1e-9),))
    return [FiniteMechanism(list(p), list(q)).as_candidate(guarantee=promise, repeats=copies)]


def test_few_candidates_pay_their_composition() -> None:
    candidates = few(2.0, 3)
    selector = RandomDropping(overhead=0.05, order=2.0)
    promised = float(candidates[0].guarantee.size)
    assert float(selector.charges(candidates)[0].size) == pytest.approx(3 * promised)
    assert exact_audit(selector, candidates).consistent


def test_algorithm_2_pays_composition_and_the_weight_of_nothing() -> None:
    candidates = few(2.0, 3)
    selector = AboveThreshold(overhead=0.05, at_least=1, order=2.0)
    charges = selector.charges(candidates)
    problem = selector.renyi_problem(candidates)
    added = -math.log(-math.expm1(problem.log_weight_nothing))
    promised = float(candidates[0].guarantee.size)
    assert float(charges[0].size) == pytest.approx(3 * promised + added)
    assert exact_audit(selector, candidates).consistent


def gaussian_like(copies: int) -> list[Candidate]:
    """Two coins whose promises grow with the order as those of a Gaussian do."""
    found = []
    for rho in (0.01, 0.02):
        tilt = math.sqrt(rho) / 2
        p, q = (
            np.array([0.5 - tilt / 2, 0.5 + tilt / 2]),
            np.array([0.5 + tilt / 2, 0.5 - tilt / 2]),
        )
        promise = RenyiDP(CURVE, tuple(rho * order for order in CURVE))
        found.append(
            FiniteMechanism(list(p), list(q)).as_candidate(guarantee=promise, repeats=copies)
        )
    return found


@pytest.mark.parametrize("algorithm", ["2", "3"])
def test_a_small_order_takes_its_charges_from_a_larger_one(algorithm: str) -> None:
    candidates = gaussian_like(200)

    def selector(order: float) -> AboveThreshold | RandomDropping:
        if algorithm == "2":
            return AboveThreshold(overhead=0.02, at_least=1, order=order)
        return RandomDropping(overhead=0.02, order=order)

    charged = float(selector(2.0).charges(candidates)[0].size)
    alone = float(sharpest_charges(selector(2.0).renyi_problem(candidates), [0]).charges[0])
    assert charged < 0.9 * alone
    assert exact_audit(selector(2.0), candidates).consistent


def test_the_published_bound_stays_as_published() -> None:
    candidates = few(2.0, 3)
    paper = RandomDropping(overhead=0.05, order=2.0, method="paper").charges(candidates)
    assert float(paper[0].size) > 3 * float(candidates[0].guarantee.size)


# Composition beside shares of δ, for stand-alone claims.


@pytest.mark.parametrize("algorithm", ["2", "3"])
def test_composition_keeps_to_the_shares_of_delta(algorithm: str) -> None:
    """Few copies: some charges are composition, and the audit agrees."""
    delta = 1e-3
    candidates = gaussian_like(2)
    selector: AboveThreshold | RandomDropping = (
        AboveThreshold(overhead=1.0, at_least=1, delta=delta)
        if algorithm == "2"
        else RandomDropping(overhead=1.0, delta=delta)
    )
    table = selector.analyse(candidates)
    assert "composition" in table.priced[0].bounds
    assert exact_audit(selector, candidates).consistent
    # Written a second time: all copies that the winner depends on, at its share of δ.
    problem, groups = table.problem, 2
    shares = problem.copies * np.exp(problem.log_weights)
    assert shares.sum() <= 1
    for place in range(groups):
        earlier = slice(0, place + 1) if algorithm == "2" else slice(0, groups)
        total = (problem.copies[earlier, None] * problem.curves[earlier]).sum(axis=0)
        orders = problem.orders
        log_delta = math.log(delta * shares[place])
        composed = total + np.log1p(-1 / orders) - (log_delta + np.log(orders)) / (orders - 1)
        assert table.charges[place].epsilon <= composed.min() * (1 + 1e-9)
        if table.priced[0].bounds[place] == "composition":
            assert table.charges[place].epsilon >= min(composed.min(), _whole(problem)) * (1 - 1e-9)


def _whole(problem: Problem) -> float:
    """Composition of everything at the whole δ."""
    total, orders = problem.copies @ problem.curves, problem.orders
    converted = total + np.log1p(-1 / orders) - (problem.log_delta + np.log(orders)) / (orders - 1)
    return float(converted.min())
