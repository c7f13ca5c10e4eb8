"""A plan for reaching a bar, from public numbers only: what ``expost plan`` shows first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from expost.html_tables import HtmlTable, Loss, html_summary
from expost.privacy.charges import Charges
from expost.privacy.guarantees import Guarantee
from expost.selection.attempts.belief import Belief
from expost.selection.attempts.planner import plan_attempts
from expost.selection.attempts.reach import ReachRow, reach_of
from expost.selection.attempts.schedule import Ladder, Schedule


@dataclass(frozen=True, eq=False)
class BarPlan:
    """Attempts, their charges, and what they are expected to reach.

    Parameters
    ----------
    ladder : Ladder
        The levels.
    schedule : Schedule
        The attempts.
    charges : tuple of Charges
        Of each attempt: one outcome per level, and nothing.
    reach : tuple of ReachRow
        Chance of passing, total ε and runs, by level and share.
    """

    ladder: Ladder
    schedule: Schedule
    charges: tuple[Charges, ...]
    reach: tuple[ReachRow, ...]

    @property
    def first_charges(self) -> list[float]:
        """The charge of each level in the first attempt that includes it."""
        first, found = self.schedule.attempts[0].first, self.charges[0]
        return [float(found[place].size) for place in range(len(self.ladder.epsilons) - first)]

    @property
    def misses(self) -> list[float]:
        """The price of a miss of each attempt."""
        return [float(each.nothing.size) for each in self.charges]

    @property
    def worst_case(self) -> float:
        """The most that all attempts together could cost."""
        return sum(float(each.worst_case.size) for each in self.charges)

    def as_dict(self) -> dict[str, Any]:
        """Return the plan in plain JSON types."""
        return {
            "reach": [each.as_dict() for each in self.reach],
            "schedule": self.schedule.as_dict(),
            "price_of_a_miss": self.misses,
            "charges_to_a_bar": self.first_charges,
            "worst_case": self.worst_case,
        }

    def _repr_html_(self) -> str:
        """Return the plan for a notebook."""
        facts = {
            "attempts": len(self.charges),
            "worst case ε": Loss(self.worst_case),
            "price of a miss, by attempt": [Loss(each) for each in self.misses],
        }
        columns = ["passing from level", "share that passes", "chance", "mean ε", "mean runs"]
        rows = [
            (each.level, each.share, each.p_pass, Loss(each.epsilon_mean), each.runs_mean)
            for each in self.reach
        ]
        return html_summary("Plan to reach a target", facts, HtmlTable("Expect", columns, rows))


def plan_for_bar(
    epsilons: Sequence[float],
    promises: Sequence[Guarantee],
    copies: int,
    *,
    delta: float,
    expected_shares: Sequence[float] | None = None,
    attempts: int | None = None,
) -> BarPlan:
    """Plan a job that must reach a bar.

    Parameters
    ----------
    epsilons, promises
        The levels, ascending, and what a setting promises at each.
    copies : int
        Settings times repeats, at each level.
    delta : float
        The job's total δ.
    expected_shares : sequence of float, optional
        Shares of the settings that may pass, from some level on; by default a robust spread.
    attempts : int, optional
        The most attempts that are allowed.
    """
    ladder = Ladder(tuple(epsilons), tuple(promises), (copies,) * len(epsilons))
    belief = None
    if expected_shares is not None:
        belief = Belief.of_shares(len(epsilons), expected_shares)
    schedule = plan_attempts(ladder, delta=delta, belief=belief, attempts=attempts)
    charges = tuple(
        schedule.selector(number, 0.0, delta=delta).charges(ladder.candidates(attempt))
        for number, attempt in enumerate(schedule.attempts)
    )
    return BarPlan(ladder, schedule, charges, tuple(reach_of(ladder, schedule, _arrays(charges))))


def _arrays(charges: Sequence[Charges]) -> list[Any]:
    return [
        np.array([*(float(each[k].size) for k in range(len(each))), float(each.nothing.size)])
        for each in charges
    ]
