"""Held-out rows that stop a search: the law of what leaves by enumeration, and the confidence."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product
from typing import Any

import pytest

from expost.errors import InvalidInput
from expost.mechanisms.outcome import NOTHING
from expost.randomness.source import SimulationRandomness
from expost.selection.held_out import HeldOut, Seen, margins_of, rates_of
from expost.selection.noise_path import NoisePath, PathSearch

LEVELS, OVERHEAD = (0.4, 0.5, 0.9), 0.15


def law(
    counts: tuple[int, ...], thresholds: tuple[int, ...], steps: int, monotone: bool = True
) -> dict[Any, float]:
    """P(first pass at i with noisy count v), for each (i, v), and P(nothing); the path is fixed."""
    rates = [float(rate) / steps for rate in rates_of(LEVELS, OVERHEAD, monotone)]
    most = 250 * steps
    found: dict[Any, float] = {}
    for k in range(most):
        alive = (1 - math.exp(-OVERHEAD / steps)) * math.exp(-OVERHEAD * k / steps)
        for place, rate in enumerate(rates):
            needed = max(0, thresholds[place] - counts[place] + k)
            for y in range(needed, needed + 60):
                mass = (1 - math.exp(-rate)) * math.exp(-rate * y)
                outcome = (place, counts[place] + y - k)
                found[outcome] = found.get(outcome, 0.0) + alive * mass
            alive *= 1 - math.exp(-rate * needed)
        found[None] = found.get(None, 0.0) + alive
    return found


@pytest.mark.parametrize(("steps", "monotone"), [(1, True), (2, True), (1, False)])
def test_every_outcome_costs_its_level(steps: int, monotone: bool) -> None:
    """All ways in which one person can change the counts, against the charge of each outcome."""
    thresholds, counts = (9, 7, 8), (6, 8, 5)
    before = law(counts, thresholds, steps, monotone)
    tight = -1.0
    for rise in product(range(0 if monotone else -steps, steps + 1), repeat=3):
        other_counts = tuple(a + b for a, b in zip(counts, rise, strict=True))
        after = law(other_counts, thresholds, steps, monotone)
        for outcome, mass in before.items():
            other = after.get(outcome, 0.0)
            if outcome is not None and outcome[1] > thresholds[outcome[0]] + 40:
                continue  # beyond what the sums above cover
            charge = LEVELS[-1] if outcome is None else LEVELS[outcome[0]]
            loss = abs(math.log(mass / other))
            assert loss <= charge + 1e-6
            tight = max(tight, loss - charge)
    assert tight > -0.12  # the charge is nearly reached: the check is not empty


def test_look_has_the_law_that_was_enumerated() -> None:
    rates = rates_of(LEVELS, OVERHEAD)
    rule = HeldOut(lambda output, data: data[output], OVERHEAD, (9, 7, 8), rates=rates)
    source = SimulationRandomness(3)
    data = (6, 8, 5)
    found: dict[Any, int] = {}
    for _ in range(20_000):
        k = rule.draw(source)
        outcome = None
        for place in range(3):
            seen = rule.look(place, place, data, k, source)
            if float(seen) >= 0:
                outcome = (place, seen.count)
                break
        found[outcome] = found.get(outcome, 0) + 1
    expected = law(data, (9, 7, 8), 1)
    for outcome, mass in expected.items():
        if mass > 0.005:
            slack = 5 * math.sqrt(mass / 20_000)
            assert found.get(outcome, 0) / 20_000 == pytest.approx(mass, abs=slack)


@pytest.mark.parametrize("steps", [1, 16])
def test_margins_bound_a_wrong_pass(steps: int) -> None:
    epsilons = [0.3, 0.7, 2.0]
    margins = margins_of(rates_of(epsilons, 0.1), 0.9, steps)
    for epsilon, margin in zip(epsilons, margins, strict=True):
        rate = (epsilon - 0.1) / steps
        assert math.exp(-rate * (margin + 1)) <= 0.1 / 3
        assert margin == 0 or math.exp(-rate * margin) > 0.1 / 3 * (1 - 1e-9)


def just_below(output: Any, data: Any) -> int:
    return 79


def test_an_output_below_the_bar_rarely_passes() -> None:
    path = NoisePath(lambda data: [0.0], 1, lambda values, scale: 0.0)
    epsilons = [0.2, 0.4, 0.8, 1.6]
    rule = HeldOut.for_levels(just_below, epsilons, overhead=0.1, bar=80, confidence=0.9)
    search = PathSearch(held_out=rule)
    candidates = path.levels(epsilons, delta=1e-5)
    passed = 0
    for seed in range(300):
        release = search.select(
            candidates, None, randomness=SimulationRandomness(seed), simulation=True
        )
        passed += release.value is not NOTHING
    assert passed <= 30 + 3 * math.sqrt(27)


def test_charge_is_the_level_and_the_value_says_what_was_seen() -> None:
    path = NoisePath(lambda data: [0.0], 1, lambda values, scale: "model")
    epsilons = [0.2, 0.4]
    rule = HeldOut.for_levels(
        lambda output, data: 1000, epsilons, overhead=0.1, bar=10, confidence=0.9
    )
    search = PathSearch(held_out=rule)
    release = search.select(
        path.levels(epsilons, delta=1e-5),
        None,
        randomness=SimulationRandomness(1),
        simulation=True,
    )
    assert isinstance(release.value, Seen)
    assert release.value.value == "model"
    assert release.spent.size == Fraction(0.2)
    assert "at-classic-monotone" in release.theorem


def test_levels_that_the_proof_does_not_cover_are_refused() -> None:
    path = NoisePath(lambda data: [0.0], 1, lambda values, scale: 0.0)
    rule = HeldOut.for_levels(just_below, [0.2, 0.4], overhead=0.1, bar=80, confidence=0.9)
    for candidates in (
        path.levels([0.2, 0.5], delta=1e-5),  # other levels than the rates belong to
        path.levels(rhos=[0.2, 0.4]),
        NoisePath(lambda data: [0.0], 1, lambda values, scale: 0.0, neighbours="replace").levels(
            [0.2, 0.4], delta=1e-5
        ),
    ):
        with pytest.raises(InvalidInput, match="held"):
            PathSearch(held_out=rule).charges(candidates)
    with pytest.raises(InvalidInput, match="score"):
        PathSearch(held_out=rule).select(
            path.levels([0.2, 0.4], delta=1e-5), None, score=lambda output: 1.0
        )
    small = HeldOut.for_levels(just_below, [0.2, 0.4], overhead=0.1, bar=80, confidence=0.9)
    with pytest.raises(InvalidInput, match="held"):
        PathSearch(held_out=small).charges(path.levels([0.05, 0.4], delta=1e-5))
    with pytest.raises(InvalidInput, match="larger"):
        margins_of(rates_of([0.1], 0.1), 0.9)
