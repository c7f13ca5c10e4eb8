"""What ``expost tune`` is asked: a TOML file, or a file of rows with options.

The options are those of :class:`.TuneRequest`: bounds are written LOW:HIGH, facts about a column
COLUMN=…, lists with commas.

Tests: ``tests/cli/test_tune_rows.py``.
"""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from expost.cli.output import value_in_words, visible
from expost.cli.request_options import request_option
from expost.errors import InvalidInput
from expost.tuning.defaults import as_toml, is_data_file, job_with_defaults, places_of
from expost.tuning.forecast import Forecast
from expost.tuning.missing_facts import FactsMissing, NeededFacts, schema_of
from expost.tuning.request import KEYS, TuneRequest, parse_texts, parsed
from expost.tuning.setting_kinds import BOUNDS_BY_COLUMN
from expost.tuning.settings import DataSettings, read_settings
from expost.tuning.tables import can_stream, open_table, read_head, read_source

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

    def document(self, planned: Forecast) -> dict[str, Any]:
        """Return the job and its plan in plain JSON types."""
        return {"job": toml_to_json(self.tables), "plan": planned.as_dict()}


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


def toml_to_json(value: Any) -> Any:
    """Return settings in JSON types; days of a TOML file as text."""
    if isinstance(value, Mapping):
        return {str(key): toml_to_json(member) for key, member in value.items()}
    if isinstance(value, (list, tuple)):
        return [toml_to_json(member) for member in value]
    return value if isinstance(value, (str, bool, int, float)) else str(value)


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
  empty cells     --missing COLUMN=40 or COLUMN=indicator, besides
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
