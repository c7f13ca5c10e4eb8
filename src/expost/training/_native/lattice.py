"""Products of compact rows with weights, and with residuals.

All numbers are whole and all sums below 2^{53} times one power of two, so they are exact in any
order (:mod:`expost.training.lattice_rows`).
"""

from __future__ import annotations

from typing import Any

from expost.training._native.compiled import kernel


@kernel
def products(  # type: ignore[no-untyped-def]
    dense: Any, dense_weights: Any, starts: Any, columns: Any, values: Any, weights: Any, out: Any
):
    """Write rows · weights into ``out``, of shape (rows, outputs)."""
    rows, count = dense.shape
    for output in range(weights.shape[0]):
        for row in range(rows):
            total = 0.0
            for index in range(count):
                total += dense[row, index] * dense_weights[output, index]
            # Two sums at a time: faster than the vector form that a plain loop is compiled to.
            other, index, end = 0.0, starts[row], starts[row + 1]
            while index + 1 < end:
                total += values[index] * weights[output, columns[index]]
                other += values[index + 1] * weights[output, columns[index + 1]]
                index += 2
            if index < end:
                total += values[index] * weights[output, columns[index]]
            out[row, output] = total + other


@kernel
def add_weighted_rows(  # type: ignore[no-untyped-def]
    dense: Any, starts: Any, columns: Any, values: Any, residuals: Any, dense_out: Any, out: Any
):
    """Add residualsᵀ · rows to ``dense_out`` and ``out``, of shape (outputs, …)."""
    rows, count = dense.shape
    for output in range(residuals.shape[1]):
        for row in range(rows):
            factor = residuals[row, output]
            for index in range(count):
                dense_out[output, index] += dense[row, index] * factor
            for index in range(starts[row], starts[row + 1]):
                out[output, columns[index]] += values[index] * factor
