"""What tests of sources share: counting users of listed groups through the library's own query."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import expost
from expost import SimulationRandomness
from expost.analytics.contribution import (
    GROUP,
    USER,
    GroupValues,
    Measure,
    measured,
    pair_columns,
    run_totals,
    totals,
)
from expost.tables.sources import as_table, may_collate, open_source
from expost.tables.typed_columns import fetch

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


def odd_rows() -> pa.Table:
    """Many rows per person, skewed, with gaps and repeated values; text as it comes from CSV."""
    generator = np.random.default_rng(3)
    numbers = np.minimum(1 + generator.geometric(0.25, 300), 30)
    users = np.repeat(np.arange(300), numbers)
    size = len(users)
    values = np.round(generator.exponential(12, size))
    gap = generator.random(size) < 0.1
    return pa.table(
        {
            "u": [f"person {user}" for user in users],
            "g": [f"g{place}" for place in np.minimum(generator.geometric(0.4, size), 6)],
            "v": [None if missing else float(v) for missing, v in zip(gap, values, strict=True)],
        }
    )


def ask_everything(source: Any, table: str | None = None) -> list[Any]:
    """Every statistic with one salt and one noise: the released documents without the source."""
    released = []
    listed = {"keys": [f"g{place}" for place in range(1, 7)], "max_groups_per_user": 2}
    private = {"private_keys": True, "delta": 1e-2, "max_groups_per_user": "auto"}
    for kind, more in (
        ("count", listed),
        ("rows", listed),
        ("sum", listed),
        ("mean", listed),
        ("sum", private | {"plus_minus": 500}),
    ):
        options: dict[str, Any] = {"by": "g", "user": "u", "epsilon": 5.0, "table": table} | more
        options |= {"randomness": SimulationRandomness(4), "simulation": True}
        if kind in ("count", "rows"):
            result = expost.count(source, count_rows=kind == "rows", **options)
        else:
            call = getattr(expost, kind)
            result = call(source, "v", bounds=(0, 40), max_rows_per_user=3, **options)
        released.append(result.as_dict())
    return released
