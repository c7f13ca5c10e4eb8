"""``expost certificate``: read a release and show what it guarantees.

Tests: ``tests/cli/test_cli.py``, ``tests/fuzz/test_certificates.py``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from expost.analytics.certificate import KIND, check_certificate
from expost.cli import count_output
from expost.cli.output import Json, in_words, show, visible
from expost.errors import InvalidRelease
from expost.privacy.guarantees import Guarantee
from expost.rationals import charge_text
from expost.selection.release import Release, plain

_LONGEST = 300  # characters of a value that the table shows


def certificate(
    file: Annotated[
        Path,
        typer.Argument(help="A certificate written by Release.save.", exists=True, dir_okay=False),
    ],
    as_json: Json = False,
) -> None:
    """Show a certificate: what was released, what it cost, and which theorem guarantees it."""
    record = _record(file)
    counted = check_certificate(record) if record.get("kind") == KIND else None
    if counted is not None:
        show(
            dict(counted),
            as_json=as_json,
            render=lambda console: count_output.render_certificate(console, counted),
        )
        return
    release = Release.load(file)
    try:
        document = release.as_dict(encode=plain)
    except RecursionError:
        raise InvalidRelease(
            "file", str(file), "its values are nested too deeply to be a certificate"
        ) from None

    def render(console: Console) -> None:
        """Print the table. The score of a tuned model with a bar is a lower confidence bound."""
        bounded = record.get("kind") == "tuning" and release.passed is not None
        _render(console, release, "score at least" if bounded else "score")

    show(document, as_json=as_json, render=render)


def _record(file: Path) -> Mapping[str, Any]:
    """The certificate as it is written; empty if the file is no JSON object."""
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def _render(console: Console, release: Release, score: str) -> None:
    """Print a certificate as a table."""
    table = Table(title="Certificate", show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    rows: list[tuple[str, Any]] = [
        ("value", in_words(release.value)),
        ("params", in_words(dict(release.params))),
        (score, "–" if release.score is None else f"{release.score:g}"),
        ("target reached", {None: "no target", True: "yes", False: "no"}[release.passed]),
        ("spent", describe(release.spent)),
        ("worst case", describe(release.worst_case)),
        ("theorem", release.theorem),
        (
            "selector",
            in_words({key: each for key, each in release.selector.items() if each is not None}),
        ),
    ]
    for name, value in rows:
        text = escape(visible(value))
        table.add_row(
            name,
            text
            if len(text) <= _LONGEST
            else text[: _LONGEST - 1] + "…  (use --json for all of it)",
        )
    console.print(table)
    if release.simulated:
        console.print(
            "[red]Simulated with seeded randomness: this release has no privacy guarantee.[/red]"
        )


def describe(guarantee: Guarantee) -> str:
    """A guarantee in one line."""
    numbers = guarantee.as_dict()
    names = {"epsilon": "ε", "delta": "δ", "rho": "ρ", "orders": "orders", "epsilons": "ε"}
    parts = [f"{names[key]} = {_number(value)}" for key, value in numbers.items() if key in names]
    return ", ".join(parts) + f" ({guarantee.neighbours})"


def _number(value: Any) -> str:
    """A number, or the numbers of a curve, as text; a charge is never rounded down."""
    if isinstance(value, (int, float)):
        return charge_text(value)
    return "[" + ", ".join(charge_text(each, 4) for each in value) + "]"
