"""The overhead of ``expost count`` over the bare SQL query, on a Parquet file on disk.

The file holds 10^7 (user, group) pairs. With EXPOST_BENCH_LARGE=1 it holds 10^8 (about 1 GB,
written once in a minute or two).

    python -m benchmarks.counting --rows 10000000 --json docs/results/capped_questions.json

runs ``expost.count`` and ``expost.sum`` with a cap of groups, and the same caps in bare SQL, each
in a process of its own, in turns. It prints the CPU seconds of the question (without imports) and
the largest memory of the process: medians, and the ratio of the CPU seconds. The sum also chooses
the amount per user, and both estimate what caps remove; bare SQL does neither.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import duckdb

from benchmarks.measure import Row, interleaved
from expost.analytics.contribution import Measure, measured, pair_columns, run_totals, totals
from expost.tables.sources import open_source

GROUPS = 10_000
PAIRS_PER_USER = 8
LISTED, MOST = 1000, 5  # groups that are asked for, and the cap of groups per user


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
                AS INTEGER) AS g,
                (hash(range + 3 * {pairs}) % 50000) / 100.0 AS v
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
    pairs = measured(rows, Measure(), keys, "salt", collated=False)
    return run_totals(totals(pairs, most, "salt"))


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


def bare_sql(path: Path, kind: str) -> str:
    """The question in bare SQL, with the same groups and the same cap of groups per user."""
    keys = ", ".join(f"'group {number}'" for number in range(LISTED))
    value = "1" if kind == "count" else "least(sum(greatest(0, least(500, v))), 500)"
    return f"""
        SELECT g, sum(value) FROM (
            SELECT g, value, row_number() OVER (
                PARTITION BY u ORDER BY hash('salt' || u::VARCHAR || g), g
            ) AS rank FROM (
                SELECT u, g, {value} AS value FROM read_parquet('{path}')
                WHERE g IN ({keys}) GROUP BY u, g
            )
        ) WHERE rank <= {MOST} GROUP BY g"""


def ask(path: Path, kind: str, method: str) -> dict[str, float]:
    """Ask one question in this process: its CPU seconds, and the largest memory in megabytes."""
    import ibis.backends.duckdb  # noqa: F401 - imports are not part of the question

    import expost
    import expost.analytics.query

    keys = [f"group {number}" for number in range(LISTED)]
    asked = {"by": "g", "user": "u", "keys": keys, "epsilon": 2, "max_groups_per_user": MOST}
    before = resource.getrusage(resource.RUSAGE_SELF)
    if method == "bare SQL":
        duckdb.connect().execute(bare_sql(path, kind)).fetchall()
    elif kind == "count":
        expost.count(path, **asked)
    else:
        expost.sum(path, "v", bounds=(0, 500), **asked)
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"cpu_seconds": round(cpu, 2), "peak_megabytes": round(after.ru_maxrss / 1024)}


def main() -> None:
    """Measure whole questions, each in a process of its own; print JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.counting")
    parser.add_argument("--rows", type=int, default=10**7)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--json", type=Path, help="also write the result to this file")
    parser.add_argument("--ask", nargs=3, metavar=("FILE", "KIND", "METHOD"), help="one question")
    arguments = parser.parse_args()
    if arguments.ask:
        path, kind, method = arguments.ask
        print(json.dumps(ask(Path(path), kind, method)))
        return
    with tempfile.TemporaryDirectory(prefix="expost") as folder:
        path = Path(folder) / "pairs.parquet"
        make_pairs(path, arguments.rows)
        rows = [whole_question(path, kind, arguments.turns) for kind in ("count", "sum")]
    told = {"rows_of_the_table": arguments.rows, "turns": arguments.turns, "rows": rows}
    text = json.dumps(told, indent=2)
    print(text)
    if arguments.json is not None:
        arguments.json.write_text(text + "\n")


def whole_question(path: Path, kind: str, turns: int) -> dict[str, object]:
    """Ask one question in expost and in bare SQL, in turns: medians, and the ratio of CPU."""
    told: dict[str, list[dict[str, float]]] = {"expost": [], "bare SQL": []}
    for _ in range(turns):
        for method, results in told.items():
            command = [sys.executable, "-m", "benchmarks.counting", "--ask", str(path)]
            text = subprocess.check_output([*command, kind, method], text=True)
            results.append(json.loads(text))
    medians = {
        method: {name: median(one[name] for one in results) for name in results[0]}
        for method, results in told.items()
    }
    ratio = medians["expost"]["cpu_seconds"] / medians["bare SQL"]["cpu_seconds"]
    return {"kind": kind, "cpu_ratio": round(ratio, 2), **medians}


if __name__ == "__main__":
    main()
