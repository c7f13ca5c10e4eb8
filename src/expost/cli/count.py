"""``expost count``: distinct users per group, each to the accuracy you need."""

from __future__ import annotations

import csv
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from expost import plots
from expost.analytics.counting import Answer
from expost.analytics.query import CountResult
from expost.analytics.query import count as count_groups
from expost.budget.ledger import Ledger
from expost.cli.output import Json, notes, show, visible
from expost.errors import InvalidInput
from expost.privacy.conversions import gaussian_for

_SHOWN = 40


class Order(StrEnum):
    """Which group is looked at next."""

    given = "given"
    race = "race"


class StopRule(StrEnum):
    """When an estimate is good enough."""

    confidence = "confidence"
    paper = "paper"


def count(
    source: Annotated[
        str,
        typer.Argument(
            help="A CSV or Parquet file, or a connection URL (duckdb://, postgresql://, pyspark://)."
        ),
    ],
    by: Annotated[str, typer.Option(help="Column of the group.")],
    user: Annotated[str, typer.Option(help="Column of the person.")],
    epsilon: Annotated[float, typer.Option(help="Total privacy budget ε.")],
    within: Annotated[float, typer.Option(help="Wanted relative error.")] = 0.1,
    delta: Annotated[
        float | None, typer.Option(help="Total δ: Gaussian noise, charged in zCDP.")
    ] = None,
    keys: Annotated[
        Path | None, typer.Option(help="File with the groups, one a line; publicly known.")
    ] = None,
    private_keys: Annotated[
        bool,
        typer.Option(
            "--private-keys", help="Find the groups privately; costs a tenth of ε, half of δ."
        ),
    ] = False,
    max_groups_per_user: Annotated[
        int,
        typer.Option(
            help="With --private-keys: groups in which a person counts, for finding them."
        ),
    ] = 10,
    order: Annotated[
        Order | None, typer.Option(help="As in the keys file, or the cheapest to finish next.")
    ] = None,
    prior: Annotated[
        Path | None, typer.Option(help="CSV with group,size: public expectations; largest first.")
    ] = None,
    max_group_epsilon: Annotated[
        float | None, typer.Option(help="The most that one group may cost.")
    ] = None,
    confidence: Annotated[float, typer.Option(help="Coverage of the intervals.")] = 0.9,
    rule: Annotated[
        StopRule, typer.Option(help="confidence: half-width within the error; paper: its σ-rule.")
    ] = StopRule.confidence,
    ratio: Annotated[
        float, typer.Option(help="Ratio of the refinement grid; finer is free in privacy.")
    ] = 2**0.5,
    table: Annotated[str | None, typer.Option(help="Table of the database.")] = None,
    ledger: Annotated[str | None, typer.Option(help="Charge this ledger.")] = None,
    budget: Annotated[str | None, typer.Option(help="Budget of the ledger.")] = None,
    analyst: Annotated[str, typer.Option(help="Who asks; for caps.")] = "",
    out: Annotated[
        Path | None, typer.Option(help="Write answers to this CSV as they are released.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Write a figure of the estimates.")] = None,
    as_json: Json = False,
) -> None:
    """Unique users per group, each within the wanted error, as many groups as the budget allows."""
    plots.check_path(plot)
    if out is not None and out.exists():
        raise InvalidInput(
            "out", str(out), "the file exists already; name another, so that no answers are lost"
        )
    listed = None if keys is None else read_keys(keys)
    expected = None if prior is None else read_prior(prior)
    opened = None if ledger is None else Ledger.open(ledger)
    stream = None if out is None else out.open("x", encoding="utf-8", newline="")
    writer = None if stream is None else _Writer(stream)
    made = 0
    try:
        with _progress() as progress:
            task = progress.add_task("budget", total=1.0, answers=0)

            def released(answer: Answer, spent: float) -> None:
                nonlocal made
                made += 1
                if writer is not None:
                    writer.write(answer, answered=True)
                progress.update(task, completed=min(1.0, spent / total), answers=made)

            total = _total(epsilon, delta)
            result = count_groups(
                source,
                by=by,
                user=user,
                within=within,
                epsilon=epsilon,
                delta=delta,
                keys=listed,
                private_keys=private_keys,
                max_groups_per_user=max_groups_per_user,
                order=None if order is None else order.value,
                prior=expected,
                max_group_epsilon=max_group_epsilon,
                confidence=confidence,
                rule=rule.value,
                ratio=ratio,
                table=table,
                ledger=opened,
                budget=budget,
                analyst=analyst,
                released=released,
                on_ignored=lambda ignored: notes.print(
                    f"rows ignored: {'yes' if ignored else 'no'}"
                ),
            )
        if writer is not None:
            for answer in result.unanswered:
                writer.write(answer, answered=False)
    except BaseException:
        if out is not None and not made:
            out.unlink(missing_ok=True)  # nothing is lost, and the same command may be given again
        raise
    finally:
        if stream is not None:
            stream.close()
    show(result.as_dict(), as_json=as_json, render=lambda console: _render(console, result))
    if plot is not None:  # after the answers: they are paid for, whatever becomes of the figure
        draw(result, plot)
        notes.print(f"figure: {plot}")


def read_keys(path: Path) -> list[str]:
    """Group names, one a line; empty lines are skipped."""
    try:
        names = [line.rstrip("\r\n") for line in path.read_text(encoding="utf-8-sig").split("\n")]
    except UnicodeDecodeError:
        raise InvalidInput("keys", str(path), "the file is no UTF-8 text") from None
    listed = [name for name in names if name]
    if not listed:
        raise InvalidInput("keys", str(path), "the file names no group")
    return listed


def read_prior(path: Path) -> dict[str, float]:
    """A CSV of group,size, with or without a header."""
    sizes: dict[str, float] = {}
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            for number, row in enumerate(csv.reader(stream), start=1):
                try:
                    sizes[row[0]] = float(row[1])
                except (IndexError, ValueError):
                    if number > 1 and row:
                        raise InvalidInput(
                            "prior", f"line {number}", "give lines of group,size"
                        ) from None
    except (UnicodeDecodeError, csv.Error):
        raise InvalidInput("prior", str(path), "the file is no UTF-8 text of group,size") from None
    if not sizes:
        raise InvalidInput("prior", str(path), "the file names no group")
    return sizes


class _Writer:
    """Answers to a CSV file, each on the disk before the next is made."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._rows = csv.writer(stream)
        self._rows.writerow(["group", "estimate", "low", "high", "spent", "answered"])

    def write(self, answer: Answer, *, answered: bool) -> None:
        self._rows.writerow(
            [
                answer.group,
                answer.estimate,
                answer.low,
                answer.high,
                answer.spent,
                "yes" if answered else "no",
            ]
        )
        self._stream.flush()


def _progress() -> Progress:
    columns = (
        TextColumn("budget spent"),
        BarColumn(),
        TextColumn("{task.percentage:.0f} %  {task.fields[answers]} answers"),
        TimeElapsedColumn(),
    )
    return Progress(*columns, console=notes, transient=True)


def _total(epsilon: float, delta: float | None) -> float:
    return epsilon if delta is None else gaussian_for(epsilon, delta).rho


def _render(console: Console, result: CountResult) -> None:
    table = Table(
        title=f"{len(result.answers)} groups within {result.within:.0%}", title_justify="left"
    )
    for heading in ("group", "estimate", f"{result.confidence:.0%} interval", "spent"):
        table.add_column(
            heading, justify="left" if heading == "group" else "right", overflow="fold"
        )
    for answer in result.answers[:_SHOWN]:
        table.add_row(
            Text(visible(answer.group)),
            f"{answer.estimate:,.0f}",
            f"{answer.low:,.0f} – {answer.high:,.0f}",
            f"{answer.spent:.4g}",
        )
    console.print(table)
    if len(result.answers) > _SHOWN:
        console.print(f"… and {len(result.answers) - _SHOWN} more (--out or --json for all).")
    unit = {"epsilon": "ε", "rho": "ρ"}[result.unit]
    console.print(
        f"{len(result.unanswered)} groups not answered. Spent {unit} = {result.spent:.4g}, {result.remaining:.2g} remains. "
        f"Everything released keeps {_describe(result)}."
    )


def _describe(result: CountResult) -> str:
    facts = result.guarantee.as_dict()
    return (
        f"ε = {facts['epsilon']:g}"
        + (f", δ = {facts['delta']:g}" if "delta" in facts else "")
        + " for every person"
    )


def draw(result: CountResult, path: Path) -> None:
    """Estimates with their intervals, largest first; answered groups and the rest."""
    drawn, (axes,) = plots.figure(1, width=8)
    looked_at = [(answer, True) for answer in result.answers] + [
        (answer, False) for answer in result.unanswered if answer.spent > 0
    ]
    ordered = sorted(looked_at, key=lambda pair: -pair[0].estimate)
    for answered, colour, label in (
        (True, plots.INK[0], "answered"),
        (False, plots.INK[1], "not answered (looser interval)"),
    ):
        chosen: list[Any] = [
            (place, answer) for place, (answer, state) in enumerate(ordered) if state is answered
        ]
        if chosen:
            places, values = (
                [place for place, _ in chosen],
                [max(answer.estimate, 0.5) for _, answer in chosen],
            )
            below = [
                value - max(answer.low, 0.5) if value > answer.low else 0.0
                for value, (_, answer) in zip(values, chosen, strict=True)
            ]
            above = [
                max(answer.high - value, 0.0)
                for value, (_, answer) in zip(values, chosen, strict=True)
            ]
            axes.errorbar(
                places,
                values,
                yerr=[below, above],
                fmt=".",
                color=colour,
                ecolor=colour,
                elinewidth=0.8,
                markersize=3,
                label=label,
            )
    axes.set(yscale="log", xlabel="groups, by estimate", ylabel="users")
    axes.set_title(f"Users per group, {len(result.answers)} within {result.within:.0%}", loc="left")
    if ordered:
        axes.legend(fontsize=8)
    plots.save(drawn, path)
