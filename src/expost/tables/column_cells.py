"""Columns of data frames, lists and arrays as NumPy arrays. No cell makes this fail.

A library may refuse to convert a whole column because of one cell: text that is not UTF-8, a date
beyond the year 9999, a time of day after midnight. Such a column is converted cell by cell, and a
cell that cannot be converted is None. Whole numbers with gaps stay whole numbers, and the cells of
a list or of a category stay Python objects: the type of an array would depend on a single row (one
float would round whole numbers beyond 2^53, one long text would need its length in every row).

Types are public, so a column may be refused by its type. So is the shape of the rows of a list,
which is that of most rows; a row of another shape is a row of missing cells.

Tests: ``tests/tuning/test_rows.py``, ``tests/hostile/test_tuning.py``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from expost.arrays import Array
from expost.errors import InvalidInput
from expost.execution.failure import Raised, attempt

_NUMBERS = frozenset({bool, int, float})
_SCALARS = _NUMBERS | {str, type(None)}


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


def block_of(X: Any) -> Array:
    """Return an array of rows with all further dimensions flattened.

    Parameters
    ----------
    X : array_like
        The rows.

    Raises
    ------
    InvalidInput
        If it is no array of numbers or text.
    """
    table = _plain(X, "X", "give an array with the same number of values in each row")
    if table.ndim == 0:
        raise InvalidInput("data", type(X).__name__, "give a table of rows and features")
    if table.dtype.kind not in "biufOUS":
        raise InvalidInput("data", f"an array of {table.dtype}", "give numbers or text")
    return table.reshape(len(table), prod(table.shape[1:]))


def list_cells(rows: Sequence[Any]) -> Array:
    """Return the cells of a list of rows, or of a flat list, as an array of objects.

    Parameters
    ----------
    rows : list or tuple
        The rows. Each is read by itself, and no row makes this fail.

    Returns
    -------
    ndarray of object
        All cells of a row are None if its shape is not that of most rows.
    """
    if _SCALARS.issuperset(map(type, rows)):  # the same cells, faster
        flat_cells = np.empty(len(rows), dtype=object)
        flat_cells[:] = rows
        return flat_cells
    kinds = {(row.dtype, row.shape) if type(row) is np.ndarray else None for row in rows}
    if len(kinds) == 1 and None not in kinds:
        return np.array(rows)  # arrays of one type: no cell changes
    arrays = [attempt(lambda row: np.array(row, dtype=object), row) for row in rows]
    shapes = Counter(row.shape for row in arrays if isinstance(row, np.ndarray))
    shape = max(shapes, key=lambda shape: (shapes[shape], shape), default=())
    cells = np.full((len(rows), *shape), None, dtype=object)
    for index, row in enumerate(arrays):
        if isinstance(row, np.ndarray) and row.shape == shape:
            cells[index] = row[()]
    return cells


def typed(cells: Array) -> Array:
    """Return an array of objects as numbers if all cells are numbers that this does not change.

    Estimators of other packages refuse objects. Whole numbers beyond 2^53 next to a float, and
    cells of any other type, stay objects.
    """
    kinds = set(map(type, cells.ravel().tolist())) if cells.dtype.kind == "O" else set()
    if not kinds or not (len(kinds) == 1 or kinds == {int, float}) or not kinds <= _NUMBERS:
        return cells
    numbers = np.array(cells.tolist())
    small = len(kinds) == 1 or bool((np.abs(numbers[np.isfinite(numbers)]) < 2**53).all())
    return numbers if small and numbers.dtype.kind in "biuf" else cells


def flat(values: Any) -> Array:
    """Return targets as a flat array.

    Raises
    ------
    InvalidInput
        If there is not one value per row.
    """
    targets = np.empty((0, 2)) if frame_of(values) is not None else cells_of(values)
    if targets.ndim != 1:
        raise InvalidInput(
            "data",
            f"targets in {targets.ndim} dimensions",
            "give one number or label per row, not a table",
        )
    return targets


def cells_of(values: Any) -> Array:
    """Return a list, an array, or a column of a data frame as an array, cell by cell.

    Raises
    ------
    InvalidInput
        If it is none of them.
    """
    module = _module(values)
    if module == "pandas" and hasattr(values, "iloc"):
        return _pandas(values)
    if module == "polars" and hasattr(values, "to_list"):
        return _polars(values)
    if module == "pyarrow" and hasattr(values, "to_pylist"):
        return _arrow(values, "y")
    return _plain(values, "y", "give one target per row")


def _module(data: Any) -> str:
    return type(data).__module__.partition(".")[0]


def _plain(values: Any, name: str, advice: str) -> Array:
    """Return an array, or the cells of a list."""
    if isinstance(values, (list, tuple)):
        return list_cells(values)
    array = attempt(np.asarray, values)
    if not isinstance(array, np.ndarray):  # an error of another library may quote data
        raise InvalidInput(name, type(values).__name__, advice)
    return array


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
        if str(series.dtype) == "category":  # an array of whole numbers with a gap would be floats
            labels = np.empty(len(series.cat.categories) + 1, dtype=object)  # the last is None
            labels[:-1] = series.cat.categories.to_numpy(dtype=object)
            return labels[series.cat.codes.to_numpy()]
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
