"""Features of several parts; features chosen by public facts, or described by a file.

Tests: ``tests/features/test_columns.py``, ``tests/features/test_choice.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod, sqrt
from typing import Any, ClassVar

import numpy as np

from expost.arrays import Floats
from expost.errors import InvalidInput
from expost.features.columns import (
    Bins,
    Booleans,
    Dates,
    EncodedColumns,
    Numbers,
    OneHot,
    SignedLogarithm,
)
from expost.features.feature_map import Cells, Features, column_list
from expost.features.functions import Encoder, Function, RandomFourier
from expost.features.pictures import OrientedGradients, picture_shape
from expost.features.text import HashedText
from expost.tables.cells import frame_of


@dataclass(eq=False)
class Columns(Features):
    """Features of different columns side by side, scaled together.

    Parameters
    ----------
    parts : sequence of (column, Features)
        Each part is a column, or a sequence of columns, and the features of it. A column is a name
        (for data frames) or a position. The parts' own ``constant`` and ``norm`` are not used.
    names : sequence of str, optional
        The names of all columns in order, if the parts use names and rows may come as arrays.
    constant, norm
        As in :class:`Features`.

    Examples
    --------
    >>> from expost.features import Columns, Numbers, OneHot
    >>> features = Columns([(0, Numbers((0, 100))), (1, OneHot(["red", "green"]))])
    >>> features.transform([[50, "red"], [None, "red"]]).round(2)
    array([[ 0.  ,  0.92,  0.  ,  0.  ,  0.39],
           [ 0.  ,  0.  ,  0.  ,  0.  ,  0.  ]])
    """

    kind: ClassVar[str] = "columns"
    parts: Any
    names: Any = None

    def _check(self) -> None:
        if not isinstance(self.parts, (list, tuple)) or not self.parts:
            raise InvalidInput("parts", type(self.parts).__name__, "give (column, features) pairs")
        for part in self.parts:
            if not (isinstance(part, (list, tuple)) and len(part) == 2) or not isinstance(
                part[1], Features
            ):
                raise InvalidInput("parts", "an entry", "give (column, features) pairs")
        for positions, part in self._located:
            if part.columns not in (None, len(positions)):
                raise InvalidInput(
                    "parts", f"{len(positions)} columns", f"the features take {part.columns}"
                )

    @cached_property
    def _located(self) -> list[tuple[list[int], Features]]:
        """Positions of the columns of each part."""
        known = {name: index for index, name in enumerate(self._columns)}
        located = []
        for wanted, part in self.parts:
            several = list(wanted) if isinstance(wanted, (list, tuple)) else [wanted]
            if not several or not all(column in known for column in several):
                raise InvalidInput("parts", wanted, "give names that `names` lists, or positions")
            located.append(([known[column] for column in several], part))
        return located

    @cached_property
    def _columns(self) -> list[Any]:
        """Names of all columns, or positions."""
        if self.names is not None:
            return [str(name) for name in self.names]
        used: list[Any] = []
        for wanted, _ in self.parts:
            used += list(wanted) if isinstance(wanted, (list, tuple)) else [wanted]
        if all(isinstance(column, (int, np.integer)) for column in used):
            return list(range(max(used, default=-1) + 1))
        return list(dict.fromkeys(used))

    @property
    def columns(self) -> int:
        """Number of columns of a row."""
        return len(self._columns)

    def _width(self, columns: int) -> int:
        return sum(part._width(len(positions)) for positions, part in self._located)

    def _bound(self, columns: int) -> float:
        return sqrt(sum(part._bound(len(positions)) ** 2 for positions, part in self._located))

    def _read(self, X: Any) -> Cells:
        frame = frame_of(X)
        if frame is None or isinstance(self._columns[0], int):
            return super()._read(X)
        absent = [name for name in self._columns if name not in frame.names]
        if absent:
            raise InvalidInput("X", "a table", f"add the column {absent[0]!r}")
        return [frame.column(frame.names.index(name)) for name in self._columns]

    def _values(self, cells: Cells) -> Floats:
        columns = column_list(cells)
        return np.concatenate(
            [part._values([columns[index] for index in at]) for at, part in self._located], axis=1
        )

    def _names(self, names: Sequence[str]) -> list[str]:
        if not isinstance(self._columns[0], int):
            names = self._columns
        return [name for at, part in self._located for name in part._names([names[i] for i in at])]

    def _words(self) -> str:
        kinds = list(dict.fromkeys(part._words() for _, part in self.parts))
        return f"{self.columns} columns: " + ", ".join(kinds)


@dataclass(eq=False)
class Chain(Features):
    """Features of features: each step gets the rows that the step before it returned.

    Parameters
    ----------
    steps : sequence of Features
        The steps in order. Rows between steps are scaled and have a constant column. The scaling of
        the last step is that of the result.

    Examples
    --------
    >>> from expost.features import Chain, OrientedGradients, RandomFourier
    >>> Chain([OrientedGradients("28x28"), RandomFourier(2000, 2.0, seed=1)]).width()
    2001
    """

    kind: ClassVar[str] = "chain"
    steps: Any

    def _check(self) -> None:
        steps = self.steps
        if (
            not isinstance(steps, (list, tuple))
            or not steps
            or not all(isinstance(step, Features) for step in steps)
        ):
            raise InvalidInput("steps", type(steps).__name__, "give a list of features")
        if steps[0].columns is not None:
            self.width()

    @property
    def columns(self) -> int | None:
        """Number of values of a row of the first step."""
        return self.steps[0].columns  # type: ignore[no-any-return]

    def _width(self, columns: int) -> int:
        for step in self.steps:
            if columns != (step.columns or columns):
                raise InvalidInput("steps", step.kind, f"it takes rows of {step.columns} values")
            columns = step._width(columns) + 1
        return columns - 1

    def _bound(self, columns: int) -> float:
        for step in self.steps[:-1]:
            columns = step._width(columns) + 1
        return self.steps[-1]._bound(columns)  # type: ignore[no-any-return]

    def _read(self, X: Any) -> Cells:
        return self.steps[0]._read(X)  # type: ignore[no-any-return]

    def _values(self, cells: Cells) -> Floats:
        for step in self.steps[:-1]:
            rows = step.transform_cells(cells)
            rows[rows[:, -1] == 0] = float("nan")  # a row that cannot be read stays so
            cells = rows
        return self.steps[-1]._values(cells)  # type: ignore[no-any-return]

    def _names(self, names: Sequence[str]) -> list[str]:
        for step in self.steps:
            names = [*step._names(names), "constant"]
        return list(names[:-1])

    def _words(self) -> str:
        return ", then ".join(step._words() for step in self.steps)


_KINDS: dict[str, type[Features]] = {
    features.kind: features
    for features in (
        Bins,
        Booleans,
        Chain,
        Columns,
        Dates,
        EncodedColumns,
        Encoder,
        Function,
        HashedText,
        Numbers,
        OneHot,
        OrientedGradients,
        RandomFourier,
        SignedLogarithm,
    )
}


def features_from_dict(
    record: Mapping[str, Any], functions: Mapping[str, Any] | None = None
) -> Features:
    """Return the features that ``as_dict`` described. Nothing is imported and no code runs.

    Parameters
    ----------
    record : mapping
        What :meth:`Features.as_dict` returned, perhaps read from JSON.
    functions : mapping of str to callable, optional
        The functions and encoders that the features use, by the names in the record. A record
        holds no code, and a name in it is never imported.

    Returns
    -------
    Features
        Equal features.

    Raises
    ------
    InvalidInput
        If it does not describe features that this version knows, or a function is not given.
    """
    kind = record.get("features") if isinstance(record, Mapping) else None
    if not isinstance(kind, str) or kind not in _KINDS:
        raise InvalidInput("features", kind, "this version knows " + ", ".join(_KINDS))
    known = functions or {}
    absent = sorted(function_names(record) - set(known))
    if absent:
        pairs = ", ".join(f"{name!r}: …" for name in absent)
        raise InvalidInput(
            "functions",
            sorted(known) or None,
            f"the features use {', '.join(map(repr, absent))}, and a file holds no code: pass "
            f"functions={{{pairs}}}",
        )
    parameters = {
        name: _given(value, functions) for name, value in record.items() if name != "features"
    }
    if "function" in parameters:
        parameters["function"] = known[str(parameters["function"])]
    try:
        return _KINDS[kind](**parameters)
    except TypeError:
        raise InvalidInput("features", "a record", "it has other parameters") from None


def function_names(record: Any) -> set[str]:
    """Return the names of the functions and encoders in a record of features, at any depth."""
    if isinstance(record, Mapping):
        inner = [function_names(value) for name, value in record.items() if name != "function"]
        own = {str(record["function"])} if "function" in record else set()
        return own.union(*inner)
    if isinstance(record, (list, tuple)):
        return set().union(*map(function_names, record))
    return set()


def _given(value: Any, functions: Mapping[str, Any] | None) -> Any:
    """Return a parameter from its JSON form."""
    if isinstance(value, Mapping):
        return features_from_dict(value, functions)
    if isinstance(value, (list, tuple)):
        return tuple(_given(item, functions) for item in value)
    return value


def auto_features(
    *,
    shape: Any = None,
    columns: Sequence[Any] | None = None,
    bounds: Any = None,
    bins: Mapping[Any, int] | None = None,
    logarithms: Sequence[Any] = (),
    regression: bool = False,
) -> Features:
    """Choose features by public facts: never by the rows.

    Parameters
    ----------
    shape : tuple of int, or str, optional
        Shape of a picture: oriented gradients.
    columns : sequence, optional
        Facts about each column: objects with the attributes ``kind`` ("number", "category",
        "boolean", "date" or "text"), ``low``, ``high``, ``categories``, ``fill``, ``indicator`` and
        ``name`` (or None). Categories become one-hot, text becomes hashed n-grams, and the others
        are scaled to ±1.
    bounds : pair, or sequence of pairs, optional
        Public bounds of plain numbers: scaled to ±1.
    bins : mapping of column to int, optional
        Columns of numbers, by name or position, to cut into so many bins.
    logarithms : sequence of column, optional
        Columns of skewed numbers, by name or position, whose signed logarithm is taken.
    regression : bool
        Whether the target is a number. Then rows are divided by a public bound instead of their
        own norm.

    Returns
    -------
    Features
        The features.

    Raises
    ------
    InvalidInput
        If there are no facts to choose by.
    """
    norm = "bound" if regression else "row"
    if shape is not None:
        # Arrays of grey pictures for torch have one channel in front.
        grey = isinstance(shape, (list, tuple)) and len(shape) == 3 and shape[0] == 1
        sides = picture_shape(shape[1:] if grey else shape)
        if columns is not None and len(columns) != prod(sides):
            raise InvalidInput("shape", shape, f"a row has {len(columns)} values")
        return OrientedGradients(sides, norm=norm)
    if columns is None:
        if bounds is None:
            raise InvalidInput("features", "auto", "give the shape, the columns or their bounds")
        return Numbers(bounds, norm=norm)
    bins, known = dict(bins or {}), {_key(column, at) for at, column in enumerate(columns)}
    for wanted in [*bins, *logarithms]:
        if wanted not in known and not (isinstance(wanted, int) and wanted < len(columns)):
            raise InvalidInput("columns", wanted, "there is no such column")
    plain = not bins and not logarithms and all(_is_plain(column) for column in columns)
    if plain:
        pairs = tuple((float(column.low), float(column.high)) for column in columns)
        return Numbers(pairs[0] if len(set(pairs)) == 1 else pairs, norm=norm)
    parts = []
    for at, column in enumerate(columns):
        key = _key(column, at)
        count = bins.get(key, bins.get(at))
        parts.append((key, _of_column(column, count, key in logarithms or at in logarithms)))
    return Columns(tuple(parts), norm=norm)


def _key(column: Any, position: int) -> Any:
    """Return the name of a column, or its position."""
    return position if getattr(column, "name", None) is None else column.name


def _is_plain(column: Any) -> bool:
    """Return whether a column is numbers of an array, without fill values."""
    return (
        column.kind == "number"
        and column.name is None
        and column.fill is None
        and not column.indicator
    )


def _of_column(column: Any, bins: int | None, logarithm: bool) -> Features:
    """Return the features of one column."""
    if (bins is not None or logarithm) and column.kind != "number":
        raise InvalidInput("columns", column.name, "only numbers have bins or a logarithm")
    if column.kind == "category":
        return OneHot(tuple(column.categories))
    if column.kind == "text":
        return HashedText()
    bounds = (float(column.low), float(column.high))
    if bins is not None:
        return Bins(bounds, bins)
    missing = "indicator" if column.indicator else column.fill
    if column.kind == "boolean":
        return Booleans(missing=missing)
    if column.kind == "date":
        return Dates(bounds, missing)
    return SignedLogarithm(bounds, missing) if logarithm else Numbers(bounds, missing)
