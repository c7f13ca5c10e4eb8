"""What is publicly known about the columns of a table, and how rows become numbers.

A :class:`TableSchema` is made of public facts only: names, bounds, categories, dates, fill values
and classes. A model keeps it, so that new rows are encoded as in training.

Encoding is row by row and total. A row with a value that is missing or cannot be read, and for
which no public fill value is given, is unusable: all its numbers are NaN. No row changes the
encoding of another one.

Tests: ``tests/tuning/test_table_schema.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from difflib import get_close_matches
from itertools import pairwise
from typing import Any

import numpy as np

from expost.arrays import Array
from expost.errors import InvalidInput
from expost.features.text import HashedText
from expost.tables.cells import (
    Label,
    class_numbers,
    day_numbers,
    label_indices,
    numbers,
    truth_values,
)

Bounds = tuple[tuple[float, float], ...]

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

    @property
    def width(self) -> int:
        """How many numbers the column becomes."""
        if self.kind == "text":
            return _TEXT.dimension
        return len(self.categories) + 1 if self.kind == "category" else 1 + self.indicator

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


def find_column(wanted: str, names: Sequence[str], field: str, source: str) -> int:
    """Return the position of a column by its name."""
    if wanted in names:
        return list(names).index(wanted)
    raise InvalidInput(field, wanted, f"{source} has no such column{near(wanted, names)}")


def near(wanted: str, names: Sequence[str], subject: str = "it has") -> str:
    """Return "; did you mean …?" with similar names, or the names there are."""
    folded = {name.lower(): name for name in names}
    close = get_close_matches(wanted.lower(), list(folded), n=3)
    if close:
        return "; did you mean " + " or ".join(repr(folded[each]) for each in close) + "?"
    if any("\n" in name for name in names) or not names:
        return ""
    more = ", …" if len(names) > 20 else ""
    return f"; {subject} the columns " + ", ".join(repr(name) for name in names[:20]) + more


def ordinal(text: str) -> int:
    """Return the ordinal number of an ISO date."""
    return date.fromisoformat(text).toordinal()


def ascending(values: Sequence[float]) -> bool:
    """Return whether numbers ascend strictly."""
    return all(a < b for a, b in pairwise(values))
