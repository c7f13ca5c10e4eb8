"""Convolutional and fully connected networks by DP-SGD: whole training steps in one native kernel.

For each block of examples, a step runs the forward pass, the backward pass, the clipping and the
sum. Layers before the first fully connected layer process one example at a time. The other layers
process a block of examples, so their weights are read once per block. All data of a block stay in
the cache of one core.

Arithmetic is in the precision of the rows (float32 or float64). Norms and clip factors
(:mod:`expost.training._native.linear`) are float64. The sum over examples is in fixed point
(:mod:`expost.training._native.fixed_point`). The gradient that is added is the gradient whose norm
was computed, so one example moves the sum by no more than the clipping norm, exactly. An example
whose target is NaN does not count. Class weights multiply the gradient at the outputs, before the
backward pass, so they are part of the gradient whose norm is computed.

:class:`Network` translates a chain of layers (:mod:`expost.training._torch.plain_chain`) into the
table of the kernel, with one row per layer.

**Layers.** Activations are stored with the channels last. Every product of a convolution or a fully
connected layer, forward and backward, is computed in tiles
(:mod:`expost.training._native.vector_products`). A convolution reads its patches directly from the
image, which has a border of zeros. The gradient of one example in a fully connected layer is an
outer product and is never stored. Squared norms are never too small: what vanishes below the least
double is added.

Tests: ``tests/training/test_modules.py`` and ``tests/training/test_sensitivity.py``.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from expost.arrays import Array
from expost.errors import InvalidInput
from expost.training._native.compiled import kernel, ordered
from expost.training._native.fixed_point import add_outer_products, from_steps, grid_steps
from expost.training._native.linear import clip_factor, weight_of
from expost.training._native.noise import (
    StepSettings,
    Stream,
    TrainingState,
    noisy,
    poisson_sample,
    update,
)
from expost.training._native.vector_products import TALLEST, VECTOR, product
from expost.training._torch.plain_chain import UnsupportedChain, pair, plain_layers
from expost.training.exact_noise import Bound

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


@kernel
def _head(
    loss: int,
    outputs: int,
    label: float,
    values: Array,
    slopes: Array,
    class_weights: Array,
) -> None:
    """Write the gradient of the loss at the outputs; losses as in ``_native/linear.py``."""
    if math.isnan(label):  # an example that does not count: its gradient is no number
        slopes[:outputs] = np.nan
    elif loss == 0:
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
            slopes[k] = math.exp(values[k] - top) / mass - (1.0 if k == label else 0.0)
    if len(class_weights) > 0:
        for k in range(outputs):
            slopes[k] *= weight_of(label, class_weights)


@kernel
def load_parameters(table: Array, parameters: Array, scratch: Scratch) -> None:
    """Copy the parameters in the precision of the rows, plain and with each weight transposed."""
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
    """Compute the activations of a block; return the number of layers before the first Linear."""
    stem = 0
    while table[stem, KIND] != LINEAR:
        stem += 1
    for e in range(len(rows)):
        values, pixels = scratch.values[e], X[rows[e]]
        for k in range(len(pixels)):
            values[k] = pixels[k]
        for depth in range(stem):
            layer_forward(table[depth], values, scratch.winners[e], scratch)
    for depth in range(stem, len(table)):
        if table[depth, KIND] == LINEAR:
            linear_forward(table[depth], len(rows), scratch)
        else:
            for e in range(len(rows)):
                layer_forward(table[depth], scratch.values[e], scratch.winners[e], scratch)
    return stem


@kernel
def clipped_sum(
    table: Array,
    X: Array,
    y: Array,
    rows: Array,
    loss: int,
    bound: Bound,
    scratch: Scratch,
    total: Array,
    class_weights: Array,
) -> None:
    """Write the sum of clipped gradients over ``rows`` to ``total``.

    An example whose gradient is not finite contributes nothing.
    """
    sums = total.view(np.int64)
    sums[:] = 0
    depths, scales = len(table), np.empty(BLOCK)
    target, outputs = table[depths - 1, TARGET], table[depths - 1, OUT_C]
    for start in range(0, len(rows), BLOCK):
        block = rows[start : start + BLOCK]
        stem, count = forward(table, X, block, scratch), len(block)
        for e in range(count):
            _head(
                loss,
                outputs,
                y[block[e]],
                scratch.values[e, target:],
                scratch.slopes[e, target:],
                class_weights,
            )
        scratch.squares[:] = 0.0
        for depth in range(depths - 1, stem - 1, -1):
            if table[depth, KIND] == LINEAR:
                linear_backward(table[depth], count, depth > 0, scratch)
            else:
                for e in range(count):
                    layer_backward(
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
                square += layer_backward(
                    table[depth],
                    scratch.values[e],
                    scratch.slopes[e],
                    scratch.winners[e],
                    depth > 0,
                    scratch,
                )
            scales[e] = clip_factor(math.sqrt(square), bound.clip)
            for depth in range(stem):
                if table[depth, KIND] == CONVOLUTION and scales[e] != 0.0:
                    add_convolution(table[depth], scales[e], scratch.gradient, sums, bound.anchor)
        for depth in range(stem, depths):
            if table[depth, KIND] == LINEAR:
                add_linear(table[depth], count, scales, scratch, sums, bound.anchor)
    from_steps(sums, bound.grid, total)


@kernel
def train_network(
    table: Array,
    X: Array,
    y: Array,
    loss: int,
    scratch: Scratch,
    settings: StepSettings,
    state: TrainingState,
    source: Stream,
    sample: Array,
    done: int,
    steps: int,
    resumed: bool,
    class_weights: Array,
) -> int:
    """Make steps ``done`` + 1 to ``done`` + ``steps``, as in ``_native/linear.py``."""
    for step in range(done + 1, done + steps + 1):
        if not (resumed and step == done + 1):
            count = poisson_sample(source, settings.rate, len(X), sample)
            load_parameters(table, state.parameters, scratch)
            rows, total = sample[:count], state.total
            clipped_sum(table, X, y, rows, loss, settings.bound, scratch, total, class_weights)
            if noisy(state, settings, source) > 0:
                return step - 1
        update(state, settings, step)
    return done + steps


_KINDS: dict[type[nn.Module], int] = {
    nn.Conv2d: CONVOLUTION,
    nn.MaxPool2d: POOLING,
    nn.ReLU: RELU,
    nn.Flatten: FLATTEN,
    nn.Linear: LINEAR,
}


class Network:
    """Table of a chain of layers, for examples of one shape."""

    def __init__(self, module: nn.Module, shape: tuple[int, ...]) -> None:
        layers = plain_layers(module, shape)
        self._shape = (shape[1], shape[2], shape[0]) if len(shape) == 3 else (1, 1, shape[-1])
        self.channels_last = len(shape) == 3
        self.double = any(value.dtype == torch.float64 for value in module.parameters())
        here, values, parameters, winners, patches, outer = (
            self._shape,
            int(np.prod(self._shape)),
            0,
            0,
            1,
            1,
        )
        rows, source = [], 0
        # names and shapes in torch, in the order of the kernel
        self._pieces: list[tuple[str, tuple[int, ...]]] = []
        for name, layer in layers:
            kind, after, window = _describe(layer, here)
            size, width = int(np.prod(after)), window[0] * window[1] * here[2]
            extra, bordered = (
                winners,
                int(np.prod([here[axis] + 2 * window[4 + axis] for axis in (0, 1)])) * here[2],
            )
            if kind == CONVOLUTION:
                extra = values if bordered > np.prod(here) else source
                values += bordered if bordered > np.prod(here) else 0
                patches = max(patches, after[0] * after[1] * width)
            target = source if kind == RELU else values
            rows.append([kind, source, target, parameters, extra, *here, *after, *window])
            if kind in (CONVOLUTION, LINEAR):
                parameters += after[2] * (width + 1)
                self._pieces += [
                    (f"{name}.weight", tuple(layer.weight.shape)),
                    (f"{name}.bias", tuple(layer.bias.shape)),
                ]
            if kind == LINEAR:
                outer = max(outer, BLOCK * (width + VECTOR + after[2]))
            winners += size if kind == POOLING else 0
            source, values, here = target, values + (0 if kind == RELU else size), after
        self.table = np.array(rows, dtype=np.int64)
        self.width, self._sizes = parameters, (values, winners, patches, outer)
        self.work = 3 * sum(
            row[8] * row[9] * row[10] * row[11] * row[12] * row[7]
            for row in rows
            if row[0] in (CONVOLUTION, LINEAR)
        )

    def scratch(self, dtype: Any) -> Scratch:
        """Allocate the memory of one thread."""
        values, winners, patches, outer = self._sizes
        lanes, block = VECTOR // np.dtype(dtype).itemsize, BLOCK
        return Scratch(
            values=np.zeros((block, values + lanes), dtype=dtype),
            slopes=np.zeros((block, values + lanes), dtype=dtype),
            patch_slopes=np.zeros(patches, dtype=dtype),
            winners=np.zeros((block, winners), dtype=np.int32),
            gradient=np.zeros(self.width, dtype=dtype),
            parameters=np.zeros(self.width + lanes, dtype=dtype),
            turned=np.zeros(self.width + lanes, dtype=dtype),
            squares=np.zeros(block),
            outer=np.zeros(outer),
            zeros=np.zeros(lanes, dtype=dtype),
        )

    def rows(self, X: Array) -> Array:
        """Return the examples as flat rows, channels last."""
        ordered = X.transpose(0, 2, 3, 1) if self.channels_last else X
        return np.ascontiguousarray(ordered).reshape(len(X), -1)

    def flat(self, module: nn.Module) -> Array:
        """Return the parameters of a module as a flat array in the order of the kernel."""
        named = {name: value.detach().numpy() for name, value in module.named_parameters()}
        if [(name, named[name].shape) for name, _ in self._pieces if name in named] != self._pieces:
            raise InvalidInput(
                "model", "modules of different shapes", "return the same architecture at every call"
            )
        pieces = [named[name] for name, _ in self._pieces]
        return np.concatenate(
            [(p.transpose(2, 3, 1, 0) if p.ndim == 4 else p).ravel() for p in pieces]
        ).astype(np.float64)

    def named(self, flat: Array, dtype: Any = np.float64) -> dict[str, Array]:
        """Return flat parameters under the names and in the shapes of torch."""
        slices, start = {}, 0
        for name, shape in self._pieces:
            piece = flat[start : start + int(np.prod(shape))]
            start += piece.size
            if len(shape) == 4:
                piece = piece.reshape(shape[2], shape[3], shape[1], shape[0]).transpose(3, 2, 0, 1)
            slices[name] = np.ascontiguousarray(piece.reshape(shape), dtype=dtype)
        return slices


def _describe(
    layer: Any, here: tuple[int, int, int]
) -> tuple[int, tuple[int, int, int], list[int]]:
    """Return kind, output shape, and kernel, stride and padding of a layer.

    ``here`` is the shape of its input: height, width, channels.
    """
    kind, high, wide, channels = _KINDS[type(layer)], *here
    if kind == FLATTEN:
        return kind, (1, 1, high * wide * channels), [1, 1, 1, 1, 0, 0]
    if kind == LINEAR:
        _need(layer.in_features == channels)
        return kind, (1, 1, layer.out_features), [1, 1, 1, 1, 0, 0]
    if kind == RELU:
        return kind, here, [1, 1, 1, 1, 0, 0]
    if kind == CONVOLUTION:
        _need(layer.in_channels == channels)
        channels = layer.out_channels
    kernel, stride, padding = (
        pair(getattr(layer, name)) for name in ("kernel_size", "stride", "padding")
    )
    after = [(here[axis] + 2 * padding[axis] - kernel[axis]) // stride[axis] + 1 for axis in (0, 1)]
    _need(min(after) >= 1)
    return kind, (after[0], after[1], channels), [*kernel, *stride, *padding]


def _need(fits: bool) -> None:
    if not fits:
        raise UnsupportedChain("layers that do not fit each other")
