"""Table 1: the mechanisms under a total ε of 10.

Tests: ``tests/reproduction/test_counting_tables.py``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from expost.arrays import Floats
from reproduction.counting.common import (
    LEAST,
    Attempt,
    Generator,
    Ladder,
    Mechanism,
    Result,
    Tuning,
    cheapest_good,
    dropped_runs,
    one_shot,
    refining,
)
from reproduction.simulated_paths import simulate_laplace_paths

TOTAL, OVERHEAD = 10.0, 0.001
PURE_GRID = 0.001 * np.sqrt(2.0) ** np.arange(27)
PURE_LADDER = Ladder(PURE_GRID, 1 / PURE_GRID, TOTAL)
PURE_TUNING = Tuning(overhead=0.05, offsets=(0,), copies=(16,))


def doubling_pure(truth: Floats, generator: Generator) -> Result:
    """Doubling: fresh noise at each level; all levels tried are paid."""
    noise = generator.laplace(0.0, 1.0, (len(PURE_GRID), truth.size)) / PURE_GRID[:, None]
    return refining(
        truth, noise, PURE_GRID, 1 / PURE_GRID, lambda level: np.cumsum(PURE_GRID)[level], TOTAL
    )


def noise_reduction(truth: Floats, generator: Generator) -> Result:
    """Laplace noise reduction: coupled noise; the last level tried is paid."""
    noise = simulate_laplace_paths(list(1 / PURE_GRID), truth.size, generator)
    return refining(truth, noise, PURE_GRID, 1 / PURE_GRID, lambda level: PURE_GRID[level], TOTAL)


def no_dropping_pure(truth: Floats, generator: Generator) -> Result:
    """Algorithm 3 with k ≡ 0: the paper's column.

    Nothing is ever dropped, so the theorem gives no guarantee at all.
    """
    noise = generator.laplace(0.0, 1.0, (len(PURE_GRID), truth.size)) / PURE_GRID[:, None]
    return refining(
        truth, noise, PURE_GRID, 1 / PURE_GRID, lambda level: 2 * PURE_GRID[level] + OVERHEAD, TOTAL
    )


def random_dropping_paper(truth: Floats, generator: Generator) -> Result:
    """Algorithm 3 with the paper's parameters, k ~ Geom(e^{−0.001}).

    Most threads end with ⊥, which is free.
    """
    levels = (len(PURE_GRID), *truth.shape)
    level_drop = generator.geometric(-np.expm1(-OVERHEAD), truth.shape) - 1
    kept = generator.random(levels) < np.exp(-PURE_GRID[:, None, None] * level_drop)
    noisy = truth + generator.laplace(0.0, 1.0, levels) / PURE_GRID[:, None, None]
    charges = 2 * PURE_GRID + OVERHEAD
    return one_shot(truth, kept, noisy, 1 / PURE_GRID[:, None, None], charges, 0.0, TOTAL)


def random_dropping_pure(
    truth: Floats, generator: Generator, tuning: Tuning = PURE_TUNING
) -> Result:
    """Algorithm 3 with a real guarantee.

    Uses levels near the guess and an overhead that is a fraction of it. Draws again instead of ⊥.
    """

    def attempt(sizes: Floats, guess: Any, generator: Generator) -> Attempt:
        levels = np.minimum(guess[None] + np.array(tuning.offsets)[:, None], len(PURE_GRID) - 1)
        epsilons = PURE_GRID[levels]
        overhead = tuning.overhead * epsilons[0]
        kept, noisy = dropped_runs(
            sizes, epsilons, overhead, 1 / epsilons, np.array(tuning.copies), True, generator
        )
        return cheapest_good(kept, noisy, levels, 1 / epsilons, 2 * epsilons + overhead)

    return PURE_LADDER.sequential(truth, generator, attempt)


AT_OVERHEAD = 1.0  # the threshold's ε as a multiple of the guessed level
AT_LEVELS = 2  # number of levels tried, from the guessed one


def above_threshold(truth: Floats, generator: Generator) -> Result:
    """Algorithm 1, monotone.

    Stops at the first level from the guess whose noisy count reaches what the σ-rule needs there.
    The estimate is free.
    """

    def attempt(sizes: Floats, guess: Any, generator: Generator) -> Attempt:
        overhead = AT_OVERHEAD * PURE_GRID[guess]
        threshold_noise: Any = np.floor(generator.exponential(1.0, len(sizes)) / overhead)
        cost: Any = overhead.copy()
        level: Any = guess.copy()
        estimate: Any = np.zeros(len(sizes))
        good: Any = np.zeros(len(sizes), dtype=bool)
        for offset in range(AT_LEVELS):
            place: Any = np.minimum(guess + offset, len(PURE_GRID) - 1)
            epsilon = PURE_GRID[place]
            query_noise = np.floor(generator.exponential(1.0, len(sizes)) / epsilon)
            value = sizes + query_noise - threshold_noise
            passes: Any = ~good & (value >= LEAST / epsilon)
            bias = 1 / np.expm1(epsilon) - 1 / np.expm1(overhead)
            cost, level = np.where(passes, epsilon + overhead, cost), np.where(passes, place, level)
            estimate, good = np.where(passes, value - bias, estimate), good | passes
        return (
            PURE_GRID[np.minimum(guess + AT_LEVELS - 1, len(PURE_GRID) - 1)] + overhead,
            cost,
            level,
            estimate,
            good,
        )

    return PURE_LADDER.sequential(truth, generator, attempt)


PURE: dict[str, Mechanism] = {
    "doubling": doubling_pure,
    "noise-reduction": noise_reduction,
    "above-threshold": above_threshold,
    "random-dropping": random_dropping_pure,
    "random-dropping-paper": random_dropping_paper,
    "no-dropping": no_dropping_pure,
}
