"""What commands share: their options, and output (results to stdout, all else to stderr).

With ``--json``, stdout holds exactly one JSON document: the result, or the error as
``{"error": {...}}`` with the keys ``kind`` (the name of the error), ``message`` (the one on
stderr), ``field`` (the option or setting, where one is known) and ``exit_code``. There is no such
document if a result was already printed. The exit codes of all commands are defined here.
Tests: ``tests/cli/``, ``tests/fuzz/``.
"""

from __future__ import annotations

import codecs
import inspect
import io
import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from expost.errors import InvalidInput

FAILURE = 1
"""A check failed: an audit found a violation, or a ledger is damaged."""
BAD_INPUT = 2
"""An argument, a file or a URL is not valid."""
BUDGET_REFUSES = 3
"""The budget refuses the request; nothing ran and nothing was charged."""
UNEXPECTED = 4
"""An unexpected error."""
MISSED_BAR = 5
"""The command finished, but the released result does not reach the goal."""

EXIT_CODES = (
    "Exit codes: 0 done, 1 a check failed, 2 bad input, 3 the budget refuses, "
    "4 unexpected error, 5 finished but the goal was missed."
)

_DEEPEST = 4  # levels of nesting that a table shows

# Without emoji and markup, ":a:" and "[data]" in a text are shown as they are.
notes = Console(stderr=True, emoji=False, markup=False)

Json = Annotated[bool, typer.Option("--json", help="Print exactly one JSON document on stdout.")]
Verbose = Annotated[
    bool, typer.Option("--verbose", help="Also show settings, method and intermediate numbers.")
]

Source = Annotated[
    str,
    typer.Argument(
        help="A CSV, TSV, JSON-lines or Parquet file, a folder or glob of them, a DuckDB or "
        "SQLite file, or a connection URL (duckdb://, postgresql://, pyspark://)."
    ),
]
LedgerName = Annotated[str | None, typer.Option(help="Charge this ledger.")]
BudgetName = Annotated[str | None, typer.Option(help="Budget of the ledger.")]
Analyst = Annotated[str, typer.Option(help="The analyst, for caps per analyst.")]
CertificateFile = Annotated[
    Path | None, typer.Option(help="Write a certificate (JSON) to this file.")
]
Plot = Annotated[Path | None, typer.Option(help="Write a figure.")]

_PLAIN = {"ε": "epsilon", "δ": "delta", "ρ": "rho", "α": "alpha", "≥": ">=", "≤": "<="}
_PLAIN |= {"±": "+/-", "–": "-", "−": "-", "…": "...", "′": "'", "’": "'", "“": '"', "”": '"'}


def _plain(error: UnicodeError) -> tuple[str, int]:
    """Spell characters that a stream cannot encode; others become escapes such as \\u2713."""
    assert isinstance(error, UnicodeEncodeError)
    letters = error.object[error.start : error.end]
    text = "".join(_PLAIN.get(letter) or ascii(letter)[1:-1] for letter in letters)
    return text, error.end


codecs.register_error("expost.plain", _plain)


def accept_any_text() -> None:
    """Make stdout and stderr accept every text: what is printed may already be paid for."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="expost.plain")


def as_json_text(document: object, indent: int | None = 2) -> str:
    """Return JSON that stdout can encode."""
    unicode = (sys.stdout.encoding or "").lower().startswith("utf")
    text = json.dumps(document, indent=indent, allow_nan=False, ensure_ascii=not unicode)
    return as_text(text)


def as_text(text: str) -> str:
    """Escape lone surrogates, which UTF-8 streams reject. JSON reads the escapes back."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def visible(text: object) -> str:
    """Escape characters that would move the cursor or change colours in a terminal.

    Use it for every text that comes from a file or a database.
    """
    letters = (
        character
        if character.isprintable() or character == "\n"
        else character.encode("unicode_escape").decode("ascii")
        for character in str(text)
    )
    return "".join(letters)


def value_in_words(value: object, depth: int = 0) -> str:
    """A value as text for people: names and values instead of Python's notation."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, (dict, list, tuple)):
        return str(value)
    if depth == _DEEPEST:
        return "…"
    if isinstance(value, dict):
        text = ", ".join(
            f"{key} = {value_in_words(member, depth + 1)}" for key, member in value.items()
        )
        return f"({text})" if depth else text or "–"
    return "[" + ", ".join(value_in_words(member, depth + 1) for member in value) + "]"


def show(document: dict[str, Any], *, as_json: bool, render: Callable[[Console], None]) -> None:
    """Print a result, either as JSON or by calling ``render`` on a console."""
    if as_json:
        note_result()
        typer.echo(as_json_text(document))
    else:
        render(Console(emoji=False, markup=False))


def plural(number: int, noun: str) -> str:
    """Return a number and its noun: 1 row, 2 rows."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def shown_up(amount: float, digits: int = 3) -> str:
    """Return a charge for display, rounded up: what is shown is never below what was paid."""
    scale = 10**digits  # the shortest decimal of a float, so that 0.1 does not become 0.101
    return f"{math.ceil(Fraction(repr(float(amount))) * scale) / scale:.{digits}f}"


@dataclass
class _Printed:
    """What this process printed, and the last error."""

    printed: bool = False
    error: dict[str, Any] | None = None


_state = _Printed()


def begin_command() -> None:
    """Forget what an earlier command of this process did."""
    _state.printed, _state.error = False, None


def note_result() -> None:
    """Note that a result is on stdout."""
    _state.printed = True


def note_error(kind: str, message: str, field: str | None = None) -> None:
    """Note an error, for the document."""
    _state.error = {"kind": kind, "message": message, "field": field}


@contextmanager
def noted_mistakes() -> Iterator[None]:
    """Note mistakes in options, which the option parser shows itself."""
    try:
        yield
    except Exception as error:
        if hasattr(error, "format_message"):
            parameter = getattr(getattr(error, "param", None), "name", None)
            note_error("UsageError", str(error.format_message()), parameter)
        raise


def show_error(code: object) -> None:
    """Print the document if ``--json`` was given, the command failed, and no result is there."""
    options = sys.argv[1:]
    options = options[: options.index("--")] if "--" in options else options
    if "--json" not in options or _state.printed or not code:
        return
    _state.printed = True
    error = _state.error or {"kind": "Stopped", "message": "the command was stopped", "field": None}
    typer.echo(json.dumps({"error": error | {"exit_code": code}}, indent=2))


Command = Callable[..., None]
_EMPTY = inspect.Parameter.empty


def request_option(
    name: str, hint: Any, help_text: str, *, required: bool = False, panel: str | None = None
) -> inspect.Parameter:
    """Return the option ``--name`` of a type; one that is not required is None if not given."""
    option = typer.Option(f"--{name.replace('_', '-')}", help=help_text, rich_help_panel=panel)
    annotation = hint if required or hint is bool else hint | None
    default: Any = False if hint is bool else None
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=_EMPTY if required else default,
        annotation=Annotated[annotation, option],
    )


def with_options(options: Sequence[inspect.Parameter]) -> Callable[[Command], Command]:
    """Return a decorator that gives a command these options instead of its ``**options``."""

    def decorate(command: Command) -> Command:
        own = list(inspect.signature(command, eval_str=True).parameters.values())
        kept = [option for option in own if option.kind is not inspect.Parameter.VAR_KEYWORD]
        kept = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in kept]
        signature = inspect.Signature([*kept[:1], *options, *kept[1:]])
        command.__signature__ = signature  # type: ignore[attr-defined]
        command.__annotations__ = {}  # typer would evaluate those of the command
        return command

    return decorate


Question = StrEnum("Question", ["tune", "count"])


def schema(
    question: Annotated[Question, typer.Argument(help="The question: tune or count.")],
    out: Annotated[
        Path | None, typer.Option(help="Write the schema to this file, else to stdout.")
    ] = None,
) -> None:
    """Write the JSON Schema of a job file, or of a count, for editors and other programs."""
    from expost.analytics.request import count_schema
    from expost.tuning.request.tune_request import job_schema

    text = as_json_text(job_schema() if question.value == "tune" else count_schema())
    if out is None:
        typer.echo(text)
        return
    if out.exists():
        raise InvalidInput("out", str(out), "the file exists already; give another name")
    out.write_text(text + "\n", encoding="utf-8")
    notes.print(f"schema: {out}")
