"""What a schedule is expected to reach, as a table for people."""

from __future__ import annotations

import os
from collections.abc import Sequence

from rich.table import Table

from expost.selection.attempts import ReachRow


def reach_table(rows: Sequence[ReachRow], seconds_per_run: float | None = None) -> Table:
    """Return what to expect, level by level, as a table for people."""
    table = Table(
        title="What to expect, if a share of the settings passes from a level on",
        title_justify="left",
    )
    headings = (
        "from level ε",
        "share",
        "chance to pass",
        "total ε (mean)",
        "total ε (90 %)",
        "runs",
    )
    for heading in (*headings, *(() if seconds_per_run is None else ("time",))):
        table.add_column(heading, justify="right")
    levels = sorted({each.level for each in rows})
    shown = levels if len(levels) <= 4 else [levels[0], levels[len(levels) // 3], levels[-1]]
    for each in rows:
        if each.level not in shown or each.share not in (0.5, 0.1, 0.02):
            continue
        cells = [
            f"{each.level:g}",
            f"{100 * each.share:g} %",
            f"{100 * each.p_pass:.4g} %" if each.p_pass < 0.9999 else "> 99.99 %",
            f"{each.epsilon_mean:.3g}",
            f"{each.epsilon_p90:.3g}",
            f"{each.runs_mean:.3g}",
        ]
        if seconds_per_run is not None:
            cells.append(duration(seconds_per_run * each.runs_mean / (os.cpu_count() or 1)))
        table.add_row(*cells)
    return table


def duration(seconds: float) -> str:
    """Return a time in seconds or minutes."""
    return f"{max(1, round(seconds))} s" if seconds < 100 else f"{seconds / 60:.0f} min"
