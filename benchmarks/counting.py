"""The overhead of ``expost count`` over the bare SQL query, on a Parquet file on disk.

The file holds 10^7 (user, group) pairs. With EXPOST_BENCH_LARGE=1 it holds 10^8 (about 1 GB,
written once in a minute or two).
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import duckdb

from benchmarks.measure import Row, interleaved
from expost.analytics.contribution import Measure, measured, pair_columns, run_totals, totals
from expost.tables.sources import open_source

GROUPS = 10_000
PAIRS_PER_USER = 8


def rows() -> Iterator[Row]:
    """Yield the rows of this benchmark."""
    pairs = 10**8 if os.environ.get("EXPOST_BENCH_LARGE") == "1" else 10**7
    with tempfile.TemporaryDirectory(prefix="expost") as folder:
        path = Path(folder) / "pairs.parquet"
        make_pairs(path, pairs)
        yield counting(path, pairs)
        yield capped(path, pairs)


def make_pairs(path: Path, pairs: int) -> None:
    """Write pairs in random order: about eight per user, groups of very different sizes."""
    users = pairs // PAIRS_PER_USER
    duckdb.connect().execute(
        f"""COPY (
            SELECT hash(range) % {users} AS u,
                'group ' || CAST(
                    floor({GROUPS} * pow(hash(range + {pairs}) / 1.8446744073709552e19, 4))
                AS INTEGER) AS g
            FROM range({pairs})
        ) TO '{path}' (FORMAT parquet)"""
    )


def counting(path: Path, pairs: int) -> Row:
    """Count the distinct users of 1,000 groups.

    Our side opens the source again each time. The bare query counts all groups, on its own
    connection.
    """
    keys = [f"group {place}" for place in range(1000)]
    query = f"SELECT g, count(DISTINCT u) FROM read_parquet('{path}') GROUP BY g"
    ours, theirs = interleaved(
        lambda: ours_on(path, keys, None),
        lambda: duckdb.connect().execute(query).fetchall(),
        turns=5 if pairs <= 10**7 else 3,
    )
    what = f"expost count, {pairs:.0e} pairs ({pairs / ours / 1e6:.1f} million rows/s)"
    return Row(
        what,
        ours,
        f"bare SQL ({pairs / theirs / 1e6:.1f} million rows/s)",
        theirs,
        "≥ 0.91× (overhead ≤ 10 %)",
    )


def ours_on(path: Path, keys: list[str] | None, most: int | None) -> object:
    """The query of ``expost count`` through a source opened afresh."""
    rows = pair_columns(open_source(path), "g", "u")
    pairs = measured(rows, Measure(), keys, "salt")
    return run_totals(totals(pairs, most, "salt", collated=False))


def capped(path: Path, pairs: int, most: int = 5) -> Row:
    """The same with a cap of groups per user, against bare SQL with the same cap."""
    query = f"""
        SELECT g, count(*) FROM (
            SELECT u, g, row_number() OVER (
                PARTITION BY u ORDER BY hash('salt' || u::VARCHAR || g), g
            ) AS rank FROM (SELECT DISTINCT u, g FROM read_parquet('{path}'))
        ) WHERE rank <= {most} GROUP BY g"""
    ours, theirs = interleaved(
        lambda: ours_on(path, None, most),
        lambda: duckdb.connect().execute(query).fetchall(),
        turns=3,
    )
    what = f"expost count with a cap of {most} groups per user, {pairs:.0e} pairs"
    return Row(what, ours, "bare SQL with the same cap", theirs, "≥ 0.67× (at most 1.5× the time)")
