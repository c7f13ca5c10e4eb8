"""``expost certificate``: show, sign, verify; ``expost evidence``: answers for an officer.

``expost certificate FILE`` means ``expost certificate show FILE``. What the words and the checks
are is in :mod:`expost.certificates`. Tests: ``tests/cli/test_certificate_words.py``,
``tests/cli/test_verify_cli.py``, ``tests/fuzz/test_certificates.py``,
``tests/certificates/test_self_assessment.py``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

from expost.budget.ledger import Ledger
from expost.budget.signing import SigningKey, load_document
from expost.certificates.document import TUNING, document_text, read_certificate
from expost.certificates.self_assessment import evidence_files
from expost.certificates.verify import run_checks, verdict_of
from expost.certificates.words import certificate_words, title_of
from expost.cli.output import FAILURE, Json, notes, plural, show, visible
from expost.errors import InvalidInput

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
    """Check charge, signature, model file and ledger entry. The exit code is 1 if any is wrong."""
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


_PERIOD = re.compile(r"[0-9]{4}(-[0-9]{2}(-[0-9]{2})?)?")
PackFolder = Annotated[Path, typer.Option(help="Folder of the pack; it must not exist.")]
Period = Annotated[
    str | None, typer.Option(help="Only releases of a year, a month or a day: 2026, 2026-03.")
]
PrivateKey = Annotated[Path | None, typer.Option(help="Private key to sign with.")]


def check_period(period: str | None) -> str:
    """Return the beginning of the dates of a period."""
    if period is not None and not _PERIOD.fullmatch(period):
        raise InvalidInput("period", period, "give 2026, 2026-03 or 2026-03-31")
    return period or ""


Errors = Annotated[
    Path | None,
    typer.Option(help="Certificate of expost.subgroup_errors, for the model.", exists=True),
]


def read_errors(file: Path | None) -> dict[str, Any]:
    """Return the errors of a model by subgroup, if there are any, as a part of its record."""
    if file is None:
        return {}
    measured = dict(read_certificate(load_document(file, "errors")))
    verdict = verdict_of(measured, run_checks(measured))
    if measured["kind"] != "count" or not verdict["valid"]:
        raise InvalidInput("errors", str(file), "give a valid certificate of subgroup_errors")
    return {"subgroups": measured}


def evidence_command(
    releases: Annotated[
        list[Path] | None,
        typer.Argument(help="Certificates (JSON), or folders with them.", exists=True),
    ] = None,
    out: PackFolder = Path("evidence"),
    period: Period = None,
    ledger: Annotated[
        str | None, typer.Option(help="The ledger that was charged: a file name or a URL.")
    ] = None,
    key: PrivateKey = None,
    errors: Errors = None,
) -> None:
    """Write a self-assessment after NIST SP 800-226, and its records, for releases."""
    begins, measured = check_period(period), read_errors(errors)
    documents = [load_document(file, "release") for file in _files(releases or [])]
    kept = [document for document in documents if _date(document).startswith(begins)]
    opened = None if ledger is None else Ledger.open(ledger, read_only=True)
    packed, verdicts = [], []
    for document in kept:
        certificate = dict(read_certificate(document))
        budget = None if opened is None else _standing(opened, certificate)
        packed.append({"certificate": certificate} | ({} if budget is None else {"budget": budget}))
        packed[-1] |= measured if certificate["kind"] == TUNING else {}
        verdicts.append(verdict_of(certificate, run_checks(certificate, ledger=opened)))
    write_pack(out, packed, verdicts, key)


def _files(given: Sequence[Path]) -> list[Path]:
    """The files that were named, and those in the folders."""
    files: list[Path] = []
    for path in given:
        files += sorted(path.glob("*.json")) if path.is_dir() else [path]
    return files


def _first(certificate: Mapping[str, Any]) -> Mapping[str, Any]:
    paid = certificate.get("ledger")
    first = paid[0] if isinstance(paid, list) and paid else paid
    return first if isinstance(first, Mapping) else {}


def _date(certificate: Mapping[str, Any]) -> str:
    return str(_first(certificate).get("date") or "")


def _standing(ledger: Ledger, certificate: Mapping[str, Any]) -> dict[str, Any] | None:
    """The state of the budget that paid."""
    name = _first(certificate).get("budget")
    return None if name not in ledger.budgets() else ledger.standing(str(name)).as_dict()


def write_pack(
    out: Path,
    releases: Sequence[Mapping[str, Any]],
    verdicts: Sequence[Mapping[str, Any]],
    key: Path | None,
) -> None:
    """Write the files of a pack; the exit code is 1 if a certificate is not valid."""
    if not releases:
        raise InvalidInput("releases", None, "no release of this period: name certificates")
    if out.exists():
        raise InvalidInput("out", str(out), "the folder exists already")
    signing = None if key is None else SigningKey.load(key)
    for name, content in evidence_files(releases, verdicts, signing).items():
        path = out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    notes.print(f"evidence of {plural(len(releases), 'release')}: {out}", highlight=False)
    if not all(verdict["valid"] for verdict in verdicts):
        raise typer.Exit(FAILURE)
