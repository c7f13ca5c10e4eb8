"""The outcomes of one attempt: their probabilities, and the expected number of runs.

At drop level x a copy of a level with rate γ is kept with probability e^{−γx}, and a kept copy
passes with probability p, the share of settings that passes. Runs are made level by level and end
with the first pass. The probabilities are integrals over x ~ Exp(ε′), taken by a midpoint rule:
they are for orientation and no charge depends on them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from expost.arrays import Floats

_POINTS = 120


@dataclass(frozen=True, eq=False)
class Chances:
    """Chances by scenario.

    Parameters
    ----------
    passes : array of shape (scenarios, levels)
        Probability that a copy of this level is released.
    miss : array of shape (scenarios,)
        Probability that nothing is released.
    runs : array of shape (scenarios,)
        Expected number of runs.
    """

    passes: Floats
    miss: Floats
    runs: Floats


def chances_of(rates: Floats, copies: Floats, overhead: float, shares: Floats) -> Chances:
    """Return the chances of one attempt.

    Parameters
    ----------
    rates : array of shape (levels,)
        Drop rates.
    copies : array of shape (levels,)
        Copies at each level.
    overhead : float
        ε′.
    shares : array of shape (scenarios, levels)
        Probability that a copy passes, if it is run.
    """
    edges = np.concatenate([[0.0], np.geomspace(1e-4, 60.0, _POINTS)])  # in units of 1/ε′
    masses = np.exp(-edges[:-1]) - np.exp(-edges[1:])
    middle = np.sqrt(np.maximum(edges[:-1], 1e-5) * edges[1:]) / overhead
    going_on = np.ones((len(shares), len(middle)))
    passes, runs = [], np.zeros(len(shares))
    for rate, count, share in zip(rates, copies, shares.T, strict=True):
        kept = np.exp(-rate * middle)[None, :]
        passing = np.minimum(share[:, None] * kept, 1 - 1e-12)
        none = np.exp(count * np.log1p(-passing))
        with np.errstate(divide="ignore", invalid="ignore"):
            made = np.where(share[:, None] > 0, (1 - none) / share[:, None], count * kept)
        runs += (going_on * made) @ masses
        passes.append((going_on * (1 - none)) @ masses)
        going_on = going_on * none
    return Chances(np.array(passes).T, going_on @ masses, runs)
