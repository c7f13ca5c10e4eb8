"""Linear, logistic and softmax regression by DP-SGD: a whole step in one native kernel, one model a thread.

An example's gradient is its residuals times its row with a 1 appended (the bias), so its norm is ‖residuals‖·‖(x, 1)‖ and the clipped sum
needs no gradient of its own. Losses are those of torch: squared error (prediction − y)², binary and categorical cross-entropy of logits.
Rows may be float32 or float64; parameters, residuals, norms and sums are float64. A residual that overflowed is clipped like any other;
one that is no number adds nothing, so no row ever moves the sum by more than the clipping norm (to rounding, 1e-15 of it).

Parameters are flat, per output: its weights, then its bias. Tests: ``tests/training/test_linear.py``.
"""

from __future__ import annotations

import math

import numpy as np

from expost.training.compiled import kernel, prefetch
from expost.training.keystream import Array, Stream, poisson_sample
from expost.training.update import Settings, State, finish_step

SQUARED, LOGISTIC, SOFTMAX = 0, 1, 2
AHEAD = 8  # rows asked for in advance: a Poisson sample jumps about, and waiting for memory would be half the time


@kernel
def row_norms(X: Array) -> Array:
    """‖(x, 1)‖ of each row."""
    norms = np.empty(len(X))
    for row in range(len(X)):
        total = 1.0
        for column in range(X.shape[1]):
            total += np.float64(X[row, column]) ** 2
        norms[row] = math.sqrt(total)
    return norms


@kernel
def _logit(x: Array, parameters: Array, start: int) -> float:
    total = 0.0
    for column in range(len(x)):
        total += np.float64(x[column]) * parameters[start + column]
    return total + float(parameters[start + len(x)])


@kernel
def _add(x: Array, scale: float, total: Array, start: int) -> None:
    for column in range(len(x)):
        total[start + column] += scale * np.float64(x[column])
    total[start + len(x)] += scale


@kernel
def _clipped(residual: float, norm: float, clip: float) -> float:
    """The residual of the clipped gradient."""
    if abs(residual) * norm <= clip:
        return residual
    return math.copysign(clip / norm, residual) if not math.isnan(residual) else 0.0


@kernel
def _scale(logit: float, target: float, norm: float, clip: float, loss: int) -> float:
    """What a row is multiplied by in the sum, from its logit."""
    residual = 2.0 * (logit - target) if loss == SQUARED else 1.0 / (1.0 + math.exp(-logit)) - target
    return _clipped(residual, norm, clip)


@kernel
def clipped_sum_single(
    X: Array, y: Array, norms: Array, rows: Array, parameters: Array, clip: float, loss: int, total: Array
) -> None:
    """Sum of clipped gradients over ``rows`` in ``total``, for one output; four rows share a look at parameters and sums."""
    total[:] = 0.0
    columns, place = X.shape[1], 0
    while place + 4 <= len(rows):
        for later in range(place + AHEAD, min(place + AHEAD + 4, len(rows))):
            prefetch(X, rows[later])
        i, j, k, m = rows[place], rows[place + 1], rows[place + 2], rows[place + 3]
        x0, x1, x2, x3 = X[i], X[j], X[k], X[m]
        s0 = s1 = s2 = s3 = 0.0
        for c in range(columns):
            weight = float(parameters[c])
            s0 += float(np.float64(x0[c])) * weight
            s1 += float(np.float64(x1[c])) * weight
            s2 += float(np.float64(x2[c])) * weight
            s3 += float(np.float64(x3[c])) * weight
        bias = float(parameters[columns])
        s0 = _scale(s0 + bias, y[i], norms[i], clip, loss)
        s1 = _scale(s1 + bias, y[j], norms[j], clip, loss)
        s2 = _scale(s2 + bias, y[k], norms[k], clip, loss)
        s3 = _scale(s3 + bias, y[m], norms[m], clip, loss)
        for c in range(columns):
            total[c] += s0 * np.float64(x0[c]) + s1 * np.float64(x1[c]) + s2 * np.float64(x2[c]) + s3 * np.float64(x3[c])
        total[columns] += s0 + s1 + s2 + s3
        place += 4
    while place < len(rows):
        row = rows[place]
        _add(X[row], _scale(_logit(X[row], parameters, 0), y[row], norms[row], clip, loss), total, 0)
        place += 1


@kernel
def clipped_sum_softmax(
    X: Array, y: Array, norms: Array, rows: Array, parameters: Array, clip: float, classes: int, total: Array
) -> None:
    """The same for ``classes`` outputs; ``y`` holds class numbers."""
    total[:] = 0.0
    width = X.shape[1] + 1
    residuals = np.empty(classes)
    for row in rows:
        top = -math.inf
        for k in range(classes):
            residuals[k] = _logit(X[row], parameters, k * width)
            top = max(top, residuals[k])
        mass = 0.0
        for k in range(classes):
            residuals[k] = math.exp(residuals[k] - top)
            mass += residuals[k]
        square = 0.0
        for k in range(classes):
            residuals[k] = residuals[k] / mass - (1.0 if k == int(y[row]) else 0.0)
            square += residuals[k] * residuals[k]
        norm = math.sqrt(square) * norms[row]
        if not math.isnan(norm):
            scale = 1.0 if norm <= clip else clip / norm
            for k in range(classes):
                _add(X[row], scale * residuals[k], total, k * width)


@kernel
def train_steps(
    X: Array,
    y: Array,
    norms: Array,
    loss: int,
    classes: int,
    settings: Settings,
    state: State,
    source: Stream,
    sample: Array,
    done: int,
    steps: int,
) -> None:
    """``steps`` more steps after ``done`` of them; ``sample`` is scratch with room for every row."""
    for step in range(done + 1, done + steps + 1):
        count = poisson_sample(source, settings.rate, len(X), sample)
        if loss == SOFTMAX:
            clipped_sum_softmax(X, y, norms, sample[:count], state.parameters, settings.clip, classes, state.total)
        else:
            clipped_sum_single(X, y, norms, sample[:count], state.parameters, settings.clip, loss, state.total)
        finish_step(state, settings, source, step)
