"""Fast estimates of the charges of many attempts over one ladder of levels, for the planner.

All attempts of a job drop a level at the same rate, so the bounds on competitors (the costly part
of pricing) are shared: they are computed once, at a few dozen orders and shifts that a full search
found for some attempts, and every other attempt is estimated from them. The charges that are paid
come from :class:`AboveThreshold` itself. Tests: ``tests/selection/test_attempts.py``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Protocol

import numpy as np

from expost.arrays import Floats
from expost.selection.above_threshold import AboveThreshold
from expost.selection.attempts.schedule import Attempt, Ladder
from expost.selection.drop_level import log_cell_masses, log_keep_probability
from expost.selection.renyi.search import Problem, price

_AROUND = (0.85, 1.0, 1.18)  # orders and shifts tried around those that a full search found


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


class RenyiEstimates:
    """Upper estimates of the (ε, δ) charges under Rényi DP.

    Parameters
    ----------
    ladder : Ladder
        The levels.
    delta : float
        The job's δ.
    overheads : sequence of float
        Least and largest overhead that will be asked for.
    repeats : int
        Copies of a setting in the attempts from which the orders and shifts are taken.
    """

    def __init__(self, ladder: Ladder, delta: float, overheads: tuple[float, float]) -> None:
        self._delta = delta
        full = Attempt(overheads[0], 0, 1, 1.0)
        self._problem = _problem(ladder, full, delta)
        points = sorted(set(self._points(ladder, delta, overheads)))
        self._orders = np.array([self._problem.orders[place] for place, _ in points])
        self._shifts = np.array([shift for _, shift in points])
        self._divergences = np.array([self._problem.curves[:, place] for place, _ in points])
        self._factors = np.array(
            [self._problem.competitors.factors("sharp", place, shift) for place, shift in points]
        )

    def _points(
        self, ladder: Ladder, delta: float, overheads: tuple[float, float]
    ) -> Iterator[tuple[int, float]]:
        """Yield places of orders, and shifts, near the best ones of three attempts."""
        orders, step = self._problem.orders, float(self._problem.step)
        low, high = overheads
        for overhead in (low, math.sqrt(low * high), high):
            found = price(_problem(ladder, Attempt(overhead, 0, 1, 1.0), delta / 8))
            for order, shift in zip(found.orders, found.shifts, strict=True):
                for by in _AROUND:
                    place = min(int(np.searchsorted(orders, order * by)), len(orders) - 1)
                    for and_by in _AROUND:
                        yield place, max(1, round(shift * by * and_by / step)) * step

    def charges(self, attempt: Attempt, delta_shares: Floats) -> Floats:
        raw = self._raw(attempt)
        orders = self._orders
        log_delta = np.log(self._delta * delta_shares)[:, None]
        conversion = np.log1p(-1 / orders) - (log_delta + np.log(orders)) / (orders - 1)
        return np.maximum((raw[None] + conversion[:, :, None]).min(axis=1), 0.0)

    def _raw(self, attempt: Attempt) -> Floats:
        """Return the Rényi charges at every point: (points, levels + 1)."""
        problem, first = self._problem, attempt.first
        h = float(problem.step)
        rates, overhead = problem.rates[first:], attempt.overhead
        copies = problem.copies[first:] * attempt.repeats
        edges = problem.lattice.edges
        weighted = copies[:, None] * self._factors[:, first:]
        others = np.cumsum(weighted, axis=1) - self._factors[:, first:]
        masses = np.array([log_cell_masses(edges, overhead * h, rate * h) for rate in rates])
        moments = _log_sum(masses + others)
        log_keep = np.array([log_keep_probability(overhead * h, rate * h) for rate in rates])
        total = float(np.logaddexp.reduce(np.append(np.log(copies) + log_keep, 0.0)))
        gap = (self._orders - 1)[:, None]
        levels = (
            self._shifts[:, None] * (overhead + rates)
            + self._divergences[:, first:]
            + (moments - log_keep + total) / gap
        )
        nothing = _log_sum(log_cell_masses(edges, overhead * h, 0.0) + weighted.sum(axis=1))
        last = self._shifts * overhead + (nothing + total) / (self._orders - 1)
        return np.concatenate([levels, last[:, None]], axis=1)


def estimates_for(
    ladder: Ladder, delta: float | None, overheads: tuple[float, float]
) -> Estimates:
    """Return the estimates that suit the promises of a ladder."""
    if ladder.pure and delta is None:
        return PureEstimates(ladder)
    assert delta is not None
    return RenyiEstimates(ladder, delta, overheads)


def _problem(ladder: Ladder, attempt: Attempt, delta: float) -> Problem:
    selector = AboveThreshold(overhead=attempt.overhead, target=0.0, delta=delta)
    return selector.renyi_problem(ladder.candidates(attempt))


def _log_sum(rows: Floats) -> Floats:
    """Return ln Σ exp along the last axis."""
    peak = rows.max(axis=-1, keepdims=True)
    return np.asarray(np.log(np.exp(rows - peak).sum(axis=-1)) + peak[..., 0])
