"""``expost tour``: three minutes with made-up data: one model, one count, one certificate.

Every screen is that of the command which is shown, run in this process. Tests:
``tests/cli/test_tour.py``.
"""

from __future__ import annotations

import csv
import os
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import count as numbers
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from expost.errors import InvalidInput, MissingExtra

PEOPLE = 6000
REGIONS = ("north", "east", "south", "west", "islands")
_STEPS = (
    (
        "1 of 3: a model",
        "Which customers stay? You say how good the answer must be: right for 8 of 10 people. "
        "expost buys the facts that it needs about the columns, and trains until the goal is "
        "reached. Then it stops, so that no more privacy is lost than the goal needs.",
        "tune customers.csv --target stays --at-least 0.8 --learn-facts 0.2",
    ),
    (
        "2 of 3: a count",
        "How many customers live where? Each answer must be within 5 %. Large groups need little "
        "ε, so they are answered first.",
        "count customers.csv --by region --user customer --within 0.05 --epsilon 1 "
        "--keys regions.txt",
    ),
    (
        "3 of 3: a certificate",
        "The model came with a certificate. Whoever receives it can compute the charge again, "
        "without the data and without trusting you. The lines below also say what was not checked.",
        "certificate verify tuned-customers/release.json",
    ),
)


def tour_command(
    context: typer.Context,
    out: Annotated[
        Path | None,
        typer.Option(help="New folder for the files; by default expost-tour, expost-tour-2, …"),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Go on without waiting for Enter.")] = False,
) -> None:
    """Three minutes with made-up data: one model, one count, one certificate. No network."""
    if any(find_spec(package) is None for package in ("ibis", "duckdb", "pyarrow")):
        raise MissingExtra("ibis-framework", "analytics", "the tour")
    folder = out if out is not None else _new_folder()
    if folder.exists():
        raise InvalidInput("out", str(folder), "it exists already; give a new folder")
    folder.mkdir(parents=True)
    console = Console(emoji=False, markup=False, highlight=False)
    console.print(
        f"Made-up data: {PEOPLE:,} customers in {folder / 'customers.csv'}. Nothing else is read "
        "and nothing leaves this machine.\n"
        "The privacy loss ε limits what a result can reveal about one person: smaller is more "
        "private."
    )
    with _inside(folder):
        write_customers(Path("customers.csv"), Path("regions.txt"))
        for title, text, command in _STEPS:
            _wait(yes)
            console.print(Text(f"\n{title}", "bold"))
            console.print(text)
            console.print(Text(f"\n{_folded(command)}", "cyan"), soft_wrap=True)
            _run(context, command)
    console.print(
        "\nThat was the tour. On your own table:\n"
        "  expost describe rows.csv --epsilon 0.2\n"
        "  expost tune rows.csv --target COLUMN --at-least 0.8 --learn-facts 0.2\n"
        "  expost count rows.csv --by COLUMN --user COLUMN --within 0.1 \\\n"
        "      --epsilon 1 --learn-facts 0.2\n"
        "Add --plan to see what a command may cost; that reads no row and charges nothing.\n"
        f"The files of the tour are in {folder}; you may delete it."
    )


def _folded(command: str) -> str:
    """Return a command for a shell, in lines that fit a terminal."""
    lines = textwrap.wrap(
        f"$ expost {command}", 77, break_on_hyphens=False, subsequent_indent="    "
    )
    return " \\\n".join(lines)


def _run(context: Any, command: str) -> None:
    """Run a command of this program; a model that missed its goal is no reason to stop."""
    context.find_root().command.main(
        args=command.split(), prog_name="expost", standalone_mode=False
    )


def _wait(yes: bool) -> None:
    """Wait for Enter."""
    if not yes:
        typer.prompt("Press Enter to go on", default="", show_default=False)


def _new_folder() -> Path:
    """Return the first of expost-tour, expost-tour-2, … that does not exist."""
    names = (Path("expost-tour" + ("" if number == 1 else f"-{number}")) for number in numbers(1))
    return next(path for path in names if not path.exists())


@contextmanager
def _inside(folder: Path) -> Iterator[None]:
    """Work in a folder, so that the commands are short."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def write_customers(table: Path, regions: Path) -> None:
    """Write made-up customers, the same every time, and the public list of regions."""
    with table.open("w", encoding="utf-8", newline="") as stream:
        rows = csv.writer(stream)
        rows.writerow(["customer", "age", "visits", "contract", "region", "stays"])
        rows.writerows(map(_customer, range(PEOPLE)))
    regions.write_text("\n".join(REGIONS) + "\n", encoding="utf-8")


def _customer(number: int) -> list[Any]:
    """Return one made-up row: those who come often, or have a long contract, tend to stay."""
    # Multiples of irrational numbers, modulo 1, are spread evenly and look independent.
    age, visits, contract, region, luck = (
        number * root % 1 for root in (2**0.5, 3**0.5, 5**0.5, 7**0.5, 11**0.5)
    )
    kind = "monthly" if contract < 0.5 else "yearly"
    stays = (visits + 0.5 * (kind == "yearly") > 0.7) != (luck < 0.05)
    where = REGIONS[int(len(REGIONS) * region**2)]
    return [
        f"c{number:05}",
        18 + int(70 * age),
        int(30 * visits),
        kind,
        where,
        "yes" if stays else "no",
    ]
