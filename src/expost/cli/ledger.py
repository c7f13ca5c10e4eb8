"""``expost ledger``: make, look at, check and export ledgers."""

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
from expost.cli.output import FAILURE, Json, as_text, notes, show, visible
from expost.errors import InvalidInput

app = typer.Typer(
    help="Budgets that cannot be overspent, in a SQLite file or a PostgreSQL database.",
    no_args_is_help=True,
)

Url = Annotated[
    str, typer.Argument(help="A file name, sqlite:///file or postgresql://user@host/database.")
]
Name = Annotated[str | None, typer.Option(help="The budget; may be left out if there is only one.")]


class Kind(StrEnum):
    """Kinds of budget."""

    pure = "pure"
    approx = "approx"
    zcdp = "zcdp"
    renyi = "renyi"


class OrderRule(StrEnum):
    """How the orders of a Rényi budget count."""

    all = "all"
    any = "any"


@app.command()
def create(
    url: Url,
    name: Annotated[str, typer.Option(help="The budget's name, say the data set's.")],
    epsilon: Annotated[float, typer.Option(help="Total ε.")],
    delta: Annotated[float | None, typer.Option(help="Total δ.")] = None,
    kind: Annotated[
        Kind | None, typer.Option(help="pure without δ, approx with it, unless you say otherwise.")
    ] = None,
    orders: Annotated[str | None, typer.Option(help="Rényi orders, e.g. 2,4,8,16,32.")] = None,
    rule: Annotated[
        OrderRule, typer.Option(help="Rényi: all orders within their limits, or any.")
    ] = OrderRule.all,
    neighbours: Annotated[str, typer.Option(help="add-remove or replace.")] = "add-remove",
    cap: Annotated[
        list[str] | None,
        typer.Option(help="A cap for an analyst: ANALYST=EPSILON (pure budgets: ε; repeatable)."),
    ] = None,
    add: Annotated[
        bool, typer.Option("--add", help="Add the budget to an existing ledger.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Make a ledger with one budget (or, with --add, another budget in it). Terms can never be changed."""
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
    """The budget that the options describe."""
    chosen = kind or (Kind.pure if delta is None else Kind.approx)
    if chosen is Kind.pure:
        if delta:
            raise InvalidInput(
                "delta", delta, "a pure budget has none; leave it out, or choose another kind"
            )
        return PureBudget(epsilon, neighbours)
    if delta is None:
        raise InvalidInput("delta", None, f"a {chosen.value} budget needs --delta")
    if chosen is Kind.approx:
        return ApproxBudget(epsilon, delta, neighbours)
    if chosen is Kind.zcdp:
        return ZCDPBudget.for_approx(epsilon, delta, neighbours)
    if orders is None:
        raise InvalidInput("orders", None, "a Rényi budget needs --orders, e.g. 2,4,8,16,32")
    try:
        listed = [float(part) for part in orders.split(",")]
    except ValueError:
        raise InvalidInput("orders", orders, "give numbers > 1 with commas between them") from None
    return RenyiBudget.for_approx(epsilon, delta, listed, rule, neighbours)


def parse_caps(texts: list[str]) -> list[tuple[str, float]]:
    """ANALYST=EPSILON pairs."""
    pairs = []
    for text in texts:
        who, sign, limit = text.rpartition("=")
        try:
            pairs.append((who, float(limit)))
        except ValueError:
            sign = ""
        if not sign or not who:
            raise InvalidInput("cap", text, "give ANALYST=EPSILON, e.g. ann=1.5")
    return pairs


@app.command("show")
def show_(
    url: Url,
    name: Name = None,
    plot: Annotated[
        Path | None, typer.Option(help="Write a figure of the spending over time.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Budget, settled, held, remaining, entries."""
    plots.check_path(plot)
    ledger = Ledger.open(url)
    names = [name] if name is not None else ledger.budgets()
    if as_json and len(names) > 1:
        raise InvalidInput(
            "name", None, "the ledger holds several budgets; name one of " + ", ".join(names)
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
    """All entries, oldest first."""
    found = [entry for entry in Ledger.open(url).entries() if name in (None, entry.budget)]
    show(
        {"entries": [asdict(entry) for entry in found]},
        as_json=as_json,
        render=lambda console: _render_entries(console, found),
    )


@app.command()
def verify(url: Url, as_json: Json = False) -> None:
    """Check the hash chain and all sums; exit code 1 if anything is wrong."""
    problems = Ledger.open(url).verify()

    def render(console: Console) -> None:
        for problem in problems:
            console.print(f"[red]{escape(visible(problem))}[/red]", highlight=False)
        if not problems:
            console.print(
                "[green]The ledger is sound:[/green] every entry follows from the one before, and the sums add up."
            )

    show({"sound": not problems, "problems": problems}, as_json=as_json, render=render)
    if problems:
        raise typer.Exit(FAILURE)


@app.command()
def abandon(
    url: Url,
    reservation: Annotated[str, typer.Argument(metavar="ID", help="The reservation's id.")],
    as_json: Json = False,
) -> None:
    """Give up a job that will not report back: its worst case stays charged for good."""
    charged = Ledger.open(url).abandon(reservation)
    document = {"reservation": reservation, "charged": charged.as_dict()}
    show(
        document,
        as_json=as_json,
        render=lambda console: console.print(escape(visible(f"{reservation}: charged {charged}"))),
    )


@app.command()
def export(
    url: Url,
    as_csv: Annotated[bool, typer.Option("--csv", help="As CSV.")] = False,
    as_json: Json = False,
) -> None:
    """Print all entries as CSV or JSON."""
    if as_csv == as_json:
        raise InvalidInput("format", None, "say --csv or --json")
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
    if isinstance(value, float):
        return f"{value:.6g}"
    if "orders" in value:
        return ", ".join(
            f"α={a:g}: {e:.4g}" for a, e in zip(value["orders"], value["epsilons"], strict=True)
        )
    return ", ".join(f"{key} {number:.6g}" for key, number in value.items())


def cells(entry: Entry) -> tuple[object, ...]:
    """What is shown of an entry."""
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
    table = Table(title=f"{len(found)} entries", title_justify="left")
    for heading in ("#", "time", "action", "budget", "analyst", "reservation", "memo"):
        table.add_column(heading, overflow="fold")
    for entry in found:
        table.add_row(*(escape(visible(each)) for each in cells(entry)))
    console.print(table)


def _draw(path: Path, ledger: Ledger, standing: Standing) -> None:
    """Spending over the entries: what was settled, and what it would have been at worst cases."""
    limit = standing.filter.budget.limits[0]
    worst: dict[str, float] = {}
    settled, reserved, open_now = [0.0], [0.0], [0.0]
    for entry in ledger.entries():
        if entry.budget != standing.name or entry.action not in (RESERVE, SETTLE, ABANDON):
            continue
        if entry.action == RESERVE:
            worst[entry.reservation] = _first(entry.facts["worst"])
        step = 0.0 if entry.action == RESERVE else _first(entry.facts["spent"])
        settled.append(settled[-1] + step)
        reserved.append(
            reserved[-1] + (worst[entry.reservation] if entry.action == RESERVE else 0.0)
        )
        change = worst[entry.reservation] if entry.action == RESERVE else -worst[entry.reservation]
        open_now.append(open_now[-1] + change)
    drawn, (axes,) = plots.figure(1, width=6)
    places = range(len(settled))
    axes.step(
        places,
        settled,
        where="post",
        color=plots.INK[0],
        label="settled: what released answers cost",
    )
    axes.step(
        places,
        [a + b for a, b in zip(settled, open_now, strict=True)],
        where="post",
        color=plots.INK[1],
        linestyle="--",
        label="settled and held",
    )
    axes.step(
        places,
        reserved,
        where="post",
        color=plots.INK[3],
        linestyle=":",
        label="had every job cost its worst case",
    )
    axes.axhline(float(limit), color="black", linewidth=0.8, label="budget")
    axes.set(xlabel="entry", ylabel={"zcdp": "ρ"}.get(standing.filter.budget.kind, "ε"))
    axes.set_title(f"Spending of {standing.name}", loc="left")
    axes.legend(fontsize=8)
    plots.save(drawn, path)


def _first(texts: list[str]) -> float:
    return float(Fraction(texts[0]))
