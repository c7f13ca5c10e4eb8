"""Rows per group and grid cell, in the engine, with at most r rows and m groups of a user.

Which rows a user keeps in a group, and which groups, is chosen as for sums (``contribution``): by a
hash of the user's own rows and a fresh salt. So one user changes nobody else's rows, and the counts
of at most m groups, by at most r rows each. Test: ``tests/analytics/test_quantiles.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from expost.analytics.contribution import (
    GROUP,
    USER,
    VALUE,
    Measure,
    one_text_per_user,
    salted_hash,
    usable,
)
from expost.analytics.quantile_search import CellCounts
from expost.tables.typed_columns import fetch, fetch_arrow, ibis_module

_SAME, _RANK, _ORDER = "expost_same", "expost_rank", "expost_order"
_ROWS, _USERS = "expost_rows", "expost_users"


def kept_rows(
    rows: Any,
    measure: Measure,
    keys: Sequence[str] | None,
    most: int | None,
    salt: str,
    *,
    collated: bool = True,
) -> Any:
    """Return the rows that count: at most ``measure.rows`` per user and group, ``most`` groups."""
    ibis = ibis_module()
    rows = usable(rows, measure, keys)
    rows = one_text_per_user(rows, collated)
    alike = ibis.window(group_by=[USER, GROUP, VALUE], order_by=VALUE)
    rows = rows.mutate(**{_SAME: ibis.row_number().over(alike).cast("string")})
    order = [salted_hash(rows, [USER, GROUP, VALUE, _SAME], salt), rows[VALUE]]
    rank = ibis.row_number().over(ibis.window(group_by=[USER, GROUP], order_by=order))
    rows = rows.mutate(**{_RANK: rank})
    rows = rows.filter(rows[_RANK] < measure.rows)
    if most is None:
        return rows
    order = [salted_hash(rows, [USER, GROUP], salt), rows[GROUP]]
    rows = rows.mutate(**{_ORDER: ibis.dense_rank().over(_by_user(order))})
    return rows.filter(rows[_ORDER] < most)


def _by_user(order: list[Any]) -> Any:
    """All rows of a user, in this order."""
    return ibis_module().window(group_by=USER, order_by=order)


def count_cells(kept: Any) -> Any:
    """Return the query for the rows of each group and cell."""
    return kept.group_by([GROUP, VALUE]).aggregate(**{_ROWS: ibis_module()._.count()})


def run_cells(query: Any) -> dict[str, CellCounts]:
    """Run a query of :func:`count_cells`: group → its cells."""
    table = fetch_arrow(query).combine_chunks()
    names = table.column(GROUP).combine_chunks().dictionary_encode()
    if hasattr(names, "chunks"):
        names = names.combine_chunks()
    group = np.asarray(names.indices, dtype=np.int64)
    cells, counts = (
        np.asarray(table.column(name).to_numpy(), dtype=np.int64) for name in (VALUE, _ROWS)
    )
    order = np.lexsort((cells, group))
    ends = np.cumsum(np.bincount(group, minlength=len(names.dictionary)))
    parts = np.split(order, ends[:-1]) if len(ends) else []
    return {
        str(name): CellCounts(cells[part], counts[part])
        for name, part in zip(names.dictionary.to_pylist(), parts, strict=True)
    }


def run_users(kept: Any) -> dict[str, int]:
    """Return how many users each group has after the caps."""
    users = fetch(kept.group_by(GROUP).aggregate(**{_USERS: kept[USER].nunique()}))
    return {
        str(group): int(count) for group, count in zip(users[GROUP], users[_USERS], strict=True)
    }
