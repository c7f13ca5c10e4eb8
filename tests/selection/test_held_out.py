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
from expost.selection.held_out import (
    HeldOut,
    Seen,
    Stages,
    margins_of,
    rates_of,
    useful_levels,
)
from expost.selection.noise_path import NoisePath, PathSearch

LEVELS = (0.4, 0.5, 0.9)
STAGES = Stages.for_levels(LEVELS)  # {0.4, 0.5} and {0.9}


def law(
    counts: tuple[int, ...], thresholds: tuple[int, ...], steps: int, monotone: bool = True
) -> dict[Any, float]:
    """P(first pass at i with noisy count v), for each (i, v), and P(nothing); the path is fixed."""
    rates = [float(rate) / steps for rate in rates_of(LEVELS, STAGES, monotone)]
    found: dict[Any, float] = {}
    reached, most = 1.0, 400 * steps  # the probability that all earlier stages failed
    for stage, overhead in enumerate(STAGES.overheads):
        looks = [look for look in range(len(LEVELS)) if STAGES.stage(look) == stage]
        failed, rate_k = 0.0, float(overhead) / steps
        for k in range(most):
            alive = reached * (1 - math.exp(-rate_k)) * math.exp(-rate_k * k)
            for look in looks:
                needed = max(0, thresholds[look] - counts[look] + k)
                for y in range(needed, needed + 60):
                    mass = (1 - math.exp(-rates[look])) * math.exp(-rates[look] * y)
                    outcome = (look, counts[look] + y - k)
                    found[outcome] = found.get(outcome, 0.0) + alive * mass
                alive *= 1 - math.exp(-rates[look] * needed)
            failed += alive
        reached = failed
    found[None] = reached
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
            spent = float(sum(STAGES.overheads))
            charge = spent if outcome is None else LEVELS[outcome[0]]
            loss = abs(math.log(mass / other))
            assert loss <= charge + 1e-6
            tight = max(tight, loss - charge)
    assert tight > (
        -0.12 if monotone else -0.16
    )  # the charge is nearly reached: the check is not empty


def test_the_charge_is_reached_by_looks_that_force_a_large_k(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first look of each stage fails only if k is large; one person more makes k larger."""
    levels = (0.4, 0.5, 0.9, 1.0)
    monkeypatch.setitem(globals(), "LEVELS", levels)
    monkeypatch.setitem(globals(), "STAGES", Stages.for_levels(levels))  # two looks each
    thresholds = (5, 5, 5, 5)
    before = law((9, 6, 9, 6), thresholds, 1)
    for changed, look in (((10, 6, 9, 6), 1), ((10, 7, 10, 6), 3)):
        after = law(changed, thresholds, 1)
        outcome = (look, 8)
        loss = math.log(before[outcome] / after[outcome])
        assert loss == pytest.approx(levels[look], abs=1e-6)


def test_look_has_the_law_that_was_enumerated() -> None:
    rates = rates_of(LEVELS, STAGES)
    rule = HeldOut(lambda output, data: data[output], STAGES, (9, 7, 8), rates=rates)
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
    """P(y − k ≥ m + 1), summed exactly, against the share of one look; and no wider than needed."""
    epsilons = [0.3, 0.5, 0.7, 2.0]
    stages = Stages.for_levels(epsilons)
    rates = rates_of(epsilons, stages)
    margins = margins_of(rates, stages, 0.9, steps)
    for look, margin in enumerate(margins):
        rate = float(rates[look]) / steps
        overhead = float(stages.overheads[stages.stage(look)]) / steps

        def wrong(extra: int, rate: float = rate, overhead: float = overhead) -> float:
            return sum(
                (1 - math.exp(-overhead)) * math.exp(-overhead * k) * math.exp(-rate * (extra + k))
                for k in range(4000 * steps)
            )

        assert wrong(margin + 1) <= 0.1 / 4 * (1 + 1e-9)
        assert margin == 0 or wrong(margin) > 0.1 / 4 * (1 - 1e-6)


def test_stages_cost_little_and_levels_without_room_are_left_out() -> None:
    epsilons = [0.004 * 1.12**step for step in range(60)]
    stages = Stages.for_levels(epsilons)
    for look, epsilon in enumerate(epsilons):
        assert 0 < float(stages.paid(look)) < 0.6 * epsilon
    kept = useful_levels(epsilons, room=200, confidence=0.9)
    assert kept == tuple(epsilons[-len(kept) :])
    assert 0.02 < kept[0] < 0.1  # about 10/ε rows are lost to noise
    assert useful_levels(epsilons, room=1, confidence=0.9) == ()


@pytest.mark.parametrize(("steps", "monotone"), [(1, True), (1 << 16, True), (52429, False)])
def test_outputs_below_the_bar_rarely_pass_however_many_looks(steps: int, monotone: bool) -> None:
    """All counts lie one step below the bar: 2,000 searches of 24 looks."""
    epsilons = [0.02 * 1.2**number for number in range(24)]
    bar = 1000 * steps
    rule = HeldOut.for_levels(
        lambda output, data: bar - 1,
        epsilons,
        bar=bar,
        confidence=0.9,
        steps=steps,
        monotone=monotone,
    )
    source, passed, wrong = SimulationRandomness(11), 0, 0
    for _ in range(2000):
        drawn = rule.draw(source)
        seen = [rule.look(look, None, None, drawn, source) for look in range(len(epsilons))]
        passed += any(float(look) >= 0 for look in seen)
        # The bound on the count, whether a look passes or not.
        wrong += any(look.count - (look.threshold - bar) >= bar for look in seen)
    slack = 3 * math.sqrt(2000 * 0.1 * 0.9)
    assert 100 <= passed <= 200 + slack  # and the margins are not much wider than needed
    assert wrong == passed


def just_below(output: Any, data: Any) -> int:
    return 79


def test_an_output_below_the_bar_rarely_passes() -> None:
    path = NoisePath(lambda data: [0.0], 1, lambda values, scale: 0.0)
    epsilons = [0.2, 0.4, 0.8, 1.6]
    rule = HeldOut.for_levels(just_below, epsilons, bar=80, confidence=0.9)
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
    rule = HeldOut.for_levels(lambda output, data: 1000, epsilons, bar=10, confidence=0.9)
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
    rule = HeldOut.for_levels(just_below, [0.2, 0.4], bar=80, confidence=0.9)
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
    with pytest.raises(InvalidInput, match="ascending"):
        Stages((0, 0), (Fraction(1), Fraction(1)))
    with pytest.raises(InvalidInput, match="one per stage"):
        Stages((0,), ())
    with pytest.raises(InvalidInput, match="above 0"):
        margins_of([], Stages((0,), (Fraction(1),)), 0.9)
