"""How the results of ``expost count`` are shown: tables and plans."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from expost.analytics.certificate import CountResult
from expost.analytics.plan import QueryPlan
from expost.analytics.refinement import Answer
from expost.cli.output import shown_up, visible
from expost.rationals import charge_text

_SHOWN = 40
_UNITS = {"epsilon": "ε", "rho": "ρ"}


def group_name(group: Any) -> str:
    """Return a group's name for people; several columns are joined by a slash."""
    return " / ".join(map(str, group)) if isinstance(group, (tuple, list)) else str(group)


def number(value: float) -> str:
    """Return a number with as many digits as help."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.4g}"


def _groups(count: int) -> str:
    """Return a number of groups in words."""
    return f"{count:,} group{'s' * (count != 1)}"


def render(console: Console, result: CountResult) -> None:
    """Print answers, what was spent, and what is protected."""
    error = f"{result.within:.0%}" if result.within is not None else f"± {result.plus_minus:g}"
    title = f"{_groups(len(result.answers))} within {error}"
    render_answers(console, result.answers, title, f"{result.confidence:.0%} interval")
    unit = _UNITS[result.unit]
    facts = result.guarantee.as_dict()
    delta = f", δ = {charge_text(facts['delta'])}" if "delta" in facts else ""
    console.print(
        f"{_groups(len(result.unanswered))} not answered. "
        f"Spent {unit} = {shown_up(result.spent, 5)}, {result.remaining:.2g} remains. "
        f"Everything released keeps ε = {charge_text(facts['epsilon'])}{delta} for "
        f"{result.protects}."
    )
    if result.dropped_share is not None:
        share = result.dropped_share
        console.print(
            f"The cap dropped about {share['estimate']:.1%} of (user, group) pairs "
            f"({share['low']:.1%} – {share['high']:.1%}); intervals are for the capped values."
        )


def render_answers(
    console: Console,
    answers: Sequence[Answer],
    title: str = "answers so far",
    interval: str = "interval",
) -> None:
    """Print a table of answers."""
    table = Table(title=title, title_justify="left")
    for heading in ("group", "estimate", interval, "spent"):
        table.add_column(
            heading, justify="left" if heading == "group" else "right", overflow="fold"
        )
    for answer in answers[:_SHOWN]:
        table.add_row(
            Text(visible(group_name(answer.group))),
            number(answer.estimate),
            f"{number(answer.low)} – {number(answer.high)}",
            charge_text(answer.spent, 4),
        )
    console.print(table)
    if len(answers) > _SHOWN:
        console.print(f"… and {len(answers) - _SHOWN} more (--out or --json for all).")


def render_plan(console: Console, planned: QueryPlan) -> None:
    """Print what groups of some sizes would cost."""
    unit = _UNITS[planned.unit]
    table = Table(title="What a group costs, by its size", title_justify="left")
    for heading in ("users in the group", f"{unit} it needs", "such groups that can be answered"):
        table.add_column(heading, justify="right")
    for each in planned.sizes:
        cost = "more than there is" if each.cost is None else f"{each.cost:.3g}"
        groups = "all" if each.groups is None else f"{each.groups:,}"
        table.add_row(f"{each.size:,}", cost, groups)
    console.print(table)
    most = planned.max_groups_per_user
    how = " (assumed; it will be chosen privately)" if planned.assumed else ""
    console.print(
        f"Total {unit} = {planned.total:.4g}, of which {planned.for_values:.4g} for the answers. "
        f"With at most {most:,} groups per user{how} every group can have {unit} = "
        f"{planned.for_values / most:.3g}: enough for {planned.smallest:,.0f} users or more."
    )
    if planned.threshold is not None:
        console.print(f"Groups are found privately from about {planned.threshold:,} users on.")
