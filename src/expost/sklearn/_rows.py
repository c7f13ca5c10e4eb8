"""Checks of what a ``fit`` receives, rows and estimators, made before anything is charged.

Shapes, types, column names and the settings of the estimator are public. Two refusals depend on
values: a cell that is not a finite number, and a label outside the public classes. They are for the
person who holds the data, like any error of an earlier step, and are made only at the outermost
``fit`` of an estimator (and of a search over estimators of other packages), before a selection
starts and before a budget is charged. Inside a selection (:func:`inside_selection`), and by a
search over this package's estimators, nothing is refused because of a value: such an outcome would
be released without noise. There, a row that cannot be used counts for nothing. No message quotes a
value.

**What a search reads from an estimator.** Parameters are found by name, in the estimator itself or
in one step of a ``Pipeline``: ``epsilon`` (the privacy level), ``delta``, ``n_rows`` (a public
number of rows) and ``target_bounds``. An estimator states its guarantee with
``privacy_guarantee(n)`` and refuses bad rows with ``check_fit(X, y)``.

A ``Pipeline`` keeps the guarantee of its last step if the other steps learn nothing from the rows:
they are stateless (``requires_fit`` is false), a ``FrozenEstimator`` that was fitted on public
data, or "passthrough". They must treat each row alone.

Tests: ``tests/training/test_sklearn.py``, ``tests/tuning/test_sklearn_search.py``.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from difflib import get_close_matches
from typing import Any

import numpy as np
from sklearn.base import is_regressor
from sklearn.exceptions import DataConversionWarning
from sklearn.pipeline import Pipeline
from sklearn.utils import get_tags
from sklearn.utils.validation import _num_samples, validate_data

from expost.arrays import Array
from expost.errors import InvalidInput
from expost.execution.calls import call_or_failure
from expost.privacy.guarantees import Guarantee
from expost.tables.cells import cells_of, frame_of, list_cells, numbers, typed

WHY = "reading them off the data would reveal single people; pass what is publicly known"
_REFUSES: ContextVar[bool] = ContextVar("refuses values", default=True)


@contextmanager
def inside_selection() -> Iterator[None]:
    """Refuse nothing because of a value, and warn of nothing, until the end of the block."""
    token = _REFUSES.set(False)
    try:
        yield
    finally:
        _REFUSES.reset(token)


def refuses_values() -> bool:
    """Whether a value may be refused: at the outermost door, and not inside a selection."""
    return _REFUSES.get()


def check_features(estimator: Any, X: Any, *, reset: bool = True) -> Array:
    """Return features as a float64 array and remember their number and names."""
    X = table_of(X)
    check_width(X)
    rows = np.asarray(
        validate_data(
            estimator,
            _numbers(X),
            dtype=np.float64,
            ensure_all_finite=False,
            ensure_min_samples=1 if _REFUSES.get() else 0,
            reset=reset,
        )
    )
    if _REFUSES.get():
        check_finite(rows)
    return rows


def table_of(X: Any) -> Any:
    """Return a list of rows as an array, read row by row; other tables as they are.

    The error of a conversion would state the length of a text or the shape of a row.
    """
    return typed(list_cells(X)) if isinstance(X, (list, tuple)) else X


def check_finite(rows: Array) -> None:
    """Refuse rows with NaN or infinity."""
    if not np.isfinite(rows).all():
        raise InvalidInput(
            "X",
            "values that are NaN, infinity or no numbers",
            "replace them by public values, or leave these rows out; nothing was charged",
        )


def check_width(X: Any) -> None:
    """Refuse what is not a table: missing, flat, or with columns that hold no numbers."""
    if X is None:
        raise InvalidInput("X", None, "pass a table with one row per example")
    names = text_columns(X)
    if names:
        raise InvalidInput(
            "X",
            "a table with columns that hold no numbers",
            f"encode {', '.join(map(repr, names))} as numbers with public steps first",
        )
    if getattr(getattr(X, "dtype", None), "kind", "") == "c":
        # scikit-learn's own message would quote the rows
        raise InvalidInput("X", "complex numbers", "Complex data not supported; pass real numbers")
    shape = getattr(X, "shape", None)
    axes = len(shape) if isinstance(shape, tuple) else None
    if axes is not None and axes != 2:
        raise InvalidInput(
            "X",
            f"an array with {axes} axes",
            "Expected 2D array. Reshape your data: one row per example, one column per feature",
        )


def text_columns(X: Any) -> list[str]:
    """Return the columns of a data frame whose type holds no numbers; types are public."""
    if hasattr(X, "schema") and type(X).__module__.startswith("polars"):
        return [
            name
            for name, kind in X.schema.items()
            if not (kind.is_numeric() or str(kind) in ("Boolean", "Null", "Object"))
        ]
    kinds = getattr(X, "dtypes", None)
    if kinds is None or not hasattr(X, "columns"):
        return []
    return [
        str(name)
        for name, kind in zip(X.columns, kinds, strict=True)
        if getattr(kind, "kind", "O") not in "biufO" or str(kind) in ("category", "string", "str")
    ]


def _numbers(values: Any) -> Any:
    """Return objects and texts as numbers, NaN for what is not a number.

    The error of a conversion would quote the value.
    """
    array = None if hasattr(values, "toarray") else call_or_failure(np.asarray, values)
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "OUS" or array.ndim > 2:
        return values
    if hasattr(values, "columns") and hasattr(values, "index"):
        return type(values)(numbers(array), columns=values.columns, index=values.index)
    return numbers(array)


def check_targets(y: Any, rows: int) -> Array:
    """Return the targets as an array of one value per row; refuse shapes only."""
    if y is None:
        raise InvalidInput(
            "y", None, "fit requires y to be passed, but the target y is None; pass one per row"
        )
    if hasattr(y, "toarray"):
        raise InvalidInput("y", "a sparse matrix", "pass a flat array with one target per row")
    targets = call_or_failure(np.asarray if frame_of(y) is not None else cells_of, y)
    if not isinstance(targets, np.ndarray):
        raise InvalidInput("y", type(y).__name__, "pass a flat array with one target per row")
    targets = typed(targets)
    if targets.ndim == 2 and targets.shape[1] == 1:
        warnings.warn(
            "A column-vector y was passed when a 1d array was expected; it is flattened.",
            DataConversionWarning,
            stacklevel=4,
        )
        targets = targets[:, 0]
    if targets.ndim != 1:
        raise InvalidInput(
            "y",
            f"targets in {targets.ndim} dimensions",
            "pass one target per row: y should be a 1d array",
        )
    if len(targets) != rows:
        raise InvalidInput("y", f"{len(targets)} targets", f"pass one target per row, {rows} rows")
    return targets


def check_numbers(targets: Array) -> Array:
    """Return regression targets as numbers; refuse those that are not finite numbers."""
    values = np.asarray(_numbers(targets), dtype=np.float64)
    if _REFUSES.get() and not np.isfinite(values).all():
        raise InvalidInput(
            "y",
            "targets that are NaN, infinity or no numbers",
            "leave these rows out; nothing was charged",
        )
    return values


def check_labels(known: Array, labels: Array) -> Array:
    """Return the place of each label in the sorted public list; refuse a label outside it.

    Inside a selection the place of a label outside is NaN.
    """
    numeric = set("biuf")
    if known.dtype.kind == labels.dtype.kind or {known.dtype.kind, labels.dtype.kind} <= numeric:
        nearest = np.minimum(np.searchsorted(known, labels), len(known) - 1)
        indices = np.where(known[nearest] == labels, nearest.astype(np.float64), np.nan)
    else:
        table = {value: float(number) for number, value in enumerate(known.tolist())}
        looked = [call_or_failure(table.get, label, np.nan) for label in labels.tolist()]
        indices = np.array([index if isinstance(index, float) else np.nan for index in looked])
    if _REFUSES.get() and np.isnan(indices).any():
        raise InvalidInput(
            "y",
            "labels outside the public classes",
            "Unknown label type: continuous, NaN or not listed. List every label that may occur in "
            "`classes`, or leave these rows out; nothing was charged",
        )
    return indices


def check_bounds(bounds: Any, field: str, names: Any, columns: int) -> tuple[Array, Array]:
    """Return lows and highs as arrays of ``columns`` numbers."""
    if bounds is None:
        raise InvalidInput(field, None, f"pass public bounds, one pair (low, high): {WHY}")
    if isinstance(bounds, dict):
        bounds = _by_name(bounds, field, names)
    array = call_or_failure(lambda: np.asarray(bounds, dtype=np.float64))
    if not isinstance(array, np.ndarray) or array.shape not in ((2,), (1, 2), (columns, 2)):
        raise InvalidInput(
            field,
            bounds if np.shape(array) == () else f"an array of shape {np.shape(array)}",
            f"pass one pair (low, high), or one pair for each of {columns} columns",
        )
    low, high = np.broadcast_to(array, (columns, 2)).T
    if not np.all(np.isfinite(array)) or not np.all(low < high):
        raise InvalidInput(field, "pairs", "pass finite bounds with low < high")
    return low, high


def _by_name(bounds: dict[Any, Any], field: str, names: Any) -> list[Any]:
    """Return the pairs of a dict in the order of the columns."""
    if names is None:
        raise InvalidInput(
            field, "pairs by column name", "pass a data frame, or one pair per column"
        )
    listed = [str(name) for name in names]
    problems = []
    for name in bounds:
        if name not in listed:
            near = get_close_matches(str(name), listed, 1)
            hint = f", did you mean {near[0]!r}?" if near else ""
            problems.append(f"X has no column {name!r}{hint}")
    missing = [repr(name) for name in listed if name not in bounds]
    if missing:
        problems.append(f"pass a pair for {', '.join(missing)}, too")
    if problems:
        raise InvalidInput(field, bounds, "; ".join(problems))
    return [bounds[name] for name in listed]


def require_usable_rows(
    estimator: Any, X: Any, y: Any, given: Collection[str] = (), *, secret: bool = False
) -> Array:
    """Refuse rows that no candidate could use; return the targets. ``secret``: their number is."""
    if X is None:
        raise InvalidInput("X", None, "pass a table with one row per example")
    tags = get_tags(estimator).input_tags
    if hasattr(X, "toarray"):
        if not tags.sparse:
            raise InvalidInput("X", "a sparse matrix", "pass a dense array: X.toarray()")
        return check_targets(y, X.shape[0])
    rows = call_or_failure(_num_samples, X)
    if not isinstance(rows, int):
        raise InvalidInput("X", type(X).__name__, "pass a table with one row per example")
    shape = getattr(X, "shape", None)
    array = None if shape is not None else call_or_failure(np.asarray, X)
    shape = array.shape if isinstance(array, np.ndarray) else shape
    if shape is not None and len(shape) != 2 and not (tags.one_d_array or tags.three_d_array):
        raise InvalidInput(
            "X",
            f"an array with {len(shape)} axes",
            "Expected 2D array. Reshape your data: one row per example, one column per feature",
        )
    if (rows == 0 and not secret) or (shape is not None and 0 in shape[1:]):
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
    if _REFUSES.get() and bool(_gaps(targets).any()):
        raise InvalidInput("y", "targets that are NaN or missing", "leave these rows out")
    return targets


def check_gaps(estimator: Any, X: Any) -> None:
    """Refuse gaps in the rows, unless the estimator's tags say that it takes them."""
    if _REFUSES.get() and not get_tags(estimator).input_tags.allow_nan:
        check_finite(np.where(_gaps(X), np.nan, 0.0))


def _gaps(values: Any) -> Array:
    """Return which cells are missing, NaN or infinite; texts and other objects are none."""
    cells = call_or_failure(np.asarray, values)
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


class InvalidFacts(InvalidInput):
    """Several settings are missing or not valid."""

    def __init__(self, problems: list[InvalidInput]) -> None:
        self.field = ", ".join(problem.field for problem in problems)
        self.value = None
        texts = [str(problem).replace(f": {WHY}", "") for problem in problems]
        self.valid = "; ".join(f"({number}) {text}" for number, text in enumerate(texts, 1))
        Exception.__init__(self, f"{len(problems)} settings are missing or not valid: {self.valid}")
        if any(WHY in str(problem) for problem in problems):
            self.args = (f"{self}. Bounds and classes are public facts: {WHY}",)


def check_all(checks: Iterable[Callable[[], object]]) -> None:
    """Make all checks, then raise what they raised: one error as it is, several as one."""
    problems: list[InvalidInput] = []
    for check in checks:
        try:
            check()
        except InvalidInput as error:
            problems.append(error)
    if len(problems) == 1:
        raise problems[0]
    if problems:
        raise InvalidFacts(problems)


def names_of(X: Any) -> tuple[list[str] | None, int]:
    """Return the names of the columns of a table, if they are texts, and their number."""
    columns = getattr(X, "columns", None)
    if columns is not None:
        names = [str(column) for column in columns if isinstance(column, str)]
        return (names if len(names) == len(columns) else None), len(columns)
    shape = call_or_failure(np.shape, X)
    return None, shape[1] if isinstance(shape, tuple) and len(shape) == 2 else 1


def parameter(estimator: Any, name: str) -> str | None:
    """Return the full name of the parameter ``name``, or None if there is none or more than one."""
    known = [key for key in estimator.get_params() if key == name or key.endswith(f"__{name}")]
    if name in known:
        return name
    return known[0] if len(known) == 1 else None


def setting(estimator: Any, name: str) -> Any:
    """Return the value of the parameter ``name``; None if there is none."""
    full = parameter(estimator, name)
    return None if full is None else estimator.get_params()[full]


def guarantee_of(estimator: Any, n: int) -> Guarantee | None:
    """Return the guarantee that an estimator states for ``n`` rows, or None."""
    if isinstance(estimator, Pipeline):
        check_steps(estimator)
        return guarantee_of(estimator[-1], n)
    if hasattr(estimator, "privacy_guarantee"):
        stated = estimator.privacy_guarantee(n)
    else:
        own = getattr(estimator, "guarantee", None)
        stated = own() if callable(own) else own
    return stated if isinstance(stated, Guarantee) else None


def check_steps(pipeline: Any) -> None:
    """Refuse a step, other than the last, that is fitted on the rows."""
    for name, step in pipeline.steps[:-1]:
        if step is None or step == "passthrough" or type(step).__name__ == "FrozenEstimator":
            continue
        tags = call_or_failure(get_tags, step)
        if getattr(tags, "requires_fit", True):
            raise InvalidInput(
                f"step {name!r}",
                type(step).__name__,
                "it is fitted on the rows without noise; use a stateless step, or wrap one that "
                "was fitted on public data in sklearn.frozen.FrozenEstimator",
            )


def last_step(estimator: Any) -> Any:
    """Return the estimator, or the last step of a pipeline."""
    return estimator[-1] if isinstance(estimator, Pipeline) else estimator


def before_last_step(estimator: Any, X: Any) -> Any:
    """Return rows as the last step of a pipeline takes them; the other steps learn nothing."""
    if isinstance(estimator, Pipeline):
        for _, step in estimator.steps[:-1]:
            if step is not None and step != "passthrough":
                X = step.transform(X)
    return X


def check_fit(estimator: Any, X: Any, y: Any) -> None:
    """Refuse what a fit of the estimator would refuse, before anything is charged."""
    last, rows = last_step(estimator), before_last_step(estimator, X)
    if hasattr(last, "check_fit"):
        last.check_fit(rows, y)
    elif last is not estimator and not hasattr(rows, "toarray"):
        check_gaps(last, rows)


def keep_parameters(estimator: Any, given: Mapping[str, Any]) -> None:
    """Store the arguments of ``__init__`` unchanged, each under its name, as scikit-learn asks."""
    for name, value in given.items():
        if name not in ("self", "__class__"):
            setattr(estimator, name, value)
