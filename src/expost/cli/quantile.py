"""``expost quantile``: quantiles and histograms per group, each to the rank error you need.

The options are derived from :class:`.QuantileRequest`.
Tests: ``tests/cli/test_quantile_cli.py``.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from expost.analytics.answer_files import check_out, number_text, write_document
from expost.analytics.quantile_request import QuantileRequest, plan_quantile
from expost.analytics.quantiles import QuantileResult, check_quantile_file, quantile
from expost.analytics.request import request_settings
from expost.cli.count import TableVersion, check_new_certificate, parse_cap, read_keys
from expost.cli.count_screens import earlier_words, render_cost
from expost.cli.output import Json, Verbose, notes, request_option, show, visible, with_options
from expost.errors import InvalidInput

_SHOWN = 40
_UNITS = {"epsilon": "ε", "rho": "ρ"}
# Types on the command line, where they differ: lists are repeated or joined by commas.
_TYPES: dict[str, Any] = {
    "bounds": tuple[float, float] | None,
    "grid": float | None,
    "keys": Path | None,
    **dict.fromkeys(("by", "where"), list[str] | None),
    **dict.fromkeys(("at", "bins", "max_groups_per_user", "max_rows_per_user"), str | None),
}


@with_options(
    [
        request_option(
            name,
            _TYPES.get(name, hint),
            setting.help,
            required=name in ("column", "epsilon", "user"),
        )
        for name, (hint, setting) in request_settings(QuantileRequest).items()
    ]
)
def quantile_command(
    source: Annotated[
        str,
        typer.Argument(
            help="A CSV, TSV, JSON-lines or Parquet file, a folder or glob of them, a DuckDB or "
            "SQLite file, or a connection URL (duckdb://, postgresql://, pyspark://)."
        ),
    ],
    plan: Annotated[
        bool, typer.Option("--plan", help="Show what groups would cost; reads no data.")
    ] = False,
    ledger: Annotated[str | None, typer.Option(help="Charge this ledger.")] = None,
    budget: Annotated[str | None, typer.Option(help="Budget of the ledger.")] = None,
    analyst: Annotated[str, typer.Option(help="The analyst, for caps per analyst.")] = "",
    out: Annotated[
        Path | None, typer.Option(help="Write the answers to this file (.csv or .json).")
    ] = None,
    certificate: Annotated[
        Path | None, typer.Option(help="Write a certificate (JSON) to this file.")
    ] = None,
    verbose: Verbose = False,
    table_version: TableVersion = None,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Quantiles (medians, quartiles) and histograms per group, within the wanted rank error."""
    request = _request(options)
    if out is not None:
        check_quantile_file(out, both="bins" in request and "at" in request)
        check_out(out)
    check_new_certificate(certificate)
    if plan:
        planned = plan_quantile(**request)
        show(planned, as_json=as_json, render=lambda console: _render_plan(console, planned))
        return
    account: Any = {"ledger": ledger, "budget": budget, "analyst": analyst}
    result = quantile(source, **request, **account, table_version=table_version)
    rendered = partial(_render, result=result, verbose=verbose)
    show(result.as_dict(), as_json=as_json, render=rendered)
    if told := earlier_words(result):
        notes.print(told, highlight=False)
    if certificate is not None:
        write_document(result.certificate(), certificate)
        notes.print(f"certificate: {certificate}")
    if out is not None:
        result.save(out)
        notes.print(f"answers: {out}")


def _request(options: dict[str, Any]) -> Any:
    """The request that options of the command line mean; reads the file of keys."""
    asked = {
        name: value for name, value in options.items() if value is not None and value is not False
    }
    for name in ("at", "bins"):
        if name in asked:
            asked[name] = _numbers(name, asked[name])
    if isinstance(asked.get("bins"), list) and len(asked["bins"]) == 1:
        asked["bins"] = int(asked["bins"][0])
    for name, words in (
        ("max_groups_per_user", ("auto", "none")),
        ("max_rows_per_user", ("auto",)),
    ):
        if name in asked:
            asked[name] = parse_cap(name, asked[name], *words)
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


def _render(console: Console, result: QuantileResult, verbose: bool) -> None:
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
    if len(listed) > _SHOWN:
        console.print(f"… and {len(listed) - _SHOWN} more (--out or --json for all).")


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
    if len(result.histogram) > _SHOWN:
        console.print(f"… and {len(result.histogram) - _SHOWN} more (--out or --json for all).")


def _render_plan(console: Console, planned: dict[str, Any]) -> None:
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
