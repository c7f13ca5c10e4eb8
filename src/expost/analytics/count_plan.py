"""What a request would cost, before anything is asked: public settings only, no data.

For a group of a given size the plan says at which cost its looks would stop if the noise were 0,
and how many groups of that size the total can answer: all of them if each needs at most total/m,
else total divided by the cost of one. Tests: ``tests/analytics/test_plan.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from expost import plots
from expost.analytics.pricing import ASSUMED_ROWS, AUTO, CheckedCount
from expost.analytics.refinement import Job
from expost.analytics.request import KEYS_CAP, CountRequest, check_request, with_usual_cap
from expost.html_tables import HtmlTable, Loss, html_summary

SIZES = (100, 1_000, 10_000, 100_000, 1_000_000)
MANY_GROUPS = 10**6  # if neither the number of groups nor a cap is known


@dataclass(frozen=True)
class SizePlan:
    """Groups of one size: what one needs, and how many can be answered (None: all of them)."""

    size: int
    cost: float | None
    groups: int | None


@dataclass(frozen=True)
class QueryPlan:
    """The plan of a request. ``unit`` is ``epsilon`` or ``rho``, as for what is spent."""

    sizes: tuple[SizePlan, ...]
    unit: str
    total: float
    for_values: float
    max_groups_per_user: int
    assumed: bool
    threshold: int | None
    smallest: float
    assumed_rows: int | None = None

    def _repr_html_(self) -> str:
        """Return the plan for a notebook."""
        facts = {
            f"total ({self.unit})": Loss(self.total),
            f"for values ({self.unit})": Loss(self.for_values),
            "groups per person": self.max_groups_per_user,
            "assumed": self.assumed,
        }
        rows = [
            (planned.size, None if planned.cost is None else Loss(planned.cost), planned.groups)
            for planned in self.sizes
        ]
        columns = ["size", f"cost of one ({self.unit})", "groups that can be answered"]
        return html_summary("Plan of a query", facts, HtmlTable("Groups by size", columns, rows))

    def as_dict(self) -> dict[str, Any]:
        """Return the plan for JSON."""
        return {
            "sizes": [vars(planned) for planned in self.sizes],
            "unit": self.unit,
            "total": self.total,
            "for_values": self.for_values,
            "max_groups_per_user": self.max_groups_per_user,
            "max_groups_per_user_assumed": self.assumed,
            "max_rows_per_user_assumed": self.assumed_rows,
            "smallest_size_for_all": self.smallest,
            "threshold": self.threshold,
        }


def plan_count(
    *,
    groups: int | None = None,
    sizes: Sequence[int] = SIZES,
    draft: bool = False,
    **request: Unpack[CountRequest],
) -> QueryPlan:
    """Plan a request: the cost of groups of ``sizes`` users, and how many can be answered.

    ``groups`` is how many groups there are; it is needed where ``max_groups_per_user`` is None.
    The other options are those of :func:`expost.count`; columns and keys are not needed. A
    ``draft`` is made at once; what it says cannot be answered cannot be.
    """
    asked: dict[str, Any] = {**request, "by": "g", "user": "u", "keys": None}
    if not asked.get("private_keys"):  # numbers stand for the groups
        asked["keys"] = [str(number) for number in range(min(groups or 2, 10**5))]
    checked = with_usual_cap(check_request(None, asked, open_table=False), asked)
    assumed_rows = ASSUMED_ROWS if checked.chooses_rows and not checked.caps_amount else None
    checked = checked.assumed().drafted() if draft else checked.assumed()
    known, assumed = groups or MANY_GROUPS, checked.cap == AUTO
    most = min(known, KEYS_CAP if assumed else known if checked.cap is None else int(checked.cap))
    if checked.measure.in_all:  # one cap on all groups together: one group is charged
        most, assumed = 1, False
    job, whole = checked.job(known, most), checked.counting_total(most)
    return QueryPlan(
        tuple(size_plan(size, checked, job, whole) for size in sizes),
        "epsilon" if checked.delta is None else "rho",
        float(checked.total),
        float(whole),
        most,
        assumed,
        checked.selection(most).threshold if checked.private else None,
        smallest_size(checked, job, whole),
        assumed_rows,
    )


def smallest_size(request: CheckedCount, job: Job, whole: Fraction) -> float:
    """Return the size from which on groups are answered at the level that all can afford."""
    affordable = np.asarray(job.levels.costs) * job.most_groups <= float(whole) * (1 + 1e-9)
    last = int(affordable.sum()) - 1 if affordable.any() else job.shared
    return max(0.0, float(job.rule.least[last]) / _per_user(request, job))


def size_plan(size: int, request: CheckedCount, job: Job, whole: Fraction) -> SizePlan:
    cost = _cost(size, request, job)
    if cost is None:
        return SizePlan(size, None, 0)
    if Fraction(cost) * job.most_groups <= whole * (1 + Fraction(1, 10**9)):
        return SizePlan(size, cost, None)
    return SizePlan(size, cost, int(whole / Fraction(cost)))


def _cost(size: int, request: CheckedCount, job: Job) -> float | None:
    """The cost of the first look that is good enough for a group of this size."""
    fits = job.rule.least <= size * _per_user(request, job)
    return float(job.levels.costs[int(np.argmax(fits))]) if bool(fits.any()) else None


def _per_user(request: CheckedCount, job: Job) -> float:
    """What one user adds to the value to which the levels compare their noise."""
    measure = request.measure
    if measure.kind != "mean":
        return float(measure.sensitivity / (measure.rows or 1) * request.finer)
    spread = measure.high - measure.low
    target = request.wanted.plus_minus
    middle = max(abs(measure.low + measure.high) / 2, spread / 4)
    return float(target if target is not None else (job.rule.within or 0) * middle) * float(spread)


def draw_plan(planned: QueryPlan, path: Path) -> None:
    """Draw the cost of a group against its size, and what each group can have."""
    drawn, (axes,) = plots.figure(1, width=6)
    shown = [size for size in planned.sizes if size.cost is not None]
    axes.plot(
        [size.size for size in shown],
        [size.cost for size in shown],
        "o-",
        color=plots.INK[0],
        label="one group needs",
    )
    share = planned.for_values / planned.max_groups_per_user
    axes.axhline(
        share,
        color=plots.INK[1],
        linestyle="--",
        label=f"each of many groups can have (total/{planned.max_groups_per_user})",
    )
    axes.axhline(planned.for_values, color=plots.INK[2], linestyle=":", label="total")
    unit = {"epsilon": "ε", "rho": "ρ"}[planned.unit]
    axes.set(xscale="log", yscale="log", xlabel="users in the group", ylabel=f"cost {unit}")
    axes.set_title("What a group costs, by its size", loc="left")
    axes.legend(fontsize=8)
    plots.save(drawn, path)
