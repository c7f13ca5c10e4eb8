"""Noise paths in floating point, for simulations only.

Tests: ``tests/mechanisms/test_noise_paths.py``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from expost.arrays import Floats


def simulate_laplace_paths(
    scales: Sequence[float], count: int, generator: np.random.Generator
) -> Floats:
    """Return independent continuous Laplace paths in floating point, for simulations only.

    The step from a finer to a coarser scale keeps the noise with probability (fine/coarse)², and
    otherwise adds fresh Laplace noise.

    ``scales``: decreasing scales, coarse to fine. ``generator``: the source of random numbers.
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

    ``variances``: decreasing variances, coarse to fine. ``generator``: the source of random
    numbers.
    """
    path = np.empty((len(variances), count))
    path[-1] = generator.normal(0.0, np.sqrt(variances[-1]), count)
    for level in range(len(variances) - 2, -1, -1):
        path[level] = path[level + 1] + generator.normal(
            0.0, np.sqrt(variances[level] - variances[level + 1]), count
        )
    return path
