"""What is publicly known about the columns of a table, and how rows become features.

A :class:`TableSchema` is made of public facts only: names, bounds, categories, dates, fill values
and classes. A model keeps it, so that new rows are encoded as in training.

Encoding is row by row and total. A row with a value that is missing or cannot be read, and for
which no public fill value is given, is unusable: all its numbers are NaN. No row changes the
encoding of another one.

**Features.** ``model.features``, and each entry of ``search.features``, is ``"auto"``, ``"plain"``
(numbers scaled to ±1 and nothing else), features that take encoded rows, or their record
(:func:`expost.features.features_from_dict`); a job may name functions in it, as it may name the
code of its model. With "auto", pictures (``data.shape``, or rows that are arrays of that shape)
become oriented gradients; columns become one-hot categories and numbers on a scale from −1 to 1,
with bins, and with a logarithm if their bounds are wide; arrays of many numbers stay as they are,
between 0 and 1.

Tests: ``tests/tuning/test_table_schema.py``, ``tests/tuning/test_progressive_jobs.py``.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from expost.arrays import Array, Floats
from expost.errors import InvalidInput
from expost.features import EncodedColumns, Features, OrientedGradients, features_from_dict
from expost.features.choice import function_names
from expost.features.columns import BINS, Column, numbers_among
from expost.features.pictures import picture_shape
from expost.selection.held_out import SHARES
from expost.tables.cells import Label, class_numbers, numbers
from expost.training.lattice_rows import rounded_rows
from expost.tuning.request.factories import FeatureFunction

Bounds = tuple[tuple[float, float], ...]
GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # of SplitMix64


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
        return "; did you mean " + " or ".join(repr(folded[name]) for name in close) + "?"
    if any("\n" in name for name in names) or not names:
        return ""
    more = ", …" if len(names) > 20 else ""
    return f"; {subject} the columns " + ", ".join(repr(name) for name in names[:20]) + more


Choice = str | Mapping[str, Any] | Features
"""What a job says about features: "auto", "plain", a record, or in Python the features."""

CHOICES = ("auto", "plain")
_WIDE = 200  # arrays with at least so many numbers are usually sparse, or pixels


def is_choice(value: object) -> bool:
    """Return whether a value is what a job may say about features."""
    return isinstance(value, (Mapping, Features)) or (isinstance(value, str) and value in CHOICES)


def public_choice(choice: Choice | None) -> Any:
    """Return a choice as a certificate states it: its name, or its record."""
    return choice.as_dict() if isinstance(choice, Features) else choice


def features_for(
    wanted: Choice, schema: TableSchema, shape: tuple[int, ...] | None, folder: Path | None = None
) -> Features | None:
    """Return the features of encoded rows; None for tokens, which have none."""
    if schema.integers:
        return None
    regression = schema.class_count is None
    norm = "bound" if regression else "row"
    if not isinstance(wanted, str):
        features = wanted if isinstance(wanted, Features) else from_record(wanted, folder or Path())
        if (features.columns or schema.width) != schema.width:
            raise InvalidInput(
                "features",
                features.kind,
                f"they take rows of {features.columns} values; encoded rows have {schema.width}",
            )
        if not features.transform_cells(np.full((1, schema.width), 0.5)).any():  # made up
            raise InvalidInput(
                "features",
                features.describe(),
                f"they cannot read a row of {schema.width} numbers, each 0.5, which is what "
                "encoded rows look like",
            )
        return features
    if wanted == "auto" and shape is not None:
        sides = picture_sides(shape)
        if sides is not None and prod(sides) == schema.width:
            return OrientedGradients(sides, norm=norm)
    named = schema.names is not None
    bins = BINS if wanted == "auto" and named and not regression else 0
    numbers = [] if not named and schema.width >= _WIDE else numbers_among(schema.columns)
    logarithm = wanted == "auto" and named and not regression
    return EncodedColumns(schema.width, tuple(numbers), bins, logarithm, norm=norm)


def picture_sides(shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return height, width and channels of a picture, or None if a shape is no picture's."""
    if len(shape) == 3 and shape[0] <= 4 < min(shape[1:]):
        return None if shape[0] > 1 else tuple(shape[1:])  # channels first: flat rows differ
    try:
        sides = picture_shape(tuple(shape))
    except InvalidInput:
        return None
    return sides if min(sides[:2]) >= 8 else None


def from_record(record: Mapping[str, Any], folder: Path) -> Features:
    """Return the features of a record whose functions the user trusts; their code is loaded."""
    functions = {name: FeatureFunction(name, folder) for name in function_names(record)}
    return features_from_dict(record, functions)


class FeatureRows:
    """The features of encoded rows, rounded as in training.

    They are computed once per array and forgotten together with it.

    A result refers to what made it, so nothing that is private may stay here after a job.
    """

    def __init__(self, features: Features) -> None:
        self.features = features
        self._known: list[tuple[weakref.ref[Array], Floats]] = []

    def __reduce__(self) -> tuple[Any, ...]:
        """Send the map to a worker, not what it has computed."""
        return FeatureRows, (self.features,)

    def checkpoint_identity(self) -> Features:
        """Return the map, which is all that distinguishes two of these."""
        return self.features

    def of(self, X: Array) -> Floats:
        """Return the features of encoded rows."""
        for known, rows in self._known:
            if known() is X:
                return rows
        cells = np.asarray(X)
        flat = cells.reshape(len(X), prod(cells.shape[1:]))
        rows = rounded_rows(self.features.transform_cells(flat))
        self._known = [*self._known[-1:], (weakref.ref(X, self._forget), rows)]
        return rows

    def _forget(self, gone: weakref.ref[Array]) -> None:
        """Forget the features of an array that is no more."""
        self._known = [pair for pair in self._known if pair[0] is not gone]

    def __call__(self, data: Any) -> Any:
        """Return features and targets of the training rows; of a large table, its parts."""
        parts = getattr(data, "parts", None)
        if parts is not None:
            return parts.training(self.features)
        return with_shares(data, self.of(data["X"]))


def with_shares(data: Any, rows: Array) -> Any:
    """Return training rows with their targets and, if they belong to persons, their shares."""
    targets, shares = np.asarray(data["y"], dtype=np.float64), data.get("shares")
    return (rows, targets) if shares is None else (rows, targets, shares / SHARES)


def mixed_words(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return the words mixed as by SplitMix64: they look random, the same everywhere."""
    words = words + GOLDEN
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        words = (words ^ (words >> np.uint64(shift))) * np.uint64(factor)
    return np.asarray(words ^ (words >> np.uint64(31)))
