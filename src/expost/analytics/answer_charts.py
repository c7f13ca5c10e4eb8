"""Charts of answers: the largest groups with their intervals, or values over time.

Drawn from released values only, in the style of ``expost.plots``.
Tests: ``tests/analytics/test_answer_charts.py``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from textwrap import fill
from typing import Any

from expost import plots
from expost.plots import INK, house_style

_ROWS, _LONGEST = 30, 40  # groups with a label, and letters of a label
_PER_INCH, _TITLE_LINES = 12, 3  # letters of a title, and its lines
_ISO = re.compile(r"(1[89]|20|21)\d\d(-\d\d(-\d\d([T ]\d\d:\d\d(:\d\d(\.\d{1,6})?)?)?)?)?")
_Shown = tuple[tuple[str, ...], float, float, float, bool]  # group, estimate, interval, answered


def draw_answers(table: Any, path: Path) -> None:
    """Draw released answers with their intervals: the largest groups, or values over time.

    Up to 30 groups have a row with a label; the chart says how many more there are. If one key
    holds dates, the values are drawn over time, a line for each of up to five groups of the other
    keys. Groups that were not looked at are left out.

    ``table``: an :class:`expost.analytics.count_result.AnswerTable`. ``path``: the file to write.
    """
    measures = list(table.measures)[:3]
    time = _time_key(table)
    shown = [_looked_at(table, measure) for measure in measures]
    rows = min(_ROWS, max([len(answers) for answers in shown], default=1))
    height = 4.0 if time is not None else max(2.4, 1.2 + 0.2 * rows)
    drawn, panels = plots.figure(
        len(measures), width=8 if len(measures) == 1 else 5.5, height=height
    )
    with house_style():
        for axes, measure, answers in zip(panels, measures, shown, strict=True):
            if not answers:
                axes.text(0.5, 0.5, f"{_label(table, measure)}: no number is known", ha="center")
                axes.texts[0].set_parse_math(False)
                axes.set(xticks=[], yticks=[])
                axes.set_axis_off()
            elif time is None:
                _draw_groups(axes, answers, _ROWS)
                axes.set_xlabel(_label(table, measure), parse_math=False)
                axes.xaxis.set_major_formatter("{x:,g}")
            else:
                _draw_times(axes, answers, time)
                axes.set_ylabel(_label(table, measure), parse_math=False)
                axes.yaxis.set_major_formatter("{x:,g}")
        # Above all panels: a long query above one of them would push the others away.
        width = int(_PER_INCH * drawn.get_size_inches()[0])
        title = fill(table.title, width, max_lines=_TITLE_LINES, placeholder=" …")
        drawn.suptitle(title, x=0.01, ha="left", fontsize=11, parse_math=False)
    plots.save(drawn, path)


def _label(table: Any, measure: Any) -> str:
    """What an axis shows: the only measure of a table is what the table is about."""
    return str(table.what if len(table.measures) == 1 else measure.name)


def _looked_at(table: Any, measure: Any) -> list[_Shown]:
    """The answers that have an estimate, largest first."""
    numbers = zip(measure.estimates, measure.lows, measure.highs, measure.answered, strict=True)
    answers = [
        (tuple(str(key) for key in group), estimate, low, high, bool(answered))
        for group, (estimate, low, high, answered) in zip(table.groups, numbers, strict=True)
        if math.isfinite(estimate) and math.isfinite(low) and math.isfinite(high)
    ]
    return sorted(answers, key=lambda answer: -answer[1])


def _draw_groups(axes: Any, answers: Sequence[_Shown], most: int) -> None:
    """A row per group: its name, its estimate and its interval."""
    listed = answers[:most]
    for answered, colour, marker, label in (
        (True, INK[0], "o", "answered"),
        (False, INK[3], "s", "not answered (wider interval)"),
    ):
        rows = [row for row, answer in enumerate(listed) if answer[4] is answered]
        if rows:
            chosen = [listed[row] for row in rows]
            axes.errorbar(
                [answer[1] for answer in chosen],
                rows,
                xerr=_errors(chosen),
                fmt=marker,
                color=colour,
                elinewidth=1,
                capsize=2,
                markersize=4,
                label=label,
            )
    names = [_short(" / ".join(answer[0]) or "all") for answer in listed]
    names += [f"and {len(answers) - most:,} more"] if len(answers) > most else []
    axes.set_yticks(range(len(names)), names)
    for text in axes.get_yticklabels():
        text.set_parse_math(False)
    axes.set_ylim(len(names) - 0.4, -0.6)
    ends = [answer[1] for answer in listed]
    lows = [answer[2] for answer in listed]
    if ends and min(lows) > 0 and max(ends) > 50 * min(ends):
        axes.set_xscale("log")
    elif ends and min(lows) >= 0:
        axes.set_xlim(left=0)
    if not all(answer[4] for answer in listed):
        axes.legend(fontsize=8, loc="lower right")


def _draw_times(axes: Any, answers: Sequence[_Shown], key: int) -> None:
    """A line over time for each of the largest groups of the other keys."""
    from matplotlib import dates

    scale: Any = dates

    lines: dict[tuple[str, ...], list[_Shown]] = {}
    for answer in answers:
        lines.setdefault(answer[0][:key] + answer[0][key + 1 :], []).append(answer)
    order = sorted(lines, key=lambda name: -sum(answer[1] for answer in lines[name]))
    for colour, name in zip(INK, order, strict=False):
        chosen = sorted(lines[name], key=lambda answer: _moment(answer[0][key]) or "")
        moments = [_datetime(answer[0][key]) for answer in chosen]
        axes.errorbar(
            moments,
            [answer[1] for answer in chosen],
            yerr=_errors(chosen),
            fmt="o-",
            color=colour,
            elinewidth=1,
            capsize=2,
            markersize=3,
            linewidth=1,
            label=_short(" / ".join(name)) or None,
        )
    if answers and min(answer[2] for answer in answers) >= 0:
        axes.set_ylim(bottom=0)
    locator = scale.AutoDateLocator(minticks=3, maxticks=8)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(scale.ConciseDateFormatter(locator))
    if len(lines) > 1:
        if len(lines) > len(INK):
            axes.plot([], [], " ", label=f"and {len(lines) - len(INK):,} more")
        legend = axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.01, 1))
        for text in legend.get_texts():
            text.set_parse_math(False)


def _errors(answers: Sequence[_Shown]) -> list[list[float]]:
    """How far intervals reach below and above their estimates."""
    return [
        [max(answer[1] - answer[2], 0.0) for answer in answers],
        [max(answer[3] - answer[1], 0.0) for answer in answers],
    ]


def _short(name: str) -> str:
    """A label that leaves room for the chart; without letters that fonts cannot draw."""
    name = "".join(letter if letter.isprintable() else "?" for letter in name)
    return name if len(name) <= _LONGEST else name[: _LONGEST - 1] + "…"


def _time_key(table: Any) -> int | None:
    """The first key whose values are all dates, at least two different ones."""
    for key in range(len(table.keys)):
        values = {str(group[key]) for group in table.groups}
        if len(values) > 1 and all(_moment(value) for value in values):
            return key
    return None


def _moment(text: str) -> str | None:
    """A year, month, day or time in ISO form, completed to a time; None for other texts."""
    if not _ISO.fullmatch(text):
        return None
    whole = text + "0000-01-01"[len(text) :] if len(text) < 10 else text
    try:
        return datetime.fromisoformat(whole).replace(tzinfo=None).isoformat()
    except ValueError:
        return None


def _datetime(text: str) -> datetime:
    return datetime.fromisoformat(_moment(text) or "1970-01-01")
