"""``expost tune``: the cheapest model that passes the bar, with a certificate of what it cost."""

from __future__ import annotations

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
from expost.cli.output import MISSED_BAR, Json, notes, show, shown_up
from expost.cli.reach_table import duration, reach_table
from expost.errors import InvalidInput
from expost.execution.processes import Processes
from expost.tuning.certificate import Tuned
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
        """The executor, to be closed at the end; none for this process itself. On Ray a fleet has a GPU for itself."""
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
    config: Annotated[
        Path | None, typer.Argument(help="The job as TOML; with --init, the file to write.")
    ] = None,
    init: Annotated[
        bool,
        typer.Option(
            "--init", help="Write a commented example (to CONFIG, or to stdout) and stop."
        ),
    ] = False,
    ledger: Annotated[str | None, typer.Option(help="Charge this ledger.")] = None,
    budget: Annotated[str | None, typer.Option(help="Budget of the ledger.")] = None,
    analyst: Annotated[str, typer.Option(help="Who asks; for caps.")] = "",
    executor: Annotated[
        ExecutorName,
        typer.Option(
            help="Where candidates are trained: this process, processes of this machine, a Ray cluster (RAY_ADDRESS) or a Dask "
            "cluster (DASK_SCHEDULER_ADDRESS); without an address a cluster on this machine is started."
        ),
    ] = ExecutorName.local,
    stop_early: Annotated[
        bool,
        typer.Option(
            help="Stop at the first model that passes the bar; without, the time taken depends on the draws alone, not on data."
        ),
    ] = True,
    device: Annotated[str, typer.Option(help="cpu, or cuda.")] = "cpu",
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for certificate, model and picture; give it again after a crash to go on."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Tune a model privately: the cheapest setting that passes the bar, and what it cost, tuning included."""
    if init:
        _write_example(config)
        return
    if config is None:
        raise InvalidInput("config", None, "name a TOML file; expost tune --init writes an example")
    if ledger is None and (budget is not None or analyst):
        raise InvalidInput(
            "ledger", None, "a budget and an analyst belong to a ledger: give --ledger too"
        )
    opened = None if ledger is None else Ledger.open(ledger)
    folder = out if out is not None else _folder(config)
    with _resumable(folder), executor.start(device) as pool, _progress() as display:
        task = display.add_task("training", total=None, visible=False)

        def announce(job: Forecast) -> None:
            _announce(job)
            if opened is not None:
                notes.print(
                    f"Ledger: {opened.remaining(budget)} remains; the worst case of each attempt is reserved first."
                )

        result = tune_model(
            config,
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
            on_failure=lambda _, error: (
                notes.print("[yellow]a training failed[/yellow]") if notes.is_terminal else None
            ),
        )
    show(result.as_dict(), as_json=as_json, render=lambda console: _render(console, result, folder))
    if not result.passed:
        raise typer.Exit(MISSED_BAR)


@contextmanager
def _resumable(folder: Path) -> Iterator[None]:
    """Say, after Ctrl-C, how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        notes.print(
            f"interrupted; the same command with --out {folder} goes on: same draws, one charge",
            markup=False,
            soft_wrap=True,
        )
        raise


def _write_example(path: Path | None) -> None:
    if path is None:
        typer.echo(EXAMPLE, nl=False)
        return
    if path.exists():
        raise InvalidInput("config", str(path), "the file exists already; name another")
    path.write_text(EXAMPLE, encoding="utf-8")
    notes.print(f"example: {path}")


def _folder(config: Path) -> Path:
    """tuned-NAME, or the first of tuned-NAME-2, tuned-NAME-3, … that holds no finished job."""
    number = 1
    while True:
        folder = Path(f"tuned-{config.stem}" + ("" if number == 1 else f"-{number}"))
        if not (folder / CERTIFICATE).exists():
            return folder
        number += 1


def _progress() -> Progress:
    """On stderr, and on a terminal only: how much is trained is for the curator's eyes, not for a log."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:.0f} %"),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=notes, transient=True, disable=not notes.is_terminal)


def _announce(job: Forecast) -> None:
    """Say what to expect: first the chance of passing, then the price, then the details."""
    if job.schedule is None:
        notes.print(
            f"[bold]Plan[/bold]: one request over {len(job.candidates)} candidates, "
            f"{job.expected_runs:.3g} runs expected, about {duration(job.seconds)}.\n"
            f"ε: {job.epsilon(job.charges[0]):.3g} for the first level, "
            f"{job.worst_case.epsilon:.3g} at worst (δ = {job.delta:g}).",
            highlight=False,
        )
        return
    notes.print(reach_table(job.reach, job.seconds_per_run))
    misses = [job.epsilon(each.charges.nothing) for each in job.steps]
    notes.print(
        f"[bold]Plan[/bold]: up to {job.attempts} attempts over {len(job.candidates)} candidates, "
        f"until one passes.\n"
        f"A miss costs ε = {misses[0]:.3g} (first attempt) to {misses[-1]:.3g} (last); "
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
    goal = result.details["goal"]
    accuracy = goal["metric"] == "accuracy"
    wanted = (
        "the best score"
        if goal["bar"] is None
        else f"{goal['metric']} {'≥' if accuracy else '≤'} {goal['bar']:g}"
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
    _render_model(table, result, accuracy)
    if result.forecast.attempts > 1:
        table.add_row("attempts", f"{len(result.attempts)} of at most {result.forecast.attempts}")
    table.add_row(
        "ε spent",
        f"[bold green]{shown_up(result.spent.epsilon)}[/bold green] at δ = {result.spent.delta:g}, "
        "tuning included",
    )
    table.add_row("ε at worst", shown_up(result.worst_case.epsilon))
    _render_comparison(table, result)
    table.add_row("rests on", result.release.theorem)
    console.print(table)
    if result.details["budget_refused_another_attempt"]:
        console.print("The budget refused another attempt.")
    if result.model_path is not None:
        console.print(f"Model: {result.model_path}  (expost.load_model)")
    picture = f"; picture: {folder / PICTURE}" if (folder / PICTURE).exists() else ""
    console.print(f"Certificate: {folder / CERTIFICATE}{picture}", soft_wrap=True)


def _render_model(table: Table, result: Tuned, accuracy: bool) -> None:
    if result.model is None or result.score is None:
        return
    settings = ", ".join(f"{key} = {value:g}" for key, value in result.params.items())
    table.add_row("setting", settings)
    sign, noise = (1 if accuracy else -1), result.details["score_noise"]
    spread = f" ± {noise:.3f} (noise of the private score)" if noise else ""
    table.add_row(result.details["goal"]["metric"], f"{sign * result.score:.3f}{spread}")
    if result.bounds is not None:
        side = "at least" if accuracy else "at most"
        table.add_row(
            f"with {100 * result.bounds.confidence:g} % confidence",
            f"{side} {sign * result.bounds.on_scoring_rows:.3f} on the scoring rows; "
            f"{side} {sign * result.bounds.on_population:.3f} on new rows of the same population",
        )


def _render_comparison(table: Table, result: Tuned) -> None:
    if result.comparison is None:
        return
    theirs = result.comparison["papernot_steinke"]
    known = result.comparison["papernot_steinke_level"]
    table.add_row("Papernot–Steinke", f"{theirs:.3f}  ({known:.3f} had the level been known)")
    table.add_row(
        "every setting",
        f"{result.comparison['naive_composition']:.3f}  (composition up to this level)",
    )
