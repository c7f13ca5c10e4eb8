"""``expost describe``: facts about the columns of a table, bought privately.

Tests: ``tests/cli/test_describe_cli.py``.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from expost import plots
from expost.certificates.document import person_words
from expost.cli.output import Analyst, Json, Verbose, notes, plural, show, shown_up, visible
from expost.errors import InvalidInput
from expost.facts.column_facts import ColumnFacts
from expost.facts.describe import (
    DELTA,
    QUANTILES,
    Facts,
    check_quantiles,
    describe,
    open_columns,
    plan,
    words_of,
)

_BARS = " ▁▂▃▄▅▆▇█"
_ROUGH = 0.25  # share of the rows that a category needs to be found


def describe_command(
    source: Annotated[
        str,
        typer.Argument(metavar="TABLE", help="A file, folder, glob or connection URL."),
    ],
    epsilon: Annotated[float, typer.Option(help="ε of all facts together.")],
    delta: Annotated[float, typer.Option(help="δ of all facts together.")] = DELTA,
    user: Annotated[
        str | None,
        typer.Option(help="Column of the person; one row of each person counts, chosen at random."),
    ] = None,
    columns: Annotated[
        list[str] | None, typer.Option(help="Columns to describe; repeat it, or use commas.")
    ] = None,
    quantiles: Annotated[
        str, typer.Option(help="LOW:HIGH: the quantiles to use as bounds of numbers.")
    ] = f"{QUANTILES[0]}:{QUANTILES[1]}",
    table: Annotated[str | None, typer.Option(help="Table of the database.")] = None,
    delimiter: Annotated[str | None, typer.Option(help="Delimiter of a text file.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Write the facts: TOML, or the certificate if it ends in .json."),
    ] = None,
    ledger: Annotated[str | None, typer.Option(help="The ledger to charge.")] = None,
    budget: Annotated[str | None, typer.Option(help="The budget of the ledger to charge.")] = None,
    analyst: Analyst = "",
    plot: Annotated[
        Path | None, typer.Option(help="Write a figure: a small histogram per column.")
    ] = None,
    only_plan: Annotated[
        bool,
        typer.Option("--plan", help="Say what this ε can find, and stop; no row is read."),
    ] = False,
    verbose: Verbose = False,
    as_json: Json = False,
) -> None:
    """Learn facts about a table privately: kinds, bounds, categories, missing values, rows.

    All facts together cost --epsilon and --delta, whatever they are.
    """
    listed = [name.strip() for words in columns or () for name in words.split(",")]
    chosen = [name for name in listed if name] or None
    ends = _quantiles(quantiles)
    check_quantiles(ends)
    plots.check_path(plot)
    if out is not None and out.exists():
        raise InvalidInput("out", str(out), "the file exists already; give another name")
    if only_plan:
        _, names = open_columns(source, chosen, user, table, delimiter)
        planned = plan(epsilon, delta, len(names))
        show(planned, as_json=as_json, render=lambda console: show_plan(console, planned))
        return
    facts = describe(
        source,
        epsilon=epsilon,
        delta=delta,
        user=user,
        columns=chosen,
        quantiles=ends,
        table=table,
        delimiter=delimiter,
        ledger=ledger,
        budget=budget,
        analyst=analyst,
    )
    show(
        facts.certificate(),
        as_json=as_json,
        render=partial(show_facts, facts=facts, verbose=verbose),
    )
    if out is not None:
        facts.save(out)
        notes.print(f"facts: {out}")
    if plot is not None:
        plots.draw_facts(facts, plot)
        notes.print(f"figure: {plot}")


def _quantiles(text: str) -> tuple[float, float]:
    """Read LOW:HIGH."""
    low, _, high = text.partition(":")
    try:
        return float(low), float(high)
    except ValueError:
        raise InvalidInput("quantiles", text, "give two shares, as 0.005:0.995") from None


def show_plan(console: Console, planned: dict[str, Any]) -> None:
    """Print what an ε can find."""
    rows = planned["rows_of_a_category"]
    console.print(
        f"Describing {plural(planned['columns'], 'column')} costs "
        f"ε = {shown_up(planned['epsilon'])}, δ = {planned['delta']:g}.",
        highlight=False,
    )
    console.print(
        f"A category with about {rows:,} rows is found with 99 % probability (if six of ten "
        "columns are categories).",
        highlight=False,
    )
    shares = Table("rows of the table", "smallest share of a category that is found")
    for size, share in planned["shares"].items():
        shown = "none" if share > 1 else f"{share:.1%}" if share >= 0.001 else "below 0.1%"
        shares.add_row(f"{int(size):,}", shown)
    console.print(shares)
    console.print("No row was read and nothing was charged.")


def show_facts(console: Console, facts: Facts, verbose: bool = False) -> None:
    """Print facts as a table with small histograms, what they cost, and what that means."""
    listed = Table("column", "kind", title_justify="left")
    listed.add_column("facts", min_width=18)
    for heading in ("empty", "shape", *(["charge"] if verbose else [])):
        listed.add_column(heading)
    for name, column in facts.items():
        listed.add_row(
            Text(visible(name)),
            column.kind,
            Text(visible(words_of(column, facts.rows))),
            f"{column.gaps:.0%}",
            Text(_bars(column)),
            *([f"{column.cost:.0%}"] if verbose else []),
        )
    console.print(listed)
    margin = 2 * facts.rows_deviation
    what = "rows" if facts.user is None else "persons"
    lines = [f"About {facts.rows:,.0f} {what} (± {margin:,.0f})."]
    if facts.max_rows_per_user is not None:
        most = plural(facts.max_rows_per_user, "row")
        lines.append(f"95 % of the persons have about {most} or fewer.")
    needed = plan(facts.epsilon, facts.delta, len(facts))["rows_of_a_category"]
    if needed > _ROUGH * facts.rows:
        lines.append(
            f"These facts are rough: a category needs about {needed:,} {what} to be found, and "
            "bounds may be far too wide. A larger --epsilon or fewer --columns gives better ones."
        )
    lines.append(
        f"Charge: ε = {shown_up(facts.epsilon)}, δ = {facts.delta:g} for all of them together."
    )
    unit = "row" if facts.user is None else "person"
    lines.append(f"Meaning: {person_words(facts.epsilon, facts.delta, unit)}.")
    if verbose:
        lines.append(
            'Values outside the bounds are clipped; names that were not found are "other".'
        )
    for line in lines:
        console.print(line, highlight=False)


def _bars(column: ColumnFacts) -> str:
    """Return a histogram in one line; what does not exceed twice its noise is empty."""
    if column.range is not None:
        counts, deviation = list(column.range.counts), column.range.deviation
    else:
        counts, deviation = list(column.categories.values()), column.deviation
    most = max([*counts, 1.0])
    return "".join(
        _BARS[max(1, round(8 * count / most))] if count > 2 * deviation else _BARS[0]
        for count in counts[:8]
    )
