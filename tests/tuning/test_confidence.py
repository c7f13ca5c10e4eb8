""" "Passed" means passed: margins, and simulations of whole jobs at a stated false-alarm rate."""

from __future__ import annotations

import math

import numpy as np
import pytest

from expost.mechanisms import DiscreteLaplace, Query
from expost.randomness.source import SimulationRandomness
from expost.tuning.model.scoring import TOO_FEW, Margins, confidence_bounds, population_bound

ROWS = 400
DEVIATION = 8.0 / ROWS


def margins(confidence: float = 0.9) -> Margins:
    return Margins(confidence, (20.0, 60.0), (0.7, 0.3))


def test_a_margin_grows_with_confidence_runs_and_noise() -> None:
    one = margins()
    assert one.deviations(0) == pytest.approx(2.69, abs=0.01)  # Φ⁻¹(1 − 0.1·0.7/20)
    assert one.deviations(1) > one.deviations(0)
    assert margins(0.99).deviations(0) > one.deviations(0)
    assert one.margin(0, 0.0, 0.0) == 0  # public scoring
    assert one.margin(0, 2 * DEVIATION, 1 / ROWS) > one.margin(0, DEVIATION, 1 / ROWS)
    laplace = one.margin(0, DEVIATION, 1 / ROWS, law="laplace")
    assert laplace == pytest.approx(DEVIATION * math.log(20 / (0.1 * 0.7)))


def test_bounds_are_ordered() -> None:
    bounds = confidence_bounds(
        margins(), 0, 0.85, DEVIATION, 1 / ROWS, ROWS, 1.0, empty=0.5, worst=0.0
    )
    assert bounds.on_population < bounds.on_scoring_rows < bounds.noisy
    record = bounds.as_dict(larger_is_better=True)
    assert set(record) == {
        "confidence",
        "noisy_score",
        "bound_on_scoring_rows",
        "bound_on_population",
        "why_no_bound_on_population",
    }
    flipped = bounds.as_dict(larger_is_better=False)
    assert flipped["noisy_score"] == -0.85
    assert flipped["bound_on_scoring_rows"] > flipped["noisy_score"]


def test_the_bound_is_the_least_over_all_shares_of_usable_rows() -> None:
    """Catches a bound that holds for one share of usable rows only."""
    empty, sampled = 0.5, 0.1
    for certain in (0.501, 0.51, 0.54, 0.56, 0.7):
        found, why = population_bound(certain, empty, sampled, -100.0)
        assert found is not None
        assert why is None
        inverse = 1 / np.sqrt(np.geomspace(1e-6, 1, 100_001))
        least = np.min(empty + (certain - empty) * inverse**2 - sampled * inverse)
        assert found == pytest.approx(least, abs=1e-6)
    assert population_bound(0.5, empty, sampled, 0.0) == (None, TOO_FEW)
    assert population_bound(0.504, empty, sampled, 0.0) == (None, TOO_FEW)  # below the worst score


def wrong_certificates(terms: Margins, truth: float, jobs: int, seed: int) -> int:
    """Jobs that certify a model below the goal, when every model is ``truth`` (in deviations)."""
    generator = np.random.default_rng(seed)
    wrong = 0
    for _ in range(jobs):
        for attempt, runs in enumerate(terms.runs):
            scored = generator.poisson(runs)
            noisy = truth * DEVIATION + DEVIATION * generator.normal(size=scored)
            if (noisy >= terms.margin(attempt, DEVIATION, 0.0)).any():
                wrong += 1
                break
    return wrong


@pytest.mark.parametrize("truth", [-1.5, -0.5, -1e-9])
def test_a_model_below_the_bar_is_rarely_certified(truth: float) -> None:
    """At most 10 % of jobs; 1,000 jobs exceed 135 with probability below 3·10⁻⁴ if it holds."""
    assert wrong_certificates(margins(), truth, 1_000, 5) <= 135


def test_the_mutant_without_a_margin_is_caught() -> None:
    without = Margins(0.5, (1.0, 1.0), (1.0, 1.0))  # z = 0
    assert without.deviations(0) == 0
    generator = np.random.default_rng(6)
    wrong = sum((generator.normal(size=20) - 1.0 >= 0).any() for _ in range(200))
    assert wrong > 100


def test_laplace_tails_are_within_the_margin() -> None:
    """P(noise ≥ margin) is at most β/R: 20,000 draws, five standard errors."""
    terms = Margins(0.5, (10.0,), (1.0,))
    noise = DiscreteLaplace(Query(lambda whole: whole), 0.2)
    margin = terms.margin(0, noise.output_scale, 1.0, law="laplace")
    source = SimulationRandomness(3)
    above = sum(float(noise(0, source)) >= margin for _ in range(20_000))
    allowed = 0.05
    assert above / 20_000 <= allowed + 5 * math.sqrt(allowed / 20_000)
