"""``expost count``: counts, sums and means per group, each to the accuracy you need."""

from __future__ import annotations

import csv
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from expost import plots
from expost.analytics import plan as plans
from expost.analytics import query
from expost.analytics.certificate import CountResult
from expost.analytics.columns import Measure
from expost.analytics.refinement import Answer
from expost.budget.ledger import Ledger
from expost.cli import count_output, json_errors
from expost.cli.count_inputs import parse_cap, parse_rows, read_keys, read_prior
from expost.cli.output import Json, notes, show
from expost.errors import InvalidInput
from expost.privacy.conversions import gaussian_for

INTERRUPTED = 130
_MANY_ROWS = (
    "note: a person counts with up to 10 rows in a group, so the noise is made for 10 rows. If "
    "nobody has more than R rows in a group, --max-rows-per-user R costs less (auto chooses R "
    "privately); if everybody has one row in the table, --one-row-per-user does."
)


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
            help="A CSV, TSV, JSON-lines or Parquet file, a folder or glob of them, a DuckDB or "
            "SQLite file, or a connection URL (duckdb://, postgresql://, pyspark://)."
        ),
    ],
    epsilon: Annotated[float, typer.Option(help="Total privacy budget ε.")],
    user: Annotated[str, typer.Option(help="Column of the person.")],
    by: Annotated[
        list[str] | None, typer.Option(help="Column of the group; repeat it for several.")
    ] = None,
    within: Annotated[
        float | None, typer.Option(help="Wanted relative error (default 0.1).")
    ] = None,
    plus_minus: Annotated[
        float | None, typer.Option("--plus-minus", help="Wanted absolute error instead.")
    ] = None,
    delta: Annotated[
        float | None, typer.Option(help="Total δ: Gaussian noise, charged in zCDP.")
    ] = None,
    rows: Annotated[bool, typer.Option("--rows", help="Count rows, not users.")] = False,
    sum_column: Annotated[str | None, typer.Option("--sum", help="Sum this column.")] = None,
    mean_column: Annotated[str | None, typer.Option("--mean", help="Average this column.")] = None,
    bounds: Annotated[
        tuple[float, float] | None,
        typer.Option(
            help="Public bounds of the values, LOW HIGH or LOW:HIGH; values are clipped to them."
        ),
    ] = None,
    grid: Annotated[
        float | None, typer.Option(help="Values are rounded to multiples of this.")
    ] = None,
    max_groups_per_user: Annotated[
        str | None,
        typer.Option(
            help="In how many groups a person counts: a number, auto (chosen privately) or none. "
            "Only the dearest groups of this number are charged."
        ),
    ] = None,
    max_rows_per_user: Annotated[
        str | None,
        typer.Option(
            help="Rows of a person that count in one group: a number, or auto (chosen privately). "
            "Default: 10 for rows, auto for sums and means."
        ),
    ] = None,
    one_row_per_user: Annotated[
        bool,
        typer.Option(
            "--one-row-per-user",
            help="Declare that the table has one row per person: each counts in one group, and "
            "nothing is paid to learn what the cap drops.",
        ),
    ] = False,
    where: Annotated[
        list[str] | None, typer.Option(help="Condition on rows: status=active, age>=18. Repeat.")
    ] = None,
    keys: Annotated[
        Path | None,
        typer.Option(
            help="File with the groups, one per line (CSV for several columns); publicly known."
        ),
    ] = None,
    private_keys: Annotated[
        bool,
        typer.Option(
            "--private-keys", help="Find the groups privately; costs a tenth, and half of δ."
        ),
    ] = False,
    plan: Annotated[
        bool, typer.Option("--plan", help="Show what groups would cost; reads no data.")
    ] = False,
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
        float | None, typer.Option(help="Constant ratio of the noise levels, instead of ours.")
    ] = None,
    table: Annotated[str | None, typer.Option(help="Table of the database.")] = None,
    delimiter: Annotated[
        str | None, typer.Option(help="Delimiter of a text file; else that of its header.")
    ] = None,
    ledger: Annotated[str | None, typer.Option(help="Charge this ledger.")] = None,
    budget: Annotated[str | None, typer.Option(help="Budget of the ledger.")] = None,
    analyst: Annotated[str, typer.Option(help="Who asks; for caps.")] = "",
    out: Annotated[
        Path | None, typer.Option(help="Write answers to this CSV as they are released.")
    ] = None,
    certificate: Annotated[
        Path | None, typer.Option(help="Write a certificate (JSON) to this file.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Write a figure.")] = None,
    as_json: Json = False,
) -> None:
    """Answers per group, each within the wanted error, as many groups as the budget allows."""
    plots.check_path(plot)
    _check_files(out, certificate)
    listed = None if keys is None else read_keys(keys, by or ())
    kind = _kind(rows, sum_column, mean_column, bounds)
    most_rows = parse_rows(max_rows_per_user)
    options: dict[str, Any] = {
        "within": within,
        "plus_minus": plus_minus,
        "epsilon": epsilon,
        "delta": delta,
        "private_keys": private_keys,
        "max_groups_per_user": parse_cap(max_groups_per_user),
        "one_row_per_user": one_row_per_user,
        "order": None if order is None else order.value,
        "max_group_epsilon": max_group_epsilon,
        "confidence": confidence,
        "rule": rule.value,
        "ratio": ratio,
    }
    if plan:
        usual = 1 if one_row_per_user else 10 if rows else None
        measure = _measure(kind, sum_column or mean_column, bounds, grid, most_rows or usual)
        _show_plan(None if listed is None else len(listed), measure, options, plot, as_json)
        return
    if ledger is None and (budget is not None or analyst):
        raise InvalidInput(
            "ledger", None, "a budget and an analyst belong to a ledger: give --ledger too"
        )
    options |= {
        "by": by,
        "user": user,
        "where": where or (),
        "keys": listed,
        "prior": None if prior is None else read_prior(prior),
        "table": table,
        "delimiter": delimiter,
        "ledger": None if ledger is None else Ledger.open(ledger),
        "budget": budget,
        "analyst": analyst,
    }
    if kind in ("sum", "mean"):
        options |= {"bounds": bounds, "grid": grid, "max_rows_per_user": most_rows}
        function: Any = getattr(query, kind)
        arguments: tuple[Any, ...] = (source, sum_column or mean_column)
    else:
        options |= {"rows": rows, "max_rows_per_user": most_rows}
        function, arguments = query.count, (source,)
    if rows and most_rows is None and not one_row_per_user and not as_json:
        notes.print(_MANY_ROWS, highlight=False)
    run = _Run(out, _total(epsilon, delta))
    result = run.ask(function, arguments, options, as_json)
    _finish(result, certificate, plot, as_json, run.failure)


def _finish(
    result: CountResult,
    certificate: Path | None,
    plot: Path | None,
    as_json: bool,
    failure: OSError | None,
) -> None:
    """Show the answers first: they are paid for, whatever becomes of the files."""
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
    if plot is not None:
        plots.draw_counts(result, plot)
        notes.print(f"figure: {plot}")
    if failure is not None:
        raise failure


def _show_plan(
    groups: int | None,
    measure: Measure,
    options: dict[str, Any],
    plot: Path | None,
    as_json: bool,
) -> None:
    planned = plans.plan(groups=groups, measure=measure, **options)
    show(
        planned.as_dict(),
        as_json=as_json,
        render=lambda console: count_output.render_plan(console, planned),
    )
    if plot is not None:
        plans.draw(planned, plot)
        notes.print(f"figure: {plot}")


def _kind(
    rows: bool, total: str | None, mean: str | None, bounds: tuple[float, float] | None
) -> str:
    """What is asked for: users, rows, sum or mean."""
    chosen = [
        name
        for name, given in (("rows", rows), ("sum", total is not None), ("mean", mean is not None))
        if given
    ]
    if len(chosen) > 1:
        raise InvalidInput("--" + chosen[1], "with --" + chosen[0], "ask for one of them")
    valued = chosen in (["sum"], ["mean"])
    if valued and bounds is None:
        raise InvalidInput("bounds", None, f"--{chosen[0]} needs public bounds: --bounds LOW:HIGH")
    if bounds is not None and not valued:
        raise InvalidInput("bounds", bounds, "bounds belong to --sum and --mean")
    return chosen[0] if chosen else "users"


def _measure(
    kind: str,
    column: str | None,
    bounds: tuple[float, float] | None,
    grid: float | None,
    rows: int | str | None,
) -> Measure:
    if kind in ("sum", "mean"):
        assert bounds is not None
        assert column is not None
        return query.value_measure(kind, column, bounds, grid, rows)
    return Measure("rows", rows=query.rows_cap(rows)) if kind == "rows" else Measure()


def _check_files(out: Path | None, certificate: Path | None) -> None:
    for name, path in (("out", out), ("certificate", certificate)):
        if path is None:
            continue
        if path.exists():
            raise InvalidInput(
                name, str(path), "the file exists already; name another, so that nothing is lost"
            )
        if not path.resolve().parent.is_dir():
            raise InvalidInput(name, str(path), "the folder does not exist")


class _Run:
    """One request from the command line: progress, the file of answers, Ctrl-C."""

    def __init__(self, out: Path | None, total: float) -> None:
        self._out, self._total = out, total
        self._made: list[Answer] = []
        self.failure: OSError | None = None  # of the file of answers; they are shown all the same

    def ask(
        self, function: Any, arguments: tuple[Any, ...], options: dict[str, Any], as_json: bool
    ) -> CountResult:
        """Run the request; answers go to the file before the ledger is settled."""
        out = self._out
        stream = None if out is None else out.open("x", encoding="utf-8", newline="")
        writer = None if stream is None else _Writer(stream)
        try:
            with _progress() as progress:
                task = progress.add_task("budget", total=1.0, answers=0)

                def released(answer: Answer, spent: float) -> None:
                    self._made.append(answer)
                    self._write(writer, answer, answered=True)
                    share = min(1.0, spent / self._total)
                    progress.update(task, completed=share, answers=len(self._made))

                result: CountResult = function(*arguments, **options, released=released)
            for answer in result.unanswered:
                self._write(writer, answer, answered=False)
        except BaseException as error:
            if out is not None and not self._made:
                out.unlink(missing_ok=True)  # nothing is lost: the same command may be given again
            if isinstance(error, KeyboardInterrupt):
                self._interrupted(as_json)
            raise
        finally:
            if stream is not None:
                self._close(stream)
        return result

    def _write(self, writer: _Writer | None, answer: Answer, *, answered: bool) -> None:
        if writer is None or self.failure is not None:
            return
        try:
            writer.write(answer, answered=answered)
        except OSError as error:
            self.failure = error

    def _close(self, stream: TextIO) -> None:
        try:
            stream.close()
        except OSError as error:
            self.failure = self.failure or error

    def _interrupted(self, as_json: bool) -> None:
        """Show answers that were paid for and are in no file, then exit with code 130."""
        reason = "interrupted; what was looked at is charged"
        notes.print(reason)
        json_errors.note("Interrupted", reason)
        if self._made and (self._out is None or self.failure is not None):
            document = {
                "interrupted": True,
                "answers": [answer.as_dict() for answer in self._made],
            }
            show(
                document,
                as_json=as_json,
                render=lambda console: count_output.render_answers(console, self._made),
            )
        raise typer.Exit(INTERRUPTED)


class _Writer:
    """Answers to a CSV file, each on the disk before the next is made."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._rows = csv.writer(stream)
        self._rows.writerow(["group", "estimate", "low", "high", "spent", "answered"])

    def write(self, answer: Answer, *, answered: bool) -> None:
        """Write one answer and flush it."""
        facts = [answer.estimate, answer.low, answer.high, answer.spent]
        name = " / ".join(answer.group) if isinstance(answer.group, tuple) else answer.group
        self._rows.writerow([name, *facts, "yes" if answered else "no"])
        self._stream.flush()


def _progress() -> Progress:
    columns = (
        TextColumn("budget spent"),
        BarColumn(),
        TextColumn("{task.percentage:.0f} %  {task.fields[answers]} answers"),
        TimeElapsedColumn(),
    )
    return Progress(*columns, console=notes, transient=True, disable=not notes.is_terminal)


def _total(epsilon: float, delta: float | None) -> float:
    """The total in the unit of what is spent; 1 where the request will be refused anyway."""
    try:
        return epsilon if delta is None else gaussian_for(epsilon, delta).rho
    except InvalidInput:
        return 1.0
