"""Clopper–Pearson bounds: comparison with SciPy, exact coverage and false alarms.

The probability of a false alarm is computed by enumeration.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from expost.audit.events import OTHER, EventFamily, Feature, cells_from, family_from, judge
from expost.audit.report import claimed_numbers, clopper_pearson, log_ratio_bound, runs_needed
from expost.audit.subjects import OutputKey
from expost.errors import InvalidInput
from expost.privacy.guarantees import ApproxDP, PureDP, RenyiDP


@pytest.mark.parametrize("total", [1, 2, 7, 100, 5000, 200_000])
@pytest.mark.parametrize("tail", [0.25, 0.025, 1e-5])
def test_bounds_are_those_of_scipy_rounded_outwards(total, tail):
    counts = np.unique(
        np.concatenate(
            [
                np.arange(min(total, 9) + 1),
                np.linspace(0, total, 12).astype(int),
                [total - 1, total],
            ]
        )
    )
    low, high = clopper_pearson(counts, total, tail)
    peer_low = np.where(counts > 0, stats.beta.ppf(tail, counts, total - counts + 1), 0.0)
    peer_high = np.where(counts < total, stats.beta.isf(tail, counts + 1, total - counts), 1.0)
    assert np.all((low <= peer_low) & (peer_low - low <= 1e-7 * peer_low))
    assert np.all((high >= peer_high) & (high - peer_high <= 1e-7 * peer_high))


def missed(bounds, total: int, chances: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The exact chance that a true probability lies below the lower, or above the upper bound."""
    low, high = bounds
    mass = stats.binom.pmf(np.arange(total + 1)[:, None], total, chances)
    return (mass * (low[:, None] > chances)).sum(axis=0), (mass * (high[:, None] < chances)).sum(
        axis=0
    )


def test_coverage_is_exact_and_not_wasteful():
    """The normal approximation fails the same check, so the check can fail."""
    total, tail, chances = 40, 0.05, np.linspace(0.001, 0.999, 997)
    below, above = missed(clopper_pearson(np.arange(total + 1), total, tail), total, chances)
    assert below.max() <= tail
    assert above.max() <= tail
    assert below.max() > 0.9 * tail
    share = np.arange(total + 1) / total
    width = stats.norm.isf(tail) * np.sqrt(share * (1 - share) / total)
    assert (
        max(each.max() for each in missed((share - width, share + width), total, chances))
        > 2 * tail
    )


def test_tails_may_differ_by_count():
    low, high = clopper_pearson([[3, 3], [5, 0]], 10, [0.1, 0.01])
    assert low.shape == (2, 2)
    assert low[0, 1] < low[0, 0] < 0.3 < high[0, 0] < high[0, 1]
    assert (low[1, 1], clopper_pearson(10, 10, 0.1)[1]) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("counts", "total", "tail"), [(-1, 5, 0.1), (6, 5, 0.1), (0, 0, 0.1), (1, 5, 0), (1, 5, 0.3)]
)
def test_impossible_counts_and_tails_are_refused(counts, total, tail):
    with pytest.raises(InvalidInput):
        clopper_pearson(counts, total, tail)


def test_runs_needed_shows_what_was_asked_and_no_fewer_would():
    for loss, chance in ((0.5, 0.5), (2.0, 0.1), (4.0, 0.9)):
        runs = runs_needed(loss, 0.8 * loss, chance)
        for count, expected in ((runs, True), (int(0.9 * runs), False)):
            found = log_ratio_bound(
                round(count * chance), round(count * chance * math.exp(-loss)), count, 0.05 / 4
            )
            assert (found >= 0.8 * loss) is expected
    with pytest.raises(InvalidInput, match="shown"):
        runs_needed(1.0, 1.0, 0.5)
    with pytest.raises(InvalidInput, match="ask for less"):
        runs_needed(0.01, 0.0099, 1e-4)


# The verdict as a whole, by enumeration: two labels, every pair of counts, exact probabilities.

RUNS = 16
PILOT = [(OutputKey(0), Feature(label)) for label in ("yes", "no") for _ in range(5)]


def chance_of_violated(promise, loss: float, confidence: float) -> float:
    """The exact chance that randomised response of this loss is called violated."""
    cells = cells_from(PILOT, [OutputKey(0)])
    claims = claimed_numbers([promise])
    trial = np.array([[6, 4, 0], [4, 6, 0]])
    family = family_from(trial, 10, cells, claims)
    truth = 1 / (1 + math.exp(-loss))
    on_data, on_neighbour = (
        stats.binom.pmf(np.arange(RUNS + 1), RUNS, p) for p in (truth, 1 - truth)
    )
    total = 0.0
    for yes in range(RUNS + 1):
        for other in range(RUNS + 1):
            counts = np.array([[yes, RUNS - yes, 0], [other, RUNS - other, 0]])
            found, joint = judge(counts, RUNS, cells, family, claims, confidence)
            if any(each.lower_bound > each.claimed for each in found) or any(
                each.violated for each in joint
            ):
                total += on_data[yes] * on_neighbour[other]
    return float(total)


def moment(loss: float, order: float) -> float:
    p = 1 / (1 + math.exp(-loss))
    return math.log(p**order * (1 - p) ** (1 - order) + (1 - p) ** order * p ** (1 - order)) / (
        order - 1
    )


def exact_promise(kind: str, loss: float):
    """The smallest guarantee of a kind that randomised response of this loss keeps."""
    if kind == "approx":
        p = 1 / (1 + math.exp(-loss))
        return ApproxDP(loss / 2, p - math.exp(loss / 2) * (1 - p))
    return (
        PureDP(loss)
        if kind == "pure"
        else RenyiDP((2.0, 8.0), (moment(loss, 2.0), moment(loss, 8.0)))
    )


@pytest.mark.parametrize("kind", ["pure", "approx", "renyi"])
def test_false_alarms_are_within_the_confidence_and_real_ones_are_heard(kind):
    """Confidence one half, so that alarms occur; a claim of half the loss is mostly detected."""
    promise = exact_promise(kind, 1.0)
    assert 0 < chance_of_violated(promise, 1.0, 0.5) <= 0.5
    assert chance_of_violated(promise, 3.0, 0.5) > 0.5


# Many outcomes: without the correction, or with events chosen on the counted runs, most audits
# would give an alarm.

CLASSES, LABELS, COUNTED, TRIALS = 12, 4, 600, 40


def alarms_over_equal_laws(*, pilot: int | None) -> int:
    """How many audits at 0.9 confidence say that 12 outcomes lose more than ε = 0.

    Both laws are the same.

    ``pilot`` None chooses events on the counted runs themselves.
    """
    generator = np.random.default_rng(1)
    keys = [OutputKey(index) for index in range(CLASSES)]
    cells = cells_from(
        [(key, Feature(str(label))) for key in keys for label in range(LABELS)], keys
    )
    claims = claimed_numbers([PureDP(0.0)] * CLASSES)
    chances = [0.0 if cell.label == OTHER else 1 / (CLASSES * LABELS) for cell in cells.cells]
    alarms = 0
    for _ in range(TRIALS):
        counts = generator.multinomial(COUNTED, chances, size=2)
        trial = counts if pilot is None else generator.multinomial(pilot, chances, size=2)
        family = family_from(trial, pilot or COUNTED, cells, claims)
        found, joint = judge(counts, COUNTED, cells, family, claims, 0.9)
        alarms += any(each.lower_bound > each.claimed for each in found) or any(
            each.violated for each in joint
        )
    return alarms


@pytest.mark.slow
def test_many_outcomes_are_corrected_for(monkeypatch):
    """At a rate of 0.1 more than 11 alarms of 40 have chance 1e-3. Both mutants sound many more."""
    limit = stats.binom.isf(1e-3, TRIALS, 0.1)
    assert alarms_over_equal_laws(pilot=150) <= limit
    assert alarms_over_equal_laws(pilot=None) > limit
    monkeypatch.setattr(
        EventFamily, "tails", lambda self, confidence: (1 - confidence, 1 - confidence)
    )
    assert alarms_over_equal_laws(pilot=150) > limit
