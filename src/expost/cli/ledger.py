"""``expost ledger``: create, show, check and export ledgers.

Tests: ``tests/cli/test_ledger_cli.py``.
"""

from __future__ import annotations

import csv
import io
import json
from dataclasses import asdict
from enum import StrEnum
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from expost import plots
from expost.budget.budgets import ApproxBudget, Budget, PureBudget, RenyiBudget, ZCDPBudget
from expost.budget.hash_chain import ABANDON, RESERVE, SETTLE, Entry
from expost.budget.ledger import Ledger, Standing
from expost.cli.certificate import describe
from expost.cli.output import FAILURE, Json, as_text, notes, show, visible
from expost.errors import InvalidInput

app = typer.Typer(
    help="Privacy budgets that cannot be overspent, in a SQLite file or a PostgreSQL database.",
    no_args_is_help=True,
)

Url = Annotated[
    str, typer.Argument(help="A file name, sqlite:///file or postgresql://user@host/database.")
]
Name = Annotated[
    str | None, typer.Option(help="Name of the budget; not needed if there is only one.")
]


_SYMBOLS = {"epsilon": "ε", "delta": "δ"}


class Kind(StrEnum):
    """The kinds of budget."""

    pure = "pure"
    approx = "approx"
    zcdp = "zcdp"
    renyi = "renyi"


class OrderRule(StrEnum):
    """Whether all orders of a Rényi budget must stay within their limits, or any of them."""

    all = "all"
    any = "any"


@app.command()
def create(
    url: Url,
    name: Annotated[
        str, typer.Option(help="Name of the budget, for example that of the data set.")
    ],
    epsilon: Annotated[float, typer.Option(help="The total ε.")],
    delta: Annotated[float | None, typer.Option(help="The total δ; not for pure budgets.")] = None,
    kind: Annotated[
        Kind | None,
        typer.Option(help="Kind of budget; by default approx if --delta is given, otherwise pure."),
    ] = None,
    orders: Annotated[
        str | None, typer.Option(help="Orders of a Rényi budget, for example 2,4,8,16,32.")
    ] = None,
    rule: Annotated[
        OrderRule,
        typer.Option(help="For a Rényi budget: all orders must stay within their limits, or any."),
    ] = OrderRule.all,
    neighbours: Annotated[
        str, typer.Option(help="Neighbouring relation: add-remove or replace.")
    ] = "add-remove",
    cap: Annotated[
        list[str] | None,
        typer.Option(help="A limit for one analyst, as ANALYST=EPSILON; may be repeated."),
    ] = None,
    add: Annotated[
        bool, typer.Option("--add", help="Add the budget to an existing ledger.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Create a ledger with one budget, or add a budget with --add.

    The terms of a budget can never be changed.
    """
    budget = budget_from_options(epsilon, delta, kind, orders, rule.value, neighbours)
    caps = {
        who: budget_from_options(limit, delta, kind, orders, rule.value, neighbours)
        for who, limit in parse_caps(cap or [])
    }
    if add:
        ledger = Ledger.open(url)
        ledger.add_budget(name, budget, caps=caps)
    else:
        ledger = Ledger.create(url, budget, name, caps=caps)
    standing = ledger.standing(name)
    show(
        standing.as_dict(),
        as_json=as_json,
        render=lambda console: _render_standings(console, [standing]),
    )


def budget_from_options(
    epsilon: float,
    delta: float | None,
    kind: Kind | None,
    orders: str | None,
    rule: str,
    neighbours: str,
) -> Budget:
    """Return the budget that the options describe.

    Raises
    ------
    InvalidInput
        An option is missing, not valid, or does not belong to the kind of budget.
    """
    chosen = kind or (Kind.pure if delta is None else Kind.approx)
    if chosen is Kind.pure:
        if delta:
            raise InvalidInput(
                "delta", delta, "a pure budget has no δ; omit --delta, or choose another --kind"
            )
        return PureBudget(epsilon, neighbours)
    if delta is None:
        raise InvalidInput(
            "delta", None, f"pass --delta, which a budget of kind {chosen.value} needs"
        )
    if chosen is Kind.approx:
        return ApproxBudget(epsilon, delta, neighbours)
    if chosen is Kind.zcdp:
        return ZCDPBudget.for_approx(epsilon, delta, neighbours)
    if orders is None:
        raise InvalidInput(
            "orders", None, "pass --orders for a Rényi budget, for example 2,4,8,16,32"
        )
    try:
        listed = [float(part) for part in orders.split(",")]
    except ValueError:
        raise InvalidInput(
            "orders", orders, "give numbers above 1, separated by commas, for example 2,4,8"
        ) from None
    return RenyiBudget.for_approx(epsilon, delta, listed, rule, neighbours)


def parse_caps(texts: list[str]) -> list[tuple[str, float]]:
    """Parse texts of the form ANALYST=EPSILON."""
    pairs = []
    for text in texts:
        who, sign, limit = text.rpartition("=")
        try:
            pairs.append((who, float(limit)))
        except ValueError:
            sign = ""
        if not sign or not who:
            raise InvalidInput("cap", text, "give ANALYST=EPSILON, for example ann=1.5")
    return pairs


@app.command("show")
def show_(
    url: Url,
    name: Name = None,
    plot: Annotated[
        Path | None, typer.Option(help="Write a figure of the spending over time to this file.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the limit of each budget, and what is settled, held and remaining."""
    plots.check_path(plot)
    ledger = Ledger.open(url)
    names = [name] if name is not None else ledger.budgets()
    if as_json and len(names) > 1:
        raise InvalidInput(
            "name",
            None,
            "the ledger holds several budgets; pass --name with one of " + ", ".join(names),
        )
    standings = [ledger.standing(each) for each in names]
    if plot is not None:
        _draw(plot, ledger, standings[0])
        notes.print(f"figure: {plot}")
    show(
        standings[0].as_dict(),
        as_json=as_json,
        render=lambda console: _render_standings(console, standings),
    )


@app.command()
def entries(url: Url, name: Name = None, as_json: Json = False) -> None:
    """List all entries, oldest first."""
    found = [entry for entry in Ledger.open(url).entries() if name in (None, entry.budget)]
    show(
        {"entries": [asdict(entry) for entry in found]},
        as_json=as_json,
        render=lambda console: _render_entries(console, found),
    )


@app.command()
def verify(url: Url, as_json: Json = False) -> None:
    """Check the hash chain and all sums.

    The exit code is 1 if anything is wrong.
    """
    problems = Ledger.open(url).verify()

    def render(console: Console) -> None:
        for problem in problems:
            console.print(f"[red]{escape(visible(problem))}[/red]", highlight=False)
        if not problems:
            console.print(
                "[green]The ledger is sound:[/green] every entry follows from the one before it, "
                "and all sums are correct."
            )

    show({"sound": not problems, "problems": problems}, as_json=as_json, render=render)
    if problems:
        raise typer.Exit(FAILURE)


@app.command()
def abandon(
    url: Url,
    reservation: Annotated[str, typer.Argument(metavar="ID", help="Id of the reservation.")],
    as_json: Json = False,
) -> None:
    """Close a job that will not report back. Its worst case stays charged for good."""
    charged = Ledger.open(url).abandon(reservation)
    document = {"reservation": reservation, "charged": charged.as_dict()}
    show(
        document,
        as_json=as_json,
        render=lambda console: console.print(
            escape(visible(f"{reservation}: charged {describe(charged)}")), highlight=False
        ),
    )


@app.command()
def export(
    url: Url,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    as_json: Json = False,
) -> None:
    """Print all entries as CSV or JSON."""
    if as_csv == as_json:
        raise InvalidInput("format", None, "pass either --csv or --json")
    rows = [asdict(entry) for entry in Ledger.open(url).entries()]
    if as_json:
        typer.echo(as_text(json.dumps({"entries": rows}, indent=2, ensure_ascii=False)))
        return
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, fieldnames=list(Entry.__dataclass_fields__))
    writer.writeheader()
    writer.writerows(rows)
    typer.echo(as_text(buffer.getvalue()), nl=False)


def _render_standings(console: Console, standings: list[Standing]) -> None:
    """Print the state of budgets as a table."""
    table = Table(title="Ledger", title_justify="left")
    for heading in ("budget", "kind", "limit", "settled", "held", "remaining", "entries"):
        table.add_column(heading, overflow="fold")
    for standing in standings:
        facts, budget = standing.as_dict(), standing.filter.budget
        amounts = [
            budget.describe(budget.limits, up=False),
            facts["settled"],
            facts["held"],
            facts["remaining"],
        ]
        table.add_row(
            escape(visible(standing.name)),
            budget.kind,
            *(_amount(each) for each in amounts),
            str(standing.entries),
        )
    console.print(table)


def _amount(value: Any) -> str:
    """An amount in the form of :meth:`Budget.describe` as text."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if "orders" in value:
        return ", ".join(
            f"α={a:g}: {e:.4g}" for a, e in zip(value["orders"], value["epsilons"], strict=True)
        )
    return ", ".join(f"{_SYMBOLS[key]} = {number:.6g}" for key, number in value.items())


def cells(entry: Entry) -> tuple[object, ...]:
    """The fields of an entry that the table shows."""
    return (
        entry.sequence,
        entry.time,
        entry.action,
        entry.budget,
        entry.analyst,
        entry.reservation,
        entry.memo,
    )


def _render_entries(console: Console, found: list[Entry]) -> None:
    """Print entries as a table."""
    table = Table(title=f"{len(found)} entries", title_justify="left")
    for heading in ("#", "time", "action", "budget", "analyst", "reservation", "memo"):
        table.add_column(heading, overflow="fold")
    for entry in found:
        table.add_row(*(escape(visible(each)) for each in cells(entry)))
    console.print(table)


def _draw(path: Path, ledger: Ledger, standing: Standing) -> None:
    """Draw how the first coordinate of a budget was spent, entry by entry."""
    settled, held, worst = [0.0], [0.0], [0.0]
    reserved: dict[str, float] = {}
    for entry in ledger.entries():
        if entry.budget != standing.name or entry.action not in (RESERVE, SETTLE, ABANDON):
            continue
        new = entry.action == RESERVE
        if new:
            reserved[entry.reservation] = _first(entry.facts["worst"])
        amount = reserved[entry.reservation]
        settled.append(settled[-1] + (0.0 if new else _first(entry.facts["spent"])))
        held.append(held[-1] + (amount if new else -amount))
        worst.append(worst[-1] + (amount if new else 0.0))
    budget = standing.filter.budget
    plots.draw_ledger(
        path,
        name=standing.name,
        unit="ρ" if budget.kind == "zcdp" else "ε",
        limit=float(budget.limits[0]),
        settled=settled,
        held=held,
        worst=worst,
    )


def _first(texts: list[str]) -> float:
    """The first of several exact amounts, as a float."""
    return float(Fraction(texts[0]))
