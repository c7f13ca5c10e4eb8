"""The least ε that reaches each bar: docs/results/least_epsilon.json and its figure.

Needs the files of data in ../shared/data (or in the folder after ``--data``). Rows are kept by
table and method, so both can be measured one by one and all other rows stay as they are:
``python -m scripts.least_epsilon adult-private mnist-public --methods expost --runs 20``;
``--draw`` measures nothing. Tables are filled in by scripts/fill_documents.py.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from reproduction.least_epsilon import METHODS, least_epsilon
from reproduction.least_tasks import TASKS

from expost import plots

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "results" / "least_epsilon.json"
FIGURE = ROOT / "docs" / "figures" / "least_epsilon.png"
FRONT = ROOT / "docs" / "figures" / "front.png"
DATA = ROOT.parent / "shared" / "data"
RUNS = {
    **dict.fromkeys(("mnist-public", "mnist-private", "adult-public", "adult-private"), 20),
    "mnist-fourier-public": 1,
    "adult-balanced-private": 20,
    "digits-private": 20,
    "breast-cancer-private": 20,
    **dict.fromkeys(("gisette-public", "gisette-private"), 20),
    **dict.fromkeys(("flights-public", "flights-private"), 20),
    **dict.fromkeys(("blogfeedback-public", "blogfeedback-private"), 20),
}
"""The tables, with the runs of expost."""

CURVES = (
    ("expost", "public", "expost, public test rows", plots.INK[0], "o-", 2.4),
    ("expost", "private", "expost, private test rows", plots.INK[0], "o--", 1.6),
    ("opacus-features", "public", "Opacus with expost's features", plots.INK[2], "^:", 1.2),
    ("opacus", "public", "Opacus, fixed ε", plots.INK[2], "^-", 1.6),
    (
        "diffprivlib-features",
        "public",
        "diffprivlib with expost's features",
        plots.INK[1],
        "s:",
        1.2,
    ),
    ("diffprivlib", "public", "diffprivlib, fixed ε", plots.INK[1], "s-", 1.6),
    ("random-dropping", "public", "the paper's method (Algorithm 3)", plots.INK[4], "D-", 1.6),
)
"""Method, scoring, words, colour, line and width."""

_FRONT = ("expost", "opacus", "diffprivlib", "random-dropping")  # what the front page compares
_TICKS = (0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100)
_TITLES = {
    "mnist": "Handwritten digits (MNIST, 60,000 rows)",
    "adult": "Income above 50,000 (Adult, 32,561 rows)",
}


def draw(tables: Mapping[str, Any], path: Path, methods: Sequence[str] = METHODS) -> None:
    """Draw ε over the accuracies to reach, by method; lower is better."""
    from matplotlib.ticker import NullFormatter, NullLocator

    drawn, axes = plots.figure(2, width=4.7, height=4.6)
    lines: dict[str, Any] = {}
    for (task, title), axis in zip(_TITLES.items(), axes, strict=True):
        bars, lowest, highest = TASKS[task].bars, 1.0, 1.0
        for method, scoring, words, colour, style, width in CURVES:
            if method not in methods:
                continue
            epsilons = {
                row["bar"]: row["mean_epsilon"]
                for row in tables.get(f"{task}-{scoring}", {"rows": []})["rows"]
                if row["method"] == method and row["passed"] >= 0.95
            }
            if epsilons:
                heights = [epsilons.get(bar, math.nan) for bar in bars]  # gaps stay open
                (lines[words],) = axis.plot(
                    heights, style, color=colour, linewidth=width, markersize=4
                )
                lowest, highest = min(lowest, *epsilons.values()), max(highest, *epsilons.values())
        axis.set(yscale="log", ylim=(lowest / 1.4, highest * 1.4), xlabel="accuracy to reach")
        axis.yaxis.set_minor_locator(NullLocator())
        axis.yaxis.set_minor_formatter(NullFormatter())
        shown = [tick for tick in _TICKS if lowest / 1.4 <= tick <= highest * 1.4]
        axis.set_yticks(shown, [f"{tick:g}" for tick in shown])
        axis.set_xticks(range(len(bars)), [f"{bar:.0%}" for bar in bars])
        axis.set_title(title, loc="left", fontsize=10)
    axes[0].set_ylabel("privacy loss ε (lower is better)")
    ordered = [words for _, _, words, *_ in CURVES if words in lines]
    drawn.legend(
        [lines[words] for words in ordered],
        ordered,
        loc="outside lower center",
        ncols=2,
        fontsize=9,
    )
    plots.save(drawn, path)


def merged(known: Mapping[str, Any], fresh: Mapping[str, Any], methods: Sequence[str]) -> Any:
    """Return a table whose rows and notes of some methods are fresh; all others are kept."""

    def kept(note: str) -> bool:
        return not set(note.split(":")[0].split(", ")) & set(methods)

    order = {method: place for place, method in enumerate(METHODS)}
    rows = [row for row in known.get("rows", ()) if row["method"] not in methods] + fresh["rows"]
    notes = [note for note in known.get("notes", ()) if kept(note)] + fresh["notes"]
    head = {key: value for key, value in fresh.items() if key not in ("rows", "notes", "runs")}
    ordered = sorted(rows, key=lambda row: (order[row["method"]], row["bar"]))
    return {**head, "rows": ordered, "notes": notes}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the named tables, or all, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="*", help=", ".join(RUNS))
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--runs", type=int)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--figure", type=Path, default=FIGURE)
    parser.add_argument("--draw", action="store_true", help="draw the figure, measure nothing")
    given = parser.parse_args(arguments)
    methods = given.methods.split(",")
    for name in () if given.draw else given.tables or RUNS:
        task, _, scoring = name.rpartition("-")
        fresh = least_epsilon(
            task,
            scoring,
            given.data,
            methods=methods,
            runs=given.runs or RUNS[name],
            jobs=given.jobs,
        )
        # Read again: another call may have measured other rows meanwhile.
        known = json.loads(given.results.read_text("utf-8")) if given.results.exists() else {}
        known[name] = merged(known.get(name, {}), fresh, methods)
        tables = [*(name for name in RUNS if name in known), *(set(known) - set(RUNS))]
        text = json.dumps({name: known[name] for name in tables}, indent=2)
        given.results.write_text(text + "\n", encoding="utf-8")
        print(name, json.dumps(fresh["rows"]), flush=True)
    tables = json.loads(given.results.read_text("utf-8"))
    draw(tables, given.figure)
    if given.figure == FIGURE:
        draw(tables, FRONT, _FRONT)


if __name__ == "__main__":
    main()
