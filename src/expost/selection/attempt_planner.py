"""The search for a schedule: which attempts to make, in which order.

Given levels, settings, δ and a belief, the planner minimises the expected total ε (relative to
what a level costs by itself, averaged over the scenarios) subject to a chance of passing of at
least ``PASS`` in every scenario. Runs count a little, too. It moves one attempt at a time: a larger
or smaller overhead, fewer low levels, more copies, another share of δ, until no single move helps.

Everything here is public and computed before data is read. The schedule affects the cost only: the
charges that are paid come from :class:`AboveThreshold` itself. The search uses estimates of them:
all attempts of a job drop a level at the same rate, so the bounds on competitors (the costly part
of pricing) are computed once, at a few orders and shifts for each level.
Tests: ``tests/selection/test_attempts.py``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Protocol

import numpy as np

from expost.arrays import Floats
from expost.errors import InvalidInput
from expost.html_tables import HtmlTable, Loss
from expost.privacy.charges import Charges
from expost.rationals import count_of
from expost.selection.above_threshold import AboveThreshold
from expost.selection.attempts import (
    Attempt,
    Belief,
    Ladder,
    ReachRow,
    Schedule,
    chances_of,
    reach_of,
)
from expost.selection.drop_law import log_cell_masses, log_keep_probability
from expost.selection.renyi_charges import SHIFT_GRID, known_ratios, least_epsilon, log_sum

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
        self._losses = np.array([float(guarantee.size) for guarantee in ladder.guarantees])

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
    """Estimates of (ε, δ) charges: the smaller of (T1) and (T3) for a level, (T3) for nothing."""

    def __init__(self, ladder: Ladder, delta: float, least_overhead: float) -> None:
        self._delta = delta
        selector = AboveThreshold(overhead=least_overhead, at_least=0.0, delta=delta)
        everything = Attempt(least_overhead, 0, 1, 1.0)
        self._problem = problem = selector.renyi_problem(ladder.candidates(everything))
        self._levels = [self._of_level(level) for level in range(len(ladder.epsilons))]
        # (T3): levels × shifts × cells.
        self._shifts = np.array([problem.shift(index) for index in range(0, SHIFT_GRID, _STRIDE)])
        self._ratios = known_ratios(problem, self._shifts)
        self._cumulated = np.cumsum(problem.copies[:, None, None] * self._ratios, axis=0)

    def _of_level(self, level: int) -> _Points:
        """Choose points near the order and shift that suit a level by itself."""
        problem, orders, curve = self._problem, self._problem.orders, self._problem.curves[level]
        best = orders[np.argmin(2 * curve - math.log(self._delta / 100) / (orders - 1))]
        points, step = [], float(problem.step)
        for by in _ORDERS:
            order_index = min(int(np.searchsorted(orders, best * by)), len(orders) - 1)
            for times in _SHIFTS:
                natural = curve[order_index] / problem.rates[level]
                points.append((order_index, max(1, round(natural * times / step)) * step))
        problem.competitors.remember((orders[order_index], shift) for order_index, shift in points)
        factors = np.array([problem.competitors.factors("sharp", *point) for point in points])
        order_indices = [order_index for order_index, _ in points]
        return _Points(
            orders=orders[order_indices],
            shifts=np.array([shift for _, shift in points]),
            divergences=curve[order_indices],
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


ATTEMPTS = 10
"""Attempts of a planned schedule, unless the caller allows fewer."""

PASS = 0.99
"""Least chance of passing in every scenario of the belief."""

MOST_ATTEMPTS = 64
_GROWTH = 1.25  # ratio of neighbouring overheads
_SHARES = 2.0 ** -np.arange(0.5, 10.0, 0.5)  # shares of δ that are tried
_MOST_REPEATS = 16
_SWEEPS = 6
_RUN_COST = 5e-5  # cost of one run, relative to the charge of the cheapest level


@dataclass(frozen=True)
class _Move:
    """An attempt in the search: places on the grids of overheads and shares, level, repeats."""

    overhead: int
    first: int
    repeats: int
    share: int


def plan_attempts(
    ladder: Ladder,
    *,
    delta: float | None,
    belief: Belief | None = None,
    attempts: int | None = None,
) -> Schedule:
    """Plan the attempts of a job."""
    count = ATTEMPTS if attempts is None else count_of(attempts, "attempts", at_least=1)
    if count > MOST_ATTEMPTS:
        raise InvalidInput("attempts", attempts, f"give at most {MOST_ATTEMPTS}")
    believed = belief or Belief.default(len(ladder.epsilons), min(ladder.copies))
    search = _Search(ladder, delta, believed)
    moves = search.start(count)
    penalty = 8.0
    for _ in range(4):
        moves = search.improve(moves, penalty)
        if search.least_chance(moves) >= PASS:
            break
        penalty *= 6.0
    return search.schedule(moves)


class _Search:
    """Costs and chances of attempts, remembered, and the descent over them."""

    def __init__(self, ladder: Ladder, delta: float | None, belief: Belief) -> None:
        self.ladder, self.belief = ladder, belief
        least = ladder.epsilons[0] * 0.1
        steps = math.ceil(math.log(1.25 * ladder.epsilons[-1] / least) / math.log(_GROWTH))
        self.overheads = least * _GROWTH ** np.arange(steps + 1)
        assert ladder.pure or delta is not None
        self.estimates: Estimates = (
            PureEstimates(ladder)
            if delta is None
            else RenyiEstimates(ladder, delta, float(self.overheads[0]))
        )
        self.rates = np.array(ladder.epsilons)
        self.copies = np.array(ladder.copies, dtype=float)
        self.shares = belief.shares
        self.pure = delta is None
        self._known: dict[tuple[int, int, int], tuple[Floats, Floats]] = {}
        self.alone = self._alone()
        scale = np.array([self.alone[scenario.level] for scenario in belief.scenarios])
        self.weights = 1 / (len(scale) * scale)

    def _alone(self) -> Floats:
        """Return what each level costs without any level before it, at a small overhead."""
        options = []
        for level in range(len(self.rates)):
            attempt = Attempt(float(self.rates[level]) * 0.1, level, 1, 1.0)
            options.append(float(self.estimates.charges(attempt, np.ones(1))[0, 0]))
        return np.array(options)

    def start(self, count: int) -> list[_Move]:
        """Return overheads that rise geometrically and leave the lower levels behind."""
        low = 0.35 * self.rates[0]
        high = max(0.9 * self.rates[-1], 2 * low)
        moves = []
        for number in range(count):
            part = number / max(1, count - 1)
            overhead = low * (high / low) ** (part**1.5) if count > 1 else high
            first = int(np.searchsorted(self.rates, 0.4 * overhead))
            moves.append(
                _Move(
                    int(np.abs(np.log(self.overheads / overhead)).argmin()),
                    min(first, len(self.rates) - 1),
                    1 if part < 0.5 else 2,
                    min(len(_SHARES) - 1, 3 + number),
                )
            )
        return moves

    def improve(self, moves: list[_Move], penalty: float) -> list[_Move]:
        """Move one attempt at a time as long as that helps."""
        for _ in range(_SWEEPS):
            before = moves
            for number in range(len(moves)):
                options = [moves[number], *self._near(moves[number])]
                values = [
                    self._value([*moves[:number], option, *moves[number + 1 :]], penalty)
                    for option in options
                ]
                chosen = options[int(np.argmin(values))]
                moves = [*moves[:number], chosen, *moves[number + 1 :]]
            if moves == before:
                break
        return moves

    def _near(self, move: _Move) -> list[_Move]:
        steps = [
            *((by, 0, 1, 0) for by in (-3, -1, 1, 3)),
            *((0, by, 1, 0) for by in (-1, 1)),
            *((0, 0, by, 0) for by in (0.5, 2)),
            *((0, 0, 1, by) for by in (-2, -1, 1, 2)),
            (1, 1, 1, 0),
            (-2, 0, 2, 0),
        ]
        schedules = []
        for overhead, first, repeats, share in steps:
            near = _Move(
                move.overhead + overhead,
                move.first + first,
                int(move.repeats * repeats),
                move.share + share,
            )
            if (
                0 <= near.overhead < len(self.overheads)
                and 0 <= near.first < len(self.rates)
                and 1 <= near.repeats <= _MOST_REPEATS
                and 0 <= near.share < len(_SHARES)
            ):
                schedules.append(near)
        return schedules

    def _value(self, moves: list[_Move], penalty: float) -> float:
        """Return the expected relative cost, with δ shared in proportion to the moves' shares."""
        given = _SHARES[[move.share for move in moves]]
        excess = math.log(float(given.sum()))
        going_on, total = np.ones(len(self.shares)), np.zeros(len(self.shares))
        for move in moves:
            costs, miss = self._costs(move)
            # A share that is smaller by the factor ``excess`` costs as much as between two shares.
            best_share = move.share + 2 * excess / math.log(2.0)
            low = min(max(math.floor(best_share), 0), len(_SHARES) - 2)
            part = min(max(best_share - low, 0.0), 2.0)
            total += going_on * ((1 - part) * costs[low] + part * costs[low + 1])
            going_on = going_on * miss
        total += going_on * penalty * self.alone[-1]
        return float(total @ self.weights)

    def _costs(self, move: _Move) -> tuple[Floats, Floats]:
        """Return the expected charge (share of δ × scenario) and the chance of a miss."""
        key = (move.overhead, move.first, move.repeats)
        if key not in self._known:
            attempt = Attempt(float(self.overheads[move.overhead]), move.first, move.repeats, 1.0)
            charges = self.estimates.charges(attempt, _SHARES)
            chances = chances_of(
                self.rates[move.first :],
                self.copies[move.first :] * move.repeats,
                attempt.overhead,
                self.shares[:, move.first :],
            )
            outcomes = np.column_stack([chances.passes, chances.miss])
            work = _RUN_COST * self.alone[0] * chances.runs
            self._known[key] = (charges @ outcomes.T + work, chances.miss)
        return self._known[key]

    def least_chance(self, moves: list[_Move]) -> float:
        """Return the chance of passing in the worst scenario."""
        miss = np.prod([self._costs(move)[1] for move in moves], axis=0)
        return float(1 - miss.max())

    def schedule(self, moves: list[_Move]) -> Schedule:
        """Return the moves as attempts whose shares of δ sum to 1 (rounded down)."""
        given = _SHARES[[move.share for move in moves]]
        shares = given / given.sum() * (1 - 2.0**-40)
        return Schedule(
            tuple(
                Attempt(
                    float(f"{self.overheads[move.overhead]:.4g}"),
                    move.first,
                    move.repeats,
                    float(share),
                )
                for move, share in zip(moves, shares, strict=True)
            )
        )


@dataclass(frozen=True, eq=False)
class GoalPlan:
    """Attempts, their charges, and what they are expected to reach."""

    ladder: Ladder
    schedule: Schedule
    charges: tuple[Charges, ...]
    reach: tuple[ReachRow, ...]

    @property
    def first_charges(self) -> list[float]:
        """The charge of each level in the first attempt that includes it."""
        first, charges = self.schedule.attempts[0].first, self.charges[0]
        return [float(charges[index].size) for index in range(len(self.ladder.epsilons) - first)]

    @property
    def misses(self) -> list[float]:
        """The charge of a miss of each attempt."""
        return [float(charge.nothing.size) for charge in self.charges]

    @property
    def worst_case(self) -> float:
        """The most that the job can cost: misses, then the worst outcome of an attempt."""
        before = [0.0, *accumulate(self.misses)]
        ends = [float(charge.worst_case.size) for charge in self.charges]
        return max(map(sum, zip(before, ends, strict=False)))

    def as_dict(self) -> dict[str, Any]:
        """Return the plan in plain JSON types."""
        return {
            "reach": [chance.as_dict() for chance in self.reach],
            "schedule": self.schedule.as_dict(),
            "price_of_a_miss": self.misses,
            "charges_to_a_bar": self.first_charges,
            "worst_case": self.worst_case,
        }

    def html_facts(self) -> dict[str, Any]:
        """Return what a notebook shows of the attempts."""
        return {
            "attempts": len(self.charges),
            "worst case ε": Loss(self.worst_case),
            "charge of a miss, by attempt": [Loss(miss) for miss in self.misses],
        }

    def html_table(self) -> HtmlTable:
        """Return what to expect, for a notebook."""
        columns = ["passing from level", "share that passes", "chance", "mean ε", "mean runs"]
        rows = [
            (chance.level, chance.share, chance.p_pass, Loss(chance.epsilon_mean), chance.runs_mean)
            for chance in self.reach
        ]
        return HtmlTable("To reach a goal, expect", columns, rows)


def plan_goal(
    ladder: Ladder,
    delta: float,
    attempts: int | None = None,
    expected_shares: Sequence[float] | None = None,
) -> GoalPlan:
    """Plan the attempts to reach a goal, and price them as :class:`AboveThreshold` will."""
    belief = None
    if expected_shares is not None:
        belief = Belief.of_shares(len(ladder.epsilons), expected_shares)
    schedule = plan_attempts(ladder, delta=delta, belief=belief, attempts=attempts)
    charges = tuple(
        schedule.selector(number, 0.0, delta=delta).charges(ladder.candidates(attempt))
        for number, attempt in enumerate(schedule.attempts)
    )
    sizes = [
        np.array([*(float(charge[k].size) for k in range(len(charge))), float(charge.nothing.size)])
        for charge in charges
    ]
    return GoalPlan(ladder, schedule, charges, tuple(reach_of(ladder, schedule, sizes)))
