"""Output of the commands: results go to stdout, everything else goes to stderr.

With ``--json``, stdout holds exactly one JSON document: the result, or the error
(``json_errors``). The exit codes of all commands are defined here.
Tests: ``tests/cli/``, ``tests/fuzz/``.
"""

from __future__ import annotations

import codecs
import io
import json
import math
import sys
from collections.abc import Callable
from fractions import Fraction
from typing import Annotated, Any

import typer
from rich.console import Console

from expost.cli import json_errors

FAILURE = 1
"""A check failed: an audit found a violation, or a ledger is damaged."""
BAD_INPUT = 2
"""An argument, a file or a URL is not valid."""
BUDGET_REFUSES = 3
"""The budget refuses the request; nothing ran and nothing was charged."""
UNEXPECTED = 4
"""An unexpected error."""
MISSED_BAR = 5
"""The command finished, but the released result does not reach the bar."""

EXIT_CODES = (
    "Exit codes: 0 done, 1 a check failed, 2 bad input, 3 the budget refuses, "
    "4 unexpected error, 5 finished but the bar was missed."
)

_DEEPEST = 4  # levels of nesting that a table shows

# Without emoji and markup, ":a:" and "[data]" in a text are shown as they are.
notes = Console(stderr=True, emoji=False, markup=False)

Json = Annotated[bool, typer.Option("--json", help="Print exactly one JSON document on stdout.")]


_PLAIN = {"ε": "epsilon", "δ": "delta", "ρ": "rho", "α": "alpha", "≥": ">=", "≤": "<="}
_PLAIN |= {"±": "+/-", "–": "-", "−": "-", "…": "...", "′": "'", "’": "'", "“": '"', "”": '"'}


def _plain(error: UnicodeError) -> tuple[str, int]:
    """Spell characters that a stream cannot encode; others become escapes such as \\u2713."""
    assert isinstance(error, UnicodeEncodeError)
    letters = error.object[error.start : error.end]
    text = "".join(_PLAIN.get(each) or ascii(each)[1:-1] for each in letters)
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
        each
        if each.isprintable() or each == "\n"
        else each.encode("unicode_escape").decode("ascii")
        for each in str(text)
    )
    return "".join(letters)


def in_words(value: object, depth: int = 0) -> str:
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
        text = ", ".join(f"{key} = {in_words(each, depth + 1)}" for key, each in value.items())
        return f"({text})" if depth else text or "–"
    return "[" + ", ".join(in_words(each, depth + 1) for each in value) + "]"


def show(document: dict[str, Any], *, as_json: bool, render: Callable[[Console], None]) -> None:
    """Print a result, either as JSON or by calling ``render`` on a console."""
    if as_json:
        json_errors.printed()
        typer.echo(as_json_text(document))
    else:
        render(Console(emoji=False, markup=False))


def shown_up(amount: float, digits: int = 3) -> str:
    """Return a charge for display, rounded up: what is shown is never below what was paid."""
    scale = 10**digits  # the shortest decimal of a float, so that 0.1 does not become 0.101
    return f"{math.ceil(Fraction(repr(float(amount))) * scale) / scale:.{digits}f}"
