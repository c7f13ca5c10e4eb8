"""Errors of commands with ``--json``: one document ``{"error": {...}}`` on stdout.

The keys are ``kind`` (the name of the error), ``message``, ``field`` (the option or setting, where
one is known) and ``exit_code``. There is no such document if a result was already printed. The
message is the one on stderr.
Tests: ``tests/cli/test_json_errors.py``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import typer


@dataclass
class _State:
    """What this process printed, and the last error."""

    printed: bool = False
    error: dict[str, Any] | None = None


_state = _State()


def begin() -> None:
    """Forget what an earlier command of this process did."""
    _state.printed, _state.error = False, None


def printed() -> None:
    """Note that a result is on stdout."""
    _state.printed = True


def note(kind: str, message: str, field: str | None = None) -> None:
    """Note an error, for the document."""
    _state.error = {"kind": kind, "message": message, "field": field}


@contextmanager
def noted() -> Iterator[None]:
    """Note mistakes in options, which the option parser shows itself."""
    try:
        yield
    except Exception as error:
        if hasattr(error, "format_message"):
            parameter = getattr(getattr(error, "param", None), "name", None)
            note("UsageError", str(error.format_message()), parameter)
        raise


def show(code: object) -> None:
    """Print the document if ``--json`` was given, the command failed, and no result is there."""
    options = sys.argv[1:]
    options = options[: options.index("--")] if "--" in options else options
    if "--json" not in options or _state.printed or not code:
        return
    _state.printed = True
    error = _state.error or {"kind": "Stopped", "message": "the command was stopped", "field": None}
    typer.echo(json.dumps({"error": error | {"exit_code": code}}, indent=2))
