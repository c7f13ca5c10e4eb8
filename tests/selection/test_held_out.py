"""Held-out rows that stop a search: the law of what leaves by enumeration, and the confidence."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product
from typing import Any

import pytest

from expost.errors import InvalidInput
from expost.privacy.guarantees import ZCDP
from expost.randomness.source import SimulationRandomness
from expost.selection.held_out import (
    GaussianCounts,
    HeldOut,
    Rates,
    Seen,
    gaussian_margins,
    look_deviations,
    margins_of,
    rates_of,
    useful_levels,
    useful_rhos,
)
from expost.selection.noise_path import NoisePath, PathSearch

LEVELS = (0.4, 0.5, 0.9)
THRESHOLDS = (9, 7, 8)


def noise_law(rate: Rates, steps: int, value: int) -> float:
    """P(y = value) for the difference of two geometric numbers."""
    above, below = float(rate.above) / steps, float(rate.below) / steps
    size = math.expm1(-above) * math.expm1(-below) / -math.expm1(-(above + below))
    return size * math.exp(-above * value if value >= 0 else below * value)


def below(rate: Rates, steps: int, value: int) -> float:
    """P(y < value), summed from the law."""
    if value <= 0:  # the law is geometric there
        return noise_law(rate, steps, value - 1) / -math.expm1(-float(rate.below) / steps)
    return 1 - noise_law(rate, steps, value) / -math.expm1(-float(rate.above) / steps)


def law(
    counts: tuple[int, ...], steps: int, monotone: bool, levels: tuple[float, ...] = LEVELS
) -> dict[Any, float]:
    """P(the search ends at i with noisy count v), for each (i, v); the path is fixed.

    It ends at the first pass, or at the last look with a count below the threshold: a miss.
    """
    masses: dict[Any, float] = {}
    alive = 1.0
    rates = rates_of(levels, monotone)
    for look, (rate, count, threshold) in enumerate(zip(rates, counts, THRESHOLDS, strict=True)):
        least = threshold if look < len(levels) - 1 else threshold - 90
        for noisy in range(least, threshold + 60):
            masses[look, noisy] = alive * noise_law(rate, steps, noisy - count)
        alive *= below(rate, steps, threshold - count)
    return masses


def losses(
    counts: tuple[int, ...], steps: int, monotone: bool
) -> dict[tuple[int, int], tuple[float, float]]:
    """The largest log ratios of each outcome, either way, over all that one person can change."""
    before = law(counts, steps, monotone)
    worst: dict[Any, tuple[float, float]] = dict.fromkeys(before, (0.0, 0.0))
    for rise in product(range(0 if monotone else -steps, steps + 1), repeat=len(counts)):
        after = law(tuple(a + b for a, b in zip(counts, rise, strict=True)), steps, monotone)
        for outcome, mass in before.items():
            change = math.log(after[outcome] / mass)
            up, down = worst[outcome]
            worst[outcome] = (max(up, change), max(down, -change))
    return worst


@pytest.mark.parametrize(("steps", "monotone"), [(1, True), (2, True), (1, False), (2, False)])
@pytest.mark.parametrize("counts", [(6, 8, 5), (12, 12, 12), (0, 0, 0), (9, 7, 8), (14, 3, 20)])
def test_every_outcome_costs_its_level(counts: tuple[int, ...], steps: int, monotone: bool) -> None:
    """All ways in which one person can change the counts, against the charge of each outcome."""
    for outcome, (up, down) in losses(counts, steps, monotone).items():
        assert max(up, down) <= LEVELS[outcome[0]] + 1e-9


def test_the_charges_are_reached_in_both_directions() -> None:
    """A passing look pays ε_i; having failed with counts above the thresholds pays ε_i, too."""
    worst = losses((12, 12, 12), 1, True)
    for look, level in enumerate(LEVELS):
        assert worst[look, 40][0] == pytest.approx(level)  # noise above 0: likelier with a row more
        assert worst[look, 9][1] == pytest.approx(level)  # noise below 0, all looks before failed
    assert worst[2, 7][1] == pytest.approx(LEVELS[-1])  # a miss
    assert losses((12, 12, 12), 1, False)[2, 40][0] == pytest.approx(LEVELS[-1])


def test_the_law_adds_up_to_one() -> None:
    for monotone in (True, False):
        assert sum(law((6, 8, 5), 1, monotone).values()) == pytest.approx(1, abs=1e-6)


def test_look_has_the_law_that_was_enumerated() -> None:
    """20,000 searches; the chance that a right sampler fails is about 1e-5."""
    rule = HeldOut(lambda output, data: data[output], THRESHOLDS, 2, rates=rates_of(LEVELS))
    source = SimulationRandomness(3)
    data = (6, 8, 5)
    seen_outcomes: dict[Any, int] = {}
    for _ in range(20_000):
        for index in range(3):
            seen = rule.look(index, index, data, source)
            if float(seen) >= 0:
                break
        outcome = (index, seen.count)  # the first pass, or the last look
        seen_outcomes[outcome] = seen_outcomes.get(outcome, 0) + 1
    for outcome, mass in law(data, 2, True).items():
        if mass > 0.005:
            slack = 5 * math.sqrt(mass / 20_000)
            assert seen_outcomes.get(outcome, 0) / 20_000 == pytest.approx(mass, abs=slack)


@pytest.mark.parametrize("monotone", [True, False])
@pytest.mark.parametrize("steps", [1, 16])
def test_margins_bound_a_wrong_pass(steps: int, monotone: bool) -> None:
    """P(y ≥ m + 1), summed, against the share of one look; and no wider than needed."""
    rates = rates_of([0.3, 0.5, 0.7, 2.0], monotone)
    for rate, margin in zip(rates, margins_of(rates, 0.9, steps), strict=True):

        def wrong(least: int, rate: Rates = rate) -> float:
            return sum(noise_law(rate, steps, value) for value in range(least, 4000 * steps))

        assert wrong(margin + 1) <= 0.1 / 4 * (1 + 1e-9)
        assert margin == 0 or wrong(margin) > 0.1 / 4 * (1 - 1e-6)


def test_rates_follow_the_levels() -> None:
    epsilons = [0.004 * 1.12**step for step in range(60)]
    spent = Fraction(0)
    for rate, epsilon in zip(rates_of(epsilons), epsilons, strict=True):
        spent += rate.below
        assert rate.above == spent == Fraction(epsilon)
    spent = Fraction(0)
    for rate, epsilon in zip(rates_of(epsilons, monotone=False), epsilons, strict=True):
        assert rate.above + spent == Fraction(epsilon)
        assert 0 < rate.below <= rate.above
        spent += rate.below


def test_levels_without_room_are_left_out() -> None:
    epsilons = [0.004 * 1.12**step for step in range(60)]
    kept = useful_levels(epsilons, room=200, confidence=0.9)
    assert kept == tuple(epsilons[-len(kept) :])
    assert 0.01 < kept[0] < 0.05  # about 5/ε rows are lost to noise
    assert useful_levels(epsilons, room=1, confidence=0.9) == ()


@pytest.mark.parametrize(("steps", "monotone"), [(1, True), (1 << 16, True), (52429, False)])
def test_outputs_below_the_bar_rarely_pass_however_many_looks(steps: int, monotone: bool) -> None:
    """All counts lie one step below the goal: 2,000 searches of 24 looks."""
    epsilons = [0.02 * 1.2**number for number in range(24)]
    bar = 1000 * steps
    rule = HeldOut.for_levels(
        lambda output, data: bar - 1,
        epsilons,
        goal=bar,
        confidence=0.9,
        steps=steps,
        monotone=monotone,
    )
    source, passed, wrong = SimulationRandomness(11), 0, 0
    for _ in range(2000):
        seen = [rule.look(look, None, None, source) for look in range(len(epsilons))]
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
    rule = HeldOut.for_levels(just_below, epsilons, goal=80, confidence=0.9)
    search = PathSearch(held_out=rule)
    candidates = path.levels(epsilons, delta=1e-5)
    passed = 0
    for seed in range(300):
        release = search.select(
            candidates, None, randomness=SimulationRandomness(seed), simulation=True
        )
        assert isinstance(release.value, Seen)
        assert release.passed == (release.value.count >= release.value.threshold)
        passed += bool(release.passed)
    assert passed <= 30 + 3 * math.sqrt(27)


def test_charge_is_the_level_and_the_value_says_what_was_seen() -> None:
    path = NoisePath(lambda data: [0.0], 1, lambda values, scale: "model")
    epsilons = [0.2, 0.4]
    rule = HeldOut.for_levels(lambda output, data: 1000, epsilons, goal=10, confidence=0.9)
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
    assert "fresh noise on held-out counts" in release.theorem


def test_levels_that_the_proof_does_not_cover_are_refused() -> None:
    path = NoisePath(lambda data: [0.0], 1, lambda values, scale: 0.0)
    rule = HeldOut.for_levels(just_below, [0.2, 0.4], goal=80, confidence=0.9)
    for candidates in (
        path.levels([0.2, 0.5], delta=1e-5),  # other levels than the rates belong to
        path.levels(rhos=[0.2, 0.4]),  # for which there are GaussianCounts
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
    for levels in ([], [0.5, 0.4], [0.4, 0.4]):
        with pytest.raises(InvalidInput, match="ascending levels above 0"):
            rates_of(levels)


RHOS = (0.02, 0.05, 0.3)


def test_gaussian_looks_have_the_law_of_their_level() -> None:
    """n_i − f_i is a rounded Gaussian of variance c²/(2(ρ_i − ρ_{i−1})), whatever f_i is."""
    rule = GaussianCounts.for_levels(
        lambda output, data: output, RHOS, goal=1000, confidence=0.9, steps=3
    )
    source, before = SimulationRandomness(5), 0.0
    for look, rho in enumerate(RHOS):
        deviation = 3 / math.sqrt(2 * (rho - before))
        assert rule.deviations[look] == pytest.approx(deviation, rel=1e-12)
        before = rho
        noise = [
            rule.look(look, 1000 - look, None, source).count - 1000 + look for _ in range(3000)
        ]
        assert abs(sum(noise) / 3000) < 4 * deviation / math.sqrt(3000)
        spread = math.sqrt(sum(value**2 for value in noise) / 3000)
        assert spread == pytest.approx(deviation, rel=0.06)
        inside = sum(abs(value) <= deviation for value in noise) / 3000
        assert inside == pytest.approx(math.erf(math.sqrt(0.5)), abs=0.06)


def test_gaussian_noise_is_added_before_rounding() -> None:
    """On a lattice of step above 1 (σ > 2^16) the count's last digits must not show."""
    rule = GaussianCounts.for_levels(
        lambda output, data: output, [1e-12], goal=0, confidence=0.9, steps=1
    )
    assert rule.deviations[0] > 2**17
    seen = {rule.look(0, 12_345, None, SimulationRandomness(seed)).count for seed in range(20)}
    assert all(count % 4 == 0 for count in seen)


@pytest.mark.parametrize("steps", [1, 1000])
def test_gaussian_margins_bound_a_wrong_pass_and_are_no_wider(steps: int) -> None:
    rule = GaussianCounts.for_levels(
        lambda output, data: 0, RHOS, goal=500, confidence=0.9, steps=steps
    )
    for deviation, threshold in zip(rule.deviations, rule.thresholds, strict=True):
        margin = threshold - 500

        def wrong(extra: float, deviation: float = deviation) -> float:
            return 0.5 * math.erfc((extra - 0.5) / deviation / math.sqrt(2))

        assert wrong(margin + 1 - 2.0**-17 * deviation) <= 0.1 / 3
        assert wrong(margin - 2.0**-14 * deviation) > 0.1 / 3


def test_the_wider_margin_allows_half_as_many_wrong_passes() -> None:
    told: list[Any] = []
    rule = GaussianCounts.for_levels(
        lambda output, data: 0,
        RHOS,
        goal=500,
        confidence=0.9,
        steps=100,
        report=lambda *seen: told.append(seen),
    )
    for look in range(3):
        rule.look(look, "model", None, SimulationRandomness(look))
        output, _, threshold, wider = told[-1]
        assert (output, threshold) == ("model", rule.thresholds[look])
        longer = threshold - 500 + wider
        wrong = 0.5 * math.erfc((longer + 0.5) / rule.deviations[look] / math.sqrt(2))
        assert 0.045 / 3 < wrong <= 0.05 / 3


def test_levels_in_rho_without_room_are_left_out() -> None:
    rhos = [1e-6 * 1.8**number for number in range(25)]
    kept = useful_rhos(rhos, room=300, confidence=0.9)
    assert set(kept) < set(rhos)
    assert kept[-1] == rhos[-1]
    rule = GaussianCounts.for_levels(just_below, kept, goal=80, confidence=0.9)
    assert max(rule.thresholds) - 80 <= 300
    before = rhos[rhos.index(kept[0]) - 1]
    assert gaussian_margins(look_deviations([before]), 1 - 0.1 / 25)[0] > 300
    assert useful_rhos(rhos, room=0, confidence=0.9) == ()
    assert useful_rhos([], room=300, confidence=0.9) == ()


def test_gaussian_counts_are_for_levels_in_rho() -> None:
    path = NoisePath(lambda data: [0.0], 1, lambda values, scale: "model")
    rule = GaussianCounts.for_levels(lambda output, data: 900, RHOS, goal=10, confidence=0.9)
    charges = PathSearch(held_out=rule).charges(path.levels(rhos=RHOS))
    assert [charges[look] for look in range(3)] == [ZCDP(rho) for rho in RHOS]
    assert charges.nothing == ZCDP(RHOS[-1])
    replaced = NoisePath(lambda data: [0.0], 1, lambda values, scale: 0.0, neighbours="replace")
    for candidates in (
        path.levels([0.02, 0.05, 0.3], delta=1e-5),
        path.levels(rhos=[0.02, 0.05, 0.31]),  # other levels than the noise belongs to
        path.levels(rhos=[0.02, 0.05]),
        replaced.levels(rhos=RHOS),
    ):
        with pytest.raises(InvalidInput, match="held"):
            PathSearch(held_out=rule).charges(candidates)
    for levels in ([], [0.5, 0.4], [0.4, 0.4]):
        with pytest.raises(InvalidInput, match="ascending levels above 0"):
            look_deviations(levels)
    release = PathSearch(held_out=rule).select(
        path.levels(rhos=RHOS), None, randomness=SimulationRandomness(1), simulation=True
    )
    assert isinstance(release.value, Seen)
    assert release.spent == ZCDP(RHOS[0])
    assert "ρ of the looks made" in release.theorem


def test_an_output_below_the_bar_rarely_passes_in_rho() -> None:
    rule = GaussianCounts.for_levels(
        just_below, [1e-4 * 1.8**number for number in range(12)], goal=80, confidence=0.9
    )
    source, passed = SimulationRandomness(11), 0
    for _ in range(600):
        passed += any(
            float(rule.look(look, None, None, source)) >= 0 for look in range(len(rule.thresholds))
        )
    assert 30 <= passed <= 60 + 3 * math.sqrt(54)  # and the margins are not much wider
