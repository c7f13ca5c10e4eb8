"""``expost certificate``: show, sign and verify certificates.

``expost certificate FILE`` means ``expost certificate show FILE``. What the words and the checks
are is in :mod:`expost.certificates`. Tests: ``tests/cli/test_certificate_words.py``,
``tests/cli/test_verify_cli.py``, ``tests/fuzz/test_certificates.py``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

from expost.budget.signing import SigningKey, load_document
from expost.certificates.document import document_text, read_certificate
from expost.certificates.verify import run_checks, verdict_of
from expost.certificates.words import certificate_words, title_of
from expost.cli.output import FAILURE, Json, notes, show, visible

File = Annotated[Path, typer.Argument(help="A certificate (JSON).", exists=True, dir_okay=False)]
MOST_LINES = 12
"""Lines of a row that are shown without ``--verbose``."""
_LONGEST = 300  # characters of a line


class ShowByDefault(TyperGroup):
    """A group of commands in which ``expost certificate FILE`` means ``… show FILE``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Insert the command ``show`` if no command is named."""
        if args and args[0] not in self.commands and args[0] != "--help":
            args = ["show", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=ShowByDefault,
    help="Show, sign and verify certificates.",
    no_args_is_help=True,
)


@app.command("show")
def show_certificate(
    file: File,
    as_json: Json = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Also show theorems, settings of the search and hash.")
    ] = False,
) -> None:
    """Show a certificate: what was released, what it cost, whom it protects, who paid."""
    document = read_certificate(file)

    def render(console: Console) -> None:
        table = Table(title=title_of(document), show_header=False, title_justify="left")
        table.add_column(style="bold")
        table.add_column(overflow="fold")
        for name, lines in certificate_words(document, verbose=verbose):
            style = "red" if name == "simulated" else ""
            shown = lines if verbose else _shortened(lines)
            table.add_row(name, Text("\n".join(shown), style))
        console.print(table)

    show(dict(document), as_json=as_json, render=render)


def _shortened(lines: tuple[str, ...]) -> list[str]:
    """Lines of bounded number and length."""
    short = [
        line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…  (use --json for all of it)"
        for line in lines
    ]
    left = len(short) - MOST_LINES
    if left > 0:
        short[MOST_LINES:] = [f"… and {left} more (use --verbose for all of them)"]
    return short


@app.command("sign")
def sign_certificate(
    file: File,
    key: Annotated[Path, typer.Option(help="File of the private key (expost ledger keys).")],
    out: Annotated[
        Path | None, typer.Option(help="Write to this file instead of replacing the first.")
    ] = None,
) -> None:
    """Sign a certificate with an Ed25519 key."""
    signed = SigningKey.load(key).sign(load_document(file, "certificate"))
    target = out or file
    target.write_text(document_text(signed) + "\n", encoding="utf-8")
    notes.print(f"signed: {target}")


@app.command("verify")
def check_certificate(
    file: File,
    key: Annotated[
        Path | None, typer.Option(help="File of the public key that must have signed it.")
    ] = None,
    ledger: Annotated[
        str | None, typer.Option(help="The ledger that was charged: a file name or a URL.")
    ] = None,
    model: Annotated[
        Path | None, typer.Option(help="The model file.", exists=True, dir_okay=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Check signature, price, model file and ledger entry. The exit code is 1 if any is wrong."""
    document = load_document(file, "certificate")
    checks = run_checks(document, key=key, ledger=ledger, model=model)
    verdict = verdict_of(document, checks)

    def render(console: Console) -> None:
        for name, problems in checks.items():
            said = ("wrong", "red") if problems else ("correct", "green")
            console.print(Text.assemble(f"{name}: ", said))
            for text in problems:
                console.print(f"  {visible(text)}", highlight=False)
        for text in verdict["not_checked"]:
            console.print(f"not checked: {text}", highlight=False)
        if "signature" in checks and key is None:
            console.print("The key was taken from the certificate itself; pass --key to name it.")

    show(verdict, as_json=as_json, render=render)
    if not verdict["valid"]:
        raise typer.Exit(FAILURE)
