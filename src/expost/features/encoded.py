"""Features of rows that a table schema has encoded already: numbers in [0, 1] and 0/1 columns.

A number becomes itself on the scale from −1 to 1 and, with half that weight, the one of equally
wide bins in which it lies: the first is what a linear effect needs, the second what any other
effect needs. A number whose public bounds reach 1,000 or beyond is taken by its signed logarithm,
because amounts, counts and durations with such bounds are usually skewed. Other columns (one-hot
categories, indicators) stay as they are.

Tests: ``tests/features/test_encoded.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import sqrt
from typing import Any, ClassVar

import numpy as np

from expost.arrays import Floats, Integers
from expost.errors import InvalidInput
from expost.features.base import Cells, Features, is_real, number_block, whole
from expost.features.columns import signed_logarithm

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
        whole(self.size, "size", 1, 10**7)
        if self.bins != 0:
            whole(self.bins, "bins", 2, 1000)
        for entry in self.numbers:
            fits = isinstance(entry, (list, tuple)) and len(entry) == 3
            if not fits or not all(is_real(value) for value in entry) or not entry[1] < entry[2]:
                raise InvalidInput("numbers", entry, "give (position, low, high) with low < high")
            whole(int(entry[0]), "position", 0, self.size - 1)

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
        each = 1 + (_BIN_WEIGHT**2 if self.bins else 0)
        return sqrt(len(self._others) + each * len(self._positions))

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
        place = np.minimum((filled * self.bins).astype(np.int64), self.bins - 1)
        found = np.zeros((*place.shape, self.bins))
        np.put_along_axis(found, place[:, :, None], _BIN_WEIGHT, axis=2)
        return found.reshape(len(found), -1)

    def _names(self, names: Sequence[str]) -> list[str]:
        numbers = [names[position] for position in self._positions]
        bins = [f"{name}_bin{bin_}" for name in numbers for bin_ in range(self.bins)]
        return [*(names[position] for position in self._others), *numbers, *bins]

    def _words(self) -> str:
        bins = f" and in {self.bins} bins" if self.bins else ""
        count = len(self._positions)
        return f"categories one-hot, {count} number{'s'[: count != 1]} scaled to ±1{bins}"
