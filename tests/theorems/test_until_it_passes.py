"""Training until it passes: stopping at a look costs the steps made, by exact enumeration.

Random finite trainings of three steps, each of which depends on what the steps before it released.
For every look i, (ε_i, δ_i) is what the first i steps satisfy exactly. Every rule that stops by
what was released so far must then satisfy Σ_o (A(o) − e^{ε̃(o)}·A′(o))₊ ≤ Σ_i δ_i, in both
directions, where ε̃(o) = ε_i of the look at which o stopped.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

STEPS, VALUES = 3, 3
Law = dict[tuple[int, ...], float]


def prefix_laws(generator: np.random.Generator) -> tuple[list[Law], list[Law]]:
    """Return the laws of all prefixes under two neighbouring data sets."""
    laws: list[list[Law]] = [[{(): 1.0}], [{(): 1.0}]]
    for _ in range(STEPS):
        grown: list[Law] = [{}, {}]
        for prefix in laws[0][-1]:
            first = generator.dirichlet(np.ones(VALUES))
            tilt = first * np.exp(generator.normal(size=VALUES) * 0.5)
            second = tilt / tilt.sum()
            for side, law in enumerate((first, second)):
                for value, mass in enumerate(law):
                    grown[side][(*prefix, value)] = laws[side][-1][prefix] * float(mass)
        for side in (0, 1):
            laws[side].append(grown[side])
    return laws[0][1:], laws[1][1:]


def hockey_stick(one: Law, two: Law, epsilon: float) -> float:
    return sum(max(0.0, mass - math.exp(epsilon) * two[key]) for key, mass in one.items())


def excess(
    one: list[Law], two: list[Law], epsilons: list[float], stops: set[tuple[int, ...]]
) -> float:
    """Return Σ (A − e^{ε̃}A′)₊ over what leaves: the prefix at which a rule stops."""
    total = 0.0
    for outcome in itertools.product(range(VALUES), repeat=STEPS):
        look = next((i for i in range(1, STEPS) if outcome[:i] in stops), STEPS)
        if outcome[look:] == (0,) * (STEPS - look):  # each stopped prefix once
            prefix = outcome[:look]
            bound = math.exp(epsilons[look - 1]) * two[look - 1][prefix]
            total += max(0.0, one[look - 1][prefix] - bound)
    return total


@pytest.mark.parametrize("seed", range(60))
def test_stopping_costs_the_steps_made(seed: int) -> None:
    generator = np.random.default_rng(seed)
    one, two = prefix_laws(generator)
    epsilons = np.sort(generator.uniform(0.05, 0.8, STEPS)).tolist()
    worst = 0.0
    prefixes = [key for law in one[:-1] for key in law]
    for a, b in ((one, two), (two, one)):
        deltas = [hockey_stick(a[i], b[i], epsilons[i]) for i in range(STEPS)]
        for _ in range(20):
            stops = {key for key in prefixes if generator.random() < 0.5}
            found = excess(a, b, epsilons, stops)
            assert found <= sum(deltas) + 1e-12
            worst = max(worst, found / max(sum(deltas), 1e-300))
    if seed == 0:
        assert worst > 0


def test_paying_for_the_first_look_only_would_be_wrong() -> None:
    """A rule that always looks to the end needs the ε of the end: the bound is not empty."""
    violated = 0
    for seed in range(60):
        generator = np.random.default_rng(seed)
        one, two = prefix_laws(generator)
        delta = hockey_stick(one[0], two[0], 0.3)
        violated += excess(one, two, [0.3] * STEPS, set()) > delta + 1e-9
    assert violated > 30


def test_one_delta_for_all_looks_would_be_wrong() -> None:
    """δ is the sum over the looks: a rule can reach more than the largest of them."""
    violated = 0
    for seed in range(200):
        generator = np.random.default_rng(seed)
        one, two = prefix_laws(generator)
        epsilons = [0.2, 0.3, 0.4]
        deltas = [hockey_stick(one[i], two[i], epsilons[i]) for i in range(STEPS)]
        prefixes = [key for law in one[:-1] for key in law]
        # Stop where that look alone has an excess: the adversary's rule.
        stops = {
            key
            for key in prefixes
            if one[len(key) - 1][key] > math.exp(epsilons[len(key) - 1]) * two[len(key) - 1][key]
        }
        violated += excess(one, two, epsilons, stops) > max(deltas) + 1e-12
    assert violated > 0
