"""The ``expost`` command: its subcommands, its exit codes, and how errors are shown.

Tests: ``tests/cli/``, ``tests/fuzz/``.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text
from typer.core import TyperGroup

from expost._version import __version__
from expost.cli import certificate, ledger, server
from expost.cli.audit import audit_command
from expost.cli.certificate import evidence_command
from expost.cli.count import CountCommand, count_command
from expost.cli.describe import describe_command
from expost.cli.output import (
    BAD_INPUT,
    BUDGET_REFUSES,
    EXIT_CODES,
    UNEXPECTED,
    accept_any_text,
    begin_command,
    note_error,
    noted_mistakes,
    notes,
    schema,
    show_error,
    visible,
)
from expost.cli.plans import plan_command
from expost.cli.questions import quantile_command, query_command
from expost.cli.tour import tour_command
from expost.cli.tune import tune_command
from expost.errors import BudgetRefused, ExpostError

_ELSEWHERE = {
    "sum": "expost count FILE --sum COLUMN --bounds LOW:HIGH",
    "mean": "expost count FILE --mean COLUMN --bounds LOW:HIGH",
    "serve": "expost server start --home FOLDER",
}


class Commands(TyperGroup):
    """All commands, or those of a server; other names are answered with the right command."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command of this name."""
        if ctx.params.get("server"):
            from expost.cli import remote

            return _built(remote.app).get_command(ctx, cmd_name)
        return super().get_command(ctx, cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command of the first word; ``help X`` is ``X --help``."""
        word = args[0]
        if word == "help":
            if args[1:]:
                return super().resolve_command(ctx, [*args[1:], "--help"])
            typer.echo(ctx.get_help())
            ctx.exit()
        if word in _ELSEWHERE and not ctx.params.get("server"):
            ctx.fail(f"No such command {word!r}. Use: {_ELSEWHERE[word]}")
        return super().resolve_command(ctx, args)

    def make_context(self, *args: Any, **options: Any) -> Any:
        """Read the options of the group; a mistake is noted for --json."""
        with noted_mistakes():
            return super().make_context(*args, **options)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; a mistake in its options is noted for --json."""
        with noted_mistakes():
            return super().invoke(ctx)


app = typer.Typer(
    cls=Commands,
    name="expost",
    help="Say how accurate the answer must be; expost finds the smallest privacy loss that gets "
    "there, and proves it. New here? expost tour",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def _version(wanted: bool) -> None:
    """Print the version and stop."""
    if wanted:
        typer.echo(f"expost {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
    server: Annotated[
        str | None,
        typer.Option(
            "--server",
            help="Ask this server (expost server start) instead of reading data here. Commands: "
            "count, plan, tune, datasets, release, ledger show. The token is read from "
            "EXPOST_TOKEN.",
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file",
            help="With --server: file of the token, readable by its owner only.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
) -> None:
    """Accept the options that come before a command."""


app.command("tour")(tour_command)
app.command("plan")(plan_command)
app.command("tune")(tune_command)
app.command("describe")(describe_command)
app.command("count", cls=CountCommand)(count_command)
app.command("quantile", cls=CountCommand)(quantile_command)
app.command("query")(query_command)
app.command()(schema)
app.command("audit")(audit_command)
app.command("evidence")(evidence_command)
app.add_typer(certificate.app, name="certificate")
app.add_typer(ledger.app, name="ledger")
app.add_typer(server.app, name="server")


@cache
def _built(command: typer.Typer) -> Any:
    """The parser of a command and its subcommands, built once per process."""
    return typer.main.get_command(command)


def main() -> None:
    """Run the ``expost`` command."""
    run_command(app)


def run_command(command: typer.Typer) -> None:
    """Run a command and turn errors into one line on stderr and an exit code.

    With ``--json`` an error is also a JSON document on stdout, unless a result is there already.
    The text of an unexpected error is not shown, because it may quote data. Set
    ``EXPOST_TRACEBACK=1`` to see the traceback.
    """
    begin_command()
    accept_any_text()
    try:
        _built(command)()
    except (ExpostError, OSError, UnicodeDecodeError) as error:
        code = BUDGET_REFUSES if isinstance(error, BudgetRefused) else BAD_INPUT
        note_error(type(error).__name__, _reason(error), getattr(error, "field", None))
        _failed(visible(_reason(error)), code)
    except SystemExit as end:
        show_error(end.code)
        raise
    except Exception as error:
        if os.environ.get("EXPOST_TRACEBACK"):
            raise
        reason = (
            f"unexpected error ({type(error).__name__}). Amounts reserved in a ledger stay "
            "charged. Please report this error. Set EXPOST_TRACEBACK=1 to see the traceback; it "
            "may quote data."
        )
        note_error("Unexpected", reason)
        _failed(reason, UNEXPECTED)


def _failed(reason: str, code: int) -> None:
    """Print the reason, and end with this exit code."""
    notes.print(Text.assemble(("error:", "red"), f" {reason}"), soft_wrap=True)
    show_error(code)
    sys.exit(code)


def _reason(error: Exception) -> str:
    """The text of an expected error, without bytes of the file that caused it."""
    if isinstance(error, UnicodeDecodeError):
        return "the file is not UTF-8 text; save it as UTF-8, or give another file"
    return str(error)
