"""Checks of the rows and targets that a ``fit`` receives, made before anything is charged.

Shapes, types, column names and the settings of the estimator are public. Two refusals depend on
values: a cell that is not a finite number, and a label outside the public classes. They are for the
person who holds the data, like any error of an earlier step, and are made only at the outermost
``fit``, before a selection starts and before a budget is charged. Inside a selection
(:func:`inside_selection`) nothing is refused because of a value: such an outcome would be released
without noise. There, a row that cannot be used counts for nothing. No message quotes a value.

Tests: ``tests/training/test_sklearn.py``, ``tests/tuning/test_sklearn_search.py``.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from difflib import get_close_matches
from typing import Any

import numpy as np

from expost.arrays import Array
from expost.errors import InvalidInput, MissingExtra
from expost.execution.failure import attempt
from expost.tables.column_cells import cells_of, frame_of, list_cells, typed

try:
    from sklearn.exceptions import DataConversionWarning
    from sklearn.utils.validation import validate_data
except ImportError:
    raise MissingExtra("scikit-learn", "sklearn") from None

WHY = "reading them off the data would reveal single people; pass what is publicly known"
_REFUSES: ContextVar[bool] = ContextVar("refuses values", default=True)


@contextmanager
def inside_selection() -> Iterator[None]:
    """Refuse nothing because of a value, and warn of nothing, until the end of the block."""
    token = _REFUSES.set(False)
    try:
        yield
    finally:
        _REFUSES.reset(token)


def refuses_values() -> bool:
    """Whether a value may be refused: at the outermost door, and not inside a selection."""
    return _REFUSES.get()


def check_features(estimator: Any, X: Any, *, reset: bool = True) -> Array:
    """Return features as a float64 array and remember their number and names.

    Parameters
    ----------
    estimator : estimator
        Where ``n_features_in_`` and ``feature_names_in_`` are set or compared.
    X : array-like or data frame of shape (n_rows, n_features)
        Features.
    reset : bool
        True in ``fit``; False compares with what ``fit`` saw.

    Raises
    ------
    InvalidInput
        A column is not numeric, the shape is wrong, or a value is not a finite number.
    """
    X = table_of(X)
    check_width(X)
    rows = np.asarray(
        validate_data(
            estimator,
            _numbers(X),
            dtype=np.float64,
            ensure_all_finite=False,
            ensure_min_samples=1 if _REFUSES.get() else 0,
            reset=reset,
        )
    )
    if _REFUSES.get():
        check_finite(rows)
    return rows


def table_of(X: Any) -> Any:
    """Return a list of rows as an array, read row by row; other tables as they are.

    The error of a conversion would state the length of a text or the shape of a row.
    """
    return typed(list_cells(X)) if isinstance(X, (list, tuple)) else X


def check_finite(rows: Array) -> None:
    """Refuse rows with NaN or infinity."""
    if not np.isfinite(rows).all():
        raise InvalidInput(
            "X",
            "values that are NaN, infinity or no numbers",
            "replace them by public values, or leave these rows out; nothing was charged",
        )


def check_width(X: Any) -> None:
    """Refuse what is not a table: missing, flat, or with columns that hold no numbers."""
    if X is None:
        raise InvalidInput("X", None, "pass a table with one row per example")
    names = text_columns(X)
    if names:
        raise InvalidInput(
            "X",
            "a table with columns that hold no numbers",
            f"encode {', '.join(map(repr, names))} as numbers with public steps first",
        )
    if getattr(getattr(X, "dtype", None), "kind", "") == "c":
        # scikit-learn's own message would quote the rows
        raise InvalidInput("X", "complex numbers", "Complex data not supported; pass real numbers")
    shape = getattr(X, "shape", None)
    axes = len(shape) if isinstance(shape, tuple) else None
    if axes is not None and axes != 2:
        raise InvalidInput(
            "X",
            f"an array with {axes} axes",
            "Expected 2D array. Reshape your data: one row per example, one column per feature",
        )


def text_columns(X: Any) -> list[str]:
    """Return the columns of a data frame whose type holds no numbers; types are public."""
    if hasattr(X, "schema") and type(X).__module__.startswith("polars"):
        return [
            name
            for name, kind in X.schema.items()
            if not (kind.is_numeric() or str(kind) in ("Boolean", "Null", "Object"))
        ]
    kinds = getattr(X, "dtypes", None)
    if kinds is None or not hasattr(X, "columns"):
        return []
    return [
        str(name)
        for name, kind in zip(X.columns, kinds, strict=True)
        if getattr(kind, "kind", "O") not in "biufO" or str(kind) in ("category", "string", "str")
    ]


def _numbers(values: Any) -> Any:
    """Return objects and texts as numbers, NaN for what is not a number.

    The error of a conversion would quote the value.
    """
    array = None if hasattr(values, "toarray") else attempt(np.asarray, values)
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "OUS" or array.ndim > 2:
        return values
    numbers = np.empty(array.shape, dtype=np.float64)
    for place, value in np.ndenumerate(array):
        number = attempt(float, value)
        numbers[place] = number if isinstance(number, float) else np.nan
    if hasattr(values, "columns") and hasattr(values, "index"):
        return type(values)(numbers, columns=values.columns, index=values.index)
    return numbers


def check_targets(y: Any, rows: int) -> Array:
    """Return the targets as an array of one value per row; refuse shapes only."""
    if y is None:
        raise InvalidInput(
            "y", None, "fit requires y to be passed, but the target y is None; pass one per row"
        )
    if hasattr(y, "toarray"):
        raise InvalidInput("y", "a sparse matrix", "pass a flat array with one target per row")
    targets = attempt(np.asarray if frame_of(y) is not None else cells_of, y)
    if not isinstance(targets, np.ndarray):
        raise InvalidInput("y", type(y).__name__, "pass a flat array with one target per row")
    targets = typed(targets)
    if targets.ndim == 2 and targets.shape[1] == 1:
        warnings.warn(
            "A column-vector y was passed when a 1d array was expected; it is flattened.",
            DataConversionWarning,
            stacklevel=4,
        )
        targets = targets[:, 0]
    if targets.ndim != 1:
        raise InvalidInput(
            "y",
            f"targets in {targets.ndim} dimensions",
            "pass one target per row: y should be a 1d array",
        )
    if len(targets) != rows:
        raise InvalidInput("y", f"{len(targets)} targets", f"pass one target per row, {rows} rows")
    return targets


def check_numbers(targets: Array) -> Array:
    """Return regression targets as numbers; refuse those that are not finite numbers."""
    numbers = np.asarray(_numbers(targets), dtype=np.float64)
    if _REFUSES.get() and not np.isfinite(numbers).all():
        raise InvalidInput(
            "y",
            "targets that are NaN, infinity or no numbers",
            "leave these rows out; nothing was charged",
        )
    return numbers


def check_labels(known: Array, labels: Array) -> Array:
    """Return the place of each label in the sorted public list; refuse a label outside it.

    Inside a selection the place of a label outside is NaN.
    """
    numeric = set("biuf")
    if known.dtype.kind == labels.dtype.kind or {known.dtype.kind, labels.dtype.kind} <= numeric:
        found = np.minimum(np.searchsorted(known, labels), len(known) - 1)
        places = np.where(known[found] == labels, found.astype(np.float64), np.nan)
    else:
        table = {value: float(place) for place, value in enumerate(known.tolist())}
        looked = [attempt(table.get, label, np.nan) for label in labels.tolist()]
        places = np.array([each if isinstance(each, float) else np.nan for each in looked])
    if _REFUSES.get() and np.isnan(places).any():
        raise InvalidInput(
            "y",
            "labels outside the public classes",
            "Unknown label type: continuous, NaN or not listed. List every label that may occur in "
            "`classes`, or leave these rows out; nothing was charged",
        )
    return places


def check_bounds(bounds: Any, field: str, names: Any, columns: int) -> tuple[Array, Array]:
    """Return lows and highs as arrays of ``columns`` numbers.

    Parameters
    ----------
    bounds : pair, sequence of pairs, or dict
        One pair (low, high) for all columns, one pair per column, or a pair for each column name.
    field : str
        Name of the setting, for errors.
    names : sequence of str or None
        The names of the columns, if they are known.
    columns : int
        Their number.
    """
    if bounds is None:
        raise InvalidInput(field, None, f"pass public bounds, one pair (low, high): {WHY}")
    if isinstance(bounds, dict):
        bounds = _by_name(bounds, field, names)
    array = attempt(lambda: np.asarray(bounds, dtype=np.float64))
    if not isinstance(array, np.ndarray) or array.shape not in ((2,), (1, 2), (columns, 2)):
        raise InvalidInput(
            field,
            bounds if np.shape(array) == () else f"an array of shape {np.shape(array)}",
            f"pass one pair (low, high), or one pair for each of {columns} columns",
        )
    low, high = np.broadcast_to(array, (columns, 2)).T
    if not np.all(np.isfinite(array)) or not np.all(low < high):
        raise InvalidInput(field, "pairs", "pass finite bounds with low < high")
    return low, high


def _by_name(bounds: dict[Any, Any], field: str, names: Any) -> list[Any]:
    """Return the pairs of a dict in the order of the columns."""
    if names is None:
        raise InvalidInput(
            field, "pairs by column name", "pass a data frame, or one pair per column"
        )
    listed = [str(each) for each in names]
    problems = []
    for name in bounds:
        if name not in listed:
            near = get_close_matches(str(name), listed, 1)
            hint = f", did you mean {near[0]!r}?" if near else ""
            problems.append(f"X has no column {name!r}{hint}")
    missing = [repr(name) for name in listed if name not in bounds]
    if missing:
        problems.append(f"pass a pair for {', '.join(missing)}, too")
    if problems:
        raise InvalidInput(field, bounds, "; ".join(problems))
    return [bounds[name] for name in listed]
