"""``expost certificate``: read a release and show what it guarantees.

Tests: ``tests/cli/test_cli.py``, ``tests/cli/test_certificate_words.py``,
``tests/fuzz/test_certificates.py``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from expost.analytics.certificate import KIND, check_certificate
from expost.cli.certificate_words import (
    Row,
    charge,
    count_rows,
    selection_rows,
    texts,
)
from expost.cli.output import Json, show
from expost.cli.tuning_words import tuning_rows
from expost.errors import InvalidRelease
from expost.privacy.guarantees import Guarantee
from expost.selection.release import Release, plain
from expost.small_files import read_small
from expost.tuning.evidence import KIND as TUNING


def certificate(
    file: Annotated[
        Path,
        typer.Argument(help="A certificate written by Release.save.", exists=True, dir_okay=False),
    ],
    as_json: Json = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Also show theorems, settings of the search and hash.")
    ] = False,
) -> None:
    """Show a certificate: what was released, what it cost, whom it protects, who paid."""
    record = _record(file)
    if record.get("kind") == KIND:
        document: Mapping[str, Any] = check_certificate(record)
        rows, title = count_rows(record, verbose=verbose), "Certificate of counts, sums or means"
    else:
        release = Release.load(file)
        try:
            document = release.as_dict(encode=plain)
        except RecursionError:
            raise InvalidRelease(
                "file", str(file), "its values are nested too deeply to be a certificate"
            ) from None
        tuned = record.get("kind") == TUNING and isinstance(record.get("tuning"), dict)
        make = tuning_rows if tuned else selection_rows
        rows = make(record, release.spent, release.worst_case, verbose=verbose)
        title = "Certificate of a tuned model" if tuned else "Certificate of a selection"

    def render(console: Console) -> None:
        _table(console, title, rows, verbose)
        if document["simulated"]:
            console.print(
                "Simulated with seeded randomness: this release has no privacy guarantee.",
                style="red",
            )

    show(dict(document), as_json=as_json, render=render)


def _record(file: Path) -> Mapping[str, Any]:
    """The certificate as it is written; empty if the file is no JSON object."""
    try:
        record = json.loads(read_small(file, "certificate"))
    except (ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def _table(console: Console, title: str, rows: Sequence[Row], verbose: bool) -> None:
    """Print rows as a table."""
    table = Table(title=title, show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, text in texts(rows, verbose=verbose):
        table.add_row(name, Text(text))
    console.print(table)


def describe(guarantee: Guarantee) -> str:
    """A guarantee in one line."""
    return f"{charge(guarantee)} ({guarantee.neighbours})"
