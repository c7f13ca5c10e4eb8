"""Linear, logistic and softmax regression by DP-SGD: whole training steps in one native kernel.

Each thread trains one model at a time. DP-SGD scales the gradient of each example by
min(1, clip / norm) before summation. An example whose norm is not finite contributes nothing, with
one exception: an infinite residual of a model with one output is clipped, as its sign is known.
:func:`clip_factor` serves networks too; torch's is
:func:`expost.training._torch.clipped_sums.clip_factors`.

The gradient of an example is the product of its residuals and its row with a 1 appended for the
bias. So its norm is ‖residuals‖·‖(x, 1)‖, and the clipped sum
is computed without storing the gradient. The losses are
those of torch: squared error (prediction − y)², and binary and categorical cross-entropy of logits.

Rows may be float32 or float64. Products of rows and parameters are in the precision of the rows.
Residuals, norms, clip factors and parameters are float64. A residual that overflowed is clipped
like any other. A residual that is not a number adds nothing, and neither does a row whose target is
NaN (:mod:`expost.training.configuration` marks rows that do not count in this way). Sums are in
fixed point (:mod:`expost.training._native.fixed_point`). So no row moves the sum by more than the
clipping norm, exactly.

Class weights are part of the loss: residuals are multiplied by the weight of the row's class before
the norm is taken. ``class_weights`` is empty (:data:`NO_WEIGHTS`) if there are none.

Parameters are flat: for each output its weights, then its bias.
Tests: ``tests/training/test_linear.py``, ``tests/training/test_clipping.py`` (both engines agree)
and ``tests/training/test_sensitivity.py`` (the effect of one row on a sum).
"""

from __future__ import annotations

import math

import numpy as np

from expost.arrays import Array
from expost.training._native.compiled import kernel
from expost.training._native.fixed_point import (
    add_rows_together,
    from_steps,
    without_anchors,
)
from expost.training._native.noise import (
    StepSettings,
    Stream,
    TrainingState,
    noisy,
    poisson_sample,
    update,
)
from expost.training._native.vector_products import (
    prefetch,
    row_products,
    rows_together,
)
from expost.training.exact_noise import Bound


@kernel
def clip_factor(norm: float, clip: float) -> float:
    """Return min(1, clip / norm), or 0 if the norm is infinite or not a number."""
    return (1.0 if norm <= clip else clip / norm) if math.isfinite(norm) else 0.0


@kernel
def clipped_residual(residual: float, norm: float, clip: float) -> float:
    """Return the residual of the clipped gradient; the gradient's norm is |residual|·norm.

    An infinite residual is clipped like any other. A residual that is not a number becomes 0.
    """
    if abs(residual) * norm <= clip:
        return residual
    return math.copysign(clip / norm, residual) if not math.isnan(residual) else 0.0


SQUARED, LOGISTIC, SOFTMAX = 0, 1, 2
NO_WEIGHTS: Array = np.zeros(0)


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
def weight_of(label: float, class_weights: Array) -> float:
    """Return the weight of a class; NaN is no class, and its row adds nothing."""
    return class_weights[int(label)] if 0 <= label < len(class_weights) else 0.0


@kernel
def _scale(logit: float, target: float, norm: float, clip: float, loss: int) -> float:
    """Return the number by which a row is multiplied in the sum."""
    residual = (
        2.0 * (logit - target) if loss == SQUARED else 1.0 / (1.0 + math.exp(-logit)) - target
    )
    return clipped_residual(residual, norm, clip)


@kernel
def _weighted_scale(
    logit: float, target: float, norm: float, clip: float, class_weights: Array
) -> float:
    """Return the same number of the logistic loss with class weights."""
    residual = (1.0 / (1.0 + math.exp(-logit)) - target) * weight_of(target, class_weights)
    return clipped_residual(residual, norm, clip)


@kernel
def _products(X: Array, rows: Array, index: int, height: int, weights: Array, out: Array) -> None:
    """Multiply ``height`` rows (8, 4 or 1) by ``weights``; prefetch the rows that follow."""
    later = max(index, min(index + height, len(rows) - height))
    row_products(height, X, rows, index, later, weights, out)


@kernel
def _add(X: Array, rows: Array, index: int, sums: Array, factors: Array, anchor: float) -> None:
    """Add the rows of :func:`_products` times ``factors`` to ``sums``, which end in the bias."""
    for r in range(add_rows_together(X, rows, index, sums, factors, anchor)):
        sums[X.shape[1]] += np.float64(factors[r] + anchor).view(np.int64)


@kernel
def clipped_sum_single(
    X: Array,
    y: Array,
    norms: Array,
    rows: Array,
    parameters: Array,
    bound: Bound,
    loss: int,
    total: Array,
    class_weights: Array,
) -> None:
    """Write the sum of clipped gradients over ``rows`` to ``total``, for one output."""
    sums = total.view(np.int64)
    sums[:] = without_anchors(len(rows), bound.anchor)
    weights, scales = parameters.astype(X.dtype), np.empty(8)
    bias, index = parameters[X.shape[1]], 0
    while index < len(rows):
        height = rows_together(len(rows) - index)
        for later in rows[index + height : index + 2 * height]:
            prefetch(y, later)
            prefetch(norms, later)
        _products(X, rows, index, height, weights, scales)
        if len(class_weights) > 0:
            for r in range(height):
                row = rows[index + r]
                scales[r] = _weighted_scale(
                    scales[r] + bias, y[row], norms[row], bound.clip, class_weights
                )
        else:  # a loop of its own: a branch per row is slower
            for r in range(height):
                row = rows[index + r]
                scales[r] = _scale(scales[r] + bias, y[row], norms[row], bound.clip, loss)
        _add(X, rows, index, sums, scales, bound.anchor)
        index += height
    from_steps(sums, bound.grid, total)


@kernel
def clipped_sum_softmax(
    X: Array,
    y: Array,
    norms: Array,
    rows: Array,
    parameters: Array,
    bound: Bound,
    classes: int,
    total: Array,
    class_weights: Array,
) -> None:
    """Write the same sum for ``classes`` outputs; ``y`` holds class numbers."""
    sums = total.view(np.int64)
    sums[:] = without_anchors(len(rows), bound.anchor)
    width, index = X.shape[1] + 1, 0
    weights, residuals = parameters.astype(X.dtype), np.empty((classes, 8))
    while index < len(rows):
        height = rows_together(len(rows) - index)
        for k in range(classes):
            _products(X, rows, index, height, weights[k * width :], residuals[k])
            residuals[k] += parameters[(k + 1) * width - 1]
        for r in range(height):
            row = rows[index + r]
            _softmax_scales(residuals[:, r], y[row], norms[row], bound.clip, class_weights)
        for k in range(classes):
            mine = sums[k * width : (k + 1) * width]
            _add(X, rows, index, mine, residuals[k], bound.anchor)
        index += height
    from_steps(sums, bound.grid, total)


@kernel
def _softmax_scales(
    logits: Array, label: float, norm: float, clip: float, class_weights: Array
) -> None:
    """Replace logits by the numbers by which the row is multiplied in each output's sum."""
    # squares below the least double vanish, so their largest possible sum is added
    top, mass, square = -math.inf, 0.0, len(logits) * 2.0**-1021
    for k in range(len(logits)):
        top = max(top, logits[k])
    for k in range(len(logits)):
        logits[k] = math.exp(logits[k] - top)
        mass += logits[k]
    for k in range(len(logits)):
        logits[k] = logits[k] / mass - (1.0 if k == label else 0.0)  # NaN is no class
    if len(class_weights) > 0:
        for k in range(len(logits)):
            logits[k] *= weight_of(label, class_weights)
    for k in range(len(logits)):
        square += logits[k] * logits[k]
    length = math.sqrt(square) * norm
    scale = clip_factor(length, clip)
    for k in range(len(logits)):
        logits[k] = 0.0 if math.isnan(length + label) else scale * logits[k]


@kernel
def train_linear(
    X: Array,
    y: Array,
    norms: Array,
    loss: int,
    classes: int,
    settings: StepSettings,
    state: TrainingState,
    source: Stream,
    sample: Array,
    done: int,
    steps: int,
    resumed: bool,
    class_weights: Array,
) -> int:
    """Make steps ``done`` + 1 to ``done`` + ``steps``; ``sample`` is scratch for all rows.

    Return the number of the last step made. It is smaller if the next step has open coordinates
    (:mod:`expost.training._native.noise`). When they are decided, the call is repeated with
    ``resumed``.
    """
    for step in range(done + 1, done + steps + 1):
        if not (resumed and step == done + 1):
            count = poisson_sample(source, settings.rate, len(X), sample)
            rows, parameters, total = sample[:count], state.parameters, state.total
            if loss == SOFTMAX:
                clipped_sum_softmax(
                    X, y, norms, rows, parameters, settings.bound, classes, total, class_weights
                )
            else:
                clipped_sum_single(
                    X, y, norms, rows, parameters, settings.bound, loss, total, class_weights
                )
            if noisy(state, settings, source) > 0:
                return step - 1
        update(state, settings, step)
    return done + steps
