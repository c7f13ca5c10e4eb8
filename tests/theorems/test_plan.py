"""What the planner says, against sums over every drop level."""

from __future__ import annotations

import numpy as np
import pytest

from expost import Candidate, PureDP, RandomDropping
from expost.selection.drop_law import (
    log_keep_probability,
    probability_nothing,
    run_counts,
)
from tests.theorems import finite
from tests.theorems.cases import BATCH, random_cases
from tests.theorems.finite import Array


def _levels(overhead: float, least: int = 0) -> tuple[Array, Array]:
    k = np.arange(int(45 / overhead) + 2)
    return least + k, -np.expm1(-overhead) * np.exp(-overhead * k)


@pytest.mark.parametrize("overhead", [0.004, 0.1, 1.0, 5.0])
@pytest.mark.parametrize("least", [0, 2])
def test_chance_of_nothing_is_bracketed(overhead: float, least: int) -> None:
    """Σ_k P(k)·Π_g (1−e^{−γ_g·k})^{T_g}, summed by level, is in the bracket; it is narrow."""
    rates, copies = [0.02, 0.5], [300, 7]
    k, chance = _levels(overhead, least)
    with np.errstate(divide="ignore"):
        exact = float(
            chance
            @ np.exp(sum(t * np.log1p(-np.exp(-g * k)) for g, t in zip(rates, copies, strict=True)))
        )
    low, high = probability_nothing(overhead, rates, copies, least)
    assert low - 1e-12 <= exact <= high + 1e-12
    assert high - low <= 0.01 * high + 1e-12


def test_chance_of_nothing_agrees_with_the_enumerated_law() -> None:
    for case in random_cases(seed=55, instances=200):
        law, settings = finite.random_dropping(case.q, case.settings), case.settings
        for b in range(0, BATCH, 20):
            low, high = probability_nothing(
                float(settings.overhead[b]), settings.rates[b], settings.copies[b], settings.least
            )
            assert low - 1e-9 <= law.nothing_low[b]
            assert law.nothing_high[b] <= high + 1e-9


def test_a_candidate_that_is_never_dropped_makes_nothing_impossible() -> None:
    """ε = 0 (a public baseline) has rate 0: kept at every level."""
    assert probability_nothing(0.5, [0.0, 1.0], [1, 3]) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("overhead", "rate", "least"), [(0.01, 0.1, 0), (0.3, 0.7, 0), (0.3, 0.7, 3), (2.0, 0.0, 1)]
)
def test_keep_probability_is_the_mean_keep_chance(overhead: float, rate: float, least: int) -> None:
    k, chance = _levels(overhead, least)
    assert np.exp(log_keep_probability(overhead, rate, least)) == pytest.approx(
        float(chance @ np.exp(-rate * k)), rel=1e-9
    )


def law_of_runs(overhead: float, rates: list[float], copies: list[int], least: int) -> Array:
    """P(N = n) for the number of kept copies, by one Bernoulli factor after another."""
    k, chance = _levels(overhead, least)
    law = np.ones((len(k), 1))
    for rate, count in zip(rates, copies, strict=True):
        keep = np.exp(-rate * k)[:, None]
        for _ in range(count):
            law = np.pad(law * (1 - keep), ((0, 0), (0, 1))) + np.pad(law * keep, ((0, 0), (1, 0)))
    return chance @ law


@pytest.mark.parametrize(("overhead", "least"), [(0.3, 0), (1.0, 0), (0.3, 2)])
def test_expected_runs_and_their_quantiles_match_enumeration(overhead: float, least: int) -> None:
    """Catches a mean that forgets the condition "something was kept", or repeats."""
    rates, copies = [0.5, 1.0], [3, 8]
    law = law_of_runs(overhead, rates, copies, least)
    candidates = [
        Candidate(lambda data, randomness: 0, guarantee=PureDP(rate), repeats=count)
        for rate, count in zip(rates, copies, strict=True)
    ]
    counts = run_counts(RandomDropping(overhead, minimum_drop_level=least).drop_law(candidates))
    mean = float(law @ np.arange(len(law)))
    assert counts.mean_per_draw == pytest.approx(mean, rel=1e-9)
    assert counts.nothing == pytest.approx(law[0], rel=1e-3)
    assert counts.mean == pytest.approx(mean / (1 - law[0]), rel=1e-2)
    for chance in (0.5, 0.9, 0.99):
        reached = (np.cumsum(law) - law[0]) / (1 - law[0])
        assert (
            abs(counts.quantile(chance) - int(np.searchsorted(reached, chance))) <= 1
        )  # cells are coarser than levels
