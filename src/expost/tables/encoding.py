"""Cells of a table as numbers. No cell makes these functions fail.

Each function takes one column, as a NumPy array of any plain type, and returns one number per cell:
NaN where the cell is missing or cannot be read. What a cell becomes depends on this cell alone, not
on its neighbours and not on the type of the array: the number 1, the text "1" and the text "1.0"
are the same, so a column that one odd cell turned into text gives the same numbers for the others.

Tests: ``tests/tuning/test_table_schema.py``.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from datetime import date, datetime
from typing import Any

import numpy as np

from expost.arrays import Array

Label = str | int | float | bool
"""A class or a category as the user wrote it."""

_TRUTH = {"true": 1.0, "yes": 1.0, "1": 1.0, "false": 0.0, "no": 0.0, "0": 0.0}
_EPOCH = date(1970, 1, 1).toordinal()
_WHOLE = 2**53  # below it, every whole number is a float of its own


def numbers(cells: Array) -> Array:
    """Return finite numbers in a new array of the same shape, NaN elsewhere.

    True and "true" are 1, false and "false" are 0.
    """
    if cells.dtype.kind in "biuf":
        with np.errstate(over="ignore"):
            found = cells.astype(np.float64)
    else:
        try:  # much faster, and the same numbers
            with np.errstate(over="ignore"):
                found = cells.astype(object).astype(np.float64)
        except Exception:  # some cell is no number
            found = _each(cells.ravel(), _number).reshape(cells.shape)
    fine = np.isfinite(found)
    if not fine.all():
        found[~fine] = np.nan
    return found


def truths(cells: Array) -> Array:
    """Return 1 for true, yes and 1, 0 for false, no and 0 (in any case), NaN elsewhere."""
    return _each(cells, lambda cell: _TRUTH.get((label_text(cell) or "").lower(), math.nan))


def days(cells: Array) -> Array:
    """Return the ordinal number of the day of each ISO date, NaN elsewhere."""
    if cells.dtype.kind == "M":
        found = cells.astype("datetime64[D]")
        return np.where(np.isnat(found), np.nan, found.astype(np.int64) + float(_EPOCH))
    return _each(cells, _day)


def places(cells: Array, labels: Sequence[Label]) -> Array:
    """Return the position of each cell in a public list of labels, NaN if it is not there."""
    known = {label_text(label): float(place) for place, label in enumerate(labels)}
    known.pop(None, None)
    if cells.dtype.kind in "biuf":
        different, back = np.unique(cells, return_inverse=True)
        return _each(different, lambda cell: known.get(label_text(cell), math.nan))[back]
    seen: dict[str, float] = {}

    def place_of(cell: Any) -> float:
        if type(cell) is not str:
            return known.get(label_text(cell), math.nan)
        if cell not in seen:
            seen[cell] = known.get(label_text(cell), math.nan)
        return seen[cell]

    return _each(cells, place_of)


def class_numbers(cells: Array, classes: int | Sequence[Label]) -> Array:
    """Return the class number of each label, NaN if it is not one of the public classes."""
    if not isinstance(classes, int):
        return places(cells, classes)
    found = numbers(cells)
    with np.errstate(invalid="ignore"):
        fine = (found >= 0) & (found < classes) & (found == np.floor(found))
    return np.where(fine, found, np.nan)


def label_text(cell: Any) -> str | None:
    """Return a label as text; equal labels of different types have equal texts.

    1, 1.0, "1" and "1.0" give "1"; True and "true" give "true". None for a missing cell.
    """
    if cell is None:
        return None
    if isinstance(cell, bytes):
        cell = cell.decode("utf-8", "replace")
    if isinstance(cell, (bool, np.bool_)):
        return "true" if cell else "false"
    if isinstance(cell, np.floating):
        cell = float(cell)  # as in an array, whose cells are written with all their digits
    text = str(cell).strip()
    if text.lower() in ("true", "false"):
        return text.lower()
    try:
        number = float(text)
    except ValueError:
        return text or None
    if not math.isfinite(number):
        return None
    if number.is_integer():
        # larger numbers stay as they are written: floats do not tell them apart
        return str(int(number)) if abs(number) < _WHOLE else text
    return repr(number)


def _number(cell: Any) -> float:
    """Return a cell as a number; text of a truth value as the array of truth values has it."""
    try:
        return float(cell)
    except ValueError:
        return {"true": 1.0, "false": 0.0}[label_text(cell) or ""]


def _day(cell: Any) -> float:
    """Return the ordinal number of a date, a datetime or an ISO text."""
    if isinstance(cell, bytes):
        cell = cell.decode("utf-8", "replace")
    if isinstance(cell, str):
        cell = datetime.fromisoformat(cell.strip())
    return float(cell.toordinal())


def _each(cells: Array, function: Callable[[Any], Any]) -> Array:
    """Apply a function to each cell; NaN where it raises anything, and no warning leaves."""
    found = []
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for cell in cells.tolist():
            try:
                found.append(float(function(cell)))
            except Exception:  # cells of data frames may be objects of any type
                found.append(math.nan)
    return np.array(found, dtype=np.float64)
