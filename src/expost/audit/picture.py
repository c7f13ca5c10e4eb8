"""The figure of an empirical audit: claimed and measured loss of each outcome."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from expost import plots
from expost.audit.report import AuditReport

KEPT, BROKEN, CLAIMED = plots.INK[0], plots.INK[3], plots.INK[1]


def draw(report: AuditReport, path: Path) -> None:
    """Draw one bar per lower bound and one line per claim; bars above their line are red."""
    names = ["nothing" if each.index is None else str(each.index) for each in report.outcomes]
    drawn, (axes,) = plots.figure(1, width=max(5.0, min(12.0, 2.0 + 0.45 * len(names))))
    claimed = [each.claimed for each in report.outcomes]
    bars(axes, claimed, [each.lower_bound for each in report.outcomes])
    last, every = len(names) - 1, max(1, len(names) // 25)
    # The last name, "nothing", is long: leave room before it.
    shown = range(len(names)) if last < 12 else [*range(0, last - every, every), last]
    axes.set_xticks(shown, [names[place] for place in shown])
    renyi = any(each.order is not None for each in report.outcomes)
    measure = (
        "Rényi ε at an order"
        if renyi
        else "ε"
        if report.delta == 0
        else f"ε at δ = {report.delta:g}"
    )
    axes.set(xlabel="outcome (index of the winner)", ylabel=measure)
    together = (
        ", all outcomes together"
        if report.joint.violated and not any(o.violated for o in report.outcomes)
        else ""
    )
    axes.set_title(
        f"{report.verdict}{together} ({report.confidence:.4g} confidence, {report.runs} runs each)",
        loc="left",
    )
    plots.save(drawn, path)


def bars(axes: Any, claimed: list[float], shown: list[float], top: float | None = None) -> None:
    """Draw bars from 0 and lines for the claims, with the legend below."""
    places = range(len(shown))
    colours = [
        BROKEN if value > limit else KEPT for value, limit in zip(shown, claimed, strict=True)
    ]
    axes.set_axisbelow(True)
    axes.bar(places, shown, 0.5, color=colours)
    axes.hlines(
        claimed,
        [place - 0.4 for place in places],
        [place + 0.4 for place in places],
        color=CLAIMED,
        linewidth=2.5,
    )
    axes.plot([], [], color=CLAIMED, linewidth=2.5, label="claimed")
    axes.bar([0], [0], color=KEPT, label="shown by the runs, at least")
    axes.bar([0], [0], color=BROKEN, label="… above the claim")
    axes.set(
        xlim=(-1, len(shown)),
        ylim=(0, 1.08 * max([*claimed, *shown, 1e-3]) if top is None else top),
    )
    axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3)
