"""Jobs that need no calibration, for the tests of refinements."""

from __future__ import annotations

from fractions import Fraction

from expost.analytics.refinement import Job
from expost.analytics.refinement_noise import NoiseLevels, StoppingRule, half_width, paper_least


def cheap_job(
    levels: NoiseLevels, total: Fraction, order: str, within: float = 0.1, most: int = 10**6
) -> Job:
    """A job whose rule needs no calibration: fit for everything but coverage."""
    widths = half_width(levels, 0.9)
    return Job(
        levels,
        StoppingRule(within, 0.9, "paper", 1.0, paper_least(levels, within), widths, widths),
        total,
        order,
        most,
        shared(levels, total, most),
    )


def shared(levels: NoiseLevels, total: Fraction, most: int) -> int:
    """The finest level that ``most`` groups can afford, at least the first."""
    return max([0, *(n for n, cost in enumerate(levels.costs) if Fraction(cost) * most <= total)])


def names(counts: list[int]) -> list[str]:
    return [f"g{place}" for place in range(len(counts))]
