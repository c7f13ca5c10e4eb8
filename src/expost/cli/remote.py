"""``expost --server URL …``: the commands of a desk. The data stay there.

The token is read from ``EXPOST_TOKEN`` or from a file that only its owner can read; it is never an
argument, which other users of the machine could see. Tests: ``tests/server/test_remote_cli.py``.
"""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

from expost.cli import count_output
from expost.cli.count_inputs import parse_cap, read_keys
from expost.cli.levels import parse_levels
from expost.cli.output import MISSED_BAR, Json, in_words, notes, show, visible
from expost.errors import InvalidInput
from expost.secret_files import require_private
from expost.server.client import Connection, connect
from expost.small_files import read_small

app = typer.Typer(no_args_is_help=True, help="Ask a desk (expost serve).")
ledger_app = typer.Typer(no_args_is_help=True, help="Budgets of the desk.")
app.add_typer(ledger_app, name="ledger")

Dataset = Annotated[str, typer.Argument(help="Name of the data set.")]
Memo = Annotated[str, typer.Option(help="What the answer is for.")]
Key = Annotated[
    str | None, typer.Option(help="Repeat a call with its key: the same answer, charged once.")
]


class WithServer(TyperGroup):
    """The commands of this machine, or with ``--server`` those of a desk."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command of this name."""
        if ctx.params.get("server"):
            return typer.main.get_group(app).get_command(ctx, cmd_name)
        return super().get_command(ctx, cmd_name)


def read_token(file: Path | None) -> str:
    """Return the token from ``EXPOST_TOKEN`` or from a private file."""
    if file is None:
        token = os.environ.get("EXPOST_TOKEN", "")
        if not token:
            raise InvalidInput("token", None, "set EXPOST_TOKEN, or give --token-file FILE")
        return token
    require_private(file, "token-file")
    return read_small(file, "token-file", "ascii").strip()


def _desk(context: typer.Context) -> Connection:
    """The connection that the options before the command describe."""
    given = context.find_root().params
    return connect(given["server"], read_token(given.get("token_file")))


@app.command()
def count(
    context: typer.Context,
    dataset: Dataset,
    by: Annotated[list[str] | None, typer.Option(help="Column of the group; repeat it.")] = None,
    within: Annotated[float | None, typer.Option(help="Wanted relative error.")] = None,
    plus_minus: Annotated[
        float | None, typer.Option("--plus-minus", help="Wanted absolute error instead.")
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="Total ε; by default the smallest that is enough.")
    ] = None,
    delta: Annotated[float | None, typer.Option(help="Total δ.")] = None,
    size: Annotated[int | None, typer.Option(help="Expected persons per group.")] = None,
    rows: Annotated[bool, typer.Option("--rows", help="Count rows, not persons.")] = False,
    sum_column: Annotated[str | None, typer.Option("--sum", help="Sum this column.")] = None,
    mean_column: Annotated[str | None, typer.Option("--mean", help="Average this column.")] = None,
    where: Annotated[list[str] | None, typer.Option(help="Condition on rows. Repeat.")] = None,
    keys: Annotated[Path | None, typer.Option(help="File with the groups.")] = None,
    private_keys: Annotated[
        bool, typer.Option("--private-keys", help="Find the groups privately.")
    ] = False,
    max_groups_per_user: Annotated[
        str | None, typer.Option(help="In how many groups a person counts.")
    ] = None,
    confidence: Annotated[float | None, typer.Option(help="Coverage of the intervals.")] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Show the price; ask nothing.")] = False,
    certificate: Annotated[Path | None, typer.Option(help="Write the certificate here.")] = None,
    memo: Memo = "",
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Counts, sums and means per group from a desk, each within the wanted error."""
    if sum_column is not None and mean_column is not None:
        raise InvalidInput("--mean", "with --sum", "ask for one of them")
    if certificate is not None and certificate.exists():
        raise InvalidInput("certificate", str(certificate), "the file exists already")
    kind = "sum" if sum_column else "mean" if mean_column else "count"
    options: dict[str, Any] = {
        "by": by,
        "within": within,
        "plus_minus": plus_minus,
        "epsilon": epsilon,
        "delta": delta,
        "size": size,
        "rows": rows or None,
        "where": where,
        "keys": None if keys is None else read_keys(keys, by or ()),
        "private_keys": private_keys or None,
        "max_groups_per_user": parse_cap(max_groups_per_user),
        "confidence": confidence,
        "column": sum_column or mean_column,
    }
    desk = _desk(context)
    if plan:
        price = desk.price(dataset, kind, **options)
        show(price, as_json=as_json, render=lambda console: _render_price(console, price))
        return
    column = options.pop("column")
    arguments = (dataset,) if kind == "count" else (dataset, column)
    result = getattr(desk, kind)(*arguments, memo=memo, key=key, **options)
    for warning in result.warnings:
        notes.print(f"warning: {warning}", highlight=False, soft_wrap=True)
    show(
        result.as_dict(),
        as_json=as_json,
        render=lambda console: count_output.render(console, result),
    )
    if certificate is not None:
        result.save(certificate)
        notes.print(f"certificate: {certificate}")


@app.command()
def plan(
    context: typer.Context,
    epsilons: Annotated[str, typer.Option(help="Privacy levels, ascending: 0.1,0.2,0.4.")],
    configurations: Annotated[int, typer.Option(help="Settings to tune over at each level.")],
    delta: Annotated[float, typer.Option(help="δ of the job.")] = 1e-6,
    repeats: Annotated[int, typer.Option(help="Copies of each setting.")] = 1,
    attempts: Annotated[int | None, typer.Option(help="The most attempts.")] = None,
    as_json: Json = False,
) -> None:
    """Plan a tuning job: chance of passing, total ε, runs."""
    found = _desk(context).plan(
        parse_levels(epsilons), configurations, delta=delta, repeats=repeats, attempts=attempts
    )
    show(found, as_json=as_json, render=lambda console: _render_pairs(console, "Plan", found))


@app.command()
def tune(
    context: typer.Context,
    dataset: Dataset,
    config: Annotated[Path, typer.Argument(help="The job as TOML, without [data].")],
    out: Annotated[Path | None, typer.Option(help="Folder for certificate and model.")] = None,
    memo: Memo = "",
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Tune a model on the rows of a desk. The exit code is 5 if the bar was missed."""
    try:
        tables = tomllib.loads(read_small(config, "config"))
    except tomllib.TOMLDecodeError as error:
        raise InvalidInput("config", str(config), f"it is not TOML: {error}") from None
    result = _desk(context).tune(dataset, tables, memo=memo, key=key)
    if out is not None:
        result.save(out)
    document = result.as_dict()
    show(
        document, as_json=as_json, render=lambda console: _render_pairs(console, "Tuned", document)
    )
    if not result.passed:
        raise typer.Exit(MISSED_BAR)


@app.command()
def datasets(context: typer.Context, as_json: Json = False) -> None:
    """List the data sets of the desk."""
    found = _desk(context).datasets()

    def render(console: Console) -> None:
        table = Table("data set", "groups", "values", "left", title="Data sets")
        for each in found:
            left = None if each["standing"] is None else each["standing"]["remaining"]
            columns = [", ".join(each.get(part) or ()) for part in ("groups", "values")]
            cells = [each["name"], *columns, in_words(left)]
            table.add_row(*(Text(visible(cell)) for cell in cells))
        console.print(table)

    show({"datasets": found}, as_json=as_json, render=render)


@app.command()
def release(
    context: typer.Context,
    request: Annotated[str, typer.Argument(help="Id of the request.")],
    as_json: Json = False,
) -> None:
    """Fetch a paid answer again, at no charge."""
    result = _desk(context).release(request)

    def render(console: Console) -> None:
        if hasattr(result, "answers"):
            count_output.render(console, result)
        else:
            _render_pairs(console, "Tuned", result.as_dict())

    show(result.as_dict(), as_json=as_json, render=render)


@ledger_app.command("show")
def ledger_show(
    context: typer.Context,
    name: Annotated[str | None, typer.Option(help="Name of the budget.")] = None,
    as_json: Json = False,
) -> None:
    """Show the budgets of the desk."""
    found = _desk(context).budget(name)
    listed = found if isinstance(found, list) else [found]

    def render(console: Console) -> None:
        table = Table("budget", "kind", "settled", "held", "remaining", title="Budgets")
        for each in listed:
            cells = [each["name"], each["kind"]]
            cells += [in_words(each[part]) for part in ("settled", "held", "remaining")]
            table.add_row(*(Text(visible(cell)) for cell in cells))
        console.print(table)

    show({"budgets": listed}, as_json=as_json, render=render)


def _render_price(console: Console, price: dict[str, Any]) -> None:
    """Print the price of a question."""
    shown = {
        "ε": price["epsilon"],
        "δ": price["delta"],
        "held at worst": price["worst_case"],
        "remaining": price["remaining"][-1],
        "fits": price["fits"],
        "enough for groups of": price["plan"].get("smallest_size_for_all"),
    }
    _render_pairs(console, "Price", shown)


def _render_pairs(console: Console, title: str, document: dict[str, Any]) -> None:
    """Print names and values."""
    table = Table(title=title, show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in document.items():
        nested = isinstance(value, (dict, list))
        text = json.dumps(value, ensure_ascii=False) if nested else in_words(value)
        table.add_row(name, Text(visible(text)))
    console.print(table)
