"""Read a tuning job from TOML or from a mapping, with errors that name the key and its line.

Nothing here reads data.

Tests: ``tests/tuning/test_settings.py``.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from expost.errors import InvalidInput
from expost.selection.candidate import MOST_REPEATS
from expost.small_files import read_small

_TABLE = re.compile(r"^\s*\[\s*([A-Za-z0-9_-]+)\s*\]")
_KEY = re.compile(r"^\s*(?:\"([^\"]+)\"|'([^']+)'|([A-Za-z0-9_-]+))\s*=")
_DOTTED = re.compile(r"^\s*([A-Za-z0-9_-]+)\s*\.\s*([A-Za-z0-9_-]+)\s*=")


@dataclass(frozen=True)
class Document:
    """Tables of settings and, if they come from a file, the line of each key.

    Parameters
    ----------
    tables : mapping of str to mapping
        The tables by name.
    folder : Path
        Folder of the file, to which relative paths refer.
    lines : mapping of (str, str) to int
        Line of each (table, key). The key ``""`` is the line where the table starts.
    """

    tables: Mapping[str, Mapping[str, Any]]
    folder: Path
    lines: Mapping[tuple[str, str], int] = field(default_factory=dict)

    @classmethod
    def read(cls, config: str | Path | Mapping[str, Any]) -> Document:
        """Read a TOML file or a mapping of tables.

        Parameters
        ----------
        config : str, Path or mapping
            The file or the tables.

        Returns
        -------
        Document
            The tables.

        Raises
        ------
        InvalidInput
            If there is no such file, if it is not TOML, or if a table is not known.
        """
        if isinstance(config, Mapping):
            return cls(_tables(config), Path())
        path = Path(config)
        if path.is_dir() or not path.exists():
            raise InvalidInput(
                "config", str(path), "there is no such file; expost tune --init writes an example"
            )
        try:
            text = read_small(path, "config")
            parsed = tomllib.loads(text)
        except UnicodeDecodeError:
            raise InvalidInput(
                "config", str(path), "not TOML: the file is not UTF-8 text"
            ) from None
        except ValueError as error:  # includes numbers with thousands of digits
            raise InvalidInput("config", str(path), f"not TOML: {error}") from None
        except RecursionError:
            raise InvalidInput(
                "config", str(path), "not TOML: brackets are nested too deeply"
            ) from None
        return cls(_tables(parsed, lines := _lines(text)), path.resolve().parent, lines)

    def where(self, table: str, key: str) -> str:
        """Return the name of a key in error messages, with its line if it is known."""
        line = (
            self.lines.get((table, key))
            or self.lines.get((table, ""))
            or self.lines.get(("", table))
        )
        return f"{table}.{key}" + (f" (line {line})" if line else "")

    def table(self, name: str, keys: Sequence[str]) -> ConfigTable:
        """Return a table.

        Parameters
        ----------
        name : str
            Name of the table.
        keys : sequence of str
            The keys that the table may have.

        Raises
        ------
        InvalidInput
            If the table is missing or has a key that is not in ``keys``.
        """
        if name not in self.tables:
            raise InvalidInput(name, None, f"the table [{name}] is missing; add it")
        for key in self.tables[name]:
            if key not in keys:
                raise InvalidInput(
                    self.where(name, key),
                    self.tables[name][key],
                    "unknown key; the keys are " + ", ".join(keys),
                )
        return ConfigTable(self, name, self.tables[name])


@dataclass(frozen=True)
class ConfigTable:
    """One table of a document. Each method reads one key and checks its type.

    Parameters
    ----------
    document : Document
        The document, for error messages.
    name : str
        Name of the table.
    values : mapping of str to object
        The keys and their values.
    """

    document: Document
    name: str
    values: Mapping[str, Any]

    def __contains__(self, key: str) -> bool:
        """Return whether the table has a key."""
        return key in self.values

    def refuse(self, key: str, valid: str) -> NoReturn:
        """Raise ``InvalidInput`` for a key; ``valid`` says what would be valid."""
        raise InvalidInput(self.document.where(self.name, key), self.values.get(key), valid)

    def text(
        self, key: str, default: str | None = None, choices: Sequence[str] | None = None
    ) -> str | None:
        """Return a string, optionally one of ``choices``."""
        value = self.values.get(key, default)
        if value is not None and not isinstance(value, str):
            self.refuse(key, "give a string")
        if value is not None and choices is not None and value not in choices:
            self.refuse(key, "give one of " + ", ".join(choices))
        return value

    def flag(self, key: str, default: bool = False) -> bool:
        """Return true or false."""
        value = self.values.get(key, default)
        if not isinstance(value, bool):
            self.refuse(key, "give true or false")
        return value

    def count(self, key: str, default: int | None = None, most: int = MOST_REPEATS) -> int | None:
        """Return an integer between 1 and ``most``."""
        value = self.values.get(key, default)
        if value is not None and (
            isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most
        ):
            self.refuse(
                key, "give an integer ≥ 1" + (f" and ≤ {most}" if most < MOST_REPEATS else "")
            )
        return value

    def number(self, key: str, default: float | None = None) -> float | None:
        """Return a finite number."""
        value = self.values.get(key, default)
        if value is not None and not is_number(value):
            self.refuse(key, "give a finite number")
        return None if value is None else float(value)

    def positives(self, key: str, default: Sequence[float] | None = None) -> tuple[float, ...]:
        """Return a list of distinct positive numbers; a single number is a list of one."""
        if key not in self.values and default is None:
            self.refuse(key, "give a list of numbers > 0")
        value = self.values.get(key, default)
        listed = [value] if is_number(value) else value
        if (
            not isinstance(listed, (list, tuple))
            or not listed
            or not all(is_number(each) and each > 0 for each in listed)
        ):
            self.refuse(key, "give a list of finite numbers > 0")
        if len(set(listed)) < len(listed):
            self.refuse(key, "give each number once; for copies of candidates use privacy.repeats")
        return tuple(listed)


def is_number(value: object) -> bool:
    """Return whether ``value`` is a finite real number and not a bool."""
    try:
        return (
            isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        )
    except OverflowError:  # an integer beyond the range of floats
        return False


def _tables(
    parsed: Mapping[str, Any], lines: Mapping[tuple[str, str], int] | None = None
) -> dict[str, dict[str, Any]]:
    """Return the tables of a job; refuse unknown ones."""
    known = ("data", "model", "search", "goal", "privacy")
    for name, table in parsed.items():
        line = (lines or {}).get(("", name)) or (lines or {}).get((name, ""))
        where = f"{name} (line {line})" if line else str(name)
        if name not in known:
            raise InvalidInput(
                where,
                table,
                "unknown table; the tables are " + ", ".join(f"[{each}]" for each in known),
            )
        if not isinstance(table, Mapping):
            raise InvalidInput(where, table, f"[{name}] must be a table of settings")
    return {name: dict(table) for name, table in parsed.items()}


def _lines(text: str) -> dict[tuple[str, str], int]:
    """Return the line of each (table, key); (table, "") is the line where the table starts.

    This is not a full parser. It is only used for messages.
    """
    found: dict[tuple[str, str], int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if match := _TABLE.match(line):
            table = match.group(1)
            found.setdefault((table, ""), number)
        elif match := _DOTTED.match(line):
            found.setdefault((match.group(1), match.group(2)), number)
        elif match := _KEY.match(line):
            found.setdefault((table, next(name for name in match.groups() if name)), number)
    return found
