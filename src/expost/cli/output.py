"""Where output goes: results to stdout, everything else to stderr; with --json stdout holds one JSON document."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, Any

import typer
from rich.console import Console

FAILURE = 1
BAD_INPUT = 2
BUDGET_REFUSES = 3
UNFORESEEN = 4

notes = Console(stderr=True, emoji=False)  # ":a:" in a name is just that

Json = Annotated[bool, typer.Option("--json", help="Print exactly one JSON document on stdout.")]


def as_text(text: str) -> str:
    """The text with halves of letters written as escapes, which JSON knows too: no stream takes them as they are."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def visible(text: object) -> str:
    """A text from a file or a database for a terminal: letters that would move its cursor or colour it are written as escapes."""
    letters = (
        each
        if each.isprintable() or each == "\n"
        else each.encode("unicode_escape").decode("ascii")
        for each in str(text)
    )
    return "".join(letters)


def show(document: dict[str, Any], *, as_json: bool, render: Callable[[Console], None]) -> None:
    """Print a result: as JSON, or as ``render`` draws it."""
    if as_json:
        typer.echo(as_text(json.dumps(document, indent=2, allow_nan=False, ensure_ascii=False)))
    else:
        render(Console(emoji=False))
