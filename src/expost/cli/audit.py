"""``expost audit``: test the guarantee of a mechanism or a selection on two neighbouring data sets.

Tests: ``tests/cli/test_audit_cli.py``.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from expost import plots
from expost.audit.empirical import audit as run_audit
from expost.audit.report import AuditReport
from expost.audit.subjects import (
    SELECTORS,
    NamedFunction,
    Options,
    Reference,
    Selection,
    named_subject,
)
from expost.cli.output import FAILURE, Json, notes, show
from expost.errors import InvalidInput

_SHOWN = 24  # outcomes in the table; the JSON has all of them
_RUNS_PER_WORKER = 200


def audit_command(
    subject: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:NAME",
            help="Candidates, a pair (selector, candidates), a mechanism with a guarantee, a "
            "function that returns a Release, or a function without arguments that returns one of "
            "these. MODULE may be a file ending in .py.",
        ),
    ],
    data: Annotated[
        Path, typer.Option(help="A data set: .npy, or .npz with one array or several named ones.")
    ],
    neighbour: Annotated[
        Path, typer.Option(help="The same data set with one person added, removed or changed.")
    ],
    runs: Annotated[
        int,
        typer.Option(help="Runs on each data set; one fifth of them is used to choose the events."),
    ],
    event: Annotated[
        str | None,
        typer.Option(
            help="MODULE:FUNCTION that maps a released value to a label, or to a number that "
            "is compared with thresholds."
        ),
    ] = None,
    score: Annotated[
        str | None, typer.Option(help="MODULE:FUNCTION that scores the outputs in the selection.")
    ] = None,
    selector: Annotated[
        str,
        typer.Option(
            help="The selector for a bare list of candidates: " + ", ".join(SELECTORS) + "."
        ),
    ] = SELECTORS[0],
    overhead: Annotated[float | None, typer.Option(help="The overhead ε′ of the selector.")] = None,
    at_least: Annotated[
        float | None, typer.Option(help="The score that the selector must reach.")
    ] = None,
    delta: Annotated[
        float | None, typer.Option(help="The δ of the claim of the selector or the mechanism.")
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="Test this ε (with --delta) instead of the stated claim.")
    ] = None,
    confidence: Annotated[
        float,
        typer.Option(
            help="A guarantee that holds is reported as violated with probability at most 1 − this."
        ),
    ] = 0.95,
    workers: Annotated[
        int | None,
        typer.Option(help="Number of processes; by default at most one per core.", min=1),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(help="Write a figure of the claimed and the measured values to this file."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Audit a guarantee: run on two neighbouring data sets, count the outcomes, compare.

    The exit code is 1 if the guarantee is violated.

    The output shows how the two data sets differ, so use data that you are allowed to look at.
    """
    plots.check_path(plot)
    rating = None if score is None else Reference.parse(score, "score")
    options = Options(selector, overhead, at_least, delta, epsilon, rating)
    named = named_subject(Reference.parse(subject, "subject"), options)
    events = None if event is None else NamedFunction(Reference.parse(event, "event"), "event")
    first, second = load(data, "data"), load(neighbour, "neighbour")
    if _same(first, second):
        raise InvalidInput(
            "neighbour",
            str(neighbour),
            "it holds the same as the data; give a data set that differs in one person",
        )
    with _progress() as display:
        task = display.add_task("auditing", total=2 * runs)
        report = run_audit(
            named,
            first,
            second,
            runs=runs,
            events=events,
            delta=None if isinstance(named, Selection) or epsilon is not None else delta,
            confidence=confidence,
            workers=workers or max(1, min(os.cpu_count() or 1, runs // _RUNS_PER_WORKER)),
            progress=lambda done, _: display.update(task, completed=done),
        )
    if plot is not None:
        plots.draw_audit(report, plot)
        notes.print(f"figure: {plot}")
    show(report.as_dict(), as_json=as_json, render=lambda console: _render(console, report))
    if report.violated:
        raise typer.Exit(FAILURE)


def load(path: Path, field: str) -> Any:
    """The array of a file, or its arrays by name if there are several."""
    if not path.is_file():
        raise InvalidInput(field, str(path), "there is no such file; give an .npz or .npy file")
    try:
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return loaded
        with loaded:
            arrays = {name: loaded[name] for name in loaded.files}
    except Exception as error:  # a broken archive may raise any error
        raise InvalidInput(
            field, str(path), f"not a readable .npz or .npy file ({type(error).__name__})"
        ) from None
    if not arrays:
        raise InvalidInput(field, str(path), "the file holds no array; save one with numpy.savez")
    return next(iter(arrays.values())) if len(arrays) == 1 else arrays


def _same(first: Any, second: Any) -> bool:
    """Whether two data sets are equal."""
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(
            _same(first[name], second[name]) for name in first
        )
    if isinstance(first, dict) or isinstance(second, dict):
        return False
    return first.dtype == second.dtype and np.array_equal(first, second)


def _progress() -> Progress:
    """A progress bar on stderr, shown in terminals only."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:.0f} %"),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=notes, transient=True, disable=not notes.is_terminal)


def _render(console: Console, report: AuditReport) -> None:
    """Print a report as a table with notes."""
    colour = "red" if report.violated else "green"
    console.print(
        Text.assemble((report.verdict, f"bold {colour}"), f" at {report.confidence:.4g} confidence")
    )
    order = any(outcome.order is not None for outcome in report.outcomes)
    measure = "Rényi ε" if order else "ε" if report.delta == 0 else f"ε at δ = {report.delta:g}"
    table = Table(title=f"Claimed and measured ({measure})", title_justify="left")
    for heading in (
        "outcome",
        "claimed",
        "at least",
        "tightness",
        "runs",
        "neighbour",
        *(["order"] if order else []),
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("shown by", overflow="fold")
    ranked = sorted(report.outcomes, key=lambda audited: audited.claimed - audited.lower_bound)[
        :_SHOWN
    ]
    for audited in (outcome for outcome in report.outcomes if outcome in ranked):
        table.add_row(
            "nothing" if audited.index is None else str(audited.index),
            f"{audited.claimed:.4g}",
            f"{audited.lower_bound:.4g}",
            "–" if audited.tightness is None else f"{audited.tightness:.0%}",
            *map(str, audited.runs),
            *([f"{audited.order:g}"] if order else []),
            f"{audited.event} (on {audited.side})" if audited.event else "–",
            style="red" if audited.violated else None,
        )
    console.print(table)
    if len(report.outcomes) > _SHOWN:
        console.print(
            f"{len(report.outcomes) - _SHOWN} more outcomes, further from their claims, are shown "
            "with --json."
        )
    if report.joint.violated:
        console.print(
            f"All outcomes together: at least {report.joint.lower_bound:.4g}, but the claim "
            f"allows {report.joint.limit:g}.",
            style="red",
        )
    if any(report.failed):
        console.print(
            f"{sum(report.failed)} counted runs raised an error; they count as the "
            "outcome “failed”.",
            style="yellow",
        )
    if report.blind:
        console.print(
            "Some released values are not numbers and were not examined: pass --event.",
            style="yellow",
        )
    if any(report.unseen):
        console.print(
            f"{sum(report.unseen)} counted runs had outcomes that no pilot run had; "
            "these outcomes were not tested.",
            style="yellow",
        )
    console.print(
        f"{report.runs} runs on each data set, {report.pilot} of them to choose events; "
        f"{report.comparisons} bounds share the error probability. “consistent” is not a proof: it "
        "means that these events and runs show no violation.",
        style="dim",
        highlight=False,
    )
