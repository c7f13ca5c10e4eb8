"""``expost evidence``: one folder that answers an officer's questions about releases.

Tests: ``tests/certificates/test_self_assessment.py``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from expost.budget.ledger import Ledger
from expost.budget.signing import SigningKey, load_document
from expost.certificates.document import read_certificate
from expost.certificates.self_assessment import evidence_files
from expost.certificates.verify import run_checks, verdict_of
from expost.cli.output import FAILURE, notes
from expost.errors import InvalidInput

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
) -> None:
    """Write a self-assessment after NIST SP 800-226, and its records, for releases."""
    begins = check_period(period)
    documents = [load_document(file, "release") for file in _files(releases or [])]
    kept = [document for document in documents if _date(document).startswith(begins)]
    opened = None if ledger is None else Ledger.open(ledger, read_only=True)
    packed, verdicts = [], []
    for document in kept:
        certificate = dict(read_certificate(document))
        budget = None if opened is None else _standing(opened, certificate)
        packed.append({"certificate": certificate} | ({} if budget is None else {"budget": budget}))
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
    notes.print(f"evidence of {len(releases)} releases: {out}", highlight=False)
    if not all(verdict["valid"] for verdict in verdicts):
        raise typer.Exit(FAILURE)
