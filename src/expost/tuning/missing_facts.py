"""From settings to a schema; what is needed and missing is asked for once, ready to fill in.

The question is made of column names and types only. A type is a hint which kind of fact a column
needs; it is never decided by a value.

Tests: ``tests/tuning/test_table_schema.py``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

import numpy as np

from expost.errors import InvalidInput
from expost.tuning.data_settings import INDICATOR, DataSettings, fill_of
from expost.tuning.table_schema import Column, TableSchema, ordinal
from expost.tuning.tables import Table

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_DATES = ("date", "timestamp")
_NUMBERS = ("int", "uint", "float", "double", "half", "decimal", "bool")
_TEXT = ("object", "str", "large_string", "utf8", "categor", "enum", "dictionary")
_KINDS = ("feature_bounds", "categories", "booleans", "dates")
_TOML_FORMS = (
    "# Replace a line by another form if the column holds something else:",
    "#   numbers         feature_bounds.COLUMN = [0, 120]",
    '#   text            categories.COLUMN = ["Bern", "Zug"]  (all other values are "other")',
    '#   true and false  booleans = ["COLUMN"]',
    '#   dates           dates.COLUMN = ["1990-01-01", "2029-12-31"]',
    '# If cells may be empty:    missing.COLUMN = 40  (or "indicator"); else the row is not used',
    '# To leave columns out:     features = ["COLUMN", "COLUMN"]  lists those to use',
)
_PYTHON_FORMS = (
    "# Use another form if a column holds something else:",
    "#   numbers         feature_bounds={'COLUMN': [0, 120]}",
    "#   text            categories={'COLUMN': ['Bern', 'Zug']}  (all other values are \"other\")",
    "#   true and false  booleans=['COLUMN']",
    "#   dates           dates={'COLUMN': ['1990-01-01', '2029-12-31']}",
    "# If cells may be empty:    missing={'COLUMN': 40}  (or 'indicator'); else no such row counts",
    "# To leave columns out:     features=['COLUMN', 'COLUMN']  lists those to use",
)


def schema_of(settings: DataSettings, table: Table, *, python: bool = False) -> TableSchema:
    """Return the schema of a table.

    Parameters
    ----------
    settings : DataSettings
        The public facts.
    table : Table
        The columns; no cell is read.
    python : bool
        Whether the question for missing facts is asked as Python keywords, not as TOML.

    Returns
    -------
    TableSchema
        How rows are encoded.

    Raises
    ------
    InvalidInput
        If facts are missing (all of them are named at once) or do not match the columns.
    """
    if table.width == 0:
        raise InvalidInput("data", "no features", "give at least one column besides the target")
    snippet = missing_facts(
        settings,
        table.names,
        types=table.types,
        python=python,
        target=table.targets is not None,
    )
    if snippet is not None:
        raise InvalidInput(
            "data",
            None,
            "tell what is publicly known, from public knowledge and never from the rows:\n"
            + snippet,
        )
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
    python: bool = False,
    target: bool = True,
) -> str | None:
    """Return a snippet that asks for every public fact that is needed and not given.

    Parameters
    ----------
    settings : DataSettings
        What is given.
    names : sequence of str or None
        Names of the feature columns; None for an array without names.
    types : sequence of str
        Their types, "" where they are not known. They only decide where a column is listed.
    python : bool
        Write Python keywords instead of TOML.
    target : bool
        Whether the target is known.

    Returns
    -------
    str or None
        Lines to fill in and add to the settings; None if nothing is missing.
    """
    lines = []
    if not target:
        lines.append(_line(python, "target", '"COLUMN"', "the column to predict"))
    if settings.regression or settings.target_bounds is not None:
        if settings.target_bounds is None:
            lines.append(_line(python, "target_bounds", "[LOW, HIGH]", "bounds of the target"))
    elif settings.classes is None:
        lines.append(_line(python, "classes", "[LABEL, LABEL]", "every label that may occur"))
    lines += _missing_columns(settings, names, types, python)
    if not lines:
        return None
    return "\n".join(lines if python else ["[data]", *lines])


def _missing_columns(
    settings: DataSettings, names: Sequence[str] | None, types: Sequence[str], python: bool
) -> list[str]:
    """Return one line per column without facts, or one per kind in Python."""
    if names is None:
        if settings.bounds is not None:
            return []
        return [_line(python, "feature_bounds", "[LOW, HIGH]", "bounds of all features")]
    kinds = dict(zip(names, types or ("",) * len(names), strict=True))
    unknown = [name for name in names if kind_of(settings, name) is None]
    asked: dict[str, list[str]] = {key: [] for key in _KINDS}
    for name in unknown:
        asked[_guess(kinds[name])].append(name)
    if not unknown:
        return []
    blanks = {
        "feature_bounds": "[LOW, HIGH]",
        "categories": "[VALUE, VALUE]",
        "dates": '["FIRST", "LAST"]',
    }
    lines = []
    for key, listed in asked.items():
        if not listed:
            continue
        if key == "booleans":
            lines.append(_line(python, key, json.dumps(listed, ensure_ascii=False)))
        elif python:
            inner = ", ".join(f"{name!r}: {blanks[key]}" for name in listed)
            lines.append(f"{key}={{{inner}}},")
        else:
            lines += [f"{key}.{_key(name)} = {blanks[key]}" for name in listed]
    return [*lines, *(_PYTHON_FORMS if python else _TOML_FORMS)]


def kind_of(settings: DataSettings, name: str) -> str | None:
    """Return the kind of a column by the facts that are given, or None if there are none."""
    if name in settings.categories:
        return "category"
    if name in settings.booleans:
        return "boolean"
    if name in settings.dates:
        return "date"
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
    made = []
    for place, (name, type_) in enumerate(zip(table.names, table.types, strict=True)):
        kind = kind_of(settings, name)
        assert kind is not None
        fill = settings.missing.get(name)
        low, high = 0.0, 1.0
        if kind == "number":
            bounds = settings.bounds
            given = bounds[name] if isinstance(bounds, Mapping) else pairs[place % len(pairs)]
            low, high = float(given[0]), float(given[1])
        elif kind == "date":
            low, high = (float(ordinal(day)) for day in settings.dates[name])
        _check_type(name, kind, type_)
        made.append(
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
    return made


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
    return any(named) or bool(settings.missing)


def _guess(type_: str) -> str:
    """Return the kind of fact that a column of this type most likely needs."""
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
