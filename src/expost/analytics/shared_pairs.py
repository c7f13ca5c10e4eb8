"""Pairs of users and groups, held by DuckDB: caps are chosen from them, and then applied to them.

Test: ``tests/analytics/test_native_parquet.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from expost.analytics.cap_choice import per_user, run_per_user, users_by_size
from expost.analytics.cap_ladder import user_amounts
from expost.analytics.contribution import (
    GroupValues,
    Measure,
    amounts_of,
    capped_amounts,
    clipped,
    dropped,
    group_totals,
    pair_sums,
    part_of_users,
    run_totals,
    totals,
    usable,
    users_of,
)
from expost.analytics.pricing import CheckedCount
from expost.tables.typed_columns import engine_of, fetch, held, ibis_module

_PARTS_OF_SUMS = 2  # a power of two
_LARGE = 2**24  # bytes of a file


class Shared(NamedTuple):
    """Pairs of :func:`pair_sums`, and users in them: of :func:`users_of` or ``user_amounts``."""

    pairs: Any
    users: Any


def run_capped(
    shared: Shared,
    measure: Measure,
    most: int | None,
    salt: str,
    limit: int | None,
    keys: Sequence[str] | None,
) -> GroupValues:
    """Return the values of :func:`totals`.

    DuckDB runs it in parts and ranks pairs before they are clipped, which takes less memory.
    """
    pairs, users = shared
    if most is None or limit is None or ibis_module().get_backend(pairs).name != "duckdb":
        return run_totals(totals(clipped(pairs, measure), most, salt, limit, keys))
    parts = (
        [pairs] if measure.kind == "users" else [part_of_users(pairs, half, 2) for half in range(2)]
    )
    with held(*(dropped(part, most, salt, keys, users) for part in parts)) as raw:
        pairs, cut = clipped(pairs, measure), clipped(raw, measure)
        values = run_totals(group_totals(pairs, cut, keys))
        if measure.kind == "users":
            told = [fetch(capped_amounts(pairs, cut, most, limit, users))]
        else:
            halves = (
                (part_of_users(pairs, half, 2), part_of_users(cut, half, 2)) for half in range(2)
            )
            told = [fetch(capped_amounts(*half, most, limit)) for half in halves]
    sums = {name: [one[name][0] for one in told] for name in told[0]}
    kept, removed = amounts_of(sums)
    return replace(values, kept=kept, removed=removed)


def sizes_per_user(
    request: CheckedCount, shared: Shared | None = None
) -> tuple[dict[int, int], dict[int, int]]:
    """Return how many users have how many groups, and how many rows (or which sum) in one.

    ``shared`` are the pairs of users and groups, where they are known already.
    """
    if shared is not None:
        query = users_by_size(shared.users, request.amounts)
    else:
        rows = usable(request.rows(), request.measure, request.keys)
        query = per_user(rows, request.amounts)
    return run_per_user(query, request.amounts)


def _is_large(data: Any) -> bool:
    """Whether a table is larger than a small file; this decides on time and memory only."""
    if not isinstance(data, (str, Path)) or "://" in str(data):
        return True
    try:
        return Path(data).stat().st_size >= _LARGE
    except OSError:  # a glob
        return True


@contextmanager
def shared_pairs(request: CheckedCount) -> Iterator[Shared | None]:
    """What users have per group before caps, which may be chosen from it.

    DuckDB computes it once where it is needed more than once. None if rows are ranked, and for one
    query of a small file, which is quicker in SQL that was written before.
    """
    kind, chosen = request.measure.kind, request.chooses_cap or request.chooses_rows
    read = request.kept is None and not request.from_counts and (chosen or _is_large(request.data))
    if not read or not (kind in ("users", "rows") or request.caps_amount):
        yield None
        return
    pairs_of = partial(
        pair_sums,
        *(request.rows(), request.measure, request.keys),
        collated=request.collated,
        numbered=True,
    )
    if not chosen and request.cap is None:
        yield Shared(pairs_of(), None)
        return
    # A group of sums takes much memory: one part of the users after the other.
    parts = _PARTS_OF_SUMS if request.caps_amount and engine_of(request.table) == "duckdb" else 1
    pairs = [pairs_of(part=(number, parts) if parts > 1 else None) for number in range(parts)]
    per_user = user_amounts if request.caps_in_all else users_of
    with held(*pairs) as table, held(per_user(table)) as users:
        yield Shared(table, users)
