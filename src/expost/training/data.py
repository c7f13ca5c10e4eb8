"""Checks of the rows and targets of a training, made before it starts.

No message contains data. But whether a check fails (a value that is not a number, a label out of
range, only one class) depends on the data. So these errors are for the curator only, like any
crash; a selector turns them into its lowest outcome. Tests: ``tests/training/test_bad_input.py``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from expost.arrays import Array
from expost.errors import InvalidInput

LOSSES = ("squared", "logistic", "softmax")
_CHUNK = 1 << 22  # values checked at a time


def check_rows(X: Any, *, dimensions: int | None) -> Array:
    """Return ``X`` as a float32 or float64 array without NaN and infinity.

    ``dimensions`` is the required number of axes; None allows any number from 2 on.
    """
    try:
        rows = np.asarray(X)
        if rows.dtype not in (np.float32, np.float64):
            rows = rows.astype(
                np.float64, casting="same_kind" if rows.dtype.kind in "biuf" else "safe"
            )
    except (TypeError, ValueError, RuntimeError):  # torch tensors raise RuntimeError
        raise InvalidInput(
            "X", type(X).__name__, "pass an array of real numbers with one row per example"
        ) from None
    if rows.ndim < 2 or (dimensions is not None and rows.ndim != dimensions):
        wanted = "at least 2 axes" if dimensions is None else f"{dimensions} axes"
        raise InvalidInput(
            "X",
            f"an array of shape {rows.shape}",
            f"pass an array with {wanted}, the first over examples",
        )
    if rows.size == 0:
        raise InvalidInput(
            "X", f"an array of shape {rows.shape}", "pass at least one row and one column"
        )
    step = max(1, _CHUNK // max(1, rows[0].size))
    if not all(
        np.isfinite(rows[start : start + step]).all() for start in range(0, len(rows), step)
    ):
        raise InvalidInput(
            "X",
            "rows with NaN or infinity",
            "pass finite numbers: remove such rows or replace the values",
        )
    return np.ascontiguousarray(rows)


def check_targets(y: Any, rows: int, loss: str, classes: int | None) -> Array:
    """Return ``y`` as a float64 array.

    It must hold real numbers for "squared", 0 and 1 for "logistic", and class numbers from 0 to
    ``classes`` − 1 for "softmax".
    """
    try:
        targets = np.asarray(y)
        targets = targets.astype(
            np.float64, casting="safe" if targets.dtype.kind in "cmM" else "unsafe"
        )
    except (TypeError, ValueError, RuntimeError):
        raise InvalidInput(
            "y", type(y).__name__, "pass an array of real numbers, one per example"
        ) from None
    if targets.shape != (rows,):
        raise InvalidInput(
            "y",
            f"an array of shape {targets.shape}",
            f"pass shape ({rows},), one number per example",
        )
    if not np.isfinite(targets).all():
        raise InvalidInput("y", "targets with NaN or infinity", "pass finite numbers")
    if loss == "squared":
        return targets
    top = 2 if loss == "logistic" else classes
    if top is None or not np.all((targets >= 0) & (targets < top) & (targets == np.floor(targets))):
        raise InvalidInput(
            "y", "labels out of range", f"pass whole numbers from 0 to {(top or 1) - 1}"
        )
    if np.all(targets == targets[0]):
        raise InvalidInput("y", "labels of one class", "pass examples of at least two classes")
    return targets
