"""How tight the charges are: attacks by search over the usual regime.

``python -m reproduction tightness`` takes about 90 seconds. It writes docs/results/tightness.json,
docs/figures/tightness.png and the tables of docs/tightness.md. With ``--longer`` it repeats the
search over the regime with more outputs and ten times as many generations, and records how much
more it found. The search itself is in :mod:`reproduction.tightness_search`.
Tests: ``tests/reproduction/test_counterexamples.py``, ``tests/test_figures.py``.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

from scripts.fill_documents import fill

from expost import plots
from reproduction.tightness_search import (
    CANDIDATES,
    EPSILONS,
    GENERATIONS,
    ORDERS,
    OUTPUTS,
    SEED,
    SETTINGS,
    Point,
    others,
    regime,
)

DOCS = Path(__file__).parent.parent / "docs"


def grid(points: list[Point], kind: str, fraction: float) -> str:
    """Tabulate best attack, charge and the paper's charge by ε and candidates (rows) and order."""
    lines = [
        "| ε | candidates | " + " | ".join(f"α = {order:g}" for order in ORDERS) + " |",
        "|---" * (len(ORDERS) + 2) + "|",
    ]
    for epsilon, candidates in product(EPSILONS, CANDIDATES):
        cells = [each for each in points if key(each) == (kind, fraction, epsilon, candidates)]
        lines.append(f"| {epsilon:g} | {candidates} | " + " | ".join(map(cell, cells)) + " |")
    return "\n".join(lines)


def key(point: Point) -> tuple[str, float, float, int]:
    """Return what identifies a row of the grid."""
    return point.promise, point.overhead, point.epsilon, point.candidates


def cell(point: Point) -> str:
    """Return a cell of the grid: the ratio (bold without room), attack, charge, paper."""
    ratio = f"{point.ratio:.2f}" if point.room else f"**{point.ratio:.2f}**"
    return f"{ratio} ({number(point.attack)}, {number(point.charge)}, {number(point.paper)})"


def number(value: float | None) -> str:
    """Format a number; a dash for None."""
    return "–" if value is None else f"{value:.3g}"


def room(points: list[Point]) -> str:
    """Tabulate where the charge exceeds the best attack by more than 10 %."""
    heads = (
        "promise",
        "ε′",
        "α",
        "points with room",
        "best attack / charge",
        "best attack / sharp theorem alone",
    )
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for (kind, fraction), order in product(SETTINGS, ORDERS):
        chosen = [
            each
            for each in points
            if (each.promise, each.overhead, each.order) == (kind, fraction, order)
        ]
        wide = f"{sum(each.room for each in chosen)} of {len(chosen)}"
        spans = [
            span([each.ratio for each in chosen]),
            span([each.attack / each.sharp for each in chosen]),
        ]
        lines.append(
            "| " + " | ".join((kind, f"{fraction:g}·ε", f"{order:g}", wide, *spans)) + " |"
        )
    return "\n".join(lines)


def span(values: list[float]) -> str:
    """Format the smallest and the largest value."""
    return f"{min(values):.2f} – {max(values):.2f}"


def theorems(rows: list[dict[str, object]]) -> str:
    """Tabulate the attacks on the other theorems."""
    lines = ["| what | bound | best attack / bound |", "|---|---|---|"]
    lines += [f"| {row['what']} | {row['bound']} | {row['ratio']:.4f} |" for row in rows]
    return "\n".join(lines)


def draw(points: list[Point], path: Path) -> None:
    """Draw charge / ε against the order, one panel per number of candidates, at ε = 0.2."""
    drawn, panels = plots.figure(len(CANDIDATES), width=3.6, height=3.4)
    series = (
        ("paper", "paper", "s:"),
        ("charge", "charge", "o-"),
        ("best attack", "attack", "^--"),
    )
    for axes, candidates in zip(panels, CANDIDATES, strict=True):
        chosen = [each for each in points if key(each) == ("one order", 0.1, 0.2, candidates)]
        for colour, (label, name, style) in zip(plots.INK, series, strict=False):
            shown = [
                (each.order, getattr(each, name) / each.epsilon)
                for each in chosen
                if getattr(each, name) is not None
            ]
            axes.plot(*zip(*shown, strict=True), style, color=colour, label=label, markersize=4)
        axes.set(
            xscale="log",
            yscale="log",
            xlabel="order α",
            title=f"{candidates:,} candidates",
            ylim=(1.8, 700.0),
        )
        axes.set_xticks(ORDERS, [f"{order:g}" for order in ORDERS], minor=False)
        axes.set_yticks(
            [2, 5, 10, 20, 50, 100, 200, 500], ["2", "5", "10", "20", "50", "100", "200", "500"]
        )
        axes.minorticks_off()
    panels[0].set_ylabel("charge / ε, at ε = 0.2, ε′ = 0.1·ε")
    panels[0].legend(fontsize=8)
    plots.save(drawn, path)


def longer(record: dict[str, Any]) -> dict[str, Any]:
    """Repeat the search over the regime, ten times as long and with six outputs.

    Returns the largest gain over the short search.
    """
    best: dict[str, Any] = {
        "generations": 240,
        "outputs": 6,
        "gain": 0.0,
        "gain_where_tight": 0.0,
        "violated": 0,
    }
    for before, after in zip(record["points"], regime(240, 6), strict=True):
        gain = after.attack / before["attack"] - 1
        best["gain"] = max(best["gain"], gain)
        if before["ratio"] > 0.5:
            best["gain_where_tight"] = max(best["gain_where_tight"], gain)
        best["violated"] += after.violated
    return best


def longer_text(found: dict[str, Any] | None) -> str:
    """Return the sentence of the page about the longer search."""
    if found is None:
        return "The longer search has not been run on these figures."
    return (
        f"A search ten times as long, over {found['outputs']} outputs, raised the best attack by "
        f"at most {100 * found['gain']:.1f} % ({100 * found['gain_where_tight']:.1f} % where the "
        f"ratio was above one half), and broke {found['violated'] or 'nothing'}."
    )


def write(record: dict[str, Any]) -> None:
    """Write the results, the figure and the tables of the page.

    The result of the longer search is kept as long as the points do not change.
    """
    path, page = DOCS / "results" / "tightness.json", DOCS / "tightness.md"
    before = (
        json.loads(path.read_text(encoding="utf-8"))
        if path.exists()
        else {"points": [], "longer": None}
    )
    if record["longer"] is None and same(before["points"], record["points"]):
        record["longer"] = before["longer"]
    path.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    points = [
        Point(**{name: value for name, value in each.items() if name != "ratio"})
        for each in record["points"]
    ]
    draw(points, DOCS / "figures" / "tightness.png")
    fill(page, "room", room(points))
    fill(page, "theorems", theorems(record["others"]))
    fill(page, "longer", longer_text(record["longer"]))
    for name, (kind, fraction) in zip(
        ("one-order", "one-order-dear", "gaussian"), SETTINGS, strict=True
    ):
        fill(page, name, grid(points, kind, fraction))


def same(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> bool:
    """Whether two searches found the same attacks."""
    pairs = list(zip(before, after, strict=False))
    return len(before) == len(after) and all(
        math.isclose(a["attack"], b["attack"], rel_tol=1e-6) for a, b in pairs
    )


def compute(*, more: bool = False, render: bool = False) -> dict[str, Any]:
    """Search the regime, search longer, or read the committed results; then write them."""
    if more or render:
        record: dict[str, Any] = json.loads(
            (DOCS / "results" / "tightness.json").read_text(encoding="utf-8")
        )
        record["longer"] = longer(record) if more else record["longer"]
    else:
        points, rows = list(regime(GENERATIONS, OUTPUTS)), list(others(GENERATIONS))
        listed = [asdict(each) | {"ratio": each.ratio} for each in points]
        record = {
            "seed": SEED,
            "generations": GENERATIONS,
            "outputs": OUTPUTS,
            "points": listed,
            "others": rows,
            "longer": None,
        }
    write(record)
    return record
