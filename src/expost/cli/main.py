"""The ``expost`` command: its subcommands, its exit codes, and how errors are shown.

Tests: ``tests/cli/``, ``tests/fuzz/``.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from expost._version import __version__
from expost.cli import ledger, verify
from expost.cli.audit import audit
from expost.cli.count import count
from expost.cli.output import BAD_INPUT, BUDGET_REFUSES, EXIT_CODES, UNEXPECTED, notes, visible
from expost.cli.plan import plan
from expost.cli.remote import WithServer
from expost.cli.serve import serve
from expost.cli.tune import tune
from expost.errors import BudgetRefused, ExpostError

app = typer.Typer(
    cls=WithServer,
    name="expost",
    help="Utility-first differential privacy: state how accurate the answer must be, and pay only "
    "for the answer that is released.",
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
            help="Ask this desk (expost serve) instead of reading data here. Commands: count, "
            "plan, tune, datasets, release, ledger show. The token is read from EXPOST_TOKEN.",
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


app.command()(plan)
app.command()(tune)
app.command()(count)
app.command()(audit)
app.command()(serve)
app.add_typer(verify.app, name="certificate")
app.add_typer(ledger.app, name="ledger")


def main() -> None:
    """Run the ``expost`` command."""
    run(app)


def run(command: typer.Typer) -> None:
    """Run a command and turn errors into one line on stderr and an exit code.

    The text of an unexpected error is not shown, because it may quote data. Set
    ``EXPOST_TRACEBACK=1`` to see the traceback.

    Parameters
    ----------
    command : typer.Typer
        The command to run, with the arguments of this process.
    """
    try:
        command()
    except (ExpostError, OSError, UnicodeDecodeError) as error:
        notes.print(
            f"[red]error:[/red] {escape(visible(_reason(error)))}", highlight=False, soft_wrap=True
        )
        sys.exit(BUDGET_REFUSES if isinstance(error, BudgetRefused) else BAD_INPUT)
    except Exception as error:
        if os.environ.get("EXPOST_TRACEBACK"):
            raise
        notes.print(
            f"[red]error:[/red] unexpected error ({type(error).__name__}). Amounts reserved in a "
            "ledger stay charged. Please report this error. Set EXPOST_TRACEBACK=1 to see the "
            "traceback; it may quote data.",
            highlight=False,
            soft_wrap=True,
        )
        sys.exit(UNEXPECTED)


def _reason(error: Exception) -> str:
    """The text of an expected error, without bytes of the file that caused it."""
    if isinstance(error, UnicodeDecodeError):
        return "the file is not UTF-8 text; save it as UTF-8, or give another file"
    return str(error)
