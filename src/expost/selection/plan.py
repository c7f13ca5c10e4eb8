"""What a selection will do, from its public settings alone: chances, run counts, repeats. No data, no charge.

Everything here is for planning and may use floating point: no guarantee rests on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import ceil, exp, log

import numpy as np
import numpy.typing as npt

from expost.errors import InvalidInput
from expost.rationals import Number, exact_positive

Floats = npt.NDArray[np.float64]


def level_cells(overhead: float, growth: float = 1.0005) -> Floats:
    """Edges 0, 1, 2, …, then growing by ``growth``, until the drop level passes them with chance below 1e-18."""
    last = 42.0 / overhead
    unit_cells = min(last, 1.0 / (growth - 1.0))
    edges = np.arange(0.0, ceil(unit_cells) + 1.0)
    if last > edges[-1]:
        count = ceil(log(last / edges[-1]) / log(growth))
        edges = np.concatenate([edges, np.ceil(edges[-1] * growth ** np.arange(1, count + 1))])
    return edges


def probability_nothing(
    overhead: float, rates: Sequence[float], copies: Sequence[int], minimum_drop_level: int = 0
) -> tuple[float, float]:
    """A bracket of the chance that no copy is kept: Σ_k P(k)·Π_g (1 − e^{−γ_g·k})^{T_g}.

    The product grows with k, so the ends of a cell bound it inside; the chance of a cell is e^{−ε′a} − e^{−ε′b}.
    """
    edges = level_cells(overhead)
    log_product = np.zeros(len(edges))
    lasts = np.append(edges[1:] - 1.0, np.inf)  # the last level inside each cell
    log_product_last = np.zeros(len(edges))
    with np.errstate(divide="ignore"):
        for rate, count in zip(rates, copies, strict=True):
            log_product += float(count) * np.log1p(-np.exp(-rate * (minimum_drop_level + edges)))
            log_product_last += float(count) * np.log1p(-np.exp(-rate * (minimum_drop_level + lasts)))
    survival = np.exp(-overhead * edges)
    chance = survival - np.append(survival[1:], 0.0)
    low, high = float(chance @ np.exp(log_product)), float(chance @ np.exp(log_product_last))
    return max(0.0, low), min(1.0, high)


def expected_runs(overhead: Number, rate: Number, minimum_drop_level: int = 0) -> float:
    """τ_i: how often one copy is expected to run, (1−e^{−ε′})·e^{−γk₀}/(1−e^{−(ε′+γ)})."""
    drop, gamma = float(overhead), float(rate)
    return float(np.expm1(-drop) / np.expm1(-(drop + gamma))) * exp(-gamma * minimum_drop_level)


def repeats_for(success: Number, failure: Number, epsilon: Number, overhead: Number, drop_rate: Number | None = None) -> int:
    """Copies T_i for which a good output is found with probability 1 − β (``theorem:goodness-guarantee``).

    ``success`` is α, the chance that one run of some candidate is good; ``failure`` is β. T_i = ⌈(1/α)·(2/β)^{ε_i/ε′}·ln(2/β)⌉,
    with the drop rate in the place of ε_i if it is larger. Rounded up.
    """
    alpha, beta = exact_positive(success, "success"), exact_positive(failure, "failure")
    if alpha >= 1 or beta >= 1:
        raise InvalidInput("success, failure", (success, failure), "give probabilities strictly between 0 and 1")
    exponent = exact_positive(epsilon if drop_rate is None else drop_rate, "epsilon") / exact_positive(overhead, "overhead")
    logarithm = log(2.0) - log(beta)
    log_copies = float(exponent) * logarithm + log(logarithm) - log(alpha)
    if log_copies < 600:
        return ceil(Fraction(exp(log_copies) * (1 + 1e-12)))
    return int(2 ** ceil(log_copies / log(2.0)))
