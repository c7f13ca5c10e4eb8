"""What ``expost tune`` is asked: a TOML file, or a file of rows with options.

Tests: ``tests/cli/test_tune_rows.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from expost.cli.output import in_words, visible
from expost.cli.tune_options import as_options
from expost.errors import InvalidInput
from expost.tuning.config_file import Document
from expost.tuning.data_settings import DataSettings
from expost.tuning.defaults import as_toml, is_data_file, job_of, places_of
from expost.tuning.forecast import Forecast
from expost.tuning.missing_facts import FactsMissing, schema_of
from expost.tuning.settings import read_settings
from expost.tuning.tables import read_source

_LARGEST_HOLDOUT = 0.5  # share of the rows that a hint proposes for scoring
_MANY = 6  # labels that a reminder lists


@dataclass(frozen=True)
class Asked:
    """A job as it was given on the command line.

    Parameters
    ----------
    described : Path or mapping
        What :func:`expost.tune` takes.
    tables : mapping of str to mapping
        The settings, for display.
    given : mapping
        The options that describe the job; empty for a TOML file.
    rows : bool
        Whether the job is a file of rows.
    """

    described: Any
    tables: Mapping[str, Mapping[str, Any]]
    given: Mapping[str, Any]
    rows: bool

    @classmethod
    def of(cls, job: Path, given: Mapping[str, Any]) -> Asked:
        """Return the job of a file and options; only the number of rows is read."""
        if is_data_file(job):
            tables = describe(job, given)
            return cls(tables, tables, given, True)
        refuse_options(job, given)
        return cls(job, Document.read(job).tables, {}, False)

    def asking(self) -> AbstractContextManager[None]:
        """Ask for missing facts in the form in which the job was given."""
        return asking_as_options() if self.rows else nullcontext()

    def show(self, console: Console) -> None:
        """Print the settings, defaults included."""
        show_job(console, self.tables, self.given if self.rows else None)

    def remind(self, console: Console) -> None:
        """Print which rows are not used."""
        for text in reminders(self.tables.get("data", {}), self.rows):
            console.print(visible(text), highlight=False)

    def twice_the_holdout(self) -> str:
        """Return how to score on twice as many rows; empty if most rows would score."""
        share = 2 * self.tables.get("data", {}).get("holdout", DataSettings.holdout)
        if share > _LARGEST_HOLDOUT:
            return ""
        return f"--holdout {share:g}" if self.rows else f"holdout = {share:g} in [data]"

    def document(self, planned: Forecast) -> dict[str, Any]:
        """Return the job and its plan in plain JSON types."""
        return {"job": plain(self.tables), "plan": planned.as_dict()}


def refuse_options(job: Path | None, given: Mapping[str, Any]) -> None:
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


def plain(value: Any) -> Any:
    """Return settings in JSON types; days of a TOML file as text."""
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return value if isinstance(value, (str, bool, int, float)) else str(value)


def describe(
    rows: Path, given: Mapping[str, Any], path: Path | None = None
) -> dict[str, dict[str, Any]]:
    """Return the tables of a job on a file of rows; only their number is read.

    Parameters
    ----------
    rows : Path
        The file.
    given : mapping
        The options.
    path : Path, optional
        How the job names the file, if not by ``rows``.

    Raises
    ------
    InvalidInput
        An option is not valid, or there is no goal.
    """
    if not any(name in given for name in ("at_least", "at_most", "maximize")):
        raise InvalidInput(
            "--at-least",
            None,
            "say what the model must reach: --at-least 0.8 (accuracy), --at-most 0.3 (a loss or an "
            "error), or --maximize",
        )
    return job_of(given, places_of(rows, given), path=path or rows)


def toml_of(rows: Path, given: Mapping[str, Any], path: Path) -> str:
    """Return a job on a file of rows as TOML; public facts that are missing stand as comments."""
    text = as_toml(describe(rows, given, path))
    data = read_settings(describe(rows, given)).data
    try:
        schema_of(data, read_source(rows, data))
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
            cells: list[str | Text] = [name, visible(in_words(value))]
            if given is not None and key != "path" and name not in given:
                cells.append(Text("default", "dim"))
            table.add_row(*cells)
    console.print(table)
    if given is not None:
        console.print("--init writes these settings as TOML. All of them are public.", style="dim")


def reminders(data: Mapping[str, Any], options: bool) -> list[str]:
    """Return which rows are not used, from the settings alone: no row is looked at."""
    found = []
    classes = data.get("classes")
    if isinstance(classes, (list, tuple)) and classes:
        texts = [str(each) for each in classes]
        letters = any(each.lower() != each.upper() for each in texts)
        found.append(
            f"A row whose label is not exactly {_listed(texts)} is not used and lowers the score"
            + ("; upper and lower case matter." if letters else ".")
        )
    elif isinstance(classes, int) and "name" not in data:
        found.append(
            f"A row whose label is not a whole number from 0 to {classes - 1} is not used and "
            "lowers the score."
        )
    if data.get("categories"):
        names = ", ".join(data["categories"])
        found.append(
            f'A value of {names} that is not listed counts as "other"; upper and lower case matter.'
        )
    names = ", ".join(without_fill(data))
    if names:
        remedy = (
            "--missing COLUMN=VALUE or COLUMN=indicator"
            if options
            else 'missing.COLUMN = VALUE or "indicator" in [data]'
        )
        found.append(
            f"A row with an empty or unreadable cell in {names} is not used and lowers the score. "
            f"If cells may be empty, give {remedy}."
        )
    return found


def _listed(texts: Sequence[str]) -> str:
    """Return texts in quotes: "'a', 'b' or 'c'"; of many, the first and the last ones."""
    quoted = [repr(each) for each in texts]
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
