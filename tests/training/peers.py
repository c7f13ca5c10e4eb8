"""References: Opacus' own per-example gradients, clipped and summed, and norms in rationals."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch


def opacus_clipped_sum(
    module: torch.nn.Module, loss: Any, X: torch.Tensor, y: torch.Tensor, clip: float
) -> np.ndarray:
    """Flat sum over parameters in the module's order."""
    reason = "compares with Opacus: pip install 'expost[opacus]'"
    grad_sample = pytest.importorskip("opacus.grad_sample", reason=reason)
    wrapped = grad_sample.GradSampleModule(module, loss_reduction="sum")
    loss(wrapped(X), y).backward()
    flat = torch.cat([p.grad_sample.reshape(len(X), -1) for p in module.parameters()], dim=1)
    factors = (clip / flat.norm(dim=1)).clamp(max=1.0)
    return (factors[:, None] * flat).sum(0).detach().numpy()


def exact_norm_square(vector: Any) -> Fraction:
    """The squared norm of a vector of doubles, without rounding."""
    return sum((Fraction(float(value)) ** 2 for value in np.ravel(vector)), Fraction(0))
