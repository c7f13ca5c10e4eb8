"""What both kinds of second moments share: parts of rows, and solving noisy normal equations."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from expost.arrays import Array, Floats

PART = 4096


def parts_of(X: Array, y: Array) -> Iterator[tuple[Floats, Array]]:
    """Yield parts of at most 4,096 rows in float64."""
    for start in range(0, len(X), PART):
        yield np.asarray(X[start : start + PART], dtype=np.float64), y[start : start + PART]


def solve_noisy(matrix: Floats, right: Floats, noise: float, ridge: float = 0.5) -> Floats:
    """Solve (M + r·I) w = b for a noisy symmetric M: negative eigenvalues count as 0.

    The exact matrix has no negative eigenvalues; those of the noisy one are noise. The ridge r is
    ``ridge`` times the usual size of the noise of an eigenvalue. All of it is post-processing.

    Parameters
    ----------
    matrix : ndarray of shape (width, width)
        Symmetric.
    right : ndarray of shape (width, outputs)
        The right-hand sides.
    noise : float
        Standard deviation of the noise of a diagonal entry.
    ridge : float
        The ridge, in units of noise·√(width/2).
    """
    added = ridge * noise * math.sqrt(len(matrix) / 2) + 1e-9
    try:
        values, vectors = np.linalg.eigh(np.nan_to_num(matrix))
    except np.linalg.LinAlgError:
        return np.zeros_like(right)
    solved = vectors @ ((vectors.T @ right) / (np.maximum(values, 0.0) + added)[:, None])
    return np.where(np.isfinite(solved), solved, 0.0)
