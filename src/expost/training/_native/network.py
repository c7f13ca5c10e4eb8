"""Convolutional and fully connected networks by DP-SGD: examples forward, backward, clipped and added in one native kernel.

A network is a table, a row a layer (:class:`expost.training._native.network_table.Network`). Activations are kept channels last. Every product, of a
convolution or of a fully connected layer, forward and backward, is cut into tiles (:func:`_product`) whose sums stay in registers;
a convolution reads its patches where they are, in the image with its border of zeros. Layers before the first fully connected one take
an example at a time; the others take a block of examples, so that their weights are read once for all of them. A fully connected
layer's per-example gradient is an outer product, never stored. Everything of a block stays in the cache of one core.

Arithmetic is in the precision of the rows (float32 or float64); norms, clipping factors and the sum over examples are float64, so an
example moves the sum by no more than the clipping norm, to the rounding of a float64 sum: what is added is what the norm was taken of.
Tests: ``tests/training/test_modules.py``.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from expost.arrays import Array
from expost.training._native.compiled import kernel
from expost.training._native.keystream import Stream, poisson_sample
from expost.training._native.update import State, StepSettings, finish_step
from expost.training._native.vector_products import (
    TALLEST,
    VECTOR,
    strip1,
    strip2,
    strip3,
    strip4,
    strip5,
    strip6,
)

CONVOLUTION, POOLING, RELU, FLATTEN, LINEAR = range(5)
(
    KIND,
    SOURCE,
    TARGET,
    PARAMETERS,
    EXTRA,
    IN_H,
    IN_W,
    IN_C,
    OUT_H,
    OUT_W,
    OUT_C,
    KH,
    KW,
    SH,
    SW,
    PH,
    PW,
) = range(17)
"""Columns of the table: kind; where input, output and parameters start; where the image with its border starts (convolution), or the
winners (pooling); shapes; kernel, stride, padding. ReLU works in place."""

BLOCK = TALLEST  # examples


class Scratch(NamedTuple):
    """One thread's memory for a block of examples; rows of values and slopes end in room for a vector."""

    values: Array  # activations, an example a row, all layers one after another
    slopes: Array  # their gradients
    patch_slopes: Array  # of one convolution
    winners: Array  # which pixel of its window each pooled maximum came from
    gradient: Array  # of the convolutions' parameters, one example
    parameters: Array  # a copy in the precision of the rows
    turned: Array  # the same, each layer's weights transposed
    squares: Array  # squared norms of a block
    outer: Array  # float64: inputs of a fully connected layer, a block of them, then its clipped slopes
    zeros: Array


@kernel
def _strip(height: int, columns: int, a: Array, a_start: int, a_step: int, a_outer: int, a_inner: int, b: Array, b_start: int,
           b_outer: int, b_inner: int, outer: int, inner: int, first: Array, first_start: int, first_step: int, first_along: int,
           out: Array, out_start: int, out_step: int) -> None:  # fmt: skip
    """Some rows of a product (:mod:`expost.training._native.vector_products`)."""
    if height == 6:
        strip6(columns, a, a_start, a_step, a_outer, a_inner, b, b_start, b_outer, b_inner, outer, inner,
               first, first_start, first_step, first_along, out, out_start, out_step)  # fmt: skip
    elif height == 5:
        strip5(columns, a, a_start, a_step, a_outer, a_inner, b, b_start, b_outer, b_inner, outer, inner,
               first, first_start, first_step, first_along, out, out_start, out_step)  # fmt: skip
    elif height == 4:
        strip4(columns, a, a_start, a_step, a_outer, a_inner, b, b_start, b_outer, b_inner, outer, inner,
               first, first_start, first_step, first_along, out, out_start, out_step)  # fmt: skip
    elif height == 3:
        strip3(columns, a, a_start, a_step, a_outer, a_inner, b, b_start, b_outer, b_inner, outer, inner,
               first, first_start, first_step, first_along, out, out_start, out_step)  # fmt: skip
    elif height == 2:
        strip2(columns, a, a_start, a_step, a_outer, a_inner, b, b_start, b_outer, b_inner, outer, inner,
               first, first_start, first_step, first_along, out, out_start, out_step)  # fmt: skip
    else:
        strip1(columns, a, a_start, a_step, a_outer, a_inner, b, b_start, b_outer, b_inner, outer, inner,
               first, first_start, first_step, first_along, out, out_start, out_step)  # fmt: skip


@kernel
def _product(rows: int, columns: int, a: Array, a_start: int, a_step: int, a_outer: int, a_inner: int, b: Array, b_start: int,
             b_outer: int, b_inner: int, outer: int, inner: int, first: Array, first_step: int, first_along: int, out: Array,
             out_start: int, out_step: int) -> None:  # fmt: skip
    """out[r, c] = first[r, c] + Σ_{i, j} a[r, (i, j)]·b[(i, j), c] for r < ``rows`` and c < ``columns``; strides as given.

    Columns of ``b`` and ``out`` lie side by side, those of ``first`` ``first_along`` apart (1, or 0 with a vector of zeros). Rows are cut
    into strips of equal height, as nearly as may be.
    """
    strips, row = -(-rows // TALLEST), 0
    for strip in range(strips):
        height = rows // strips + (1 if strip < rows % strips else 0)
        _strip(height, columns, a, a_start + row * a_step, a_step, a_outer, a_inner, b, b_start, b_outer, b_inner, outer, inner,
               first, row * first_step, first_step, first_along, out, out_start + row * out_step, out_step)  # fmt: skip
        row += height


@kernel
def _convolve(layer: Array, values: Array, scratch: Scratch) -> None:
    in_w, in_c, out_w, channels = layer[IN_W], layer[IN_C], layer[OUT_W], layer[OUT_C]
    kh, sh, sw, start = layer[KH], layer[SH], layer[SW], layer[PARAMETERS]
    run, wide = layer[KW] * in_c, (in_w + 2 * layer[PW]) * in_c
    if layer[EXTRA] != layer[SOURCE]:
        for y in range(layer[IN_H]):
            there = layer[EXTRA] + (y + layer[PH]) * wide + layer[PW] * in_c
            inside = values[there : there + in_w * in_c]
            pixels = values[layer[SOURCE] + y * in_w * in_c :]
            for k in range(len(inside)):
                inside[k] = pixels[k]
    bias = scratch.parameters[start + kh * run * channels :]
    for row in range(layer[OUT_H]):
        _product(out_w, channels, values, layer[EXTRA] + row * sh * wide, sw * in_c, wide, 1, scratch.parameters, start,
                 run * channels, channels, kh, run, bias, 0, 1, values, layer[TARGET] + row * out_w * channels, channels)  # fmt: skip


@kernel
def _convolution_backward(
    layer: Array, values: Array, slopes: Array, further: bool, scratch: Scratch
) -> float:
    """The parameters' gradient, and if there are layers before, that of the input; returns the former's squared norm."""
    in_c, out_h, out_w, channels = layer[IN_C], layer[OUT_H], layer[OUT_W], layer[OUT_C]
    kh, sh, sw, start, target = layer[KH], layer[SH], layer[SW], layer[PARAMETERS], layer[TARGET]
    run, wide = layer[KW] * in_c, (layer[IN_W] + 2 * layer[PW]) * in_c
    width, positions = kh * run, out_h * out_w
    gradient = scratch.gradient[start : start + (width + 1) * channels]
    for y in range(kh):
        _product(run, channels, values, layer[EXTRA] + y * wide, 1, sh * wide, sw * in_c, slopes, target, out_w * channels, channels,
                 out_h, out_w, scratch.zeros, 0, 0, gradient, y * run * channels, channels)  # fmt: skip
    biases = gradient[width * channels :]
    biases[:] = 0
    for p in range(positions):
        here = slopes[target + p * channels : target + (p + 1) * channels]
        for o in range(len(biases)):
            biases[o] += here[o]
    if further:
        _product(positions, width, slopes, target, channels, 0, 1, scratch.turned, start, 0, width, 1, channels,
                 scratch.zeros, 0, 0, scratch.patch_slopes, 0, width)  # fmt: skip
        slopes[layer[SOURCE] : layer[SOURCE] + layer[IN_H] * layer[IN_W] * in_c] = 0
        _scatter_patches(layer, scratch.patch_slopes, slopes)
    return _square(gradient)


@kernel
def _scatter_patches(layer: Array, patch_slopes: Array, slopes: Array) -> None:
    """Add the patches' gradients to those of the pixels they were read from."""
    in_h, in_w, in_c, out_h = layer[IN_H], layer[IN_W], layer[IN_C], layer[OUT_H]
    out_w, kh, kw, sh = layer[OUT_W], layer[KH], layer[KW], layer[SH]
    sw, ph, pw, source = layer[SW], layer[PH], layer[PW], layer[SOURCE]
    run, place = kw * in_c, 0
    for row in range(out_h):
        for column in range(out_w):
            left = column * sw - pw
            first, last = max(0, -left) * in_c, min(kw, in_w - left) * in_c
            for y in range(row * sh - ph, row * sh - ph + kh):
                if 0 <= y < in_h:
                    start = source + (y * in_w + left) * in_c
                    inside, pixels = (
                        patch_slopes[place + first : place + last],
                        slopes[start + first : start + last],
                    )
                    for k in range(len(inside)):
                        pixels[k] += inside[k]
                place += run


@kernel
def _pool(layer: Array, values: Array, winners: Array) -> None:
    """The first largest value of each window, as in torch; with a horizontal stride of 1 a whole row of windows at a time."""
    in_w, out_h, out_w, channels = layer[IN_W], layer[OUT_H], layer[OUT_W], layer[OUT_C]
    kw, sh, sw = layer[KW], layer[SH], layer[SW]
    runs, length = (1, out_w * channels) if sw == 1 else (out_w, channels)
    for row in range(out_h):
        for run in range(runs):
            here = (row * out_w + run) * channels
            best = values[layer[TARGET] + here : layer[TARGET] + here + length]
            winner = winners[layer[EXTRA] + here : layer[EXTRA] + here + length]
            for window in range(layer[KH] * kw):
                there = ((row * sh + window // kw) * in_w + run * sw + window % kw) * channels
                pixels, number = (
                    values[layer[SOURCE] + there : layer[SOURCE] + there + length],
                    np.int32(window),
                )
                if window == 0:
                    for k in range(len(best)):
                        best[k] = pixels[k]
                        winner[k] = 0
                else:
                    for k in range(len(best)):
                        pixel, largest, place = pixels[k], best[k], winner[k]
                        best[k] = pixel if pixel > largest else largest
                        winner[k] = number if pixel > largest else place


@kernel
def _pool_backward(layer: Array, slopes: Array, winners: Array) -> None:
    in_w, out_h, out_w, channels = layer[IN_W], layer[OUT_H], layer[OUT_W], layer[OUT_C]
    kw, sh, sw, source = layer[KW], layer[SH], layer[SW], layer[SOURCE]
    slopes[source : source + layer[IN_H] * in_w * channels] = 0
    nothing = slopes.dtype.type(0)
    runs, length = (1, out_w * channels) if sw == 1 else (out_w, channels)
    for row in range(out_h):
        for run in range(runs):
            here = (row * out_w + run) * channels
            after = slopes[layer[TARGET] + here : layer[TARGET] + here + length]
            winner = winners[layer[EXTRA] + here : layer[EXTRA] + here + length]
            for window in range(layer[KH] * kw):
                there = ((row * sh + window // kw) * in_w + run * sw + window % kw) * channels
                pixels, number = slopes[source + there : source + there + length], np.int32(window)
                for k in range(len(pixels)):
                    mine = after[k]
                    pixels[k] += mine if winner[k] == number else nothing


@kernel
def _linear(layer: Array, count: int, scratch: Scratch) -> None:
    width, outputs, start = layer[IN_C], layer[OUT_C], layer[PARAMETERS]
    values = scratch.values
    flat, row = values.reshape(-1), values.shape[1]
    bias = scratch.parameters[start + width * outputs :]
    _product(count, outputs, flat, layer[SOURCE], row, 0, 1, scratch.turned, start, 0, outputs, 1, width,
             bias, 0, 1, flat, layer[TARGET], row)  # fmt: skip


@kernel
def _linear_backward(layer: Array, count: int, further: bool, scratch: Scratch) -> None:
    """Squared norms of the parameters' gradients, and if there are layers before, the gradients of the input."""
    width, outputs, source, target = layer[IN_C], layer[OUT_C], layer[SOURCE], layer[TARGET]
    for e in range(count):
        inputs, after = (
            scratch.values[e, source : source + width],
            scratch.slopes[e, target : target + outputs],
        )
        scratch.squares[e] += (1.0 + _square(inputs)) * _square(after)
    if further:
        flat, row = scratch.slopes.reshape(-1), scratch.slopes.shape[1]
        _product(count, width, flat, target, row, 0, 1, scratch.parameters, layer[PARAMETERS], 0, width, 1, outputs,
                 scratch.zeros, 0, 0, flat, source, row)  # fmt: skip


@kernel
def _linear_add(layer: Array, count: int, scales: Array, scratch: Scratch, total: Array) -> None:
    """total += scale × gradient of every example of a block; a scale of zero adds nothing, whatever the gradient."""
    width, outputs, start = layer[IN_C], layer[OUT_C], layer[PARAMETERS]
    outer, room = scratch.outer, BLOCK * (width + VECTOR)
    biases = total[start + width * outputs : start + (width + 1) * outputs]
    for e in range(count):
        inputs, factors = (
            outer[e * width : (e + 1) * width],
            outer[room + e * outputs : room + (e + 1) * outputs],
        )
        if scales[e] == 0.0:
            inputs[:] = 0.0
            factors[:] = 0.0
        else:
            values, slopes = scratch.values[e, layer[SOURCE] :], scratch.slopes[e, layer[TARGET] :]
            for k in range(len(inputs)):
                inputs[k] = np.float64(values[k])
            for o in range(len(factors)):
                factors[o] = scales[e] * np.float64(slopes[o])
                biases[o] += factors[o]
    mine = total[start : start + width * outputs]
    _product(
        outputs,
        width,
        outer,
        room,
        1,
        0,
        outputs,
        outer,
        0,
        0,
        width,
        1,
        count,
        mine,
        width,
        1,
        mine,
        0,
        width,
    )


@kernel
def _square(vector: Array) -> float:
    total = 0.0
    for k in range(len(vector)):
        total += np.float64(vector[k]) * np.float64(vector[k])
    return total


@kernel
def _forward(layer: Array, values: Array, winners: Array, scratch: Scratch) -> None:
    """One layer on one example; not a fully connected one."""
    source, size = layer[SOURCE], layer[IN_H] * layer[IN_W] * layer[IN_C]
    before, nothing = values[source : source + size], values.dtype.type(0)
    if layer[KIND] == CONVOLUTION:
        _convolve(layer, values, scratch)
    elif layer[KIND] == POOLING:
        _pool(layer, values, winners)
    elif layer[KIND] == RELU:
        for k in range(len(before)):
            value = before[k]
            before[k] = value if value > 0 else nothing
    else:
        pixels, after = layer[IN_H] * layer[IN_W], values[layer[TARGET] : layer[TARGET] + size]
        for pixel in range(pixels):
            for c in range(layer[IN_C]):
                after[c * pixels + pixel] = before[pixel * layer[IN_C] + c]


@kernel
def _backward(
    layer: Array, values: Array, slopes: Array, winners: Array, further: bool, scratch: Scratch
) -> float:
    """One layer on one example; not a fully connected one. Returns the squared norm of its parameters' gradient."""
    source, size = layer[SOURCE], layer[IN_H] * layer[IN_W] * layer[IN_C]
    before = slopes[source : source + size]
    if layer[KIND] == CONVOLUTION:
        return _convolution_backward(layer, values, slopes, further, scratch)
    if layer[KIND] == POOLING:
        _pool_backward(layer, slopes, winners)
    elif layer[KIND] == RELU:
        kept, nothing = values[source : source + size], values.dtype.type(0)
        for k in range(len(before)):
            slope = before[k]
            before[k] = slope if kept[k] > 0 else nothing
    else:
        pixels, after = layer[IN_H] * layer[IN_W], slopes[layer[TARGET] : layer[TARGET] + size]
        for pixel in range(pixels):
            for c in range(layer[IN_C]):
                before[pixel * layer[IN_C] + c] = after[c * pixels + pixel]
    return 0.0


@kernel
def _head(loss: int, outputs: int, label: float, values: Array, slopes: Array) -> None:
    """The loss' gradient at the network's outputs (losses as in :mod:`expost.training._native.linear`)."""
    if loss == 0:
        slopes[0] = 2.0 * (values[0] - label)
    elif loss == 1:
        slopes[0] = 1.0 / (1.0 + math.exp(-values[0])) - label
    else:
        top, mass = values[0], 0.0
        for k in range(outputs):
            top = max(top, values[k])
        for k in range(outputs):
            mass += math.exp(values[k] - top)
        for k in range(outputs):
            slopes[k] = math.exp(values[k] - top) / mass - (1.0 if k == int(label) else 0.0)


@kernel
def load_parameters(table: Array, parameters: Array, scratch: Scratch) -> None:
    """A copy of the parameters in the precision of the rows, and one with each layer's weights transposed."""
    for k in range(len(parameters)):
        scratch.parameters[k] = parameters[k]
    for layer in table:
        if layer[KIND] == CONVOLUTION or layer[KIND] == LINEAR:
            width, start = layer[KH] * layer[KW] * layer[IN_C], layer[PARAMETERS]
            rows, columns = (
                (width, layer[OUT_C]) if layer[KIND] == CONVOLUTION else (layer[OUT_C], width)
            )
            for column in range(columns):
                turned = scratch.turned[start + column * rows : start + (column + 1) * rows]
                for row in range(rows):
                    turned[row] = scratch.parameters[start + row * columns + column]


@kernel
def forward(table: Array, X: Array, rows: Array, scratch: Scratch) -> int:
    """All activations of a block of examples; returns how many layers come before the first fully connected one."""
    stem = 0
    while table[stem, KIND] != LINEAR:
        stem += 1
    for e in range(len(rows)):
        values, pixels = scratch.values[e], X[rows[e]]
        for k in range(len(pixels)):
            values[k] = pixels[k]
        for depth in range(stem):
            _forward(table[depth], values, scratch.winners[e], scratch)
    for depth in range(stem, len(table)):
        if table[depth, KIND] == LINEAR:
            _linear(table[depth], len(rows), scratch)
        else:
            for e in range(len(rows)):
                _forward(table[depth], scratch.values[e], scratch.winners[e], scratch)
    return stem


@kernel
def clipped_sum(
    table: Array,
    X: Array,
    y: Array,
    rows: Array,
    loss: int,
    clip: float,
    scratch: Scratch,
    total: Array,
) -> None:
    """Sum of clipped gradients over ``rows`` in ``total``; an example whose gradient is no finite number adds nothing."""
    total[:] = 0.0
    depths, scales = len(table), np.empty(BLOCK)
    target, outputs = table[depths - 1, TARGET], table[depths - 1, OUT_C]
    for start in range(0, len(rows), BLOCK):
        block = rows[start : start + BLOCK]
        stem, count = forward(table, X, block, scratch), len(block)
        for e in range(count):
            _head(
                loss, outputs, y[block[e]], scratch.values[e, target:], scratch.slopes[e, target:]
            )
        scratch.squares[:] = 0.0
        for depth in range(depths - 1, stem - 1, -1):
            if table[depth, KIND] == LINEAR:
                _linear_backward(table[depth], count, depth > 0, scratch)
            else:
                for e in range(count):
                    _backward(
                        table[depth],
                        scratch.values[e],
                        scratch.slopes[e],
                        scratch.winners[e],
                        depth > 0,
                        scratch,
                    )
        for e in range(count):
            square = scratch.squares[e]
            for depth in range(stem - 1, -1, -1):
                square += _backward(
                    table[depth],
                    scratch.values[e],
                    scratch.slopes[e],
                    scratch.winners[e],
                    depth > 0,
                    scratch,
                )
            norm = math.sqrt(square)
            scales[e] = (1.0 if norm <= clip else clip / norm) if math.isfinite(norm) else 0.0
            for depth in range(stem):
                if table[depth, KIND] == CONVOLUTION and scales[e] != 0.0:
                    _convolution_add(table[depth], scales[e], scratch.gradient, total)
        for depth in range(stem, depths):
            if table[depth, KIND] == LINEAR:
                _linear_add(table[depth], count, scales, scratch, total)


@kernel
def _convolution_add(layer: Array, scale: float, gradients: Array, total: Array) -> None:
    start, size = layer[PARAMETERS], (layer[KH] * layer[KW] * layer[IN_C] + 1) * layer[OUT_C]
    mine, gradient = total[start : start + size], gradients[start : start + size]
    for k in range(len(mine)):
        mine[k] += scale * np.float64(gradient[k])


@kernel
def train_steps(
    table: Array,
    X: Array,
    y: Array,
    loss: int,
    settings: StepSettings,
    state: State,
    source: Stream,
    scratch: Scratch,
    sample: Array,
    done: int,
    steps: int,
) -> None:
    """``steps`` more steps after ``done`` of them; ``sample`` is scratch with room for every row."""
    for step in range(done + 1, done + steps + 1):
        count = poisson_sample(source, settings.rate, len(X), sample)
        load_parameters(table, state.parameters, scratch)
        clipped_sum(table, X, y, sample[:count], loss, settings.clip, scratch, state.total)
        finish_step(state, settings, source, step)
