"""A tuning job as text: TOML (or the same as a mapping), with errors that name the key and its line.

Nothing here reads data. Tests: ``tests/tuning/test_settings.py``.
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

_TABLE = re.compile(r"^\s*\[\s*([A-Za-z0-9_-]+)\s*\]")
_KEY = re.compile(r"^\s*(?:\"([^\"]+)\"|'([^']+)'|([A-Za-z0-9_-]+))\s*=")
_DOTTED = re.compile(r"^\s*([A-Za-z0-9_-]+)\s*\.\s*([A-Za-z0-9_-]+)\s*=")


@dataclass(frozen=True)
class Document:
    """Tables of settings and, where there is a text, the line of every key."""

    tables: Mapping[str, Mapping[str, Any]]
    folder: Path
    lines: Mapping[tuple[str, str], int] = field(default_factory=dict)

    @classmethod
    def read(cls, config: str | Path | Mapping[str, Any]) -> Document:
        """From a TOML file, or from a mapping of tables."""
        if isinstance(config, Mapping):
            return cls(_tables(config), Path())
        path = Path(config)
        if path.is_dir() or not path.exists():
            raise InvalidInput(
                "config", str(path), "there is no such file; expost tune --init writes an example"
            )
        try:
            text = path.read_text(encoding="utf-8")
            parsed = tomllib.loads(text)
        except UnicodeDecodeError:
            raise InvalidInput("config", str(path), "not TOML: it is no UTF-8 text") from None
        except ValueError as error:  # also of numbers with thousands of digits
            raise InvalidInput("config", str(path), f"not TOML: {error}") from None
        except RecursionError:
            raise InvalidInput(
                "config", str(path), "not TOML: brackets are nested too deeply"
            ) from None
        return cls(_tables(parsed, lines := _lines(text)), path.resolve().parent, lines)

    def where(self, table: str, key: str) -> str:
        """How an error calls a key."""
        line = (
            self.lines.get((table, key))
            or self.lines.get((table, ""))
            or self.lines.get(("", table))
        )
        return f"{table}.{key}" + (f" (line {line})" if line else "")

    def table(self, name: str, keys: Sequence[str]) -> ConfigTable:
        """A table; keys that are not listed are refused."""
        if name not in self.tables:
            raise InvalidInput(name, None, f"the table [{name}] is missing")
        for key in self.tables[name]:
            if key not in keys:
                raise InvalidInput(
                    self.where(name, key),
                    self.tables[name][key],
                    "unknown key; give " + ", ".join(keys),
                )
        return ConfigTable(self, name, self.tables[name])


@dataclass(frozen=True)
class ConfigTable:
    """One table of a document, read key by key."""

    document: Document
    name: str
    values: Mapping[str, Any]

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def refuse(self, key: str, valid: str) -> NoReturn:
        raise InvalidInput(self.document.where(self.name, key), self.values.get(key), valid)

    def text(
        self, key: str, default: str | None = None, choices: Sequence[str] | None = None
    ) -> str | None:
        value = self.values.get(key, default)
        if value is not None and not isinstance(value, str):
            self.refuse(key, "give a text")
        if value is not None and choices is not None and value not in choices:
            self.refuse(key, "give one of " + ", ".join(choices))
        return value

    def flag(self, key: str, default: bool = False) -> bool:
        value = self.values.get(key, default)
        if not isinstance(value, bool):
            self.refuse(key, "give true or false")
        return value

    def count(self, key: str, default: int | None = None, most: int = MOST_REPEATS) -> int | None:
        value = self.values.get(key, default)
        if value is not None and (
            isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most
        ):
            self.refuse(
                key, "give a whole number ≥ 1" + (f" and ≤ {most}" if most < MOST_REPEATS else "")
            )
        return value

    def number(self, key: str, default: float | None = None) -> float | None:
        value = self.values.get(key, default)
        if value is not None and not is_number(value):
            self.refuse(key, "give a finite number")
        return None if value is None else float(value)

    def positives(self, key: str, default: Sequence[float] | None = None) -> tuple[float, ...]:
        """A list of positive numbers, each once; one number alone is a list of one."""
        if key not in self.values and default is None:
            self.refuse(key, "this key is needed: give a list of numbers > 0")
        value = self.values.get(key, default)
        listed = [value] if is_number(value) else value
        if (
            not isinstance(listed, (list, tuple))
            or not listed
            or not all(is_number(each) and each > 0 for each in listed)
        ):
            self.refuse(key, "give a list of finite numbers > 0")
        if len(set(listed)) < len(listed):
            self.refuse(key, "give each number once; for more copies use privacy.repeats")
        return tuple(listed)


def is_number(value: object) -> bool:
    """Whether a value is a finite real number (and not a truth value)."""
    try:
        return (
            isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        )
    except OverflowError:  # a whole number beyond all floats
        return False


def _tables(
    parsed: Mapping[str, Any], lines: Mapping[tuple[str, str], int] | None = None
) -> dict[str, dict[str, Any]]:
    known = ("data", "model", "search", "goal", "privacy")
    for name, table in parsed.items():
        line = (lines or {}).get(("", name)) or (lines or {}).get((name, ""))
        where = f"{name} (line {line})" if line else str(name)
        if name not in known:
            raise InvalidInput(
                where, table, "unknown; the tables are " + ", ".join(f"[{each}]" for each in known)
            )
        if not isinstance(table, Mapping):
            raise InvalidInput(where, table, f"[{name}] is a table of settings")
    return {name: dict(table) for name, table in parsed.items()}


def _lines(text: str) -> dict[tuple[str, str], int]:
    """The line of each (table, key); (table, "") is where the table starts. Good enough for messages, no parser."""
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
