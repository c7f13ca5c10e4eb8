"""Charts of answers: labels, how many more there are, time on a time axis."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib", reason="needs the plot extra")

from matplotlib.dates import num2date

from expost import plots
from expost.analytics.answer_charts import draw_answers
from expost.analytics.count_result import AnswerTable, Measured
from tests.test_plots import check, kept

__all__ = ["kept"]  # a fixture


def table(keys: tuple[str, ...], groups: list[tuple[str, ...]], start: float = 1000) -> AnswerTable:
    sizes = [start + 10 * index for index in range(len(groups))]
    lows, highs = [size - 20 for size in sizes], [size + 20 for size in sizes]
    measured = Measured(sizes, lows, highs, [index % 3 > 0 for index in range(len(sizes))])
    return AnswerTable(keys, groups, (measured,), "users", "480 of 480 groups")


def test_thirty_labels_and_how_many_more(kept: list[Any]) -> None:
    draw_answers(table(("g",), [(f"$group_{i}",) for i in range(480)]), Path("x.png"))
    (axes,) = kept[0].axes
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels[0] == "$group_479"  # the largest; no mathematics in a name
    assert labels[29:] == ["$group_450", "and 450 more"]
    check(kept[0])


def test_a_few_groups(kept: list[Any]) -> None:
    draw_answers(table(("g",), [("a",), ("b" * 60,)]), Path("x.png"))
    (axes,) = kept[0].axes
    assert [label.get_text()[:3] for label in axes.get_yticklabels()] == ["bbb", "a"]
    check(kept[0])


def test_nothing_and_unknown(kept: list[Any]) -> None:
    nan = float("nan")
    empty = AnswerTable(("g",), [("a",)], (Measured([nan], [nan], [nan], [False]),))
    draw_answers(empty, Path("x.png"))
    assert kept[0].axes[0].get_yticklabels() == []
    assert "no number is known" in kept[0].axes[0].texts[0].get_text()


def test_a_long_query_is_a_title_above_all_panels(kept: list[Any]) -> None:
    """Above one panel it pushed the others away."""
    sizes = [900.0, 500.0]
    measures = tuple(
        Measured(sizes, [800, 400], [1000, 600], [True, True], name) for name in ("n", "m", "s")
    )
    sql = "SELECT g, " + ", ".join(f"SUM(amount_{n}) AS s{n}" for n in range(40)) + " FROM $t"
    draw_answers(AnswerTable(("g",), [("a",), ("b",)], measures, title=sql), Path("x.png"))
    figure = kept[0]
    figure.draw_without_rendering()
    title = figure.get_suptitle()
    assert 1 < len(title.splitlines()) <= 3
    widths = [axes.get_position().width for axes in figure.axes]
    assert min(widths) > 0.2
    assert max(widths) - min(widths) < 0.03


def test_months_on_a_time_axis(kept: list[Any]) -> None:
    months = [(f"2024-{month:02d}",) for month in range(1, 13)]
    draw_answers(table(("month",), months), Path("x.png"))
    (axes,) = kept[0].axes
    line = axes.get_lines()[0]
    assert [num2date(x).date() for x in axes.convert_xunits(line.get_xdata())][:2] == [
        date(2024, 1, 1),
        date(2024, 2, 1),
    ]
    check(kept[0])


def test_months_of_products(kept: list[Any]) -> None:
    groups = [(f"p{i}", f"2024-{month:02d}-01") for i in range(9) for month in range(1, 4)]
    draw_answers(table(("product", "day"), groups), Path("x.png"))
    legend = kept[0].axes[0].get_legend()
    names = ["p8", "p7", "p6", "p5", "p4", "and 4 more"]
    assert sorted(text.get_text() for text in legend.get_texts()) == sorted(names)
    check(kept[0])


def test_numbers_are_no_dates(kept: list[Any]) -> None:
    """Not dates: years of one value only, other numbers, and a day that does not exist."""
    for names in (["2024"], ["1", "2"], ["2024-02-30", "2024-01-01"]):
        draw_answers(table(("g",), [(name,) for name in names]), Path("x.png"))
        assert len(kept[-1].axes[0].get_yticklabels()) == len(names)


def test_several_measures(kept: list[Any]) -> None:
    measure = table(("g",), [("a",), ("b",)]).measures[0]
    draw_answers(AnswerTable(("g",), [("a",), ("b",)], (measure, measure)), Path("x.png"))
    assert len(kept[0].axes) == 2


def test_a_file(tmp_path: Path) -> None:
    draw_answers(table(("g",), [("a",), ("b",)]), tmp_path / "x.png")
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
    assert plots.INK
