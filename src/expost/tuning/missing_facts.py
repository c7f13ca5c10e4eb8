"""From settings to a schema; what is needed and missing is asked for once, ready to fill in.

The question is made of column names and types only. A type is a hint which kind of fact a column
needs; it is never decided by a value.

Tests: ``tests/tuning/test_table_schema.py``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from expost.errors import InvalidInput
from expost.tuning.settings import INDICATOR, DataSettings, fill_of
from expost.tuning.table_schema import Column, TableSchema, ordinal
from expost.tuning.tables import Table

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_DATES = ("date", "timestamp")
_NUMBERS = ("int", "uint", "float", "double", "half", "decimal", "bool")
_TEXT = ("object", "str", "large_string", "utf8", "categor", "enum", "dictionary")
KINDS = ("feature_bounds", "categories", "booleans", "dates")
"""Kinds of facts about a column."""
_BLANKS = {
    "feature_bounds": "[LOW, HIGH]",
    "categories": "[VALUE, VALUE]",
    "dates": '["FIRST", "LAST"]',
}
_TOML_FORMS = (
    "# Replace a line by another form if the column holds something else:",
    "#   numbers         feature_bounds.COLUMN = [0, 120]",
    '#   categories      categories.COLUMN = ["Bern", "Zug"]  (all other values are "other")',
    '#   text            texts = ["COLUMN"]',
    '#   true and false  booleans = ["COLUMN"]',
    '#   dates           dates.COLUMN = ["1990-01-01", "2029-12-31"]',
    '# If cells may be empty:    missing.COLUMN = 40  (or "indicator"); else the row is not used',
    '# To leave columns out:     features = ["COLUMN", "COLUMN"]  lists those to use',
)
_PYTHON_FORMS = (
    "# Use another form if a column holds something else:",
    "#   numbers         feature_bounds={'COLUMN': [0, 120]}",
    "#   categories      categories={'COLUMN': ['Bern', 'Zug']}  (all other values are \"other\")",
    "#   text            texts=['COLUMN']",
    "#   true and false  booleans=['COLUMN']",
    "#   dates           dates={'COLUMN': ['1990-01-01', '2029-12-31']}",
    "# If cells may be empty:    missing={'COLUMN': 40}  (or 'indicator'); else no such row counts",
    "# To leave columns out:     features=['COLUMN', 'COLUMN']  lists those to use",
)


@dataclass(frozen=True)
class NeededFacts:
    """Public facts that are needed and not given; empty (false) if there are none."""

    target: bool
    target_bounds: bool
    classes: bool
    bounds: bool
    columns: Mapping[str, str | None]

    def __bool__(self) -> bool:
        """Return whether anything is missing."""
        return any((self.target, self.target_bounds, self.classes, self.bounds, self.columns))

    def as_toml(self) -> str:
        """Return the lines to fill in and add to a job's TOML file."""
        lines = ["[data]", *self._general(python=False)]
        for key in (*KINDS, None):
            listed = [name for name, kind in self.columns.items() if kind == key]
            if key == "booleans" and listed:
                lines.append(_line(False, key, json.dumps(listed, ensure_ascii=False)))
            elif key is None:
                lines += [
                    f"feature_bounds.{_key(name)} = [LOW, HIGH]"
                    "  # or categories, dates, booleans: see below"
                    for name in listed
                ]
            else:
                lines += [f"{key}.{_key(name)} = {_BLANKS[key]}" for name in listed]
        return "\n".join([*lines, *(_TOML_FORMS if self.columns else ())])

    def as_python(self) -> str:
        """Return the keywords to fill in and add to a call."""
        lines = self._general(python=True)
        for key in KINDS:
            listed = [name for name, kind in self.columns.items() if (kind or KINDS[0]) == key]
            if key == "booleans" and listed:
                lines.append(_line(True, key, json.dumps(listed, ensure_ascii=False)))
            elif listed:
                inner = ", ".join(f"{name!r}: {_BLANKS[key]}" for name in listed)
                lines.append(f"{key}={{{inner}}},")
        return "\n".join([*lines, *(_PYTHON_FORMS if self.columns else ())])

    def _general(self, *, python: bool) -> list[str]:
        """Return the lines that are about no single column."""
        asked = (
            (self.target, "target", '"COLUMN"', "the column to predict"),
            (self.target_bounds, "target_bounds", "[LOW, HIGH]", "bounds of the target"),
            (self.classes, "classes", "[LABEL, LABEL]", "every label that may occur"),
            (self.bounds, "feature_bounds", "[LOW, HIGH]", "bounds of all features"),
        )
        return [_line(python, *line) for wanted, *line in asked if wanted]


class FactsMissing(InvalidInput):
    """Public facts about the data are missing."""

    def __init__(self, missing: NeededFacts, lines: str) -> None:
        super().__init__(
            "data",
            None,
            "tell what is publicly known, from public knowledge and never from the rows, or buy it "
            f"privately (--learn-facts 0.05, learn_facts):\n{lines}",
        )
        self.missing, self.lines = missing, lines


def schema_of(settings: DataSettings, table: Table, *, python: bool = False) -> TableSchema:
    """Return the schema of a table."""
    if table.width == 0:
        raise InvalidInput("data", "no features", "give at least one column besides the target")
    missing = missing_facts(
        settings, table.names, types=table.types, target=table.targets is not None
    )
    if missing:
        raise FactsMissing(missing, missing.as_python() if python else missing.as_toml())
    facts = (settings.classes, settings.target_bounds, settings.integers)
    if table.names is None:
        if isinstance(settings.bounds, Mapping) or _by_name(settings):
            raise InvalidInput(
                "data",
                "facts by column name",
                f"{table.source} has no column names; give feature_bounds as a pair, or as one "
                "pair per feature, or give a data frame",
            )
        assert isinstance(settings.bounds, tuple)
        _check_integers(settings, table)
        return TableSchema.plain(settings.bounds, table.width, *facts)
    return TableSchema(tuple(_columns(settings, table)), *facts)


def missing_facts(
    settings: DataSettings,
    names: Sequence[str] | None,
    *,
    types: Sequence[str] = (),
    target: bool = True,
) -> NeededFacts:
    """Return every public fact that is needed and not given."""
    regression = settings.regression or settings.target_bounds is not None
    columns = {
        name: _guess(kind)
        for name, kind in zip(names or (), types or ("",) * len(names or ()), strict=True)
        if column_kind(settings, name) is None
    }
    return NeededFacts(
        target=not target,
        target_bounds=regression and settings.target_bounds is None,
        classes=not regression and settings.classes is None,
        bounds=names is None and settings.bounds is None,
        columns=columns,
    )


def column_kind(settings: DataSettings, name: str) -> str | None:
    """Return the kind of a column by the facts that are given, or None if there are none."""
    if name in settings.categories:
        return "category"
    if name in settings.booleans:
        return "boolean"
    if name in settings.dates:
        return "date"
    if name in settings.texts:
        return "text"
    if isinstance(settings.bounds, Mapping):
        return "number" if name in settings.bounds else None
    return None if settings.bounds is None else "number"


def _columns(settings: DataSettings, table: Table) -> list[Column]:
    """Return the columns of a table with names."""
    assert table.names is not None
    pairs = settings.bounds if isinstance(settings.bounds, tuple) else ()
    if len(pairs) > 1 and len(pairs) != table.width:
        raise InvalidInput(
            "data.feature_bounds",
            f"{len(pairs)} pairs",
            f"give one pair for all features, one for each of {table.width}, or pairs by name",
        )
    columns = []
    for index, (name, type_) in enumerate(zip(table.names, table.types, strict=True)):
        kind = column_kind(settings, name)
        assert kind is not None
        fill = settings.missing.get(name)
        low, high = 0.0, 1.0
        if kind == "number":
            bounds = settings.bounds
            given = bounds[name] if isinstance(bounds, Mapping) else pairs[index % len(pairs)]
            low, high = float(given[0]), float(given[1])
        elif kind == "date":
            low, high = (float(ordinal(day)) for day in settings.dates[name])
        _check_type(name, kind, type_)
        columns.append(
            Column(
                kind,
                low,
                high,
                tuple(settings.categories.get(name, ())),
                None if fill is None or fill == INDICATOR else fill_of(settings, name),
                fill == INDICATOR,
                name,
            )
        )
    _check_integers(settings, table)
    return columns


def _check_type(name: str, kind: str, type_: str) -> None:
    """Refuse a column of dates that is read as numbers, and the reverse."""
    dates, numbers = type_.startswith(_DATES), type_.startswith(_NUMBERS)
    if (dates and kind != "date") or (numbers and kind == "date"):
        right = "dates" if dates else "feature_bounds"
        raise InvalidInput(
            f"column {name!r}", f"of type {type_}", f"give its facts in data.{right}"
        )


def _check_integers(settings: DataSettings, table: Table) -> None:
    """Refuse whole numbers that are wanted from columns of another type."""
    if not settings.integers:
        return
    kind = table.cells.dtype.kind if isinstance(table.cells, np.ndarray) else ""
    if table.names is not None or kind not in ("i", "u", "O"):
        raise InvalidInput(
            "data.integers", True, "the features must be an array of whole numbers (int64)"
        )


def _by_name(settings: DataSettings) -> bool:
    """Return whether columns are named."""
    named = (settings.features, settings.categories, settings.booleans, settings.dates)
    return any(named) or bool(settings.texts or settings.missing)


def _guess(type_: str) -> str | None:
    """Return the kind of fact that a column of this type most likely needs; None: no type."""
    if not type_:
        return None
    if type_.startswith("bool"):
        return "booleans"
    if type_.startswith(_DATES):
        return "dates"
    return "categories" if type_.startswith(_TEXT) else "feature_bounds"


def _line(python: bool, key: str, blank: str, comment: str = "") -> str:
    """Return one assignment."""
    note = f"  # {comment}" if comment else ""
    return f"{key}={blank},{note}" if python else f"{key} = {blank}{note}"


def _key(name: str) -> str:
    """Return a column name as a TOML key."""
    return name if _BARE.fullmatch(name) else json.dumps(name, ensure_ascii=False)
