"""What looks at groups cost a person who is in at most m of them, exactly.

The charge is the sum of the m largest group costs (``refinement`` has the theorem).
Tests: ``tests/analytics/test_refinement.py``, ``tests/theorems/test_continued_paths.py``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from expost.analytics.refinement_noise import NoiseLevels, geometric_grid
from expost.arrays import Floats
from expost.randomness.source import Randomness

ENOUGH = 64  # at this cost per unit of sensitivity noise is 0 but for a chance of e^{−64}
_PATH_REACH, _PATH_RATIO = 32, 1.1  # of a path that later questions may continue


@dataclass(frozen=True)
class GroupPaths:
    """Noisy values of all groups at the costs of a whole path, and what was paid for so far.

    Secret, like the values themselves. ``paid`` is the last step that was looked at, −1 for none.
    A later question looks further along the same path (``asked_before``).
    """

    costs: tuple[float, ...]
    noisy: Floats = field(repr=False)
    paid: npt.NDArray[np.int64] = field(repr=False)

    @classmethod
    def beyond(
        cls, levels: NoiseLevels, values: npt.NDArray[np.int64], randomness: Randomness
    ) -> GroupPaths:
        """Draw a path at these levels and at finer ones, up to 32 times the last cost."""
        last, most = levels.costs[-1], float(ENOUGH * levels.sensitivity)
        finer = geometric_grid(last, max(last, min(most, last * _PATH_REACH)), _PATH_RATIO)[1:]
        costs = (*levels.costs, *finer)
        noisy = replace(levels, costs=costs).estimates(values, randomness)
        return cls(costs, noisy, np.full(len(values), -1))

    def charge(self, most_groups: int) -> Fraction:
        """Return what was paid for the looks so far: the sum of the m largest group costs."""
        return Charge(self.costs, len(self.paid), most_groups, path=self).spent


class Charge:
    """The running charge of a job: the sum of the m largest group costs, exactly.

    Costs are floats, that is dyadic rationals: sums are made in integers of their common unit.
    """

    def __init__(
        self,
        costs: Sequence[float],
        groups: int,
        most_groups: int,
        path: GroupPaths | None = None,
    ) -> None:
        self.steps = tuple(costs) if path is None else path.costs  # all that may be paid
        exact = [Fraction(cost) for cost in self.steps]
        self._unit = math.lcm(*(cost.denominator for cost in exact))
        self._costs = [int(cost * self._unit) for cost in exact]
        self._most, self._all = most_groups, most_groups >= groups
        self.level = np.full(groups, -1)
        self._step_of = np.searchsorted(self.steps, costs)  # of each level
        self.paid = np.full(groups, -1) if path is None else path.paid.copy()  # steps
        self._at = [int((self.paid == step).sum()) for step in range(len(self.steps))]
        self._sum = self._largest(self._at)

    @property
    def spent(self) -> Fraction:
        """The charge of all looks so far."""
        return Fraction(self._sum, self._unit)

    def after(self, group: int, level: int) -> Fraction:
        """Return what the charge would be if ``group`` were looked at up to ``level``."""
        previous = int(self.paid[group])
        step = max(previous, int(self._step_of[level]))
        if self._all:
            old = self._costs[previous] if previous >= 0 else 0
            return Fraction(self._sum + self._costs[step] - old, self._unit)
        at = list(self._at)
        if previous >= 0:
            at[previous] -= 1
        at[step] += 1
        return Fraction(self._largest(at), self._unit)

    def at_most(self, level: int) -> Fraction:
        """Return the charge if all groups were looked at up to ``level``: no sum is larger."""
        step = int(self._step_of[level])
        above = self._at[step + 1 :]
        at = [0] * step + [len(self.paid) - sum(above)] + above
        return Fraction(self._largest(at), self._unit)

    @property
    def free_level(self) -> int:
        """The level of the m-th most expensive group, −1 if fewer than m groups were looked at."""
        return self._level_of(self._most)

    @property
    def outweighed(self) -> int:
        """The highest level at which a group adds nothing: m others are there or above."""
        return self._level_of(self._most + 1)

    def _level_of(self, rank: int) -> int:
        """The level of the most expensive group but ``rank`` − 1, −1 if it was not looked at."""
        for step in range(len(self._at) - 1, -1, -1):
            rank -= self._at[step]
            if rank <= 0:
                return int(self.level_at(step))
        return -1

    def level_at(self, step: Any) -> Any:
        """The highest level that is paid if this step of the path is."""
        return np.searchsorted(self._step_of, step, side="right") - 1

    def pay(self, groups: npt.NDArray[np.int64], level: int) -> None:
        """Record looks at ``groups`` up to ``level``."""
        self.level[groups] = level
        step = int(self._step_of[level])
        more = groups[self.paid[groups] < step]
        for previous, count in zip(*np.unique(self.paid[more], return_counts=True), strict=True):
            if previous >= 0:
                self._at[previous] -= int(count)
        self._at[step] += len(more)
        self.paid[more] = step
        self._sum = self._largest(self._at)

    def _largest(self, at: Sequence[int]) -> int:
        """The sum of the m largest: from the finest level down until m groups are counted."""
        total, left = 0, self._most
        for cost, count in zip(reversed(self._costs), reversed(at), strict=True):
            taken = min(left, count)
            total += taken * cost
            left -= taken
            if not left:
                break
        return total
