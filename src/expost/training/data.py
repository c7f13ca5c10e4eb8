"""Checks of the rows and targets of a training, made once, before anything is charged.

:func:`check_training_data` is called by every way to start a training. What it refuses depends on
the type, the number type and the shape of the arrays, never on the values in them: a refusal is not
noisy, so it must not tell anything about a row. Shape and number type are public; a list is first
converted by NumPy, whose number type then counts. The number of rows is public too, unless the
caller gives a public number of its own: then no number of rows is refused (:func:`with_a_row`).

A row that cannot be used does not count: a row with NaN or infinity, or with a target that is not
finite or not one of the public classes. Its features become 0 and its target NaN, and every engine
adds nothing for it. So it is like an absent row, and a data set of one class is no error.
Tests: ``tests/training/test_bad_input.py``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from expost.arrays import Array
from expost.errors import InvalidInput

LOSSES = ("squared", "logistic", "softmax")
_CHUNK = 1 << 18  # values checked at a time; their flags stay in the cache


def check_training_data(
    X: Any, y: Any, loss: str, classes: int | None, *, dimensions: int | None
) -> tuple[Array, Array]:
    """Return rows and targets that every engine can train on."""
    rows = check_rows(X, dimensions=dimensions)
    targets = _targets(y, len(rows))
    usable = _finite_rows(rows) & _allowed(targets, loss, classes)
    if not usable.all():
        rows = np.where(usable.reshape(-1, *[1] * (rows.ndim - 1)), rows, rows.dtype.type(0))
        targets = np.where(usable, targets, np.nan)
    return np.ascontiguousarray(rows), targets


def with_a_row(X: Any, y: Any) -> tuple[Any, Any]:
    """Return rows and targets, with one row that does not count if there are none.

    For trainings with a public number of rows: there, no rows are no error.
    """
    shape = np.shape(X)
    if len(shape) < 2 or shape[0] != 0 or np.shape(y) != (0,):
        return X, y
    return np.zeros((1, *shape[1:])), np.full(1, np.nan)


def check_rows(X: Any, *, dimensions: int | None) -> Array:
    """Return ``X`` as a float32 or float64 array, whatever its values.

    ``dimensions`` is the required number of axes; None allows any number from 2 on.
    """
    try:
        rows = np.asarray(X)
        if rows.dtype not in (np.float32, np.float64):
            with np.errstate(over="ignore"):  # a number that is too large does not count
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
    return rows


def _targets(y: Any, rows: int) -> Array:
    """Return ``y`` as a float64 array of one number per row, whatever its values."""
    try:
        targets = np.asarray(y)
        if targets.dtype.kind not in "biuf":
            raise TypeError
        with np.errstate(over="ignore"):
            targets = targets.astype(np.float64)
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
    return targets


def _finite_rows(rows: Array) -> Array:
    """Return which rows hold finite numbers only."""
    step = max(1, _CHUNK // max(1, rows[0].size))
    finite = np.empty(len(rows), dtype=bool)
    for start in range(0, len(rows), step):
        part = rows[start : start + step]
        fine = np.isfinite(part)
        finite[start : start + step] = fine.all() or fine.reshape(len(part), -1).all(axis=1)
    return finite


def _allowed(targets: Array, loss: str, classes: int | None) -> Array:
    """Return which targets are finite and, for a classifier, public classes."""
    fine = np.isfinite(targets)
    if loss == "squared":
        return fine
    top = 2 if loss == "logistic" else classes or 0
    with np.errstate(invalid="ignore"):
        return np.asarray(
            fine & (targets >= 0) & (targets < top) & (targets == np.floor(targets)), dtype=bool
        )
