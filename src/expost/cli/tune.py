"""``expost tune``: find the cheapest model that passes the bar, and certify what it cost.

Messages and progress go to stderr; the result goes to stdout.

Tests: ``tests/cli/test_tune_cli.py``.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from expost.budget.ledger import Ledger
from expost.cli import tune_options as options
from expost.cli.output import MISSED_BAR, Json, in_words, notes, show
from expost.cli.tune_output import announce, render
from expost.cli.tune_rows import Asked, refuse_options, toml_of
from expost.errors import BudgetRefused, InvalidInput
from expost.execution.processes import Processes
from expost.tuning.defaults import is_data_file
from expost.tuning.example import EXAMPLE
from expost.tuning.forecast import Forecast
from expost.tuning.job import plan_job
from expost.tuning.job import tune as tune_model
from expost.tuning.job_folder import CERTIFICATE, has_begun


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
    plan: Annotated[
        bool,
        typer.Option(
            "--plan",
            help="Show the job and its plan, and stop: nothing runs and nothing is charged.",
        ),
    ] = False,
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
    texts: options.Texts = None,
    shape: options.Shape = None,
    missing: options.Missing = None,
    features: options.Features = None,
    classes: options.Classes = None,
    target_bounds: options.TargetBounds = None,
    rows: options.Rows = None,
    holdout: options.Holdout = None,
    model: options.ModelName = None,
    input_shape: options.InputShape = None,
    integers: options.Integers = False,
    training: options.Training = None,
    epsilons: options.Epsilons = None,
    delta: options.Delta = None,
    max_epsilon: options.MaxEpsilon = None,
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
            help="Folder for the certificate, the model and the figure; by default tuned-NAME, or "
            "tuned-NAME-2, … if that holds a finished job. After a crash, give the same folder to "
            "continue."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Tune a model privately: find the cheapest setting that passes the bar and what it cost.

    JOB is a TOML file, or a file of rows: expost tune rows.csv --target label --at-least 0.8
    """
    given = {
        "target": target,
        "features": options.feature_words(features),
        "feature_bounds": options.feature_bounds(feature_bounds, bounds),
        "categories": options.by_column(categories, "categories", options.words),
        "booleans": options.all_words(booleans),
        "dates": options.by_column(dates, "dates", options.days),
        "texts": options.all_words(texts),
        "shape": shape,
        "missing": options.by_column(missing, "missing", options.fill),
        "classes": options.classes_of(classes),
        "target_bounds": options.bounds(target_bounds, "target_bounds"),
        "rows": rows,
        "holdout": holdout,
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
        "max_epsilon": max_epsilon,
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
    asked = Asked.of(job, given)
    folder = out if out is not None else _folder(job)
    with (
        asked.asking(),
        nullcontext() if plan else _resumable(folder),
        warnings.catch_warnings(),
        executor.start(device) as pool,
        redirect_stdout(sys.stderr),  # what a module prints is not part of the result
        _progress() as display,
    ):
        planning = display.add_task("planning", total=None, visible=False)
        task = display.add_task("training", total=None, visible=False)

        def begin() -> None:
            if asked.rows and not plan:
                asked.show(notes)
            if not plan:
                asked.remind(notes)
            display.update(planning, visible=True)
            if not as_json and not notes.is_terminal:
                notes.print("Planning …")

        def announced(planned: Forecast) -> None:
            display.update(planning, visible=False)
            announce(notes, planned, asked.twice_the_holdout())
            if out is None and folder != _folder_name(job):
                notes.print(
                    f"{_folder_name(job)} holds a finished job. This is a further release, into "
                    f"{folder}: its charge adds to that of the first.",
                    highlight=False,
                )
            _show_remaining(notes, opened, budget)

        def advance(done: float, total: float) -> None:
            if not display.tasks[0].visible:  # the rehearsal on made-up rows is part of the plan
                display.update(task, completed=done, total=total, visible=True)

        warnings.filterwarnings("ignore", "(epsilon|delta) = ")  # announced above
        shared: dict[str, Any] = {
            "ledger": opened,
            "budget": budget,
            "executor": pool,
            "device": device,
            "on_planning": begin,
        }
        if plan:
            planned = plan_job(asked.described, **shared)
        else:
            result = tune_model(
                asked.described,
                **shared,
                analyst=analyst,
                out=folder,
                stop_early=stop_early,
                before=announced,
                progress=advance,
                on_attempt=lambda number, most: display.update(
                    task, description=f"attempt {number} of at most {most}"
                ),
                on_failure=lambda _, error: (
                    notes.print("a training failed", style="yellow") if notes.is_terminal else None
                ),
            )
    if plan:

        def shown(console: Console) -> None:
            asked.show(console)
            asked.remind(console)
            announce(console, planned, asked.twice_the_holdout())
            _show_remaining(console, opened, budget)
            console.print("Nothing has run and nothing was charged.")

        show(asked.document(planned), as_json=as_json, render=shown)
        return
    show(result.as_dict(), as_json=as_json, render=lambda console: render(console, result, folder))
    if not result.passed:
        raise typer.Exit(MISSED_BAR)


def _show_remaining(console: Console, ledger: Ledger | None, budget: str | None) -> None:
    """Print what a ledger has left."""
    if ledger is not None:
        console.print(
            f"Ledger: {in_words(ledger.remaining(budget))} remains. "
            "The worst case of each attempt is reserved before it starts."
        )


@contextmanager
def _resumable(folder: Path) -> Iterator[None]:
    """Say after Ctrl-C how to continue, and what a budget that refuses could pay."""
    try:
        yield
    except BudgetRefused:
        notes.print(
            "What an attempt may cost grows with its highest level: leave out the highest levels "
            "(--epsilons, or search.epsilons).",
        )
        raise
    except KeyboardInterrupt:
        notes.print(
            f"interrupted; to continue, run the same command with --out {folder}: "
            "same draws, one charge"
            if has_begun(folder)
            else "interrupted; no attempt had begun, and nothing was charged",
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
        refuse_options(job, given)
        path, text = job, EXAMPLE
    if path is None:
        typer.echo(text, nl=False)
        return
    if path.exists():
        raise InvalidInput("job", str(path), "the file exists already; give another name")
    path.write_text(text, encoding="utf-8")
    notes.print(f"job: {path}")


def _folder(job: Path) -> Path:
    """Return the first of tuned-NAME, tuned-NAME-2, … that does not contain a finished job."""
    number = 1
    while (_folder_name(job, number) / CERTIFICATE).exists():
        number += 1
    return _folder_name(job, number)


def _folder_name(job: Path, number: int = 1) -> Path:
    """Return tuned-NAME, or tuned-NAME-2, …."""
    return Path(f"tuned-{job.stem}" + ("" if number == 1 else f"-{number}"))


def _progress() -> Progress:
    """Return a progress bar on stderr; terminals only, since logs must not show how much ran."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn("{task.percentage:.0f} %"),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=notes, transient=True, disable=not notes.is_terminal)
