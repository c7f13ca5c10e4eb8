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

_ORDERS = (0.8, 1.0, 1.25)  # times the order that suits a level by itself
_SHIFTS = (0.55, 0.7, 0.85, 1.0, 1.2)  # times ε(α)/γ
_NOTHING_SHIFTS = 2.0 ** np.arange(-4.0, 4.5, 0.5)  # times the natural shift


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
    """Upper estimates of the (ε, δ) charges under Rényi DP.

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
        self._problem = selector.renyi_problem(ladder.candidates(everything))
        self._levels = [self._of_level(level) for level in range(len(ladder.epsilons))]
        self._nothing = self._of_nothing()

    def _of_level(self, level: int) -> _Points:
        """Choose points near the order and shift that suit a level by itself."""
        orders, curve = self._problem.orders, self._problem.curves[level]
        best = orders[np.argmin(2 * curve - math.log(self._delta / 100) / (orders - 1))]
        points = []
        for by in _ORDERS:
            place = min(int(np.searchsorted(orders, best * by)), len(orders) - 1)
            natural = curve[place] / self._problem.rates[level]
            points += [(place, natural * times) for times in _SHIFTS]
        return self._points(points, level)

    def _of_nothing(self) -> _Points:
        places = np.searchsorted(self._problem.orders, (64.0, 512.0, 8192.0))
        last = len(self._problem.orders) - 1
        shifts = self._problem.natural_shift * _NOTHING_SHIFTS
        return self._points([(min(int(each), last), s) for each in places for s in shifts], -1)

    def _points(self, points: list[tuple[int, float]], level: int) -> _Points:
        problem, step = self._problem, float(self._problem.step)
        rounded = [(place, max(1, round(shift / step)) * step) for place, shift in points]
        factors = np.array([problem.competitors.factors("sharp", *each) for each in rounded])
        weighted = problem.copies[:, None] * factors
        return _Points(
            orders=problem.orders[[place for place, _ in rounded]],
            shifts=np.array([shift for _, shift in rounded]),
            divergences=problem.curves[level, [place for place, _ in rounded]],
            own=factors[:, level],
            cumulated=np.cumsum(weighted, axis=1),
        )

    def charges(self, attempt: Attempt, delta_shares: Floats) -> Floats:
        problem, first, overhead = self._problem, attempt.first, attempt.overhead
        h, edges = float(problem.step), problem.lattice.edges
        rates = problem.rates[first:]
        log_keep = np.array([log_keep_probability(overhead * h, rate * h) for rate in rates])
        runs = np.log(problem.copies[first:] * attempt.repeats) + log_keep
        total = float(np.logaddexp.reduce(np.append(runs, 0.0)))
        log_delta = np.log(self._delta * delta_shares)[:, None]
        columns: list[Floats] = []
        for rate, keep, points in zip(rates, log_keep, self._levels[first:], strict=True):
            level = first + len(columns)
            others = attempt.repeats * self._between(points, first, level) - points.own
            masses = log_cell_masses(edges, overhead * h, rate * h)
            moment = (_log_sum(masses + others) - keep + total) / (points.orders - 1)
            raw = points.shifts * (overhead + rate) + points.divergences + moment
            columns.append((raw + _conversion(points.orders, log_delta)).min(axis=1))
        points = self._nothing
        others = attempt.repeats * self._between(points, first, len(problem.rates) - 1)
        moment = _log_sum(log_cell_masses(edges, overhead * h, 0.0) + others) + total
        raw = points.shifts * overhead + moment / (points.orders - 1)
        columns.append((raw + _conversion(points.orders, log_delta)).min(axis=1))
        return np.maximum(np.array(columns).T, 0.0)

    @staticmethod
    def _between(points: _Points, first: int, last: int) -> Floats:
        """Return Σ copies·F over the levels ``first`` to ``last``."""
        upto = points.cumulated[:, last]
        before = 0.0 if first == 0 else points.cumulated[:, first - 1]
        return np.asarray(upto - before)


def _conversion(orders: Floats, log_delta: Floats) -> Floats:
    return np.asarray(np.log1p(-1 / orders) - (log_delta + np.log(orders)) / (orders - 1))


def estimates_for(ladder: Ladder, delta: float | None, least_overhead: float) -> Estimates:
    """Return the estimates that suit the promises of a ladder."""
    if ladder.pure and delta is None:
        return PureEstimates(ladder)
    assert delta is not None
    return RenyiEstimates(ladder, delta, least_overhead)


def _log_sum(rows: Floats) -> Floats:
    """Return ln Σ exp along the last axis."""
    peak = rows.max(axis=-1, keepdims=True)
    return np.asarray(np.log(np.exp(rows - peak).sum(axis=-1)) + peak[..., 0])
