"""Convolutional and fully connected networks by DP-SGD: whole training steps in one native kernel.

For each block of examples, a step runs the forward pass, the backward pass, the clipping and the
sum. The layers themselves are in :mod:`expost.training._native.network_layers`. Layers before the
first fully connected layer process one example at a time. The other layers process a block of
examples, so their weights are read once per block. All data of a block stay in the cache of one
core.

Arithmetic is in the precision of the rows (float32 or float64). Norms and clip factors
(:mod:`expost.training._native.clipping`) are float64. The sum over examples is in fixed point
(:mod:`expost.training._native.fixed_point`). The gradient that is added is the gradient whose norm
was computed, so one example moves the sum by no more than the clipping norm, exactly. An example
whose target is NaN does not count. Class weights multiply the gradient at the outputs, before the
backward pass, so they are part of the gradient whose norm is computed.

Tests: ``tests/training/test_modules.py`` and ``tests/training/test_sensitivity.py``.
"""

from __future__ import annotations

import math

import numpy as np

from expost.arrays import Array
from expost.training._native.clipping import clip_factor
from expost.training._native.compiled import kernel
from expost.training._native.fixed_point import from_steps
from expost.training._native.keystream import Stream, poisson_sample
from expost.training._native.linear import weight_of
from expost.training._native.network_layers import (
    BLOCK,
    CONVOLUTION,
    IN_C,
    KH,
    KIND,
    KW,
    LINEAR,
    OUT_C,
    PARAMETERS,
    TARGET,
    Scratch,
    add_convolution,
    add_linear,
    layer_backward,
    layer_forward,
    linear_backward,
    linear_forward,
)
from expost.training._native.update import State, StepSettings, noisy, update
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
