"""The drop level on its lattice: chances and sums over it, bounded cell by cell.

The level is k = k₀ + G, G ~ Geom(e^{−ε′h}); a copy of rate γ is kept with probability e^{−γhk}. Here ``overhead`` and ``rates`` are per
step, ε′h and γh. Sums over k run over cells of consecutive levels whose masses have closed forms, the last one endless; a
function that falls with k is bounded above by its value at the first level of each cell, one that grows by that at the last.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, expm1, log

import numpy as np
import numpy.typing as npt

from expost.arrays import Floats

_FINEST = 0.01  # of the fastest rate, in the first cell
_TAIL = 60.0  # e^{−60}: where the last, endless cell begins


def cell_edges(fastest: float, slowest: float, growth: float) -> Floats:
    """First levels of the cells: 0, then growing by ``growth`` until a mass of rate ``slowest`` has fallen by e^{−60}."""
    first, last = max(1.0, _FINEST / fastest), _TAIL / slowest
    unit = (
        np.arange(0.0, min(ceil(1.0 / (growth - 1.0)), ceil(last)) + 1.0)
        if first == 1.0
        else np.array([0.0])
    )
    start = max(first, unit[-1])
    count = max(0, ceil(log(last / start) / log(growth))) + 1 if last > start else 1
    return np.unique(np.concatenate([unit, np.ceil(start * growth ** np.arange(count))]))


def log_cell_masses(edges: Floats, overhead: float, rate: float, minimum: int = 0) -> Floats:
    """ln of Σ over each cell of P(G = k)·e^{−rate·(k₀+k)}; the cells are [edge, next edge), the last one endless."""
    decay = overhead + rate
    width = np.append(np.diff(edges), np.inf)
    shape = np.log(-np.expm1(-decay * width))  # no cancellation where a cell is short
    return shape - decay * edges + log_keep_probability(overhead, rate, minimum)


def log_keep_probability(overhead: float, rate: float, minimum: int = 0) -> float:
    """ln τ, the chance that a copy is kept: (1−e^{−ε′h})·e^{−γhk₀}/(1−e^{−(ε′+γ)h})."""
    return log(expm1(-overhead) / expm1(-(overhead + rate))) - rate * minimum


def probability_nothing(
    overhead: float,
    rates: npt.ArrayLike,
    copies: npt.ArrayLike,
    minimum: int = 0,
    *,
    growth: float = 1.002,
) -> tuple[float, float]:
    """A bracket of the chance that no copy is kept: Σ_k P(k)·Π_g (1 − e^{−γ_g·h·k})^{T_g}; the product grows with k."""
    rate, count = np.asarray(rates, dtype=float), np.asarray(copies, dtype=float)
    if not rate.all():  # a rate of 0 is kept at every level
        return 0.0, 0.0
    edges = cell_edges(float(rate.max()) + overhead, overhead, growth)
    masses = np.exp(log_cell_masses(edges, overhead, 0.0))
    firsts = minimum + edges
    lasts = np.append(firsts[1:] - 1.0, np.inf)
    bounds = []
    for levels in (firsts, lasts):
        total = np.zeros(len(levels))
        with np.errstate(divide="ignore", invalid="ignore"):
            for each, number in zip(rate, count, strict=True):
                total += number * np.log1p(-np.exp(-each * levels))
        bounds.append(float(masses @ np.exp(total)))
    return max(0.0, bounds[0] * (1 - 1e-9)), min(1.0, bounds[1] * (1 + 1e-9))


@dataclass(frozen=True, eq=False)
class Lattice:
    """Everything the Rényi pricing needs to know of the level and the keeping, for groups of equal copies."""

    overhead: float
    rates: Floats
    copies: Floats
    minimum: int
    log_masses: Floats  # groups × cells: ln Σ_cell P(k)·e^{−γhk}
    log_masses_nothing: Floats  # cells: the same without the factor of a winner
    keeping: Floats  # groups × cells: e^{−γhk} at the first level of the cell
    log_keep: Floats  # groups: ln τ
    nothing: float  # an upper bound of the chance that nothing is kept

    @classmethod
    def build(
        cls, overhead: float, rates: npt.ArrayLike, copies: npt.ArrayLike, minimum: int = 0
    ) -> Lattice:
        rate, count = np.asarray(rates, dtype=float), np.asarray(copies, dtype=float)
        edges = cell_edges(float(rate.max()) + overhead, overhead, 1.1)
        return cls(
            overhead=overhead,
            rates=rate,
            copies=count,
            minimum=minimum,
            log_masses=np.array([log_cell_masses(edges, overhead, each, minimum) for each in rate]),
            log_masses_nothing=log_cell_masses(edges, overhead, 0.0),
            keeping=np.exp(-rate[:, None] * (minimum + edges)),
            log_keep=np.array([log_keep_probability(overhead, each, minimum) for each in rate]),
            nothing=probability_nothing(overhead, rate, count, minimum)[1],
        )
