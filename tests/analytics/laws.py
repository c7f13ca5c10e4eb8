"""The laws that the counting job is about, written down once more from the theory.

What tests compare the code with.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def laplace(epsilon: float, values: npt.ArrayLike) -> Floats:
    """P(Z = z) ∝ e^{−ε|z|} on the integers."""
    p = np.exp(-epsilon)
    return np.asarray((1 - p) / (1 + p) * p ** np.abs(np.asarray(values)))


def gaussian(variance: float, values: npt.ArrayLike) -> Floats:
    """P(Z = z) ∝ e^{−z²/(2·variance)} on the integers."""
    reach = np.arange(-int(40 * variance**0.5) - 40, int(40 * variance**0.5) + 41)
    return np.asarray(
        np.exp(-np.square(np.asarray(values)) / (2 * variance))
        / np.exp(-np.square(reach) / (2 * variance)).sum()
    )


def keep(coarse: float, fine: float) -> float:
    """How often noise is kept on the way from ε = fine to ε = coarse.

    (p_b/p_a)·((1−p_a)/(1−p_b))².
    """
    a, b = np.exp(-coarse), np.exp(-fine)
    return float(b / a * ((1 - a) / (1 - b)) ** 2)


def kernel(coarse: float, fine: float, values: npt.NDArray[np.int64]) -> Floats:
    """K[i, j].

    The chance to go from values[i] at the finer level to values[j] at the coarser one.
    """
    stay = keep(coarse, fine)
    return np.asarray(
        (1 - stay) * laplace(coarse, values[None, :] - values[:, None]) + stay * np.eye(len(values))
    )


def path(costs: Sequence[float], noise: Sequence[int]) -> float:
    """P(Z_0 = noise[0], …, Z_n = noise[n]) of noise reduction, coarse to fine, for the first n+1 of
    the costs.
    """
    chance = float(laplace(costs[len(noise) - 1], noise[-1]))
    for level in range(len(noise) - 1):
        stay = keep(costs[level], costs[level + 1])
        step = noise[level] - noise[level + 1]
        chance *= (1 - stay) * float(laplace(costs[level], step)) + stay * (step == 0)
    return chance
