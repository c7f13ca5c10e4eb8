"""How many runs random dropping will make: the distribution of the number of copies kept.

For planning only; no guarantee depends on it. Tests: ``tests/theorems/test_plan.py``.

How many copies of a candidate find a good output (``theorem:goodness-guarantee``).

Public numbers only. Tests: ``tests/theorems/test_plan.py``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, exp, log

import numpy as np

from expost.arrays import Floats
from expost.errors import InvalidInput
from expost.rationals import Number, exact_positive
from expost.selection.drop_law import (
    DropLaw,
    cell_edges,
    log_cell_masses,
    log_keep_probability,
    probability_nothing,
)

_EXACT_UP_TO = 2000  # copies; above it the number kept at a level is taken as Poisson or normal


@dataclass(frozen=True, eq=False)
class RunCounts:
    """The distribution of the number of runs, given that something is kept."""

    copies: int
    mean: float
    mean_per_draw: float
    nothing: float
    values: Floats
    cumulative: Floats

    def quantile(self, chance: float) -> int:
        """Return the smallest number of runs that is not exceeded with this probability."""
        index = int(np.searchsorted(self.cumulative, chance))
        return int(self.values[min(index, len(self.values) - 1)])


def run_counts(law: DropLaw) -> RunCounts:
    """Return the distribution of the number of runs under a drop law, given at least one."""
    overhead, rates = float(law.overhead), np.array([float(rate) for rate in law.rates])
    copies = np.array([float(group.copies) for group in law.groups])
    keep = [math.exp(log_keep_probability(overhead, rate, law.minimum)) for rate in rates]
    per_draw = float(copies @ keep)
    nothing = sum(probability_nothing(overhead, rates, copies, law.minimum)) / 2
    edges = cell_edges(float(rates.max()) + overhead, overhead, 1.04)
    masses = np.exp(log_cell_masses(edges, overhead, 0.0))
    middles = law.minimum + np.floor((edges + np.append(edges[1:], edges[-1] + 1)) / 2 - 0.5)
    keeping = np.exp(-rates[:, None] * middles)
    exact = law.copies <= _EXACT_UP_TO
    values, table = _exact(copies, keeping) if exact else _approximate(copies, keeping)
    cumulative = masses @ table
    above_zero = cumulative - cumulative[0]
    total = max(1.0 - cumulative[0], 1e-300)
    mean = per_draw / max(1.0 - nothing, 1e-300)
    return RunCounts(
        law.copies, mean, per_draw, nothing, values, np.minimum(above_zero / total, 1.0)
    )


def _exact(copies: Floats, keeping: Floats) -> tuple[Floats, Floats]:
    """Return P(N ≤ n) at each level for n = 0 … copies.

    Uses the discrete Fourier transform of the generating function.
    """
    size = int(copies.sum()) + 1
    roots = np.exp(-2j * np.pi * np.arange(size // 2 + 1) / size)
    transform = np.ones((keeping.shape[1], len(roots)), dtype=complex)
    for count, chance in zip(copies, keeping, strict=True):
        transform *= (1 + chance[:, None] * (roots[None, :] - 1)) ** count
    masses = np.clip(np.fft.irfft(transform, size, axis=1), 0.0, 1.0)
    return np.arange(size, dtype=float), np.minimum(np.cumsum(masses, axis=1), 1.0)


def _approximate(copies: Floats, keeping: Floats) -> tuple[Floats, Floats]:
    """Return P(N ≤ n) at each level on a logarithmic list of n.

    N is taken as Poisson for means below 50 and as normal above.
    """
    total = float(copies.sum())
    values = np.unique(np.concatenate([np.arange(200.0), np.ceil(np.geomspace(200.0, total, 400))]))
    mean = copies @ keeping
    variance = np.maximum((copies[:, None] * keeping * (1 - keeping)).sum(axis=0), 1e-12)
    table = np.empty((len(mean), len(values)))
    for row, (centre, spread) in enumerate(zip(mean, variance, strict=True)):
        if centre < 50:
            log_mass = -centre + np.arange(200) * math.log(max(centre, 1e-300)) - _log_factorials()
            reached = np.minimum(np.cumsum(np.exp(log_mass)), 1.0)
            table[row] = np.append(reached, np.ones(len(values) - 200))
        else:
            scaled = (values + 0.5 - centre) / math.sqrt(2 * spread)
            table[row] = [0.5 * math.erfc(-deviation) for deviation in scaled]
    return values, table


def _log_factorials() -> Floats:
    """Return ln n! for n = 0 … 199."""
    return np.concatenate([[0.0], np.cumsum(np.log(np.arange(1.0, 200.0)))])


def repeats_for(
    success: Number,
    failure: Number,
    epsilon: Number,
    overhead: Number,
    drop_rate: Number | None = None,
) -> int:
    """Return the number of copies with which a good output is found with probability 1 − β."""
    alpha, beta = exact_positive(success, "success"), exact_positive(failure, "failure")
    if alpha >= 1 or beta >= 1:
        raise InvalidInput(
            "success, failure", (success, failure), "give probabilities strictly between 0 and 1"
        )
    rate = exact_positive(epsilon if drop_rate is None else drop_rate, "epsilon")
    logarithm = log(2.0) - log(beta)
    log_copies = (
        float(rate / exact_positive(overhead, "overhead")) * logarithm + log(logarithm) - log(alpha)
    )
    if log_copies < 600:
        return ceil(Fraction(exp(log_copies) * (1 + 1e-12)))
    return int(2 ** ceil(log_copies / log(2.0)))
