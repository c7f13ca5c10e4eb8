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

from expost.training.compiled import kernel
from expost.training.keystream import Array, Stream, poisson_sample
from expost.training.update import Settings, State, finish_step

SQUARED, LOGISTIC, SOFTMAX = 0, 1, 2


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
def clipped_sum_single(
    X: Array, y: Array, norms: Array, rows: Array, parameters: Array, clip: float, loss: int, total: Array
) -> None:
    """Sum of clipped gradients over ``rows`` in ``total``, for one output."""
    total[:] = 0.0
    for row in rows:
        residual = _logit(X[row], parameters, 0)
        residual = 2.0 * (residual - y[row]) if loss == SQUARED else 1.0 / (1.0 + math.exp(-residual)) - y[row]
        scale = _clipped(residual, norms[row], clip)
        if scale != 0.0:
            _add(X[row], scale, total, 0)


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
