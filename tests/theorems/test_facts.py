"""Facts about the data: adaptive Gaussian looks, and names above a threshold, by enumeration.

The laws are enumerated on a fine grid: a look at a count is a normal density, a second look is
chosen by what the first released, and names that one person has alone are released or not.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from expost.facts.column_facts import LOOKS, Price
from expost.privacy.profiles import gaussian_delta

GRID = np.linspace(-8.0, 8.0, 641)
STEP = float(GRID[1] - GRID[0])


def normal(x: np.ndarray, deviation: float) -> np.ndarray:
    return np.exp(-0.5 * (x / deviation) ** 2) / (deviation * math.sqrt(2 * math.pi))


def excess(first: np.ndarray, second: np.ndarray, epsilon: float, volume: np.ndarray) -> float:
    """Σ (P − e^ε P′)₊ over cells of these volumes."""
    return float(np.sum(np.maximum(first - math.exp(epsilon) * second, 0.0) * volume))


def adaptive_law(counts: tuple[float, float], mu: float, share: float, cut: float) -> tuple:
    """The densities of two looks; the second is at another count, or absent, by the first.

    The first look has the share of μ²; what it released decides whether the rest is spent.
    """
    early = 1 / (mu * math.sqrt(share))
    late = 1 / (mu * math.sqrt(1 - share))
    x, y = early * GRID, late * GRID
    first = normal(x - counts[0], early)
    stopped = first[x <= cut]
    both = np.outer(first[x > cut], normal(y - counts[1], late))
    density = np.concatenate([stopped, both.ravel()])
    widths = np.concatenate(
        [np.full(len(stopped), early * STEP), np.full(both.size, early * late * STEP**2)]
    )
    return density, widths


@pytest.mark.parametrize("mu", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
@pytest.mark.parametrize("cut", [-math.inf, -0.5, 0.7])
@pytest.mark.parametrize("moved", [(1.0, 1.0), (1.0, 0.0), (0.0, 1.0), (1.0, -1.0)])
def test_adaptive_looks_keep_the_profile_of_their_total(
    mu: float, share: float, cut: float, moved: tuple[float, float]
) -> None:
    without, volume = adaptive_law((0.0, 0.0), mu, share, cut)
    present, _ = adaptive_law(moved, mu, share, cut)
    for epsilon in (0.0, 0.3, 1.0):
        allowed = gaussian_delta(epsilon, mu) + 1e-4  # of the grid
        assert excess(present, without, epsilon, volume) <= allowed
        assert excess(without, present, epsilon, volume) <= allowed


def test_the_profile_of_adaptive_looks_is_reached() -> None:
    """Both counts differ and both looks are made: the bound is exact."""
    without, volume = adaptive_law((0.0, 0.0), 1.0, 0.4, -math.inf)
    present, _ = adaptive_law((1.0, 1.0), 1.0, 0.4, -math.inf)
    assert excess(present, without, 0.5, volume) == pytest.approx(
        gaussian_delta(0.5, 1.0), rel=1e-3
    )


def facts_law(price: Price, columns: int, alone: bool) -> tuple[np.ndarray, np.ndarray]:
    """The joint law of a tiny table: a released count, and whether new names were released.

    ``alone`` says whether the person, who has a name of their own in every column, is in the table.
    """
    deviation = 1 / price.mu
    chance = 0.5 * math.erfc(price.level / math.sqrt(2))
    silent = (1 - chance) ** (columns * LOOKS) if alone else 1.0
    density = normal(deviation * GRID - float(alone), deviation)
    whole = np.concatenate([density * silent, density * (1 - silent)])
    return whole, np.full(len(whole), deviation * STEP)


@pytest.mark.parametrize("epsilon", [0.05, 0.5, 2.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-2])
@pytest.mark.parametrize("columns", [1, 5])
def test_the_joint_law_keeps_the_price(epsilon: float, delta: float, columns: int) -> None:
    price = Price.of(epsilon, delta, columns)
    present, volume = facts_law(price, columns, True)
    absent, _ = facts_law(price, columns, False)
    worst = max(excess(present, absent, epsilon, volume), excess(absent, present, epsilon, volume))
    assert worst <= delta * (1 + 1e-3)
    assert worst >= 0.5 * delta  # the price is not much more than what is true
