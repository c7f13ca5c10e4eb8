"""Noise paths: noise for one query at several levels, coarse to fine.

The levels are coupled so that seeing all levels up to level n costs as much as level n alone.

**Discrete Laplace** (Koufogiannis, Han and Pappas 2016; Whitehouse et al. 2019; here in exact
integer form). The finest noise is drawn first. The step from the finer p_b = e^{−ε_b/Δ} to the
coarser p_a = e^{−ε_a/Δ} (ε_a < ε_b) keeps the noise with probability (p_b/p_a)·((1−p_a)/(1−p_b))².
Otherwise it adds fresh discrete Laplace noise of parameter p_a. Each level then has exactly the
discrete Laplace distribution. The coarser levels are a function of the finest one and of coins that
do not depend on the data.

**Gaussian** (Brownian; Whitehouse et al. 2022). The estimate at variance T_n is the
inverse-variance average of independent releases of precision 1/T_n − 1/T_{n−1}. With discrete
Gaussians the composed cost is exactly ρ = Δ²/(2T_n).

The caller passes strictly decreasing scales or variances; they are not checked here.

Tests: ``tests/mechanisms/test_noise_paths.py`` (marginal and joint distributions by enumeration).
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from expost.arrays import Floats, Integers
from expost.randomness import coins, samplers
from expost.randomness.source import Randomness


def laplace_path(scales: Sequence[Fraction], randomness: Randomness) -> list[int]:
    """Return one path of discrete Laplace noise.

    Parameters
    ----------
    scales : sequence of Fraction
        Decreasing scales, coarse to fine.
    randomness : Randomness
        The source of random bits.

    Returns
    -------
    list of int
        The noise at each scale. Releasing all levels costs as much as the last one.
    """
    noise = coins.discrete_laplace(scales[-1], randomness)
    path = [noise]
    for finer, coarser in zip(reversed(scales[1:]), reversed(scales[:-1]), strict=True):
        if not keep_coin(1 / coarser, 1 / finer, randomness):
            noise += coins.discrete_laplace(coarser, randomness)
        path.append(noise)
    return path[::-1]


def keep_coin(coarse_rate: Fraction, fine_rate: Fraction, randomness: Randomness) -> bool:
    """Return True with probability (p_b/p_a)·((1−p_a)/(1−p_b))².

    Here p_a = e^{−coarse_rate} and p_b = e^{−fine_rate}, so p_a > p_b.

    Parameters
    ----------
    coarse_rate, fine_rate : Fraction
        Rates with 0 < coarse_rate < fine_rate.
    randomness : Randomness
        The source of random bits.

    Returns
    -------
    bool
        Whether the noise is kept.
    """
    if not coins.bernoulli_exp(fine_rate - coarse_rate, randomness):
        return False
    return all(_ratio_coin(coarse_rate, fine_rate, randomness) for _ in range(2))


def _ratio_coin(coarse_rate: Fraction, fine_rate: Fraction, randomness: Randomness) -> bool:
    """True with probability (1−p_a)/(1−p_b), by repeated turns.

    One turn gives True with probability 1−p_a and False with probability p_a·(1−p_b/p_a) = p_a−p_b.
    With probability p_b another turn follows.
    """
    while True:
        if not coins.bernoulli_exp(coarse_rate, randomness):
            return True
        if not coins.bernoulli_exp(fine_rate - coarse_rate, randomness):
            return False


def gaussian_path(variances: Sequence[Fraction], randomness: Randomness) -> list[Fraction]:
    """Return one path of Gaussian noise: weighted averages of independent discrete Gaussians.

    Parameters
    ----------
    variances : sequence of Fraction
        Decreasing variances, coarse to fine.
    randomness : Randomness
        The source of random bits.

    Returns
    -------
    list of Fraction
        The inverse-variance average at each level.
    """
    path: list[Fraction] = []
    precision = weighted = Fraction(0)
    for variance in variances:
        increment = 1 / variance - precision
        weighted += increment * coins.discrete_gaussian(1 / increment, randomness)
        precision = 1 / variance
        path.append(weighted / precision)
    return path


def laplace_paths(scales: Sequence[Fraction], count: int, randomness: Randomness) -> Integers:
    """Return many independent exact paths at once: :func:`laplace_path`, vectorised.

    Parameters
    ----------
    scales : sequence of Fraction
        Decreasing scales, coarse to fine.
    count : int
        How many paths.
    randomness : Randomness
        The source of random bits.

    Returns
    -------
    ndarray of int64
        Noise of shape (levels, count).
    """
    path = np.empty((len(scales), count), dtype=np.int64)
    path[-1] = samplers.discrete_laplace(scales[-1], count, randomness)
    for level in range(len(scales) - 2, -1, -1):
        keep = samplers.keep_coins(1 / scales[level], 1 / scales[level + 1], count, randomness)
        fresh = samplers.discrete_laplace(scales[level], count, randomness)
        path[level] = path[level + 1] + np.where(keep, 0, fresh)
    return path


def simulate_laplace_paths(
    scales: Sequence[float], count: int, generator: np.random.Generator
) -> Floats:
    """Return independent continuous Laplace paths in floating point, for simulations only.

    The step from a finer to a coarser scale keeps the noise with probability (fine/coarse)², and
    otherwise adds fresh Laplace noise.

    Parameters
    ----------
    scales : sequence of float
        Decreasing scales, coarse to fine.
    count : int
        How many paths.
    generator : numpy.random.Generator
        The source of random numbers.

    Returns
    -------
    ndarray of float64
        Noise of shape (levels, count).
    """
    path = np.empty((len(scales), count))
    path[-1] = generator.laplace(0.0, scales[-1], count)
    for level in range(len(scales) - 2, -1, -1):
        keep = generator.random(count) < (scales[level + 1] / scales[level]) ** 2
        path[level] = path[level + 1] + np.where(
            keep, 0.0, generator.laplace(0.0, scales[level], count)
        )
    return path


def simulate_gaussian_paths(
    variances: Sequence[float], count: int, generator: np.random.Generator
) -> Floats:
    """Return independent Brownian paths in floating point, for simulations only.

    Parameters
    ----------
    variances : sequence of float
        Decreasing variances, coarse to fine.
    count : int
        How many paths.
    generator : numpy.random.Generator
        The source of random numbers.

    Returns
    -------
    ndarray of float64
        Noise of shape (levels, count).
    """
    path = np.empty((len(variances), count))
    path[-1] = generator.normal(0.0, np.sqrt(variances[-1]), count)
    for level in range(len(variances) - 2, -1, -1):
        path[level] = path[level + 1] + generator.normal(
            0.0, np.sqrt(variances[level] - variances[level + 1]), count
        )
    return path
