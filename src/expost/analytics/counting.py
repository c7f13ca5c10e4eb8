"""Counts to a relative error under a total budget: which group is looked at next, what it costs, what is released.

Guarantee: each group's count has sensitivity 1 under adding or removing a person with all their rows; looking at a group up to level n
costs its ε_n (or ρ_n), and groups add up (one person may be in all of them). What is refined next, and when to stop, depends on released
values only: this is the filter of ``budget.filter`` with one coordinate, and the total never exceeds the budget. Sums are exact.
Tests: ``tests/analytics/`` (law by enumeration, never overspends, coverage).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from expost.analytics.intervals import StoppingRule, make_rule
from expost.analytics.noise_levels import GaussianLevels, LaplaceLevels, NoiseLevels, geometric_grid
from expost.errors import InvalidInput
from expost.privacy.conversions import gaussian_for
from expost.randomness.source import Randomness
from expost.rationals import exact_positive, round_down

GIVEN, RACE = "given", "race"
FIRST_LOOK = Fraction(1, 5)  # share of the budget that a race spends on looking at every group once
_FIRST_COST = {"laplace": 0.001, "gaussian": 0.0005}
_LEAST = 1e-12  # of ε, about: below, noise is beyond what the samplers draw (2^50), which must be known before anything is charged
_LEAST_COST = {"laplace": Fraction(_LEAST), "gaussian": Fraction(1, 2**81)}
_PATIENCE = (
    10  # in the given order a group may cost at most this part of the budget, unless told otherwise
)


@dataclass(frozen=True)
class Answer:
    """A released count: estimate, interval, and what the group cost."""

    group: str
    estimate: float
    low: float
    high: float
    spent: float

    def as_dict(self) -> dict[str, Any]:
        return vars(self) | {}


@dataclass(frozen=True)
class CountingJob:
    """The public settings of a counting job."""

    levels: NoiseLevels
    rule: StoppingRule
    total: Fraction
    order: str
    cap: float


def make_job(
    groups: int,
    *,
    within: float,
    epsilon: float,
    delta: float | None,
    confidence: float,
    rule: str,
    ratio: float,
    order: str,
    max_group: float | None,
) -> CountingJob:
    """Levels, stop rule and limits for this many groups; touches no data."""
    if order not in (GIVEN, RACE):
        raise InvalidInput("order", order, "give 'given' or 'race'")
    law = "laplace" if delta is None else "gaussian"
    total = (
        exact_positive(epsilon, "epsilon")
        if delta is None
        else Fraction(gaussian_for(float(epsilon), delta).rho)
    )
    default_cap = total if order == RACE else total / _PATIENCE
    cap = min(total, default_cap if max_group is None else _cap_cost(max_group, delta))
    if cap < _LEAST_COST[law]:
        raise InvalidInput(
            "epsilon" if max_group is None else "max_group_epsilon",
            float(cap),
            f"too little for any noise: give ≥ {_LEAST:g}",
        )
    first = min(
        cap,
        max(_LEAST_COST[law], total * FIRST_LOOK / max(1, groups))
        if order == RACE
        else Fraction(_FIRST_COST[law]),
    )
    grid = geometric_grid(round_down(first), round_down(cap), ratio)
    levels: NoiseLevels = LaplaceLevels(grid) if law == "laplace" else GaussianLevels(grid)
    return CountingJob(
        levels, make_rule(levels, within, confidence, rule), total, order, float(cap)
    )


def _cap_cost(max_group: float, delta: float | None) -> Fraction:
    """A cap per group given as ε, in the unit of the levels."""
    limit = exact_positive(max_group, "max_group_epsilon")
    return limit if delta is None else Fraction(gaussian_for(float(limit), delta).rho)


class Counting:
    """A running job: iterate over it to get answers as they are released; afterwards ``unanswered`` and ``spent`` are final."""

    def __init__(
        self,
        job: CountingJob,
        groups: Sequence[str],
        counts: npt.NDArray[np.int64],
        randomness: Randomness,
    ) -> None:
        self._job, self._groups = job, groups
        self._estimates = job.levels.estimates(counts, randomness)
        self._level = np.full(len(groups), -1)
        self._answered: set[int] = set()
        self._spent = Fraction(0)

    def __iter__(self) -> Iterator[Answer]:
        walk = self._race() if self._job.order == RACE else self._in_order()
        for group in walk:
            self._answered.add(group)
            yield self._answer(group)

    @property
    def spent(self) -> Fraction:
        """What has been looked at so far, exactly."""
        return self._spent

    @property
    def remaining(self) -> Fraction:
        return self._job.total - self._spent

    @property
    def unanswered(self) -> list[Answer]:
        """The other groups that were looked at, at their last level; their intervals hold at all levels at once."""
        return [
            self._answer(group) for group in range(len(self._groups)) if group not in self._answered
        ]

    def _answer(self, group: int) -> Answer:
        level = int(self._level[group])
        if level < 0:
            return Answer(self._groups[group], math.nan, 0.0, math.inf, 0.0)
        widths = (
            self._job.rule.half_widths
            if group in self._answered
            else self._job.rule.open_half_widths
        )
        estimate, width = float(self._estimates[level, group]), float(widths[level])
        low, high = max(0.0, estimate - width), max(0.0, estimate + width)
        return Answer(
            self._groups[group], max(0.0, estimate), low, high, self._job.levels.costs[level]
        )

    def _refine(self, group: int) -> bool:
        """Look at the next level of a group, if there is one and the budget pays for it."""
        costs, level = self._job.levels.costs, int(self._level[group])
        if level + 1 >= len(costs):
            return False
        price = Fraction(costs[level + 1]) - (Fraction(costs[level]) if level >= 0 else 0)
        if self._spent + price > self._job.total:
            return False
        self._spent += price
        self._level[group] = level + 1
        return True

    def _good(self, group: int) -> bool:
        level = int(self._level[group])
        return level >= 0 and bool(self._estimates[level, group] >= self._job.rule.least[level])

    def _in_order(self) -> Iterator[int]:
        """One group after another, each until it is good, hopeless, or unaffordable."""
        for group in range(len(self._groups)):
            while not self._good(group):
                if self._hopeless(group) or not self._refine(group):
                    break
            if self._good(group):
                yield group

    def _hopeless(self, group: int) -> bool:
        """Even the upper end of the interval would not be good at the last level."""
        level = int(self._level[group])
        if level < 0:
            return False
        upper = self._estimates[level, group] + self._job.rule.open_half_widths[level]
        return bool(upper < self._job.rule.least[-1])

    def _race(self) -> Iterator[int]:
        """Look at all groups once, then always refine the one whose estimate says it is the cheapest to finish."""
        started = [group for group in range(len(self._groups)) if self._refine(group)]
        waiting = [(self._cost_to_finish(group), group) for group in started]
        heapq.heapify(waiting)
        while waiting:
            cost, group = heapq.heappop(waiting)
            if self._good(group):
                yield group
            elif math.isfinite(cost) and self._refine(group):
                heapq.heappush(waiting, (self._cost_to_finish(group), group))

    def _cost_to_finish(self, group: int) -> float:
        """What the estimate says is still to be paid; infinite if no level would do."""
        level, costs = int(self._level[group]), self._job.levels.costs
        enough = int(np.searchsorted(-self._job.rule.least, -self._estimates[level, group]))
        return (
            math.inf if enough >= len(costs) else max(0.0, costs[max(enough, level)] - costs[level])
        )
