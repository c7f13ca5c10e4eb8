"""Budgets that renew: when a period begins.

A renewing budget limits what is admitted in each calendar period (UTC). A person whose data stay in
the data set over several periods is protected by the sum over these periods, not by the limit of
one of them: after n periods the total is at most n times the limit.

A charge belongs to the period in which its request was admitted, which the entry of the reservation
names: the worst case was held against that period's limit. A request that is still open when a
period begins is held in the new period, too, until it is settled; this only makes the test of new
requests stricter.

The time is that of the server (PostgreSQL) or of the client (SQLite). A clock that is set forward
renews early, and the entry shows it. Tests: ``tests/budget/test_operations.py``.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

from expost.budget.rows import LedgerRows
from expost.errors import InvalidInput

NEVER = ""
PERIODS = ("day", "week", "month", "quarter", "year")


def check_renewal(renews: str | None) -> str:
    """Return the name of a period, or NEVER; refuse other values."""
    if renews is None or renews == NEVER:
        return NEVER
    if renews not in PERIODS:
        raise InvalidInput("renews", renews, "give one of " + ", ".join(PERIODS))
    return renews


def period_at(renews: str, moment: datetime) -> str:
    """Return the first day of the period that holds a moment, as ISO text; empty for NEVER."""
    if renews == NEVER:
        return ""
    day = moment.astimezone(UTC).date()
    first = {
        "day": day,
        "week": day - timedelta(days=day.weekday()),
        "month": day.replace(day=1),
        "quarter": date(day.year, 3 * ((day.month - 1) // 3) + 1, 1),
        "year": date(day.year, 1, 1),
    }[renews]
    return first.isoformat()


def now(rows: LedgerRows) -> datetime:
    """Return the time of the server, or of this client for a SQLite file."""
    if rows.backend == "postgresql":
        moment = rows.one("SELECT now()")[0]
        assert isinstance(moment, datetime)
        return moment
    return datetime.now(UTC)
