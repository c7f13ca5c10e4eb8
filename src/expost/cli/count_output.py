"""How the results of ``expost count`` are shown: tables and plans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from expost.analytics.certificate import CountResult
from expost.analytics.plan import QueryPlan
from expost.analytics.refinement import Answer
from expost.cli.output import shown_up, visible
from expost.privacy.charges import ShareCharges
from expost.rationals import charge_text

_SHOWN = 40
_VAGUE = 0.5  # a share whose interval is wider says nothing
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
    """Print all groups, what was spent, and what is protected."""
    error = f"{result.within:.0%}" if result.within is not None else f"± {result.plus_minus:g}"
    asked = len(result.answers) + len(result.unanswered)
    title = f"{len(result.answers):,} of {_groups(asked)} answered within {error}"
    title += _caps_in_title(result.dropped_share)
    render_answers(
        console,
        result.answers,
        title,
        interval=f"{result.confidence:.0%} interval",
        unit=_UNITS[result.unit],
        unanswered=result.unanswered,
    )
    if result.unanswered:
        console.print(_about_unanswered(result), highlight=False)
    console.print(_about_spent(result), highlight=False)
    if result.dropped_share is not None:
        console.print(_about_dropped(result, result.dropped_share), highlight=False)


def _about_unanswered(result: CountResult) -> str:
    """Why groups may have no answer; says nothing about rows."""
    bias = (result.dropped_share or {}).get("bias", 0.0)
    if result.within is not None and bias >= result.within:
        return (
            f"No group is answered within {result.within:.0%}, because the caps alone remove more "
            "than that. So each was looked at once only. Give a larger --max-rows-per-user or "
            "--max-groups-per-user, wider --bounds, or a larger --within."
        )
    text = (
        "Groups that are not answered are too small for this budget and this error; their "
        "intervals still hold."
    )
    if result.public["keys"] == "listed" and result.query["by"]:
        text += " Names of groups are compared letter by letter: capitals and spaces matter."
    return text


def _about_spent(result: CountResult) -> str:
    """What was spent, what becomes of the rest, and what was guaranteed beforehand."""
    unit, spent = _UNITS[result.unit], shown_up(result.spent, 5)
    facts = result.guarantee.as_dict()
    before = f"ε = {charge_text(facts['epsilon'])}"
    before += f", δ = {charge_text(facts['delta'])}" if "delta" in facts else ""
    if result.unit == "rho":
        total = f"{result.public['total']:.4g} (zCDP; the most that {before} allows)"
    else:
        total = f"{result.public['total']:.4g}"
    if result.ledger is not None and not isinstance(result.charges, ShareCharges):
        rest = f" The ledger is charged the whole {before}: one δ covers all outcomes."
    elif result.ledger is not None:
        rest = f" The other {result.remaining:.2g} of this request goes back to the budget."
    else:
        rest = f" The other {result.remaining:.2g} of this request was not used."
    return (
        f"Spent {unit} = {spent} of {total}.{rest}\n"
        f"Before the data were read, at most {before} was guaranteed for any result; {unit} = "
        f"{spent} is the privacy loss of the result above. Protected: {result.protects}."
    )


_SHARES = {"pairs": "(user, group) pairs", "rows": "rows", "amount": "the amount"}


def _caps_in_title(share: Mapping[str, Any] | None) -> str:
    """What the caps remove from rows, sums and means, for the headline."""
    if share is None or share["of"] == "pairs":
        return ""
    if share["high"] - share["low"] > _VAGUE:
        return "; what the caps remove is not known"
    return f"; the caps remove at least about {share['estimate']:.1%} of {_SHARES[share['of']]}"


def _about_dropped(result: CountResult, share: Mapping[str, Any]) -> str:
    """How much the caps dropped, if the budget is large enough to say."""
    rows, what = result.public["max_rows_per_user"], _SHARES[share["of"]]
    caps = "" if rows is None else f" of {rows:,} row{'s' * (rows != 1)} per user and group"
    if caps and result.public["rows_chosen_privately"]:
        caps += " (chosen privately)"
    least = "" if share["of"] == "pairs" else "at least "  # a user counts with a limit
    if share["high"] - share["low"] > _VAGUE:
        return (
            f"The budget is too small to say how much of {what} the cap{caps} dropped; "
            "intervals are for the capped values. If everybody has one row, --one-row-per-user "
            "saves this estimate."
        )
    text = (
        f"The cap{caps} dropped {least}about {share['estimate']:.1%} of {what} "
        f"({share['low']:.1%} – {share['high']:.1%}); intervals are for the capped values."
    )
    if share["of"] == "amount":
        text += " The amount includes what the bounds clip."
    if result.within is not None and (share.get("bias") or share.get("shift")):
        text += f" What the caps change is counted against the {result.within:.0%}."
    return text


def render_answers(
    console: Console,
    answers: Sequence[Answer],
    title: str = "answers so far",
    *,
    interval: str = "interval",
    unit: str = "",
    unanswered: Sequence[Answer] = (),
) -> None:
    """Print a table of answers, then of groups without one."""
    table = Table(title=title, title_justify="left")
    spent = f"{unit} spent".strip()
    for heading in ("group", "estimate", interval, spent, *(["answered"] if unanswered else [])):
        table.add_column(
            heading, justify="left" if heading == "group" else "right", overflow="fold"
        )
    listed = [(each, "yes") for each in answers] + [(each, "no") for each in unanswered]
    for answer, answered in listed[:_SHOWN]:
        looked = answer.estimate == answer.estimate
        facts = (
            number(answer.estimate) if looked else "–",
            f"{number(answer.low)} – {number(answer.high)}" if looked else "–",
            charge_text(answer.spent, 4),
        )
        last = [answered] if unanswered else []
        table.add_row(Text(visible(group_name(answer.group))), *facts, *last)
    console.print(table)
    if len(listed) > _SHOWN:
        console.print(f"… and {len(listed) - _SHOWN} more (--out or --json for all).")


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
    if planned.assumed_rows is not None:
        console.print(
            f"Rows per user and group will be chosen privately; {planned.assumed_rows} are assumed."
        )
    if planned.threshold is not None:
        console.print(f"Groups are found privately from about {planned.threshold:,} users on.")
