"""Outputs of a linear model that depend on one row alone, whatever rows are computed with it.

A matrix product in floating point rounds in an order that may depend on the number of rows, so that
one row more could change the outputs of others in the last digits, and with them a count of correct
rows. Here an output is the exact real number xᵀw + b, rounded to a multiple of a step u, with u a
power of two that depends on the model and on this row only. The product is computed in floating
point, with an error of at most (d + 4)·2^{−52}·s for d features and s = m·Σ|w_j| + |b|, where m ≥ 1
bounds the entries of the row. If this error cannot change the rounding, done. Otherwise (about one
in 2^{25}/d outputs) the number is computed in rational arithmetic.

Tests: ``tests/tuning/test_linear_outputs.py``.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np

from expost.arrays import Array, Floats
from expost.training.lattice_rows import ROW_BITS, CompactRows

_BITS = 26  # u is about 2^{−26} times the largest possible output
_MOST = 2.0**500


def linear_outputs(X: Array | CompactRows, weight: Array, bias: Array) -> Floats:
    """Return the outputs of each row."""
    rows: Any = X if isinstance(X, CompactRows) else np.asarray(X, dtype=np.float64)
    weight, bias = np.asarray(weight, dtype=np.float64), np.asarray(bias, dtype=np.float64)
    with np.errstate(all="ignore"):
        sums = np.abs(weight).sum(axis=1)
        if not (sums < _MOST).all() or not (np.abs(bias) < _MOST).all():
            return np.full((len(rows), len(bias)), np.nan)
        if isinstance(rows, CompactRows):
            most, product = np.ones(len(rows)), rows.products(weight.T) * 2.0**-ROW_BITS
        else:
            most = np.maximum(1.0, np.abs(rows).max(axis=1, initial=0.0))
            product = rows @ weight.T
        largest = most[:, None] * sums + np.abs(bias) + 2.0**-500
        exponents = np.frexp(largest)[1] - _BITS
        scaled = np.ldexp(product + bias, -exponents)
        whole = np.rint(scaled)
        error = (weight.shape[1] + 4) * 2.0**-52 * np.ldexp(largest, -exponents)
        undecided = ~(0.5 - np.abs(scaled - whole) > error)
    if isinstance(rows, CompactRows) and undecided.any():
        rows = rows.whole() * 2.0**-ROW_BITS
    for row, output in np.argwhere(undecided).tolist():
        exact = Fraction(float(bias[output])) + sum(
            Fraction(x) * Fraction(w)
            for x, w in zip(rows[row].tolist(), weight[output].tolist(), strict=True)
        )
        unit = Fraction(2) ** int(exponents[row, output])
        whole[row, output] = math.floor(exact / unit + Fraction(1, 2))
    return np.asarray(np.ldexp(whole, exponents))
