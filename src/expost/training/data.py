"""What a training reads: checked before it starts. No message contains data.

Refusals (a value that is no number, a label out of range, one class only) depend on the data and are for the curator, like any crash: a
selector turns them into its lowest outcome. Tests: ``tests/training/test_bad_input.py``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from expost.arrays import Array
from expost.errors import InvalidInput

LOSSES = ("squared", "logistic", "softmax")
_CHUNK = 1 << 22  # values looked at together


def check_rows(X: Any, *, dimensions: int | None) -> Array:
    """``X`` as a float32 or float64 array of rows without NaN and infinity (``dimensions`` None: any from 2 on)."""
    try:
        rows = np.asarray(X)
        if rows.dtype not in (np.float32, np.float64):
            rows = rows.astype(
                np.float64, casting="same_kind" if rows.dtype.kind in "biuf" else "safe"
            )
    except (TypeError, ValueError, RuntimeError):  # torch's tensors refuse with the last one
        raise InvalidInput(
            "X", type(X).__name__, "give an array of real numbers, one row an example"
        ) from None
    if rows.ndim < 2 or (dimensions is not None and rows.ndim != dimensions):
        wanted = "at least 2 axes" if dimensions is None else f"{dimensions} axes"
        raise InvalidInput(
            "X", f"an array of shape {rows.shape}", f"give {wanted}, the first over examples"
        )
    if rows.size == 0:
        raise InvalidInput(
            "X", f"an array of shape {rows.shape}", "give at least one row and one column"
        )
    step = max(1, _CHUNK // max(1, rows[0].size))
    if not all(
        np.isfinite(rows[start : start + step]).all() for start in range(0, len(rows), step)
    ):
        raise InvalidInput(
            "X",
            "rows with NaN or infinity",
            "give finite numbers: leave such rows out or fill them",
        )
    return np.ascontiguousarray(rows)


def check_targets(y: Any, rows: int, loss: str, classes: int | None) -> Array:
    """``y`` as float64 targets ("squared"), 0 and 1 ("logistic") or class numbers from 0 to ``classes`` − 1 ("softmax")."""
    try:
        targets = np.asarray(y)
        targets = targets.astype(
            np.float64, casting="safe" if targets.dtype.kind in "cmM" else "unsafe"
        )
    except (TypeError, ValueError, RuntimeError):
        raise InvalidInput(
            "y", type(y).__name__, "give an array of real numbers, one an example"
        ) from None
    if targets.shape != (rows,):
        raise InvalidInput(
            "y",
            f"an array of shape {targets.shape}",
            f"give shape ({rows},), one number an example",
        )
    if not np.isfinite(targets).all():
        raise InvalidInput("y", "targets with NaN or infinity", "give finite numbers")
    if loss == "squared":
        return targets
    top = 2 if loss == "logistic" else classes
    if top is None or not np.all((targets >= 0) & (targets < top) & (targets == np.floor(targets))):
        raise InvalidInput(
            "y", "labels out of range", f"give whole numbers from 0 to {(top or 1) - 1}"
        )
    if np.all(targets == targets[0]):
        raise InvalidInput("y", "labels of one class", "give examples of at least two classes")
    return targets
