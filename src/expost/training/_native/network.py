"""Convolutional and fully connected networks by DP-SGD: whole training steps in one native kernel.

For each block of examples, a step runs the forward pass, the backward pass, the clipping and the
sum. The layers themselves are in :mod:`expost.training._native.network_layers`. Layers before the
first fully connected layer process one example at a time. The other layers process a block of
examples, so their weights are read once per block. All data of a block stay in the cache of one
core.

Arithmetic is in the precision of the rows (float32 or float64). Norms and clip factors
(:mod:`expost.training._native.linear`) are float64. The sum over examples is in fixed point
(:mod:`expost.training._native.fixed_point`). The gradient that is added is the gradient whose norm
was computed, so one example moves the sum by no more than the clipping norm, exactly. An example
whose target is NaN does not count. Class weights multiply the gradient at the outputs, before the
backward pass, so they are part of the gradient whose norm is computed.

:class:`Network` translates a chain of layers (:mod:`expost.training._torch.plain_chain`) into the
table of the kernel. The columns of the table are defined in
:mod:`expost.training._native.network_layers`.

Tests: ``tests/training/test_modules.py`` and ``tests/training/test_sensitivity.py``.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import nn

from expost.arrays import Array
from expost.errors import InvalidInput
from expost.training._native.compiled import kernel
from expost.training._native.fixed_point import from_steps
from expost.training._native.linear import clip_factor, weight_of
from expost.training._native.network_layers import (
    BLOCK,
    CONVOLUTION,
    FLATTEN,
    IN_C,
    KH,
    KIND,
    KW,
    LINEAR,
    OUT_C,
    PARAMETERS,
    POOLING,
    RELU,
    TARGET,
    Scratch,
    add_convolution,
    add_linear,
    layer_backward,
    layer_forward,
    linear_backward,
    linear_forward,
)
from expost.training._native.noise import (
    StepSettings,
    Stream,
    TrainingState,
    noisy,
    poisson_sample,
    update,
)
from expost.training._native.vector_products import VECTOR
from expost.training._torch.plain_chain import UnsupportedChain, pair, plain_layers
from expost.training.exact_noise import Bound


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
