"""Options and files of ``expost count``: caps, bounds, keys and expected sizes.

Tests: ``tests/cli/test_count_cli.py``, ``tests/cli/test_count_inputs.py``.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import Any

from typer.core import TyperCommand

from expost.errors import InvalidInput
from expost.small_files import read_small

_BOUNDS = "--bounds"


class CountCommand(TyperCommand):
    """The command ``count``, with bounds as two words or as LOW:HIGH."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Split LOW:HIGH before the options are read."""
        return super().parse_args(ctx, split_bounds(args))


def split_bounds(arguments: list[str]) -> list[str]:
    """Return the arguments with ``--bounds LOW:HIGH`` as ``--bounds LOW HIGH``."""
    made: list[str] = []
    for place, word in enumerate(arguments):
        if word == "--":
            return made + arguments[place:]
        name, equals, value = word.partition("=")
        if place and arguments[place - 1] == _BOUNDS and word.count(":") == 1:
            made += word.split(":")
        elif name == _BOUNDS and equals and value.count(":") == 1:
            made += [_BOUNDS, *value.split(":")]
        else:
            made.append(word)
    return made


def parse_cap(text: str | None) -> int | str | None:
    """Return ``--max-groups-per-user`` as a number, ``auto`` or None."""
    if text is None or text == "none":
        return None
    if text == "auto":
        return text
    try:
        return int(text)
    except ValueError:
        raise InvalidInput(
            "max_groups_per_user", text, "give a whole number, auto or none"
        ) from None


def parse_rows(text: str | None) -> int | str | None:
    """Return ``--max-rows-per-user`` as a number, ``auto`` or None."""
    try:
        return text if text in (None, "auto") else int(text)
    except ValueError:
        raise InvalidInput("max_rows_per_user", text, "give a whole number or auto") from None


def read_keys(path: Path, columns: Sequence[str] = ()) -> list[Any]:
    """Return group names, one per line (a CSV row for several columns); skips empty lines.

    A first line that names the columns is a header.
    """
    try:
        text = read_small(path, "keys", "utf-8-sig")
    except UnicodeDecodeError:
        raise InvalidInput("keys", str(path), "the file is not UTF-8 text") from None
    lines = [line.rstrip("\r\n") for line in text.split("\n")]
    listed: list[Any] = [line for line in lines if line]
    if len(columns) > 1:
        listed = [tuple(row) for row in csv.reader(listed)]
    header = next(csv.reader(line for line in lines if line), [])
    if columns and header == list(columns):
        del listed[0]
    if not listed:
        raise InvalidInput("keys", str(path), "the file names no group")
    return listed


def read_prior(path: Path) -> dict[str, float]:
    """Return a CSV of group,size, with or without a header."""
    sizes: dict[str, float] = {}
    try:
        lines = StringIO(read_small(path, "prior", "utf-8-sig"), newline="")
        for number, row in enumerate(csv.reader(lines), start=1):
            try:
                sizes[row[0]] = float(row[1])
            except (IndexError, ValueError):
                if number > 1 and row:
                    raise InvalidInput(
                        "prior", f"line {number}", "give lines of group,size"
                    ) from None
    except (UnicodeDecodeError, csv.Error):
        raise InvalidInput("prior", str(path), "the file is not UTF-8 text of group,size") from None
    if not sizes:
        raise InvalidInput("prior", str(path), "the file names no group")
    return sizes
