"""Rows of norm at most 1 by public rules, one row at a time.

A row x of features in [0, 1] becomes (x − c, b)·r with public constants c and b, where r makes the
norm 1. Nothing depends on other rows. A row with a value that is not a finite number, or with a
target that is not valid, becomes a zero row: it adds a constant to the objective and nothing to any
gradient, exactly as if it were absent.

The class that a linear model prefers does not change when a row is scaled by a positive number. So
a classifier that was fitted to such rows is a linear model of the plain features:
:meth:`Preprocessing.unfold`.

Norms are computed in floating point; rows are made shorter by a relative 2^{−20}, which is far more
than the rounding of the norm and of the storage as float32. So no row is longer than 1 in real
numbers.

Tests: ``tests/training/test_convex.py``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from expost.arrays import Array, Floats
from expost.errors import InvalidInput

_SHORTER = 1 - 2.0**-20
_PART = 4096


@dataclass(frozen=True)
class Preprocessing:
    """How rows are scaled; all of it is public.

    Parameters
    ----------
    bias : float
        The constant coordinate b > 0, in the unit of the features.
    offset : float
        The constant c that is subtracted from every feature.
    """

    bias: float = 1.0
    offset: float = 0.2

    def __post_init__(self) -> None:
        if not 1e-3 <= self.bias <= 1e3:
            raise InvalidInput("bias", self.bias, "give a number from 0.001 to 1000")
        if not 0 <= self.offset <= 1:
            raise InvalidInput("offset", self.offset, "give a number from 0 to 1")

    def rows(self, X: Array, valid: Array | None = None) -> Array:
        """Return rows of norm at most 1 as float32, with the bias in the last column.

        Parameters
        ----------
        X : ndarray of shape (rows, features)
            Features, scaled to [0, 1] by public bounds; values beyond are clipped.
        valid : ndarray of bool, optional
            Rows to keep; the others become zero rows.
        """
        table = np.asarray(X).reshape(len(X), -1)
        out = np.zeros((table.shape[0], table.shape[1] + 1), dtype=np.float32)
        for start in range(0, len(table), _PART):
            part = np.asarray(table[start : start + _PART], dtype=np.float64)
            kept = np.asarray(np.isfinite(part).all(axis=1))
            if valid is not None:
                kept &= np.asarray(valid[start : start + _PART], dtype=bool)
            clean = np.clip(np.where(kept[:, None], part, 0.0), 0.0, 1.0) - self.offset
            norms = np.sqrt(np.square(clean).sum(axis=1) + self.bias**2)
            factor = np.where(kept, _SHORTER / norms, 0.0)
            out[start : start + _PART, :-1] = clean * factor[:, None]
            out[start : start + _PART, -1] = self.bias * factor
        return out

    def unfold(self, weights: Floats) -> tuple[Floats, Floats]:
        """Return weight and bias of the same classifier on plain features in [0, 1].

        Parameters
        ----------
        weights : ndarray of shape (features + 1, outputs)
            Fitted to rows of :meth:`rows`.

        Returns
        -------
        weight, bias : ndarray of shape (outputs, features) and (outputs,)
        """
        plain = np.asarray(weights[:-1])
        shift = self.bias * weights[-1] - self.offset * plain.sum(axis=0)
        return np.ascontiguousarray(plain.T), np.asarray(shift)
