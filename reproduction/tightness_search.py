"""Attacks on every theorem by search: how much of a charge some instance needs.

The regime is Algorithm 3 under Rényi DP, over ε, order and number of candidates. The other theorems
follow at a few points each. Seeded simulations; no data is involved.
Tests: ``tests/reproduction/test_counterexamples.py``.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from tests.oracle.audit import exact_audit

from expost import (
    AboveThreshold,
    Candidate,
    DiscreteLaplace,
    Doubling,
    NoiseReduction,
    Poisson,
    PureDP,
    Query,
    RandomDropping,
    RenyiDP,
    RepeatAndSelect,
    TruncatedNegativeBinomial,
)
from expost.errors import InvalidInput
from expost.selection.plan import gaussian_guarantee
from expost.selection.renyi_charges import sharpest_charges
from reproduction.counterexamples.attacks import Game, MechanismFamily
from reproduction.counterexamples.search import simulate_attack

SEED = 15183

EPSILONS = (0.05, 0.2, 1.0)
ORDERS = (2.0, 4.0, 16.0, 64.0, 300.0)
CANDIDATES = (10, 200, 2000)
SETTINGS = (("one order", 0.1), ("one order", 1.0), ("Gaussian", 0.1))
CURVE = tuple(
    float(order)
    for order in (
        1.25,
        1.5,
        2,
        3,
        4,
        6,
        8,
        12,
        16,
        24,
        32,
        48,
        64,
        96,
        128,
        192,
        256,
        300,
        512,
        1024,
    )
)
"""The orders at which Gaussian curves are promised."""
GENERATIONS, OUTPUTS = 24, 3
ROOM = 1.1  # a charge has room where it exceeds the best attack by more than this factor


@dataclass(frozen=True)
class Point:
    """One point of the regime: the charges of the bounds, and the loss of the best attack."""

    promise: str
    overhead: float  # as a multiple of ε
    epsilon: float
    order: float
    candidates: int
    attack: float
    charge: float  # the least of the sharp theorem and the elementary bounds
    sharp: float  # the sharp theorem alone
    closed_form: float | None
    paper: float | None
    violated: bool

    @property
    def ratio(self) -> float:
        """The loss of the best attack as a share of the charge."""
        return self.attack / self.charge

    @property
    def room(self) -> bool:
        """Whether the charge exceeds the best attack by more than 10 %."""
        return self.charge > ROOM * self.attack


def promise_of(kind: str, epsilon: float, order: float) -> RenyiDP:
    """Return a promise of ε at one order only, or the Gaussian curve with ε at this order."""
    if kind == "one order":
        return RenyiDP((order,), (epsilon,))
    orders = tuple(sorted({*CURVE, order}))
    return RenyiDP(orders, tuple(epsilon * each / order for each in orders))


def charge(selector: RandomDropping, candidates: list[Candidate], method: str) -> float | None:
    """Return the charge by one method, or None if the method gives no bound."""
    try:
        return float(replace(selector, method=method).charges(candidates)[0].size)
    except InvalidInput as error:
        if error.field != "method":
            raise
        return None  # the closed form is not valid at any shift


def theorem_alone(selector: RandomDropping, candidates: list[Candidate], order: float) -> float:
    """Return the sharp bound at the order, without the two elementary bounds of the charges."""
    problem = selector.renyi_problem(candidates)
    place = int(np.searchsorted(problem.orders, order))
    return float(sharpest_charges(problem, [place]).charges[0])


def regime(generations: int, outputs: int) -> Iterator[Point]:
    """Attack Algorithm 3 under Rényi DP over the whole regime.

    Each search also starts from the best instance of the previous one.
    """
    for (kind, fraction), epsilon, candidates in product(SETTINGS, EPSILONS, CANDIDATES):
        last: list[np.ndarray] = []
        for order in ORDERS:
            selector = RandomDropping(fraction * epsilon, order=order)
            game = Game(
                selector, MechanismFamily(promise_of(kind, epsilon, order), outputs), (candidates,)
            )
            found, point = simulate_attack(
                game, simulation_seed=SEED, generations=generations, starts=last
            )
            last = [point]
            claimed, priced = float(game.claimed[0]), game.candidates([_never])
            closed, paper = (
                charge(selector, priced, method) for method in ("closed-form", "paper")
            )
            yield Point(
                kind,
                fraction,
                epsilon,
                order,
                candidates,
                found.ratio * claimed,
                claimed,
                theorem_alone(selector, priced, order),
                closed,
                paper,
                found.violated,
            )


def _never(data: object, randomness: object) -> object:
    """Stand in for a mechanism that is priced but never run."""
    raise AssertionError("pricing never runs a candidate")


def others(generations: int) -> Iterator[dict[str, object]]:
    """Attack the other theorems: how much of the charge some instance needs."""

    def attacked(what: str, bound: str, game: Game) -> dict[str, object]:
        found, _ = simulate_attack(game, simulation_seed=SEED, generations=generations)
        return {"what": what, "bound": bound, "ratio": found.ratio, "violated": found.violated}

    for epsilon, candidates in product(EPSILONS, (10, 2000)):
        pure, groups, at = (
            MechanismFamily(PureDP(epsilon)),
            (candidates - 1, 1),
            f"ε = {epsilon:g}, {candidates} candidates",
        )
        yield attacked(
            f"Algorithm 3, pure, {at}", "2ε + ε′", Game(RandomDropping(0.1 * epsilon), pure, groups)
        )
        yield attacked(
            f"Algorithm 2, pure, {at}",
            "2ε + ε′",
            Game(AboveThreshold(0.1 * epsilon, at_least=1), pure, groups),
        )
    for epsilon in EPSILONS:
        yield queries(epsilon, monotone=False)
        yield queries(epsilon, monotone=True)
    for order in (4.0, 64.0):
        game = Game(
            AboveThreshold(0.02, at_least=1, order=order),
            MechanismFamily(promise_of("one order", 0.2, order)),
            (199, 1),
        )
        yield attacked(
            f"Algorithm 2, Rényi at α = {order:g}, ε = 0.2, 200 candidates",
            "(T1), (T2) sharp",
            game,
        )
    for delta in (1e-6, 1e-3):
        game = Game(
            RandomDropping(0.02, delta=delta),
            MechanismFamily(promise_of("Gaussian", 0.2, 64.0)),
            (200,),
        )
        yield attacked(
            f"Algorithm 3, (ε̃, {delta:g}), ε(64) = 0.2 Gaussian, 200 candidates",
            "the least of (T1), (T3), composition",
            game,
        )
    yield from profiled(attacked)
    # The first outcome is trivially tight: attack the last one alone.
    last = np.array([math.inf, math.inf, 1.5, math.inf])
    game = Game(Doubling(1), MechanismFamily(PureDP(0.5)), (1, 1, 1), charges=last)
    yield attacked("Doubling, pure, ε = 0.5, the last of 3 candidates", "sum of ε", game)
    yield noise_reduction()
    for runs, name in (
        (TruncatedNegativeBinomial(1, 0.01), "geometric, mean 100"),
        (TruncatedNegativeBinomial(0, 0.01), "logarithmic, γ = 0.01"),
        (Poisson(20), "Poisson, mean 20"),
    ):
        bound = "ε + μ·tanh(ε/2)" if isinstance(runs, Poisson) else "(2+η)ε"
        game = Game(RepeatAndSelect(runs), MechanismFamily(PureDP(0.5)), (1,))
        yield attacked(f"Repeat and select, pure, {name}, ε = 0.5", bound, game)
        game = Game(
            RepeatAndSelect(runs, order=16.0),
            MechanismFamily(promise_of("Gaussian", 0.2, 16.0)),
            (1,),
        )
        yield attacked(
            f"Repeat and select, Rényi at α = 16, {name}, ε = 0.2 Gaussian",
            "Papernot–Steinke",
            game,
        )


def profiled(
    attacked: Callable[[str, str, Game], dict[str, object]],
) -> Iterator[dict[str, object]]:
    """Attack (ε̃, δ) claims over candidates with the exact profile of Gaussian noise."""
    delta = 1e-6
    for epsilon in (0.2, 1.0):
        noise = MechanismFamily(gaussian_guarantee(epsilon, delta))
        what = f"(ε̃, {delta:g}), Gaussian noise of ε = {epsilon:g}, 200 candidates"
        game = Game(RandomDropping(0.1 * epsilon, delta=delta), noise, (200,))
        yield attacked(f"Algorithm 3, {what}", "(T3)", game)
        selector = AboveThreshold(0.1 * epsilon, at_least=1, delta=delta)
        charges = Game(selector, noise, (199, 1)).claimed
        for place, name in ((1, "the last winner"), (2, "nothing")):
            alone = np.where(np.arange(3) == place, charges, math.inf)
            game = Game(selector, noise, (199, 1), charges=alone)
            yield attacked(f"Algorithm 2, {name}, {what}", "(T3)", game)


def queries(epsilon: float, *, monotone: bool) -> dict[str, object]:
    """Audit Algorithm 1 on all pairs of small answers to two queries.

    Each answer changes by at most one (monotone: all in the same direction).
    """
    selector = AboveThreshold(0.1 * epsilon, at_least=0, monotone=monotone)
    candidates = [
        Candidate(Query(operator.itemgetter(k)), guarantee=PureDP(epsilon)) for k in range(2)
    ]
    best, violated = 0.0, False
    for answers, move in product(product((-1, 0, 1), repeat=2), product((-1, 0, 1), repeat=2)):
        if monotone and min(move) < 0:
            continue
        moved = tuple(a + b for a, b in zip(answers, move, strict=True))
        report = exact_audit(selector, candidates, data=(answers, moved))
        best, violated = max(best, report.claims[0].tightness_at_least), violated or report.violated
    what = f"Algorithm 1, {'monotone ' if monotone else ''}queries, ε = {epsilon:g}"
    return {
        "what": what,
        "bound": "ε + ε′" if monotone else "2ε + ε′",
        "ratio": best,
        "violated": violated,
    }


def noise_reduction() -> dict[str, object]:
    """Audit Laplace noise reduction at every bar of a small range."""
    query, best, violated = Query(lambda data: data), 0.0, False
    levels = [Candidate(DiscreteLaplace(query, epsilon)) for epsilon in (0.5, 1.0, 2.0)]
    for bar in range(-3, 4):
        report = exact_audit(NoiseReduction(at_least=bar), levels, data=(0, 1))
        best, violated = max(best, report.claims[0].tightness_at_least), violated or report.violated
    return {
        "what": "Laplace noise reduction, ε = 0.5, 1, 2",
        "bound": "the last ε",
        "ratio": best,
        "violated": violated,
    }
