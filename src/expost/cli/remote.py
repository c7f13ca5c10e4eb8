"""``expost --server URL …``: the commands of a server. The data stay there.

The token is read from ``EXPOST_TOKEN`` or from a file that only its owner can read; it is never an
argument, which other users of the machine could see. Tests: ``tests/server/test_client.py``.
"""

from __future__ import annotations

import json
import os
import tomllib
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from expost.analytics.count_result import check_out, write_document
from expost.cli.certificate import (
    Errors,
    PackFolder,
    Period,
    PrivateKey,
    check_period,
    read_errors,
    write_pack,
)
from expost.cli.count import MeanColumn, Out, SumColumn, request_of_options, with_request_options
from expost.cli.ledger_tables import short_amount
from expost.cli.output import MISSED_BAR, Json, notes, render_result, show, value_in_words, visible
from expost.errors import InvalidInput
from expost.files import read_small, require_private
from expost.server.client import Connection, connect
from expost.tuning.request.tune_request import parsed

app = typer.Typer(no_args_is_help=True, help="Ask a server (expost server start).")
ledger_app = typer.Typer(no_args_is_help=True, help="Budgets of the server.")
app.add_typer(ledger_app, name="ledger")

Dataset = Annotated[str, typer.Argument(help="Name of the data set.")]
Memo = Annotated[str, typer.Option(help="What the answer is for.")]
Key = Annotated[
    str | None, typer.Option(help="Repeat a call with its key: the same answer, charged once.")
]


def read_token(file: Path | None) -> str:
    """Return the token from ``EXPOST_TOKEN`` or from a private file."""
    if file is None:
        token = os.environ.get("EXPOST_TOKEN", "")
        if not token:
            raise InvalidInput("token", None, "set EXPOST_TOKEN, or give --token-file FILE")
        return token
    require_private(file, "token-file")
    return read_small(file, "token-file", "ascii").strip()


def _server(context: typer.Context) -> Connection:
    """The connection that the options before the command describe."""
    given = context.find_root().params
    return connect(given["server"], read_token(given.get("token_file")))


@app.command("count")
@with_request_options(analysts=True)
def remote_count(
    dataset: Dataset,
    context: typer.Context,
    size: Annotated[int | None, typer.Option(help="Expected persons per group.")] = None,
    sum_column: SumColumn = None,
    mean_column: MeanColumn = None,
    plan: Annotated[bool, typer.Option("--plan", help="Show the price and stop.")] = False,
    certificate: Annotated[Path | None, typer.Option(help="Write the certificate here.")] = None,
    memo: Memo = "",
    key: Key = None,
    out: Out = None,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Counts, sums and means per group from a server, each within the wanted error.

    Without --epsilon the server takes the smallest that is enough.
    """
    if certificate is not None and certificate.exists():
        raise InvalidInput("certificate", str(certificate), "the file exists already")
    check_out(out)
    request = request_of_options(options | {"size": size}, sum_column, mean_column)
    server = _server(context)
    if plan:
        price = server.price(dataset, **request)
        show(price, as_json=as_json, render=lambda console: _render_price(console, price))
        return
    result = server.count(dataset, memo=memo, key=key, **request)
    for warning in result.warnings:
        notes.print(f"warning: {warning}", highlight=False, soft_wrap=True)
    show(result.as_dict(), as_json=as_json, render=lambda console: render_result(console, result))
    if certificate is not None:
        write_document(result.certificate(), certificate)
        notes.print(f"certificate: {certificate}")
    if out is not None:
        result.save(out)
        notes.print(f"answers: {out}", soft_wrap=True)


@app.command("plan")
def remote_plan(
    context: typer.Context,
    epsilons: Annotated[str, typer.Option(help="Privacy levels, ascending: 0.1,0.2,0.4.")],
    configurations: Annotated[int, typer.Option(help="Settings to tune over at each level.")],
    delta: Annotated[float, typer.Option(help="δ of the job.")] = 1e-6,
    repeats: Annotated[int, typer.Option(help="Copies of each setting.")] = 1,
    attempts: Annotated[int | None, typer.Option(help="The most attempts.")] = None,
    as_json: Json = False,
) -> None:
    """Plan a tuning job: chance of passing, total ε, runs."""
    planned = _server(context).plan(
        parsed("epsilons", epsilons),
        configurations,
        delta=delta,
        repeats=repeats,
        attempts=attempts,
    )
    show(planned, as_json=as_json, render=lambda console: _render_pairs(console, "Plan", planned))


@app.command("tune")
def remote_tune(
    context: typer.Context,
    dataset: Dataset,
    config: Annotated[Path, typer.Argument(help="The job as TOML, without [data].")],
    out: Annotated[Path | None, typer.Option(help="Folder for certificate and model.")] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Show the price and stop.")] = False,
    memo: Memo = "",
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Tune a model on the rows of a server. The exit code is 5 if the goal was missed."""
    try:
        tables = tomllib.loads(read_small(config, "config"))
    except tomllib.TOMLDecodeError as error:
        raise InvalidInput("config", str(config), f"it is not TOML: {error}") from None
    if plan:
        price = _server(context).price(dataset, "tune", **tables)
        show(price, as_json=as_json, render=lambda console: _render_price(console, price))
        return
    result = _server(context).tune(dataset, tables, memo=memo, key=key)
    if out is not None:
        result.save(out)
    document = result.as_dict()
    show(
        document, as_json=as_json, render=lambda console: _render_pairs(console, "Tuned", document)
    )
    if not result.passed:
        raise typer.Exit(MISSED_BAR)


@app.command("datasets")
def remote_datasets(context: typer.Context, as_json: Json = False) -> None:
    """List the data sets of the server."""
    facts = _server(context).datasets()

    def render(console: Console) -> None:
        table = Table("data set", "groups", "values", "left", title="Data sets")
        for dataset in facts:
            left = None if dataset["standing"] is None else dataset["standing"]["remaining"]
            columns = [", ".join(dataset.get(part) or ()) for part in ("groups", "values")]
            cells = [dataset["name"], *columns, value_in_words(_remaining(left))]
            table.add_row(*(Text(visible(cell)) for cell in cells))
        console.print(table)

    show({"datasets": facts}, as_json=as_json, render=render)


@app.command("release")
def remote_release(
    context: typer.Context,
    request: Annotated[str, typer.Argument(help="Id of the request.")],
    as_json: Json = False,
) -> None:
    """Fetch a paid answer again, at no charge."""
    result = _server(context).release(request)

    def render(console: Console) -> None:
        if hasattr(result, "answers"):
            render_result(console, result)
        else:
            _render_pairs(console, "Tuned", result.as_dict())

    show(result.as_dict(), as_json=as_json, render=render)


@app.command("evidence")
def remote_evidence(
    context: typer.Context,
    releases: Annotated[list[str] | None, typer.Argument(help="Ids of releases.")] = None,
    out: PackFolder = Path("evidence"),
    period: Period = None,
    key: PrivateKey = None,
    errors: Errors = None,
) -> None:
    """Write a self-assessment after NIST SP 800-226, and its records, for releases of a server."""
    begins, server, measured = check_period(period), _server(context), read_errors(errors)
    names = list(releases or ())
    if not names:
        views = [view for view in server.requests() if view["release"]]
        names = [view["id"] for view in views if str(view["published"]).startswith(begins)]
    packed = [server.record(name) for name in names]
    for record in packed:
        record |= measured if record["request"]["kind"] == "tune" else {}
    kept = [one for one in packed if str(one["request"]["published"]).startswith(begins)]
    write_pack(out, kept, [release["verdict"] for release in kept], key)


@ledger_app.command("show")
def ledger_show(
    context: typer.Context,
    name: Annotated[str | None, typer.Option(help="Name of the budget.")] = None,
    as_json: Json = False,
) -> None:
    """Show the budgets of the server."""
    standing = _server(context).budget(name)
    listed = standing if isinstance(standing, list) else [standing]

    def render(console: Console) -> None:
        table = Table("budget", "kind", "settled", "held", "remaining", title="Budgets")
        for budget in listed:
            cells = [budget["name"], budget["kind"]]
            cells += [value_in_words(budget[part]) for part in ("settled", "held")]
            cells += [value_in_words(_remaining(budget["remaining"]))]
            table.add_row(*(Text(visible(cell)) for cell in cells))
        console.print(table)

    show({"budgets": listed}, as_json=as_json, render=render)


def _remaining(amount: Any) -> Any:
    """What remains, for people: with few digits, rounded down."""
    if isinstance(amount, dict):
        return {name: _remaining(part) for name, part in amount.items()}
    return short_amount(Fraction(str(amount)), up=False) if isinstance(amount, float) else amount


def _render_price(console: Console, price: dict[str, Any]) -> None:
    """Print the price of a question."""
    shown = {
        "ε": price["epsilon"],
        "δ": price["delta"],
        "held at worst": price["worst_case"],
        "remaining": _remaining(price["remaining"][-1]),
        "fits": price["fits"],
    }
    planned = price["plan"]
    if "all_missed" in planned:  # of a tuning job
        shown |= {"ε if the goal is missed": planned["all_missed"], "left out": planned["left_out"]}
    else:
        shown["enough for groups of"] = planned.get("smallest_size_for_all")
    _render_pairs(console, "Price", shown)


def _render_pairs(console: Console, title: str, document: dict[str, Any]) -> None:
    """Print names and values."""
    table = Table(title=title, show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in document.items():
        nested = isinstance(value, (dict, list))
        text = json.dumps(value, ensure_ascii=False) if nested else value_in_words(value)
        table.add_row(name, Text(visible(text)))
    console.print(table)
