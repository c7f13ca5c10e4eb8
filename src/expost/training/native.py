"""Convolutional and fully connected networks by DP-SGD: an example forward, backward, clipped and added in one native kernel.

A network is a table, a row a layer (:class:`expost.training.layers.Network`). Activations are kept channels last; a convolution gathers
its patches (positions × patch) once and uses them in both directions; products skip the zeros that ReLU and max-pooling leave in
gradients. A fully connected layer's per-example gradient is an outer product, never stored. Arithmetic is in the precision of the rows
(float32 or float64); norms and sums are float64.
Everything of an example stays in the cache of one core, which is where the speed comes from.
Tests: ``tests/training/test_modules.py``.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from expost.training.compiled import kernel
from expost.training.keystream import Array, Stream, poisson_sample
from expost.training.update import Settings, State, finish_step

CONVOLUTION, POOLING, RELU, FLATTEN, LINEAR = range(5)
KIND, SOURCE, TARGET, PARAMETERS, EXTRA, IN_H, IN_W, IN_C, OUT_H, OUT_W, OUT_C, KH, KW, SH, SW, PH, PW = range(17)
"""Columns of the table: kind; where input, output, parameters and patches (or places of maxima) start; shapes; kernel, stride, padding."""


class Scratch(NamedTuple):
    """One thread's memory for one example."""

    values: Array  # activations, all layers one after another
    slopes: Array  # their gradients
    patches: Array  # of the convolutions
    patch_slopes: Array  # of one convolution
    maxima: Array  # where each pooled maximum came from
    gradient: Array  # of the convolutions' parameters
    parameters: Array  # a copy in the precision of the rows
    listed: Array  # places of non-zeros


@kernel
def _gather_patches(layer: Array, values: Array, patches: Array) -> None:
    in_h, in_w, in_c, out_h = layer[IN_H], layer[IN_W], layer[IN_C], layer[OUT_H]
    out_w, kh, kw, sh = layer[OUT_W], layer[KH], layer[KW], layer[SH]
    sw, ph, pw, source = layer[SW], layer[PH], layer[PW], layer[SOURCE]
    run, place = kw * in_c, layer[EXTRA]
    for row in range(out_h):
        for column in range(out_w):
            left = column * sw - pw
            first, last = max(0, -left) * in_c, min(kw, in_w - left) * in_c
            for y in range(row * sh - ph, row * sh - ph + kh):
                patch = patches[place : place + run]
                place += run
                if y < 0 or y >= in_h or last - first < run:
                    patch[:] = 0
                if 0 <= y < in_h:
                    start = source + (y * in_w + left) * in_c
                    inside, pixels = patch[first:last], values[start + first : start + last]
                    for k in range(len(inside)):
                        inside[k] = pixels[k]


@kernel
def _scatter_patches(layer: Array, patch_slopes: Array, slopes: Array) -> None:
    """Add the patches' gradients to those of the pixels they were gathered from."""
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
                    inside, pixels = patch_slopes[place + first : place + last], slopes[start + first : start + last]
                    for k in range(len(inside)):
                        pixels[k] += inside[k]
                place += run


@kernel
def _products(rows: Array, weights: Array, bias: Array, out: Array, count: int, width: int, outputs: int) -> None:
    """out[r, o] = rows[r]·weights[o] + bias[o]; four outputs share a look at the row."""
    for r in range(count):
        row = rows[r * width : (r + 1) * width]
        o = 0
        while o + 4 <= outputs:
            w0, w1 = weights[o * width : (o + 1) * width], weights[(o + 1) * width : (o + 2) * width]
            w2, w3 = weights[(o + 2) * width : (o + 3) * width], weights[(o + 3) * width : (o + 4) * width]
            s0, s1, s2, s3 = bias[o], bias[o + 1], bias[o + 2], bias[o + 3]
            for k in range(width):
                s0 += row[k] * w0[k]
                s1 += row[k] * w1[k]
                s2 += row[k] * w2[k]
                s3 += row[k] * w3[k]
            out[r * outputs + o], out[r * outputs + o + 1] = s0, s1
            out[r * outputs + o + 2], out[r * outputs + o + 3] = s2, s3
            o += 4
        while o < outputs:
            s0 = bias[o]
            for k in range(width):
                s0 += row[k] * weights[o * width + k]
            out[r * outputs + o] = s0
            o += 1


@kernel
def _add_rows(factors: Array, stride: int, count: int, rows: Array, width: int, out: Array, listed: Array) -> None:
    """out += Σ factors[r·stride]·rows[r] over the non-zero factors, four rows at a time."""
    found = 0
    for r in range(count):
        listed[found] = r
        found += 1 if factors[r * stride] != 0.0 else 0
    done = 0
    while done + 4 <= found:
        a, b, c, d = listed[done], listed[done + 1], listed[done + 2], listed[done + 3]
        f0, f1, f2, f3 = factors[a * stride], factors[b * stride], factors[c * stride], factors[d * stride]
        r0, r1 = rows[a * width : (a + 1) * width], rows[b * width : (b + 1) * width]
        r2, r3 = rows[c * width : (c + 1) * width], rows[d * width : (d + 1) * width]
        for k in range(width):
            out[k] += f0 * r0[k] + f1 * r1[k] + f2 * r2[k] + f3 * r3[k]
        done += 4
    while done < found:
        a = listed[done]
        f0 = factors[a * stride]
        for k in range(width):
            out[k] += f0 * rows[a * width + k]
        done += 1


@kernel
def _pool(layer: Array, values: Array, maxima: Array) -> None:
    """The first largest value of each window, as in torch; with a horizontal stride of 1 a whole row of windows at a time."""
    in_w, out_h, out_w, channels = layer[IN_W], layer[OUT_H], layer[OUT_W], layer[OUT_C]
    kh, kw, sh, sw = layer[KH], layer[KW], layer[SH], layer[SW]
    source, target, extra = layer[SOURCE], layer[TARGET], layer[EXTRA]
    runs, length = (1, out_w * channels) if sw == 1 else (out_w, channels)
    for row in range(out_h):
        for run in range(runs):
            here = (row * out_w + run) * channels
            best, origin = values[target + here : target + here + length], maxima[extra + here : extra + here + length]
            for y in range(kh):
                for x in range(kw):
                    there = ((row * sh + y) * in_w + run * sw + x) * channels
                    pixels = values[source + there : source + there + length]
                    if y == 0 and x == 0:
                        for k in range(len(best)):
                            best[k] = pixels[k]
                            origin[k] = there + k
                    else:
                        for k in range(len(best)):
                            better = pixels[k] > best[k]
                            best[k] = pixels[k] if better else best[k]
                            origin[k] = there + k if better else origin[k]


@kernel
def forward(table: Array, x: Array, scratch: Scratch) -> None:
    """All activations of one example."""
    values, parameters = scratch.values, scratch.parameters
    for k in range(len(x)):
        values[k] = x[k]
    for layer in table:
        size = layer[OUT_H] * layer[OUT_W] * layer[OUT_C]
        before, after = values[layer[SOURCE] : layer[TARGET]], values[layer[TARGET] : layer[TARGET] + size]
        if layer[KIND] == CONVOLUTION or layer[KIND] == LINEAR:
            width, outputs = layer[KH] * layer[KW] * layer[IN_C], layer[OUT_C]
            if layer[KIND] == CONVOLUTION:
                _gather_patches(layer, values, scratch.patches)
                before = scratch.patches[layer[EXTRA] :]
            weights = parameters[layer[PARAMETERS] : layer[PARAMETERS] + outputs * width]
            bias = parameters[layer[PARAMETERS] + outputs * width :]
            _products(before, weights, bias, after, layer[OUT_H] * layer[OUT_W], width, outputs)
        elif layer[KIND] == POOLING:
            _pool(layer, values, scratch.maxima)
        elif layer[KIND] == RELU:
            for k in range(len(after)):
                after[k] = before[k] if before[k] > 0 else 0
        else:
            pixels = layer[IN_H] * layer[IN_W]
            for pixel in range(pixels):
                for c in range(layer[IN_C]):
                    after[c * pixels + pixel] = before[pixel * layer[IN_C] + c]


@kernel
def backward(table: Array, scratch: Scratch) -> float:
    """Gradients of all activations but the first, and of the convolutions' parameters, from that of the last; returns the squared norm."""
    square = 0.0
    for depth in range(len(table) - 1, -1, -1):
        layer = table[depth]
        source, target = layer[SOURCE], layer[TARGET]
        size = layer[OUT_H] * layer[OUT_W] * layer[OUT_C]
        before, after = scratch.slopes[source:target], scratch.slopes[target : target + size]
        if layer[KIND] == CONVOLUTION:
            square += _convolution_backward(layer, after, depth > 0, scratch)
        elif layer[KIND] == LINEAR:
            width = layer[IN_C]
            rows, outs = 1.0 + _square(scratch.values[source:target]), _square(after)
            square += rows * outs
            if depth > 0:
                before[:] = 0
                weights = scratch.parameters[layer[PARAMETERS] : layer[PARAMETERS] + layer[OUT_C] * width]
                _add_rows(after, 1, layer[OUT_C], weights, width, before, scratch.listed)
        elif layer[KIND] == POOLING:
            before[:] = 0
            origin = scratch.maxima[layer[EXTRA] : layer[EXTRA] + size]
            for k in range(len(after)):
                before[origin[k]] += after[k]
        elif layer[KIND] == RELU:
            values = scratch.values[source:target]
            for k in range(len(after)):
                before[k] = after[k] if values[k] > 0 else 0
        else:
            pixels = layer[IN_H] * layer[IN_W]
            for pixel in range(pixels):
                for c in range(layer[IN_C]):
                    before[pixel * layer[IN_C] + c] = after[c * pixels + pixel]
    return square


@kernel
def _square(vector: Array) -> float:
    total = 0.0
    for k in range(len(vector)):
        total += np.float64(vector[k]) * np.float64(vector[k])
    return total


@kernel
def _convolution_backward(layer: Array, after: Array, further: bool, scratch: Scratch) -> float:
    """The parameters' gradient, and if there are layers before, that of the input; returns the former's squared norm."""
    channels, positions, start = layer[OUT_C], layer[OUT_H] * layer[OUT_W], layer[PARAMETERS]
    width = layer[KH] * layer[KW] * layer[IN_C]
    patches = scratch.patches[layer[EXTRA] :]
    gradient = scratch.gradient[start : start + channels * (width + 1)]
    gradient[:] = 0
    biases = gradient[channels * width :]
    for p in range(positions):
        here = after[p * channels : (p + 1) * channels]
        for o in range(len(biases)):
            biases[o] += here[o]
    for o in range(channels):
        _add_rows(after[o:], channels, positions, patches, width, gradient[o * width : (o + 1) * width], scratch.listed)
    if further:
        weights = scratch.parameters[start : start + channels * width]
        for p in range(positions):
            mine = scratch.patch_slopes[p * width : (p + 1) * width]
            mine[:] = 0
            _add_rows(after[p * channels :], 1, channels, weights, width, mine, scratch.listed)
        scratch.slopes[layer[SOURCE] : layer[TARGET]] = 0
        _scatter_patches(layer, scratch.patch_slopes, scratch.slopes)
    return _square(gradient)


@kernel
def _head(loss: int, outputs: int, label: float, values: Array, slopes: Array) -> None:
    """The loss' gradient at the network's outputs (losses as in :mod:`expost.training.linear`)."""
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
def _add(table: Array, scratch: Scratch, scale: float, total: Array) -> None:
    """total += scale × the example's gradient."""
    for layer in table:
        width, outputs, start = layer[KH] * layer[KW] * layer[IN_C], layer[OUT_C], layer[PARAMETERS]
        if layer[KIND] == CONVOLUTION:
            size = outputs * (width + 1)
            mine, gradient = total[start : start + size], scratch.gradient[start : start + size]
            for k in range(len(mine)):
                mine[k] += scale * np.float64(gradient[k])
        elif layer[KIND] == LINEAR:
            inputs = scratch.values[layer[SOURCE] : layer[TARGET]]
            for o in range(outputs):
                factor = scale * np.float64(scratch.slopes[layer[TARGET] + o])
                if factor != 0.0:
                    mine = total[start + o * width : start + (o + 1) * width]
                    for k in range(len(mine)):
                        mine[k] += factor * np.float64(inputs[k])
                    total[start + outputs * width + o] += factor


@kernel
def clipped_sum(table: Array, X: Array, y: Array, rows: Array, loss: int, clip: float, scratch: Scratch, total: Array) -> None:
    """Sum of clipped gradients over ``rows`` in ``total``; an example whose gradient is no finite number adds nothing."""
    total[:] = 0.0
    last = table[len(table) - 1]
    target, outputs = last[TARGET], last[OUT_C]
    for row in rows:
        forward(table, X[row], scratch)
        _head(loss, outputs, y[row], scratch.values[target:], scratch.slopes[target:])
        norm = math.sqrt(backward(table, scratch))
        if math.isfinite(norm):
            _add(table, scratch, 1.0 if norm <= clip else clip / norm, total)


@kernel
def train_steps(
    table: Array,
    X: Array,
    y: Array,
    loss: int,
    settings: Settings,
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
        for k in range(len(scratch.parameters)):
            scratch.parameters[k] = state.parameters[k]
        clipped_sum(table, X, y, sample[:count], loss, settings.clip, scratch, state.total)
        finish_step(state, settings, source, step)
