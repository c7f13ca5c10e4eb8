"""Columns of data frames, lists and arrays as NumPy arrays. No cell makes this fail.

A library may refuse to convert a whole column because of one cell: text that is not UTF-8, a date
beyond the year 9999, a time of day after midnight. Such a column is converted cell by cell, and a
cell that cannot be converted is None. Whole numbers with gaps stay whole numbers, and a list of
several types keeps the type of each cell: the type of an array would depend on a single row.

Types are public, so a column may be refused by its type.

Tests: ``tests/tuning/test_rows.py``, ``tests/hostile/test_tuning.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

import numpy as np

from expost.arrays import Array
from expost.errors import InvalidInput
from expost.execution.failure import Raised, attempt


class Frame(NamedTuple):
    """A table with names: types by its schema, and a function from positions to columns."""

    names: list[str]
    types: list[str]
    column: Callable[[int], Array]


def frame_of(data: Any) -> Frame | None:
    """Return a pandas, polars or pyarrow table, or None if it is none of them."""
    module = _module(data)
    if module == "pandas" and hasattr(data, "columns"):
        return Frame(
            [str(each) for each in data.columns],
            [str(each) for each in data.dtypes],
            lambda place: _checked(_pandas(data.iloc[:, place]), str(data.columns[place])),
        )
    if module == "polars" and type(data).__name__ == "LazyFrame":
        raise InvalidInput("X", "a LazyFrame", "give a DataFrame: call collect() first")
    if module == "polars" and hasattr(data, "get_columns"):
        return Frame(
            list(data.columns),
            [str(each) for each in data.dtypes],
            lambda place: _checked(_polars(data.get_columns()[place]), data.columns[place]),
        )
    if module == "pyarrow" and hasattr(data, "column_names"):
        names = data.column_names
        return Frame(
            list(names),
            [str(each) for each in data.schema.types],
            lambda place: _checked(_arrow(data.column(place), names[place]), names[place]),
        )
    return None


def block_of(X: Any, *, objects: bool = False) -> Array:
    """Return an array of rows with all further dimensions flattened.

    Parameters
    ----------
    X : array_like
        The rows.
    objects : bool
        Keep the cells of a list as they are.

    Raises
    ------
    InvalidInput
        If it is no array of numbers or text.
    """
    try:
        table = _plain(X, objects)
    except (TypeError, ValueError, RuntimeError):
        raise InvalidInput(
            "X", type(X).__name__, "give an array with the same number of values in each row"
        ) from None
    if table.ndim == 0:
        raise InvalidInput("data", type(X).__name__, "give a table of rows and features")
    if table.dtype.kind not in "biufOUS":
        raise InvalidInput("data", f"an array of {table.dtype}", "give numbers or text")
    return table.reshape(len(table), prod(table.shape[1:]))


def flat(values: Any) -> Array:
    """Return targets as a flat array.

    Raises
    ------
    InvalidInput
        If there is not one value per row.
    """
    module = _module(values)
    targets: Array
    try:
        if frame_of(values) is not None:
            targets = np.empty((0, 2))
        elif module == "pandas" and hasattr(values, "iloc"):
            targets = _pandas(values)
        elif module == "polars" and hasattr(values, "to_list"):
            targets = _polars(values)
        elif module == "pyarrow" and hasattr(values, "to_pylist"):
            targets = _arrow(values, "y")
        else:
            targets = _plain(values)
    except InvalidInput:
        raise
    except (TypeError, ValueError, RuntimeError):
        raise InvalidInput("y", type(values).__name__, "give one target per row") from None
    if targets.ndim != 1:
        raise InvalidInput(
            "data",
            f"targets in {targets.ndim} dimensions",
            "give one number or label per row, not a table",
        )
    return targets


def _module(data: Any) -> str:
    return type(data).__module__.partition(".")[0]


def _plain(values: Any, objects: bool = False) -> Array:
    """Return an array; of a list with cells of several types, an array of objects.

    One text in a list of numbers would turn all of them into text, and one number in a list of
    truth values would turn these into numbers.
    """
    found = np.asarray(values)
    if not isinstance(values, (list, tuple)) or found.dtype.kind == "O":
        return found
    cells = np.array(values, dtype=object)
    if cells.shape != found.shape:
        return found
    return found if not objects and _alike(set(map(type, cells.ravel().tolist()))) else cells


def _alike(types: set[type[Any]]) -> bool:
    """Whether cells of these types are the same numbers and labels in an array of one type."""
    return len(types) <= 1 or types <= {int, float}


def _total(whole: Callable[[], Any], cell: Callable[[int], Any], count: int) -> Array:
    """Return a column at once or, if that fails, cell by cell with None where it fails."""
    found = attempt(whole)
    if isinstance(found, np.ndarray):
        return found
    cells = np.empty(count, dtype=object)
    for place in range(count):
        each = attempt(cell, place)
        cells[place] = None if isinstance(each, Raised) else each
    return cells


def _pandas(series: Any) -> Array:
    """Return a column of pandas as an array."""

    def whole() -> Any:
        found = series.to_numpy()
        gaps = found.dtype.kind == "f" and getattr(series.dtype, "kind", "") in "iu"
        return series.to_numpy(dtype=object) if gaps else found

    return _total(whole, lambda place: series.iloc[place], len(series))


def _polars(series: Any) -> Array:
    """Return a column of polars as an array."""
    if series.dtype.is_nested():
        _refuse(series.name, str(series.dtype))

    def whole() -> Any:
        if series.dtype.is_integer() and series.null_count():
            return np.array(series.to_list(), dtype=object)
        return series.to_numpy()

    return _total(whole, lambda place: series[place], len(series))


def _arrow(column: Any, name: str) -> Array:
    """Return a column of pyarrow as an array."""
    import pyarrow as pa  # type: ignore[import-untyped]

    kind = column.type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_nested(kind) or pa.types.is_duration(kind):
        _refuse(name, str(column.type))

    def whole() -> Any:
        plain = column.cast(kind)
        if pa.types.is_integer(kind) and plain.null_count:
            return np.array(plain.to_pylist(), dtype=object)
        return plain.to_numpy() if hasattr(plain, "chunks") else plain.to_numpy(False)

    return _total(whole, lambda place: column[place].as_py(), len(column))


def _checked(cells: Array, name: str) -> Array:
    """Refuse a column by its type: complex numbers, durations, records."""
    if cells.dtype.kind not in "biufOUSTM":
        _refuse(name, str(cells.dtype))
    return np.asarray(cells, dtype=object) if cells.dtype.kind == "T" else cells


def _refuse(name: str, kind: str) -> None:
    """Refuse a column because of its type."""
    raise InvalidInput(
        f"column {name!r}", f"of type {kind}", "give numbers, text, true and false, or dates"
    )
