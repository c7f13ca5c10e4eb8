"""``expost tune``: find the cheapest model that passes the bar, and certify what it cost.

Messages and progress go to stderr; the result goes to stdout.

Tests: ``tests/cli/test_tune_cli.py``.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from expost.budget.ledger import Ledger
from expost.cli import tune_options as options
from expost.cli.output import MISSED_BAR, Json, in_words, notes, show, shown_up
from expost.cli.reach_table import duration, reach_table
from expost.cli.tune_rows import asking_as_options, describe, show_job, toml_of
from expost.errors import BudgetRefused, InvalidInput
from expost.execution.processes import Processes
from expost.tuning.certificate import Tuned
from expost.tuning.defaults import is_data_file, refuse_both
from expost.tuning.example import EXAMPLE
from expost.tuning.forecast import Forecast
from expost.tuning.job import tune as tune_model
from expost.tuning.job_folder import CERTIFICATE, PICTURE


class ExecutorName(StrEnum):
    """Where candidates are trained."""

    local = "local"
    processes = "processes"
    ray = "ray"
    dask = "dask"

    def start(self, device: str) -> AbstractContextManager[Any]:
        """Return the executor as a context manager; it yields None for this process.

        On Ray with a device other than the CPU, each fleet gets its own GPU.
        """
        if self is ExecutorName.processes:
            return Processes()
        if self is ExecutorName.ray:
            from expost.integrations.ray import RayExecutor

            return RayExecutor(num_gpus=0 if device == "cpu" else 1)
        if self is ExecutorName.dask:
            from expost.integrations.dask import DaskExecutor

            return DaskExecutor()
        return nullcontext()


def tune(
    job: Annotated[
        Path | None,
        typer.Argument(
            help="The job as TOML, or a file of rows (.csv, .parquet, .npz) with the options below."
        ),
    ] = None,
    init: Annotated[
        bool,
        typer.Option(
            "--init",
            help="Write TOML and stop: of a file of rows with its options, the job that they "
            "amount to (to --out, or to stdout); otherwise a commented example (to JOB, or to "
            "stdout).",
        ),
    ] = False,
    target: options.Target = None,
    at_least: options.AtLeast = None,
    at_most: options.AtMost = None,
    maximize: options.Maximize = False,
    metric: options.Metric = None,
    loss_bound: options.LossBound = None,
    class_shares: options.ClassShares = None,
    target_variance: options.TargetVariance = None,
    metric_bounds: options.MetricBounds = None,
    feature_bounds: options.FeatureBounds = None,
    bounds: options.ColumnBounds = None,
    categories: options.Categories = None,
    booleans: options.Booleans = None,
    dates: options.Dates = None,
    missing: options.Missing = None,
    features: options.Features = None,
    classes: options.Classes = None,
    target_bounds: options.TargetBounds = None,
    rows: options.Rows = None,
    model: options.ModelName = None,
    input_shape: options.InputShape = None,
    integers: options.Integers = False,
    training: options.Training = None,
    epsilons: options.Epsilons = None,
    delta: options.Delta = None,
    attempts: options.Attempts = None,
    confidence: options.Confidence = None,
    ledger: Annotated[str | None, typer.Option(help="The ledger to charge.")] = None,
    budget: Annotated[str | None, typer.Option(help="The budget of the ledger to charge.")] = None,
    analyst: Annotated[str, typer.Option(help="The analyst, for caps per analyst.")] = "",
    executor: Annotated[
        ExecutorName,
        typer.Option(
            help="Where candidates are trained: in this process, in processes of this machine, on "
            "a Ray cluster (RAY_ADDRESS) or on a Dask cluster (DASK_SCHEDULER_ADDRESS). Without an "
            "address a cluster is started on this machine."
        ),
    ] = ExecutorName.local,
    stop_early: Annotated[
        bool,
        typer.Option(
            help="Stop at the first model that passes the bar. Without this, the time taken "
            "depends only on the random draws and not on the data."
        ),
    ] = True,
    device: Annotated[str, typer.Option(help="The device: cpu or cuda.")] = "cpu",
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the certificate, the model and the figure. After a crash, give the "
            "same folder to continue."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Tune a model privately: find the cheapest setting that passes the bar and what it cost.

    JOB is a TOML file, or a file of rows: expost tune rows.csv --target label --at-least 0.8
    """
    given = {
        "target": target,
        "features": options.words(features),
        "feature_bounds": options.feature_bounds(feature_bounds, bounds),
        "categories": options.by_column(categories, "categories", options.words),
        "booleans": options.words(booleans),
        "dates": options.by_column(dates, "dates", options.days),
        "missing": options.by_column(missing, "missing", options.fill),
        "classes": options.classes_of(classes),
        "target_bounds": options.bounds(target_bounds, "target_bounds"),
        "rows": rows,
        "model": model,
        "input_shape": options.whole_numbers(input_shape),
        "integers": integers or None,
        "training": training,
        "epsilons": options.levels(epsilons),
        "metric": metric,
        "at_least": at_least,
        "at_most": at_most,
        "maximize": maximize or None,
        "loss_bound": loss_bound,
        "class_shares": options.shares(class_shares),
        "target_variance": target_variance,
        "metric_bounds": options.bounds(metric_bounds, "metric_bounds"),
        "confidence": confidence,
        "delta": delta,
        "attempts": attempts,
    }
    given = {name: value for name, value in given.items() if value is not None}
    if init:
        _write_job(job, given, out)
        return
    if job is None:
        raise InvalidInput(
            "job",
            None,
            "give a TOML file (expost tune --init writes an example), or a file of rows with "
            "--target and --at-least",
        )
    if ledger is None and (budget is not None or analyst):
        raise InvalidInput("ledger", None, "--budget and --analyst need a ledger; give --ledger")
    opened = None if ledger is None else Ledger.open(ledger)
    folder = out if out is not None else _folder(job)
    described: Any = job
    asking: AbstractContextManager[None] = nullcontext()
    if is_data_file(job):
        described, asking = describe(job, given), asking_as_options()
        show_job(described, given)
    else:
        refuse_both(given)
    with (
        asking,
        _resumable(folder),
        warnings.catch_warnings(),
        executor.start(device) as pool,
        _progress() as display,
    ):
        task = display.add_task("training", total=None, visible=False)

        def announce(planned: Forecast) -> None:
            _announce(planned)
            if opened is not None:
                notes.print(
                    f"Ledger: {in_words(opened.remaining(budget))} remains. "
                    "The worst case of each attempt is reserved before it starts."
                )

        warnings.filterwarnings("ignore", "(epsilon|delta) = ")  # announced above
        result = tune_model(
            described,
            ledger=opened,
            budget=budget,
            analyst=analyst,
            out=folder,
            executor=pool,
            stop_early=stop_early,
            device=device,
            before=announce,
            progress=lambda done, total: display.update(
                task, completed=done, total=total, visible=True
            ),
            on_attempt=lambda number, most: display.update(
                task, description=f"attempt {number} of at most {most}"
            ),
            on_failure=lambda _, error: (
                notes.print("[yellow]a training failed[/yellow]") if notes.is_terminal else None
            ),
        )
    show(result.as_dict(), as_json=as_json, render=lambda console: _render(console, result, folder))
    if not result.passed:
        raise typer.Exit(MISSED_BAR)


@contextmanager
def _resumable(folder: Path) -> Iterator[None]:
    """Say after Ctrl-C how to continue, and what a budget that refuses could pay."""
    try:
        yield
    except BudgetRefused:
        notes.print(
            "What an attempt may cost grows with its highest level: leave out the highest levels "
            "(--epsilons, or search.epsilons).",
            markup=False,
        )
        raise
    except KeyboardInterrupt:
        notes.print(
            f"interrupted; to continue, run the same command with --out {folder}: "
            "same draws, one charge",
            markup=False,
            soft_wrap=True,
        )
        raise


def _write_job(job: Path | None, given: dict[str, Any], out: Path | None) -> None:
    """Write the TOML of a job on a file of rows, or the example, to a new file or to stdout."""
    if is_data_file(job):
        assert job is not None
        place = job if out is None else Path(os.path.relpath(job, out.parent))
        path, text = out, toml_of(job, given, place)
    else:
        refuse_both(given)
        path, text = job, EXAMPLE
    if path is None:
        typer.echo(text, nl=False)
        return
    if path.exists():
        raise InvalidInput("job", str(path), "the file exists already; give another name")
    path.write_text(text, encoding="utf-8")
    notes.print(f"job: {path}", markup=False)


def _folder(job: Path) -> Path:
    """Return the first of tuned-NAME, tuned-NAME-2, … that does not contain a finished job."""
    number = 1
    while True:
        folder = Path(f"tuned-{job.stem}" + ("" if number == 1 else f"-{number}"))
        if not (folder / CERTIFICATE).exists():
            return folder
        number += 1


def _progress() -> Progress:
    """Return a progress bar on stderr; terminals only, since logs must not show how much ran."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:.0f} %"),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=notes, transient=True, disable=not notes.is_terminal)


def _announce(job: Forecast) -> None:
    """Print the forecast: first the chance of passing, then the price, then the details."""
    for text in job.warnings:
        notes.print(f"[yellow]warning:[/yellow] {text}", highlight=False)
    for text in job.reasons:
        notes.print(text, highlight=False)
    if job.reasons:
        notes.print(
            f"[bold]Plan[/bold]: up to {job.attempts} requests, until one passes; "
            f"all together at worst ε = {job.worst_case.epsilon:.3g} (δ = {job.delta:g}, total).",
            highlight=False,
        )
        return
    if job.schedule is None:
        notes.print(
            f"[bold]Plan[/bold]: one request over {len(job.candidates)} candidates, "
            f"{job.expected_runs:.3g} runs expected, about {duration(job.seconds)}.\n"
            f"ε: {job.epsilon(job.charges[0]):.3g} for the first level, "
            f"{job.worst_case.epsilon:.3g} at worst (δ = {job.delta:g}).",
            highlight=False,
        )
        return
    notes.print(reach_table(job.reach, job.pace))
    misses = [job.epsilon(each.charges.nothing) for each in job.steps]
    notes.print(
        f"[bold]Plan[/bold]: up to {job.attempts} attempts over {len(job.candidates)} candidates, "
        f"until one passes.\n"
        f"A miss costs ε = {misses[0]:.3g} (first attempt) to {misses[-1]:.3g} (last), and "
        f"{job.all_missed.epsilon:.3g} if every attempt misses;\n"
        f"all attempts together at worst {job.worst_case.epsilon:.3g} (δ = {job.delta:g}, total).",
        highlight=False,
    )
    if job.margin:
        notes.print(
            f"To pass, a noisy score must clear the bar by {job.margin:.3g} (at the first level); "
            f"{2 * job.scoring_rows} scoring rows instead of {job.scoring_rows} would halve that.",
            highlight=False,
        )


def _render(console: Console, result: Tuned, folder: Path) -> None:
    """Print the result as a table."""
    goal = result.details["goal"]
    larger = goal["larger_is_better"]
    wanted = (
        "the best score"
        if goal["bar"] is None
        else f"{goal['metric']} {'≥' if larger else '≤'} {goal['bar']:g}"
    )
    if not result.passed:
        missed = "The bar was missed" if goal["bar"] is not None else "Every training failed"
        console.print(
            f"[bold red]{missed}[/bold red]: no model was released. "
            f"Paid: ε = {shown_up(result.spent.epsilon)} at δ = {result.spent.delta:g}."
        )
    table = Table(title=f"Tuned: {wanted}", title_justify="left", show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    if goal["bar"] is not None:
        table.add_row("passed", "[green]yes[/green]" if result.passed else "[red]no[/red]")
    _render_model(table, result, larger)
    if result.forecast.attempts > 1:
        table.add_row("attempts", f"{len(result.attempts)} of at most {result.forecast.attempts}")
    table.add_row(
        "ε spent",
        f"[bold green]{shown_up(result.spent.epsilon)}[/bold green] at δ = {result.spent.delta:g}, "
        "tuning included",
    )
    table.add_row("ε at worst", shown_up(result.worst_case.epsilon))
    _render_comparison(table, result)
    relation = result.details["neighbours"]
    table.add_row("neighbours", f"{relation}: {result.details['neighbours_in_words']}")
    table.add_row("rests on", result.release.theorem)
    console.print(table)
    if result.details["budget_refused_another_attempt"]:
        console.print("The budget refused another attempt.")
    if result.model_path is not None:
        console.print(f"Model: {result.model_path}  (expost.load_model)")
    picture = f"; picture: {folder / PICTURE}" if (folder / PICTURE).exists() else ""
    console.print(f"Certificate: {folder / CERTIFICATE}{picture}", soft_wrap=True)


def _render_model(table: Table, result: Tuned, larger: bool) -> None:
    """Add the released model's setting, score and confidence bounds."""
    if result.model is None or result.score is None:
        return
    settings = ", ".join(f"{key} = {value:g}" for key, value in result.params.items())
    table.add_row("setting", settings)
    sign, noise = (1 if larger else -1), result.details["score_noise"]
    spread = f" ± {noise:.3f} (noise of the private score)" if noise else ""
    table.add_row(result.details["goal"]["metric"], f"{sign * result.score:.3f}{spread}")
    if result.bounds is not None:
        population = result.bounds.on_population
        side = "at least" if larger else "at most"
        table.add_row(
            f"with {100 * result.bounds.confidence:g} % confidence",
            f"{side} {sign * result.bounds.on_scoring_rows:.3f} on the scoring rows"
            + (
                ""
                if population is None
                else f"; {side} {sign * population:.3f} on new rows of the same population"
            ),
        )


def _render_comparison(table: Table, result: Tuned) -> None:
    """Add the costs of two other methods."""
    if result.comparison is None:
        return
    theirs = result.comparison["papernot_steinke"]
    known = result.comparison["papernot_steinke_level"]
    table.add_row("Papernot–Steinke", f"{theirs:.3f}  ({known:.3f} had the level been known)")
    table.add_row(
        "every setting",
        f"{result.comparison['naive_composition']:.3f}  (composition up to this level)",
    )
