"""What a query would cost, before it is asked: public settings only, no row is read.

Tests: ``tests/analytics/test_sql_run.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Unpack

from expost.analytics.count_plan import ASSUMED_ROWS, SIZES, SizePlan, size_plan
from expost.analytics.pricing import AUTO
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


def plan_query(question: Any, /, **request: Unpack[SqlRequest]) -> SqlPlan:
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
    for part, asked in zip(checked.compiled.parts, checked.requests, strict=True):
        share: Fraction = asked.total
        if asked.chooses_rows:
            asked = asked.with_rows(ASSUMED_ROWS)
        job, whole = asked.job(known, most), asked.counting_total(most)
        sizes = tuple(size_plan(size, asked, job, whole) for size in SIZES)
        parts.append(PartPlan(part.label, float(share), sizes))
    return SqlPlan(
        "epsilon" if base.delta is None else "rho",
        float(base.total),
        {name: float(cost) for name, cost in checked.shares().items()},
        tuple(parts),
        base.most_known,
        most,
        assumed,
    )
