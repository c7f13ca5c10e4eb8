"""Table 2: the mechanisms under a total (10, 10⁻⁶).

Tests: ``tests/reproduction/test_counting_tables.py``.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from expost.arrays import Floats
from expost.privacy.guarantees import ZCDP
from expost.selection.candidate import Candidate, never_run
from expost.selection.random_dropping import RandomDropping
from reproduction.counting.common import (
    DELTA,
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
from reproduction.simulated_paths import simulate_gaussian_paths

# The ρ with ρ + 2√(ρ ln(1/δ)) = 10.
ZCDP_TOTAL = (np.sqrt(np.log(1 / DELTA) + 10.0) - np.sqrt(np.log(1 / DELTA))) ** 2
ZCDP_GRID = 0.0005 * np.sqrt(2.0) ** np.arange(23)
RENYI_TUNING = Tuning(overhead=0.05, offsets=(0,), copies=(4,))


def doubling_gaussian(truth: Floats, generator: Generator) -> Result:
    """Doubling: fresh Gaussian noise at each level; all levels tried are paid, in zCDP."""
    scales = np.sqrt(0.5 / ZCDP_GRID)
    noise = generator.normal(0.0, 1.0, (len(ZCDP_GRID), truth.size)) * scales[:, None]
    return refining(
        truth,
        noise,
        ZCDP_GRID,
        scales,
        lambda level: np.cumsum(ZCDP_GRID)[level],
        float(ZCDP_TOTAL),
    )


def brownian(truth: Floats, generator: Generator) -> Result:
    """Brownian noise reduction: coupled Gaussian noise; the last level tried is paid."""
    scales = np.sqrt(0.5 / ZCDP_GRID)
    noise = simulate_gaussian_paths(list(scales**2), truth.size, generator)
    return refining(
        truth, noise, ZCDP_GRID, scales, lambda level: ZCDP_GRID[level], float(ZCDP_TOTAL)
    )


# The paper does not state the order; these values come closest to its column.
PUBLISHED_ORDER, PUBLISHED_OVERHEAD = 100.0, 0.001


def published_losses() -> tuple[Floats, Floats]:
    """Return the divergence of each level at that order, and the paper's charge with ℓ = 0.

    The charge is that of ``theorem:max-score-rdp``.
    """
    losses = PUBLISHED_ORDER * ZCDP_GRID
    runs = float((PUBLISHED_OVERHEAD / (PUBLISHED_OVERHEAD + losses)).sum())
    others = np.exp(-losses).sum() - np.exp(-losses)
    return losses, 2 * losses + PUBLISHED_OVERHEAD + (np.log1p(runs) + others) / (
        PUBLISHED_ORDER - 1
    )


PUBLISHED_TOTAL = 10.0 - np.log(1 / DELTA) / (PUBLISHED_ORDER - 1)


def no_dropping_gaussian(truth: Floats, generator: Generator) -> Result:
    """Algorithm 3 with x ≡ 0 under Rényi accounting: the paper's column. No guarantee."""
    scales = np.sqrt(0.5 / ZCDP_GRID)
    noise = generator.normal(0.0, 1.0, (len(ZCDP_GRID), truth.size)) * scales[:, None]
    _, charges = published_losses()
    return refining(truth, noise, ZCDP_GRID, scales, lambda level: charges[level], PUBLISHED_TOTAL)


def random_dropping_paper_gaussian(truth: Floats, generator: Generator) -> Result:
    """Algorithm 3 with the paper's parameters and with dropping, x ~ Exp(0.001).

    ⊥ is charged ln(τ+1)/(α−1).
    """
    losses, charges = published_losses()
    runs = float((PUBLISHED_OVERHEAD / (PUBLISHED_OVERHEAD + losses)).sum())
    levels = (len(ZCDP_GRID), *truth.shape)
    drop = generator.exponential(1 / PUBLISHED_OVERHEAD, truth.shape)
    kept = generator.random(levels) < np.exp(-losses[:, None, None] * drop)
    scales = np.sqrt(0.5 / ZCDP_GRID)[:, None, None]
    noisy = truth + generator.normal(0.0, 1.0, levels) * scales
    return one_shot(
        truth,
        kept,
        noisy,
        scales,
        charges,
        float(np.log1p(runs)) / (PUBLISHED_ORDER - 1),
        PUBLISHED_TOTAL,
    )


@lru_cache(maxsize=64)
def renyi_charges(place: int, tuning: Tuning) -> tuple[Floats, Floats, float]:
    """Return charges, drop rates and ε′ of a thread whose guessed level is ``place``.

    The charges are at the filter's order, priced by the library's selector.
    """
    levels = [min(place + offset, len(ZCDP_GRID) - 1) for offset in tuning.offsets]
    rates = np.array([tuning.order * ZCDP_GRID[level] for level in levels])
    overhead = tuning.overhead * float(rates[0])
    candidates = [
        Candidate(
            never_run,
            repeats=copies,
            guarantee=ZCDP(float(ZCDP_GRID[level])),
            drop_rate=float(rate),
        )
        for level, copies, rate in zip(levels, tuning.copies, rates, strict=True)
    ]
    table = RandomDropping(overhead=overhead, order=tuning.order).charges(candidates)
    return np.array([float(table[each].size) for each in range(len(levels))]), rates, overhead


def random_dropping_gaussian(
    truth: Floats, generator: Generator, tuning: Tuning = RENYI_TUNING
) -> Result:
    """Algorithm 3 with a real guarantee.

    Uses sharp Rényi charges under a filter at one order, and levels near the guess.
    """
    order = tuning.order
    total = 10.0 - (np.log1p(-1 / order) - (np.log(DELTA) + np.log(order)) / (order - 1))
    tables = [renyi_charges(place, tuning) for place in range(len(ZCDP_GRID))]
    charges, rates = np.array([each[0] for each in tables]), np.array([each[1] for each in tables])
    overheads = np.array([each[2] for each in tables])

    def attempt(sizes: Floats, guess: Any, generator: Generator) -> Attempt:
        levels = np.minimum(guess[None] + np.array(tuning.offsets)[:, None], len(ZCDP_GRID) - 1)
        scales = np.sqrt(0.5 / ZCDP_GRID[levels])
        kept, noisy = dropped_runs(
            sizes,
            rates[guess].T,
            overheads[guess],
            scales,
            np.array(tuning.copies),
            False,
            generator,
        )
        return cheapest_good(kept, noisy, levels, scales, charges[guess].T)

    return Ladder(ZCDP_GRID, np.sqrt(0.5 / ZCDP_GRID), float(total)).sequential(
        truth, generator, attempt
    )


APPROXIMATE: dict[str, Mechanism] = {
    "doubling": doubling_gaussian,
    "brownian": brownian,
    "random-dropping": random_dropping_gaussian,
    "random-dropping-paper": random_dropping_paper_gaussian,
    "no-dropping": no_dropping_gaussian,
}
