"""Bounds on the noise of refinement levels, against exact laws.

One level: exact tails. Two neighbouring levels: the joint law of (z_{n−1}, z_n), by enumeration of
the discrete Laplace kernel, or of all releases of a Gaussian average. Every bound is compared at
many thresholds; tails below 1e-12 are left out.
"""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from scipy import stats

from expost.analytics import refinement_noise as tails
from expost.analytics.refinement_noise import GaussianLevels, LaplaceLevels
from tests.analytics import laws

LEAST = 1e-12
LAPLACE = [(0.5, 0.7), (0.3, 0.6, 0.61), (1.0, 3.0), (0.2, 0.21, 0.3), (2.0, 2.5, 6.0)]
GAUSSIAN = [
    (0.5, 1.0),
    (0.1, 0.12),
    (0.05, 4.0),
    (3.0, 6.0),
    (8.0, 9.0),
    (0.2, 0.5, 1.1),
    (0.4, 0.44, 0.484),
    (1.0, 5.0, 5.2),
    (0.02, 0.03, 3.0),
]


def laplace_pair(costs: tuple[float, ...], level: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Values of z_{n−1} and z_n and their joint chances."""
    coarse, fine = costs[level - 1], costs[level]
    values = np.arange(-int(45 / coarse) - 2, int(45 / coarse) + 3)
    joint = laws.laplace(fine, values)[:, None] * laws.kernel(coarse, fine, values)
    after, before = np.meshgrid(values, values, indexing="ij")
    return before.ravel().astype(float), after.ravel().astype(float), joint.ravel()


def gaussian_pair(
    costs: tuple[float, ...], level: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The same for averages of up to three discrete Gaussian releases."""
    values, chances, before = np.zeros(1), np.ones(1), 0.0
    earlier = values
    for cost in costs[: level + 1]:
        increment = cost - before
        reach = int(8.5 / (2 * increment) ** 0.5) + 2
        release = np.arange(-reach, reach + 1)
        earlier = np.repeat(values, len(release))
        values = (values[:, None] * before + release[None] * increment).ravel() / cost
        chances = (chances[:, None] * laws.gaussian(1 / (2 * increment), release)[None]).ravel()
        kept = chances > 1e-17
        earlier, values, chances, before = earlier[kept], values[kept], chances[kept], cost
    return earlier, values, chances


CASES = [
    *(("laplace", costs, level) for costs in LAPLACE for level in range(1, len(costs))),
    *(("gaussian", costs, level) for costs in GAUSSIAN for level in range(1, len(costs))),
]
LEVELS = {"laplace": LaplaceLevels, "gaussian": GaussianLevels}
PAIRS = {"laplace": laplace_pair, "gaussian": gaussian_pair}


@pytest.mark.parametrize(("law", "costs", "level"), CASES)
def test_a_jump_to_a_finer_level_is_bounded(law, costs, level):
    """P(z_n ≥ above, z_{n−1} < before). Catches a bound that takes the levels for independent."""
    levels = LEVELS[law](costs)
    earlier, values, chances = PAIRS[law](costs, level)
    fine, coarse = levels.scales[level], levels.scales[level - 1]
    tightest = 0.0
    for a, b in product((0.1, 0.5, 1, 1.7, 2.5, 4), (-4, -2, -1, -0.3, 0, 0.3, 0.8, 1.5, 2.5, 4)):
        above, before = a * fine, b * coarse
        exact = chances[(values >= above) & (earlier < before)].sum()
        reached = chances[earlier < before].sum()
        high = tails.upper(levels, level, np.array([above]))
        ends = np.array([above]), np.array([before])
        found = tails.after(levels, level, *ends, np.array([reached]), high)[0]
        assert exact <= found * (1 + 1e-9) + LEAST
        tightest = max(tightest, exact / found if exact > LEAST else 0.0)
    assert tightest > 0.05  # a bound that holds because it says nothing would pass otherwise


@pytest.mark.parametrize(("law", "costs", "level"), CASES)
def test_a_fall_at_a_finer_level_is_bounded(law, costs, level):
    """P(z_{n−1} ≥ above, z_n < below). Catches bands whose ends are taken at the wrong side."""
    levels = LEVELS[law](costs)
    earlier, values, chances = PAIRS[law](costs, level)
    fine, coarse = levels.scales[level], levels.scales[level - 1]
    tightest = 0.0
    for a, b in product((0.1, 0.4, 0.9, 1.6, 2.5, 4), (0.1, 0.5, 1, 1.7, 2.5, 4)):
        above, below = a * coarse, b * fine
        exact = chances[(earlier >= above) & (values < below)].sum()
        high = tails.upper(levels, level - 1, np.array([above]))
        ends = np.array([above]), np.array([below])
        found = tails.not_again(levels, level - 1, *ends, high)[0]
        assert exact <= found * (1 + 1e-9) + LEAST
        tightest = max(tightest, exact / found if exact > LEAST else 0.0)
    assert tightest > 0.05


@pytest.mark.parametrize(("law", "costs", "level"), CASES)
def test_single_tails_of_later_levels_are_bracketed(law, costs, level):
    """upper ≥ P(z_n ≥ x), lower ≤ P(z_n > x). Catches a normaliser that was left out."""
    levels = LEVELS[law](costs)
    _, values, chances = PAIRS[law](costs, level)
    for x in np.linspace(0.01, 5, 60) * levels.scales[level]:
        at_least, more = chances[values >= x - 1e-12].sum(), chances[values > x + 1e-12].sum()
        assert tails.upper(levels, level, np.array([x]))[0] >= at_least * (1 - 1e-9) - LEAST
        assert tails.lower(levels, level, np.array([x]))[0] <= more * (1 + 1e-9) + LEAST


@pytest.mark.parametrize("sigma", [0.15, 0.3, 0.5, 0.7, 1.0, 1.9, 4.2, 11.0])
def test_one_release_against_a_normal_variable(sigma):
    """Statements (a), (b) and (c) of the module, for every integer with a visible tail."""
    values = np.arange(-int(8 * sigma) - 2, int(8 * sigma) + 3)
    chances = laws.gaussian(sigma**2, values)
    tail = chances[::-1].cumsum()[::-1]
    normal = lambda x: stats.norm.sf(np.asarray(x) / sigma)  # noqa: E731
    seen = tail > 1e-13
    positive, whole = seen & (values >= 1), seen & (values >= 0)
    assert (tail[positive] <= normal(values[positive] - 0.5) * (1 + 1e-9)).all()
    assert (tail[whole] >= normal(values[whole]) * (1 - 1e-9) - 1e-15).all()
    assert (tail[seen] <= normal(values[seen] - 1) * (1 + 1e-9)).all()


@pytest.mark.parametrize("sigma", [0.3, 0.7, 1.0])
def test_half_a_step_is_not_enough_below_zero(sigma):
    """The test of the test: (a) is false for k ≤ 0, so a shift of ½ may not be used there."""
    values = np.arange(-40, 41)
    at_least = laws.gaussian(sigma**2, values)[values >= 0].sum()
    assert at_least > stats.norm.sf(-0.5 / sigma) * (1 + 1e-3)


@pytest.mark.parametrize("rates", [(0.5, 0.7), (0.01, 0.011), (1.0, 4.0)])
def test_the_chance_of_fresh_noise(rates):
    """Against the law of the path, from above and tightly."""
    coarse, fine = rates
    exact = 1 - laws.keep(coarse, fine)
    assert exact <= tails.fresh(fine, coarse) <= exact + 1e-9
