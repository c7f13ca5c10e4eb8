"""Jobs of ``expost tune`` on a file of rows: which settings they amount to.

Tests: ``tests/cli/test_tune_rows.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from expost.cli.output import in_words, notes, visible
from expost.cli.tune_options import as_options
from expost.errors import InvalidInput
from expost.tuning.defaults import as_toml, job_of, places_of
from expost.tuning.missing_facts import schema_of
from expost.tuning.settings import read_settings
from expost.tuning.tables import read_source


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
        An option is not valid.
    """
    return job_of(given, places_of(rows, given), path=path or rows)


def toml_of(rows: Path, given: Mapping[str, Any], path: Path) -> str:
    """Return a job on a file of rows as TOML; public facts that are missing stand as comments."""
    text = as_toml(describe(rows, given, path))
    data = read_settings(describe(rows, given)).data
    question = None
    try:
        schema_of(data, read_source(rows, data))
    except InvalidInput as error:
        if not is_question(error):
            raise
        question = error.valid
    if question is None:
        return text
    lines = [
        line if line.startswith("#") else f"# {line}"
        for line in question.splitlines()
        if line != "[data]"
    ]
    return text.replace("[data]\n", "[data]\n" + "\n".join(lines) + "\n", 1)


def is_question(error: InvalidInput) -> bool:
    """Return whether an error asks for public facts."""
    return error.value is None and "\n" in error.valid


@contextmanager
def asking_as_options() -> Iterator[None]:
    """Ask for missing public facts as options, too."""
    try:
        yield
    except InvalidInput as error:
        if not is_question(error):
            raise
        hint = as_options(error.valid)
        raise InvalidInput(error.field, None, f"{error.valid}\n{hint}") from None


def show_job(job: Mapping[str, Mapping[str, Any]], given: Mapping[str, Any]) -> None:
    """Print the settings of a job, defaults included, before anything runs."""
    table = Table(title="The job", title_justify="left", show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    table.add_column()
    for values in job.values():
        for key, value in values.items():
            name = "model" if key == "kind" else key
            known = key == "path" or name in given
            shown = escape(visible(in_words(value)))
            table.add_row(name, shown, "" if known else "[dim]default[/dim]")
    notes.print(table)
    notes.print("[dim]--init writes these settings as TOML. All of them are public.[/dim]")
    names = without_fill(job["data"])
    if names:
        notes.print(
            f"A row with an empty or unreadable cell in {', '.join(names)} is not used and scores "
            "as wrong. If cells may be empty, give --missing COLUMN=VALUE or COLUMN=indicator.",
            markup=False,
            highlight=False,
        )


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
