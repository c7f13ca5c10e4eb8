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

notes = Console(stderr=True)

Json = Annotated[bool, typer.Option("--json", help="Print exactly one JSON document on stdout.")]


def show(document: dict[str, Any], *, as_json: bool, render: Callable[[Console], None]) -> None:
    """Print a result: as JSON, or as ``render`` draws it."""
    if as_json:
        typer.echo(json.dumps(document, indent=2, allow_nan=False, ensure_ascii=False))
    else:
        render(Console())
