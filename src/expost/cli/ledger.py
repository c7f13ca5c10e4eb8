"""``expost ledger``: create, change, show, check and export ledgers.

Commands that only look open the ledger for reading, and write nothing. Amounts are exact decimals.
Tests: ``tests/cli/test_ledger_cli.py``.
"""

from __future__ import annotations

import csv
import io
import json
import time
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich.console import Console
from rich.text import Text

from expost import plots
from expost.budget.budgets import ApproxBudget, PureBudget, RenyiBudget, ZCDPBudget
from expost.budget.ledger import Ledger
from expost.budget.ledger_rows import Entry
from expost.budget.limits import Budget, amount_from, float_below
from expost.budget.signing import (
    SigningKey,
    head_problems,
    key_fingerprint,
    load_document,
    load_public,
    signed_head,
)
from expost.budget.totals import check_share, timestamp
from expost.certificates.words import guarantee_words
from expost.cli.ledger_tables import (
    Filters,
    budgets_of,
    cells,
    draw_spending,
    entry_line,
    parse_moment,
    render_entries,
    render_standings,
    standing_document,
    stored_fields,
)
from expost.cli.output import (
    FAILURE,
    Json,
    as_json_text,
    as_text,
    note_result,
    notes,
    show,
    visible,
)
from expost.errors import InvalidInput
from expost.files import spreadsheet_cell

BudgetKind = StrEnum("BudgetKind", ["pure", "approx", "zcdp", "renyi"])
OrderRule = StrEnum("OrderRule", ["all", "any"])
ReservationState = StrEnum("ReservationState", ["open", "settled", "abandoned"])


def budget_from_options(
    epsilon: str,
    delta: str | None,
    kind: BudgetKind | None,
    orders: str | None,
    rule: str,
    neighbours: str,
) -> Budget:
    """Return the budget that the options describe."""
    chosen = kind or (BudgetKind.pure if delta is None else BudgetKind.approx)
    if chosen is BudgetKind.pure:
        if delta is not None and amount_from(delta, "delta") != 0:
            raise InvalidInput(
                "delta", delta, "a pure budget has no δ; omit --delta, or choose another --kind"
            )
        return PureBudget(cast(Any, epsilon), neighbours)  # it reads a decimal text exactly
    if delta is None:
        raise InvalidInput(
            "delta", None, f"pass --delta, which a budget of kind {chosen.value} needs"
        )
    if chosen is BudgetKind.approx:
        return ApproxBudget(cast(Any, epsilon), cast(Any, delta), neighbours)
    # Rounded down: limits that are computed from (ε, δ) must imply what was typed.
    pair = (float_below(amount_from(epsilon, "epsilon")), float_below(amount_from(delta, "delta")))
    if chosen is BudgetKind.zcdp:
        return ZCDPBudget.for_approx(*pair, neighbours)
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
    return RenyiBudget.for_approx(*pair, listed, rule, neighbours)


def parse_caps(texts: list[str]) -> list[tuple[str, str]]:
    """Parse texts of the form ANALYST=EPSILON; refuse an analyst who is named twice."""
    pairs: dict[str, str] = {}
    for text in texts:
        who, sign, limit = text.rpartition("=")
        try:
            amount_from(limit, "cap")
        except InvalidInput:
            sign = ""
        if not sign or not who:
            raise InvalidInput("cap", text, "give ANALYST=EPSILON, for example ann=1.5")
        if who in pairs:
            raise InvalidInput("cap", text, "this analyst has a cap already; give one per analyst")
        pairs[who] = limit
    return list(pairs.items())


def changed(present: Budget, epsilon: str, delta: str | None) -> Budget:
    """Return a budget of the same kind with another ε, and another δ if it is given."""
    kind = BudgetKind(present.kind)
    target = getattr(present, "target", None)
    known = getattr(present, "delta", None) if target is None else target[1]
    orders = getattr(present, "orders", None)
    return budget_from_options(
        epsilon,
        delta if delta is not None or known is None else repr(known),
        kind,
        None if orders is None else ",".join(map(repr, orders)),
        present.rule,
        present.neighbours,
    )


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
Analyst = Annotated[str | None, typer.Option(help="Only this analyst.")]
Since = Annotated[
    str | None, typer.Option(help="From this moment on: 2026-01-31 (UTC), or a time ago: 7d, 12h.")
]
Until = Annotated[str | None, typer.Option(help="Before this moment; as --since.")]
Epsilon = Annotated[str, typer.Option(help="The total ε, an exact decimal such as 0.1.")]
Delta = Annotated[str | None, typer.Option(help="The total δ, such as 1e-6; not for pure budgets.")]
Key = Annotated[Path, typer.Option(help="File of the private key (see: expost ledger keys).")]
PublicKey = Annotated[
    Path | None, typer.Option("--key", help="File of the public key that must have signed.")
]


StateOption = Annotated[
    ReservationState | None, typer.Option(help="Only entries of reservations in this state.")
]


@app.command()
def create(
    url: Url,
    name: Annotated[
        str, typer.Option(help="Name of the budget, for example that of the data set.")
    ],
    epsilon: Epsilon,
    delta: Delta = None,
    kind: Annotated[
        BudgetKind | None,
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
        str, typer.Option(help="Neighbouring relation: add-remove, replace or zero-out.")
    ] = "add-remove",
    cap: Annotated[
        list[str] | None,
        typer.Option(help="A limit for one analyst, as ANALYST=EPSILON; may be repeated."),
    ] = None,
    renews: Annotated[
        str | None,
        typer.Option(
            help="The limits begin anew each day, week, month, quarter or year (UTC). They then "
            "hold for each period; over several periods only their sum is guaranteed."
        ),
    ] = None,
    alert_at: Annotated[
        str | None, typer.Option(help="Run --alert-command at this share, for example 0.8.")
    ] = None,
    alert_command: Annotated[
        str | None, typer.Option(help="The command; see: expost ledger alert.")
    ] = None,
    add: Annotated[
        bool, typer.Option("--add", help="Add the budget to an existing ledger.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Create a ledger with one budget, or add a budget with --add."""
    if (alert_at is None) != (alert_command is None):
        raise InvalidInput("alert_at", alert_at, "pass --alert-at and --alert-command together")
    if alert_at is not None:
        check_share(alert_at)
    terms = (delta, kind, orders, rule.value, neighbours)
    budget = budget_from_options(epsilon, *terms)
    caps = {who: budget_from_options(limit, *terms) for who, limit in parse_caps(cap or [])}
    if add:
        ledger = Ledger.open(url)
        ledger.add_budget(name, budget, caps=caps, renews=renews)
    else:
        ledger = Ledger.create(url, budget, name, caps=caps, renews=renews)
    if alert_at is not None and alert_command is not None:
        ledger.set_alert(alert_at, alert_command, budget=name)
    _show_budgets(ledger, [name], Filters(), as_json=as_json)


@app.command()
def change(
    url: Url,
    reason: Annotated[str, typer.Option(help="Why; stored with the entry.")],
    epsilon: Annotated[str | None, typer.Option(help="The new ε of the limit.")] = None,
    delta: Annotated[
        str | None, typer.Option(help="The new δ; by default the present one.")
    ] = None,
    name: Name = None,
    analyst: Annotated[str, typer.Option(help="Change the cap of this analyst.")] = "",
    remove: Annotated[bool, typer.Option("--remove", help="Remove the cap.")] = False,
    as_json: Json = False,
) -> None:
    """Change the total of a budget, or set, change or remove the cap of an analyst.

    The change is an entry of the ledger, with its reason.
    """
    if remove == (epsilon is not None):
        raise InvalidInput("epsilon", epsilon, "pass either --epsilon or --remove")
    ledger = Ledger.open(url)
    present = ledger.standing(name)
    limit = None if epsilon is None else changed(present.filter.budget, epsilon, delta)
    ledger.change_budget(limit, reason, name=present.name, analyst=analyst)
    _show_budgets(ledger, [present.name], Filters(), as_json=as_json)


@app.command()
def alert(
    url: Url,
    at: Annotated[str, typer.Option(help="Share of the limit, for example 0.8.")],
    command: Annotated[
        str, typer.Option(help="Command to run, without waiting for it; empty removes the alert.")
    ],
    name: Name = None,
    as_json: Json = False,
) -> None:
    """Run a command when a budget is used up to a share (settled and held together).

    The command gets EXPOST_ALERT_BUDGET and EXPOST_ALERT_SHARE in its environment, and no data. It
    runs in jobs of the user who set it, on this file: set it again after a ledger was moved.
    """
    ledger = Ledger.open(url)
    ledger.set_alert(at, command, budget=name)
    stored = [asdict(alert) for alert in ledger.alerts(name)]
    _say({"alerts": stored}, f"{len(stored)} alerts are set.", as_json=as_json)


@app.command("show")
def show_(
    url: Url,
    name: Name = None,
    analyst: Analyst = None,
    plot: Annotated[
        Path | None, typer.Option(help="Write a figure of the spending over time to this file.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show limits, caps, what is settled, held and remaining, and open reservations.

    With --json, one budget is an object; several are a list under the key "budgets".
    """
    plots.check_path(plot)
    ledger = Ledger.open(url, read_only=True)
    names = [ledger.standing(name).name] if name is not None else ledger.budgets()
    if plot is not None:
        draw_spending(plot, ledger, ledger.standing(names[0]))
        notes.print(f"figure: {plot}")
    _show_budgets(ledger, names, Filters(analyst=analyst), as_json=as_json)


def _show_budgets(ledger: Ledger, names: list[str], filters: Filters, *, as_json: bool) -> None:
    """Print the state of budgets."""
    documents = [standing_document(ledger, name, filters) for name in names] if as_json else []
    several = {"ledger": ledger.identity, "budgets": documents}
    show(
        documents[0] if len(documents) == 1 else several,
        as_json=as_json,
        render=lambda console: render_standings(console, ledger, names, filters),
    )


@app.command("entries")
def list_entries(
    url: Url,
    name: Name = None,
    analyst: Analyst = None,
    since: Since = None,
    until: Until = None,
    state: StateOption = None,
    as_json: Json = False,
) -> None:
    """List entries, oldest first: who, what, when, amounts, and the digest of the certificate."""
    begin, end = parse_moment(since, "since"), parse_moment(until, "until")
    filters = Filters(name, analyst, begin, end, None if state is None else state.value)
    ledger = Ledger.open(url, read_only=True)
    entries = list(filters.keep(ledger.entries(), ledger.statuses()))
    show(
        {"entries": [entry_line(entry) for entry in entries]},
        as_json=as_json,
        render=lambda console: render_entries(console, entries, budgets_of(ledger)),
    )


@app.command()
def watch(
    url: Url,
    name: Name = None,
    analyst: Analyst = None,
    every: Annotated[float, typer.Option(help="Seconds between two looks.", min=0.01)] = 2.0,
    looks: Annotated[
        int | None, typer.Option(help="Stop after so many looks; by default at Ctrl-C.", min=1)
    ] = None,
    as_json: Json = False,
) -> None:
    """Print new entries as they come. With --json, each line is one JSON object."""
    filters = Filters(name=name, analyst=analyst)
    ledger = Ledger.open(url, read_only=True)
    last, console, done = ledger.head()[0], Console(emoji=False, markup=False, soft_wrap=True), 0
    while looks is None or done < looks:
        time.sleep(every)
        done += 1
        new = list(ledger.entries(after=last))
        last = new[-1].sequence if new else last
        terms = budgets_of(ledger) if new else {}
        for entry in filters.keep(new, {}):
            if as_json:
                note_result()
                typer.echo(as_json_text(entry_line(entry), None))
            else:
                words = "  ".join(visible(cell) for cell in cells(entry, terms) if cell != "")
                console.print(words, highlight=False)


def _say(document: dict[str, Any], text: str, *, as_json: bool) -> None:
    """Print a document as JSON, or a text."""
    show(document, as_json=as_json, render=lambda console: console.print(text, highlight=False))


@app.command("verify")
def verify_ledger(
    url: Url,
    head: Annotated[
        Path | None,
        typer.Option(help="A signed head (expost ledger head) that the ledger must continue."),
    ] = None,
    key: PublicKey = None,
    as_json: Json = False,
) -> None:
    """Check the hash chain, all sums and all charges. The exit code is 1 if any is wrong.

    With --head, also find a ledger that was rolled back or written anew since.
    """
    signed = None if head is None else load_document(head, "head")
    public = None if key is None else load_public(key)
    if key is not None and head is None:
        raise InvalidInput("head", None, "--key checks a signed head; pass --head, too")
    ledger = Ledger.open(url, read_only=True)
    problems = ledger.verify()
    if signed is not None:
        problems += head_problems(ledger, signed, public)

    def render(console: Console) -> None:
        for problem in problems:
            console.print(visible(problem), style="red", highlight=False)
        if not problems:
            console.print(
                Text.assemble(
                    ("The ledger is sound:", "green"),
                    " every entry follows from the one before it, and all sums and charges are "
                    "correct.",
                )
            )
            if signed is not None:
                console.print(f"It continues the head of {visible(signed.get('time'))}.")
            if signed is not None and public is None:
                console.print("The key was taken from the head itself; pass --key to name it.")

    show({"sound": not problems, "problems": problems}, as_json=as_json, render=render)
    if problems:
        raise typer.Exit(FAILURE)


@app.command()
def keys(
    file: Annotated[Path, typer.Argument(help="File of the private key; FILE.pub is public.")],
    as_json: Json = False,
) -> None:
    """Make an Ed25519 key, or show the one in the file."""
    key = SigningKey.load(file) if file.exists() else SigningKey.create(file)
    document = {"public_key": key.public, "fingerprint": key_fingerprint(key.public)}
    text = f"public key {document['public_key']}\nfingerprint {document['fingerprint']}"
    _say(document, text, as_json=as_json)


@app.command("head")
def head_(
    url: Url, key: Key, out: Annotated[Path | None, typer.Option(help="Write to this file.")] = None
) -> None:
    """Print the signed head of the ledger, as JSON. Keep it where the ledger's users cannot write.

    expost ledger verify --head FILE later checks that the ledger continues it.
    """
    document = signed_head(Ledger.open(url, read_only=True), SigningKey.load(key), timestamp())
    text = json.dumps(document, indent=2)
    if out is None:
        typer.echo(text)
    else:
        out.write_text(text + "\n", encoding="utf-8")
        notes.print(f"head: {out}")


@app.command()
def upgrade(url: Url, as_json: Json = False) -> None:
    """Migrate a ledger of expost 0.1. A copy is kept, and the hash chain still holds."""
    copy = Ledger.upgrade(url)
    text = visible(f"The ledger was migrated. The old one is kept at {copy}.")
    _say({"copy": copy}, text, as_json=as_json)


@app.command()
def recover(url: Url, as_json: Json = False) -> None:
    """Use a file again after a crash under another name, if the file is sound as it is."""
    Ledger.recover(url)
    _say({"recovered": True}, "The ledger can be used again.", as_json=as_json)


@app.command()
def abandon(
    url: Url,
    reservation: Annotated[str, typer.Argument(metavar="ID", help="Id of the reservation.")],
    as_json: Json = False,
) -> None:
    """Close a job that will not report back. Its worst case stays charged for good."""
    charged = Ledger.open(url).abandon(reservation)
    document = {"reservation": reservation, "charged": charged.as_dict()}
    text = visible(f"{reservation}: charged {guarantee_words(charged)}")
    _say(document, text, as_json=as_json)


@app.command()
def export(
    url: Url,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    as_json: Json = False,
) -> None:
    """Print all entries as CSV or JSON."""
    if as_csv == as_json:
        raise InvalidInput("format", None, "pass either --csv or --json")
    rows = [stored_fields(entry) for entry in Ledger.open(url, read_only=True).entries()]
    if as_json:
        note_result()
        typer.echo(as_json_text({"entries": rows}))
        return
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, fieldnames=list(Entry.__dataclass_fields__))
    writer.writeheader()
    writer.writerows({name: spreadsheet_cell(value) for name, value in row.items()} for row in rows)
    typer.echo(as_text(buffer.getvalue()), nl=False)
