"""Columns of data frames, lists and arrays as NumPy arrays and numbers. No cell makes this fail.

A library may refuse to convert a whole column because of one cell: text that is not UTF-8, a date
beyond the year 9999, a time of day after midnight. Such a column is converted cell by cell, and a
cell that cannot be converted is None. Whole numbers with gaps stay whole numbers, and the cells of
a list or of a category stay Python objects: the type of an array would depend on a single row (one
float would round whole numbers beyond 2^53, one long text would need its length in every row).

Types are public, so a column may be refused by its type. So is the shape of the rows of a list,
which is that of most rows; a row of another shape is a row of missing cells.

**Cells as numbers** (:func:`numbers` and below). Each function takes one column, as a NumPy array
of any plain type, and returns one number per cell: NaN where the cell is missing or cannot be read.
What a cell becomes depends on this cell alone, not on its neighbours and not on the type of the
array: the number 1, the text "1" and the text "1.0" are the same, so a column that one odd cell
turned into text gives the same numbers for the others.
Tests: ``tests/tuning/test_rows.py``, ``tests/tuning/test_table_schema.py``,
``tests/hostile/test_tuning.py``.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import date, datetime
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from expost.arrays import Array
from expost.errors import InvalidInput
from expost.execution.calls import Raised, call_or_failure

_NUMBERS = frozenset({bool, int, float})
_SCALARS = _NUMBERS | {str, type(None)}
Label = str | int | float | bool
"""A class or a category as the user wrote it."""

_TRUTH = {"true": 1.0, "yes": 1.0, "1": 1.0, "false": 0.0, "no": 0.0, "0": 0.0}
_EPOCH = date(1970, 1, 1).toordinal()
_WHOLE = 2**53  # below it, every whole number is a float of its own


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
            [str(name) for name in data.columns],
            [str(kind) for kind in data.dtypes],
            lambda index: _checked(_pandas(data.iloc[:, index]), str(data.columns[index])),
        )
    if module == "polars" and type(data).__name__ == "LazyFrame":
        raise InvalidInput("X", "a LazyFrame", "give a DataFrame: call collect() first")
    if module == "polars" and hasattr(data, "get_columns"):
        return Frame(
            list(data.columns),
            [str(kind) for kind in data.dtypes],
            lambda index: _checked(_polars(data.get_columns()[index]), data.columns[index]),
        )
    if module == "pyarrow" and hasattr(data, "column_names"):
        names = data.column_names
        return Frame(
            list(names),
            [str(kind) for kind in data.schema.types],
            lambda index: _checked(_arrow(data.column(index), names[index]), names[index]),
        )
    return None


def block_of(X: Any) -> Array:
    """Return an array of rows with all further dimensions flattened."""
    table = _plain(X, "X", "give an array with the same number of values in each row")
    if table.ndim == 0:
        raise InvalidInput("data", type(X).__name__, "give a table of rows and features")
    if table.dtype.kind not in "biufOUS":
        raise InvalidInput("data", f"an array of {table.dtype}", "give numbers or text")
    return table.reshape(len(table), math.prod(table.shape[1:]))


def list_cells(rows: Sequence[Any]) -> Array:
    """Return the cells of a list of rows, or of a flat list, as an array of objects."""
    if _SCALARS.issuperset(map(type, rows)):  # the same cells, faster
        flat_cells = np.empty(len(rows), dtype=object)
        flat_cells[:] = rows
        return flat_cells
    kinds = {(row.dtype, row.shape) if type(row) is np.ndarray else None for row in rows}
    if len(kinds) == 1 and None not in kinds:
        return np.array(rows)  # arrays of one type: no cell changes
    arrays = [call_or_failure(lambda row: np.array(row, dtype=object), row) for row in rows]
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
    if numbers.dtype.kind not in "biuf":  # a whole number of more than 64 bits
        return cells
    small = len(kinds) == 1 or bool((np.abs(numbers[np.isfinite(numbers)]) < 2**53).all())
    return numbers if small else cells


def flat(values: Any) -> Array:
    """Return targets as a flat array."""
    targets = np.empty((0, 2)) if frame_of(values) is not None else cells_of(values)
    if targets.ndim != 1:
        raise InvalidInput(
            "data",
            f"targets in {targets.ndim} dimensions",
            "give one number or label per row, not a table",
        )
    return targets


def cells_of(values: Any) -> Array:
    """Return a list, an array, or a column of a data frame as an array, cell by cell."""
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
    array = call_or_failure(np.asarray, values)
    if not isinstance(array, np.ndarray):  # an error of another library may quote data
        raise InvalidInput(name, type(values).__name__, advice)
    return array


def _total(whole: Callable[[], Any], cell: Callable[[int], Any], count: int) -> Array:
    """Return a column at once or, if that fails, cell by cell with None where it fails."""
    column = call_or_failure(whole)
    if isinstance(column, np.ndarray):
        return column
    cells = np.empty(count, dtype=object)
    for row in range(count):
        value = call_or_failure(cell, row)
        cells[row] = None if isinstance(value, Raised) else value
    return cells


def _pandas(series: Any) -> Array:
    """Return a column of pandas as an array."""

    def whole() -> Any:
        if str(series.dtype) == "category":  # an array of whole numbers with a gap would be floats
            labels = np.empty(len(series.cat.categories) + 1, dtype=object)  # the last is None
            labels[:-1] = series.cat.categories.to_numpy(dtype=object)
            return labels[series.cat.codes.to_numpy()]
        array = series.to_numpy()
        gaps = array.dtype.kind == "f" and getattr(series.dtype, "kind", "") in "iu"
        return series.to_numpy(dtype=object) if gaps else array

    return _total(whole, lambda row: series.iloc[row], len(series))


def _polars(series: Any) -> Array:
    """Return a column of polars as an array."""
    if series.dtype.is_nested():
        _refuse(series.name, str(series.dtype))

    def whole() -> Any:
        if series.dtype.is_integer() and series.null_count():
            return np.array(series.to_list(), dtype=object)
        return series.to_numpy()

    return _total(whole, lambda row: series[row], len(series))


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

    return _total(whole, lambda row: column[row].as_py(), len(column))


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


def numbers(cells: Array) -> Array:
    """Return finite numbers in a new array of the same shape, NaN elsewhere.

    True and "true" are 1, false and "false" are 0.
    """
    if cells.dtype.kind in "biuf":
        with np.errstate(over="ignore"):
            values = cells.astype(np.float64)
    else:
        try:  # much faster, and the same numbers
            with np.errstate(over="ignore"):
                values = cells.astype(object).astype(np.float64)
        except Exception:  # some cell is no number
            values = _per_cell(cells.ravel(), _number).reshape(cells.shape)
    fine = np.isfinite(values)
    if not fine.all():
        values[~fine] = np.nan
    return values


def truth_values(cells: Array) -> Array:
    """Return 1 for true, yes and 1, 0 for false, no and 0 (in any case), NaN elsewhere."""
    return _per_cell(cells, lambda cell: _TRUTH.get((label_text(cell) or "").lower(), math.nan))


def day_numbers(cells: Array) -> Array:
    """Return the ordinal number of the day of each ISO date, NaN elsewhere."""
    if cells.dtype.kind == "M":
        dates = cells.astype("datetime64[D]")
        return np.where(np.isnat(dates), np.nan, dates.astype(np.int64) + float(_EPOCH))
    return _per_cell(cells, _day)


def label_indices(cells: Array, labels: Sequence[Label]) -> Array:
    """Return the position of each cell in a public list of labels, NaN if it is not there."""
    known = {label_text(label): float(index) for index, label in enumerate(labels)}
    known.pop(None, None)
    if cells.dtype.kind in "biuf":
        different, back = np.unique(cells, return_inverse=True)
        return _per_cell(different, lambda cell: known.get(label_text(cell), math.nan))[back]
    seen: dict[str, float] = {}

    def index_of(cell: Any) -> float:
        if type(cell) is not str:
            return known.get(label_text(cell), math.nan)
        if cell not in seen:
            seen[cell] = known.get(label_text(cell), math.nan)
        return seen[cell]

    return _per_cell(cells, index_of)


def class_numbers(cells: Array, classes: int | Sequence[Label]) -> Array:
    """Return the class number of each label, NaN if it is not one of the public classes."""
    if not isinstance(classes, int):
        return label_indices(cells, classes)
    values = numbers(cells)
    with np.errstate(invalid="ignore"):
        fine = (values >= 0) & (values < classes) & (values == np.floor(values))
    return np.where(fine, values, np.nan)


def label_text(cell: Any) -> str | None:
    """Return a label as text; equal labels of different types have equal texts.

    1, 1.0, "1" and "1.0" give "1"; True and "true" give "true". None for a missing cell.
    """
    if cell is None or type(cell).__name__ in ("NAType", "NaTType"):  # of pandas
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
    if isinstance(cell, np.datetime64):  # of a column whose parts had different types
        cell = cell.astype("datetime64[D]").item()
    return float(cell.toordinal())


def _per_cell(cells: Array, function: Callable[[Any], Any]) -> Array:
    """Apply a function to each cell; NaN where it raises anything, and no warning leaves."""
    values = []
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for cell in cells.tolist():
            try:
                values.append(float(function(cell)))
            except Exception:  # cells of data frames may be objects of any type
                values.append(math.nan)
    return np.array(values, dtype=np.float64)


GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # of SplitMix64


def mixed_words(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return the words mixed as by SplitMix64: they look random, the same everywhere."""
    words = words + GOLDEN
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        words = (words ^ (words >> np.uint64(shift))) * np.uint64(factor)
    return np.asarray(words ^ (words >> np.uint64(31)))
