"""The rows of a search: checked once, before anything is charged, then split into two parts.

Without a public number of rows the split is by position (:func:`expost.tuning.rows.held_out`). The
number of positions is public, and neighbours differ in one position, which may be empty: removing a
row and moving up the others would move everybody ("zero-out").

With ``n_rows`` each row goes to one part by its own coin. A row that is added or removed then
leaves the parts of all others as they are ("add-remove"), and every rate and normalisation uses
``n_rows``. The charge holds given the coins, for either part that the row may be in, and therefore
also on average over the coins: p ≤ e^{ε(o)} q + δ is linear in the two laws, and Rényi moments are
jointly convex. The coins are drawn once for all candidates and attempts.

Tests: ``tests/tuning/test_sklearn_search.py``.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from expost.arrays import Array
from expost.errors import InvalidInput, MissingExtra
from expost.execution.failure import attempt
from expost.randomness.source import Randomness
from expost.sklearn._rows import check_finite, check_numbers, check_targets, check_width
from expost.tuning.rows import held_out

try:
    from sklearn.base import is_regressor
    from sklearn.pipeline import Pipeline
    from sklearn.utils import _safe_indexing, get_tags
    from sklearn.utils.validation import _num_samples
except ImportError:
    raise MissingExtra("scikit-learn", "sklearn") from None


def check_rows(estimator: Any, X: Any, y: Any, given: Collection[str] = ()) -> Array:
    """Refuse rows that no candidate could use; return the targets.

    Parameters
    ----------
    estimator : estimator
        What is searched. Its tags say whether it takes NaN, sparse matrices or flat arrays.
    X, y : array-like
        Rows and targets.
    given : collection of str
        Parameters of the estimator that the search sets.

    Raises
    ------
    InvalidInput
        If the rows are missing, empty, sparse, of another shape, or have gaps.
    """
    if X is None:
        raise InvalidInput("X", None, "pass a table with one row per example")
    tags = get_tags(estimator).input_tags
    if hasattr(X, "toarray"):
        if not tags.sparse:
            raise InvalidInput("X", "a sparse matrix", "pass a dense array: X.toarray()")
        return check_targets(y, X.shape[0])
    rows = attempt(_num_samples, X)
    if not isinstance(rows, int):
        raise InvalidInput("X", type(X).__name__, "pass a table with one row per example")
    shape = getattr(X, "shape", None)
    array = None if shape is not None else attempt(np.asarray, X)
    shape = array.shape if isinstance(array, np.ndarray) else shape
    if shape is not None and len(shape) != 2 and not (tags.one_d_array or tags.three_d_array):
        raise InvalidInput(
            "X",
            f"an array with {len(shape)} axes",
            "Expected 2D array. Reshape your data: one row per example, one column per feature",
        )
    if rows == 0 or (shape is not None and 0 in shape):
        what = "sample(s)" if rows == 0 else "feature(s)"
        raise InvalidInput(
            "X",
            "an empty table",
            f"it has 0 {what} (shape={shape or (rows,)}) while a minimum of 1 is required. Pass at "
            "least one row and one column",
        )
    targets = check_targets(y, rows)
    if hasattr(estimator, "check_facts"):
        estimator.check_facts(X, given)  # public facts, before gaps are looked for
    elif hasattr(estimator, "check_fit"):
        check_width(X)  # names columns of text, before gaps in them are found
    if not isinstance(estimator, Pipeline):  # its steps may fill gaps: check_fit looks after them
        check_gaps(estimator, X)
    if is_regressor(estimator):
        return check_numbers(targets)
    if bool(_gaps(targets).any()):
        raise InvalidInput("y", "targets that are NaN or missing", "leave these rows out")
    return targets


def check_gaps(estimator: Any, X: Any) -> None:
    """Refuse gaps in the rows, unless the estimator's tags say that it takes them."""
    if not get_tags(estimator).input_tags.allow_nan:
        check_finite(np.where(_gaps(X), np.nan, 0.0))


def _gaps(values: Any) -> Array:
    """Return which cells are missing, NaN or infinite; texts and other objects are none."""
    cells = attempt(np.asarray, values)
    if not isinstance(cells, np.ndarray):
        return np.zeros(1, dtype=bool)
    if cells.dtype.kind in "fc":
        return np.asarray(~np.isfinite(cells))
    if cells.dtype.kind != "O":
        return np.zeros(cells.shape, dtype=bool)
    return np.array([_is_gap(cell) for cell in cells.ravel()], dtype=bool)


def _is_gap(cell: Any) -> bool:
    """Whether a cell is None, NaN, infinite, or a missing value that is not equal to itself."""
    if cell is None or type(cell).__name__ in ("NAType", "NaTType"):
        return True
    if isinstance(cell, (float, np.floating)):
        return not np.isfinite(cell)
    return False


def by_position(n: int, holdout: float) -> Array:
    """Return which of ``n`` places score, by the public rule of :mod:`expost.tuning.rows`."""
    out = held_out(n, holdout)
    if out.all() or not out.any():
        raise InvalidInput(
            "holdout",
            holdout,
            f"the rows (n_samples = {n}) cannot be split by it; pass another share or more rows",
        )
    return out


def by_coins(n: int, holdout: float, randomness: Randomness) -> Array:
    """Return which rows score: one independent coin per row, to the nearest multiple of 2⁻⁵³.

    The charge does not depend on the probability, only on the independence of the coins.
    """
    words = randomness.words(n) >> np.uint64(11)
    return np.asarray(words < np.uint64(round(holdout * 2**53)))


def split(X: Any, y: Array, out: Array | None) -> dict[str, Any]:
    """Return the data of the candidates; without ``out`` every row trains."""
    if out is None:
        return {"train_X": X, "train_y": y, "score_X": None, "score_y": None}
    if hasattr(X, "__array__") and not hasattr(X, "shape"):
        X = np.asarray(X)
    train, rest = np.flatnonzero(~out), np.flatnonzero(out)
    return {
        "train_X": _safe_indexing(X, train),
        "train_y": y[train],
        "score_X": _safe_indexing(X, rest),
        "score_y": y[rest],
    }
