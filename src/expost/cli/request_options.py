"""What commands derive from a request (:class:`.CountRequest`, ``TuneRequest``).

Tests: ``tests/cli/test_schema_cli.py``, ``tests/cli/test_tune_rows.py``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from expost.cli.output import as_json_text, notes
from expost.errors import InvalidInput

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
