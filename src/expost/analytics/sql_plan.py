"""What a query would cost, before it is asked: public settings only, no row is read.

Tests: ``tests/analytics/test_sql_run.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Unpack

from expost.analytics.count_plan import SIZES, SizePlan, size_plan
from expost.analytics.pricing import AUTO
from expost.analytics.quantile_run import QuantileJob, plan_attempt
from expost.analytics.request import KEYS_CAP
from expost.analytics.sql_request import SqlRequest, check_query


@dataclass(frozen=True)
class PartPlan:
    """One aggregate: its share of the total, and what groups of some sizes would need."""

    label: str
    share: float
    sizes: tuple[SizePlan, ...]


@dataclass(frozen=True)
class SqlPlan:
    """The plan of a query; ``unit`` is ``epsilon`` or ``rho``."""

    unit: str
    total: float
    shares: dict[str, float]
    parts: tuple[PartPlan, ...]
    groups: int | None
    max_groups_per_user: int
    assumed: bool

    def as_dict(self) -> dict[str, Any]:
        """Return the plan for JSON."""
        return {
            "unit": self.unit,
            "total": self.total,
            "shares": dict(self.shares),
            "parts": [
                {
                    "of": part.label,
                    "share": part.share,
                    "sizes": [vars(size) for size in part.sizes],
                }
                for part in self.parts
            ],
            "groups": self.groups,
            "max_groups_per_user": self.max_groups_per_user,
            "max_groups_per_user_assumed": self.assumed,
        }


def _quantile_plan(size: int, job: QuantileJob) -> SizePlan:
    """What an attempt at all ranks of a group of this size costs."""
    cost = plan_attempt(job, job.ranks, size, 1 - job.confidence).cost
    if cost * job.most_groups <= job.total:
        return SizePlan(size, float(cost), None)
    return SizePlan(size, float(cost) if cost <= job.total else None, int(job.total / cost))


def plan_query(
    question: Any, /, *, sizes: Sequence[int] = SIZES, **request: Unpack[SqlRequest]
) -> SqlPlan:
    """Plan a query: the share of every aggregate, and what groups of some sizes would need.

    Caps that will be chosen privately are assumed: 10 groups per person and 10 rows per person and
    group.
    """
    checked = check_query(question, request)
    base = checked.base
    known = base.most_known or 10**6
    assumed = base.cap == AUTO
    most = min(known, KEYS_CAP if assumed else known if base.cap is None else int(base.cap))
    parts = []
    for number, part in enumerate(checked.compiled.parts):
        asked = checked.requests[number]
        share: Fraction = asked.total
        asked = asked.assumed()
        if part.ranks:
            capped = replace(asked, cap=most, keys=asked.keys or ("all",), chooses_rows=False)
            attempt = checked.quantile(number, capped).job(capped, known, most)
            planned = tuple(_quantile_plan(size, attempt) for size in sizes)
        else:
            job, whole = asked.job(known, most), asked.counting_total(most)
            planned = tuple(size_plan(size, asked, job, whole) for size in sizes)
        parts.append(PartPlan(part.label, float(share), planned))
    return SqlPlan(
        "epsilon" if base.delta is None else "rho",
        float(base.total),
        {name: float(cost) for name, cost in checked.shares().items()},
        tuple(parts),
        base.most_known,
        most,
        assumed,
    )
