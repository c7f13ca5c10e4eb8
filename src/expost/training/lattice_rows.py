"""Rows of norm at most 1 as whole numbers of steps 2^{−15}, and a compact form of many of them.

Entries are rounded towards zero, which makes no row longer; a row that is longer than 1 all the
same becomes the zero row. Training and the model's own predictions take the same rounded rows, so a
product of a row with weights on a lattice (:func:`expost.training.progressive.on_lattice`) is exact
in double precision in any order, wherever it is computed.

:class:`CompactRows` keeps a block of rows for large tables: columns that are mostly filled as
16-bit integers, and of the others the entries that are not zero. Which columns are which depends on
the rows of the block, but no product and no sum does: both are exact.

Tests: ``tests/training/test_lattice_rows.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from expost.arrays import Array, Floats, Integers
from expost.errors import MissingExtra

ROW_BITS = 15
BLOCK = 2**13
"""Rows of a block; a sum of so many products of an entry and a residual is exact in doubles."""


def whole_rows(rows: Array) -> Floats:
    """Return rows in steps 2^{−15}, rounded towards zero; zero where a row is longer than 1."""
    with np.errstate(over="ignore", invalid="ignore"):
        whole = np.trunc(np.asarray(rows) * 2.0**ROW_BITS)
        np.clip(whole, 1 - 2**ROW_BITS, 2**ROW_BITS - 1, out=whole)
        long = ~(np.einsum("ij,ij->i", whole, whole) <= 4.0**ROW_BITS)  # exact; True for NaN
    if long.any():
        whole[long] = 0.0
    return whole


def rounded_rows(rows: Array) -> Floats:
    """Return the rows that training takes, as real numbers."""
    return whole_rows(rows) * 2.0**-ROW_BITS


@dataclass(frozen=True, eq=False, repr=False)
class CompactRows:
    """A block of rows in steps 2^{−15}."""

    width: int
    filled: Integers
    dense: Array
    starts: Integers
    columns: Array
    values: Array

    @classmethod
    def of(cls, whole: Floats) -> CompactRows:
        """Return a block of rows that :func:`whole_rows` made."""
        rows, width = whole.shape
        short = whole.astype(np.int16)
        present = short != 0
        filled = np.flatnonzero(2 * np.count_nonzero(present, axis=0) >= rows)
        dense = np.ascontiguousarray(short[:, filled])
        present[:, filled] = False
        entries = np.flatnonzero(present)
        starts = np.zeros(rows + 1, dtype=np.int64)
        np.cumsum(np.count_nonzero(present, axis=1), out=starts[1:])
        kind = np.uint16 if width <= 2**16 else np.uint32
        columns = (entries % width).astype(kind) if width else entries.astype(kind)
        return cls(width, filled, dense, starts, columns, short.ravel()[entries])

    def __len__(self) -> int:
        return len(self.dense)

    def whole(self) -> Floats:
        """Return the rows as doubles, in steps."""
        rows = np.zeros((len(self), self.width))
        rows[:, self.filled] = self.dense
        rows[np.repeat(np.arange(len(self)), np.diff(self.starts)), self.columns] = self.values
        return rows

    def products(self, weights: Floats) -> Floats:
        """Return the products of the rows, in steps, with weights of shape (width, outputs)."""
        kernels = _kernels()
        if kernels is None:
            return np.asarray(self.whole() @ weights)
        across = np.ascontiguousarray(weights.T)
        products = np.empty((len(self), weights.shape[1]))
        near = np.ascontiguousarray(across[:, self.filled])
        kernels.products(self.dense, near, self.starts, self.columns, self.values, across, products)
        return products

    def weighted_sum(self, residuals: Floats) -> Integers:
        """Return rowsᵀ · residuals of shape (width, outputs); residuals are whole numbers."""
        kernels = _kernels()
        if kernels is None:
            return np.asarray((residuals.T @ self.whole()).T.astype(np.int64))
        outputs = residuals.shape[1]
        near, across = np.zeros((outputs, len(self.filled))), np.zeros((outputs, self.width))
        residuals = np.ascontiguousarray(residuals)
        kernels.add_weighted_rows(
            self.dense, self.starts, self.columns, self.values, residuals, near, across
        )
        across[:, self.filled] = near
        return across.T.astype(np.int64)


@cache
def _kernels() -> Any:
    """Return the compiled kernels, or None if numba is not installed; the results are the same."""
    try:
        from expost.training._native import fixed_point
    except MissingExtra:
        return None
    return fixed_point
