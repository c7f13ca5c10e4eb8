"""``expost quantile`` and ``expost query``: questions per group, each to the error you need.

The options are derived from :class:`.QuantileRequest` and :class:`.SqlRequest`.
Tests: ``tests/cli/test_quantile_cli.py``, ``tests/cli/test_query_cli.py``.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from expost.analytics.count_result import check_out, number_text, round_answer, write_document
from expost.analytics.quantile_request import QuantileRequest, plan_quantile
from expost.analytics.quantiles import QuantileResult, check_quantile_file, quantile
from expost.analytics.request import request_settings
from expost.analytics.sql_parser import parse_question
from expost.analytics.sql_request import SqlPlan, SqlRequest, plan_query
from expost.analytics.sql_result import QueryResult
from expost.analytics.sql_run import query
from expost.cli.count import (
    TableVersion,
    check_new_certificate,
    given_options,
    opened_ledger,
    read_keys,
)
from expost.cli.output import (
    NOTHING_FOUND,
    Analyst,
    BudgetName,
    CertificateFile,
    Json,
    LedgerName,
    Source,
    Verbose,
    earlier_words,
    notes,
    render_cost,
    request_option,
    show,
    shown_up,
    visible,
    with_options,
)
from expost.errors import InvalidInput

_SHOWN = 40
_UNITS = {"epsilon": "ε", "rho": "ρ"}
# Types on the command line, where they differ: lists are repeated or joined by commas.
_QUANTILE_TYPES: dict[str, Any] = {
    "bounds": tuple[float, float] | None,
    "grid": float | None,
    "keys": Path | None,
    **dict.fromkeys(("by", "where"), list[str] | None),
    **dict.fromkeys(("at", "bins", "max_groups_per_user", "max_rows_per_user"), str | None),
}
_QUERY_TYPES: dict[str, Any] = {
    **dict.fromkeys(("source", "public", "private", "bounds", "keys"), list[str] | None),
    **dict.fromkeys(("max_groups_per_user", "max_rows_per_user"), str | None),
}


def _tell_more(console: Console, listed: int) -> None:
    """Say how many lines a table does not show."""
    if listed > _SHOWN:
        console.print(f"… and {listed - _SHOWN} more (--out or --json for all).")


@with_options(
    [
        request_option(
            name,
            _QUANTILE_TYPES.get(name, hint),
            setting.help,
            required=name in ("column", "epsilon", "user"),
        )
        for name, (hint, setting) in request_settings(QuantileRequest).items()
    ]
)
def quantile_command(
    source: Source,
    plan: Annotated[
        bool, typer.Option("--plan", help="Show what groups would cost; reads no data.")
    ] = False,
    ledger: LedgerName = None,
    budget: BudgetName = None,
    analyst: Analyst = "",
    out: Annotated[
        Path | None, typer.Option(help="Write the answers to this file (.csv or .json).")
    ] = None,
    certificate: CertificateFile = None,
    verbose: Verbose = False,
    table_version: TableVersion = None,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Quantiles (medians, quartiles) and histograms per group, within the wanted rank error."""
    request = _quantile_request(options)
    if out is not None:
        check_quantile_file(out, both="bins" in request and "at" in request)
        check_out(out)
    check_new_certificate(certificate)
    if plan:
        planned = plan_quantile(**request)
        show(planned, as_json=as_json, render=lambda console: _show_quantile_plan(console, planned))
        return
    account: Any = {"ledger": ledger, "budget": budget, "analyst": analyst}
    result = quantile(source, **request, **account, table_version=table_version)
    rendered = partial(_render_quantile, result=result, verbose=verbose)
    show(result.as_dict(), as_json=as_json, render=rendered)
    if told := earlier_words(result):
        notes.print(told, highlight=False)
    if certificate is not None:
        write_document(result.certificate(), certificate)
        notes.print(f"certificate: {certificate}")
    if out is not None:
        result.save(out)
        notes.print(f"answers: {out}")


def _quantile_request(options: dict[str, Any]) -> Any:
    """The request that options of the command line mean; reads the file of keys."""
    asked = given_options(options)
    for name in ("at", "bins"):
        if name in asked:
            asked[name] = _numbers(name, asked[name])
    if isinstance(asked.get("bins"), list) and len(asked["bins"]) == 1:
        asked["bins"] = int(asked["bins"][0])
    if "keys" in asked:
        asked["keys"] = read_keys(asked["keys"], asked.get("by", ()))
    return asked


def _numbers(name: str, text: str) -> list[float]:
    """Numbers that are separated by commas."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise InvalidInput(name, text, "give numbers, separated by commas") from None


def _name(group: Any) -> str:
    """The name of a group; several columns are joined by a slash."""
    return " / ".join(group) if isinstance(group, tuple) else str(group)


def _render_quantile(console: Console, result: QuantileResult, verbose: bool) -> None:
    """Print quantiles, then bins, then what it cost and what that means for a person."""
    if result.answers or result.unanswered:
        _render_quantiles(console, result)
    if result.histogram:
        _render_bins(console, result)
    if result.unanswered and result.within_rank is not None:
        console.print(
            "Quantiles that are not answered need more than the budget has. A larger --within-rank "
            "or --epsilon answers more; so does --max-groups-per-user, if a person is in few "
            "groups: it pays for that many groups only."
        )
    rows = result.max_rows_per_user
    console.print(
        f"{'One row' if rows == 1 else f'Up to {rows} rows'} per person and group count"
        f"{'s' * (rows == 1)}, chosen at random; ranks are among the rows that count."
    )
    render_cost(console, result, verbose)


def _render_quantiles(console: Console, result: QuantileResult) -> None:
    answered, total = len(result.answers), len(result.answers) + len(result.unanswered)
    goal = (
        "" if result.within_rank is None else f" within {result.within_rank:g} of the wanted rank"
    )
    title = f"{answered:,} of {total:,} quantiles{goal} ({result.confidence:.0%} confidence)"
    if result.within_rank is None:
        title = f"{total:,} quantiles ({result.confidence:.0%} confidence)"
    table = Table(title=title, title_justify="left")
    # Without --value-intervals the values between which a quantile lies are far apart: in --json.
    spans = ["the quantile is"] if result.query["value_intervals"] else []
    goals = [] if result.within_rank is None else ["answered"]  # without a goal nothing is missed
    for heading in ("group", "rank", "value", "its rank is", *spans, *goals):
        side: Any = "left" if heading == "group" else "right"
        table.add_column(heading, justify=side, overflow="fold")
    listed = [(answer, "yes") for answer in result.answers]
    listed += [(answer, "no") for answer in result.unanswered]
    for answer, word in listed[:_SHOWN]:
        known = answer.estimate == answer.estimate
        table.add_row(
            Text(visible(_name(answer.group))),
            f"{answer.at:g}",
            number_text(answer.estimate) if known else "–",
            f"{answer.rank_low:.3f} – {answer.rank_high:.3f}" if known else "–",
            *(f"{number_text(answer.low)} – {number_text(answer.high)}" for _ in spans),
            *(word for _ in goals),
        )
    console.print(table)
    _tell_more(console, len(listed))


def _render_bins(console: Console, result: QuantileResult) -> None:
    table = Table(title="Share of rows per bin", title_justify="left")
    for heading in ("group", "from", "to", "share", "interval"):
        table.add_column(heading, justify="left" if heading == "group" else "right")
    for share in result.histogram[:_SHOWN]:
        table.add_row(
            Text(visible(_name(share.group))),
            number_text(share.start),
            number_text(share.end),
            f"{share.share:.1%}",
            f"{share.low:.1%} – {share.high:.1%}",
        )
    console.print(table)
    _tell_more(console, len(result.histogram))


def _show_quantile_plan(console: Console, planned: dict[str, Any]) -> None:
    """Print what one attempt at a group of some size costs."""
    unit = _UNITS[planned["unit"]]
    table = Table(title="What the quantiles of a group cost, by its size", title_justify="left")
    for heading in ("rows that count", f"{unit} of one attempt"):
        table.add_column(heading, justify="right")
    for size in planned["sizes"]:
        table.add_row(f"{size['size']:,}", f"{size['cost']:.3g}")
    console.print(table)
    console.print(
        f"Total {unit} = {planned['total']:.4g}. A group can have this, divided by the number of "
        "groups or by --max-groups-per-user."
    )


@with_options(
    [
        request_option(
            name,
            _QUERY_TYPES.get(name, hint),
            setting.help,
            required=name in ("epsilon", "user", "source"),
        )
        for name, (hint, setting) in request_settings(SqlRequest).items()
    ]
)
def query_command(
    sql: Annotated[
        str, typer.Argument(help="A SELECT with aggregates, or @FILE for the text of a file.")
    ],
    plan: Annotated[
        bool, typer.Option("--plan", help="Show what it would cost; reads no private row.")
    ] = False,
    ledger: LedgerName = None,
    budget: BudgetName = None,
    analyst: Analyst = "",
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write the rows to this file: .csv, .parquet, .xlsx, .json, .md or .png."
        ),
    ] = None,
    certificate: CertificateFile = None,
    verbose: Verbose = False,
    table_version: TableVersion = None,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Answer one SELECT on private rows; all aggregates share one scan and one charge."""
    check_out(out)
    check_new_certificate(certificate)
    text = _text(sql)
    request = _query_request(options, text)
    if plan:
        planned = plan_query(text, **request)
        show(
            planned.as_dict(),
            as_json=as_json,
            render=lambda console: _show_query_plan(console, planned),
        )
        return
    opened = opened_ledger(ledger, budget, analyst)
    account: Any = {"ledger": opened, "budget": budget, "analyst": analyst}
    result = query(text, **request, **account, table_version=table_version)
    for warning in result.warnings:
        notes.print(f"warning: {warning}", highlight=False, soft_wrap=True)
    rendered = partial(render_query, result=result, verbose=verbose)
    show(result.as_dict(), as_json=as_json, render=rendered)
    if told := earlier_words(result):
        notes.print(told, highlight=False)
    if out is not None:
        result.table().save(out)
        notes.print(f"answers: {out}")
    if certificate is not None:
        result.save(certificate)
        notes.print(f"certificate: {certificate}")


def _text(sql: str) -> str:
    """The query itself, or the text of a file."""
    if not sql.startswith("@"):
        return sql
    path = Path(sql[1:])
    if not path.is_file():
        raise InvalidInput("sql", sql, "there is no such file")
    from expost.files import read_small

    return read_small(path, "sql")


def _query_request(options: dict[str, Any], sql: str) -> Any:
    """The request that options of the command line mean; reads the files of keys."""
    asked = given_options(options)
    if "bounds" in asked:
        asked["bounds"] = dict(map(_bounds, asked["bounds"]))
    if "private" in asked:
        asked["private"] = dict(map(_join_cap, asked["private"]))
    if "keys" in asked:
        asked["keys"] = _keys(asked["keys"], [name for name, _ in parse_question(sql).groups])
    return asked


def _bounds(text: str) -> tuple[str, tuple[float, float]]:
    """COLUMN=LOW:HIGH."""
    name, equals, ends = text.rpartition("=")
    low, colon, high = ends.partition(":")
    try:
        if equals and colon and name:
            return name, (float(low), float(high))
    except ValueError:
        pass
    raise InvalidInput("bounds", text, "give COLUMN=LOW:HIGH, for example amount=0:500")


def _join_cap(text: str) -> tuple[str, int]:
    """TABLE=ROWS."""
    name, _, rows = text.rpartition("=")
    if not name or not rows.isdigit():
        raise InvalidInput("private", text, "give TABLE=ROWS, for example visits=5")
    return name, int(rows)


def _keys(texts: list[str], groups: list[str]) -> Any:
    """One file for all columns of GROUP BY, or NAME=FILE for single ones."""
    single: dict[str, Any] = {}
    for text in texts:
        name, equals, path = text.partition("=")
        if not equals or Path(text).is_file():
            if len(texts) > 1:
                raise InvalidInput("keys", text, "give one file, or NAME=FILE for each column")
            return read_keys(Path(text), groups)
        single[name] = read_keys(Path(path), [name])
    return single


def render_query(console: Console, result: QueryResult, verbose: bool = False) -> None:
    """Print the rows, what was spent, and what that means for a person."""
    answered = sum(row.answered for row in result.rows)
    title = f"{answered:,} of {len(result.rows):,} rows answered within {_goal(result)}"
    table, answers = Table(title=title, title_justify="left"), result.table()
    for name in answers.keys:
        table.add_column(visible(name), overflow="fold")
    for measure in answers.measures:
        table.add_column(visible(measure.name), justify="right", overflow="fold")
        table.add_column(f"{result.confidence:.0%} interval", justify="right", overflow="fold")
    table.add_column("answered", justify="right", no_wrap=True, min_width=8)
    for index, row in enumerate(result.rows[:_SHOWN]):
        cells = [Text(visible(key)) for key in answers.groups[index]]
        for measure in answers.measures:
            ends = measure.lows[index], measure.highs[index]
            rounded = round_answer(measure.estimates[index], *ends, whole=measure.whole)
            said = [number_text(number, whole=measure.whole) for number in rounded]
            between = "–" if said[1] == said[2] == "–" else f"{said[1]} – {said[2]}"
            cells += [Text(said[0]), Text(between)]
        table.add_row(*cells, Text("yes" if row.answered else "no"))
    if not result.rows:
        console.print(NOTHING_FOUND, highlight=False)
    else:
        console.print(table)
    _tell_more(console, len(result.rows))
    if not result.rows:
        why = ["no group was found"] if result.public["keys"] == "found privately" else []
        why += [] if result.question.having is None else ["HAVING keeps none"]
        console.print(f"There is no row: {' or '.join(why) or 'OFFSET leaves none'}.")
    if answered < len(result.rows):
        console.print(_about_unanswered(result), highlight=False)
    render_cost(console, result, verbose)
    if verbose:
        parts = "; ".join(f"{part.label} {shown_up(part.spent, 4)}" for part in result.parts)
        console.print(f"By part: {parts}; the rest is for caps and groups.", highlight=False)


def _about_unanswered(result: QueryResult) -> str:
    """Why rows may have no answer; says nothing about private rows."""
    shares = {part.label: part.dropped_share or {} for part in result.parts}
    moved = [
        label
        for label, share in shares.items()
        if result.within is not None and share.get("bias", 0.0) >= 0.9 * result.within
    ]
    if moved:
        return (
            f"No row is called within {result.within:.0%}: the caps may have moved "
            f"{' and '.join(map(visible, moved))} by more. Intervals leave that out. Give a larger "
            "--epsilon or --within, or "
            f"state {_caps_to_state(result)} as large as almost everybody needs: the answers are "
            "then about the table with these caps."
        )
    return (
        "Rows that are not answered need more than the budget has for all their columns; their "
        "intervals still hold. A larger --within or --epsilon, tighter --bounds or fewer "
        "aggregates answer more (--plan says which is expensive)."
    )


def _caps_to_state(result: QueryResult) -> str:
    """The options of the caps that apply to a query."""
    groups = ["--max-groups-per-user"] if result.question.groups else []
    rows = any(part.kind in ("rows", "sum", "distinct") for part in result.parts)
    return " and ".join(groups + (["--max-rows-per-user"] if rows else []))


def _goal(result: QueryResult) -> str:
    """The wanted error of the numbers, that of the ranks of quantiles, or both."""
    kinds = {part.kind for part in result.parts}
    error = f"{result.within:.0%}" if result.within is not None else f"± {result.plus_minus:g}"
    said = [] if kinds == {"quantile"} else [error]
    said += [f"{result.within_rank:g} of the rank"] if "quantile" in kinds else []
    return " and ".join(said)


def _show_query_plan(console: Console, planned: SqlPlan) -> None:
    """Print the share of every aggregate, and what it means for groups of some sizes."""
    unit = _UNITS[planned.unit]
    table = Table(title="What an aggregate may spend, and what a group needs", title_justify="left")
    table.add_column("aggregate", overflow="fold")
    table.add_column(f"{unit} at most", justify="right")
    for size in planned.parts[0].sizes:
        table.add_column(f"{size.size:,} persons", justify="right")
    for part in planned.parts:
        costs = ["–" if size.cost is None else f"{size.cost:.3g}" for size in part.sizes]
        table.add_row(Text(visible(part.label)), f"{part.share:.4g}", *costs)
    console.print(table)
    console.print(
        f"Total {unit} = {planned.total:.4g}; caps and groups cost "
        f"{sum(planned.shares.values()):.3g} of it. At most {planned.max_groups_per_user:,} groups "
        f"per person{' (assumed; chosen privately)' if planned.assumed else ''}.",
        highlight=False,
    )
