"""What all features share: reading of rows, scaling to norm 1, parameters, a form for files.

**Rows apart.** The features of a row are a function of this row and of public parameters. They are
the same bits whatever other rows there are, in whatever order and in batches of whatever size. The
code keeps to two rules. Either it uses elementwise operations that IEEE 754 rounds correctly
(+ − × ÷ √ max rint), in an order that does not depend on the rows; or all products and partial sums
are multiples of one power of two u and below 2^53·u, so that they are exact in any order. A matrix
product of a library is used in the second case only. So the features are the same on every machine,
too.

**Norm at most 1.** Every row is scaled as :func:`scaled_rows` says, and its exact Euclidean norm is
at most 1. Training relies on it.

**No row fails.** A row that cannot be read (a number that is missing or not finite, a picture of
another size) becomes the zero row. All other rows have a positive constant column.

Tests: ``tests/features/``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from math import prod, sqrt
from typing import Any, ClassVar, Self

import numpy as np

from expost.arrays import Array, Floats
from expost.errors import InvalidInput
from expost.execution.calls import call_or_failure
from expost.tables.cells import block_of, flat, frame_of, numbers

Cells = Array | list[Array]
"""Rows of features: one block of shape (rows, columns), or one array per column."""

_CHUNK = 2**17  # cells that are mapped together; results do not depend on it
_LARGEST = 2.0**1000  # a row with a larger value cannot be read
_SHRINK = 1.0 + 2.0**-40


@dataclass(eq=False)
class Features:
    """Base class of public maps of one row.

    A transformer with scikit-learn's interface that learns nothing: ``fit`` does nothing.

    Parameters
    ----------
    constant : float, default=0.3
        The constant column, relative to the largest norm that the other features can have.
    norm : {"row", "bound"}, default="row"
        What a row is divided by: its own norm, or the public bound of all norms. The first is
        better for classification. The second keeps a linear relation linear, for regression.
    """

    kind: ClassVar[str] = ""
    constant: float = field(default=0.3, kw_only=True)
    norm: str = field(default="row", kw_only=True)

    def __post_init__(self) -> None:
        if not (is_real(self.constant) and 1e-6 <= self.constant <= 1e6):
            raise InvalidInput("constant", self.constant, "give a number from 1e-6 to 1e6")
        if self.norm not in ("row", "bound"):
            raise InvalidInput("norm", self.norm, 'give "row" or "bound"')
        self._check()

    # What a subclass defines.

    def _check(self) -> None:
        """Raise ``InvalidInput`` if a parameter is not valid."""

    @property
    def columns(self) -> int | None:
        """Number of values of a row; None if any number is taken."""
        return None

    def _width(self, columns: int) -> int:
        """Return the number of features without the constant."""
        raise NotImplementedError

    def _bound(self, columns: int) -> float:
        """Return a public bound of the norm of :meth:`_values`."""
        raise NotImplementedError

    def _values(self, cells: Cells) -> Floats:
        """Return the features, of shape (rows, width); not finite where a row cannot be read."""
        raise NotImplementedError

    def _names(self, names: Sequence[str]) -> list[str]:
        """Return the names of the features, from those of the columns."""
        return [f"{self.kind}{index}" for index in range(self._width(len(names)))]

    def _words(self) -> str:
        """Return a description without the scaling of rows."""
        raise NotImplementedError

    # The transformer.

    def fit(self, X: Any = None, y: Any = None) -> Self:
        """Do nothing and return the transformer."""
        return self

    def transform(self, X: Any) -> Floats:
        """Return the features of each row.

        Parameters
        ----------
        X : array_like or data frame
            Rows: an array of shape (rows, …), a list of rows, or a pandas, polars or pyarrow table.

        Returns
        -------
        ndarray of shape (rows, width)
            Rows of norm at most 1. The last column is the constant; it is positive, except in a row
            that cannot be read, which is zero.

        Raises
        ------
        InvalidInput
            If the type or the shape of ``X`` is not valid. It does not depend on values.
        """
        return self.transform_cells(self._read(X))

    def transform_cells(self, cells: Cells) -> Floats:
        """Return the features of cells: a block of rows, or one array per column."""
        block = isinstance(cells, np.ndarray)
        columns = cells.shape[1] if isinstance(cells, np.ndarray) else len(cells)
        if columns != (self.columns or columns) or not columns:
            raise InvalidInput(
                "X", f"rows of {columns} values", f"give rows of {self.columns or 'some'} values"
            )
        rows = row_count(cells)
        bound = self._bound(columns)
        placed = np.empty((rows, self._width(columns) + 1))
        chunk = max(1, _CHUNK // columns)
        for start in range(0, rows, chunk):
            part = slice(start, start + chunk)
            some = cells[part] if block else [column[part] for column in cells]
            with np.errstate(all="ignore"):
                placed[part] = scaled_rows(
                    self._values(some), self.constant * bound, None if self.norm == "row" else bound
                )
        return placed

    def values(self, cells: Cells) -> Floats:
        """Return the features of cells before they are scaled; NaN where a row cannot be read."""
        with np.errstate(all="ignore"):
            return self._values(cells)

    def fit_transform(self, X: Any, y: Any = None) -> Floats:
        """Return the features of each row, as :meth:`transform` does."""
        return self.transform(X)

    def width(self, columns: int | None = None) -> int:
        """Return the number of features with the constant, for rows of so many values."""
        known = self.columns or columns
        if known is None:
            raise InvalidInput("columns", None, "give the number of values of a row")
        return self._width(known) + 1

    def get_feature_names_out(self, input_features: Any = None) -> Array:
        """Return the names of the features.

        Parameters
        ----------
        input_features : array_like of str, optional
            Names of the columns. Needed if the features take any number of columns.
        """
        if input_features is None:
            if self.columns is None:
                raise InvalidInput("input_features", None, "give the names of the columns")
            input_features = [f"x{index}" for index in range(self.columns)]
        return np.array([*self._names([str(name) for name in input_features]), "constant"], object)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters by name, as they were given."""
        return {parameter.name: getattr(self, parameter.name) for parameter in fields(self)}

    def set_params(self, **params: Any) -> Self:
        """Set parameters and return the transformer."""
        known = self.get_params()
        for name in params:
            if name not in known:
                raise InvalidInput(name, "a parameter", f"the parameters are {', '.join(known)}")
        changed = vars(type(self)(**{**known, **params}))
        vars(self).clear()  # what was derived from the old parameters, too
        vars(self).update(changed)
        return self

    def __sklearn_tags__(self) -> Any:
        """Return scikit-learn's tags: nothing is fitted, and gaps are allowed."""
        from sklearn.utils import InputTags, Tags, TargetTags, TransformerTags

        return Tags(
            estimator_type=None,
            target_tags=TargetTags(required=False),
            transformer_tags=TransformerTags(),
            input_tags=InputTags(allow_nan=True),
            requires_fit=False,
        )

    # Files and words.

    def as_dict(self) -> dict[str, Any]:
        """Return a form that JSON can hold; :func:`features_from_dict` reads it back."""
        return {
            "features": self.kind,
            **{k: json_parameter(v) for k, v in self.get_params().items()},
        }

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Features) and self.as_dict() == other.as_dict()

    def __hash__(self) -> int:
        return hash(json.dumps(self.as_dict()))

    def describe(self) -> str:
        """Return what the features are, in words for a certificate."""
        scale = "its norm" if self.norm == "row" else "a public bound"
        return f"{self._words()}; each row divided by {scale}, constant column {self.constant:g}"

    # Reading.

    def _read(self, X: Any) -> Cells:
        """Return rows as cells. Errors depend on types and shapes only."""
        frame = frame_of(X)
        if frame is not None:
            return [frame.column(index) for index in range(len(frame.names))]
        if isinstance(X, (list, tuple)) and self.columns is not None:
            return block_of_rows(X, self.columns)
        if isinstance(X, np.ndarray) and X.ndim != 1:
            return X.reshape(len(X), prod(X.shape[1:])) if X.ndim else block_of(X)
        if isinstance(X, (list, tuple)) or (hasattr(X, "__array__") and np.ndim(X) != 1):
            return block_of(X)
        return [flat(X)]


def block_of_rows(rows: Sequence[Any], columns: int) -> Cells:
    """Return a list of rows as a block. A row of another length cannot be read: it is NaN.

    A row may be a list, an array of any shape, or, if there is one column, a single value.
    """
    block = call_or_failure(np.array, rows)
    if (
        isinstance(block, np.ndarray)
        and block.dtype.kind in "biuf"
        and block.size == len(rows) * (columns)
    ):
        return block.reshape(len(rows), columns)
    cells = np.full((len(rows), columns), np.nan, dtype=object)
    for index, row in enumerate(rows):
        values = call_or_failure(_flat_row, row)
        if isinstance(values, list) and len(values) == columns:
            for position, value in enumerate(values):
                cells[index, position] = value
    return cells


def _flat_row(row: Any) -> list[Any]:
    """Return the values of one row, nested lists and arrays flattened."""
    if isinstance(row, np.ndarray):
        return row.ravel().tolist()
    if not isinstance(row, (list, tuple)):
        return [row]
    return [value for part in row for value in _flat_row(part)]


def number_block(cells: Cells) -> Floats:
    """Return cells as numbers of shape (rows, columns), NaN where a cell is no finite number."""
    if isinstance(cells, np.ndarray):
        return numbers(cells)
    return np.column_stack([numbers(column) for column in cells])


def row_count(cells: Cells) -> int:
    """Return the number of rows."""
    return len(cells) if isinstance(cells, np.ndarray) else len(cells[0])


def column_list(cells: Cells) -> list[Array]:
    """Return one array per column."""
    return list(cells.T) if isinstance(cells, np.ndarray) else list(cells)


def fold(values: Floats) -> Floats:
    """Return the sums over the first axis, added in a fixed tree: halves, quarters, ….

    ``np.sum`` adds in an order that depends on shapes and memory. Here the order depends on the
    length m of the axis only, and the relative error of a sum of numbers ≥ 0 is at most
    ⌈log₂ m⌉·2^{−53}.
    """
    while len(values) > 1:
        half = (len(values) + 1) // 2
        upper = values[: len(values) - half] + values[half:]
        values = upper if len(upper) == half else np.concatenate([upper, values[half - 1 : half]])
    return np.asarray(values[0])


def unit(values: Floats) -> Floats:
    """Scale columns of shape (features, rows) to norm 1, rounded down; zero stays zero.

    Columns that have a value that is not finite or above 2^{1000} become NaN.
    """
    largest = np.abs(values).max(axis=0, initial=0.0)
    readable = largest < _LARGEST
    largest = np.where(readable, largest, np.nan)
    scaled = np.ldexp(values, -np.frexp(np.where(readable, largest, 1.0))[1])
    length = np.sqrt(fold(scaled * scaled)) * _SHRINK
    return np.asarray(scaled / np.where(length == 0, 1.0, length) + 0.0 * largest)


def scaled_rows(values: Floats, constant: float, bound: float | None) -> Floats:
    """Append a constant to each row and scale the row to a norm of at most 1.

    Notes
    -----
    *The exact norm of a row is at most 1.* Let w be a row with its constant, multiplied by a power
    of two such that its largest entry is in [1/2, 1), and v what is computed of it: they differ by
    at most 2^{−1074} in an entry, where w is below 2^{−1022}. With D ≤ 2^{30} entries, the computed
    sum of squares is at least ‖v‖²·(1 − 2^{−53})^{31} − D·2^{−1074}: one rounding of each square
    and at most 30 of the sums (:func:`fold`), and squares that underflow. With ‖v‖ ≥ 1/2 and the
    rounding of the root, the computed norm is at least ‖v‖·(1 − 2^{−47}). It is multiplied by
    1 + 2^{−40}, and every quotient is rounded once, by a factor of at most 1 + 2^{−53} or an amount
    of at most 2^{−1074}. So the result has a norm of at most
    (1 + 2^{−53})²/((1 − 2^{−47})(1 + 2^{−40})) + D·2^{−1073} < 1. With ``bound`` the divisor is
    √(bound² + constant²) to a relative error of 2^{−51}, times 1 + 2^{−40}, and the same holds.
    Test: ``tests/features/test_base.py`` computes norms in rational arithmetic.
    """
    rows, width = values.shape
    full = np.empty((width + 1, rows))
    full[:width], full[width] = values.T, constant
    readable = np.abs(full).max(axis=0) < _LARGEST  # False for NaN
    if bound is None:
        full = unit(full)
    else:
        full /= sqrt(bound * bound + constant * constant) * _SHRINK
    full[:, ~readable] = 0.0
    return full.T


def json_parameter(value: Any) -> Any:
    """Return a parameter in JSON types."""
    if isinstance(value, Features):
        return value.as_dict()
    if isinstance(value, (list, tuple, np.ndarray)):
        return [json_parameter(item) for item in value]
    if isinstance(value, Mapping):
        return [[str(name), json_parameter(item)] for name, item in value.items()]
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    raise InvalidInput(
        "features", type(value).__name__, "it cannot be saved; give its public name instead"
    )


def whole_number(value: Any, field: str, least: int, most: int) -> int:
    """Return a whole number within bounds."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise InvalidInput(field, value, f"give a whole number from {least} to {most}")
    if not least <= value <= most:
        raise InvalidInput(field, value, f"give a whole number from {least} to {most}")
    return int(value)


def is_real(value: Any) -> bool:
    """Return whether a value is a finite number."""
    return (
        isinstance(value, (int, float, np.integer, np.floating))
        and not isinstance(value, bool)
        and bool(np.isfinite(value))
    )
