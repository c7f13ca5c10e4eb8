"""How a job finds its columns, and which features its encoded rows get.

``model.features``, and each entry of ``search.features``, is ``"auto"``, ``"plain"``
(numbers scaled to ±1 and nothing else), features that take encoded rows, or their record
(:func:`expost.features.features_from_dict`); a job may name functions in it, as it may name the
code of its model. With "auto", pictures (``data.shape``, or rows that are arrays of that shape)
become oriented gradients; columns become one-hot categories and numbers on a scale from −1 to 1,
with bins, and with a logarithm if their bounds are wide; arrays of many numbers stay as they are,
between 0 and 1.

Tests: ``tests/tuning/test_table_schema.py``, ``tests/tuning/test_progressive_jobs.py``.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from expost.arrays import Array, Floats
from expost.errors import InvalidInput
from expost.features import EncodedColumns, Features, OrientedGradients, features_from_dict
from expost.features.choice import function_names
from expost.features.columns import BINS, TableSchema, numbers_among
from expost.features.pictures import picture_shape
from expost.selection.held_out import SHARES
from expost.training.lattice_rows import rounded_rows
from expost.tuning.request.factories import FeatureFunction


def find_column(wanted: str, names: Sequence[str], field: str, source: str) -> int:
    """Return the position of a column by its name."""
    if wanted in names:
        return list(names).index(wanted)
    raise InvalidInput(field, wanted, f"{source} has no such column{near(wanted, names)}")


def near(wanted: str, names: Sequence[str], subject: str = "it has") -> str:
    """Return "; did you mean …?" with similar names, or the names there are."""
    folded = {name.lower(): name for name in names}
    close = get_close_matches(wanted.lower(), list(folded), n=3)
    if close:
        return "; did you mean " + " or ".join(repr(folded[name]) for name in close) + "?"
    if any("\n" in name for name in names) or not names:
        return ""
    more = ", …" if len(names) > 20 else ""
    return f"; {subject} the columns " + ", ".join(repr(name) for name in names[:20]) + more


Choice = str | Mapping[str, Any] | Features
"""What a job says about features: "auto", "plain", a record, or in Python the features."""

CHOICES = ("auto", "plain")
_WIDE = 200  # arrays with at least so many numbers are usually sparse, or pixels


def is_choice(value: object) -> bool:
    """Return whether a value is what a job may say about features."""
    return isinstance(value, (Mapping, Features)) or (isinstance(value, str) and value in CHOICES)


def features_for(
    wanted: Choice, schema: TableSchema, shape: tuple[int, ...] | None, folder: Path | None = None
) -> Features | None:
    """Return the features of encoded rows; None for tokens, which have none."""
    if schema.integers:
        return None
    regression = schema.class_count is None
    norm = "bound" if regression else "row"
    if not isinstance(wanted, str):
        features = wanted if isinstance(wanted, Features) else from_record(wanted, folder or Path())
        if (features.columns or schema.width) != schema.width:
            raise InvalidInput(
                "features",
                features.kind,
                f"they take rows of {features.columns} values; encoded rows have {schema.width}",
            )
        if not features.transform_cells(np.full((1, schema.width), 0.5)).any():  # made up
            raise InvalidInput(
                "features",
                features.describe(),
                f"they cannot read a row of {schema.width} numbers, each 0.5, which is what "
                "encoded rows look like",
            )
        return features
    if wanted == "auto" and shape is not None:
        sides = picture_sides(shape)
        if sides is not None and prod(sides) == schema.width:
            return OrientedGradients(sides, norm=norm)
    named = schema.names is not None
    bins = BINS if wanted == "auto" and named and not regression else 0
    numbers = [] if not named and schema.width >= _WIDE else numbers_among(schema.columns)
    logarithm = wanted == "auto" and named and not regression
    return EncodedColumns(schema.width, tuple(numbers), bins, logarithm, norm=norm)


def picture_sides(shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return height, width and channels of a picture, or None if a shape is no picture's."""
    if len(shape) == 3 and shape[0] <= 4 < min(shape[1:]):
        return None if shape[0] > 1 else tuple(shape[1:])  # channels first: flat rows differ
    try:
        sides = picture_shape(tuple(shape))
    except InvalidInput:
        return None
    return sides if min(sides[:2]) >= 8 else None


def from_record(record: Mapping[str, Any], folder: Path) -> Features:
    """Return the features of a record whose functions the user trusts; their code is loaded."""
    functions = {name: FeatureFunction(name, folder) for name in function_names(record)}
    return features_from_dict(record, functions)


class FeatureRows:
    """The features of encoded rows, rounded as in training.

    They are computed once per array and forgotten together with it.

    A result refers to what made it, so nothing that is private may stay here after a job.
    """

    def __init__(self, features: Features) -> None:
        self.features = features
        self._known: list[tuple[weakref.ref[Array], Floats]] = []

    def __reduce__(self) -> tuple[Any, ...]:
        """Send the map to a worker, not what it has computed."""
        return FeatureRows, (self.features,)

    def checkpoint_identity(self) -> Features:
        """Return the map, which is all that distinguishes two of these."""
        return self.features

    def of(self, X: Array) -> Floats:
        """Return the features of encoded rows."""
        for known, rows in self._known:
            if known() is X:
                return rows
        cells = np.asarray(X)
        flat = cells.reshape(len(X), prod(cells.shape[1:]))
        rows = rounded_rows(self.features.transform_cells(flat))
        self._known = [*self._known[-1:], (weakref.ref(X, self._forget), rows)]
        return rows

    def _forget(self, gone: weakref.ref[Array]) -> None:
        """Forget the features of an array that is no more."""
        self._known = [pair for pair in self._known if pair[0] is not gone]

    def __call__(self, data: Any) -> Any:
        """Return features and targets of the training rows; of a large table, its parts."""
        parts = getattr(data, "parts", None)
        if parts is not None:
            return parts.training(self.features)
        return with_shares(data, self.of(data["X"]))


def with_shares(data: Any, rows: Array) -> Any:
    """Return training rows with their targets and, if they belong to persons, their shares."""
    targets, shares = np.asarray(data["y"], dtype=np.float64), data.get("shares")
    return (rows, targets) if shares is None else (rows, targets, shares / SHARES)
