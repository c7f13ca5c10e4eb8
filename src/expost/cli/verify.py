"""``expost certificate verify``: check signature, price, model and ledger entry of a certificate.

What each check shows:

* signature: nobody changed the document since the owner of the key signed it;
* price: the charge is the one that the charges in the certificate state for its outcome, and is
  not above the worst case;
* model: the model file is the one that was released;
* ledger: the ledger has an entry for this release, and charged what the certificate says.

``expost certificate FILE`` shows a certificate, as ``expost certificate show FILE`` does.
Tests: ``tests/cli/test_verify_cli.py``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from typer.core import TyperGroup

from expost.budget.hash_chain import RESERVE, SETTLE
from expost.budget.ledger import Ledger
from expost.budget.requests import document_digest
from expost.budget.signing import SigningKey, load_document, load_public, signature_problem
from expost.cli.certificate import certificate
from expost.cli.output import FAILURE, Json, notes, show, visible
from expost.errors import ExpostError, InvalidInput
from expost.privacy.charges import Charges
from expost.privacy.guarantees import guarantee_from_dict

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
    text = json.dumps(signed, indent=2, allow_nan=False, ensure_ascii=False)
    place.write_text(text + "\n", encoding="utf-8")
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

    def render(console: Console) -> None:
        for name, found in checks.items():
            verdict = "[red]wrong[/red]" if found else "[green]correct[/green]"
            console.print(f"{name}: {verdict}", highlight=False)
            for text in found:
                console.print(f"  {escape(visible(text))}", highlight=False)
        if "signature" not in checks:
            console.print("It is not signed: whoever can write the file can change it.")
        elif public is None:
            console.print("The key was taken from the certificate itself; pass --key to name it.")

    show(
        {"valid": not problems, "checked": sorted(checks), "problems": problems},
        as_json=as_json,
        render=render,
    )
    if problems:
        raise typer.Exit(FAILURE)


def price_problems(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield why the charge of a certificate cannot be right."""
    try:
        spent = guarantee_from_dict(document["spent"])
        worst = guarantee_from_dict(document["worst_case"])
        if not spent <= worst:
            yield "the charge is above the worst case"
        if "charges" not in document:
            return
        charges = Charges.from_dict(document["charges"])
        index = document.get("index")
        price = charges.nothing if index is None else charges[int(index)]
        if price != spent:
            yield "the charge is not the price of the outcome"
        if charges.worst_case != worst:
            yield "the worst case is not that of the charges"
    except KeyError as error:
        yield f"the key {str(error.args[0])!r} is missing"
    except (ExpostError, ValueError, TypeError, IndexError, AttributeError):
        yield "the charge cannot be read"


def model_problems(document: Mapping[str, Any], model: Path) -> Iterator[str]:
    """Yield why a model file is not the one of a certificate."""
    wanted = set(_hashes(document))
    if not wanted:
        yield "the certificate does not hold the hash of a model"
    elif hashlib.sha256(model.read_bytes()).hexdigest() not in wanted:
        yield "the file is not the model that was released"


def _hashes(value: Any) -> Iterator[str]:
    """The values of all keys named ``sha256`` inside a document."""
    if isinstance(value, Mapping):
        for name, each in value.items():
            if name == "sha256" and isinstance(each, str):
                yield each
            else:
                yield from _hashes(each)
    elif isinstance(value, list):
        for each in value:
            yield from _hashes(each)


def evidence_of(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return what a certificate says about ledger entries: one, or one per attempt."""
    found = document.get("ledger")
    listed = found if isinstance(found, list) else [found]
    return [each for each in listed if isinstance(each, Mapping) and "reservation" in each]


def ledger_problems(document: Mapping[str, Any], ledger: Ledger) -> Iterator[str]:
    """Yield how a certificate and the ledger that it names differ."""
    evidence = evidence_of(document)
    if not evidence:
        yield "the certificate names no entry of a ledger"
        return
    entries = list(ledger.entries())
    for told in evidence:
        yield from _entry_problems(document, told, ledger, entries, alone=len(evidence) == 1)


def _entry_problems(
    document: Mapping[str, Any],
    told: Mapping[str, Any],
    ledger: Ledger,
    entries: list[Any],
    *,
    alone: bool,
) -> Iterator[str]:
    if told.get("ledger") != ledger.identity:
        yield "it names another ledger"
        return
    mine = [entry for entry in entries if entry.reservation == told["reservation"]]
    reserve = next((entry for entry in mine if entry.action == RESERVE), None)
    settle = next((entry for entry in mine if entry.action == SETTLE), None)
    if reserve is None:
        yield "the ledger has no such reservation"
        return
    for name, value in (("budget", reserve.budget), ("analyst", reserve.analyst)):
        if told.get(name) != value:
            yield f"the ledger has another {name}"
    if told.get("date") != reserve.time[:10]:
        yield "the ledger has another date"
    if settle is None:
        yield "the ledger did not settle this reservation"
        return
    digest = settle.facts.get("release")
    if digest is not None and digest != document_digest(document, "certificate"):
        yield "the ledger settled another certificate"
    if alone and digest is None:
        yield from _charge_problems(document, ledger, reserve.budget, settle.facts)


def _charge_problems(
    document: Mapping[str, Any], ledger: Ledger, budget: str, facts: Mapping[str, Any]
) -> Iterator[str]:
    """Yield whether the ledger charged another amount than the certificate says."""
    try:
        spent = guarantee_from_dict(document["spent"])
        amount = ledger.standing(budget).filter.budget.coordinates(spent)
    except (InvalidInput, KeyError, TypeError, ValueError):
        yield "the charge cannot be compared with that of the ledger"
        return
    if [str(each) for each in amount] != facts.get("spent"):
        yield "the ledger charged another amount"
