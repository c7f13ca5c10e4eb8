"""Features of the columns of a table: numbers, bins, logarithms, categories, truth values, dates.

Each class maps every column that it gets in the same way, from public facts. ``Columns`` joins
different ones. A cell of a column has features of norm at most 1, whatever the kind, so that a row
of d columns has a norm of at most √d before it is scaled.

Tests: ``tests/features/test_columns.py``.

Features of rows that a table schema has encoded already: numbers in [0, 1] and 0/1 columns.

A number becomes itself on the scale from −1 to 1 and, with half that weight, the one of equally
wide bins in which it lies: the first is what a linear effect needs, the second what any other
effect needs. A number whose public bounds reach 1,000 or beyond is taken by its signed logarithm,
because amounts, counts and durations with such bounds are usually skewed. Other columns (one-hot
categories, indicators) stay as they are.

Tests: ``tests/features/test_choice.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from itertools import pairwise
from math import sqrt
from typing import Any, ClassVar

import numpy as np

from expost.arrays import Array, Floats, Integers
from expost.errors import InvalidInput
from expost.features.feature_map import (
    Cells,
    Features,
    column_list,
    is_real,
    number_block,
    whole_number,
)
from expost.tables.cells import day_numbers, label_indices, label_text, truth_values

_MISSING = "missing"


@dataclass(eq=False)
class PerColumn(Features):
    """Features that map every column in the same way."""

    def _width(self, columns: int) -> int:
        return columns * self._cell_width

    def _bound(self, columns: int) -> float:
        return sqrt(columns)

    @property
    def _cell_width(self) -> int:
        """Number of features of a cell."""
        return 1

    def _names(self, names: Sequence[str]) -> list[str]:
        return [f"{name}{suffix}" for name in names for suffix in self._suffixes()]

    def _suffixes(self) -> list[str]:
        """Return what is appended to the name of a column, for each feature of a cell."""
        return [""]


@dataclass(eq=False)
class Numbers(PerColumn):
    """Numbers scaled to [−1, 1] by public bounds.

    Parameters
    ----------
    bounds : pair (low, high), or sequence of pairs
        Public bounds: one pair for all columns, or one per column. Numbers outside are clipped.
    missing : float or "indicator", optional
        Public number that replaces a missing one; or "indicator": a missing number becomes the
        middle, and a further feature says so. By default a row with a missing number cannot be
        read.
    constant, norm
        As in :class:`Features`.
    """

    kind: ClassVar[str] = "numbers"
    bounds: Any
    missing: Any = None

    def _check(self) -> None:
        _ = self._ends
        if not (self.missing in (None, "indicator") or is_real(self.missing)):
            raise InvalidInput("missing", self.missing, 'give a public number or "indicator"')

    @cached_property
    def _ends(self) -> Floats:
        """Lows and highs, of shape (2, 1) or (2, columns)."""
        return _pairs(self.bounds)

    @property
    def columns(self) -> int | None:
        """Number of columns; None if one pair of bounds is for all."""
        return self._ends.shape[1] if self._ends.shape[1] > 1 else None

    @property
    def _cell_width(self) -> int:
        return 2 if self.missing == "indicator" else 1

    def _suffixes(self) -> list[str]:
        return ["", f"_{_MISSING}"][: self._cell_width]

    def _values(self, cells: Cells) -> Floats:
        return self._marked(number_block(cells))

    def _marked(self, values: Floats) -> Floats:
        """Fill gaps, scale, and append indicators where they are wanted."""
        gaps = np.isnan(values)
        if is_real(self.missing):
            values = np.where(gaps, float(self.missing), values)
        scaled = self._scaled(np.clip(values, *self._ends))
        if self.missing != "indicator":
            return scaled
        return _joined(np.where(gaps, 0.0, scaled), gaps.astype(np.float64))

    def _scaled(self, values: Floats) -> Floats:
        """Return clipped numbers, scaled to [−1, 1]."""
        low, high = self._ends
        return np.asarray(np.clip((values - low) / (high - low) * 2.0 - 1.0, -1.0, 1.0))

    def _words(self) -> str:
        return "numbers scaled to ±1 by public bounds"


@dataclass(eq=False)
class SignedLogarithm(Numbers):
    """Skewed numbers: sign(x)·log(1 + abs(x)/unit), scaled to [−1, 1] by public bounds of x.

    Parameters
    ----------
    bounds, missing
        As in :class:`Numbers`.
    unit : float, default=1.0
        Public size below which numbers are treated alike.
    constant, norm
        As in :class:`Features`.
    """

    kind: ClassVar[str] = "signed_logarithm"
    unit: float = 1.0

    def _check(self) -> None:
        super()._check()
        if not (is_real(self.unit) and 2.0**-500 < self.unit < 2.0**500):
            raise InvalidInput("unit", self.unit, "give a positive number")

    def _scaled(self, values: Floats) -> Floats:
        low, high = (signed_logarithm(end / self.unit) for end in self._ends)
        logarithms = signed_logarithm(values / self.unit)
        span = np.where(high > low, high - low, 1.0)
        return np.asarray(np.clip((logarithms - low) / span * 2.0 - 1.0, -1.0, 1.0))

    def _words(self) -> str:
        return f"signed logarithms of numbers (unit {self.unit:g}), scaled to ±1 by public bounds"


@dataclass(eq=False)
class Bins(PerColumn):
    """Numbers cut into bins with public edges: one feature per bin, 1 for the bin of the number.

    Parameters
    ----------
    bounds : pair (low, high), or sequence of pairs, optional
        Public bounds: one pair for all columns, or one per column. Numbers outside are in the
        first and the last bin.
    count : int, default=10
        Number of bins, of equal width within the bounds.
    edges : sequence of float, optional
        Ascending public edges between the bins, for all columns, instead of ``bounds`` and
        ``count``.
    constant, norm
        As in :class:`Features`.

    Notes
    -----
    A number that is missing or cannot be read is in no bin: its features are 0.
    """

    kind: ClassVar[str] = "bins"
    bounds: Any = None
    count: int = 10
    edges: Any = None

    def _check(self) -> None:
        whole_number(self.count, "count", 2, 10_000)
        if (self.bounds is None) == (self.edges is None):
            raise InvalidInput("edges", self.edges, "give bounds or edges, one of them")
        if self.edges is not None and not (
            isinstance(self.edges, (list, tuple, np.ndarray))
            and len(self.edges)
            and all(map(is_real, self.edges))
            and all(low < high for low, high in pairwise(self.edges))
        ):
            raise InvalidInput("edges", self.edges, "give ascending finite numbers")
        _ = self._ends

    @cached_property
    def _ends(self) -> Floats:
        return _pairs((0.0, 1.0) if self.bounds is None else self.bounds)

    @property
    def columns(self) -> int | None:
        """Number of columns; None if the same bins are for all."""
        return self._ends.shape[1] if self._ends.shape[1] > 1 else None

    @property
    def _cell_width(self) -> int:
        return self.count if self.edges is None else len(self.edges) + 1

    def _suffixes(self) -> list[str]:
        return [f"_bin{index}" for index in range(self._cell_width)]

    def _values(self, cells: Cells) -> Floats:
        values = number_block(cells)
        if self.edges is None:
            low, high = self._ends
            shares = (np.clip(values, low, high) - low) / (high - low)
            bins = np.minimum(np.floor(shares * self.count), self.count - 1.0)
        else:
            bins = np.searchsorted(np.array(self.edges, float), values, side="right").astype(float)
        bins = np.where(np.isnan(values), -1.0, bins)
        width = self._cell_width
        marks = (bins[:, :, None] == np.arange(width)).astype(np.float64)
        return np.asarray(marks.reshape(len(bins), -1))

    def _words(self) -> str:
        return f"numbers in {self._cell_width} bins with public edges"


@dataclass(eq=False)
class OneHot(PerColumn):
    """Categories: one feature per public category, and one for every other value.

    Parameters
    ----------
    categories : sequence of str, int, float or bool
        The public categories, for all columns. 1, "1" and 1.0 are the same category.
    constant, norm
        As in :class:`Features`.
    """

    kind: ClassVar[str] = "one_hot"
    categories: Any

    def _check(self) -> None:
        given = self.categories
        known = isinstance(given, (list, tuple, np.ndarray)) and len(given) > 0
        texts = [label_text(label) for label in given] if known else []
        if not texts or None in texts or len(set(texts)) < len(texts):
            raise InvalidInput("categories", type(given).__name__, "give different public labels")

    @property
    def _cell_width(self) -> int:
        return len(self.categories) + 1

    def _suffixes(self) -> list[str]:
        return [f"={label}" for label in [*self.categories, "other"]]

    def _values(self, cells: Cells) -> Floats:
        other = float(len(self.categories))
        indices = [label_indices(column, list(self.categories)) for column in column_list(cells)]
        positions = np.column_stack([np.where(np.isnan(part), other, part) for part in indices])
        return np.eye(self._cell_width)[positions.astype(np.int64)].reshape(len(positions), -1)

    def _words(self) -> str:
        return f"one-hot categories ({len(self.categories)} and other)"


@dataclass(eq=False)
class Booleans(Numbers):
    """Truth values: 1 for true, yes and 1; −1 for false, no and 0.

    Parameters
    ----------
    missing : bool or "indicator", optional
        As in :class:`Numbers`.
    constant, norm
        As in :class:`Features`.
    """

    kind: ClassVar[str] = "booleans"
    bounds: Any = (0.0, 1.0)
    missing: Any = None

    def _values(self, cells: Cells) -> Floats:
        return self._marked(
            np.column_stack([truth_values(column) for column in column_list(cells)])
        )

    def _words(self) -> str:
        return "truth values as ±1"


@dataclass(eq=False)
class Dates(Numbers):
    """Days of ISO dates, scaled to [−1, 1] by a public first and last day.

    Parameters
    ----------
    bounds : pair of str, date or ordinal number of a day
        The first and the last day; days outside are clipped.
    missing : float or "indicator", optional
        As in :class:`Numbers`; an ordinal number of a day.
    constant, norm
        As in :class:`Features`.
    """

    kind: ClassVar[str] = "dates"

    @cached_property
    def _ends(self) -> Floats:
        try:
            return _pairs([_ordinal(end) for end in self.bounds])
        except (TypeError, ValueError):
            raise InvalidInput(
                "bounds", self.bounds, 'give first and last day: ("2000-01-01", "2026-12-31")'
            ) from None

    def _values(self, cells: Cells) -> Floats:
        return self._marked(np.column_stack([day_numbers(column) for column in column_list(cells)]))

    def _words(self) -> str:
        return "dates scaled to ±1 by a public first and last day"


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


def _joined(values: Floats, marks: Floats) -> Floats:
    """Return each column followed by its marks."""
    return np.stack([values, marks], axis=2).reshape(len(values), -1)


def _ordinal(day: Any) -> float:
    """Return the ordinal number of a day."""
    if isinstance(day, str):
        day = date.fromisoformat(day)
    return float(day.toordinal() if hasattr(day, "toordinal") else day)


def _pairs(bounds: Any) -> Floats:
    """Return public bounds as lows and highs, of shape (2, 1) or (2, columns)."""
    try:
        pairs = np.array(bounds, dtype=np.float64)
    except (TypeError, ValueError):
        pairs = np.empty(0)
    pairs = pairs[None] if pairs.ndim == 1 else pairs
    if pairs.ndim != 2 or pairs.shape[1] != 2 or not len(pairs):
        raise InvalidInput("bounds", type(bounds).__name__, "give (low, high), or one per column")
    with np.errstate(over="ignore"):
        span = pairs[:, 1] - pairs[:, 0]
    if not (np.isfinite(pairs).all() and ((span > 0) & np.isfinite(span)).all()):
        raise InvalidInput("bounds", "a pair", "give finite numbers with low < high")
    return np.asarray(pairs.T)


SKEWED = 1000.0
"""Numbers whose public bounds reach this are taken by their signed logarithm."""

BINS = 8
_BIN_WEIGHT = 0.5


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
