"""``expost tune``: find the cheapest model that passes the bar, and certify what it cost.

Messages and progress go to stderr; the result goes to stdout.

Tests: ``tests/cli/test_tune_cli.py``.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from expost.budget.ledger import Ledger
from expost.cli.describe import show_plan
from expost.cli.output import MISSED_BAR, Json, Verbose, notes, show, value_in_words
from expost.cli.request_options import with_options
from expost.cli.tune_output import announce, render
from expost.cli.tune_rows import (
    TuneArguments,
    given_settings,
    refuse_options,
    toml_of,
    tune_options,
)
from expost.errors import BudgetRefused, InvalidInput
from expost.execution.dispatch import EXECUTORS
from expost.tuning.defaults import is_data_file
from expost.tuning.example import EXAMPLE
from expost.tuning.forecast import Forecast
from expost.tuning.job import plan_job
from expost.tuning.job import tune as tune_model
from expost.tuning.job_folder import CERTIFICATE, has_begun
from expost.tuning.learned_facts import facts_plan, wanted_of
from expost.tuning.request import TuneRequest

ExecutorName = StrEnum("ExecutorName", list(EXECUTORS))  # type: ignore[misc]


@with_options(tune_options())
def tune_command(
    job: Annotated[
        str | None,
        typer.Argument(
            help="The job as TOML, or rows with the options below: a file (.csv, .parquet, .npz), "
            "or a database (a file or a URL) with --table and --rows."
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
    ledger: Annotated[str | None, typer.Option(help="The ledger to charge.")] = None,
    budget: Annotated[str | None, typer.Option(help="The budget of the ledger to charge.")] = None,
    analyst: Annotated[str, typer.Option(help="The analyst, for caps per analyst.")] = "",
    executor: Annotated[
        ExecutorName | None,
        typer.Option(
            help="Where candidates are trained and sums over rows are made: in this process, in "
            "processes of this machine, on a Ray cluster (RAY_ADDRESS), a Dask cluster "
            "(DASK_SCHEDULER_ADDRESS) or a Spark cluster (spark.master). Without an address a "
            "cluster is started on this machine. By default the job's run.executor, or local."
        ),
    ] = None,
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
    verbose: Verbose = False,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Tune a model privately: find the smallest privacy loss that reaches the goal.

    JOB is a TOML file, or a file of rows: expost tune rows.csv --target label --at-least 0.8

    The job costs at most --max-epsilon. If the goal is missed, the exit code is 5; a model that was
    paid is released all the same, as missed-model.npz.
    """
    given = given_settings(options)
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
    asked = TuneArguments.of(job, given)
    if plan and wanted_of(TuneRequest.read(asked.described)) is not None:
        needed = facts_plan(asked.described)
        if needed is not None:
            show({"facts": needed}, as_json=as_json, render=partial(_show_facts_plan, needed))
            return
    folder = out if out is not None else _folder(job)
    with (
        asked.asking(),
        nullcontext() if plan else _resumable(folder),
        warnings.catch_warnings(),
        redirect_stdout(sys.stderr),  # what a module prints is not part of the result
        _progress() as display,
    ):
        planning = display.add_task("planning", total=None, visible=False)
        task = display.add_task("training", total=None, visible=False)

        def begin() -> None:
            if asked.rows and verbose and not plan:
                asked.show(notes)
            if not plan:
                asked.print_warnings(notes)
            display.update(planning, visible=True)
            if not as_json and not notes.is_terminal:
                notes.print("Planning …")

        def announced(planned: Forecast) -> None:
            display.update(planning, visible=False)
            announce(notes, planned, asked.twice_the_holdout(), verbose)
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
            "executor": None if executor is None else executor.value,
            "device": device,
            "on_planning": begin,
        }
        learns = asked.rows and "learn_facts" in asked.given
        if plan:
            planned = plan_job(asked.described, **shared)
        else:
            result = tune_model(
                job if learns else asked.described,
                **(asked.given if learns else {}),  # defaults may depend on what is learned
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
            asked.print_warnings(console)
            announce(console, planned, asked.twice_the_holdout())
            _show_remaining(console, opened, budget)
            console.print("Nothing has run and nothing was charged.")

        show(asked.document(planned), as_json=as_json, render=shown)
        return
    show(
        result.as_dict(),
        as_json=as_json,
        render=lambda console: render(console, result, folder, verbose),
    )
    if not result.passed:
        raise typer.Exit(MISSED_BAR)


def _show_facts_plan(needed: dict[str, Any], console: Console) -> None:
    """Print what a job that buys facts costs; the tuning is planned when they are known."""
    show_plan(console, needed)
    console.print(
        f"The tuning is planned when the facts are known. Both together cost at most "
        f"ε = {needed['max_epsilon']:g} (--max-epsilon).",
        highlight=False,
    )


def _show_remaining(console: Console, ledger: Ledger | None, budget: str | None) -> None:
    """Print what a ledger has left."""
    if ledger is not None:
        console.print(
            f"Ledger: {value_in_words(ledger.remaining(budget))} remains. "
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


def _write_job(job: str | None, given: dict[str, Any], out: Path | None) -> None:
    """Write the TOML of a job on a file of rows, or the example, to a new file or to stdout."""
    if is_data_file(job):
        assert job is not None
        named = job if out is None or "://" in job else os.path.relpath(job, out.parent)
        path, text = out, toml_of(job, given, named)
    else:
        refuse_options(job, given)
        path, text = None if job is None else Path(job), EXAMPLE
    if path is None:
        typer.echo(text, nl=False)
        return
    if path.exists():
        raise InvalidInput("job", str(path), "the file exists already; give another name")
    path.write_text(text, encoding="utf-8")
    notes.print(f"job: {path}")


def _folder(job: str) -> Path:
    """Return the first of tuned-NAME, tuned-NAME-2, … that does not contain a finished job."""
    number = 1
    while (_folder_name(job, number) / CERTIFICATE).exists():
        number += 1
    return _folder_name(job, number)


def _folder_name(job: str, number: int = 1) -> Path:
    """Return tuned-NAME, or tuned-NAME-2, …."""
    return Path(f"tuned-{Path(job).stem}" + ("" if number == 1 else f"-{number}"))


def _progress() -> Progress:
    """Return a progress bar on stderr; terminals only, since logs must not show how much ran."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn("{task.percentage:.0f} %"),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=notes, transient=True, disable=not notes.is_terminal)
