"""Random dropping without data: which copies of the candidates are kept, and with which chances.

A level k = k₀ + G with G ~ Geom(e^{−ε′h}) is drawn once. Then every copy of candidate i is kept
with probability e^{−γ_i·h·k}. All coins are exact; h = 1 under pure DP. The number kept among the
copies of a group is binomial, and the kept copies are a uniform subset of that size, so the time of
a draw depends on the number of copies kept. The level and the kept copies are secret; their law
(:class:`DropLaw`) is public.

Pricing and planning need its probabilities, where ``overhead`` and ``rates`` are per step: ε′h and
γh. Sums over k are split into cells of consecutive levels; the mass of a cell has a closed form,
and the last cell is infinite. In each cell a function that falls with k is bounded above by its
value at the first level, one that grows by its value at the last. For planning only:
:func:`run_counts`.

Tests: ``tests/statistical/test_selectors.py`` (the draws against the enumerated law),
``tests/theorems/test_pure.py``, ``tests/theorems/test_renyi.py``, ``tests/theorems/test_plan.py``,
``tests/selection/test_renyi_charges.py``.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from math import ceil, expm1, log
from typing import Any

import numpy as np
import numpy.typing as npt

from expost.arrays import Floats
from expost.errors import InvalidCandidate, InvalidInput
from expost.privacy.guarantees import PureDP, RenyiDP
from expost.randomness.coins import binomial_exp, geometric, subset
from expost.randomness.source import Randomness
from expost.rationals import Number, exact, round_down, round_up
from expost.selection.candidate import Candidate, CandidateGroup

METHODS = ("sharp", "closed-form", "paper")


@dataclass(frozen=True)
class ChargeKind:
    """The kind of charge that is wanted."""

    delta: float | None
    orders: tuple[float, ...]
    method: str

    @classmethod
    def check(cls, delta: Number | None, order: object, method: str) -> ChargeKind | None:
        """Return the claim that a selector's settings ask for, or None for pure DP."""
        if method not in METHODS:
            raise InvalidInput("method", method, "give one of " + ", ".join(METHODS))
        if delta is None and order is None:
            return None
        if delta is not None and order is not None:
            raise InvalidInput(
                "order",
                order,
                "give delta for a stand-alone claim, or order for a filter, not both",
            )
        if delta is not None:
            if not 0 < exact(delta, "delta") < 1:
                raise InvalidInput(
                    "delta",
                    delta,
                    "give 0 < delta < 1; Rényi guarantees imply nothing at delta = 0",
                )
            if round_down(exact(delta, "delta")) == 0:
                raise InvalidInput(
                    "delta", type(delta).__name__, "give at least 5e-324, the smallest float"
                )
            return cls(round_down(exact(delta, "delta")), (), method)
        listed: list[Any] = list(order) if isinstance(order, (list, tuple)) else [order]
        return cls(None, RenyiDP(tuple(listed), (0.0,) * len(listed)).orders, method)


@dataclass(frozen=True)
class DropLaw:
    """The law of what is kept. It is public and the same for every data set."""

    groups: tuple[CandidateGroup, ...]
    rates: tuple[Fraction, ...]
    overhead: Fraction
    minimum: int

    def draw(self, candidates: Sequence[Candidate], randomness: Randomness) -> list[int]:
        """Draw the kept copies."""
        # One level for all candidates: the coins are dependent, as the proof needs.
        level = self.minimum + geometric(self.overhead, randomness)
        kept: list[int] = []
        for group, rate in zip(self.groups, self.rates, strict=True):
            count = binomial_exp(group.copies, rate * level, randomness)
            kept.extend(_members(candidates, group, subset(group.copies, count, randomness)))
        return sorted(kept)

    @property
    def copies(self) -> int:
        """The number of copies in all groups."""
        return sum(group.copies for group in self.groups)


def pure_rates(groups: Sequence[CandidateGroup]) -> tuple[Fraction, ...]:
    """Return the drop rates under pure DP: γ_i = ε_i, or a larger one if the candidate has it."""
    rates = []
    for group in groups:
        epsilon = group.guarantee.size
        rate = epsilon if group.drop_rate is None else exact(group.drop_rate, "drop_rate")
        if rate < epsilon:
            raise InvalidCandidate(
                "drop_rate",
                group.drop_rate,
                f"under pure DP give at least the candidate's ε = {float(epsilon)}",
            )
        rates.append(rate)
    return tuple(rates)


def pure_levels(groups: Sequence[CandidateGroup], extra: Sequence[Fraction]) -> list[PureDP]:
    """Return one charge per group: its ε plus ``extra``, rounded up."""
    return [
        PureDP(round_up(group.guarantee.size + more), group.guarantee.neighbours)
        for group, more in zip(groups, extra, strict=True)
    ]


def _members(
    candidates: Sequence[Candidate], group: CandidateGroup, copies: Sequence[int]
) -> list[int]:
    """Return the candidate to which each copy of the group belongs."""
    if group.copies == len(group.members):
        return [group.members[copy] for copy in copies]
    ends = list(accumulate(candidates[member].repeats for member in group.members))
    return [group.members[bisect_right(ends, copy)] for copy in copies]


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
    cell can be reused (:mod:`expost.selection.renyi_charges`).
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
    # The product grows with k: first levels bound it from below, last levels from above.
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
    # The generating function Π(1 + p(z−1))^T at the roots of unity, inverted by one FFT.
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
    log_factorials = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1.0, 200.0)))])
    for row, (centre, spread) in enumerate(zip(mean, variance, strict=True)):
        if centre < 50:
            log_mass = -centre + np.arange(200) * math.log(max(centre, 1e-300)) - log_factorials
            reached = np.minimum(np.cumsum(np.exp(log_mass)), 1.0)
            table[row] = np.append(reached, np.ones(len(values) - 200))
        else:
            scaled = (values + 0.5 - centre) / math.sqrt(2 * spread)
            table[row] = [0.5 * math.erfc(-deviation) for deviation in scaled]
    return values, table
