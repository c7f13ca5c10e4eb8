"""Exact sums over rows of clipped gradients that torch computed.

General modules compute activations, slopes and some per-example gradients by torch
(:mod:`expost.training._torch.gradient_parts`). On a CPU, the sums over rows are made here, in fixed
point (:mod:`expost.training._native.fixed_point`): every contribution is rounded to the grid of
:func:`expost.training.exact_noise.clip_bound` and added as a whole number of steps. So a row moves
a sum by its own contribution only, whatever the order.

``rows`` are the numbers of the rows that count, ``factors`` their clip factors in the same order.
Other rows are never read, so a gradient that is not finite does no harm. :func:`write_products`
computes per-example gradients of linear layers and convolutions, without a copy of their patches.

Tests: ``tests/training/test_gradient_parts.py``.
"""

from __future__ import annotations

import numpy as np

from expost.arrays import Array
from expost.training._native.compiled import kernel, ordered
from expost.training._native.fixed_point import (
    add_outer_products,
    add_rows_together,
    from_steps,
    grid_steps,
    without_anchors,
)
from expost.training._native.vector_products import VECTOR, product

_BLOCK = 32  # rows whose outer products are added at a time; they stay in the cache

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
