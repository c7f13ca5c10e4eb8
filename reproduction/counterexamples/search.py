"""Search for counterexamples: finite mechanisms that keep their promises and force a large loss.

Differential evolution over :class:`reproduction.counterexamples.attacks.MechanismFamily`. It starts
from the shape that attains the pure theorem (a rare output that is more likely on one data set,
beaten by an output that is more likely on the other) and from random points, and ends with
shrinking steps around the best point. The exact audit checks the best instance. Its certified ratio
is a lower bound of the share of the claimed charge that *some* instance needs. Close to 1: the
charge cannot be improved there. Well below 1: either the theorem has room, or the search missed the
worst instance.

Seeded and for simulations only: no data is involved.
Tests: ``tests/reproduction/test_counterexamples.py``; figures: ``reproduction/tightness.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np
from tests.oracle.finite_mechanism import FiniteMechanism

from expost.arrays import Floats
from expost.rationals import count_of
from reproduction.counterexamples.attacks import Game, MechanismFamily

_SMALLEST = -500.0  # the least logit: at high orders, extremely rare outputs matter
_REFINEMENTS = 16  # rounds of shrinking steps at the end


@dataclass(frozen=True)
class Attack:
    """The best instance found against a game.

    ``ratio`` is certified (the lower end of the exact audit's bracket): no charge below
    ratio × claimed is valid for all instances.
    """

    ratio: float
    violated: bool
    mechanisms: tuple[FiniteMechanism, ...]
    copies: tuple[int, ...]
    evaluations: int


def simulate_attack(
    game: Game,
    *,
    simulation_seed: int,
    generations: int = 24,
    population: int = 32,
    starts: list[Floats] | None = None,
) -> tuple[Attack, Floats]:
    """Search for the instance that forces the largest loss, and certify it.

    Also returns the point that describes the instance, as a start for a similar game.
    """
    for name, value in (("generations", generations), ("population", population)):
        count_of(value, name, at_least=4)
    point, evaluations = evolve(game, simulation_seed, generations, population, starts or [])
    here, there = game.family.pairs(point)
    claim = game.certify(here, there)
    found = Attack(
        claim.tightness_at_least,
        claim.violated,
        tuple(game.tables(here, there)),
        game.copies,
        evaluations,
    )
    return found, point


def evolve(
    game: Game, simulation_seed: int, generations: int, population: int, starts: list[Floats]
) -> tuple[Floats, int]:
    """Return the best point found (group × numbers), and the number of points evaluated."""
    generator = np.random.default_rng(simulation_seed)
    groups, family = len(game.copies), game.family

    def value(points: Floats) -> Floats:
        values = game.values(*family.pairs(points))
        return np.asarray(np.where(np.isfinite(values), values, -np.inf))

    given = [point[None] for point in starts if point.shape == (groups, family.dimension)]
    pool = np.concatenate(
        [*given, _shaped(family, groups), _random(family, groups, population, generator)]
    )
    values = value(pool)
    chosen = np.argsort(values)[::-1][:population]
    points, values, evaluations = pool[chosen], values[chosen], len(pool)
    for _ in range(generations):
        trial = _offspring(points, points[np.argmax(values)], generator)
        outcome = value(trial)
        better = outcome > values
        points[better], values[better] = trial[better], outcome[better]
        evaluations += len(trial)
    best, top = points[np.argmax(values)], float(values.max())
    # Explore further where the population disagrees.
    spread = np.maximum(points.std(axis=0), 0.01)
    for size in np.geomspace(1.0, 0.001, _REFINEMENTS):
        trial = _clipped(
            best + size * spread * generator.normal(size=(population, *best.shape)), family.outputs
        )
        outcome = value(trial)
        if outcome.max() > top:
            best, top = trial[np.argmax(outcome)], float(outcome.max())
        evaluations += len(trial)
    return best, evaluations


def _offspring(points: Floats, best: Floats, generator: np.random.Generator) -> Floats:
    """Take one step of differential evolution ("current to best")."""
    count = len(points)
    first, second = generator.integers(0, count, (2, count))
    step = generator.uniform(0.3, 0.9, (count, 1, 1))
    towards = np.where(generator.random((count, 1, 1)) < 0.7, best - points, 0.0)
    moved = (
        points
        + step * (towards + points[first] - points[second])
        + generator.normal(0, 0.02, points.shape)
    )
    crossed = np.where(generator.random(points.shape) < 0.9, moved, points)
    return _clipped(crossed, points.shape[-1] // 2)


def _clipped(points: Floats, outputs: int) -> Floats:
    """Shift logits to a maximum of 0 and clip logits and directions to their ranges."""
    logits = points[..., :outputs]
    logits = np.maximum(logits - logits.max(-1, keepdims=True), _SMALLEST)
    return np.concatenate([logits, np.clip(points[..., outputs:], -1.0, 1.0)], axis=-1)


def _random(
    family: MechanismFamily, groups: int, count: int, generator: np.random.Generator
) -> Floats:
    """Return random points."""
    logits = -generator.exponential(8.0, (count, groups, family.outputs))
    direction = generator.uniform(-1, 1, (count, groups, family.outputs))
    direction[: count // 2] = np.sign(direction[: count // 2])
    return _clipped(np.concatenate([logits, direction], axis=-1), family.outputs)


def _shaped(family: MechanismFamily, groups: int) -> Floats:
    """Return attacks of a known shape.

    An output of log-probability about ``rare`` becomes less likely under the tilt, and one of about
    ``beating`` more likely. With the first placement the rare output is just below the beating one
    (it wins unless beaten); with the second it is the lowest (it loses, or fails a target). The
    remaining outputs are almost impossible.
    """
    points = []
    for rare, beating, slower in product(
        (-350.0, -120.0, -45.0, -18.0, -9.0, -5.0),
        np.linspace(-9.0, -0.2, 10),
        np.geomspace(0.03, 1.0, 7),
    ):
        for place in ((1, 2, 0), (0, 2, 1)) if family.outputs > 2 else ((0, 1, 1),):
            logits, direction = np.full(family.outputs, _SMALLEST), np.zeros(family.outputs)
            logits[place[2]] = 0.0
            logits[place[0]], direction[place[0]] = rare, -1.0
            logits[place[1]], direction[place[1]] = beating, slower
            points.append(np.concatenate([logits, direction]))
    return np.repeat(np.array(points)[:, None], groups, axis=1)
