"""Features of the columns of a table: numbers, categories, truth values, dates and text.

A :class:`Column` holds the public facts about one column and turns cells into numbers in [0, 1]; a
:class:`TableSchema` does so with a table, and knows its target. A model keeps its schema, so that
new rows are encoded as in training. Encoding is row by row and total: a row with a value that is
missing or cannot be read, and for which no public fill value is given, is NaN in every number.
:class:`EncodedColumns` makes features of such numbers. :class:`Columns` does both, so that what it
makes of a table is what ``expost.tune`` makes of it.

A number becomes itself on the scale from −1 to 1 and, with half that weight, the one of equally
wide bins in which it lies: the first is what a linear effect needs, the second what any other
effect needs. A number whose public bounds reach 1,000 or beyond is taken by its signed logarithm,
because amounts, counts and durations with such bounds are usually skewed. Other columns (one-hot
categories, indicators) stay as they are.

Tests: ``tests/features/test_columns.py``, ``tests/tuning/test_table_schema.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from math import isfinite, sqrt
from typing import Any, ClassVar

import numpy as np

from expost.arrays import Array, Floats, Integers
from expost.errors import InvalidInput
from expost.execution.calls import call_or_failure
from expost.features.feature_map import Cells, Features, is_real, number_block, whole_number
from expost.features.texts_and_pictures import HashedText
from expost.tables.cells import (
    Label,
    class_numbers,
    day_numbers,
    frame_of,
    label_indices,
    label_text,
    numbers,
    truth_values,
)

Bounds = tuple[tuple[float, float], ...]
INDICATOR = "indicator"
"""The fill of a column whose missing values get a number of their own."""

SKEWED = 1000.0
"""Numbers whose public bounds reach this are taken by their signed logarithm."""

BINS = 8
_BIN_WEIGHT = 0.5
# Saved models depend on every parameter. Unsigned: encoded rows are in [0, 1].
_TEXT = HashedText(1024, words=(1, 2), characters=(3, 5), limit=10_000, signed=False)


@dataclass(frozen=True)
class Column:
    """One column and the public facts about it."""

    kind: str = "number"
    low: float = 0.0
    high: float = 1.0
    categories: tuple[Label, ...] = ()
    fill: float | None = None
    indicator: bool = False
    name: str | None = None

    @classmethod
    def of(cls, kind: str, name: str, fact: Any = (0.0, 1.0), missing: Any = None) -> Column:
        """Return a column by its bounds, its categories or its first and last day.

        ``missing`` is a public value in the words of the column, or "indicator".
        """
        labels = tuple(fact) if kind == "category" else ()
        low, high = (0.0, 1.0) if kind in ("category", "text") else map(day_or_number, fact)
        filled = None if missing in (None, INDICATOR) else fill_number(kind, missing)
        return cls(kind, low, high, labels, filled, missing == INDICATOR, name)

    @property
    def width(self) -> int:
        """How many numbers the column becomes."""
        if self.kind == "text":
            return _TEXT.dimension
        return len(self.categories) + 1 if self.kind == "category" else 1 + self.indicator

    @property
    def names(self) -> list[str]:
        """What each of these numbers is called."""
        if self.kind == "text":
            return [f"{self.name}_hash{index}" for index in range(self.width)]
        if self.kind == "category":
            return [f"{self.name}={label}" for label in [*self.categories, "other"]]
        return [str(self.name), f"{self.name}_missing"][: self.width]

    def encode(self, cells: Array) -> Array:
        """Return the numbers of each cell, an array of shape (rows, :attr:`width`).

        Numbers are in [0, 1]. They are NaN where a cell cannot be used.
        """
        if self.kind == "category":
            values = label_indices(cells, self.categories)
            values = np.where(np.isnan(values), len(self.categories), values).astype(np.int64)
            return np.eye(self.width)[values]
        if self.kind == "text":
            return _TEXT.values([cells])
        read = {"number": numbers, "boolean": truth_values, "date": day_numbers}[self.kind](cells)
        return self.scale(read)

    def scale(self, values: Array) -> Array:
        """Clip and scale numbers, and replace missing ones where that is public knowledge."""
        missing = np.isnan(values)
        if self.fill is not None:
            values = np.where(missing, self.fill, values)
        scaled = (np.clip(values, self.low, self.high) - self.low) / (self.high - self.low)
        if not self.indicator:
            return np.asarray(scaled)[:, None]
        return np.column_stack([np.where(missing, 0.5, scaled), missing.astype(np.float64)])

    def as_dict(self) -> dict[str, Any]:
        """Return the facts that differ from the defaults, in JSON types."""
        facts = {name: value for name, value in vars(self).items() if value != vars(_PLAIN)[name]}
        return facts | {"low": self.low, "high": self.high}


_PLAIN = Column()


@dataclass(frozen=True)
class TableSchema:
    """Public facts about the columns and the target of a table."""

    columns: tuple[Column, ...]
    classes: int | tuple[Label, ...] | None = None
    target_bounds: tuple[float, float] | None = None
    integers: bool = False

    @classmethod
    def plain(
        cls,
        bounds: Bounds,
        width: int,
        classes: int | tuple[Label, ...] | None = None,
        target_bounds: tuple[float, float] | None = None,
        integers: bool = False,
    ) -> TableSchema:
        """Return the schema of an array of ``width`` numbers per row."""
        if len(bounds) not in (1, width):
            raise InvalidInput(
                "data.feature_bounds",
                f"{len(bounds)} pairs",
                f"give one pair for all features, or one pair for each of {width} features",
            )
        pairs = bounds * width if len(bounds) == 1 else bounds
        columns = tuple(Column(low=float(low), high=float(high)) for low, high in pairs)
        return cls(columns, classes, target_bounds, integers)

    @property
    def names(self) -> tuple[str, ...] | None:
        """Names of the features, in order; None for arrays."""
        names = tuple(column.name for column in self.columns if column.name is not None)
        return names if len(names) == len(self.columns) else None

    @property
    def width(self) -> int:
        """How many numbers a row becomes."""
        return sum(column.width for column in self.columns)

    @property
    def class_count(self) -> int | None:
        """Number of classes; None for a regression."""
        return len(self.classes) if isinstance(self.classes, tuple) else self.classes

    def encode(self, cells: Array | Sequence[Array]) -> Array:
        """Return rows as numbers, NaN in all of a row that cannot be used."""
        block = isinstance(cells, np.ndarray)
        plain = all(column.width == 1 and column.fill is None for column in self.columns)
        fast = block and (self.integers or cells.dtype.kind in "biuf")  # type: ignore[union-attr]
        if fast and plain:
            low, high = (np.array([vars(column)[end] for column in self.columns]) for end in _ENDS)
            values = numbers(cells)  # type: ignore[arg-type]
            if self.integers:
                return _usable(np.clip(np.round(values), np.ceil(low), np.floor(high)))
            np.clip(values, low, high, out=values)
            values -= low
            values /= high - low
            return _usable(values)
        given = list(cells.T) if block else list(cells)  # type: ignore[union-attr]
        parts = [column.encode(part) for column, part in zip(self.columns, given, strict=True)]
        return _usable(np.ascontiguousarray(np.concatenate(parts, axis=1)))

    def targets(self, cells: Array) -> Array:
        """Return class numbers, or targets scaled to [0, 1]; NaN where a target cannot be used."""
        if self.target_bounds is None:
            return class_numbers(cells, self.classes or 0)
        low, high = self.target_bounds
        return np.asarray((np.clip(numbers(cells), low, high) - low) / (high - low))

    def labels(self, indices: Array) -> Array:
        """Return the user's labels for class numbers."""
        if not isinstance(self.classes, tuple):
            return indices
        if len({type(label) for label in self.classes}) == 1:
            return np.array(self.classes)[indices]
        mixed = np.empty(len(self.classes), dtype=object)
        mixed[:] = self.classes
        return np.asarray(mixed[indices])

    def as_dict(self) -> dict[str, Any]:
        """Return a form that JSON can hold; :meth:`from_dict` reads it back."""
        runs: list[list[Any]] = []  # equal columns of an array are written once
        for column in self.columns:
            if runs and runs[-1][1] == column:
                runs[-1][0] += 1
            else:
                runs.append([1, column])
        return {
            "columns": [[count, column.as_dict()] for count, column in runs],
            "classes": list(self.classes) if isinstance(self.classes, tuple) else self.classes,
            "target_bounds": self.target_bounds,
            "integers": self.integers,
        }

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> TableSchema:
        """Return the schema that :meth:`as_dict` wrote."""
        columns: list[Column] = []
        for count, facts in record["columns"]:
            column = Column(**{**facts, "categories": tuple(facts.get("categories", ()))})
            columns += [column] * count
        classes, bounds = record["classes"], record["target_bounds"]
        return cls(
            tuple(columns),
            tuple(classes) if isinstance(classes, list) else classes,
            None if bounds is None else (bounds[0], bounds[1]),
            record["integers"],
        )


_ENDS = ("low", "high")


def _usable(rows: Array) -> Array:
    """Return the rows with NaN everywhere in those that have a NaN."""
    broken = np.isnan(rows).any(axis=1)
    if broken.any():
        rows[broken] = np.nan
    return rows


def fill_number(kind: str, fill: Any) -> float:
    """Return the public fill value of a column as the number that its cells become."""
    if kind == "boolean":
        return float(truth_values(np.array([fill], dtype=object))[0])
    return day_or_number(fill)


def day_or_number(value: Any) -> float:
    """Return a number as it is, and the ordinal number of a day or of an ISO date."""
    day: Any = date.fromisoformat(value) if isinstance(value, str) else value
    return float(day.toordinal() if hasattr(day, "toordinal") else day)


def numbers_among(columns: Sequence[Column]) -> list[tuple[int, float, float]]:
    """Return position and bounds of the numbers and dates among encoded columns.

    Days are not skewed, however large their numbers are: their bounds are 0 and 1.
    """
    listed, position = [], 0
    for column in columns:
        if column.kind == "number":
            listed.append((position, column.low, column.high))
        elif column.kind == "date":
            listed.append((position, 0.0, 1.0))
        position += column.width
    return listed


def signed_logarithm(values: Array) -> Floats:
    """Return sign(x)·log(1 + |x|), from correctly rounded operations only.

    1 + |x| = m·2^e with m in [√½, √2), and log m = 2·artanh(s) with s = (m − 1)/(m + 1) and
    |s| < 0.18, by ten terms of its series.
    """
    mantissa, exponent = np.frexp(1.0 + np.abs(values))
    small = mantissa < sqrt(0.5)
    mantissa, exponent = np.where(small, 2.0 * mantissa, mantissa), exponent - small
    ratio = (mantissa - 1.0) / (mantissa + 1.0)
    square, series = ratio * ratio, np.zeros_like(ratio)
    for term in range(19, -1, -2):
        series = series * square + 2.0 / term
    return np.asarray(np.sign(values) * (exponent * 0.6931471805599453 + series * ratio))


@dataclass(eq=False)
class EncodedColumns(Features):
    """Features of rows with numbers in [0, 1] and 0/1 columns.

    Parameters
    ----------
    size : int
        Number of columns of an encoded row.
    numbers : sequence of (position, low, high)
        The columns that are numbers, with the public bounds that 0 and 1 stand for.
    bins : int, default=8
        Bins of a number; 0: none.
    logarithm : bool, default=True
        Whether numbers with wide bounds are taken by their signed logarithm.
    constant, norm
        As in :class:`Features`.
    """

    kind: ClassVar[str] = "encoded-columns"
    size: int
    numbers: Any = ()
    bins: int = BINS
    logarithm: bool = True

    def _check(self) -> None:
        whole_number(self.size, "size", 1, 10**7)
        if self.bins != 0:
            whole_number(self.bins, "bins", 2, 1000)
        for entry in self.numbers:
            fits = isinstance(entry, (list, tuple)) and len(entry) == 3
            if not fits or not all(is_real(value) for value in entry) or not entry[1] < entry[2]:
                raise InvalidInput("numbers", entry, "give (position, low, high) with low < high")
            whole_number(int(entry[0]), "position", 0, self.size - 1)

    @property
    def columns(self) -> int:
        """Number of columns of a row."""
        return self.size

    @cached_property
    def _positions(self) -> Integers:
        return np.array([int(entry[0]) for entry in self.numbers], dtype=np.int64)

    @cached_property
    def _others(self) -> Integers:
        return np.setdiff1d(np.arange(self.size), self._positions)

    def _width(self, columns: int) -> int:
        return len(self._others) + len(self._positions) * (1 + self.bins)

    def _bound(self, columns: int) -> float:
        square = 1 + (_BIN_WEIGHT**2 if self.bins else 0)
        return sqrt(len(self._others) + square * len(self._positions))

    def _values(self, cells: Cells) -> Floats:
        rows = number_block(cells)
        parts = [np.clip(rows[:, self._others], 0.0, 1.0) + 0.0 * rows[:, self._others]]
        if len(self._positions):
            scaled = self._scaled(rows[:, self._positions])
            parts.append(scaled * 2.0 - 1.0)
            if self.bins:
                parts.append(self._bins(scaled))
        return np.concatenate(parts, axis=1)

    def _scaled(self, values: Floats) -> Floats:
        """Return numbers on a scale from 0 to 1, skewed ones by their logarithm; NaN stays."""
        values = np.clip(values, 0.0, 1.0)
        low, high = np.array([entry[1:] for entry in self.numbers], dtype=np.float64).T
        skewed = np.maximum(np.abs(low), np.abs(high)) >= SKEWED
        if self.logarithm and skewed.any():
            first, last = low[skewed], high[skewed]
            amounts = signed_logarithm(first + values[:, skewed] * (last - first))
            start, end = signed_logarithm(first), signed_logarithm(last)
            values[:, skewed] = np.clip((amounts - start) / (end - start), 0.0, 1.0)
        return values

    def _bins(self, scaled: Floats) -> Floats:
        """Return the bin of each number as 0 or half."""
        filled = np.where(np.isnan(scaled), 0.0, scaled)
        bin_index = np.minimum((filled * self.bins).astype(np.int64), self.bins - 1)
        one_hot = np.zeros((*bin_index.shape, self.bins))
        np.put_along_axis(one_hot, bin_index[:, :, None], _BIN_WEIGHT, axis=2)
        return one_hot.reshape(len(one_hot), -1)

    def _names(self, names: Sequence[str]) -> list[str]:
        numbers = [names[position] for position in self._positions]
        bins = [f"{name}_bin{bin_}" for name in numbers for bin_ in range(self.bins)]
        return [*(names[position] for position in self._others), *numbers, *bins]

    def _words(self) -> str:
        bins = f" and in {self.bins} bins" if self.bins else ""
        count = len(self._positions)
        return f"categories one-hot, {count} number{'s'[: count != 1]} scaled to ±1{bins}"


@dataclass(eq=False)
class Columns(Features):
    """Features of the columns of a table, by public facts in the words of ``expost.tune``.

    Parameters
    ----------
    feature_bounds : mapping of str to (low, high), optional
        Columns of numbers, with public bounds. Numbers outside are clipped.
    categories : mapping of str to sequence, optional
        Columns of categories. Every other value is "other".
    booleans, texts : sequence of str, optional
        Columns of truth values, and of free text, which becomes hashed n-grams.
    dates : mapping of str to (first, last), optional
        Columns of ISO dates, with the first and the last day.
    missing : mapping of str to value, optional
        What replaces a missing number, date or truth value; "indicator": a further feature says
        that it is missing. A row with a gap in another such column cannot be read.
    names : sequence of str, optional
        All columns in order, for rows that are no data frame. By default those above, in order.
    bins, logarithm, constant, norm
        As in :class:`EncodedColumns`.

    Examples
    --------
    >>> from expost.features import Columns
    >>> features = Columns({"age": (0, 100)}, {"colour": ["red", "green"]}, bins=0)
    >>> features.transform([[50, "red"], [None, "red"]]).round(2)
    array([[0.9 , 0.  , 0.  , 0.  , 0.43],
           [0.  , 0.  , 0.  , 0.  , 0.  ]])
    """

    kind: ClassVar[str] = "columns"
    feature_bounds: Any = ()
    categories: Any = ()
    booleans: Any = ()
    dates: Any = ()
    texts: Any = ()
    missing: Any = ()
    names: Any = None
    bins: int = BINS
    logarithm: bool = True

    def _check(self) -> None:
        _ = self._encoded
        known = [column.name for column in self._used]
        order = self._order
        if not known or len(set(order)) < len(order) or not {*known} <= {*order}:
            raise InvalidInput("names", order, "name each column once; describe one or more")

    @cached_property
    def _used(self) -> list[Column]:
        """The columns that are described."""
        fills = _mapping(self.missing, "missing")
        kinds = (
            ("number", "feature_bounds"),
            ("category", "categories"),
            ("boolean", "booleans"),
            ("date", "dates"),
            ("text", "texts"),
        )
        columns = []
        for kind, key in kinds:
            facts = getattr(self, key)
            if kind in ("boolean", "text"):
                facts = [(name, (0, 1)) for name in facts]
            for name, fact in _mapping(facts, key).items():
                column = call_or_failure(Column.of, kind, name, fact, fills.pop(name, None))
                if not isinstance(column, Column) or not _is_valid(column):
                    raise InvalidInput(key, name, "give public facts, as for expost.tune")
                columns.append(column)
        if fills:
            raise InvalidInput("missing", next(iter(fills)), "there is no such column")
        return columns

    @cached_property
    def _order(self) -> list[str]:
        """The names of all columns of a row."""
        used = [str(column.name) for column in self._used]
        return used if self.names is None else [str(name) for name in self.names]

    @cached_property
    def _encoded(self) -> EncodedColumns:
        """The features of the encoded columns."""
        width = sum(column.width for column in self._used)
        numeric = tuple(numbers_among(self._used))
        return EncodedColumns(max(1, width), numeric, self.bins, self.logarithm)

    @property
    def columns(self) -> int:
        """Number of columns of a row."""
        return len(self._order)

    def _width(self, columns: int) -> int:
        return self._encoded._width(self._encoded.size)

    def _bound(self, columns: int) -> float:
        # Of a column: a number and its bin, or a value and its indicator; the others are 1.
        return sqrt((1 + _BIN_WEIGHT**2) * len(self._used))

    def _read(self, X: Any) -> Cells:
        frame = frame_of(X)
        if frame is None:
            return super()._read(X)
        absent = [name for name in self._order if name not in frame.names]
        if absent:
            raise InvalidInput("X", "a table", f"add the column {absent[0]!r}")
        return [frame.column(frame.names.index(name)) for name in self._order]

    def _values(self, cells: Cells) -> Floats:
        parts = []
        for column in self._used:
            index = self._order.index(str(column.name))
            cell = cells[:, index] if isinstance(cells, np.ndarray) else cells[index]
            parts.append(column.encode(cell))
        return self._encoded._values(np.concatenate(parts, axis=1))

    def _names(self, names: Sequence[str]) -> list[str]:
        return self._encoded._names([name for column in self._used for name in column.names])

    def _words(self) -> str:
        return f"{len(self._used)} columns: {self._encoded._words()}"


def _mapping(facts: Any, key: str) -> dict[str, Any]:
    """Return facts by column name, given as a mapping or as pairs."""
    named = call_or_failure(dict, facts)
    if not isinstance(named, dict) or not all(isinstance(name, str) for name in named):
        raise InvalidInput(key, type(facts).__name__, "give public facts by column name")
    return named


def _is_valid(column: Column) -> bool:
    """Return whether the facts about a column can hold."""
    texts = [label_text(label) for label in column.categories]
    distinct = None not in texts and len(set(texts)) == len(texts)
    finite = column.fill is None or isfinite(column.fill)
    ends = isfinite(column.low) and 0 < column.high - column.low < float("inf")
    return finite and ends and distinct and bool(texts) == (column.kind == "category")
