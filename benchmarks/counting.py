"""What ``expost count`` adds to the bare SQL query, on a Parquet file of (user, group) pairs on disk.

10^7 pairs; 10^8 (about 1 GB, made once in a minute or two) with EXPOST_BENCH_LARGE=1.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import duckdb

from benchmarks.measure import Row, interleaved
from expost.analytics.columns import Measure, pair_columns
from expost.analytics.contribution import measured, run_totals, totals
from expost.analytics.sources import open_source

GROUPS = 10_000
PAIRS_A_USER = 8


def rows() -> Iterator[Row]:
    pairs = 10**8 if os.environ.get("EXPOST_BENCH_LARGE") == "1" else 10**7
    with tempfile.TemporaryDirectory(prefix="expost") as folder:
        path = Path(folder) / "pairs.parquet"
        make_pairs(path, pairs)
        yield counting(path, pairs)
        yield capped(path, pairs)


def make_pairs(path: Path, pairs: int) -> None:
    """Users with some eight pairs each, groups of very different sizes, in no order."""
    users = pairs // PAIRS_A_USER
    duckdb.connect().execute(
        f"""COPY (
            SELECT hash(range) % {users} AS u, 'group ' || CAST(floor({GROUPS} * pow(hash(range + {pairs}) / 1.8446744073709552e19, 4))
            AS INTEGER) AS g FROM range({pairs})
        ) TO '{path}' (FORMAT parquet)"""
    )


def counting(path: Path, pairs: int) -> Row:
    """Distinct users of 1,000 groups, through a source opened afresh; the query asks for all groups, on a connection of its own."""
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
