"""What tests of sources share: counting users of listed groups through the library's own query."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from expost.analytics.columns import GROUP, USER, Measure, pair_columns
from expost.analytics.contribution import GroupValues, measured, run_totals, totals
from expost.analytics.engine import fetch
from expost.analytics.sources import as_table, may_collate, open_source

INJECTIONS = [
    "a'; DROP TABLE secrets; --",
    'a"; DROP TABLE secrets; --',
    "a`; DROP TABLE secrets; --",
    "a\\'; --",
    "{0}%s$1:x",
    "a\\",
]

EXACT = {"plus_minus": 0.4, "confidence": 1 - 1e-9}  # rounding gives the true count


@dataclass(frozen=True)
class Found:
    """Values of the listed groups, and whether rows were ignored."""

    values: GroupValues
    rows_ignored: bool

    @property
    def counts(self) -> Any:
        return self.values.first


def counted(
    source: Any, keys: list[str], by: str = "g", user: str = "u", table: str | None = None
) -> Found:
    opened = (
        open_source(source, table, columns=[by, user])
        if isinstance(source, (str, Path))
        else as_table(source)
    )
    rows = pair_columns(opened, by, user, collated=may_collate(source))
    return Found(count_users(rows, keys), ignores(rows))


def ignores(rows: Any) -> bool:
    missing = rows.filter(rows[GROUP].isnull() | rows[USER].isnull())
    return bool(fetch(missing.select(found=missing[USER].isnull()).limit(1))["found"])


def count_users(rows: Any, keys: list[str]) -> GroupValues:
    """Distinct users, through a cap that drops nobody: the query with the window function."""
    pairs = measured(rows, Measure(), keys, "salt")
    capped = run_totals(totals(pairs, 10**6, "salt")).on(keys)
    bare = run_totals(totals(pairs, None, "salt")).on(keys)
    assert capped.first.tolist() == bare.first.tolist()
    return capped


def numbers(source: Any, keys: list[str], **options: Any) -> list[int]:
    return counted(source, keys, **options).counts.tolist()


def selected(rows: Any, contributions: int) -> dict[str, int]:
    found = run_totals(totals(measured(rows, Measure(), None, "s"), contributions, "s"))
    return dict(zip(found.groups, found.first.tolist(), strict=True))
