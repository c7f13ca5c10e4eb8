"""Progressive training on a large Parquet file, through the command line.

    python -m benchmarks.large_table --rows 10000000 --json docs/results/large_table.json

A table of made-up rows is written to a temporary folder: 50 numbers with two decimals or three, and
a label that depends on ten of them. ``expost tune`` then reads the file with its defaults, which
are eight bins per number: 451 features. Seconds, CPU seconds and the largest memory are those of
the whole command, with reading, training and scoring.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

COLUMNS, INFORMATIVE = 50, 10
_CHUNK = 2**18


def write_table(path: Path, rows: int, columns: int = COLUMNS, seed: int = 0) -> None:
    """Write made-up rows to a Parquet file, some of them at a time."""
    import pyarrow as pa
    from pyarrow import parquet

    generator = np.random.default_rng(seed)
    slopes = np.linspace(-4.0, 4.0, INFORMATIVE)
    writer = None
    for start in range(0, rows, _CHUNK):
        count = min(_CHUNK, rows - start)
        cells = generator.integers(0, 1001, size=(columns, count)).astype(np.float32) / 1000
        score = slopes @ (2 * cells[:INFORMATIVE] - 1)
        label = generator.random(count) < 1 / (1 + np.exp(-score))
        table = pa.table(
            {**{f"x{index}": cells[index] for index in range(columns)}, "y": label.astype(np.int8)}
        )
        writer = writer or parquet.ParquetWriter(path, table.schema)
        writer.write_table(table)
    assert writer is not None
    writer.close()


def measure(path: Path, at_least: float, executor: str, columns: int = COLUMNS) -> dict[str, Any]:
    """Run ``expost tune`` on a file; return what it took and what it said."""
    command = [sys.executable, "-m", "expost", "tune", str(path), "--target", "y"]
    command += ["--at-least", str(at_least), "--classes", "2", "--feature-bounds", "0:1"]
    command += ["--executor", executor, "--json", "--out", str(path.with_suffix(".out"))]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(done.stderr)
    told = json.loads(done.stdout)
    return {
        "seconds": round(seconds, 1),
        "cpu_seconds": round(
            after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1
        ),
        "peak_megabytes": round(after.ru_maxrss / 1024),
        "passed": told["passed"],
        "epsilon": told["spent"]["epsilon"],
    }


def main() -> None:
    """Measure, and print one JSON object."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.large_table")
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--at-least", type=float, default=0.8)
    parser.add_argument("--executor", default="local")
    parser.add_argument("--file", type=Path, help="keep the table here, and use it if it exists")
    parser.add_argument("--json", type=Path, help="also write the result to this file")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = arguments.file or Path(folder) / "large.parquet"
        if not path.exists():
            write_table(path, arguments.rows)
        found = {
            "rows": arguments.rows,
            "columns": COLUMNS,
            "at_least": arguments.at_least,
            "executor": arguments.executor,
            "cores": os.cpu_count(),
            "processor": platform.machine(),
            **measure(path, arguments.at_least, arguments.executor),
        }
    text = json.dumps(found, indent=2)
    print(text)
    if arguments.json:
        arguments.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
