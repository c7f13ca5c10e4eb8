"""Probabilities of the drop level, and sums over it, for pricing and planning.

The level is k = k₀ + G with G ~ Geom(e^{−ε′h}). A copy of rate γ is kept with probability
e^{−γhk}. In this module ``overhead`` and ``rates`` are per step: ε′h and γh.

Sums over k are split into cells of consecutive levels; the mass of a cell has a closed form, and
the last cell is infinite. In each cell a function that falls with k is bounded above by its value
at the first level, and a function that grows by its value at the last level.

Tests: ``tests/theorems/test_plan.py``, ``tests/selection/test_renyi_charges.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, expm1, log

import numpy as np
import numpy.typing as npt

from expost.arrays import Floats

_FINEST = 0.01  # width of the first cell, times the fastest rate
_TAIL = 60.0  # the last, infinite cell begins where the mass has fallen by e^{−60}


def cell_edges(fastest: float, slowest: float, growth: float) -> Floats:
    """Return the first level of each cell."""
    first, last = max(1.0, _FINEST / fastest), _TAIL / slowest
    unit = (
        np.arange(0.0, min(ceil(1.0 / (growth - 1.0)), ceil(last)) + 1.0)
        if first == 1.0
        else np.array([0.0])
    )
    start = max(first, unit[-1])
    count = max(0, ceil(log(last / start) / log(growth))) + 1 if last > start else 1
    return np.unique(np.concatenate([unit, np.ceil(start * growth ** np.arange(count))]))


def shared_cell_edges(fastest: float, overhead: float) -> Floats:
    """Return cells that problems with equal rates and different overheads have in common.

    The end depends on the overhead only through a power of 64, so that bounds computed cell by
    cell can be reused (:mod:`expost.selection.renyi.competitor_bounds`).
    """
    octaves = max(1, ceil(log(fastest / overhead) / log(64.0))) if overhead < fastest else 1
    return cell_edges(2 * fastest, fastest * 64.0**-octaves, 1.1)


def log_cell_masses(edges: Floats, overhead: float, rate: float, minimum: int = 0) -> Floats:
    """Return ln of Σ P(G = k)·e^{−rate·(k₀+k)} over each cell.

    The cells are [edge, next edge); the last one is infinite.
    """
    decay = overhead + rate
    width = np.append(np.diff(edges), np.inf)
    shape = np.log(-np.expm1(-decay * width))  # no cancellation where a cell is short
    return shape - decay * edges + log_keep_probability(overhead, rate, minimum)


def log_keep_probability(overhead: float, rate: float, minimum: int = 0) -> float:
    """Return ln τ, the log-probability that a copy is kept.

    τ = (1−e^{−ε′h})·e^{−γhk₀}/(1−e^{−(ε′+γ)h}).
    """
    return log(expm1(-overhead) / expm1(-(overhead + rate))) - rate * minimum


def probability_nothing(
    overhead: float,
    rates: npt.ArrayLike,
    copies: npt.ArrayLike,
    minimum: int = 0,
    *,
    growth: float = 1.002,
) -> tuple[float, float]:
    """Return a lower and an upper bound of the probability that no copy is kept.

    The probability is Σ_k P(k)·Π_g (1 − e^{−γ_g·h·k})^{T_g}; the product grows with k.
    """
    rate, count = np.asarray(rates, dtype=float), np.asarray(copies, dtype=float)
    if not rate.all():  # copies of rate 0 are kept at every level
        return 0.0, 0.0
    edges = cell_edges(float(rate.max()) + overhead, overhead, growth)
    masses = np.exp(log_cell_masses(edges, overhead, 0.0))
    firsts = minimum + edges
    lasts = np.append(firsts[1:] - 1.0, np.inf)
    bounds = []
    for levels in (firsts, lasts):
        total = np.zeros(len(levels))
        with np.errstate(divide="ignore", invalid="ignore"):
            for one_rate, number in zip(rate, count, strict=True):
                total += number * np.log1p(-np.exp(-one_rate * levels))
        bounds.append(float(masses @ np.exp(total)))
    return max(0.0, bounds[0] * (1 - 1e-9)), min(1.0, bounds[1] * (1 + 1e-9))


@dataclass(frozen=True, eq=False)
class LevelLattice:
    """The drop level as the Rényi pricing needs it, for groups of equal copies."""

    overhead: float
    rates: Floats
    copies: Floats
    minimum: int
    edges: Floats
    log_masses: Floats
    log_masses_nothing: Floats
    keeping: Floats
    log_keep: Floats
    nothing: float

    @classmethod
    def build(
        cls, overhead: float, rates: npt.ArrayLike, copies: npt.ArrayLike, minimum: int = 0
    ) -> LevelLattice:
        """Compute the masses and probabilities; see the class for the parameters."""
        rate, count = np.asarray(rates, dtype=float), np.asarray(copies, dtype=float)
        edges = shared_cell_edges(float(rate.max()), overhead)
        return cls(
            overhead=overhead,
            rates=rate,
            copies=count,
            minimum=minimum,
            edges=edges,
            log_masses=np.array(
                [log_cell_masses(edges, overhead, one_rate, minimum) for one_rate in rate]
            ),
            log_masses_nothing=log_cell_masses(edges, overhead, 0.0),
            keeping=np.exp(-rate[:, None] * (minimum + edges)),
            log_keep=np.array(
                [log_keep_probability(overhead, one_rate, minimum) for one_rate in rate]
            ),
            nothing=probability_nothing(overhead, rate, count, minimum)[1],
        )
