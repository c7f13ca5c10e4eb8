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
from expost.cli.output import Json, notes, show
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
    facts = job.as_dict()
    how = " (recommended)" if job.recommended else ""
    notes.print(
        f"[bold]Plan[/bold]: {facts['candidates']} candidates, overhead {job.overhead:g}{how}; {facts['expected_runs']:.3g} runs "
        f"expected (90 % ≤ {facts['runs']['p90']}, at most {facts['runs']['max']}), about {_duration(job.seconds)} an attempt.\n"
        f"Charge ε: {facts['cheapest']:.3g} for the first level, {facts['worst_case']['epsilon']:.3g} at worst"
        f"{f' over {job.attempts} attempts' if job.attempts > 1 else ''} (δ = {facts['worst_case']['delta']:g}).",
        highlight=False,
    )


def _duration(seconds: float) -> str:
    return f"{max(1, round(seconds))} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def _render(console: Console, result: Tuned, folder: Path) -> None:
    goal = result.details["goal"]
    wanted = (
        "the best score"
        if goal["bar"] is None
        else f"{goal['metric']} {'≥' if goal['metric'] == 'accuracy' else '≤'} {goal['bar']:g}"
    )
    table = Table(title=f"Tuned: {wanted}", title_justify="left", show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    table.add_row(
        "setting", ", ".join(f"{key} = {value:g}" for key, value in result.params.items())
    )
    sign, noise = (1 if goal["metric"] == "accuracy" else -1), result.details["score_noise"]
    spread = f" ± {noise:.3f} (noise of the private score)" if noise else ""
    table.add_row(
        goal["metric"], "–" if result.score is None else f"{sign * result.score:.3f}{spread}"
    )
    table.add_row(
        "bar passed",
        {None: "no bar", True: "[green]yes[/green]", False: "[red]no[/red]"}[result.passed],
    )
    if len(result.attempts) > 1 or result.details["privacy"]["attempts"] > 1:
        table.add_row(
            "attempts",
            f"{len(result.attempts)} of {result.details['privacy']['attempts']}, all charged",
        )
    table.add_row(
        "ε spent",
        f"[bold green]{result.spent.epsilon:.3f}[/bold green] at δ = {result.spent.delta:g}, tuning included",
    )
    table.add_row("ε at worst", f"{result.worst_case.epsilon:.3f}")
    if result.comparison is not None:
        theirs, known = (
            result.comparison["papernot_steinke"],
            result.comparison["papernot_steinke_level"],
        )
        table.add_row(
            "Papernot–Steinke", f"{theirs:.3f}  ({known:.3f} had the level been known; one attempt)"
        )
        table.add_row(
            "every setting",
            f"{result.comparison['naive_composition']:.3f}  (composition up to this level)",
        )
    table.add_row("rests on", result.release.theorem)
    console.print(table)
    if result.details["budget_refused_another_attempt"]:
        console.print("The budget refused another attempt.")
    if result.model_path is not None:
        console.print(f"Model: {result.model_path}  (expost.tuning.load_model)")
    picture = f"; picture: {folder / PICTURE}" if (folder / PICTURE).exists() else ""
    console.print(f"Certificate: {folder / CERTIFICATE}{picture}", soft_wrap=True)
