"""Figures: all drawing of the package (extra ``[plot]``).

The functions take plain values, or results whose attributes they read; they compute nothing
private. Every figure shows released or public values only, except that of an audit, which shows how
two data sets differ. Matplotlib is imported at first use. The user's backend and rcParams stay as
they are: figures are made without pyplot, inside a style context. The colours are those of Okabe
and Ito, which colour-blind readers can tell apart. Tests: ``tests/test_plots.py``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any

from expost.errors import InvalidInput, MissingExtra
from expost.rationals import charge_text

__all__ = [
    "INK",
    "check_path",
    "draw_audit",
    "draw_bars",
    "draw_facts",
    "draw_ledger",
    "draw_reach",
    "draw_tuning",
    "figure",
    "house_style",
    "save",
]

INK = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7")
"""Blue, orange, green, vermilion, purple: the palette of Okabe and Ito."""

_FORMATS = (".png", ".pdf", ".svg")
_DPI = 160
_STYLE: dict[str, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.3,
    "legend.frameon": False,
    "svg.hashsalt": "expost",
}


def figure(columns: int, width: float = 5.0, height: float = 3.6) -> tuple[Any, list[Any]]:
    """Make a figure with panels of this size in inches, side by side; see :func:`save`."""
    with house_style():
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        drawn: Any = Figure(figsize=(width * columns, height), layout="constrained")
        FigureCanvasAgg(drawn)
        axes = drawn.subplots(1, columns, squeeze=False)
        return drawn, list(axes[0])


def check_path(path: Path | None) -> None:
    """Refuse a file name that could not be written later; None means no figure."""
    if path is not None and path.suffix.lower() not in _FORMATS:
        raise InvalidInput("plot", str(path), "give a file name ending in " + ", ".join(_FORMATS))
    if path is not None and not path.resolve().parent.is_dir():
        raise InvalidInput("plot", str(path), "the folder does not exist")


def save(drawn: Any, path: Path) -> None:
    """Write a figure to a file, whose ending decides the format (PNG, PDF or SVG)."""
    for axes in drawn.axes:
        legend = axes.get_legend()
        if legend is not None:
            legend.set_frame_on(False)
    with house_style():
        if path.suffix.lower() == ".png":  # the same picture; savefig would lay it out twice
            drawn.set_dpi(_DPI)
            drawn.canvas.print_png(path)
        else:
            drawn.savefig(path, dpi=_DPI)


def draw_bars(axes: Any, claimed: Sequence[float], shown: Sequence[float]) -> None:
    """Draw one bar per lower bound and one mark per claim; bars above their mark are hatched."""
    broken = {"facecolor": INK[3], "hatch": "//", "edgecolor": "white", "linewidth": 0}
    bars: list[Any] = list(axes.bar(range(len(shown)), shown, 0.5, color=INK[0]))
    for bar, value, limit in zip(bars, shown, claimed, strict=True):
        if value > limit:
            bar.set(**broken)
    left, right = ([index + side for index in range(len(shown))] for side in (-0.4, 0.4))
    axes.hlines(claimed, left, right, color="black", linewidth=2.5)
    axes.plot([], [], color="black", linewidth=2.5, label="claimed")
    axes.bar([0], [0], color=INK[0], label="measured, at least")
    axes.bar([0], [0], label="measured, above the claim", **broken)
    axes.set(xlim=(-1, len(shown)), ylim=(0, 1.08 * max([*claimed, *shown, 1e-3])))
    axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3)


def draw_audit(report: Any, path: Path) -> None:
    """Draw what an audit claimed and measured, outcome by outcome."""
    outcomes = report.outcomes
    names = ["nothing" if outcome.index is None else str(outcome.index) for outcome in outcomes]
    drawn, (axes,) = figure(1, width=max(5.0, min(12.0, 2.0 + 0.45 * len(names))))
    with house_style():
        draw_bars(
            axes,
            [outcome.claimed for outcome in outcomes],
            [outcome.lower_bound for outcome in outcomes],
        )
        shown = _ticks(len(names))
        axes.set_xticks(shown, [names[index] for index in shown])
        if any(outcome.order is not None for outcome in outcomes):
            measure = "Rényi ε at an order"
        else:
            measure = "ε" if report.delta == 0 else f"ε at δ = {report.delta:g}"
        axes.set(xlabel="outcome (index of the winner)", ylabel=measure)
        jointly = report.joint.violated and not any(outcome.violated for outcome in outcomes)
        verdict = report.verdict + (", all outcomes together" if jointly else "")
        axes.set_title(
            f"{verdict} ({report.confidence:.4g} confidence, {report.runs} runs each)", loc="left"
        )
    save(drawn, path)


def _ticks(count: int) -> list[int]:
    """Places of the labels: all of a few; of many, every so many and the last (a long word)."""
    last, every = count - 1, max(1, count // 25)
    return list(range(count)) if last < 12 else [*range(0, last - every, every), last]


def draw_tuning(
    path: Path,
    *,
    methods: Sequence[tuple[str, float]],
    delta: float,
    attempts: Sequence[tuple[float, float, float, bool | None]],
    total_delta: float,
    metric: str,
    target: float | None,
) -> None:
    """Draw what a released model cost, and its score.

    ``methods``: ways to tune, and the ε of one request at ``delta``; the first is this job's own.
    ``attempts``: for each, ε charged so far, the released score, the standard deviation of its
    noise, and whether it reached the goal.
    """
    drawn, (left, right) = figure(2, width=5.2, height=3.4)
    with house_style():
        names, values = zip(*methods, strict=True)
        colours = [INK[0], *["#999999"] * (len(values) - 1)]
        left.barh(names, values, 0.6, color=colours)
        left.invert_yaxis()
        for index, value in enumerate(values):
            left.annotate(
                charge_text(value, 3),
                (value, index),
                xytext=(3, 0),
                textcoords="offset points",
                va="center",
                fontsize=8,
            )
        left.margins(x=0.18)
        left.grid(axis="y", visible=False)
        left.set(xlabel=f"ε at δ = {charge_text(delta)} (smaller is more private)")
        left.set_title("What it cost, and what it could have cost", loc="left")
        for passed, colour, marker, label in (
            (True, INK[0], "o", "released" if target is None else "goal reached"),
            (False, INK[3], "s", "goal missed"),
        ):
            chosen = [attempt for attempt in attempts if (attempt[3] is not False) is passed]
            if chosen:
                spent, scores, noise, _ = zip(*chosen, strict=True)
                right.errorbar(
                    spent,
                    scores,
                    yerr=[2 * deviation for deviation in noise],
                    fmt=marker,
                    color=colour,
                    capsize=3,
                    label=label,
                )
        if target is not None:
            right.axhline(
                target, color="black", linewidth=0.8, linestyle="--", label=f"goal {target:g}"
            )
        right.set(
            xlabel=f"ε charged so far, at δ = {charge_text(total_delta)}",
            ylabel=f"{metric}, with noise",
            xlim=(0, 1.25 * max([attempt[0] for attempt in attempts], default=1.0)),
        )
        right.margins(y=0.25)
        right.set_title("The released model (± 2 standard deviations)", loc="left")
        if right.get_legend_handles_labels()[0]:
            right.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=3)
    save(drawn, path)


def draw_reach(path: Path, rows: Sequence[Any], *, delta: float) -> None:
    """Draw what a job with a goal is expected to cost, and how many runs it makes."""
    shares = [share for share in (0.5, 0.1, 0.02) if any(row.share == share for row in rows)]
    drawn, (left, right) = figure(2)
    with house_style():
        for colour, marker, share in zip(INK, "os^", shares, strict=False):
            chosen = [row for row in rows if row.share == share]
            levels = [row.level for row in chosen]
            label = f"{100 * share:g} % of the settings pass"
            means = [row.epsilon_mean for row in chosen]
            left.plot(levels, means, marker=marker, color=colour, label=label)
            left.plot(levels, [row.epsilon_p90 for row in chosen], ":", color=colour)
            runs = [row.runs_mean for row in chosen]
            right.plot(levels, runs, marker=marker, color=colour, label=label)
        left.plot([], [], ":", color="grey", label="90 % of jobs cost at most")
        chance = min(row.p_pass for row in rows if row.share in shares)
        left.set(xlabel="settings pass from this level ε on", ylabel=f"total ε at δ = {delta:g}")
        left.set_ylim(bottom=0)
        left.set_title(f"Cost of passing (chance ≥ {int(1000 * chance) / 10:g} %)", loc="left")
        left.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)
        right.set(xlabel="settings pass from this level ε on", ylabel="trainings made (mean)")
        right.set(yscale="log")
        right.set_title("Runs", loc="left")
        right.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)
    save(drawn, path)


def _edge(edge: float, kind: str) -> str:
    """Return where a bar begins: a day, or a number without an exponent where that is readable."""
    if kind == "date":
        day = min(max(round(edge) + date(2000, 1, 1).toordinal(), 1), date.max.toordinal())
        return date.fromordinal(day).isoformat()
    return f"{edge:,.0f}" if 100 <= abs(edge) < 1e9 else f"{edge:.4g}"


def draw_facts(facts: Any, path: Path) -> None:
    """Draw a small histogram per column, with bars of two standard deviations of the noise."""
    shown = [name for name, column in facts.items() if column.range or column.categories]
    across, down = min(4, max(1, len(shown))), max(1, math.ceil(len(shown) / 4))
    drawn, _ = figure(1, width=2.6 * across, height=2.0 * down)
    drawn.clear()
    with house_style():
        panels = drawn.subplots(down, across, squeeze=False).ravel()
        for axes in panels[len(shown) :]:
            axes.set_axis_off()
        for axes, name in zip(panels, shown, strict=False):
            column = facts[name]
            if column.range is not None:
                counts, noise = list(column.range.counts), column.range.deviation
                edges = [_edge(edge, column.kind) for edge in column.range.edges[:-1]]
            else:
                counts, noise = list(column.categories.values())[:8], column.deviation
                edges = [str(label)[:12] for label in list(column.categories)[:8]]
            heights = [max(count, 0.0) for count in counts]
            axes.bar(range(len(counts)), heights, yerr=2 * noise, color=INK[0], ecolor=INK[3])
            axes.set_xticks(range(len(counts)))
            axes.set_xticklabels(edges, rotation=90, fontsize=6, parse_math=False)
            axes.set_ylim(bottom=0)
            axes.set_title(name[:30], loc="left", fontsize=8, parse_math=False)
    save(drawn, path)


@contextmanager
def house_style() -> Iterator[None]:
    """Apply the style of the package, and nothing of the user's, until the end of the block."""
    try:
        from matplotlib import style
    except ImportError:
        raise MissingExtra("matplotlib", "plot") from None
    with style.context(["default", _STYLE]):
        yield


def draw_ledger(
    path: Path,
    *,
    name: str,
    unit: str,
    limit: float,
    settled: Sequence[float],
    held: Sequence[float],
    worst: Sequence[float],
) -> None:
    """Draw how a budget was used, entry by entry: settled, held, and the sum of worst cases."""
    used = [paid + waiting for paid, waiting in zip(settled, held, strict=True)]
    drawn, (axes,) = figure(1, width=6)
    for values, ink, line, label in (
        (settled, INK[0], "-", "settled: cost of the released answers"),
        (used, INK[1], "--", "settled and held"),
        (worst, INK[3], ":", "if every request cost its worst case"),
    ):
        axes.step(range(len(values)), values, where="post", color=ink, linestyle=line, label=label)
    axes.axhline(limit, color="black", linewidth=0.8, label="budget")
    axes.set(xlabel="entry", ylabel=unit)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_title(f"Budget {name}: what is charged and held", loc="left")
    drawn.legend(loc="outside lower center", ncols=2, fontsize=8)  # never over the lines
    save(drawn, path)
