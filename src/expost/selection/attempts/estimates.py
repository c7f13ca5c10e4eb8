"""Fast estimates of the charges of many attempts over one ladder of levels, for the planner.

All attempts of a job drop a level at the same rate, so the bounds on competitors (the costly part
of pricing) are shared: they are computed once, at a few orders and shifts for each level, and
every attempt is estimated from them. The charges that are paid come from :class:`AboveThreshold`
itself. Tests: ``tests/selection/test_attempts.py``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from expost.arrays import Floats
from expost.selection.above_threshold import AboveThreshold
from expost.selection.attempts.schedule import Attempt, Ladder
from expost.selection.drop_level import log_cell_masses, log_keep_probability
from expost.selection.renyi.profile_charges import known_ratios, least_epsilon
from expost.selection.renyi.sharp_charges import SHIFT_GRID, log_sum

_ORDERS = (0.8, 1.0, 1.25)  # times the order that suits a level by itself
_SHIFTS = (0.55, 0.7, 0.85, 1.0, 1.2)  # times ε(α)/γ
_STRIDE = 4  # of the shifts at which (T3) is estimated


class Estimates(Protocol):
    """Charges of attempts, by share of δ."""

    def charges(self, attempt: Attempt, delta_shares: Floats) -> Floats:
        """Return charges of shape (shares, levels + 1); the last column is "nothing"."""


class PureEstimates:
    """Exact charges under pure DP: 2ε + ε′ for a level, ε′ for nothing. There is no δ."""

    def __init__(self, ladder: Ladder) -> None:
        self._losses = np.array([float(each.size) for each in ladder.promises])

    def charges(self, attempt: Attempt, delta_shares: Floats) -> Floats:
        levels = 2 * self._losses[attempt.first :] + attempt.overhead
        row = np.append(levels, attempt.overhead)
        return np.broadcast_to(row, (len(delta_shares), len(row)))


@dataclass(frozen=True, eq=False)
class _Points:
    """Orders and shifts at which one outcome is priced, and the bounds on its competitors there.

    ``cumulated`` holds Σ copies·F over the levels up to each one: (points, levels, cells).
    """

    orders: Floats
    shifts: Floats
    divergences: Floats
    own: Floats
    cumulated: Floats


class RenyiEstimates:
    """Estimates of the (ε, δ) charges: the smaller of (T1) and (T3) for a level, (T3) for nothing.

    Parameters
    ----------
    ladder : Ladder
        The levels.
    delta : float
        The job's δ.
    least_overhead : float
        The smallest overhead that will be asked for.
    """

    def __init__(self, ladder: Ladder, delta: float, least_overhead: float) -> None:
        self._delta = delta
        selector = AboveThreshold(overhead=least_overhead, target=0.0, delta=delta)
        everything = Attempt(least_overhead, 0, 1, 1.0)
        self._problem = problem = selector.renyi_problem(ladder.candidates(everything))
        self._levels = [self._of_level(level) for level in range(len(ladder.epsilons))]
        # (T3): levels × shifts × cells.
        self._shifts = np.array([problem.shift(place) for place in range(0, SHIFT_GRID, _STRIDE)])
        self._ratios = known_ratios(problem, self._shifts)
        self._cumulated = np.cumsum(problem.copies[:, None, None] * self._ratios, axis=0)

    def _of_level(self, level: int) -> _Points:
        """Choose points near the order and shift that suit a level by itself."""
        problem, orders, curve = self._problem, self._problem.orders, self._problem.curves[level]
        best = orders[np.argmin(2 * curve - math.log(self._delta / 100) / (orders - 1))]
        points, step = [], float(problem.step)
        for by in _ORDERS:
            place = min(int(np.searchsorted(orders, best * by)), len(orders) - 1)
            for times in _SHIFTS:
                natural = curve[place] / problem.rates[level]
                points.append((place, max(1, round(natural * times / step)) * step))
        factors = np.array([problem.competitors.factors("sharp", *each) for each in points])
        places = [place for place, _ in points]
        return _Points(
            orders=orders[places],
            shifts=np.array([shift for _, shift in points]),
            divergences=curve[places],
            own=factors[:, level],
            cumulated=np.cumsum(problem.copies[:, None] * factors, axis=1),
        )

    def charges(self, attempt: Attempt, delta_shares: Floats) -> Floats:
        problem, first, overhead = self._problem, attempt.first, attempt.overhead
        h, edges = float(problem.step), problem.lattice.edges
        rates = problem.rates[first:]
        log_keep = np.array([log_keep_probability(overhead * h, rate * h) for rate in rates])
        total = float(
            np.logaddexp.reduce(np.log(problem.copies[first:] * attempt.repeats) + log_keep)
        )
        log_delta = np.log(self._delta * delta_shares)[:, None]
        earlier = 0.0 if first == 0 else self._cumulated[first - 1]
        columns: list[Floats] = []
        for level in range(first, len(problem.rates)):
            points, rate, keep = self._levels[level], problem.rates[level], log_keep[level - first]
            masses = log_cell_masses(edges, overhead * h, rate * h)
            before = 0.0 if first == 0 else points.cumulated[:, first - 1]
            others = attempt.repeats * (points.cumulated[:, level] - before) - points.own
            moment = (log_sum(masses + others) - keep + total) / (points.orders - 1)
            raw = points.shifts * (overhead + rate) + points.divergences + moment
            by_moments = (raw + _conversion(points.orders, log_delta)).min(axis=1)
            others = attempt.repeats * (self._cumulated[level] - earlier) - self._ratios[level]
            moment = log_sum(masses + others) - keep
            own = least_epsilon(problem.profiles[level], log_delta - total - moment)
            by_profiles = (self._shifts * (overhead + rate) + moment + own).min(axis=1)
            columns.append(np.minimum(by_moments, by_profiles))
        everything = attempt.repeats * (self._cumulated[-1] - earlier)
        masses = log_cell_masses(edges, overhead * h, 0.0)
        nothing = float((self._shifts * overhead + log_sum(masses + everything)).min())
        columns.append(np.full(len(delta_shares), nothing))  # a miss needs no δ
        return np.maximum(np.array(columns).T, 0.0)


def _conversion(orders: Floats, log_delta: Floats) -> Floats:
    return np.asarray(np.log1p(-1 / orders) - (log_delta + np.log(orders)) / (orders - 1))


def estimates_for(ladder: Ladder, delta: float | None, least_overhead: float) -> Estimates:
    """Return the estimates that suit the promises of a ladder."""
    if ladder.pure and delta is None:
        return PureEstimates(ladder)
    assert delta is not None
    return RenyiEstimates(ladder, delta, least_overhead)
