"""Matrix products in tiles whose sums stay in vector registers, for the layers of a network.

The instructions of one tile are in :mod:`expost.training._native.vector_products`. This module cuts
a product into tiles. Tests: ``tests/training/test_vector_products.py``.
"""

from __future__ import annotations

from expost.arrays import Array
from expost.training._native.compiled import kernel
from expost.training._native.vector_products import (
    TALLEST,
    strip1,
    strip2,
    strip3,
    strip4,
    strip5,
    strip6,
)


@kernel
def _strip(height: int, columns: int, a: Array, a_start: int, a_step: int, a_outer: int,
           a_inner: int, b: Array, b_start: int, b_outer: int, b_inner: int, outer: int, inner: int,
           first: Array, first_start: int, first_step: int, first_along: int,
           out: Array, out_start: int, out_step: int) -> None:  # fmt: skip
    """Compute ``height`` rows of a product (1 to 6 rows)."""
    if height == 6:
        strip6(columns, a, a_start, a_step, a_outer, a_inner, b, b_start, b_outer, b_inner,
               outer, inner, first, first_start, first_step, first_along,
               out, out_start, out_step)  # fmt: skip
    elif height == 5:
        strip5(columns, a, a_start, a_step, a_outer, a_inner, b, b_start, b_outer, b_inner,
               outer, inner, first, first_start, first_step, first_along,
               out, out_start, out_step)  # fmt: skip
    elif height == 4:
        strip4(columns, a, a_start, a_step, a_outer, a_inner, b, b_start, b_outer, b_inner,
               outer, inner, first, first_start, first_step, first_along,
               out, out_start, out_step)  # fmt: skip
    elif height == 3:
        strip3(columns, a, a_start, a_step, a_outer, a_inner, b, b_start, b_outer, b_inner,
               outer, inner, first, first_start, first_step, first_along,
               out, out_start, out_step)  # fmt: skip
    elif height == 2:
        strip2(columns, a, a_start, a_step, a_outer, a_inner, b, b_start, b_outer, b_inner,
               outer, inner, first, first_start, first_step, first_along,
               out, out_start, out_step)  # fmt: skip
    else:
        strip1(columns, a, a_start, a_step, a_outer, a_inner, b, b_start, b_outer, b_inner,
               outer, inner, first, first_start, first_step, first_along,
               out, out_start, out_step)  # fmt: skip


@kernel
def product(rows: int, columns: int, a: Array, a_start: int, a_step: int, a_outer: int,
            a_inner: int, b: Array, b_start: int, b_outer: int, b_inner: int, outer: int,
            inner: int, first: Array, first_step: int, first_along: int,
            out: Array, out_start: int, out_step: int) -> None:  # fmt: skip
    """Compute out[r, c] = first[r, c] + Σ_{i, j} a[r, (i, j)]·b[(i, j), c].

    Here r < ``rows`` and c < ``columns``, with the strides as given. The columns of ``b`` and
    ``out`` are adjacent. The columns of ``first`` are ``first_along`` apart: 1, or 0 with a vector
    of zeros. The rows are cut into strips of nearly equal height.
    """
    strips, row = -(-rows // TALLEST), 0
    for strip in range(strips):
        height = rows // strips + (1 if strip < rows % strips else 0)
        _strip(height, columns, a, a_start + row * a_step, a_step, a_outer, a_inner,
               b, b_start, b_outer, b_inner, outer, inner,
               first, row * first_step, first_step, first_along,
               out, out_start + row * out_step, out_step)  # fmt: skip
        row += height
