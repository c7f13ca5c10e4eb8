"""The least ε that reaches each bar on MNIST and Adult: docs/results/least_epsilon.json.

Needs mnist.npz and adult.csv in ../shared/data. Tables that are not asked for are kept, so they can
be run one by one: ``python -m scripts.least_epsilon adult-private mnist-public``. The table and the
figure of docs/least-epsilon.md are made by scripts/fill_documents.py and this script.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from reproduction.least_epsilon import BARS, least_epsilon

from expost import plots

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "results" / "least_epsilon.json"
FIGURE = ROOT / "docs" / "figures" / "least_epsilon.png"
DATA = ROOT.parent / "shared" / "data"
RUNS = {"mnist-public": 12, "mnist-private": 8, "adult-public": 20, "adult-private": 20}


def draw(tables: dict[str, Any], path: Path) -> None:
    """Draw ε over the bars, by method."""
    drawn, axes = plots.figure(len(BARS))
    for task, axis in zip(BARS, axes, strict=True):
        curves: dict[str, list[tuple[float, float]]] = {}
        for scoring in ("public", "private"):
            for row in tables.get(f"{task}-{scoring}", {"rows": []})["rows"]:
                if row["passed"] >= 0.95:
                    name = f"expost, {scoring}" if row["method"] == "expost" else row["method"]
                    curves.setdefault(name, []).append((row["bar"], row["mean_epsilon"]))
        for colour, (name, points) in zip(plots.INK, curves.items(), strict=False):
            axis.plot(*zip(*points, strict=True), "o-", color=colour, markersize=4, label=name)
        axis.set(xlabel="accuracy to reach", ylabel="mean ε", yscale="log")
        axis.set_title({"mnist": "MNIST", "adult": "Adult"}[task], loc="left")
        axis.legend(fontsize=8)
    plots.save(drawn, path)


def main(names: list[str]) -> None:
    """Measure the named tables, or all, and write the results."""
    known = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    for name in names or RUNS:
        task, scoring = name.split("-")
        known[name] = least_epsilon(task, scoring, DATA, runs=RUNS[name])
        print(name, json.dumps(known[name]["rows"]), flush=True)
        RESULTS.write_text(json.dumps(known, indent=2) + "\n", encoding="utf-8")
    draw(known, FIGURE)


if __name__ == "__main__":
    main(sys.argv[1:])
