"""Chi-square tests of integer draws: p-values, with cells pooled until each expects enough."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from scipy import stats

Integers = npt.NDArray[np.int64]

LEAST = 25.0  # expected draws in a cell


def fit(
    draws: Integers, mass: Callable[[Integers], npt.NDArray[np.float64]], low: int, high: int
) -> float:
    """Return the p-value of ``draws`` against a law, with one cell per outcome in [low, high).

    Rare outcomes are pooled with their neighbours.

    What the law puts outside is a cell of its own, pooled with the last one.
    """
    outcomes = np.arange(low, high)
    probabilities = mass(outcomes)
    inside = (draws >= low) & (draws < high)
    observed = np.bincount(draws[inside] - low, minlength=high - low)
    observed = np.append(observed, len(draws) - inside.sum())
    probabilities = np.append(probabilities, max(0.0, 1 - probabilities.sum()))
    return pooled_p_value(observed, len(draws) * probabilities)


def fit_between(
    draws: Integers, cdf: Callable[[Integers], npt.NDArray[np.float64]], edges: Integers
) -> float:
    """The same for a law with many outcomes; ``cdf(e)`` is P(draw ≤ e).

    Cells are (−∞, e_0], (e_0, e_1], …, (e_last, ∞).
    """
    observed = np.bincount(np.searchsorted(edges, draws, side="left"), minlength=len(edges) + 1)
    probabilities = np.diff(cdf(edges), prepend=0.0, append=1.0)
    return pooled_p_value(observed, len(draws) * probabilities)


def alike(first: Integers, second: Integers) -> float:
    """The p-value of two samples having one law (two-sample chi-square)."""
    outcomes = np.unique(np.concatenate([first, second]))
    counts = np.array(
        [
            np.bincount(np.searchsorted(outcomes, each), minlength=len(outcomes))
            for each in (first, second)
        ]
    )
    cells = _pool(counts.sum(axis=0) * min(len(first), len(second)) / (len(first) + len(second)))
    return float(
        stats.chi2_contingency(np.add.reduceat(counts, cells, axis=1), correction=False).pvalue
    )


def _pool(expected: npt.NDArray[np.float64]) -> Integers:
    """Where cells start, such that each expects at least ``LEAST``."""
    starts, waiting = [0], 0.0
    for place, value in enumerate(expected):
        if waiting >= LEAST:
            starts.append(place)
            waiting = 0.0
        waiting += value
    if waiting < LEAST and len(starts) > 1:
        starts.pop()
    return np.array(starts)


def pooled_p_value(observed: Integers, expected: npt.NDArray[np.float64]) -> float:
    cells = _pool(expected)
    assert len(cells) > 1, "one cell tests nothing"
    return float(
        stats.chisquare(np.add.reduceat(observed, cells), np.add.reduceat(expected, cells)).pvalue
    )
