"""``expost certificate verify``: check signature, price, model and ledger entry of a certificate.

What each check shows:

* signature: nobody changed the document since the owner of the key signed it;
* price: the charge is what the library computes for this outcome of the grid (or of the answers of
  a count) in the certificate, and so is the worst case;
* model: the model file is the one that was released;
* ledger: the ledger has an entry for this release, with the same charges, source, outcome, amount
  and certificate.

It also says what was not checked, for example without a signature or a ledger.

``expost certificate FILE`` shows a certificate, as ``expost certificate show FILE`` does.
Tests: ``tests/cli/test_verify_cli.py``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperGroup

from expost.budget.ledger import Ledger
from expost.budget.signing import (
    SigningKey,
    document_text,
    load_document,
    load_public,
    signature_problem,
)
from expost.cli.certificate import certificate
from expost.cli.certificate_checks import (
    ledger_problems,
    model_problems,
    price_problems,
    unchecked,
)
from expost.cli.output import FAILURE, Json, notes, show, visible

File = Annotated[Path, typer.Argument(help="A certificate (JSON).", exists=True, dir_okay=False)]


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
app.command("show")(certificate)


@app.command()
def sign(
    file: File,
    key: Annotated[Path, typer.Option(help="File of the private key (expost ledger keys).")],
    out: Annotated[
        Path | None, typer.Option(help="Write to this file instead of replacing the first.")
    ] = None,
) -> None:
    """Sign a certificate with an Ed25519 key."""
    signed = SigningKey.load(key).sign(load_document(file, "certificate"))
    place = out or file
    place.write_text(document_text(signed) + "\n", encoding="utf-8")
    notes.print(f"signed: {place}")


@app.command()
def verify(
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
    public = None if key is None else load_public(key)
    checks: dict[str, list[str]] = {"price": list(price_problems(document))}
    if "signature" in document or key is not None:
        wrong = signature_problem(document, public)
        checks["signature"] = [] if wrong is None else [wrong]
    if model is not None:
        checks["model"] = list(model_problems(document, model))
    if ledger is not None:
        checks["ledger"] = list(ledger_problems(document, Ledger.open(ledger, read_only=True)))
    problems = [f"{name}: {text}" for name, found in checks.items() for text in found]

    left = unchecked(document, checks)

    def render(console: Console) -> None:
        for name, found in checks.items():
            verdict = ("wrong", "red") if found else ("correct", "green")
            console.print(Text.assemble(f"{name}: ", verdict))
            for text in found:
                console.print(f"  {visible(text)}", highlight=False)
        for text in left:
            console.print(f"not checked: {text}", highlight=False)
        if "signature" in checks and public is None:
            console.print("The key was taken from the certificate itself; pass --key to name it.")

    show(
        {
            "valid": not problems,
            "checked": sorted(checks),
            "problems": problems,
            "not_checked": left,
        },
        as_json=as_json,
        render=render,
    )
    if problems:
        raise typer.Exit(FAILURE)
