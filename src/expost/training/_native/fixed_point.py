"""Sums over rows in fixed point, as LLVM instructions: exact in every order.

A contribution p is rounded to a grid of step g and added as a whole number of steps. Both cost two
instructions: p + anchor, where the anchor is 1.5·2^{52}·g, is a double whose bits are those of the
anchor plus the number of steps (|p| < 2^{51}·g), and the bits are added as 64-bit integers modulo
2^{64}. The bits of the anchors are subtracted once for many rows. Multiplication and addition of
the anchor may be fused; a product that is rounded first is covered by
:func:`expost.training.exact_noise.clip_bound`, which also chooses g so that no sum overflows.

The contribution of a row depends on nothing but the row, the parameters and public settings. Sums
are integers. So one row more changes the sum by exactly its own contribution.

Products of compact rows with weights, and with residuals, are whole numbers below 2^{53} times one
power of two, and so exact in any order, too (:mod:`expost.training.lattice_rows`).

General modules compute activations, slopes and some per-example gradients by torch
(:mod:`expost.training._torch.clipped_sums`). On a CPU, the sums over rows are made here, too:
every contribution is rounded to the grid of
:func:`expost.training.exact_noise.clip_bound` and added as a whole number of steps. So a row moves
a sum by its own contribution only, whatever the order.

``rows`` are the numbers of the rows that count, ``factors`` their clip factors in the same order.
Other rows are never read, so a gradient that is not finite does no harm. :func:`write_products`
computes per-example gradients of linear layers and convolutions, without a copy of their patches.

Tests: ``tests/training/test_vector_products.py``, ``tests/training/test_sensitivity.py``,
``tests/training/test_gradient_parts.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from expost.arrays import Array
from expost.training._native.compiled import extending, ir, kernel, ordered, types
from expost.training._native.vector_products import (
    HEIGHTS,
    LONG,
    NUMBERS,
    TALLEST,
    VECTOR,
    Emitter,
    Rows,
    contiguous,
    for_height,
    loop,
    product,
    rows_together,
)

__all__ = [
    "add_outer",
    "add_stored",
    "add_tokens",
    "channel_sums",
    "channels_last",
    "combine_tokens",
    "from_steps",
    "row_squares",
    "write_products",
]


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
        return self.wide.longs(self.builder.neg(self.builder.mul(count, self.bits)))


def _add_rows(
    typing: Any, height: Any, matrix: Any, rows: Any, index: Any, later: Any, sums: Any,
    factors: Any, anchor: Any
) -> Any:  # fmt: skip
    """Return the type and the code generator of :data:`add_rows`."""
    same = matrix.dtype in NUMBERS and contiguous(matrix.dtype, matrix)
    if not (same and contiguous(types.int64, rows, sums) and contiguous(types.float64, factors)):
        return None

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        def rows_of(height: int) -> None:
            rows = Rows(context, builder, signature.args[1:], arguments[1:], height, False)
            emit, wide = rows.emit, Emitter(context, builder, types.float64, rows.emit.lanes)
            whole = Emitter(context, builder, types.int64, rows.emit.lanes)
            fixed = _Anchored(builder, wide, arguments[7])
            factors = [wide.everywhere(builder.load(rows.number(row))) for row in range(height)]

            def add(parts: Sequence[Any], sums: Any) -> Any:
                for factor, part in zip(factors, parts, strict=True):
                    double = emit.vector == wide.vector
                    number = part if double else builder.fpext(part, wide.vector)
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

        for_height(builder, arguments[0], HEIGHTS, rows_of)
        return context.get_dummy_value()

    long = types.int64
    return types.void(long, matrix, rows, long, long, sums, factors, types.float64), generate


add_rows: Any = extending.intrinsic(_add_rows)
"""add_rows(height, X, rows, place, later, sums, factors, anchor):

sums[c] += Σ_{r < height} bits of the anchor plus steps of factors[r]·X[rows[place + r], c], in
int64; the height is 8, 4 or 1. The caller subtracts the anchors (:func:`without_anchors`). The
other half of the rows from ``later`` on is prefetched.
"""


def _add_outer(
    typing: Any, height: Any, columns: Any, a: Any, a_start: Any, a_along: Any, b: Any,
    b_along: Any, count: Any, anchor: Any, sums: Any, start: Any, step: Any
) -> Any:  # fmt: skip
    """Return the type and the code generator for some rows of a sum of outer products."""
    if not (contiguous(types.float64, a, b) and contiguous(types.int64, sums)):
        return None

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        columns, a_start, a_along, b_along, count, start, step = (
            arguments[index] for index in (1, 3, 4, 6, 7, 10, 11)
        )
        wide = Emitter(context, builder, types.float64)
        whole = Emitter(context, builder, types.int64)
        a, b, sums = (wide.data(signature.args[index], arguments[index]) for index in (2, 5, 9))
        fixed = _Anchored(builder, wide, arguments[8])
        offset = fixed.offset(count)

        def outer_of(height: int) -> None:
            rows = [builder.add(a_start, ir.Constant(LONG, row)) for row in range(height)]

            def tile(column: Any, nothing: Sequence[Any]) -> Sequence[Any]:
                mask, here = whole.mask(builder.sub(columns, column)), builder.add(start, column)
                offsets = [
                    builder.add(here, builder.mul(step, ir.Constant(LONG, row)))
                    for row in range(height)
                ]

                def over(j: Any, held: Sequence[Any]) -> Sequence[Any]:
                    vector = wide.load(b, builder.add(column, builder.mul(j, b_along)))
                    along = builder.mul(j, a_along)
                    numbers = [builder.load(wide.at(a, builder.add(row, along))) for row in rows]
                    return [
                        fixed.plus(total, wide.everywhere(number), vector)
                        for total, number in zip(held, numbers, strict=True)
                    ]

                held = [
                    builder.add(whole.masked_load(sums, first, mask), offset) for first in offsets
                ]
                for total, first in zip(loop(builder, count, 1, held, over), offsets, strict=True):
                    whole.masked_store(total, sums, first, mask)
                return nothing

            loop(builder, columns, wide.lanes, [], tile)

        for_height(builder, arguments[0], range(1, TALLEST + 1), outer_of)
        return context.get_dummy_value()

    long = types.int64
    kind = types.void(long, long, a, long, long, b, long, long, types.float64, sums, long, long)
    return kind, generate


_outer: Any = extending.intrinsic(_add_outer)


@ordered
def add_outer_products(rows: int, columns: int, a: Array, a_start: int, b: Array, count: int,
                       anchor: float, sums: Array) -> None:  # fmt: skip
    """Add steps of a[a_start + j·rows + r]·b[j·columns + c], j < count, to sums[r·columns + c].

    ``b`` is read in whole vectors, so it needs padding at its end.
    """
    for first in range(0, rows, TALLEST):
        height, start = min(TALLEST, rows - first), first * columns
        _outer(
            height, columns, a, a_start + first, rows, b, columns, count, anchor, sums, start,
            columns,
        )  # fmt: skip


@kernel
def add_rows_together(matrix: Array, rows: Array, index: int, sums: Array, factors: Array,
                      anchor: float) -> int:  # fmt: skip
    """Add the next rows, as many as share a read of ``sums``; return their number."""
    height = rows_together(len(rows) - index)
    later = max(index, min(index + height, len(rows) - height))
    add_rows(height, matrix, rows, index, later, sums, factors, anchor)
    return height


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


_BLOCK = 32  # rows whose outer products are added at a time; they stay in the cache


@kernel
def add_stored(values: Array, rows: Array, factors: Array, anchor: float, sums: Array) -> None:
    """Add the steps of factor × stored gradient (one row of ``values``) to ``sums``."""
    count, row, scales = len(rows), 0, np.empty(8)
    offset = without_anchors(count, anchor)
    for k in range(len(sums)):
        sums[k] += offset
    while row < count:
        for r in range(min(8, count - row)):
            scales[r] = factors[row + r]
        row += add_rows_together(values, rows, row, sums, scales, anchor)


@kernel
def add_outer(
    inputs: Array, slopes: Array, rows: Array, factors: Array, anchor: float, sums: Array
) -> None:
    """Add the steps of factor × slope ⊗ input to ``sums`` (outputs × inputs, flat)."""
    width, outputs = inputs.shape[1], slopes.shape[1]
    a, b = np.empty(_BLOCK * outputs), np.zeros(_BLOCK * width + VECTOR)
    for first in range(0, len(rows), _BLOCK):
        count = min(_BLOCK, len(rows) - first)
        for e in range(count):
            row, factor = rows[first + e], factors[first + e]
            for o in range(outputs):
                a[e * outputs + o] = factor * np.float64(slopes[row, o])
            for k in range(width):
                b[e * width + k] = np.float64(inputs[row, k])
        add_outer_products(outputs, width, a, 0, b, count, anchor, sums)


@ordered
def channels_last(images: Array, border: tuple[int, int], out: Array) -> None:
    """Write images (rows × channels × height × width) with a border of zeros, channels last.

    ``out`` is flat; what follows the last image is set to zero.
    """
    rows, channels, height, width = images.shape
    (top, left), index = border, 0
    for row in range(rows):
        for y in range(-top, height + top):
            if y < 0 or y >= height:
                out[index : index + (width + 2 * left) * channels] = 0
            else:
                line = out[index : index + (width + 2 * left) * channels]
                line[: left * channels] = 0
                line[(width + left) * channels :] = 0
                inside = line[left * channels : (width + left) * channels]
                # reads along a line: those of one pixel in all channels share a place in the cache
                for c in range(channels):
                    for x in range(width):
                        inside[x * channels + c] = images[row, c, y, x]
            index += (width + 2 * left) * channels
    out[index:] = 0


@kernel
def write_products(
    images: Array, slopes: Array, shape: tuple[int, int, int], out_shape: tuple[int, int, int],
    kernel_size: tuple[int, int], stride: tuple[int, int], times: int,
    rows: Array, more: bool, out: Array
) -> None:  # fmt: skip
    """Write the gradients of a convolution's weight: rows × (kernel · channels · outputs).

    ``images`` (with their border of zeros) and ``slopes`` have the channels last and are flat, with
    padding at the end; ``shape`` and ``out_shape`` are height, width and channels of one of them.
    Patches are read directly from the images. A row has ``times`` images, whose gradients are added
    up; with ``more``, to what ``out`` holds.

    The numbers of a row depend on its images and slopes only, and are the same bits at every call.
    """
    (height, width, channels), (high, wide, outputs) = shape, out_shape
    (kh, kw), (sh, sw) = kernel_size, stride
    line, run, zeros = width * channels, kw * channels, np.zeros(VECTOR, dtype=images.dtype)
    flat, size = out.reshape(-1), kh * run * outputs
    for e in range(len(rows)):
        for index in range(times):
            image = rows[e] * times + index
            first, target = image * height * line, image * high * wide * outputs
            for y in range(kh):
                here = e * size + y * run * outputs
                if more or index > 0:
                    before, step, along = flat[here:], outputs, 1
                else:
                    before, step, along = zeros, 0, 0
                product(run, outputs, images, first + y * line, 1, sh * line, sw * channels,
                        slopes, target, wide * outputs, outputs, high, wide, before, step, along,
                        flat, here, outputs)  # fmt: skip


@kernel
def row_squares(values: Array, out: Array) -> None:
    """Write the squared norm of each row, in float64."""
    for row in range(len(values)):
        total = 0.0
        for k in range(values.shape[1]):
            value = np.float64(values[row, k])
            total += value * value
        out[row] = total


@kernel
def channel_sums(slopes: Array, inputs: Array, plain: Array, product: Array) -> None:
    """Add Σ_p slope_p to ``plain`` and Σ_p slope_p·input_p to ``product``, for each line."""
    for line in range(slopes.shape[0]):
        total, both = plain[line], product[line]
        for index in range(slopes.shape[1]):
            total += slopes[line, index]
            both += slopes[line, index] * inputs[line, index]
        plain[line], product[line] = total, both


@ordered
def combine_tokens(tokens: Array, slopes: Array) -> None:
    """Add up the slopes of equal tokens of a row at the token's first place, in place.

    ``tokens`` are rows × places, ``slopes`` rows × places × width. A token that occurred before is
    set to −1. Negative tokens are ignored.
    """
    for row in range(tokens.shape[0]):
        for index in range(tokens.shape[1]):
            token = tokens[row, index]
            if token < 0:
                continue
            for first in range(index):
                if tokens[row, first] == token:
                    tokens[row, index] = -1
                    for k in range(slopes.shape[2]):
                        slopes[row, first, k] += slopes[row, index, k]
                    break
            if tokens[row, index] < 0:
                for k in range(slopes.shape[2]):
                    slopes[row, index, k] = 0


@ordered
def add_tokens(
    tokens: Array, slopes: Array, rows: Array, factors: Array, anchor: float, sums: Array
) -> None:
    """Add the steps of factor × combined slope to the tokens' rows of ``sums`` (flat)."""
    width = slopes.shape[2]
    for e in range(len(rows)):
        row, factor = rows[e], factors[e]
        for index in range(tokens.shape[1]):
            token = tokens[row, index]
            if token >= 0:
                mine, slope = sums[token * width : (token + 1) * width], slopes[row, index]
                for k in range(width):
                    mine[k] += grid_steps(factor * np.float64(slope[k]), anchor)
