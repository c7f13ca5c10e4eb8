"""Noise paths: the same query at several noise levels, coarse to fine, such that seeing all levels up to n costs level n.

Discrete Laplace (Koufogiannis, Han and Pappas 2016; Whitehouse et al. 2019; here in exact integer form): the finest
noise is drawn first; going from the finer p_b = e^{−ε_b/Δ} to the coarser p_a = e^{−ε_a/Δ} (ε_a < ε_b) keeps it with
probability (p_b/p_a)·((1−p_a)/(1−p_b))² and otherwise adds fresh discrete Laplace noise of parameter p_a. Each level
then has exactly the discrete Laplace law, and the coarser levels are a function of the finest and of coins that do
not touch the data.

Gaussian (Brownian; Whitehouse et al. 2022): the estimate at variance T_n is the inverse-variance average of independent
releases of precision 1/T_n − 1/T_{n−1}; with discrete Gaussians the composed cost is exactly ρ = Δ²/(2T_n).

Tests: ``tests/mechanisms/test_noise_paths.py`` (marginals and joint law by enumeration).
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from expost.arrays import Floats, Integers
from expost.randomness import coins, samplers
from expost.randomness.source import Randomness


def laplace_path(scales: Sequence[Fraction], randomness: Randomness) -> list[int]:
    """Integer noise at decreasing ``scales`` (coarse to fine), coupled so that the last level pays for all."""
    noise = coins.discrete_laplace(scales[-1], randomness)
    path = [noise]
    for finer, coarser in zip(reversed(scales[1:]), reversed(scales[:-1]), strict=True):
        if not keep_coin(1 / coarser, 1 / finer, randomness):
            noise += coins.discrete_laplace(coarser, randomness)
        path.append(noise)
    return path[::-1]


def keep_coin(coarse_rate: Fraction, fine_rate: Fraction, randomness: Randomness) -> bool:
    """True with probability (p_b/p_a)·((1−p_a)/(1−p_b))², p_a = e^{−coarse_rate} > p_b = e^{−fine_rate}."""
    if not coins.bernoulli_exp(fine_rate - coarse_rate, randomness):
        return False
    return all(_ratio_coin(coarse_rate, fine_rate, randomness) for _ in range(2))


def _ratio_coin(coarse_rate: Fraction, fine_rate: Fraction, randomness: Randomness) -> bool:
    """True with probability (1−p_a)/(1−p_b): a geometric clock of p_a is 0 (True), or lies in [1, …) and is thinned.

    One turn: with probability 1−p_a True; with p_a·(1−p_b/p_a) = p_a−p_b False; with p_b start again.
    """
    while True:
        if not coins.bernoulli_exp(coarse_rate, randomness):
            return True
        if not coins.bernoulli_exp(fine_rate - coarse_rate, randomness):
            return False


def gaussian_path(variances: Sequence[Fraction], randomness: Randomness) -> list[Fraction]:
    """Noise at decreasing ``variances`` (coarse to fine): inverse-variance averages of independent discrete Gaussians."""
    path: list[Fraction] = []
    precision = weighted = Fraction(0)
    for variance in variances:
        increment = 1 / variance - precision
        weighted += increment * coins.discrete_gaussian(1 / increment, randomness)
        precision = 1 / variance
        path.append(weighted / precision)
    return path


def laplace_paths(scales: Sequence[Fraction], count: int, randomness: Randomness) -> Integers:
    """``count`` independent exact paths at once (levels × count): :func:`laplace_path`, vectorised."""
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
    """``count`` independent continuous Laplace paths (levels × count), in floating point: for simulations only.

    Going from a finer scale to a coarser one keeps the noise with probability (fine/coarse)², else adds fresh Laplace noise.
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
    """``count`` independent Brownian paths (levels × count), in floating point: for simulations only."""
    path = np.empty((len(variances), count))
    path[-1] = generator.normal(0.0, np.sqrt(variances[-1]), count)
    for level in range(len(variances) - 2, -1, -1):
        path[level] = path[level + 1] + generator.normal(
            0.0, np.sqrt(variances[level] - variances[level + 1]), count
        )
    return path
