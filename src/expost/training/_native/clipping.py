"""Clip factors of DP-SGD in the native kernels.

DP-SGD scales the gradient of each example by min(1, clip / norm) before summation, so one example
moves the sum by no more than ``clip``. An example whose norm is not finite contributes nothing,
with one exception: an infinite residual of a model with one output is clipped, as its sign is
known.

- :func:`clip_factor` returns the factor for a gradient of known norm. It is used for softmax
  regression (:mod:`expost.training._native.linear`) and for networks
  (:mod:`expost.training._native.network`).
- :func:`clipped_residual` returns the clipped gradient of a linear model with one output, as the
  number by which the row is multiplied.

The equivalent for torch is :func:`expost.training._torch.clipped_sums.clip_factors`. Arithmetic is
float64, rounded to nearest. Tests: ``tests/training/test_clipping.py`` (both engines agree),
``tests/training/test_linear.py``, ``tests/training/test_modules.py`` (against Opacus) and
``tests/training/test_sensitivity.py`` (the effect of one row on a sum).
"""

from __future__ import annotations

import math

from expost.training._native.compiled import kernel


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
