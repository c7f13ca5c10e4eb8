"""Run all benchmarks and print one table (``python -m benchmarks``, ``make bench``).

Ratios are measured side by side in one run. Absolute times are those of this machine.
"""

from __future__ import annotations

import argparse
import importlib
import json
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.measure import Row

MODULES = ("foundation", "accounting", "ledger", "counting", "fleet", "modules", "server")


def main() -> None:
    """Run the chosen benchmarks."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Run all benchmarks and print one table. Ratios are measured side by side in "
        "one run. Absolute times are those of this machine.",
    )
    parser.add_argument(
        "--only", choices=MODULES, action="append", help="run only this benchmark (repeatable)"
    )
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    arguments = parser.parse_args()
    rows: list[Row] = []
    for name in arguments.only or MODULES:
        rows.extend(importlib.import_module(f"benchmarks.{name}").rows())
    table = Table(title="Benchmarks", title_justify="left")
    for column in ("what", "expost", "against", "peer", "ratio", "target"):
        table.add_column(column)
    for row in rows:
        table.add_row(*row.cells())
    Console().print(table)
    if arguments.json:
        arguments.json.write_text(
            json.dumps([row.as_dict() for row in rows], indent=2) + "\n", encoding="utf-8"
        )


if __name__ == "__main__":
    main()
