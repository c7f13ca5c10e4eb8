"""The ``expost`` command."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer
from rich.markup import escape

from expost._version import __version__
from expost.cli import ledger
from expost.cli.audit import audit
from expost.cli.certificate import certificate
from expost.cli.count import count
from expost.cli.output import BAD_INPUT, BUDGET_REFUSES, UNFORESEEN, notes, visible
from expost.cli.plan import plan
from expost.cli.tune import tune
from expost.errors import BudgetRefused, ExpostError

app = typer.Typer(
    name="expost",
    help="Utility-first differential privacy: say how accurate the answer must be, pay what the released answer cost.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"expost {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Options before a command."""


app.command()(plan)
app.command()(tune)
app.command()(count)
app.command()(certificate)
app.command()(audit)
app.add_typer(ledger.app, name="ledger")


def main() -> None:
    """Run the ``expost`` command."""
    run(app)


def run(command: typer.Typer) -> None:
    """Run a command; errors that were foreseen end with a line on stderr and a telling exit code.

    Any other error ends without its text: it is not ours, and may quote data. ``EXPOST_TRACEBACK=1`` shows it to who may see that.
    """
    try:
        command()
    except (ExpostError, OSError, UnicodeDecodeError) as error:
        notes.print(f"[red]error:[/red] {escape(visible(error))}", highlight=False, soft_wrap=True)
        sys.exit(BUDGET_REFUSES if isinstance(error, BudgetRefused) else BAD_INPUT)
    except Exception as error:
        if os.environ.get("EXPOST_TRACEBACK"):
            raise
        notes.print(
            f"[red]error:[/red] unforeseen ({type(error).__name__}). What was reserved in a ledger stays charged. Please report it; "
            "EXPOST_TRACEBACK=1 shows the traceback, which may quote data.",
            highlight=False,
            soft_wrap=True,
        )
        sys.exit(UNFORESEEN)
