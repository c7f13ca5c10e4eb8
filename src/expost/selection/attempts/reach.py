"""What a schedule is expected to reach: chance of passing, total ε, and number of runs.

Charges are those that will be paid; chances are for orientation (:mod:`.chances`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from expost.arrays import Floats
from expost.selection.attempts.belief import Belief
from expost.selection.attempts.chances import chances_of
from expost.selection.attempts.schedule import Ladder, Schedule

REPORTED_SHARES = (0.5, 0.2, 0.1, 0.05, 0.02, 0.01)


@dataclass(frozen=True)
class ReachRow:
    """What to expect if a share ``share`` of the settings passes from level ``level`` on."""

    level: float
    share: float
    p_pass: float
    epsilon_mean: float
    epsilon_p90: float
    runs_mean: float

    def as_dict(self) -> dict[str, Any]:
        """Return the row in plain JSON types."""
        return dict(vars(self))


def reach_of(
    ladder: Ladder,
    schedule: Schedule,
    charges: Sequence[Floats],
    shares: Sequence[float] = REPORTED_SHARES,
) -> list[ReachRow]:
    """Return one row per level and share.

    Parameters
    ----------
    ladder, schedule
        What is asked.
    charges : sequence of arrays
        For each attempt, the charge of each of its levels and, last, of nothing.
    shares : sequence of float
        Shares of the settings that pass.
    """
    belief = Belief.of_shares(len(ladder.epsilons), shares)
    outcomes, epsilons, passed, runs = _outcomes(ladder, schedule, charges, belief.shares)
    rows = []
    for place, scenario in enumerate(belief.scenarios):
        chances = outcomes[place]
        rows.append(
            ReachRow(
                level=ladder.epsilons[scenario.level],
                share=scenario.share,
                p_pass=float(chances[passed].sum()),
                epsilon_mean=float(chances @ epsilons),
                epsilon_p90=_quantile(epsilons, chances, 0.9),
                runs_mean=float(runs[place]),
            )
        )
    return rows


def _outcomes(
    ladder: Ladder, schedule: Schedule, charges: Sequence[Floats], shares: Floats
) -> tuple[Floats, Floats, Any, Floats]:
    """Return chances (scenario × outcome of the job), total ε and pass flag of each, and runs."""
    rates, copies = np.array(ladder.epsilons), np.array(ladder.copies, dtype=float)
    going_on, runs, paid = np.ones(len(shares)), np.zeros(len(shares)), 0.0
    columns: list[Floats] = []
    totals: list[float] = []
    for attempt, costs in zip(schedule.attempts, charges, strict=True):
        first = attempt.first
        found = chances_of(
            rates[first:], copies[first:] * attempt.repeats, attempt.overhead, shares[:, first:]
        )
        columns.extend(going_on * found.passes[:, level] for level in range(len(rates) - first))
        totals.extend(paid + float(cost) for cost in costs[:-1])
        runs += going_on * found.runs
        going_on, paid = going_on * found.miss, paid + float(costs[-1])
    columns.append(going_on)
    totals.append(paid)
    passed = np.arange(len(totals)) < len(totals) - 1
    return np.array(columns).T, np.array(totals), passed, runs


def _quantile(values: Floats, chances: Floats, level: float) -> float:
    order = np.argsort(values)
    place = int(np.searchsorted(np.cumsum(chances[order]), level * chances.sum()))
    return float(values[order][min(place, len(values) - 1)])
