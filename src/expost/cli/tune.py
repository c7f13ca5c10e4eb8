"""``expost tune``: find the smallest ε that reaches a goal, and certify what it cost.

The job is a TOML file, or a file of rows with options. The options are those of
:class:`.TuneRequest`: bounds are written LOW:HIGH, facts about a column COLUMN=…, lists with
commas.

Messages and progress go to stderr; the result goes to stdout.

Tests: ``tests/cli/test_tune_cli.py``, ``tests/cli/test_tune_rows.py``.
"""

from __future__ import annotations

import inspect
import json
import os
import shlex
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from expost.budget.ledger import Ledger
from expost.cli.describe import show_plan
from expost.cli.output import (
    MISSED_BAR,
    Analyst,
    Json,
    Verbose,
    notes,
    request_option,
    show,
    shown_up,
    value_in_words,
    visible,
    with_options,
)
from expost.cli.plans import announce, render
from expost.errors import BudgetRefused, InvalidInput
from expost.execution.workers import EXECUTORS
from expost.tuning import EXAMPLE
from expost.tuning.job import plan_job
from expost.tuning.job import tune as tune_model
from expost.tuning.plan.job_plan import JobPlan
from expost.tuning.request.bought_facts import facts_plan, wanted_of
from expost.tuning.request.defaults import (
    FactsMissing,
    NeededFacts,
    as_toml,
    is_data_file,
    job_with_defaults,
    places_of,
    schema_of,
)
from expost.tuning.request.setting_kinds import BOUNDS_BY_COLUMN
from expost.tuning.request.settings import DataSettings, read_settings
from expost.tuning.request.tune_request import KEYS, TuneRequest, parse_texts, parsed
from expost.tuning.rows.job_tables import can_stream, open_table, read_head, read_source
from expost.tuning.runs.run_attempts import CERTIFICATE, has_begun

_LARGEST_HOLDOUT = 0.5  # share of the rows that a hint proposes for scoring
_MANY = 6  # labels that a reminder lists
_PANEL = "A file of rows instead of a TOML file"
_BY_COLUMN = "Public bounds of a column, age=0:120; repeatable."


def tune_options() -> list[inspect.Parameter]:
    """Return the options of ``expost tune`` that describe a job: the target and the goal first."""
    options = [
        request_option(name, key.kind.option, key.help, panel=_PANEL)
        for name, key in sorted(
            KEYS.items(), key=lambda item: (item[0] != "target", item[1].table != "goal")
        )
        if key.option
    ]
    first = [option.name for option in options].index("feature_bounds") + 1
    options.insert(first, request_option("bounds", list[str], _BY_COLUMN, panel=_PANEL))
    return options


def given_settings(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that options give, in the order of the job file."""
    everywhere, columns = options["feature_bounds"], options["bounds"]
    if everywhere is not None and columns:
        raise InvalidInput(
            "feature_bounds", everywhere, "give --feature-bounds for all columns, or --bounds each"
        )
    given = {name: parsed(name, options[name]) for name in KEYS if name in options}
    if columns:
        given["feature_bounds"] = parse_texts("bounds", BOUNDS_BY_COLUMN, columns)
    return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True)
class TuneArguments:
    """A job as it was given on the command line."""

    described: Any
    tables: Mapping[str, Mapping[str, Any]]
    given: Mapping[str, Any]
    rows: bool

    @classmethod
    def of(cls, job: str, given: Mapping[str, Any]) -> TuneArguments:
        """Return the job of a file and options; only the number of rows is read."""
        if is_data_file(job):
            tables = describe_job(job, given)
            return cls(tables, tables, given, True)
        refuse_options(job, given)
        return cls(job, TuneRequest.read(job).tables, {}, False)

    def asking(self) -> AbstractContextManager[None]:
        """Ask for missing facts in the form in which the job was given."""
        return asking_as_options() if self.rows else nullcontext()

    def show(self, console: Console) -> None:
        """Print the settings, defaults included."""
        show_job(console, self.tables, self.given if self.rows else None)

    def print_warnings(self, console: Console) -> None:
        """Print which rows are not used."""
        for text in reminders(self.tables.get("data", {}), self.rows):
            console.print(visible(text), highlight=False)

    def twice_the_holdout(self) -> str:
        """Return how to score on twice as many rows; empty if most rows would score."""
        share = 2 * self.tables.get("data", {}).get("holdout", DataSettings.holdout)
        if share > _LARGEST_HOLDOUT:
            return ""
        return f"--holdout {share:g}" if self.rows else f"holdout = {share:g} in [data]"

    def document(self, planned: JobPlan) -> dict[str, Any]:
        """Return the job and its plan in plain JSON types."""
        job = json.loads(json.dumps(self.tables, default=str))  # days of a TOML file as text
        return {"job": job, "plan": planned.as_dict()}


def refuse_options(job: str | None, given: Mapping[str, Any]) -> None:
    """Refuse options that describe a job beside a TOML file, which describes one itself."""
    if not given:
        return
    names = ", ".join(_option(name, value) for name, value in given.items())
    if job is None:
        raise InvalidInput("job", None, f"give the file of rows that {names} belongs to")
    error = InvalidInput("job", str(job), f"it has settings of its own; leave {names} out")
    error.args = (
        f"{names} cannot be given with {job}, which has settings of its own: change them in the "
        "file, or give a file of rows instead",
    )
    raise error


def _option(name: str, value: Any) -> str:
    """Return the option of a keyword."""
    if name == "feature_bounds" and isinstance(value, Mapping):
        return "--bounds"
    return "--" + name.replace("_", "-")


def describe_job(
    rows: str, given: Mapping[str, Any], path: str | None = None
) -> dict[str, dict[str, Any]]:
    """Return the tables of a job on a file of rows; only their number is read."""
    if not any(name in given for name in ("at_least", "at_most", "maximize")):
        raise InvalidInput(
            "--at-least",
            None,
            "say what the model must reach: --at-least 0.8 (accuracy), --at-most 0.3 (a loss or an "
            "error), or --maximize",
        )
    return job_with_defaults(given, places_of(rows, given), path=path or rows)


def toml_of(rows: str, given: Mapping[str, Any], path: str) -> str:
    """Return a job on a file of rows as TOML; public facts that are missing stand as comments."""
    text = as_toml(describe_job(rows, given, path))
    data = read_settings(describe_job(rows, given)).data
    file = Path(rows)
    try:
        if data.database is not None:
            schema_of(data, open_table(data)[1])
        else:
            schema_of(data, read_head(file, data) if can_stream(file) else read_source(file, data))
    except FactsMissing as error:
        lines = [
            line if line.startswith("#") else f"# {line}"
            for line in error.lines.splitlines()
            if line != "[data]"
        ]
        return text.replace("[data]\n", "[data]\n" + "\n".join(lines) + "\n", 1)
    return text


@contextmanager
def asking_as_options() -> Iterator[None]:
    """Ask for missing public facts as options."""
    try:
        yield
    except FactsMissing as error:
        raise FactsMissing(error.missing, as_options(error.missing)) from None


def show_job(
    console: Console, job: Mapping[str, Mapping[str, Any]], given: Mapping[str, Any] | None
) -> None:
    """Print the settings of a job, defaults included, before anything runs.

    ``given`` holds the options of a job on a file of rows; None for a TOML file.
    """
    table = Table(title="The job", title_justify="left", show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    if given is not None:
        table.add_column()
    for values in job.values():
        for key, value in values.items():
            name = "model" if key == "kind" else key
            cells: list[str | Text] = [name, visible(value_in_words(value))]
            if given is not None and key != "path" and name not in given:
                cells.append(Text("default", "dim"))
            table.add_row(*cells)
    console.print(table)
    if given is not None:
        console.print("--init writes these settings as TOML. All of them are public.", style="dim")


def reminders(data: Mapping[str, Any], options: bool) -> list[str]:
    """Return which rows are not used, from the settings alone: no row is looked at."""
    lines = []
    classes = data.get("classes")
    if isinstance(classes, (list, tuple)) and classes:
        texts = [str(label) for label in classes]
        letters = any(text.lower() != text.upper() for text in texts)
        lines.append(
            f"A row whose label is not exactly {_listed(texts)} is not used and lowers the score"
            + ("; upper and lower case matter." if letters else ".")
        )
    elif isinstance(classes, int) and "name" not in data:
        lines.append(
            f"A row whose label is not a whole number from 0 to {classes - 1} is not used and "
            "lowers the score."
        )
    if data.get("categories"):
        names = ", ".join(data["categories"])
        lines.append(
            f'A value of {names} that is not listed counts as "other"; upper and lower case matter.'
        )
    names = ", ".join(without_fill(data))
    if names:
        remedy = (
            "--missing COLUMN=VALUE or COLUMN=indicator"
            if options
            else 'missing.COLUMN = VALUE or "indicator" in [data]'
        )
        lines.append(
            f"A row with an empty or unreadable cell in {names} is not used and lowers the score. "
            f"If cells may be empty, give {remedy}."
        )
    return lines


def _listed(texts: Sequence[str]) -> str:
    """Return texts in quotes: "'a', 'b' or 'c'"; of many, the first and the last ones."""
    quoted = [repr(text) for text in texts]
    if len(quoted) > _MANY:
        quoted = [*quoted[: _MANY - 2], "…", quoted[-1]]
    return ", ".join(quoted[:-1]) + " or " + quoted[-1]


def without_fill(data: Mapping[str, Any]) -> list[str]:
    """Return the named columns for which no public fill value is given."""
    bounds = data.get("feature_bounds")
    named = [
        *(bounds if isinstance(bounds, Mapping) else ()),
        *data.get("booleans", ()),
        *data.get("dates", ()),
    ]
    chosen = data.get("features") or named
    return [name for name in named if name in chosen and name not in data.get("missing", ())]


_BLANKS = {
    "feature_bounds": "--bounds {}=LOW:HIGH",
    "categories": "--categories {}=VALUE,VALUE",
    "booleans": "--booleans {}",
    "dates": "--dates {}=FIRST:LAST",
    None: "--bounds|--categories|--dates|--booleans {}=…",
}
_FORMS = """\
One option per column, by what it holds:
  numbers         --bounds COLUMN=0:120
  categories      --categories COLUMN=Bern,Zug  (all other values are "other")
  text            --texts COLUMN
  true and false  --booleans COLUMN
  dates           --dates COLUMN=1990-01-01:2029-12-31
  empty cells     --missing COLUMN=40 or COLUMN=indicator, in addition
To leave columns out, list those to use: --features COLUMN,COLUMN"""


def as_options(missing: NeededFacts) -> str:
    """Return the options that give the facts that are missing, one per line."""
    asked = (
        (missing.target, "--target COLUMN"),
        (missing.target_bounds, "--target-bounds LOW:HIGH"),
        (missing.classes, "--classes LABEL,LABEL"),
        (missing.bounds, "--feature-bounds LOW:HIGH"),
    )
    lines = [f"  {text}" for wanted, text in asked if wanted]
    for name, kind in missing.columns.items():
        flag, _, value = _BLANKS[kind].partition(" ")
        lines.append(f"  {flag} {_quoted(value.format(name))}")
    return "\n".join([*lines, *([_FORMS] if missing.columns else ())])


def _quoted(text: str) -> str:
    """Return a word for a shell, in quotes only if its column name needs them."""
    return (
        text if shlex.quote(text.replace("…", "")) == text.replace("…", "") else shlex.quote(text)
    )


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
            help="Write a job as TOML and stop: with rows, the job that the options describe (to "
            "--out, or to stdout); otherwise a commented example (to JOB, or to stdout).",
        ),
    ] = False,
    ledger: Annotated[str | None, typer.Option(help="The ledger to charge.")] = None,
    budget: Annotated[str | None, typer.Option(help="The budget of the ledger to charge.")] = None,
    analyst: Analyst = "",
    executor: Annotated[
        ExecutorName | None,
        typer.Option(
            metavar="NAME",
            help="Where models are trained: local (this process), processes, ray (the cluster at "
            "RAY_ADDRESS), dask (DASK_SCHEDULER_ADDRESS) or spark (spark.master). Without an "
            "address a cluster is started on this machine. By default the job's run.executor, or "
            "local.",
        ),
    ] = None,
    stop_early: Annotated[
        bool,
        typer.Option(
            help="Stop at the first model that reaches the goal. Without this, the time taken "
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

    The job costs at most --max-epsilon. A missed goal ends with exit code 5; if a
    model was charged, it is saved as missed-model.npz.
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

        def announced(planned: JobPlan) -> None:
            display.update(planning, visible=False)
            announce(notes, planned, asked.twice_the_holdout(), verbose)
            if learns:
                facts = shown_up(asked.given["learn_facts"])
                notes.print(f"Facts cost at most ε = {facts} in addition.", highlight=False)
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
