"""Sums over rows in fixed point, as LLVM instructions: exact in every order.

A contribution p is rounded to a grid of step g and added as a whole number of steps. Both cost two
instructions: p + anchor, where the anchor is 1.5·2^{52}·g, is a double whose bits are those of the
anchor plus the number of steps (|p| < 2^{51}·g), and the bits are added as 64-bit integers modulo
2^{64}. The bits of the anchors are subtracted once for many rows. Multiplication and addition of
the anchor may be fused; a product that is rounded first is covered by
:func:`expost.training.exact_noise.clip_bound`, which also chooses g so that no sum overflows.

The contribution of a row depends on nothing but the row, the parameters and public settings. Sums
are integers. So one row more changes the sum by exactly its own contribution.

Tests: ``tests/training/test_vector_products.py`` and ``tests/training/test_sensitivity.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from expost.arrays import Array
from expost.training._native.compiled import extending, ir, ordered, types
from expost.training._native.vector_products import (
    INT,
    LONG,
    NUMBERS,
    TALLEST,
    Emitter,
    Rows,
    contiguous,
    loop,
)


class _Anchored:
    """Emits the rounding of products to the grid, and sums of the steps."""

    def __init__(self, builder: Any, wide: Emitter, anchor: Any) -> None:
        self.builder, self.wide = builder, wide
        self.longs = ir.VectorType(LONG, wide.lanes)
        self.bits = builder.bitcast(anchor, LONG)
        self.anchor = wide.everywhere(anchor)

    def plus(self, sums: Any, a: Any, b: Any) -> Any:
        """Return the sums plus the bits of the rounded product."""
        rounded = self.wide.plus_product(self.anchor, a, b)
        return self.builder.add(sums, self.builder.bitcast(rounded, self.longs))

    def offset(self, count: Any) -> Any:
        """Return −count times the bits of the anchor, in every lane."""
        value = self.builder.neg(self.builder.mul(count, self.bits))
        blank = ir.Constant(self.longs, ir.Undefined)
        first = self.builder.insert_element(blank, value, ir.Constant(INT, 0))
        return self.builder.shuffle_vector(
            first, blank, ir.Constant(ir.VectorType(INT, self.wide.lanes), [0] * self.wide.lanes)
        )


def _make_add_rows(height: int) -> Any:
    """Return the intrinsic for sums of ``height`` rows."""

    def typed(
        typing: Any,
        matrix: Any,
        rows: Any,
        index: Any,
        later: Any,
        sums: Any,
        factors: Any,
        anchor: Any,
    ) -> Any:
        same = matrix.dtype in NUMBERS and contiguous(matrix.dtype, matrix)
        if not (
            same and contiguous(types.int64, rows, sums) and contiguous(types.float64, factors)
        ):
            return None
        return types.void(
            matrix, rows, types.int64, types.int64, sums, factors, types.float64
        ), generate

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        rows = Rows(context, builder, signature, arguments, height, first_half=False)
        emit, wide = rows.emit, Emitter(context, builder, types.float64, rows.emit.lanes)
        whole = Emitter(context, builder, types.int64, rows.emit.lanes)
        fixed = _Anchored(builder, wide, arguments[6])
        factors = [wide.everywhere(builder.load(rows.number(row))) for row in range(height)]

        def add(parts: Sequence[Any], sums: Any) -> Any:
            for factor, part in zip(factors, parts, strict=True):
                number = part if emit.vector == wide.vector else builder.fpext(part, wide.vector)
                sums = fixed.plus(sums, factor, number)
            return sums

        def along(column: Any, held: Sequence[Any]) -> Sequence[Any]:
            rows.prefetch(column)
            parts = [emit.load(row, column) for row in rows.mine]
            whole.store(add(parts, whole.load(rows.vector, column)), rows.vector, column)
            return held

        loop(builder, rows.whole, emit.lanes, [], along)
        with builder.if_then(builder.icmp_signed(">", rows.left, ir.Constant(LONG, 0))):
            parts = [emit.masked_load(row, rows.whole, rows.mask) for row in rows.mine]
            sums = whole.masked_load(rows.vector, rows.whole, rows.mask)
            whole.masked_store(add(parts, sums), rows.vector, rows.whole, rows.mask)
        rows.prefetch_last()
        return context.get_dummy_value()

    return extending.intrinsic(typed)


add_rows8, add_rows4, add_rows1 = (_make_add_rows(height) for height in (8, 4, 1))
"""add_rows⟨h⟩(X, rows, place, later, sums, factors, anchor):

sums[c] += Σ_{r < h} bits of the anchor plus steps of factors[r]·X[rows[place + r], c], in int64.
The caller subtracts the anchors (:func:`without_anchors`). The other half of the h rows from
``later`` on is prefetched.
"""


def _make_add_outer(height: int) -> Any:
    """Return the intrinsic for ``height`` rows of a sum of outer products."""

    def typed(
        typing: Any, columns: Any, a: Any, a_start: Any, a_along: Any, b: Any, b_along: Any,
        count: Any, anchor: Any, sums: Any, start: Any, step: Any
    ) -> Any:  # fmt: skip
        if not (contiguous(types.float64, a, b) and contiguous(types.int64, sums)):
            return None
        long = types.int64
        return types.void(
            long, a, long, long, b, long, long, types.float64, sums, long, long
        ), generate

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        columns, a_start, a_along, b_along, count, start, step = (
            arguments[index] for index in (0, 2, 3, 5, 6, 9, 10)
        )
        wide = Emitter(context, builder, types.float64)
        whole = Emitter(context, builder, types.int64)
        a, b, sums = (wide.data(signature.args[index], arguments[index]) for index in (1, 4, 8))
        fixed = _Anchored(builder, wide, arguments[7])
        offset = fixed.offset(count)
        rows = [builder.add(a_start, ir.Constant(LONG, row)) for row in range(height)]

        def tile(column: Any, nothing: Sequence[Any]) -> Sequence[Any]:
            mask = whole.mask(builder.sub(columns, column))
            offsets = [
                builder.add(builder.add(start, column), builder.mul(step, ir.Constant(LONG, row)))
                for row in range(height)
            ]

            def over(j: Any, held: Sequence[Any]) -> Sequence[Any]:
                vector = wide.load(b, builder.add(column, builder.mul(j, b_along)))
                along = builder.mul(j, a_along)
                return [
                    fixed.plus(
                        total,
                        wide.everywhere(builder.load(wide.at(a, builder.add(row, along)))),
                        vector,
                    )
                    for total, row in zip(held, rows, strict=True)
                ]

            held = [builder.add(whole.masked_load(sums, first, mask), offset) for first in offsets]
            for total, first in zip(loop(builder, count, 1, held, over), offsets, strict=True):
                whole.masked_store(total, sums, first, mask)
            return nothing

        loop(builder, columns, wide.lanes, [], tile)
        return context.get_dummy_value()

    return extending.intrinsic(typed)


_outer1, _outer2, _outer3, _outer4, _outer5, _outer6 = (
    _make_add_outer(height) for height in range(1, TALLEST + 1)
)


@ordered
def add_outer_products(rows: int, columns: int, a: Array, a_start: int, b: Array, count: int,
                       anchor: float, sums: Array) -> None:  # fmt: skip
    """Add steps of a[a_start + j·rows + r]·b[j·columns + c], j < count, to sums[r·columns + c].

    ``b`` is read in whole vectors, so it needs padding at its end.
    """
    for first in range(0, rows, TALLEST):
        height, start = min(TALLEST, rows - first), first * columns
        if height == 6:
            _outer6(
                columns, a, a_start + first, rows, b, columns, count, anchor, sums, start, columns
            )
        elif height == 5:
            _outer5(
                columns, a, a_start + first, rows, b, columns, count, anchor, sums, start, columns
            )
        elif height == 4:
            _outer4(
                columns, a, a_start + first, rows, b, columns, count, anchor, sums, start, columns
            )
        elif height == 3:
            _outer3(
                columns, a, a_start + first, rows, b, columns, count, anchor, sums, start, columns
            )
        elif height == 2:
            _outer2(
                columns, a, a_start + first, rows, b, columns, count, anchor, sums, start, columns
            )
        else:
            _outer1(
                columns, a, a_start + first, rows, b, columns, count, anchor, sums, start, columns
            )


@ordered
def without_anchors(count: int, anchor: float) -> Any:
    """Return minus the bits of ``count`` anchors, with which the sums of so many rows begin."""
    return -np.int64(count) * np.float64(anchor).view(np.int64)


@ordered
def grid_steps(value: float, anchor: float) -> Any:
    """Return the number of grid steps of a value, rounded to nearest."""
    return np.float64(value + anchor).view(np.int64) - np.float64(anchor).view(np.int64)


@ordered
def from_steps(sums: Array, grid: float, total: Array) -> None:
    """Write the sums as doubles; exact, as they are below 2^{53} steps."""
    for index in range(len(total)):
        total[index] = np.float64(sums[index]) * grid
