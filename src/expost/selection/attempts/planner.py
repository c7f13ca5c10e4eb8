"""The search for a schedule: which attempts to make, in which order.

Given levels, settings, δ and a belief, the planner minimises the expected total ε (relative to
what a level costs by itself, averaged over the scenarios) subject to a chance of passing of at
least ``PASS`` in every scenario. Runs count a little, too. It moves one attempt at a time: a larger
or smaller overhead, fewer low levels, more copies, another share of δ, until no single move helps.

Everything here is public and computed before data is read. The schedule affects the cost only: the
charges of each attempt hold whatever the schedule is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from expost.arrays import Floats
from expost.errors import InvalidInput
from expost.rationals import count_of
from expost.selection.attempts.belief import Belief
from expost.selection.attempts.chances import chances_of
from expost.selection.attempts.estimates import Estimates, estimates_for
from expost.selection.attempts.schedule import Attempt, Ladder, Schedule

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
    """Plan the attempts of a job.

    Parameters
    ----------
    ladder : Ladder
        Levels, typical promises and numbers of copies.
    delta : float or None
        The job's total δ; None under pure DP.
    belief : Belief, optional
        Which shares of the settings may pass; by default a robust spread.
    attempts : int, optional
        The most attempts that are allowed, by default ``ATTEMPTS``.

    Returns
    -------
    Schedule
        The shares of δ sum to 1.
    """
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
        self.estimates: Estimates = estimates_for(ladder, delta, float(self.overheads[0]))
        self.rates = np.array(ladder.epsilons)
        self.copies = np.array(ladder.copies, dtype=float)
        self.shares = belief.shares
        self.pure = delta is None
        self._known: dict[tuple[int, int, int], tuple[Floats, Floats]] = {}
        self.alone = self._alone()
        scale = np.array([self.alone[each.level] for each in belief.scenarios])
        self.weights = belief.weights / scale

    def _alone(self) -> Floats:
        """Return what each level costs without any level before it, at a small overhead."""
        found = []
        for level in range(len(self.rates)):
            attempt = Attempt(float(self.rates[level]) * 0.1, level, 1, 1.0)
            found.append(float(self.estimates.charges(attempt, np.ones(1))[0, 0]))
        return np.array(found)

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
                    self._value([*moves[:number], each, *moves[number + 1 :]], penalty)
                    for each in options
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
        found = []
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
                found.append(near)
        return found

    def _value(self, moves: list[_Move], penalty: float) -> float:
        """Return the expected relative cost, with δ shared in proportion to the moves' shares."""
        given = _SHARES[[each.share for each in moves]]
        excess = math.log(float(given.sum()))
        going_on, total = np.ones(len(self.shares)), np.zeros(len(self.shares))
        for move in moves:
            costs, miss = self._costs(move)
            # A share that is smaller by the factor ``excess`` costs as much as between two shares.
            place = move.share + 2 * excess / math.log(2.0)
            low = min(max(math.floor(place), 0), len(_SHARES) - 2)
            part = min(max(place - low, 0.0), 2.0)
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
        miss = np.prod([self._costs(each)[1] for each in moves], axis=0)
        return float(1 - miss.max())

    def schedule(self, moves: list[_Move]) -> Schedule:
        """Return the moves as attempts whose shares of δ sum to 1 (rounded down)."""
        given = _SHARES[[each.share for each in moves]]
        shares = given / given.sum() * (1 - 2.0**-40)
        return Schedule(
            tuple(
                Attempt(
                    float(f"{self.overheads[each.overhead]:.4g}"),
                    each.first,
                    each.repeats,
                    float(share),
                )
                for each, share in zip(moves, shares, strict=True)
            )
        )
