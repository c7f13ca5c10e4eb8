"""What a schedule is expected to reach, as a table for people."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from expost.selection.attempts import ReachRow
from expost.tuning.timing import Pace


def reach_table(rows: Sequence[ReachRow], pace: Pace | None = None) -> Table:
    """Return what to expect, level by level, as a table for people."""
    table = Table(
        title="If the settings are good enough: a share of them passes, from a level on",
        title_justify="left",
    )
    headings = (
        "level ε",
        "share",
        "chance to pass",
        "mean total ε",
        "ε (90 %)",
        "runs",
    )
    for heading in (*headings, *(() if pace is None else ("time",))):
        table.add_column(heading, justify="right")
    levels = sorted({row.level for row in rows})
    shown = levels if len(levels) <= 4 else [levels[0], levels[len(levels) // 3], levels[-1]]
    for row in rows:
        if row.level not in shown or row.share not in (0.5, 0.1, 0.02):
            continue
        cells = [
            f"{row.level:g}",
            f"{100 * row.share:g} %",
            f"{100 * row.p_pass:.4g} %" if row.p_pass < 0.9999 else "> 99.99 %",
            f"{row.epsilon_mean:.3g}",
            f"{row.epsilon_p90:.3g}",
            few_digits(row.runs_mean),
        ]
        if pace is not None:
            cells.append(duration(pace.seconds(row.runs_mean)))
        table.add_row(*cells)
    return table


def few_digits(number: float) -> str:
    """Return a number of runs: three digits, and no exponent."""
    return f"{number:.3g}" if number < 100 else f"{number:,.0f}"


def duration(seconds: float) -> str:
    """Return a time in seconds, minutes or hours."""
    if seconds < 100:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.0f} h"
