"""Training until it passes: stopping at a look costs the steps made, by exact enumeration.

Random finite trainings of three steps, each of which depends on what the steps before it released.
For every look i, (ε_i, δ_i) is what the first i steps satisfy exactly. Every rule that stops by
what was released so far must then satisfy Σ_o (A(o) − e^{ε̃(o)}·A′(o))₊ ≤ Σ_i δ_i, in both
directions, where ε̃(o) = ε_i of the look at which o stopped.

With held-out rows the joint law of all that leaves is enumerated: the model, whether it passed, its
noisy count and, after a miss, the score that is told; for neighbours who train and for neighbours
who are held out. Two trainings, and Algorithm 2 after their misses, are enumerated together.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from expost.selection.held_out import rates_of
from tests.selection.test_held_out import below, noise_law
from tests.theorems.test_attempts import TwoAttempts

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


LEVELS, TELL, BARS = (0.3, 0.5, 0.8), 0.25, (4, 3, 4)
Outcome = tuple[tuple[int, ...], int, int | None]


def what_leaves(path: list[Law], counts: Law, *, told: bool = True) -> dict[Outcome, float]:
    """P(the training stops at a prefix with noisy count v, and after a miss t is told).

    ``counts`` is the exact count of the held-out rows for the model of each prefix.
    """
    rates, masses = rates_of(LEVELS), {}
    q = math.exp(-TELL)
    for prefix, mass in path[-1].items():
        alive = 1.0
        for look in range(STEPS):
            model, last = prefix[: look + 1], look == STEPS - 1
            if prefix[look + 1 :] == (0,) * (STEPS - look - 1):  # each stopped prefix once
                reached = mass if last else path[look][model]
                for noisy in range(BARS[look] - 12 if last else BARS[look], BARS[look] + 12):
                    leaves = reached * alive * noise_law(rates[look], 1, noisy - int(counts[model]))
                    if noisy >= BARS[look] or not told:
                        masses[model, noisy, None] = leaves
                        continue
                    for score in range(-6, 14):
                        law = (1 - q) / (1 + q) * q ** abs(score - int(counts[model]))
                        masses[model, noisy, score] = leaves * law
            alive *= below(rates[look], 1, BARS[look] - int(counts[model]))
    return masses


def charge_of(outcome: Outcome) -> float:
    """What an outcome is charged: the look at which it ended, and the score if it was told."""
    model, _, score = outcome
    return LEVELS[len(model) - 1] + (0.0 if score is None else TELL)


@pytest.mark.parametrize("seed", range(12))
def test_a_miss_costs_the_last_look_with_all_that_leaves(seed: int) -> None:
    generator = np.random.default_rng(seed)
    one, two = prefix_laws(generator)
    counts = {key: int(generator.integers(0, 9)) for law in one for key in law}
    more = {key: value + int(generator.integers(0, 2)) for key, value in counts.items()}
    # A person in the held-out rows: the path is the same, and no δ is needed.
    first, second = what_leaves(one, counts), what_leaves(one, more)
    missed = [key for key in first if key[2] is not None]
    assert sum(first[key] for key in missed) > 0
    for a, b in ((first, second), (second, first)):
        for outcome, mass in a.items():
            assert mass <= math.exp(charge_of(outcome)) * b[outcome] * (1 + 1e-9)
    # A person who trains: the counts are the same, and the score that is told costs nothing.
    first, second = what_leaves(one, counts), what_leaves(two, counts)
    for a, b, laws in ((first, second, (one, two)), (second, first, (two, one))):
        deltas = [hockey_stick(laws[0][i], laws[1][i], LEVELS[i]) for i in range(STEPS)]
        paid = (
            max(0.0, mass - math.exp(LEVELS[len(outcome[0]) - 1]) * b[outcome])
            for outcome, mass in a.items()
        )
        assert sum(paid) <= sum(deltas) + 1e-12


def test_telling_a_score_for_nothing_would_be_wrong() -> None:
    """A held-out person has paid the last look already: the score adds its whole ε."""
    path = [dict.fromkeys(itertools.product([0], repeat=i + 1), 1.0) for i in range(STEPS)]
    counts, more = ({key: value for law in path for key in law} for value in (7, 8))
    first, second = what_leaves(path, counts), what_leaves(path, more)
    worst = max(math.log(first[key] / second[key]) for key in first if key[2] is not None)
    assert worst == pytest.approx(LEVELS[-1] + TELL)
    plain = what_leaves(path, counts, told=False), what_leaves(path, more, told=False)
    assert max(math.log(mass / plain[1][key]) for key, mass in plain[0].items()) == pytest.approx(
        LEVELS[-1]
    )


def paths_then_an_attempt(
    generator: np.random.Generator, *, miss: float = 1.0
) -> tuple[float, float]:
    """Return Σ (A − e^{ε̃}A′)₊ over all that leaves a job, and its δ.

    Two trainings, the second only after a miss of the first, which releases its last model, and
    then Algorithm 2: what a network with a grid does. ``miss``: the part of a miss that is charged.
    """
    laws = [prefix_laws(generator) for _ in range(2)]
    ratios = [
        [max(abs(math.log(x[key] / y[key])) for key in x) for x, y in zip(*pair, strict=True)]
        for pair in laws
    ]
    epsilons = [np.maximum.accumulate(0.9 * np.array(most)).tolist() for most in ratios]
    passed = [{key for law in one for key in law if generator.random() < 0.3} for one, _ in laws]
    levels = [0.3, 0.8]
    chances = [(p, min(p * math.exp(e), 1.0)) for p, e in zip((0.2, 0.3), levels, strict=True)]
    attempt = TwoAttempts(levels, chances, [0.2, 0.2])
    prices, swap = attempt.charges(0.2), bool(generator.integers(2))
    sides = (1, 0) if swap else (0, 1)
    total, delta = 0.0, 0.0
    before = [(1.0, 1.0, 0.0)]  # masses of histories without a pass, and what they were charged
    for prefixes, mine, stops in zip(laws, epsilons, passed, strict=True):
        one, two = prefixes[sides[0]], prefixes[sides[1]]
        delta += sum(hockey_stick(one[i], two[i], mine[i]) for i in range(STEPS))
        missed = []
        for outcome in itertools.product(range(VALUES), repeat=STEPS):
            look = next((i for i in range(1, STEPS + 1) if outcome[:i] in stops), 0)
            if look and outcome[look:] != (0,) * (STEPS - look):
                continue  # each stopped prefix once
            key = outcome[: look or STEPS]
            first, second = one[len(key) - 1][key], two[len(key) - 1][key]
            for a, b, paid in before:
                if look:
                    bound = math.exp(paid + mine[look - 1])
                    total += max(0.0, a * first - bound * b * second)
                else:
                    missed.append((a * first, b * second, paid + miss * mine[-1]))
        before = missed
    here, there = attempt.law(0.2, sides[0]), attempt.law(0.2, sides[1])
    for a, b, paid in before:
        for chance, other, price in zip(here, there, prices, strict=True):
            total += max(0.0, a * chance - math.exp(paid + price) * b * other)
    return total, delta


@pytest.mark.parametrize("seed", range(20))
def test_two_trainings_and_then_an_attempt_cost_the_sum(seed: int) -> None:
    total, delta = paths_then_an_attempt(np.random.default_rng(seed))
    assert total <= delta + 1e-12


def test_a_miss_before_attempts_that_costs_nothing_would_be_wrong() -> None:
    pairs = [paths_then_an_attempt(np.random.default_rng(seed), miss=0.0) for seed in range(20)]
    assert any(total > delta + 1e-3 for total, delta in pairs)
