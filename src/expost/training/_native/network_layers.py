"""Layers of a native network: forward pass, backward pass, and their part of the clipped sum.

A network is a table with one row per layer (:class:`expost.training._native.network.Network`
makes it). The columns of the table and the memory of a thread (:class:`Scratch`) are defined here.

Activations are stored with the channels last. Every product of a convolution or a fully connected
layer, forward and backward, is computed in tiles (:mod:`expost.training._native.vector_products`).
A convolution reads its patches directly from the image, which has a border of zeros. The gradient
of one example in a fully connected layer is an outer product and is never stored.

Arithmetic is in the precision of the rows (float32 or float64). Squared norms are float64, and
never too small: what vanishes below the least double is added. Sums over examples are in fixed
point (:mod:`expost.training._native.fixed_point`). Tests: ``tests/training/test_modules.py``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from expost.arrays import Array
from expost.training._native.compiled import kernel, ordered
from expost.training._native.fixed_point import add_outer_products, grid_steps
from expost.training._native.vector_products import TALLEST, VECTOR, product

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
"""Columns of the table: the kind of layer; where its input, output and parameters start; where the
image with its border starts (convolution) or the winners start (pooling); shapes; kernel, stride
and padding. ReLU works in place."""

BLOCK = TALLEST  # number of examples in a block


class Scratch(NamedTuple):
    """Memory of one thread for a block of examples.

    The rows of ``values`` and ``slopes`` are padded at the end by one vector.
    """

    values: Array  # activations, one row per example, the layers one after another
    slopes: Array  # gradients of the activations
    patch_slopes: Array  # gradients of the patches of one convolution
    winners: Array  # index of the maximum in each pooling window
    gradient: Array  # gradient of the convolutions' parameters for one example
    parameters: Array  # copy of the parameters in the precision of the rows
    turned: Array  # the same with the weights of each layer transposed
    squares: Array  # squared norms of the gradients of a block
    outer: Array  # float64: inputs of a linear layer for a block, then its clipped slopes
    zeros: Array


@kernel
def _convolve(layer: Array, values: Array, scratch: Scratch) -> None:
    """Compute a convolution on one example; copy the image into its border of zeros first."""
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
        product(out_w, channels, values, layer[EXTRA] + row * sh * wide, sw * in_c, wide, 1,
                scratch.parameters, start, run * channels, channels, kh, run, bias, 0, 1,
                values, layer[TARGET] + row * out_w * channels, channels)  # fmt: skip


@kernel
def _convolution_backward(
    layer: Array, values: Array, slopes: Array, further: bool, scratch: Scratch
) -> float:
    """Compute the gradient of the parameters and return its squared norm.

    With ``further``, which says that layers come before this one, also compute the gradient of the
    input.
    """
    in_c, out_h, out_w, channels = layer[IN_C], layer[OUT_H], layer[OUT_W], layer[OUT_C]
    kh, sh, sw, start, target = layer[KH], layer[SH], layer[SW], layer[PARAMETERS], layer[TARGET]
    run, wide = layer[KW] * in_c, (layer[IN_W] + 2 * layer[PW]) * in_c
    width, positions = kh * run, out_h * out_w
    gradient = scratch.gradient[start : start + (width + 1) * channels]
    for y in range(kh):
        product(run, channels, values, layer[EXTRA] + y * wide, 1, sh * wide, sw * in_c,
                slopes, target, out_w * channels, channels, out_h, out_w, scratch.zeros, 0, 0,
                gradient, y * run * channels, channels)  # fmt: skip
    biases = gradient[width * channels :]
    biases[:] = 0
    for p in range(positions):
        here = slopes[target + p * channels : target + (p + 1) * channels]
        for o in range(len(biases)):
            biases[o] += here[o]
    if further:
        product(positions, width, slopes, target, channels, 0, 1, scratch.turned, start, 0, width,
                1, channels, scratch.zeros, 0, 0, scratch.patch_slopes, 0, width)  # fmt: skip
        slopes[layer[SOURCE] : layer[SOURCE] + layer[IN_H] * layer[IN_W] * in_c] = 0
        _scatter_patches(layer, scratch.patch_slopes, slopes)
    return _square(gradient)


@kernel
def _scatter_patches(layer: Array, patch_slopes: Array, slopes: Array) -> None:
    """Add the gradients of the patches to the gradients of their pixels."""
    in_h, in_w, in_c, out_h = layer[IN_H], layer[IN_W], layer[IN_C], layer[OUT_H]
    out_w, kh, kw, sh = layer[OUT_W], layer[KH], layer[KW], layer[SH]
    sw, ph, pw, source = layer[SW], layer[PH], layer[PW], layer[SOURCE]
    run, index = kw * in_c, 0
    for row in range(out_h):
        for column in range(out_w):
            left = column * sw - pw
            first, last = max(0, -left) * in_c, min(kw, in_w - left) * in_c
            for y in range(row * sh - ph, row * sh - ph + kh):
                if 0 <= y < in_h:
                    start = source + (y * in_w + left) * in_c
                    inside, pixels = (
                        patch_slopes[index + first : index + last],
                        slopes[start + first : start + last],
                    )
                    for k in range(len(inside)):
                        pixels[k] += inside[k]
                index += run


@kernel
def _pool(layer: Array, values: Array, winners: Array) -> None:
    """Write the first largest value of each window, as torch does.

    With a horizontal stride of 1, a whole row of windows is processed at a time.
    """
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
                        pixel, largest, index = pixels[k], best[k], winner[k]
                        best[k] = pixel if pixel > largest else largest
                        winner[k] = number if pixel > largest else index


@kernel
def _pool_backward(layer: Array, slopes: Array, winners: Array) -> None:
    """Add the gradient of each pooled value to the gradient of its pixel."""
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
def linear_forward(layer: Array, count: int, scratch: Scratch) -> None:
    """Compute a fully connected layer on ``count`` examples of a block."""
    width, outputs, start = layer[IN_C], layer[OUT_C], layer[PARAMETERS]
    values = scratch.values
    flat, row = values.reshape(-1), values.shape[1]
    bias = scratch.parameters[start + width * outputs :]
    product(count, outputs, flat, layer[SOURCE], row, 0, 1, scratch.turned, start, 0, outputs,
            1, width, bias, 0, 1, flat, layer[TARGET], row)  # fmt: skip


@kernel
def linear_backward(layer: Array, count: int, further: bool, scratch: Scratch) -> None:
    """Add the squared norms of the parameters' gradients to ``scratch.squares``.

    With ``further``, which says that layers come before this one, also compute the gradients of the
    input.
    """
    width, outputs, source, target = layer[IN_C], layer[OUT_C], layer[SOURCE], layer[TARGET]
    for e in range(count):
        inputs, after = (
            scratch.values[e, source : source + width],
            scratch.slopes[e, target : target + outputs],
        )
        scratch.squares[e] += (1.0 + _square(inputs)) * (_square(after) + outputs * 2.0**-1021)
    if further:
        flat, row = scratch.slopes.reshape(-1), scratch.slopes.shape[1]
        product(count, width, flat, target, row, 0, 1, scratch.parameters, layer[PARAMETERS], 0,
                width, 1, outputs, scratch.zeros, 0, 0, flat, source, row)  # fmt: skip


@kernel
def add_linear(layer: Array, count: int, scales: Array, scratch: Scratch, sums: Array,
               anchor: float) -> None:  # fmt: skip
    """Add the steps of scale × gradient of every example of a block to ``sums``.

    An example with scale 0 adds nothing, even if its gradient is not finite.
    """
    width, outputs, start = layer[IN_C], layer[OUT_C], layer[PARAMETERS]
    outer, room = scratch.outer, BLOCK * (width + VECTOR)
    biases = sums[start + width * outputs : start + (width + 1) * outputs]
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
                biases[o] += grid_steps(factors[o], anchor)
    mine = sums[start : start + width * outputs]
    add_outer_products(outputs, width, outer, room, outer, count, anchor, mine)


@kernel
def _square(vector: Array) -> float:
    """Return the squared norm in float64."""
    total = 0.0
    for k in range(len(vector)):
        total += np.float64(vector[k]) * np.float64(vector[k])
    return total


@kernel
def layer_forward(layer: Array, values: Array, winners: Array, scratch: Scratch) -> None:
    """Compute a layer that is not fully connected on one example."""
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
def layer_backward(
    layer: Array, values: Array, slopes: Array, winners: Array, further: bool, scratch: Scratch
) -> float:
    """Compute the gradients of a layer that is not fully connected for one example.

    Return the squared norm of the gradient of its parameters.
    """
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


@ordered
def add_convolution(layer: Array, scale: float, gradients: Array, sums: Array,
                    anchor: float) -> None:  # fmt: skip
    """Add the steps of scale × gradient of one example to ``sums``."""
    start, size = layer[PARAMETERS], (layer[KH] * layer[KW] * layer[IN_C] + 1) * layer[OUT_C]
    mine, gradient = sums[start : start + size], gradients[start : start + size]
    for k in range(len(mine)):
        mine[k] += grid_steps(scale * np.float64(gradient[k]), anchor)
