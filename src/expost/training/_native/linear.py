"""Linear, logistic and softmax regression by DP-SGD: whole training steps in one native kernel.

Each thread trains one model at a time.

The gradient of an example is the product of its residuals and its row with a 1 appended for the
bias. So its norm is ‖residuals‖·‖(x, 1)‖, and the clipped sum (see
:mod:`expost.training._native.clipping`) is computed without storing the gradient. The losses are
those of torch: squared error (prediction − y)², and binary and categorical cross-entropy of logits.

Rows may be float32 or float64. Products of rows and parameters are in the precision of the rows.
Residuals, norms, clip factors, sums and parameters are float64. A residual that overflowed is
clipped like any other. A residual that is not a number adds nothing. So no row moves the sum by
more than the clipping norm, up to the rounding of a float64 sum (1e-16 of the sum for each row).

Parameters are flat: for each output its weights, then its bias.
Tests: ``tests/training/test_linear.py``.
"""

from __future__ import annotations

import math

import numpy as np

from expost.arrays import Array
from expost.training._native.clipping import clip_factor, clipped_residual
from expost.training._native.compiled import kernel
from expost.training._native.keystream import Stream, poisson_sample
from expost.training._native.update import State, StepSettings, finish_step
from expost.training._native.vector_products import (
    add_rows1,
    add_rows4,
    add_rows8,
    prefetch,
    row_products1,
    row_products4,
    row_products8,
)

SQUARED, LOGISTIC, SOFTMAX = 0, 1, 2


@kernel
def row_norms(X: Array) -> Array:
    """Return ‖(x, 1)‖ of each row."""
    norms = np.empty(len(X))
    for row in range(len(X)):
        total = 1.0
        for column in range(X.shape[1]):
            total += np.float64(X[row, column]) ** 2
        norms[row] = math.sqrt(total)
    return norms


@kernel
def _scale(logit: float, target: float, norm: float, clip: float, loss: int) -> float:
    """Return the number by which a row is multiplied in the sum."""
    residual = (
        2.0 * (logit - target) if loss == SQUARED else 1.0 / (1.0 + math.exp(-logit)) - target
    )
    return clipped_residual(residual, norm, clip)


@kernel
def _products(X: Array, rows: Array, place: int, height: int, weights: Array, out: Array) -> None:
    """Multiply ``height`` rows (8, 4 or 1) by ``weights``; prefetch the rows that follow."""
    later = max(place, min(place + height, len(rows) - height))
    if height == 8:
        row_products8(X, rows, place, later, weights, out)
    elif height == 4:
        row_products4(X, rows, place, later, weights, out)
    else:
        row_products1(X, rows, place, later, weights, out)


@kernel
def _add(X: Array, rows: Array, place: int, height: int, total: Array, factors: Array) -> None:
    """Add the rows of :func:`_products` times ``factors`` to ``total``, which ends in the bias."""
    later = max(place, min(place + height, len(rows) - height))
    if height == 8:
        add_rows8(X, rows, place, later, total, factors)
    elif height == 4:
        add_rows4(X, rows, place, later, total, factors)
    else:
        add_rows1(X, rows, place, later, total, factors)
    for r in range(height):
        total[X.shape[1]] += factors[r]


@kernel
def _height(left: int) -> int:
    """Return how many rows are processed together, which share loads of parameters and sums."""
    return 8 if left >= 8 else (4 if left >= 4 else 1)


@kernel
def clipped_sum_single(
    X: Array,
    y: Array,
    norms: Array,
    rows: Array,
    parameters: Array,
    clip: float,
    loss: int,
    total: Array,
) -> None:
    """Write the sum of clipped gradients over ``rows`` to ``total``, for one output."""
    total[:] = 0.0
    weights, scales = parameters.astype(X.dtype), np.empty(8)
    bias, place = parameters[X.shape[1]], 0
    while place < len(rows):
        height = _height(len(rows) - place)
        for later in rows[place + height : place + 2 * height]:
            prefetch(y, later)
            prefetch(norms, later)
        _products(X, rows, place, height, weights, scales)
        for r in range(height):
            row = rows[place + r]
            scales[r] = _scale(scales[r] + bias, y[row], norms[row], clip, loss)
        _add(X, rows, place, height, total, scales)
        place += height


@kernel
def clipped_sum_softmax(
    X: Array,
    y: Array,
    norms: Array,
    rows: Array,
    parameters: Array,
    clip: float,
    classes: int,
    total: Array,
) -> None:
    """Write the same sum for ``classes`` outputs; ``y`` holds class numbers."""
    total[:] = 0.0
    width, place = X.shape[1] + 1, 0
    weights, residuals = parameters.astype(X.dtype), np.empty((classes, 8))
    while place < len(rows):
        height = _height(len(rows) - place)
        for k in range(classes):
            _products(X, rows, place, height, weights[k * width :], residuals[k])
            residuals[k] += parameters[(k + 1) * width - 1]
        for r in range(height):
            row = rows[place + r]
            _softmax_scales(residuals[:, r], int(y[row]), norms[row], clip)
        for k in range(classes):
            _add(X, rows, place, height, total[k * width : (k + 1) * width], residuals[k])
        place += height


@kernel
def _softmax_scales(logits: Array, label: int, norm: float, clip: float) -> None:
    """Replace logits by the numbers by which the row is multiplied in each output's sum."""
    top, mass, square = -math.inf, 0.0, 0.0
    for k in range(len(logits)):
        top = max(top, logits[k])
    for k in range(len(logits)):
        logits[k] = math.exp(logits[k] - top)
        mass += logits[k]
    for k in range(len(logits)):
        logits[k] = logits[k] / mass - (1.0 if k == label else 0.0)
        square += logits[k] * logits[k]
    length = math.sqrt(square) * norm
    scale = clip_factor(length, clip)
    for k in range(len(logits)):
        logits[k] = 0.0 if math.isnan(length) else scale * logits[k]


@kernel
def train_steps(
    X: Array,
    y: Array,
    norms: Array,
    loss: int,
    classes: int,
    settings: StepSettings,
    state: State,
    source: Stream,
    sample: Array,
    done: int,
    steps: int,
) -> None:
    """Make steps ``done`` + 1 to ``done`` + ``steps``; ``sample`` is scratch for all rows."""
    for step in range(done + 1, done + steps + 1):
        count = poisson_sample(source, settings.rate, len(X), sample)
        if loss == SOFTMAX:
            clipped_sum_softmax(
                X, y, norms, sample[:count], state.parameters, settings.clip, classes, state.total
            )
        else:
            clipped_sum_single(
                X, y, norms, sample[:count], state.parameters, settings.clip, loss, state.total
            )
        finish_step(state, settings, source, step)
